"""A stateful operator at its limits, on real Spark and real Delta: supported and rejected inputs."""

from __future__ import annotations

import datetime as dt
import math
import sys
import time
import traceback
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.operator.declaration import Frames, Pieces, StatefulOperator, Update
from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import HotKey, LineageCeiling, WrongResult
from statekeeper.statestore.checkpoint.lineage import LocalCopy
from statekeeper.statestore.format.logs import parse_commit
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits
from tests.support.adding_operator import ROWS, STATE, add_up, adding, rows_of, totals_of, totals_table
from tests.support.streams import Seen, Stream, conf

# Spark's workers need not find this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.spark
def test_each_partition_commits_each_batch_even_without_rows(stream):
    stream.append(rows_of((1, 10), (1, 5), (2, 7)))
    stream.append(rows_of((1, -1), (2, -2)))
    stream.append(ROWS.empty_table())
    stream.append(rows_of((2, 1)))
    reports = stream.run(adding(), rows=stream.rows().where("value > 0"), partitions=4)
    batches = [report.batch for report in reports]
    assert batches == list(range(len(batches))) == stream.committed()
    rows_in = [sum(partition.rows_in for partition in report.partitions) for report in reports]
    assert [n for n in rows_in if n] == [3, 1], "the batches with rows"
    assert rows_in.count(0) >= 1, "the batch whose rows are all filtered out is a batch"
    for report in reports:
        assert [partition.partition for partition in report.partitions] == [0, 1, 2, 3]
        assert all(partition.stores[0].new.version == report.batch + 1 for partition in report.partitions)
    assert len(stream.changelogs()) == 4 * len(batches)
    assert any(partition.rows_in == 0 for partition in reports[0].partitions), "a partition with no rows"
    assert stream.state() == {(1,): (2, 15), (2,): (2, 8)}
    assert [(row["key"], row["count"], row["total"]) for row in stream.output()] == [(1, 2, 15), (2, 1, 7), (2, 2, 8)]


KEYS = pa.schema(
    [
        ("real", pa.float64()),
        ("short_real", pa.float32()),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("money", pa.decimal128(20, 2)),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("flag", pa.bool_()),
        ("inner", pa.struct([("real", pa.float64()), ("list", pa.list_(pa.int32()))])),
    ]
)


MOMENT = dt.datetime(2013, 3, 10, 7, 30, tzinfo=dt.UTC)


DAY = dt.date(2013, 3, 10)


KEY = (1.5, 2.5, "ä.b", b"\0\xff", Decimal("12.34"), DAY, MOMENT, True, {"real": 0.5, "list": [1, None]})


def number_of_rows(rows: pa.Table, state: pa.Table) -> Update:
    """Count the rows of each key of any type. Two values are equal if their text is equal."""
    rows = rows.select(KEYS.names)

    def looks(row: dict[str, Any]) -> str:
        return repr([row[name] for name in KEYS.names]).replace("-0.0", "0.0")

    counts: dict[str, tuple[dict[str, Any], int]] = {}
    for row in state.to_pylist():
        counts[looks(row)] = (row, row["count"])
    for row in rows.to_pylist():
        first, count = counts.get(looks(row), (row, 0))
        counts[looks(row)] = (first, count + 1)
    new = [{**{name: row[name] for name in KEYS.names}, "count": count} for row, count in counts.values()]
    table = pa.Table.from_pylist(new, pa.schema([*KEYS, ("count", pa.int64())]))
    return Update(table, table)


