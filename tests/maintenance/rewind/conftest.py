"""A root to rewind."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore.storage import Storage, open_storage
from tests.support.s3_server import S3Server


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.slow)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "disk":
        return open_storage(str(tmp_path / "root"))
    server: S3Server = request.getfixturevalue("s3_server")
    return open_storage(f"s3://{server.make_bucket()}/root", options=server.options)
