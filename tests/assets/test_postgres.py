"""The platform with a real Postgres server as Dagster's storage. The server comes from Debian's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.partitions import QUERY_SET
from statekeeper.statestore.format import names
from statekeeper.statestore.storage import open_storage
from tests.support import postgres
from tests.support.checkpoints import Checkpoint
from tests.support.dagster_runs import checks, maintained, shown
from tests.support.running import REPOSITORY, running, succeeded
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.skipif(not postgres.PLACES, reason="no Postgres here: apt-get install postgresql")


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    with postgres.Server.started() as started:
        yield started


@pytest.fixture
def home(server: postgres.Server, tmp_path: Path) -> Path:
    """A DAGSTER_HOME as in docs/how-to/postgres.md, with its own database."""
    made = tmp_path / "home"
    made.mkdir()
    (made / "dagster.yaml").write_text((REPOSITORY / "dagster.yaml").read_text() + server.storage())
    return made


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Set the environment variables that the documented configuration reads."""
    for name, value in postgres.LOGIN.items():
        monkeypatch.setenv(name, value)
    return postgres.LOGIN


def test_a_run_with_postgres_storage_has_the_same_result(
    home: Path, login: Mapping[str, str], definitions: dg.Definitions, flights: Checkpoint
) -> None:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.add_dynamic_partitions(QUERY_SET, ["flights"])
        result = maintained(definitions, instance)
        assert result.success
        assert shown(result, "snapshot")["longest_tail_after"] == 0
        assert all(check.passed for check in checks(result).values())
        assert instance.get_materialized_partitions(dg.AssetKey("retention")) == {"flights"}
    assert sqlite_files(home) == []


def sqlite_files(home: Path) -> list[Path]:
    """Return SQLite files that Dagster created instead of using Postgres."""
    return list(home.rglob("*.db"))


def test_the_daemons_instance_accepts_the_configuration(home: Path, login: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "instance", "info"],
        env={**os.environ, "DAGSTER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "PostgresRunStorage" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_platform_runs_with_postgres_storage_and_a_root_in_a_bucket(
    home: Path, login: Mapping[str, str], s3_server: S3Server, tmp_path: Path
) -> None:
    url = f"s3://{s3_server.make_bucket()}/flights/state"
    options = ", ".join(f'{name} = "{value}"' for name, value in s3_server.options.items())
    configuration = tmp_path / "statekeeper.toml"
    configuration.write_text(
        "[defaults]\nsnapshot = { changelogs = 4 }\nretention = { versions = 3, grace = '0s' }\n"
        f'[roots.flights]\nurl = "{url}"\nstorage = {{ {options} }}\n'
    )
    flights = Checkpoint(open_storage(url, options=s3_server.options), tmp_path / "job")
    flights.grow(9)
    configured = (home / "dagster.yaml").read_text()
    arguments = ("--config", str(configuration), "--home", str(home))
    with running(tmp_path, "statekeeper.resources.launcher.platform", *arguments, home=home) as platform:
        (first,) = succeeded(platform)
        assert first["tags"]["dagster/sensor_name"] == "changelog_tail", "nobody asked for it but the sensor"
        (snapshot,) = platform.materializations("snapshot")
        assert (snapshot["longest_tail_before"], snapshot["longest_tail_after"]) == (9, 0)
        flights.grow(5)
        before = {entry.path for entry in flights.storage.list(names.STATE)}
        succeeded(platform, 2)
        retention = platform.materializations("retention")[0]
        assert retention["deleted_files"] == retention["planned_files"] > 0
        assert before - {entry.path for entry in flights.storage.list(names.STATE)}
        for asset in ("snapshot", "lineage", "retention"):
            assert all(check["success"] for check in platform.checks(asset).values()), platform.checks(asset)
    flights.assert_right(tmp_path / "host")
    assert (home / "dagster.yaml").read_text() == configured, "it is its owner's"
    assert sqlite_files(home) == []
