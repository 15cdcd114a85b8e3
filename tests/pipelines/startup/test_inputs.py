"""Several inputs are one stream: columns, places in the checkpoint, and declarations that are rejected."""

from __future__ import annotations

import datetime as dt
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.pipelines.startup.inputs import given_streams
from statekeeper.pipelines.startup.query import start
from statekeeper.pipelines.testing.harness import OperatorHarness
from statekeeper.statestore.base.errors import CorruptFile, SchemaMismatch, UnsupportedEnvironment
from statekeeper.statestore.root.binding import bind, encode_binding, parse_binding, require_bindable
from statekeeper.statestore.storage import open_storage
from tests.support import sparks_reader
from tests.support.roots import IDS, wanted
from tests.support.streams import Seen

# Spark's workers need not find this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

KEY = ("key", pa.int64())
ROWS = pa.list_(pa.struct([pa.field("n", pa.int64(), nullable=False)]))
NULLABLE_ROWS = pa.list_(pa.struct([pa.field("n", pa.int64())]))
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SEEN = pa.schema([("seen", pa.string())])


def update(rows: pa.Table, state: pa.Table) -> Update:
    """Return each row as text. The state has the names of the inputs that a key has seen."""
    seen = {row["key"]: row["seen"] for row in state.to_pylist()}
    for row in rows.to_pylist():
        seen[row["key"]] = seen.get(row["key"], "") + row["input"]
    new = pa.table({"key": pa.array(seen, pa.int64()), "seen": pa.array(seen.values(), pa.string())})
    texts = pa.table({"key": rows["key"], "seen": pa.array([repr(row) for row in rows.to_pylist()], pa.string())})
    return Update(texts, new)


OPERATOR = StatefulOperator(["key"], ["at", "input"], state=SEEN, output=pa.schema([KEY, *SEEN]), update=update)
A = pa.schema([KEY, ("at", pa.int64()), ("a.`b", pa.string()), ("rows", ROWS)])
B = pa.schema([pa.field("key", pa.int64(), nullable=False), ("rows", NULLABLE_ROWS)])
COLUMNS = {"b": B, "a": A}
INITIAL = [{"key": 2, "seen": "y"}, {"key": 7, "seen": "z"}]
BATCHES: list[dict[str, list[dict[str, Any]]]] = [
    {
        "b": [{"key": 1, "rows": [{"n": None}]}],
        "a": [{"key": 1, "at": 1, "a.`b": "x", "rows": [{"n": 1}]}, {"key": None}],
    },
    {"a": [{"key": 1, "at": 2}, {"key": 2, "at": 1}]},
    {"b": [{"key": 2}]},
]


def test_an_input_that_lacks_a_column_has_nulls_in_it_and_its_rows_come_first() -> None:
    with OperatorHarness(OPERATOR, columns=COLUMNS) as harness:
        first, *_ = [harness.batch(batch) for batch in BATCHES]
        last = harness.batch()
    assert [row["seen"] for row in first.output.to_pylist() if row["key"] == 1] == [
        "{'key': 1, 'at': None, 'a.`b': None, 'rows': [{'n': None}], 'input': 'b'}",
        "{'key': 1, 'at': 1, 'a.`b': 'x', 'rows': [{'n': 1}], 'input': 'a'}",
    ]
    assert [row["seen"] for row in last.state.to_pylist()] == ["a", "baa", "ab"]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"a": A, "b": pa.schema([KEY, ("at", pa.string())])}, "column at is bigint in input 'a', but string in 'b'"),
        (
            {"a": A, "b": pa.schema([KEY, ("rows", pa.list_(pa.struct([("n", pa.int32())])))])},
            r"column rows is array<struct<n:bigint>> in input 'a', but array<struct<n:int>> in 'b'",
        ),
        ({"a": A, "b": pa.schema([("at", pa.int64())])}, r"input 'b' has no columns \['key'\]"),
        ({"b": B}, r"the stream has no columns \['at'\]"),
        ({"a": A, "b": pa.schema([KEY, ("AT", pa.int64())])}, "column AT of input 'b' has another case in input 'a'"),
        ({"a": pa.schema([*A, ("Input", pa.int64())])}, "input 'a' has a column 'input'"),
        ({"a": pa.schema([*A, KEY])}, "input 'a' has two columns of one name"),
        ({}, "the names of the inputs"),
        ({"": A}, "the names of the inputs"),
    ],
)
def test_inputs_that_do_not_form_one_stream_are_rejected(columns: dict[str, pa.Schema], problem: str) -> None:
    with pytest.raises(SchemaMismatch, match=problem):
        OperatorHarness(OPERATOR, columns=columns)


