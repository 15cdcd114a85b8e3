"""A root on local disk, for calls of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def checkpoint(root: Path, tmp_path: Path) -> Checkpoint:
    """Four versions and no snapshot."""
    made = Checkpoint(open_storage(str(root)), tmp_path / "job")
    made.grow(4)
    return made