@pytest.mark.spark
def test_nulls_zeros_of_both_signs_and_nans_are_one_key_each_in_keys_of_many_columns(delta_session, tmp_path):
    def key(**changes: Any) -> dict[str, Any]:
        return {**dict(zip(KEYS.names, KEY, strict=True)), **changes}

    zeros = [
        key(real=0.0, short_real=-0.0, inner={"real": -0.0, "list": []}),
        key(real=-0.0, short_real=0.0, inner={"real": 0.0, "list": []}),
    ]
    nans = [key(real=math.nan, short_real=-math.nan, inner={"real": math.nan, "list": None})] * 2
    nulls = [dict.fromkeys(KEYS.names)] * 2
    one_null = [key(text=None), key(flag=None)]
    schema = pa.schema([*KEYS, ("at", pa.int64())])
    stream = Stream(delta_session, tmp_path, schema)
    for part in (0, 1):
        first = [zeros[part], nans[part], nulls[part], *one_null, key()]
        # Interleaved, so that equal keys come together by the sort alone.
        rows = [*first, zeros[1 - part], *first]
        stream.append(pa.Table.from_pylist([{**row, "at": n} for n, row in enumerate(rows)], schema))
    operator = StatefulOperator(
        KEYS.names,
        ["at"],
        state=pa.schema([("count", pa.int64())]),
        output=pa.schema([*KEYS, ("count", pa.int64())]),
        update=number_of_rows,
    )
    stream.run(operator)
    counts = {repr(key): value for key, value in stream.state_rows()}
    assert sorted(value for (value,) in counts.values()) == [4, 4, 4, 4, 4, 6], counts
    assert counts[repr((None,) * len(KEYS))] == (4,)
    assert not any("-0.0" in key for key in counts), "zeros are stored without sign"


def in_two_stores(rows: pa.Table, state: Any) -> Update:
    """`totals` adds up; `newest` holds the newest value; a value of 0 ends a key in `newest`, -1 in both."""
    totals = totals_of(rows, state["totals"])
    newest = {row["key"]: row["value"] for row in rows.to_pylist()}
    seen_before = {row["key"] for row in state["newest"].to_pylist()}
    ended = [key for key, value in newest.items() if value <= 0]
    gone = [key for key, value in newest.items() if value < 0]
    out = [{"key": k, "count": totals[k][0], "seen_before": k in seen_before} for k in newest]
    return Update(
        pa.Table.from_pylist(out),
        state={
            "totals": totals_table({key: total for key, total in totals.items() if key not in gone}),
            "newest": pa.table(
                {"key": [k for k in newest if k not in ended], "value": [v for v in newest.values() if v > 0]}
            ),
        },
        deleted={
            "newest": pa.table({"key": pa.array(ended, pa.int64())}),
            "totals": pa.table({"key": pa.array(gone, pa.int64())}),
        },
    )


@pytest.mark.spark
def test_named_stores_keep_and_delete_keys_independently(stream):
    operator = adding(
        in_two_stores,
        state={"totals": STATE, "newest": pa.schema([("value", pa.int64())])},
        output=pa.schema([("key", pa.int64()), ("count", pa.int64()), ("seen_before", pa.bool_())]),
    )
    stream.append(rows_of((1, 10), (2, 20), (3, 30)))
    stream.append(rows_of((1, 5), (2, 0), (3, -1)))
    stream.append(rows_of((2, 2), (3, 3), (None, 4)))
    stream.run(operator)
    assert stream.state(0) == {(1,): (2, 15), (2,): (3, 22), (3,): (1, 3), (None,): (1, 4)}
    assert stream.state(1) == {(1,): (5,), (2,): (2,), (3,): (3,), (None,): (4,)}
    assert stream.state(1, batch=1) == {(1,): (5,)}
    assert stream.state(0, batch=1) == {(1,): (2, 15), (2,): (2, 20)}
    seen = {(row["key"], row["count"]): row["seen_before"] for row in stream.output()}
    assert seen[(2, 3)] is False
    assert seen[(1, 2)] is True


def add_up_in_pandas(rows: Any, state: Any) -> Update:
    import pandas as pd

    both = pd.concat([rows.assign(count=1, total=rows["value"]), state])[["key", "count", "total"]]
    table = both.groupby("key", dropna=False, as_index=False).sum()
    gone = table[table["total"] == 0][["key"]]
    kept = table[table["total"] != 0]
    return Update(table, kept, gone)


@pytest.mark.spark
def test_pandas_frames_give_the_result_of_arrow_tables(stream):
    stream.append(rows_of((1, 10), (1, 5), (2, 7), (None, 3)))
    stream.append(rows_of((1, 1), (2, -7), (None, 1)))
    stream.run(adding(add_up_in_pandas, frames=Frames.PANDAS))
    assert stream.state() == {(1,): (3, 16), (None,): (2, 4)}
    assert {"key": 2, "count": 2, "total": 0} in stream.output()


