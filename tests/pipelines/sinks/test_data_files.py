"""Data files that tasks write: Spark reads the same rows as from files of its own writer."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from statekeeper.pipelines import DeltaSink
from statekeeper.pipelines.sinks.delta_writer import Writer
from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import (
    BadConfiguration,
    SchemaMismatch,
    StorageError,
    UnsupportedTable,
    WrongResult,
)
from statekeeper.statestore.format.delta_statistics import FileStatistics
from tests.support.task_files import SIMPLE, attempt, simple, written

UTC = dt.UTC
ALL_TYPES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("byte", pa.int8()),
        ("short", pa.int16()),
        ("integer", pa.int32()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("flag", pa.bool_()),
        ("text", pa.large_string()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(20, 3)),
        ("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
        ("point", pa.struct([pa.field("x", pa.int32(), nullable=False), ("y", pa.float64())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
NULLS = dict.fromkeys(ALL_TYPES.names[1:])
ROWS = [
    {
        "id": 1, "byte": -128, "short": 5, "integer": 2**31 - 1, "float": 1.5, "double": float("nan"), "flag": True,
        "text": "a" * 40, "bytes": b"\x00\xff", "day": dt.date(1969, 12, 31),
        "moment": dt.datetime(2024, 2, 29, 23, 59, 59, 999_999, UTC), "price": Decimal("12345678901234567.891"),
        "tags": ["x", "y"], "point": {"x": 1, "y": None}, "counts": [("a", 1)],
    },
    {"id": 2, **NULLS},
    {
        "id": 3, **NULLS, "double": -0.5, "text": "z\u00e9\U0001f600", "moment": dt.datetime(1900, 1, 1, 0, 0, 0, 1, UTC),
        "day": dt.date(9999, 12, 31), "tags": [], "counts": [],
    },
]  # fmt: skip


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    return DeltaSink(str(tmp_path / "table"), writer=Writer.TASKS)


@pytest.mark.spark
def test_spark_reads_all_types_and_skips_no_file_that_has_a_matching_row(delta_session, sink, tmp_path):
    """The twin is the same table from Spark's writer."""
    table = pa.Table.from_pylist(ROWS, ALL_TYPES)
    for batch, row in enumerate(ROWS):
        written(sink, pa.Table.from_pylist([row], ALL_TYPES), batch)
    twin = str(tmp_path / "twin")
    delta_session.createDataFrame(table).coalesce(1).write.format("delta").save(twin)
    ours, theirs = (delta_session.read.format("delta").load(path) for path in (sink.path, twin))
    assert ours.schema.simpleString() == theirs.schema.simpleString()
    rows = [str(row) for row in ours.orderBy("id").collect()]
    assert rows == [str(row) for row in theirs.orderBy("id").collect()]
    conditions = [
        "byte = -128", "short > 4", "integer = 2147483647", "float >= 1.5", "double > 100", "double = double('NaN')",
        "double < 0", "flag", "text > 'aaaa'", f"text = '{'a' * 40}'", "text >= 'z\u00e9'", "day < date'1970-01-01'",
        "day > date'9000-01-01'", "moment > timestamp'2024-02-29 23:59:59.999998Z'",
        "moment < timestamp'1900-01-01 00:00:00.000002Z'", "price > 1", "text is null", "text is not null",
        "point.x = 1", "id between 2 and 3",
    ]  # fmt: skip
    for condition in conditions:
        found = sorted(row.id for row in ours.where(condition).collect())
        assert found == sorted(row.id for row in theirs.where(condition).collect()), condition


def test_statistics_that_could_mislead_are_left_out():
    columns = pa.schema([("number", pa.float64()), ("text", pa.string()), ("moment", pa.timestamp("us", "UTC"))])
    statistics = FileStatistics(columns)
    moment = dt.datetime(2024, 1, 1, 0, 0, 0, 1_001, UTC)
    for number, text in ((1.0, "b" * 33), (float("nan"), "a")):
        row = {"number": number, "text": text, "moment": moment}
        statistics.add(pa.Table.from_pylist([row], columns))
    assert statistics.as_json() == {
        "numRecords": 2,
        "minValues": {"text": "a", "moment": "2024-01-01T00:00:00.001Z"},
        "maxValues": {"moment": "2024-01-01T00:00:00.002Z"},
        "nullCount": {"number": 0, "text": 0, "moment": 0},
    }


