"""A schema evolution, followed by other verbs and batches: each works on the new columns."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.storage import open_storage
from tests.support import retention
from tests.support.evolved_roots import (
    by_key,
    commit,
    evolve,
    goal,
    new_rows,
    old_rows,
    plain_rows,
    rows_of,
    undo,
)
from tests.support.rescales import rescale
from tests.support.twins import clean, statekeeper


def test_a_root_with_batch_logs_evolves_and_returns(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    storage, host = open_storage(str(tmp_path / "root")), tmp_path / "host"
    keys = [f"key {n}" for n in range(20)]
    for batch in range(2):
        commit(storage, host, batch, old_rows(*keys), plain_rows("a"), in_batch_log=True)
    logs = [entry.path for entry in storage.list(names.BATCH_LOGS)]
    assert len(logs) == 2
    assert not any(path.endswith(".changelog") for path in (entry.path for entry in storage.list(names.STATE)))
    before = by_key(old_rows(*keys))
    undo(storage, evolve(storage, goal(), tmp_path))
    assert rows_of(storage, 0, tmp_path) == before
    clean(storage, tmp_path)
    evolve(storage, goal(), tmp_path)
    assert rows_of(storage, 0, tmp_path) == by_key(new_rows(old_rows(*keys)))
    assert [entry.path for entry in storage.list(names.BATCH_LOGS)] == logs
    clean(storage, tmp_path)
    more = [*keys, "another key"]
    commit(storage, host, 2, new_rows(old_rows(*more)), plain_rows("b"), in_batch_log=True)
    assert rows_of(storage, 0, tmp_path) == by_key(new_rows(old_rows(*more)))
    retention.take_snapshots(storage, tmp_path)
    retention.collect(storage, retention.planned(storage, RetentionPolicy(versions=1, grace_seconds=0)))
    assert not {entry.path for entry in storage.list(names.BATCH_LOGS)} & set(logs)
    assert rows_of(storage, 0, tmp_path) == by_key(new_rows(old_rows(*more)))
    clean(storage, tmp_path)


def test_batches_snapshots_gc_a_savepoint_a_clone_and_a_rescale_follow(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    storage, host = open_storage(str(tmp_path / "root")), tmp_path / "host"
    keys = [f"key {n}" for n in range(20)]
    commit(storage, host, 0, old_rows(*keys), plain_rows("a"))
    run = evolve(storage, goal(), tmp_path)
    expected = by_key(new_rows(old_rows(*keys)))
    for batch in (1, 2):
        commit(storage, host, batch, new_rows(old_rows(*keys)), plain_rows("b"))
    retention.take_snapshots(storage, tmp_path)
    commit(storage, host, 3, new_rows(old_rows(*keys)), plain_rows("b"))
    retention.collect(storage, retention.planned(storage, RetentionPolicy(versions=2, grace_seconds=0)))
    clean(storage, tmp_path)
    assert rows_of(storage, 0, tmp_path) == expected
    with pytest.raises(RefusedAsUnsafe, match="the query has committed since"):
        undo(storage, run)
    scratch = ("--scratch", str(tmp_path / "scratch"))
    statekeeper("savepoint", str(tmp_path / "root"), str(tmp_path / "rows"), "--rows", *scratch)
    tables = [pyarrow.parquet.read_table(path) for path in (tmp_path / "rows").rglob("*.parquet")]
    assert sum("currency" in json.dumps(table.schema.names) for table in tables) >= 1
    statekeeper("clone", str(tmp_path / "root"), str(tmp_path / "clone"), *scratch)
    assert rows_of(open_storage(str(tmp_path / "clone")), 0, tmp_path) == expected
    rescale(storage, 3, tmp_path)
    assert rows_of(storage, 0, tmp_path) == expected
    evolve(storage, goal(counts={"drop": ["currency"]}), tmp_path)
    assert rows_of(storage, 0, tmp_path) == [
        {name: value for name, value in row.items() if name != "currency"} for row in expected
    ]
    clean(storage, tmp_path)
