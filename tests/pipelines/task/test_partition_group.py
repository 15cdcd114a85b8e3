"""The update function gets the rows of several partitions in one call, and each store gets the changes of its keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statekeeper.pipelines.operator.declaration import Frames, Pieces, StatefulOperator, Update
from statekeeper.pipelines.task.assignments import Assignments
from statekeeper.pipelines.task.partitioning import GROUP_COLUMN, TOGETHER, Partitioning
from statekeeper.pipelines.task.reports import PartitionReport, TaskReport
from statekeeper.pipelines.task.task_outputs import MARKER_COLUMN, TaskOutputs
from statekeeper.pipelines.task.work import Task, TaskPlan, Worker
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format.names import EMPTY, StorePath
from statekeeper.statestore.format.state_rows import decode_keys, decode_values
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root.times import BatchTimes
from statekeeper.statestore.storage import StorageSpec, open_storage
from statekeeper.statestore.store.engine.sweep import SweepLimits
from statekeeper.statestore.store.loading.loader import AHEAD, AheadLimits
from statekeeper.statestore.store.state_store import StateStore, StoreAddress, StoreLimits

ROWS = pa.schema([("key", pa.int64()), ("value", pa.int64())])
KEY = pa.schema([("key", pa.int64())])
STATE = pa.schema([("total", pa.int64())])
GROUPS = 64


class Query:
    """A query with one task, without Spark. Its function adds the values of each key to the state of the key."""

    def __init__(self, folder: Path, partitions: int, *, rows_per_call: int = 65_536) -> None:
        self.folder = folder
        self.partitioning = Partitioning(partitions, GROUPS, 1)
        self.calls: list[pa.Table] = []
        self.reports: list[PartitionReport] = []
        self.open_at_a_call: list[int] = []
        self.shuffled = False
        self.operator = StatefulOperator(
            ["key"],
            ["value"],
            state=STATE,
            output=ROWS,
            update=self.add,
            frames=Frames.ARROW,
            pieces=Pieces(rows=rows_per_call),
        )
        self.bases = (EMPTY,) * partitions

    def add(self, rows: pa.Table, state: pa.Table) -> Update:
        self.calls.append(rows)
        before = dict(zip(state["key"].to_pylist(), state["total"].to_pylist(), strict=True))
        totals: dict[int, int] = {}
        for row in rows.to_pylist():
            totals[row["key"]] = totals.get(row["key"], before.get(row["key"], 0)) + row["value"]
        # Keys with a total that is divisible by 5 are deleted. The results can be in any order.
        kept = [key for key, total in totals.items() if total % 5]
        gone = [key for key, total in totals.items() if total % 5 == 0]
        if self.shuffled:
            np.random.default_rng(len(self.calls)).shuffle(kept)
            gone.reverse()
        new = pa.table(
            {"key": pa.array(kept, pa.int64()), "total": pa.array([totals[key] for key in kept], pa.int64())}
        )
        return Update(rows, new, pa.table({"key": pa.array(gone, pa.int64())}))

    def add_report(self, report: TaskReport) -> None:
        self.reports = list(report.partitions)

    def batch(self, keys: list[int], values: list[int]) -> list[dict[str, int]]:
        groups = np.array([key % GROUPS for key in keys], np.int32)
        order = np.lexsort((keys, groups))
        rows = pa.table({"key": keys, "value": values, GROUP_COLUMN: groups}).take(order)
        plan = TaskPlan(
            root=StorageSpec(str(self.folder / "root")),
            root_id="root",
            local_folder=str(self.folder / "local"),
            operator=self.operator,
            row_columns=ROWS,
            partitioning=self.partitioning,
            assignments=Assignments.of({0: self.bases}, {}),
            rewrites={},
            structure=Structure.V2,
            batch_log=None,
            limits=StoreLimits(),
            times=BatchTimes(batch=0, time_ms=0),
            sweep=SweepLimits(),
            output=TaskOutputs(rows=self.operator.outputs, reporter=Reporting(self)),
        )
        output = pa.Table.from_batches(list(Task(plan, 0, Worker.of(plan)).run(iter(rows.to_batches(max_chunksize=7)))))
        self.bases = tuple(report.stores[0].new for report in self.reports)
        return [row for row in output.select(["key", "value", MARKER_COLUMN]).to_pylist() if not row[MARKER_COLUMN]]

    def state(self) -> dict[int, int]:
        """Load each store from storage. A key in the wrong store is an error."""
        found: dict[int, int] = {}
        storage = open_storage(str(self.folder / "root"))
        for partition, base in enumerate(self.bases):
            address = StoreAddress(
                StorePath(0, partition), self.folder / "reader" / str(len(self.calls)) / str(partition)
            )
            with StateStore.load(address, base, storage=storage, clock=SystemClock(), ids=RandomIds()) as store:
                pairs = list(store.scan())
            if pairs:
                keys, values = (pa.array(column, pa.large_binary()) for column in zip(*pairs, strict=True))
                for key, total in zip(
                    decode_keys(keys, KEY)["key"], decode_values(values, STATE)["total"], strict=True
                ):
                    assert key.as_py() % GROUPS * len(self.bases) // GROUPS == partition
                    found[key.as_py()] = total.as_py()
        return found


class Reporting:
    def __init__(self, query: Query) -> None:
        self.add = query.add_report


@pytest.mark.parametrize("partitions", [1, 5, TOGETHER, TOGETHER + 1, GROUPS])
def test_a_call_gets_the_rows_of_up_to_sixteen_partitions(tmp_path: Path, partitions: int) -> None:
    query = Query(tmp_path, partitions)
    keys = list(range(200))
    query.batch(keys, [1] * 200)
    assert len(query.calls) == -(-partitions // TOGETHER)
    assert query.state() == dict.fromkeys(keys, 1)
    assert [report.rows_in for report in query.reports] == [
        sum(key % GROUPS * partitions // GROUPS == partition for key in keys) for partition in range(partitions)
    ]


def test_the_stores_that_a_task_opens_together_share_the_memory_for_changes_that_local_copies_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, opened = StateStore.load, list[AheadLimits]()

    def noted(*args: Any, **options: Any) -> StateStore:
        opened.append(options["limits"].ahead)
        return load(*args, **options)

    monkeypatch.setattr(StateStore, "load", noted)
    Query(tmp_path, TOGETHER).batch([1], [1])
    assert len(opened) == TOGETHER
    assert sum(ahead.records for ahead in opened) == 4 * AHEAD.records
    assert sum(ahead.uncompressed_bytes for ahead in opened) == 4 * AHEAD.uncompressed_bytes
    assert AHEAD.shared_by(4) == AHEAD.shared_by(1) == AHEAD


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    partitions=st.integers(1, GROUPS),
    rows_per_call=st.sampled_from([1, 3, 10, 65_536]),
    shuffled=st.booleans(),
    batches=st.lists(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 9)), max_size=40), min_size=1, max_size=4),
)
def test_any_rows_change_the_state_as_in_a_model(
    tmp_path_factory: pytest.TempPathFactory,
    partitions: int,
    rows_per_call: int,
    shuffled: bool,
    batches: list[list[tuple[int, int]]],
) -> None:
    query = Query(tmp_path_factory.mktemp("query"), partitions, rows_per_call=rows_per_call)
    query.shuffled = shuffled
    model: dict[int, int] = {}
    for rows in batches:
        output = query.batch([key for key, _ in rows], [value for _, value in rows])
        assert sorted((row["key"], row["value"]) for row in output) == sorted(rows)
        for key in {key for key, _ in rows}:
            model[key] = model.get(key, 0) + sum(value for other, value in rows if other == key)
            if model[key] % 5 == 0:
                del model[key]
    assert query.state() == model


def test_a_partition_is_committed_when_its_last_rows_are_processed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the changes of all partitions of a group would be in memory together."""
    events: list[str] = []
    commit, add = StateStore.commit, Query.add

    def recorded(store: StateStore) -> object:
        events.append(f"commit {store._path.partition}")
        return commit(store)

    def called(query: Query, rows: pa.Table, state: pa.Table) -> Update:
        events.append(f"call {rows['key'].to_pylist()}")
        return add(query, rows, state)

    monkeypatch.setattr(StateStore, "commit", recorded)
    monkeypatch.setattr(Query, "add", called)
    Query(tmp_path, 4, rows_per_call=2).batch([0, 16, 17, 48], [1, 1, 1, 1])
    assert events == ["call [0]", "commit 0", "call [16, 17]", "commit 1", "commit 2", "call [48]", "commit 3"]