def newest_moment(rows: pa.Table, state: pa.Table) -> Update:
    assert str(rows.schema.field("moment").type) == str(rows.schema.field("hour").type) == "timestamp[us, tz=UTC]"
    newest = {row["hour"]: row["moment"] for row in state.to_pylist()}
    newest.update({row["hour"]: row["moment"] for row in rows.to_pylist()})
    table = pa.table(
        {
            "hour": pa.array(newest, pa.timestamp("us", "UTC")),
            "moment": pa.array(newest.values(), pa.timestamp("us", "UTC")),
        }
    )
    return Update(table.append_column("moments", pa.array([[m] for m in newest.values()])), table)


@pytest.mark.spark
def test_the_sessions_time_zone_does_not_move_a_moment(delta_session, tmp_path):
    moment = pa.timestamp("us", tz="UTC")
    schema = pa.schema([("hour", moment), ("moment", moment), ("wall", pa.timestamp("us")), ("day", pa.date32())])
    stream = Stream(delta_session, tmp_path, schema)
    # One hour in New York has two half past ones.
    hours = [dt.datetime(2013, 11, 3, 5, tzinfo=dt.UTC), dt.datetime(2013, 11, 3, 6, tzinfo=dt.UTC)]
    values = pa.schema([("moment", moment)])
    output = pa.schema([("hour", moment), ("moment", moment), ("moments", pa.list_(moment))])
    operator = StatefulOperator(["hour"], ["moment"], state=values, output=output, update=newest_moment)
    zones = ["America/New_York", "Asia/Kolkata", "UTC"]
    for number, zone in enumerate(zones):
        moments = [hour + dt.timedelta(minutes=30 + number) for hour in hours]
        walls = [moment.replace(tzinfo=None) for moment in moments]
        stream.append({"hour": hours, "moment": moments, "wall": walls, "day": [DAY, DAY]})
        with conf(delta_session, {"spark.sql.session.timeZone": zone}):
            stream.run(operator)
    delta_session._jsparkSession.sessionState().streamingQueryManager()
    found = delta_session.read.format("statestore").load(str(stream.root))
    seconds = found.select(F.unix_timestamp("key.hour"), F.unix_timestamp("value.moment")).collect()
    assert sorted(map(tuple, seconds)) == [
        (int(hour.timestamp()), int(hour.timestamp()) + 60 * (30 + len(zones) - 1)) for hour in hours
    ]
    for row in stream.output():
        assert row["moment"].replace(minute=0) == row["hour"]
        assert row["moments"] == [row["moment"]]


@pytest.mark.spark
@pytest.mark.parametrize("dies_at", [pytest.param(Phase.PENDING_WRITTEN, marks=pytest.mark.slow), Phase.SINK_WRITTEN])
def test_a_key_of_a_batch_that_is_repeated_is_counted_once(stream, dies_at):
    def die(batch: int, phase: Phase) -> None:
        if (batch, phase) == (1, dies_at):
            raise ConnectionError("the driver dies here")

    stream.append(rows_of((1, 10), (2, 20)))
    stream.append(rows_of((1, 1), (3, 3)))
    stream.append(rows_of((1, 100)))
    with pytest.raises(ConnectionError):
        stream.run(adding(), seen=Seen(die))
    assert stream.committed() == [0]
    stream.run(adding())
    assert stream.committed() == [0, 1, 2]
    assert stream.state() == {(1,): (3, 111), (2,): (1, 20), (3,): (1, 3)}
    counts = [(row["key"], row["count"]) for row in stream.output()]
    assert counts == [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]


@pytest.mark.spark
def test_a_wrong_result_stops_the_query_with_a_typed_error_and_commits_nothing(stream):
    def forgets_a_column(rows: pa.Table, state: pa.Table) -> Update:
        table = add_up(rows, state).output
        return Update(table.drop_columns(["total"]), table)

    stream.append(rows_of((1, 10)))
    with pytest.raises(
        WrongResult, match=r"the output lacks the columns \['total'\].*it has \['key', 'count'\]"
    ) as stopped:
        stream.run(adding(forgets_a_column))
    assert "".join(traceback.format_exception(stopped.value)).count("Traceback") == 1
    assert stopped.value.hint.startswith("it has"), "the error itself came here, not its text"
    assert (stream.committed(), stream.output()) == ([], [])
    stream.run(adding())
    assert stream.state() == {(1,): (1, 10)}