def test_the_input_that_is_furthest_behind_determines_the_watermark() -> None:
    def rows(*minutes: int) -> list[dict[str, Any]]:
        return [{"key": 1, "at": START + dt.timedelta(minutes=minute)} for minute in minutes]

    columns = pa.schema([KEY, ("at", pa.timestamp("us", tz="UTC"))])
    operator = replace(OPERATOR, event_time="at", allowed_lateness="10m")
    with OperatorHarness(operator, columns={"a": columns, "b": columns}) as harness:
        results = [
            harness.batch(batch)
            for batch in (
                {"a": rows(60)},
                {"b": rows(20, 5)},
                {"a": rows(90)},
                {"a": rows(10, 11), "b": rows(40)},
                {"b": rows(10, 11, 31)},
                {},
            )
        ]
    watermarks = [result.batch.watermark for result in results]
    assert watermarks == [None, None, *(START + dt.timedelta(minutes=minute) for minute in (10, 10, 30, 30))]
    assert [result.late.num_rows for result in results] == [0, 0, 0, 1, 1, 0]


def test_each_input_needs_an_event_time() -> None:
    moment = pa.timestamp("us", tz="UTC")
    columns = {"a": pa.schema([KEY, ("at", moment)]), "b": pa.schema([KEY])}
    with pytest.raises(SchemaMismatch, match=r"input 'b' has no columns \['at'\]"):
        OperatorHarness(replace(OPERATOR, event_time="at"), columns=columns)


@pytest.mark.parametrize("rows", [{"c": []}, [{"key": 1}], {"a": [{"key": "x"}]}, {"b": [{"key": 1, "at": 1}]}])
def test_rows_must_be_those_of_the_inputs(rows: Any) -> None:
    with OperatorHarness(OPERATOR, columns=COLUMNS) as harness, pytest.raises(SchemaMismatch):
        harness.batch(rows)


