"""Roots to clone from and to."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.storage import Storage, open_storage
from tests.support.clones import Roots
from tests.support.s3_server import S3Server


@pytest.fixture(params=["disk to disk", "s3 to s3", "disk to s3", "s3 to disk"])
def roots(request: pytest.FixtureRequest, tmp_path: Path) -> Roots:
    """An empty source and an empty destination."""
    kinds = str(request.param).split(" to ")

    def opened(kind: str, name: str) -> Storage:
        if kind == "disk":
            return open_storage(str(tmp_path / name))
        server: S3Server = request.getfixturevalue("s3_server")
        return open_storage(f"s3://{server.make_bucket()}/{name}", options=server.options)

    return opened(kinds[0], "root"), opened(kinds[1], "clone")


@pytest.fixture
def disks(tmp_path: Path) -> Roots:
    return open_storage(str(tmp_path / "root")), open_storage(str(tmp_path / "clone"))
