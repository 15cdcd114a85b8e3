"""Checkpoints that can be switched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.s3_server import S3Server
from tests.support.structures import as_sparks, without_ids
from tests.support.switching import take_snapshots


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[Structure, Checkpoint]:
    """Six versions with a snapshot of the fourth, in both structures, as a query of Spark's leaves them."""
    made = {}
    for structure in Structure:
        folder = tmp_path_factory.mktemp(structure.value)
        one = Checkpoint(open_storage(str(folder / "root")), folder / "job")
        one.grow(4)
        take_snapshots(one.storage, folder)
        one.grow(2)
        made[structure] = as_sparks(one)
    without_ids(made[Structure.V1])
    return made


@pytest.fixture(params=tuple(Structure), ids=lambda structure: structure.value)
def source(request: pytest.FixtureRequest) -> Structure:
    """The structure that the checkpoint has."""
    return request.param


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.slow)])
def new_root(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Storage]:
    """Opens a root by its name."""
    if request.param == "disk":
        return lambda name: open_storage(str(tmp_path / name))
    server: S3Server = request.getfixturevalue("s3_server")
    bucket = server.make_bucket()
    return lambda name: open_storage(f"s3://{bucket}/{name}", options=server.options)


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "root"))


@pytest.fixture
def switchable(prepared: dict[Structure, Checkpoint], source: Structure, local: Storage, tmp_path: Path) -> Checkpoint:
    return prepared[source].copied_to(local, tmp_path / "job")
