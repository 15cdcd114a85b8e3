"""The requests of a running query to find the snapshots of its maintenance, and their result."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.pipelines.batch.snapshots import KnownSnapshots
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.records.history import History
from statekeeper.statestore.storage import Kind, Storage, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.commands import run
from tests.support.faulty_storage import FaultyStorage
from tests.support.switching import take_snapshots

PARTITIONS = 4


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """With a snapshot of each store, made by maintenance."""
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job", partitions=PARTITIONS)
    made.grow(3)
    maintained(tmp_path, "snapshot", "--all")
    return made


def maintained(folder: Path, *command: object) -> None:
    verb, *options = command
    assert run(verb, folder / "root", *options).exit_code == 0


def asked(known: KnownSnapshots, storage: Storage) -> list[tuple[Kind, str]]:
    """The requests of a look."""
    watched = FaultyStorage(storage)
    known.look(watched)
    return [(request.kind, request.path) for request in watched.trace]


def test_without_changes_only_the_lease_is_listed(checkpoint: Checkpoint) -> None:
    known = KnownSnapshots(checkpoint.storage)
    assert known.versions == catalog.snapshots(checkpoint.storage)
    for _ in range(5):
        checkpoint.grow(1)
        assert asked(known, checkpoint.storage) == [(Kind.LIST, names.LEASES)]
    assert len(checkpoint.storage.list(names.LEASES)) <= 2


def test_taken_and_deleted_snapshots_are_read_from_the_records_of_maintenance(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    known = KnownSnapshots(checkpoint.storage)
    checkpoint.grow(2)
    maintained(tmp_path, "snapshot", "--all")
    lists, reads = asked(known, checkpoint.storage)[:2], asked(known, checkpoint.storage)
    assert lists == [(Kind.LIST, names.LEASES), (Kind.LIST, names.HISTORY)]
    assert reads == [(Kind.LIST, names.LEASES)]
    assert known.versions == catalog.snapshots(checkpoint.storage)
    assert all(len(versions) == 2 for versions in known.versions.values())
    maintained(tmp_path, "gc", "--retain", 1, "--grace", "0s", "--apply")
    requests = asked(known, checkpoint.storage)
    assert not [path for _, path in requests if path.startswith(names.STATE)]
    assert known.versions == catalog.snapshots(checkpoint.storage)
    assert all(len(versions) == 1 for versions in known.versions.values())


def test_snapshots_of_a_dead_run_are_found_when_the_next_run_starts(checkpoint: Checkpoint, tmp_path: Path) -> None:
    storage, clock = checkpoint.storage, SystemClock()
    known = KnownSnapshots(storage)
    checkpoint.grow(2)
    dead = lease.acquire(storage, "snapshot", run=RandomIds().fresh(), holder="the dead", clock=clock)
    planned = checkpoint.stores[:2]
    History.begin(storage, "snapshot", RandomIds().fresh(), clock).plan(
        {"store": str(store), "version": "3", "reason": "count", "explained": "many changelogs"} for store in planned
    )
    take_snapshots(storage, tmp_path / "scratch")
    known.look(storage)
    assert known.versions != catalog.snapshots(storage)
    dead.release()
    lease.acquire(storage, "gc", run=RandomIds().fresh(), holder="the next", clock=clock)
    folders = [path for _, path in asked(known, storage) if path.startswith(names.STATE)]
    assert folders == [store.folder for store in planned], "the two that were planned, and no others"
    found = catalog.snapshots(storage)
    assert [known.versions[store] for store in planned] == [found[store] for store in planned]
    assert asked(known, storage) == [(Kind.LIST, names.LEASES)]


def test_a_damaged_record_causes_one_full_listing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    known = KnownSnapshots(checkpoint.storage)
    checkpoint.grow(2)
    maintained(tmp_path, "snapshot", "--all")
    for entry in checkpoint.storage.list(names.HISTORY):
        checkpoint.storage.replace(entry.path, b"{")
    assert (Kind.LIST, names.STATE) in asked(known, checkpoint.storage)
    assert known.versions == catalog.snapshots(checkpoint.storage)
    assert asked(known, checkpoint.storage) == [(Kind.LIST, names.LEASES)]
