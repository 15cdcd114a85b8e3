"""A conversion that dies at a request leaves the old state, the new state, or a checkpoint on which no query starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine import Convert
from statekeeper.statestore.storage import Storage
from tests.support.rescales import rescale
from tests.support.rewrite_crashes import CrashMatrix

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
GOALS = {
    "to RocksDB in V1": ("spark-4.2.0-hdfs-aggregation.zip", Convert(Provider.ROCKSDB, Structure.V1)),
    "to RocksDB in V2": ("spark-4.2.0-hdfs-aggregation.zip", Convert(Provider.ROCKSDB, Structure.V2)),
    "to the default provider": ("spark-4.2.0-v1-aggregation.zip", Convert(Provider.HDFS_BACKED, Structure.V1)),
}


def matrix(name: str, folder: Path) -> CrashMatrix:
    archive, goal = GOALS[name]

    def rewrite(storage: Storage, scratch: Path, *, clock: Clock | None = None) -> object:
        return rescale(storage, goal, scratch, clock=clock)

    # Each provider ignores the snapshots of the other.
    return CrashMatrix(FIXTURES / archive, rewrite, folder, guarded=False)


@pytest.mark.parametrize("name", GOALS)
def test_after_any_failed_write_the_checkpoint_has_the_old_or_the_new_state(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    crashes = matrix(name, tmp_path)
    cases = crashes.slice_for_ci
    for number, case in enumerate(cases):
        crashes.play(*case, finish=number % 2 == 0)
    record_property("crash_matrix_cases", len(cases))
    print(f"{len(cases)} cases")
    assert len(cases) >= 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", GOALS)
def test_after_any_failed_request_the_checkpoint_has_the_old_or_the_new_state(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    crashes = matrix(name, tmp_path)
    for number, case in enumerate(crashes.cases):
        crashes.play(*case, finish=number % 2 == 0)
    record_property("crash_matrix_cases", len(crashes.cases))
    print(f"{len(crashes.cases)} cases")
    assert len(crashes.cases) >= 100
