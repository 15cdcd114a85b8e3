"""Checkpoints to clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.format import names
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.retention import take_snapshots


@pytest.fixture
def checkpoint(storage: Storage, tmp_path: Path) -> Checkpoint:
    return Checkpoint(storage, tmp_path / "job")


@pytest.fixture(scope="session")
def twenty_versions(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """With a snapshot of each fifth."""
    folder = tmp_path_factory.mktemp("twenty")
    made = Checkpoint(open_storage(str(folder / "root")), folder / "job")
    for _ in range(4):
        made.grow(5)
        take_snapshots(made.storage, folder)
    return made


@pytest.fixture
def maintained(twenty_versions: Checkpoint, storage: Storage, tmp_path: Path) -> Checkpoint:
    return twenty_versions.copied_to(storage, tmp_path / "job")


@pytest.fixture
def native(maintained: Checkpoint) -> Checkpoint:
    """Return the same files without the files of Statekeeper: it looks like a running native query."""
    maintained.storage.delete([names.BINDING])
    return maintained
