"""A state root and the Delta table of its query, written without Spark as a job writes them, and runs of `optimize`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from statekeeper.pipelines.sinks.data_files import DataFile
from statekeeper.pipelines.sinks.delta_files import DeltaFiles
from statekeeper.pipelines.sinks.delta_log import DeltaLog
from statekeeper.pipelines.sinks.delta_rows import Commit
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.maintenance.rollback import rewind
from statekeeper.statestore.maintenance.upkeep import sink_tables
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.upkeep.sink_tables import Optimized
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Prepared, perform, prepare
from statekeeper.statestore.maintenance.verbs.optimize import Optimize
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import retention, verbs
from tests.support.clocks import SleeplessClock
from tests.support.keyed_roots import KeyedRoot
from tests.support.maintainers import maintainer
from tests.support.roots import QUERY

DAY = 86_400.0
COLUMNS = pa.schema([("batch", pa.int64()), ("number", pa.int64()), ("half", pa.string())])
FILES = 3
"""The files that a batch adds to its table, with `ROWS` rows each."""
ROWS = 10


def in_days(days: float) -> Maintainer:
    """A maintainer for which the files that exist now are so old."""
    return maintainer(SleeplessClock(SystemClock().now_seconds() + days * DAY))


def rows_of_batch(batch: int) -> list[dict[str, Any]]:
    halves = ("even", "odd")
    return [{"batch": batch, "number": number, "half": halves[number % 2]} for number in range(FILES * ROWS)]


@dataclass
class WrittenRoot:
    """`query`: the id in the table."""

    root: KeyedRoot
    table: Storage
    partition_by: tuple[str, ...] = ()
    query: str = QUERY

    @property
    def url(self) -> str:
        return self.table.url.removeprefix("file://")

    @property
    def newest(self) -> int:
        return self.root.batches - 1

    def grow(self, batches: int) -> None:
        """Commit batches: first to the table, then to the root."""
        for _ in range(batches):
            self.write(self.root.batches)
            self.root.grow(1, keys=2)

    def write(self, batch: int, application: str | None = None) -> None:
        """Write a batch to the table with the writer of a job: one commit, with a file of each task."""
        files = DeltaFiles(self.url, {}, log=DeltaLog(self.url, {}), partition_by=self.partition_by)
        plan, rows = files.plan(COLUMNS), rows_of_batch(batch)
        made: list[DataFile] = []
        for task in range(FILES):
            with plan.open(task, RandomIds()) as writer:
                writer.write(pa.Table.from_pylist(rows[task * ROWS : (task + 1) * ROWS], schema=COLUMNS))
                made += writer.complete()
        files.commit(plan, made, Commit(application=application or f"statekeeper-{self.query}", batch=batch, note="{}"))

    def opened(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.url, version=version)

    def rows(self, version: int | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.opened(version).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: (row["batch"], row["number"]))

    def delete_rows_during_merges(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let another program delete rows of the table while a merge is written."""
        execute = import_module(f"{sink_tables.__name__}.execute")
        merged = execute.merged

        def disturbed(*given: Any, **how: Any) -> Any:
            self.opened().delete("batch = 1")
            return merged(*given, **how)

        monkeypatch.setattr(execute, "merged", disturbed)

    def data_files(self) -> set[str]:
        return {
            entry.path for entry in self.table.list("") if entry.path.endswith(".parquet") and "_log" not in entry.path
        }

    def retain(self, batches: int, scratch: Path) -> None:
        """Delete all batches of the root but the newest ones."""
        retention.take_snapshots(self.root.storage, scratch)
        policy = RetentionPolicy(versions=batches, grace_seconds=0)
        retention.collect(self.root.storage, retention.planned(self.root.storage, policy))

    def retained(self) -> list[int]:
        return sorted(int(entry.path.rpartition("/")[2]) for entry in self.root.storage.list("commits"))

    def restored_by_a_rewind(self, batch: int) -> int:
        """The version that the plan of a rewind names."""
        return rewind.delta_position(self.table, {QUERY}, batch).version

    def assert_all_retained_batches_can_be_restored(self) -> None:
        for batch in self.retained():
            expected = [row for number in range(batch + 1) for row in rows_of_batch(number)]
            assert self.rows(self.restored_by_a_rewind(batch)) == expected, batch


def written(folder: Path, batches: int, **how: Any) -> WrittenRoot:
    """A root whose query has written batches."""
    root = KeyedRoot(open_storage(str(folder / "root")), folder / "hosts", partitions=1, key_groups=4)
    made = WrittenRoot(root, open_storage(str(folder / "table")), **how)
    made.grow(batches)
    return made


def planned(
    made: WrittenRoot, scratch: Path, *, by: Maintainer | None = None, stopped: bool = False, **how: Any
) -> Prepared[Any, Any, Optimized]:
    """Plan a run, at once or `in_days`. `how`: the options of the verb."""
    run = verbs.a_run(made.root.storage, by=by or maintainer(), scratch=scratch, stopped=stopped, other=made.table)
    return prepare(Optimize(destination=made.table.url, **how), run)


def optimized(made: WrittenRoot, scratch: Path, **how: Any) -> Optimized:
    """Optimize a table. Raises the first refusal."""
    done = perform(planned(made, scratch, **how)).made
    assert done is not None
    return done