def test_a_root_keeps_the_names_of_its_inputs(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    two = replace(wanted(), inputs=("orders", "payments"))
    bind(storage, two, batch=0, ids=IDS)
    require_bindable(storage, two, batch=1)
    for other, problem in (
        (("orders", "refunds"), r"declares the inputs \['orders', 'refunds'\]"),
        ((), "declares one input without a name"),
    ):
        with pytest.raises(SchemaMismatch, match=problem):
            require_bindable(storage, replace(two, inputs=other), batch=1)
    body = json.loads(encode_binding(two))
    with pytest.raises(CorruptFile):
        parse_binding(json.dumps({**body, "inputs": "orders"}).encode())
    assert "inputs" not in json.loads(encode_binding(wanted())), (
        "earlier releases read the file of a job with one stream"
    )


def test_a_query_without_an_input_is_rejected() -> None:
    with pytest.raises(UnsupportedEnvironment, match="the query has no input"):
        given_streams(None, None)


@pytest.mark.spark
@pytest.mark.slow
def test_a_query_has_the_rows_of_a_harness_and_continues_after_each_restart(
    delta_session: SparkSession, tmp_path: Path
) -> None:
    def run(**changes: Any) -> None:
        streams = {
            name: delta_session.readStream.format("delta").load(str(tmp_path / table))
            for name, table in changes.pop("inputs").items()
        }
        where = {"root": str(tmp_path / "root"), "checkpoint": str(tmp_path / "checkpoint"), "partitions": 2}
        sink = DeltaSink(str(tmp_path / "texts"))
        where["initial"] = delta_session.createDataFrame(INITIAL, "key bigint, seen string")
        start(
            OPERATOR, inputs=streams, sink=sink, trigger={"availableNow": True}, **where, **changes
        ).await_termination()

    for name, columns in COLUMNS.items():
        deltalake.write_deltalake(str(tmp_path / name), columns.empty_table())
    expected: list[dict[str, Any]] = []
    with OperatorHarness(OPERATOR, columns=COLUMNS, initial=INITIAL) as harness:
        for number, batch in enumerate(BATCHES):
            for name, rows in batch.items():
                table = pa.Table.from_pylist(rows, COLUMNS[name])
                deltalake.write_deltalake(str(tmp_path / name), table, mode="append")
            # In another order at each start.
            run(inputs={name: name for name in sorted(COLUMNS, reverse=bool(number % 2))})
            result = harness.batch(batch)
            expected += result.output.to_pylist()
    state = sparks_reader.state_rows(delta_session, str(tmp_path / "root")).collect()
    theirs = [(row.key.key, row.value.seen) for row in state]
    assert sorted(theirs, key=repr) == sorted(map(tuple, map(dict.values, result.state.to_pylist())), key=repr)
    assert (7, "z") in theirs
    texts = deltalake.DeltaTable(str(tmp_path / "texts")).to_pyarrow_table().to_pylist()
    assert sorted(texts, key=repr) == sorted(expected, key=repr)
    before = sorted(path for path in tmp_path.rglob("*"))
    for inputs in ({"a": "a", "c": "b"}, {"a": "a"}):
        with pytest.raises(SchemaMismatch, match=r"the root has the inputs \['a', 'b'\]"):
            run(inputs=inputs)
    with pytest.raises(UnsupportedEnvironment, match="both a stream and `inputs`"):
        run(inputs={"a": "a", "b": "b"}, stream=delta_session.readStream.format("delta").load(str(tmp_path / "a")))
    assert sorted(path for path in tmp_path.rglob("*")) == before, "nothing was written"


@pytest.mark.spark
@pytest.mark.slow
def test_watermarks_and_late_rows_are_those_of_sparks_join(delta_session: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(3)
    columns = pa.schema([KEY, pa.field("at", pa.timestamp("us", tz="UTC"))])
    for name in ("a", "b"):
        deltalake.write_deltalake(str(tmp_path / name), columns.empty_table())
        for batch in range(8):
            # Input b is behind by half an hour, and starts two batches later.
            center = 20 * batch - (30 if name == "b" else 0)
            minutes = [center + chance.randrange(-40, 20) for _ in range(20 if name == "a" or batch > 1 else 1)]
            rows = {
                "key": [n % 3 for n in range(len(minutes))],
                "at": [START + dt.timedelta(minutes=m) for m in minutes],
            }
            deltalake.write_deltalake(str(tmp_path / name), pa.table(rows, schema=columns), mode="append")

    def stream(name: str) -> DataFrame:
        reader = delta_session.readStream.format("delta").option("startingVersion", 1).option("maxFilesPerTrigger", 1)
        rows = reader.load(str(tmp_path / name))
        return rows if name == "a" else rows.where("at >= '2026-01-01 00:10:00'")

    seen = Seen()
    start(
        replace(OPERATOR, event_time="at", allowed_lateness="10m"),
        inputs={name: stream(name) for name in ("a", "b")},
        sink=DeltaSink(str(tmp_path / "texts")),
        root=str(tmp_path / "root"),
        checkpoint=str(tmp_path / "checkpoint"),
        partitions=2,
        trigger={"availableNow": True},
        observer=seen,
    ).await_termination()
    sides = [stream(name).withWatermark("at", "10 minutes") for name in ("a", "b")]
    joined = sides[0].join(sides[1].withColumnRenamed("at", "other"), "key").writeStream.format("noop")
    native = joined.option("checkpointLocation", str(tmp_path / "native")).trigger(availableNow=True).start()
    native.awaitTermination()
    theirs = [
        (
            dt.datetime.fromisoformat(progress["eventTime"]["watermark"]),
            sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"]),
        )
        for progress in native.recentProgress
    ]
    assert all(report.times is not None for report in seen.batches)
    ours = [
        (
            (report.times and report.times.watermark) or dt.datetime.fromtimestamp(0, dt.UTC),
            sum(partition.times.late_rows for partition in report.partitions),
        )
        for report in seen.batches
    ]
    # Spark adds a batch without rows that only moves the watermark.
    assert ours == theirs[: len(ours)]
    assert len(ours) == 8
    assert sum(late for _, late in ours) > 5
