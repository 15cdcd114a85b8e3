"""Fixtures of several packages: a store on local disk and one on S3, and one Spark session."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from hypothesis import settings

from statekeeper.statestore.base.extras import missing
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage
from tests.support import quick_spark, units
from tests.support.s3_server import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("JDK_JAVA_OPTIONS", quick_spark.java_options())

SHARE_ON_S3 = 24
"""One of this number of maintenance tests also runs on S3 in CI."""

# How long an example takes says more of the machine than of the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if params.get("storage_spec") == "s3":
            # A structure is names and digests, whatever they are stored in.
            is_slow = params.get("structure") is Structure.V1
            # The plans of maintenance are the same on disk and on S3: CI takes a share of them there, slow-test all.
            if "tests/maintenance/" in item.nodeid and crc32(item.nodeid.encode()) % SHARE_ON_S3:
                is_slow = True
            if is_slow:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Without PySpark, skip the modules that import it. All others test the library."""
    report = yield
    if report.failed and missing("pyspark") and "pyspark" in str(report.longrepr):
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, "Skipped: the module imports PySpark, which is not installed")
    return report


def pytest_configure(config: pytest.Config) -> None:
    units.register(config)


@pytest.fixture(params=list(Structure), ids=lambda structure: structure.value)
def structure(request: pytest.FixtureRequest) -> Structure:
    """Both structures in turn."""
    return Structure(request.param)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["local", "s3"])
def storage_spec(request: pytest.FixtureRequest, tmp_path: Path) -> StorageSpec:
    """An empty root, on local disk and on S3 in turn."""
    if request.param == "local":
        return StorageSpec(str(tmp_path / "root"))
    server: S3Server = request.getfixturevalue("s3_server")
    return StorageSpec(f"s3://{server.make_bucket()}/a root", tuple(server.options.items()))


@pytest.fixture
def storage(storage_spec: StorageSpec) -> Storage:
    return open_storage(storage_spec)


@pytest.fixture(scope="session")
def delta_session(pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """The one Spark session of all tests, as the pipelines make it. A task may fail twice."""
    # Imported on demand: the tests of the library run without Spark.
    from statekeeper.pipelines.startup.session import S3A_PACKAGES, spark_session

    units.require_room_for(pytestconfig, units.SPARK_SESSION, most=units.MOST_SPARK_SESSIONS)
    session = spark_session("statekeeper-tests", master="local[2,3]", conf=quick_spark.CONF, packages=S3A_PACKAGES)
    for name, value in quick_spark.BY_FILE_SYSTEM.items():
        session.conf.set(name, value)
    yield session
    session.stop()