def test_statistics_of_a_time_in_another_zone_are_in_utc():
    columns = pa.schema([("moment", pa.timestamp("us", "America/New_York")), ("last", pa.timestamp("us", "+14:00"))])
    statistics = FileStatistics(columns)
    moment, last = dt.datetime(2024, 1, 1, tzinfo=UTC), dt.datetime(1, 1, 1, 3, tzinfo=UTC)
    statistics.add(pa.table({"moment": [moment], "last": [last]}, schema=columns))
    found = statistics.as_json()
    assert found["minValues"] == {"moment": "2024-01-01T00:00:00.000Z", "last": "0001-01-01T03:00:00.000Z"}
    assert found["maxValues"] == found["minValues"]


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar(dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), pa.timestamp("us", "UTC")),
        pa.scalar(2**62, pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.scalar(-(2**62), pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.scalar(2**31 - 1, pa.int32()).cast(pa.date32()),
    ],
    ids=["the last microsecond", "a later timestamp", "an earlier timestamp", "a later date"],
)
def test_a_time_that_statistics_cannot_show_is_left_out_and_the_file_is_written(tmp_path, value):
    sink = DeltaSink(str(tmp_path / "table"))
    rows = pa.table({"key": [1], "at": pa.array([value])})
    written(sink, rows, 0)
    [file] = pa.table(DeltaTable(sink.path).get_add_actions()).to_pylist()
    assert file["max"]["at"] is None
    assert DeltaTable(sink.path).to_pyarrow_table()["at"].combine_chunks()[0] == value


@pytest.mark.spark
def test_spark_reads_the_partitions_that_tasks_wrote(delta_session, tmp_path):
    schema = pa.schema([("key", pa.int64()), ("region", pa.string()), ("day", pa.date32()), ("hot", pa.bool_())])
    sink = DeltaSink(str(tmp_path / "table"), writer="tasks", partition_by=["region", "day", "hot"])
    regions = ["north/\u00fc=1 %", "", None, "south"] * 3
    days = [dt.date(2024, 1, 1), None, dt.date(1600, 2, 3)] * 4
    table = pa.table({"key": list(range(12)), "region": regions, "day": days, "hot": [True, False] * 6}, schema=schema)
    written(sink, table, 0, pieces=3)
    found = delta_session.read.format("delta").load(sink.path)
    rows = [(row.key, row.region, row.day, row.hot) for row in found.orderBy("key").collect()]
    expected = [
        (key, region or None, day, key % 2 == 0) for key, (region, day) in enumerate(zip(regions, days, strict=True))
    ]
    assert rows == expected
    assert found.where("region = 'south' and hot = false").count() == 3
    files = DeltaTable(sink.path).file_uris()
    assert 1 < len(files) <= 12
    assert all(not set(pq.read_schema(file).names) & {"region", "day", "hot"} for file in files)


def test_a_task_with_more_partition_values_than_open_files_writes_every_row(tmp_path):
    sink = DeltaSink(str(tmp_path / "table"), writer=Writer.TASKS, partition_by=["region"])
    rows = simple(*[f"r{number % 150}" for number in range(450)])
    written(sink, rows, 0, pieces=3)
    found = DeltaTable(sink.path).to_pyarrow_table().sort_by("key")
    assert found.select(["key", "region"]).to_pylist() == rows.to_pylist()


