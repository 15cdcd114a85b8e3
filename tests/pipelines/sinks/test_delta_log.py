"""The requests to a Delta sink, and the freshness of the cached part of its log."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from statekeeper.pipelines.sinks.delta_log import DeltaLog

APP = "statekeeper-a-query"


class Counting(DeltaLog):
    """Counts the requests for commits, their bytes, and how often the whole table is opened."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), {})
        self.reads: list[int] = []
        self.opened = 0

    def _read(self, version: int, length: int | None) -> bytes | None:
        found = super()._read(version, length)
        self.reads.append(len(found or b""))
        return found

    def _table(self) -> Any:
        self.opened += 1
        return super()._table()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "facts"
    for batch in range(3):
        append(path, batch)
    return path


def append(path: Path, batch: int, mode: str = "append") -> None:
    properties = CommitProperties({"userMetadata": f"batch {batch}"}, app_transactions=[Transaction(APP, batch)])
    write_deltalake(path, pa.table({"n": [batch]}), mode=mode, commit_properties=properties)


def assert_same(log: DeltaLog, path: Path) -> None:
    """The log answers as the table itself does."""
    known, table = log.look(), DeltaTable(path)
    assert known is not None
    assert known.version() == table.version()
    assert known.transaction_version(APP) == table.transaction_version(APP)
    assert known.transaction_version("another") is None
    assert known.metadata().id == str(table.metadata().id)
    assert known.metadata().configuration == table.metadata().configuration
    for limit in (1, 2, 50):
        shown = [(one["version"], one["operation"], one.get("userMetadata")) for one in known.history(limit)]
        assert shown == [(one["version"], one["operation"], one.get("userMetadata")) for one in table.history(limit)]


def test_the_bytes_read_per_look_do_not_grow_with_the_table(table: Path) -> None:
    log = Counting(table)
    assert_same(log, table)
    opened = log.opened
    costs = []
    for batch in range(3, 43):
        append(table, batch)
        log.reads.clear()
        for _ in range(2):  # before the batch and after the write
            known = log.look()
            assert known is not None
            assert known.transaction_version(APP) == batch
            assert known.history(1)[0]["userMetadata"] == f"batch {batch}"
        costs.append((len(log.reads), sum(log.reads)))
    assert log.opened == opened, "the whole table is opened once"
    assert {requests for requests, _ in costs} == {5}
    assert max(size for _, size in costs) <= 1.3 * min(size for _, size in costs)
    assert_same(log, table)


def test_commits_of_other_writers_are_detected(table: Path) -> None:
    log = DeltaLog(str(table), {})
    assert_same(log, table)
    write_deltalake(table, pa.table({"n": [7]}), mode="overwrite")
    assert_same(log, table)
    DeltaTable(table).restore(1)
    assert_same(log, table)
    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "false"})
    assert_same(log, table)


def test_a_deleted_recreated_or_truncated_table_is_read_again(table: Path, tmp_path: Path) -> None:
    log = DeltaLog(str(table), {})
    assert DeltaLog(str(tmp_path / "no table"), {}).look() is None
    assert_same(log, table)
    shutil.copytree(table, tmp_path / "kept")
    append(table, 3)
    assert_same(log, table)
    shutil.rmtree(table)
    (tmp_path / "kept").rename(table)
    assert_same(log, table)
    shutil.rmtree(table)
    assert log.look() is None
    for batch in range(9):
        append(table, batch)
    assert_same(log, table)
