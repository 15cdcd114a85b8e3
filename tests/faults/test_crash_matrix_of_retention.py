"""The crash matrix of retention: after any failed request, each retained version loads and a second run succeeds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.upkeep import retention, snapshot
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage
from tests.support import runs
from tests.support.checkpoints import Checkpoint
from tests.support.clocks import SleeplessClock
from tests.support.faulty_storage import FaultyStorage, SimulatedCrash, crash_matrix
from tests.support.hosts import column

STRUCTURES = pytest.mark.parametrize("structure", [Structure.V2, pytest.param(Structure.V1, marks=pytest.mark.slow)])
POLICY = RetentionPolicy(versions=3, grace_seconds=0)
RETAINED_BATCHES = (9, 10, 11)
FEWEST_CASES = 60
SHARE, SHARE_ON_S3 = 3, 64
"""One of this number of cases runs, on S3 fewer, because requests use HTTP. The slow tests run all cases."""


def garbage_collection(storage: Storage, clock: Clock) -> None:
    """Run retention like `statekeeper gc --apply`."""
    gathered = retention.gather(storage, POLICY, clock=clock)
    planned = retention.plan(gathered, POLICY)
    for _ in runs.delete(storage, gathered, planned, holder="a test", clock=clock, ids=RandomIds()):
        pass


@pytest.fixture
def checkpoint(storage_spec: StorageSpec, tmp_path: Path, structure: Structure) -> Checkpoint:
    """Three snapshots, an attempt that was never committed, and a table that no zip names."""
    storage = open_storage(replace(storage_spec, url=f"{storage_spec.url}/prepared"))
    made = Checkpoint(storage, tmp_path / "job", partitions=1, structure=structure)
    for _ in range(3):
        made.grow(4)
        [action] = snapshot.plan(snapshot.gather(storage), snapshot.SnapshotPolicy(), take_all=True).take
        snapshot.execute(storage, action, scratch=tmp_path, clock=SystemClock(), ids=RandomIds())
    with made.load(made.stores[0], made.versions[5][0], tmp_path / "zombie") as opened:
        opened.put(column([b"of a zombie"]), column([b"x"]))
        opened.commit()
    storage.create(made.stores[0].table_file(f"000999-{RandomIds().fresh()}.sst"), b"of nobody")
    return made


def copies(storage_spec: StorageSpec, checkpoint: Checkpoint) -> Iterator[Storage]:
    """Roots like the prepared one, each of which may be spoilt."""
    objects = {entry.path: checkpoint.storage.read(entry.path) for entry in checkpoint.storage.list("")}
    number = 0
    while True:
        storage = open_storage(replace(storage_spec, url=f"{storage_spec.url}/case-{number}"))
        for path, data in objects.items():
            storage.create(path, data)
        yield storage
        number += 1


@STRUCTURES
def test_after_any_failed_request_of_retention_all_versions_load_and_a_second_run_succeeds(
    storage_spec: StorageSpec, checkpoint: Checkpoint, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    share = SHARE if storage_spec.url.startswith("/") else SHARE_ON_S3
    cases = play(storage_spec, checkpoint, tmp_path, one_in=share)
    record_property("crash_matrix_cases", cases)
    assert cases >= max(1, FEWEST_CASES // share)


@STRUCTURES
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_after_any_failed_request_of_retention_on_s3_a_second_run_succeeds(
    storage_spec: StorageSpec, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    if storage_spec.url.startswith("/"):
        pytest.skip("each case is among the usual tests on local disk")
    assert play(storage_spec, checkpoint, tmp_path, one_in=1) >= FEWEST_CASES


def play(storage_spec: StorageSpec, checkpoint: Checkpoint, tmp_path: Path, *, one_in: int) -> int:
    """Run one of `one_in` cases of the matrix. Returns the number of cases run."""
    roots = copies(storage_spec, checkpoint)
    undisturbed = next(roots)
    rehearsal = FaultyStorage(undisturbed)
    garbage_collection(rehearsal, SystemClock())
    expected = what_is_left(undisturbed)
    assert len(expected) < len(what_is_left(checkpoint.storage))
    cases = crash_matrix(rehearsal.trace)[::one_in]
    for number, (request, fault) in enumerate(cases):
        storage = next(roots)
        faulty = FaultyStorage(storage, {request.number: fault})
        with suppress(SimulatedCrash, StorageError):
            garbage_collection(faulty, SystemClock())
        assert len(faulty.trace) > request.number, f"{request} was not reached"
        checkpoint.storage = storage
        for batch in RETAINED_BATCHES:
            checkpoint.assert_right(tmp_path / f"host-{number}-{batch}", batch)
            shutil.rmtree(tmp_path / f"host-{number}-{batch}")
        # The dead run's lease is waited for.
        garbage_collection(storage, SleeplessClock(SystemClock().now_seconds() + lease.LIFE_SECONDS))
        assert what_is_left(storage) == expected, (request, fault)
    print(f"{len(rehearsal.trace)} requests, {len(cases)} cases")
    return len(cases)


def what_is_left(storage: Storage) -> set[str]:
    """All files but those about the runs themselves."""
    of_runs = (f"{names.LEASES}/", f"{names.HISTORY}/", f"{names.DELETING}/")
    return {entry.path for entry in storage.list("") if not entry.path.startswith(of_runs)}
