"""Checkpoints to repair."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.checkpoints import Checkpoint


@pytest.fixture(scope="session")
def eight_versions(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """With snapshots of the fourth and the eighth; Spark's, as far as one can see."""
    folder = tmp_path_factory.mktemp("eight")
    made = Checkpoint(open_storage(str(folder / "root")), folder / "job")
    for _ in range(2):
        made.grow(4)
        for action in snapshot.plan(snapshot.gather(made.storage), snapshot.SnapshotPolicy(), take_all=True).take:
            snapshot.execute(made.storage, action, scratch=folder, clock=SystemClock(), ids=RandomIds())
    made.storage.delete([names.BINDING])
    return made


@pytest.fixture
def checkpoint(eight_versions: Checkpoint, storage: Storage, tmp_path: Path) -> Checkpoint:
    return eight_versions.copied_to(storage, tmp_path / "job")