@pytest.mark.spark
def test_a_user_error_is_shown_with_its_name_and_commits_nothing(stream):
    def fails(rows: pa.Table, state: pa.Table) -> Update:
        raise LookupError("no tariff for zone 7")

    stream.append(rows_of((1, 10)))
    with pytest.raises(PySparkException, match="LookupError: no tariff for zone 7"):
        stream.run(adding(fails))
    assert (stream.committed(), stream.output()) == ([], [])


@pytest.mark.spark
def test_a_hot_key_is_rejected_with_a_typed_error_in_the_running_query(stream):
    stream.append(rows_of(*[(7, 1)] * 30, (8, 1)))
    with pytest.raises(HotKey, match=r"a key has more than 20 rows in a batch: \{'key': 7\}"):
        stream.run(adding(pieces=Pieces(rows=10, hot_key_rows=20)))
    assert stream.committed() == []
    stream.run(adding(pieces=Pieces(rows=10, hot_key_rows=20, split_hot_keys=True)))
    assert stream.state() == {(7,): (30, 30), (8,): (1, 1)}


@pytest.mark.spark
def test_the_partition_count_of_the_root_applies_and_is_logged(stream, caplog):
    stream.append(rows_of((1, 10), (2, 20)))
    assert len(stream.run(adding(), partitions=3)[0].partitions) == 3
    stream.append(rows_of((1, 1)))
    [report] = stream.run(adding(), partitions=2)
    assert len(report.partitions) == 3
    assert "has 3 partitions and 8 key groups; the 2 and 8 that are asked for are ignored" in caplog.text
    assert stream.state() == {(1,): (2, 11), (2,): (1, 20)}


@pytest.mark.spark
@pytest.mark.parametrize("stream", [Structure.V2], indirect=True)
def test_near_the_lineage_ceiling_the_job_stops_with_a_typed_error_and_an_action(stream):
    for value in (1, 2):
        stream.append(rows_of((1, value)))
    stream.run(adding(), partitions=1)
    # The result of 840 batches without a snapshot, made from two: later numbers, and a long lineage in the local copy.
    head = 840
    for logs in (stream.root, stream.checkpoint):
        for log in ("offsets", "commits"):
            for batch in (0, 1):
                (logs / log / str(batch)).rename(logs / log / str(head - 2 + batch))
                (logs / log / f".{batch}.crc").unlink(missing_ok=True)
    [newest] = (stream.root / "state/0/0").glob("2_*.changelog")
    checkpoint_id = newest.name.removesuffix(".changelog").partition("_")[2]
    lineage = tuple(VersionId(version, RandomIds().fresh()) for version in range(1, head))
    [folder] = (stream.folder / "local").glob("*/*/0-0")
    copy = LocalCopyFolder(folder, EngineLimits(), RandomIds()).current()
    with Database.open_for_writing(copy, EngineLimits()) as database:
        version = VersionId(head, checkpoint_id)
        database.apply([], LocalCopy(version, (*lineage, version)))
    stream.append(rows_of((1, 3)))
    with pytest.raises(LineageCeiling) as stopped:
        # The table has the two batches under their old numbers.
        stream.run(adding(), partitions=1, sink=DeltaSink(stream.facts, continue_at_batch=head))
    assert "840 versions since the newest snapshot" in str(stopped.value)
    assert f"run: statekeeper snapshot {stream.root.as_uri()} --all. Then start the query again" in str(stopped.value)
    assert max(stream.committed()) == head - 1


@pytest.mark.spark
@pytest.mark.slow
def test_local_copies_advance_after_the_batches_and_hold_the_committed_rows(stream):
    # Sixteen versions are advanced at once. A worker that is new to the copy advances it to the version that it loads.
    for batch in range(18):
        stream.append(rows_of((batch, 1), (0, 1)))
    stream.run(adding(), partitions=1)
    [folder] = (stream.folder / "local").glob("*/*/0-0")
    copies = LocalCopyFolder(folder, EngineLimits(), RandomIds())
    held = 0
    # In the background of a worker: the last one may still be at it.
    for _ in range(200):
        with copies.open_current() as database:
            version = database.holds().version
        held = version.version
        if held >= 16:
            break
        time.sleep(0.1)
    assert 16 <= held <= 18
    commit = parse_commit((stream.root / "commits" / str(held - 1)).read_bytes(), "commits")
    assert commit.marks == {0: ((version.mark,),)}
