"""New columns of the output, which a Delta sink adds to its table with the first batch that has them."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

import statekeeper.pipelines.sinks.delta_files
from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.operator.declaration import Update
from statekeeper.pipelines.sinks.delta_writer import Writer
from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import SchemaMismatch, StorageError
from tests.support.adding_operator import OUTPUT, ROWS, add_up, adding, rows_of, totals_of, totals_table
from tests.support.streams import Seen, Stream
from tests.support.task_files import SIMPLE, attempt, simple, written

WIDER = pa.schema([*SIMPLE, ("day", pa.date32()), ("tags", pa.list_(pa.string()))])
DAY = dt.date(2024, 2, 29)


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    sink = DeltaSink(str(tmp_path / "table"), writer=Writer.TASKS, partition_by=["region"], add_columns=True)
    written(sink, simple("a", None), 0)
    return sink


def wider(*regions: str | None) -> pa.Table:
    table = simple(*regions)
    days, tags = pa.array([DAY] * len(regions), pa.date32()), [["x"]] * len(regions)
    return pa.Table.from_arrays([*table.columns, days, pa.array(tags, pa.list_(pa.string()))], schema=WIDER)


def actions(path: str, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path, "_delta_log", f"{version:020}.json").read_text().splitlines()]


def rows_in(path: str) -> list[dict[str, Any]]:
    return sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=repr)


def test_the_first_batch_with_a_new_column_adds_it_in_its_own_commit(sink):
    before = DeltaTable(sink.path).version()
    written(sink, wider("a", "b", None), 1, pieces=2)
    commit = actions(sink.path, before + 1)
    assert sorted({kind for action in commit for kind in action}) == ["add", "commitInfo", "metaData", "txn"]
    assert sink.held("query", 1) == "a"
    later = written(sink, wider("c"), 2)
    assert [kind for action in actions(sink.path, before + 2) for kind in action] == ["commitInfo", "add", "txn"]
    assert later.columns.names == WIDER.names
    old = [{"key": key, "region": region, "day": None, "tags": None} for key, region in enumerate(["a", None])]
    new = [(0, "a"), (1, "b"), (2, None), (0, "c")]
    expected = [*old, *({"key": key, "region": region, "day": DAY, "tags": ["x"]} for key, region in new)]
    assert rows_in(sink.path) == sorted(expected, key=repr)
    assert DeltaTable(sink.path).metadata().partition_columns == ["region"]


def test_a_batch_without_rows_adds_its_new_columns_too(sink):
    written(sink, wider().slice(0, 0), 1)
    assert sink.held("query", 1) == "a"
    assert [field.name for field in DeltaTable(sink.path).schema().fields] == WIDER.names


def test_a_new_column_that_cannot_be_null_is_rejected(sink):
    strict = pa.schema([*SIMPLE, pa.field("day", pa.date32(), nullable=False)])
    with pytest.raises(SchemaMismatch, match=r"no columns \['day'\].* -> declare the new columns nullable"):
        sink.plan_files(strict)


def test_a_column_of_another_type_is_rejected_beside_a_new_column(sink):
    with pytest.raises(SchemaMismatch, match="column key is string, in the table long"):
        sink.plan_files(pa.schema([("key", pa.string()), *list(WIDER)[1:]]))


def test_a_new_column_is_rejected_unless_it_is_to_be_added(sink):
    with pytest.raises(SchemaMismatch, match="the table has no column day"):
        DeltaSink(sink.path, writer=Writer.TASKS).plan_files(WIDER)


def test_a_table_keeps_the_columns_that_cannot_be_null(tmp_path):
    path = str(tmp_path / "table")
    strict = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("region", pa.string())])
    write_deltalake(path, strict.empty_table())
    rows = wider("a").cast(pa.schema([strict.field("key"), *list(WIDER)[1:]]))
    written(DeltaSink(path, writer=Writer.TASKS, add_columns=True), rows, 0)
    assert {field.name: field.nullable for field in DeltaTable(path).schema().fields} == {
        "key": False, "region": True, "day": True, "tags": True,
    }  # fmt: skip


def test_of_two_drivers_that_add_a_column_at_once_one_adds_nothing(sink):
    loser = DeltaSink(sink.path, writer=Writer.TASKS, add_columns=True)
    plan = loser.plan_files(WIDER)
    with plan.open(0, RandomIds()) as files:
        files.write(wider("lost"))
        complete = files.complete()
    # The loser looks at the table before the winner commits.
    deltas = loser._files
    current = deltas._table
    looks = [current()]
    deltas._table = lambda: looks.pop() if looks else current()
    written(sink, wider("kept"), 1, "winner")
    loser.commit_files(plan, complete, attempt(1, "loser"))
    assert loser.held("query", 1) == "winner"
    assert "lost" not in DeltaTable(sink.path).to_pyarrow_table().column("region").to_pylist()


def test_a_driver_that_dies_before_the_commit_adds_neither_column_nor_row(sink, monkeypatch):
    def failing(*_: object, **__: object) -> None:
        raise DeltaError("lost the connection")

    before = rows_in(sink.path)
    with monkeypatch.context() as patch:
        patch.setattr("deltalake.write_deltalake", failing)
        with pytest.raises(StorageError, match="the commit of batch 1 failed"):
            written(sink, wider("lost"), 1)
    assert rows_in(sink.path) == before
    written(sink, wider("kept"), 1, "second")
    assert {row["region"] for row in rows_in(sink.path)} == {"a", None, "kept"}


def test_only_the_first_batch_with_a_new_column_passes_the_driver(sink, monkeypatch):
    passed = []
    added = statekeeper.pipelines.sinks.delta_files._add_with_new_columns
    monkeypatch.setattr(
        "statekeeper.pipelines.sinks.delta_files._add_with_new_columns",
        lambda *given: (passed.append(given), added(*given)),
    )
    for batch in (1, 2, 3):
        written(sink, wider("a"), batch)
    assert len(passed) == 1


# -- jobs --------------------------------------------------------------------------------------------------------------


def add_up_and_mean(rows: pa.Table, state: pa.Table) -> Update:
    table = totals_table(totals_of(rows, state))
    mean = pa.array([row["total"] / row["count"] for row in table.to_pylist()], pa.float64())
    return Update(table.append_column("mean", mean), table)


WITH_MEAN = adding(add_up_and_mean, output=pa.schema([*OUTPUT, ("mean", pa.float64())]))
WRITERS = {
    "tasks": {"writer": "tasks"},
    "spark": {},
    "merge": {"merge_on": ["key"]},
}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("phase", [Phase.PENDING_WRITTEN, Phase.SINK_WRITTEN])
@pytest.mark.parametrize("partition_by", [None, ["count"]], ids=["one partition", "partitioned"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_job_adds_a_column_to_its_table_once_also_if_its_driver_dies(
    delta_session, tmp_path, writer, partition_by, phase
):
    def die(batch: int, entered: Phase) -> None:
        if (batch, entered) == (1, phase):
            raise ConnectionError("the driver dies here")

    def sink(**more: Any) -> DeltaSink:
        return DeltaSink(stream.facts, partition_by=partition_by, **WRITERS[writer], **more)

    stream = Stream(delta_session, tmp_path, ROWS)
    stream.append(rows_of((1, 10), (2, 20)))
    stream.run(adding(add_up), sink=sink())
    stream.append(rows_of((1, 1), (3, 3)))
    with pytest.raises(SchemaMismatch, match=r"no column.*mean"):
        stream.run(WITH_MEAN, sink=sink())
    with pytest.raises(ConnectionError):
        stream.run(WITH_MEAN, sink=sink(add_columns=True), seen=Seen(die))
    stream.run(WITH_MEAN, sink=sink(add_columns=True))
    stream.append(rows_of((1, 1)))
    stream.run(WITH_MEAN, sink=sink(add_columns=True))
    found = delta_session.read.format("delta").load(stream.facts).collect()
    rows = sorted((row["key"], row["count"], row["total"], row["mean"]) for row in found)
    old, updated, new = (1, 1, 10, None), (1, 2, 11, 5.5), [(1, 3, 12, 4.0), (2, 1, 20, None), (3, 1, 3, 3.0)]
    assert rows == (new if writer == "merge" else sorted([old, updated, *new]))
    changes = [version for version in range(1, 3) if any("metaData" in one for one in actions(stream.facts, version))]
    assert len(changes) == 1