def test_a_failed_task_leaves_no_file(tmp_path):
    sink = DeltaSink(str(tmp_path / "table"), writer=Writer.TASKS, partition_by=["region"])
    plan = sink.plan_files(SIMPLE)
    with contextlib.suppress(ZeroDivisionError), plan.open(0, RandomIds()) as files:
        files.write(simple(*map(str, range(100))))
        assert list(Path(sink.path).glob("**/*.parquet")), "more values than open files"
        files.write(simple("a" * (1 // 0)))
    assert list(Path(sink.path).glob("**/*.parquet")) == []


def test_a_batch_is_in_the_table_once_and_names_its_attempt(sink):
    assert sink.held("query", 0) is None
    written(sink, simple("a", "b"), 0, "first")
    written(sink, simple("a", "b"), 0, "second")
    assert sink.held("query", 0) == "first"
    assert DeltaTable(sink.path).to_pyarrow_table().num_rows == 2
    written(sink, simple().slice(0, 0), 1, "empty")
    assert sink.held("query", 1) == "empty"


@pytest.mark.parametrize("batch", [0, 1], ids=["both make the table", "both append"])
def test_of_two_drivers_that_commit_at_once_one_adds_nothing(tmp_path, batch):
    path = str(tmp_path / "table")
    winner, loser = (DeltaSink(path, writer=Writer.TASKS) for _ in range(2))
    for earlier in range(batch):
        written(winner, simple("a"), earlier)
    plan = loser.plan_files(SIMPLE)
    with plan.open(0, RandomIds()) as files:
        files.write(simple("lost"))
        complete = files.complete()
    # The loser looks at the table before the winner commits.
    deltas = loser._files
    current = deltas._table
    looks = [current()]
    deltas._table = lambda: looks.pop() if looks else current()
    written(winner, simple("kept"), batch, "winner")
    loser.commit_files(plan, complete, attempt(batch, "loser"))
    assert loser.held("query", batch) == "winner"
    assert "lost" not in DeltaTable(path).to_pyarrow_table().column("region").to_pylist()


def test_two_drivers_that_make_the_table_at_once_add_the_batch_once(tmp_path):
    path = str(tmp_path / "table")
    sinks = [DeltaSink(path, writer=Writer.TASKS) for _ in range(2)]
    meeting = threading.Barrier(2)

    def make(sink):
        created = sink._files._created
        sink._files._created = lambda plan: (meeting.wait(60), created(plan))[1]
        written(sink, simple("a", "b"), 0)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, sinks))
    assert DeltaTable(path).to_pyarrow_table().num_rows == 2


def test_a_commit_that_fails_again_and_again_says_that_the_batch_runs_again(sink, monkeypatch):
    written(sink, simple("a"), 0)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)
    with pytest.raises(
        StorageError, match=r"the commit of batch 1 failed: .* -> restart the query: it runs the batch again"
    ):
        written(sink, simple("b"), 1)


def test_a_driver_that_dies_between_making_the_table_and_adding_files_leaves_a_table_that_takes_the_batch(tmp_path):
    path = str(tmp_path / "table")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", failing)
        with pytest.raises(StorageError, match="the commit of batch 0 failed"):
            written(DeltaSink(path, writer=Writer.TASKS), simple("lost"), 0, "first")
    assert DeltaTable(path).to_pyarrow_table().num_rows == 0
    restarted = DeltaSink(path, writer=Writer.TASKS)
    assert restarted.look("query", 0, None).held is None
    written(restarted, simple("kept"), 0, "second")
    assert restarted.held("query", 0) == "second"
    assert DeltaTable(path).to_pyarrow_table().column("region").to_pylist() == ["kept"]


def failing(*_, **__):
    raise DeltaError("lost the connection")


def test_a_table_that_replaced_another_is_not_mistaken_for_it(sink, tmp_path):
    for batch in range(3):
        written(sink, simple("a"), batch)
    shutil.rmtree(sink.path)
    for batch in range(5):
        written(DeltaSink(sink.path, writer=Writer.TASKS), simple("b"), batch)
    written(sink, simple("c"), 5)
    assert sorted(DeltaTable(sink.path).to_pyarrow_table().column("region").to_pylist()) == ["b"] * 5 + ["c"]


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"delta.enableChangeDataFeed": "true"}, "a change data feed"),
        ({"delta.enableDeletionVectors": "true"}, "deletionVectors"),
        ({"delta.columnMapping.mode": "name"}, "column mapping"),
    ],
)
@pytest.mark.spark
def test_a_table_with_a_feature_of_sparks_writer_is_rejected(delta_session, sink, properties, named):
    texts = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    delta_session.sql(
        f"CREATE TABLE delta.`{sink.path}` (key BIGINT, region STRING) USING delta TBLPROPERTIES ({texts})"
    )
    with pytest.raises(UnsupportedTable, match=rf'{named}.* -> use DeltaSink\(\.\.\., writer="spark"\)'):
        sink.plan_files(SIMPLE)


