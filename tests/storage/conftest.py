"""Roots on each storage backend: local disk and S3, and the others with `make interop-stores`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statekeeper.statestore.storage import StorageSpec
from tests.support.hdfs_server import MiniHdfs
from tests.support.s3_server import S3Server
from tests.support.storage_servers import Azurite, FakeGcs

SLOW = pytest.mark.slow


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    server = Azurite()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[FakeGcs]:
    server = FakeGcs()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def hdfs() -> Iterator[MiniHdfs]:
    server = MiniHdfs()
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["local", "s3", *(pytest.param(name, marks=SLOW) for name in ("azurite", "fake_gcs", "hdfs"))])
def storage_spec(request: pytest.FixtureRequest, tmp_path: Path) -> StorageSpec:
    """An empty root on each storage backend in turn."""
    if request.param == "local":
        return StorageSpec(str(tmp_path / "root"))
    server = request.getfixturevalue("s3_server" if request.param == "s3" else request.param)
    if isinstance(server, S3Server):
        return StorageSpec(f"s3://{server.make_bucket()}/a root", tuple(server.options.items()))
    return server.new_root()
