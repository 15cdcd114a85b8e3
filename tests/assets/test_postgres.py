"""The same with Postgres as Dagster's storage: a real server, started here where Debian's packages have put one."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from assets.partitions import QUERY_SET
from tests.assets.running import REPOSITORY, free_port
from tests.assets.test_maintain_query import checks, maintained, shown
from tests.checkpoints import Checkpoint

_PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)

pytestmark = pytest.mark.skipif(not _PLACES, reason="no Postgres here: apt-get install postgresql")


def as_postgres(*command: str) -> list[str]:
    """Postgres refuses to run as root: as the user whom its package has made."""
    return ["runuser", "-u", "postgres", "--", *command] if os.geteuid() == 0 else list(command)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The server's own: the folders that pytest makes are for their owner alone."""
    with tempfile.TemporaryDirectory(prefix="statekeeper-postgres-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def postgres(folder: Path) -> Iterator[int]:
    """The port of a fresh server on 127.0.0.1, with the user `dagster` and a database of that name."""
    if os.geteuid() == 0:
        shutil.chown(folder, pwd.getpwnam("postgres").pw_uid)
    tools, data, port = _PLACES[0], folder / "data", free_port()

    def run(*command: str) -> None:
        subprocess.run(as_postgres(*command), check=True, capture_output=True, cwd=folder, timeout=120)

    run(str(tools / "initdb"), "-D", str(data), "-U", "dagster", "--auth=trust", "--no-sync")
    how = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    run(str(tools / "pg_ctl"), "-D", str(data), "-l", str(folder / "log"), "-o", how, "-w", "start")
    try:
        run(str(tools / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "dagster", "dagster")
        yield port
    finally:
        run(str(tools / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")


@pytest.fixture
def home(postgres: int, tmp_path: Path) -> Path:
    """A DAGSTER_HOME as the docs describe it."""
    folder = tmp_path / "home"
    folder.mkdir()
    storage = (
        "storage:\n  postgres:\n    postgres_db: {scheme: postgresql+psycopg2, hostname: 127.0.0.1, "
        f"port: {postgres}, username: dagster, password: '', db_name: dagster}}\n"
    )
    (folder / "dagster.yaml").write_text((REPOSITORY / "dagster.yaml").read_text() + storage)
    return folder


def test_a_run_is_recorded_in_postgres_and_does_the_same(
    home: Path, definitions: dg.Definitions, flights: Checkpoint
) -> None:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.add_dynamic_partitions(QUERY_SET, ["flights"])
        result = maintained(definitions, instance)
        assert result.success
        assert shown(result, "snapshot")["longest_tail_after"] == 0
        assert all(check.passed for check in checks(result).values())
        assert instance.get_materialized_partitions(dg.AssetKey("retention")) == {"flights"}
    assert not (home / "history").exists(), "nothing of it went to SQLite"


def test_the_daemons_instance_accepts_the_configuration(home: Path) -> None:
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
