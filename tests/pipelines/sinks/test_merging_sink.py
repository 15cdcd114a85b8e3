"""A Delta sink that merges by key: the table holds the newest row of each key, exactly once, on real Delta."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from statekeeper.pipelines.batch.progress import Outcome, Phase
from statekeeper.pipelines.operator.declaration import Update
from statekeeper.pipelines.sinks.sink import Attempt, DeltaSink
from statekeeper.statestore.base.errors import (
    BadConfiguration,
    SchemaMismatch,
    SinkChanged,
    UnsupportedType,
    WrongResult,
)
from tests.support.adding_operator import ROWS, adding, rows_of, totals_of, totals_table
from tests.support.streams import Seen, Stream

FIRST = rows_of((1, 10), (2, 20), (None, 5))
SECOND = rows_of((1, 1), (3, 3), (None, 1))
THIRD = rows_of((3, 7))
NEWEST = {1: (2, 11), 2: (1, 20), 3: (2, 10), None: (2, 6)}


@pytest.fixture
def stream(delta_session, tmp_path):
    stream = Stream(delta_session, tmp_path, ROWS)
    for rows in (FIRST, SECOND, THIRD):
        stream.append(rows)
    return stream


def merging(stream, **more):
    return DeltaSink(stream.facts, merge_on=["key"], **more)


def assert_newest_rows(stream):
    output = stream.output()
    assert {row["key"]: (row["count"], row["total"]) for row in output} == NEWEST
    assert len(output) == len(NEWEST)
    assert {key: values for (key,), values in stream.state().items()} == NEWEST


def batches_in(table):
    """The batches that the commits of the table name, oldest first."""
    notes = [commit["userMetadata"] for commit in DeltaTable(table).history() if "userMetadata" in commit]
    return [json.loads(note)["statekeeper"]["batch"] for note in reversed(notes)]


def dying(batch, phase):
    def die(now, entered):
        if (now, entered) == (batch, phase):
            raise ConnectionError("the driver dies here")

    return Seen(die)


@pytest.mark.spark
def test_a_batch_is_merged_once_and_the_merge_is_no_foreign_change(delta_session, tmp_path):
    path, columns = str(tmp_path / "table"), "key long, total long"
    write_deltalake(path, pa.table({"key": [1, 2, None], "total": [10, 20, 5]}))
    sink = DeltaSink(path, merge_on=["key"])
    before = sink.look("query", 0, None).position
    for name in ("first", "second"):
        sink.write(
            delta_session.createDataFrame([(1, 11), (3, 3), (None, 6)], columns), Attempt("query", "root", 0, name)
        )
    assert sink.held("query", 0) == "first"
    assert sink.look("query", 1, before).position.version == before.version + 1
    rows = sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=repr)
    assert [(row["key"], row["total"]) for row in rows] == [(1, 11), (2, 20), (3, 3), (None, 6)]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("batch", [0, 1])
def test_a_crash_in_any_phase_merges_each_batch_once_and_the_merges_are_no_foreign_changes(stream, batch, phase):
    with pytest.raises(ConnectionError):
        stream.run(adding(), sink=merging(stream), seen=dying(batch, phase))
    reports = stream.run(adding(), sink=merging(stream))
    taken = {Phase.SINK_WRITTEN: Outcome.TAKEN_FROM_SINK, Phase.COMMITTED: Outcome.DONE_BEFORE}
    assert reports[0].outcome is taken.get(phase, Outcome.COMPUTED)
    assert_newest_rows(stream)
    assert batches_in(stream.facts) == [0, 1, 2]


@pytest.mark.spark
@pytest.mark.slow
def test_a_partitioned_table_is_merged_across_its_partitions(stream):
    sink = merging(stream, partition_by=["count"])
    stream.run(adding(), sink=sink)
    assert_newest_rows(stream)
    assert DeltaTable(stream.facts).metadata().partition_columns == ["count"]
    with pytest.raises(SchemaMismatch, match=r"partitioned by \['count'\], not by \['key'\]"):
        stream.run(adding(), sink=merging(stream, partition_by=["key"]))


@pytest.mark.spark
@pytest.mark.slow
def test_a_batch_with_two_rows_of_a_key_is_rejected_before_it_is_written(stream):
    def twice(rows, state):
        table = totals_table(totals_of(rows, state))
        both = pa.concat_tables([table, table]) if 3 in table["key"].to_pylist() else table
        return Update(both, table)

    with pytest.raises(WrongResult, match=r"the output of batch 1 has 2 rows with the merge key {'key': (1|3|None)}"):
        stream.run(adding(twice), sink=merging(stream))
    assert (stream.committed(), batches_in(stream.facts)) == ([0], [0])
    stream.run(adding(), sink=merging(stream))
    assert_newest_rows(stream)


@pytest.mark.spark
@pytest.mark.slow
def test_a_batch_without_output_is_recorded_in_the_table(stream):
    def quiet(rows, state):
        table = totals_table(totals_of(rows, state))
        return Update(table.slice(0, 0) if 3 in table["key"].to_pylist() else table, table)

    stream.run(adding(quiet), sink=merging(stream))
    assert batches_in(stream.facts) == [0, 1, 2]
    assert {row["key"] for row in stream.output()} <= {1, 2, None}


@pytest.mark.spark
@pytest.mark.slow
def test_an_existing_table_keeps_its_spelling_its_rows_and_its_other_columns(stream):
    kept = pa.table({"Key": [2, 9], "note": ["two", "nine"], "count": [0, 7], "total": [0, 7]})
    write_deltalake(stream.facts, kept)
    stream.run(adding(), sink=merging(stream))
    rows = {row["Key"]: row for row in stream.output()}
    assert rows[2] == {"Key": 2, "note": "two", "count": 1, "total": 20}
    assert rows[9] == {"Key": 9, "note": "nine", "count": 7, "total": 7}
    assert rows[1] == {"Key": 1, "note": None, "count": 2, "total": 11}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("statement", ["RESTORE TABLE {} TO VERSION AS OF 0", "INSERT OVERWRITE {} VALUES (7, 7, 7)"])
def test_rows_that_others_replaced_between_two_merges_stop_the_query(stream, delta_session, statement):
    stream.run(adding(), sink=merging(stream))
    delta_session.sql(statement.format(f"delta.`{stream.facts}`")).collect()
    stream.append(rows_of((1, 1)))
    with pytest.raises(SinkChanged, match=r"(RESTORE|WRITE) in version 3 replaced rows"):
        stream.run(adding(), sink=merging(stream))
    assert stream.committed() == [0, 1, 2]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"merge_on": "key"}, r"merge_on='key' -> name at least one column"),
        ({"merge_on": []}, "name at least one column"),
        ({"merge_on": ["key"], "writer": "tasks"}, "tasks only add files, but a merge also replaces rows"),
    ],
)
def test_a_sink_that_cannot_merge_is_rejected(tmp_path: Path, how, message):
    with pytest.raises(BadConfiguration, match=message):
        DeltaSink(str(tmp_path), **how)


@pytest.mark.spark
@pytest.mark.slow
def test_a_merge_key_that_the_output_does_not_have_or_that_has_no_order_is_rejected(stream, delta_session):
    with pytest.raises(SchemaMismatch, match="merge_on names the column sensor, which the output does not have"):
        DeltaSink(stream.facts, merge_on=["sensor"]).require_ready(delta_session, adding().output)
    columns = pa.schema([("key", pa.int64()), ("tags", pa.map_(pa.string(), pa.int64()))])
    with pytest.raises(UnsupportedType, match="tags: maps cannot be compared"):
        DeltaSink(stream.facts, merge_on=["tags"]).require_ready(delta_session, columns)