@pytest.mark.spark
def test_a_table_with_constraints_or_generated_columns_is_rejected(delta_session, tmp_path):
    checked, generated = (DeltaSink(str(tmp_path / name), writer=Writer.TASKS) for name in ("checked", "generated"))
    delta_session.sql(f"CREATE TABLE delta.`{checked.path}` (key BIGINT, region STRING) USING delta")
    delta_session.sql(f"ALTER TABLE delta.`{checked.path}` ADD CONSTRAINT positive CHECK (key > 0)")
    with pytest.raises(UnsupportedTable, match="CHECK constraints"):
        checked.plan_files(SIMPLE)
    columns = "key BIGINT, region STRING GENERATED ALWAYS AS (CAST(key AS STRING))"
    delta_session.sql(f"CREATE TABLE delta.`{generated.path}` ({columns}) USING delta")
    with pytest.raises(UnsupportedTable, match=r"a generated column \(column region\)"):
        generated.plan_files(SIMPLE)


def test_columns_that_differ_from_the_tables_are_rejected(sink):
    wanted = pa.schema([pa.field("key", pa.int32(), nullable=False), ("other", pa.string())])
    write_deltalake(sink.path, wanted.empty_table())
    with pytest.raises(SchemaMismatch) as caught:
        sink.plan_files(SIMPLE)
    for part in ("column key is long, in the table integer", "key can be null", "the table has no column region"):
        assert part in str(caught.value)


def test_a_column_keeps_the_tables_spelling_and_a_missing_column_is_null(sink):
    write_deltalake(
        sink.path, pa.schema([("Key", pa.int64()), ("region", pa.string()), ("more", pa.int8())]).empty_table()
    )
    written(sink, simple("a"), 0)
    assert DeltaTable(sink.path).to_pyarrow_table().to_pylist() == [{"Key": 0, "region": "a", "more": None}]


def test_a_table_whose_columns_change_while_a_batch_runs_gets_no_row(sink):
    written(sink, simple("a"), 0)
    plan = sink.plan_files(SIMPLE)
    strict = pa.schema([("key", pa.int64()), ("region", pa.int64())])
    write_deltalake(sink.path, strict.empty_table(), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SchemaMismatch, match="in the table long"):
        sink.commit_files(plan, [], attempt(1))
    assert sink.held("query", 1) is None


@pytest.mark.parametrize(
    ("partition_by", "schema", "error", "message"),
    [
        (["area"], SIMPLE, SchemaMismatch, "no partition column area"),
        (["key", "region"], SIMPLE, SchemaMismatch, "all columns are partition columns, so the files have no columns"),
        (["at"], pa.schema([("at", pa.float64()), ("v", pa.int8())]), UnsupportedTable, "at: it is double"),
    ],
)
def test_a_partition_column_that_cannot_be_written_is_rejected(tmp_path, partition_by, schema, error, message):
    sink = DeltaSink(str(tmp_path / "table"), writer=Writer.TASKS, partition_by=partition_by)
    with pytest.raises(error, match=message):
        sink.plan_files(schema)


def test_an_existing_table_keeps_its_partition_columns(tmp_path):
    path = str(tmp_path / "table")
    write_deltalake(path, SIMPLE.empty_table(), partition_by=["region"])
    written(DeltaSink(path, writer=Writer.TASKS), simple("a", "b"), 0)
    actions = [json.loads(line) for line in Path(path, "_delta_log", f"{1:020}.json").read_text().splitlines()]
    assert {line["add"]["partitionValues"]["region"] for line in actions if "add" in line} == {"a", "b"}
    with pytest.raises(SchemaMismatch, match=r"partitioned by \['region'\], not by \['key'\]"):
        DeltaSink(path, writer=Writer.TASKS, partition_by=["key"]).plan_files(SIMPLE)


def test_an_empty_partition_value_of_a_column_without_nulls_is_rejected(tmp_path):
    schema = pa.schema([("key", pa.int64()), pa.field("region", pa.string(), nullable=False)])
    sink = DeltaSink(str(tmp_path / "table"), writer=Writer.TASKS, partition_by=["region"])
    with pytest.raises(WrongResult, match="column 'region' of the output contains an empty string"):
        written(sink, pa.table({"key": [1], "region": [""]}, schema=schema), 0)


def test_an_unknown_writer_is_rejected():
    with pytest.raises(BadConfiguration, match="writer='hadoop'"):
        DeltaSink("/table", writer="hadoop")
