"""Two hosts that use one store."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage
from tests.support.hosts import Host


@pytest.fixture
def host(storage: Storage, tmp_path: Path, structure: Structure) -> Host:
    return Host(storage, tmp_path / "host a", structure=structure)


@pytest.fixture
def other(storage: Storage, tmp_path: Path, structure: Structure) -> Host:
    return Host(storage, tmp_path / "host b", structure=structure)
