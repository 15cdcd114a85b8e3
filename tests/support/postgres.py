"""A real Postgres server as Dagster's storage. The server comes from Debian's packages."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from tests.support.running import REPOSITORY, free_port

PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
"""Folders with the commands of Postgres; empty without the package."""

LOGIN = {"STATEKEEPER_PG_HOST": "127.0.0.1", "STATEKEEPER_PG_USER": "dagster", "STATEKEEPER_PG_PASSWORD": "a word"}
"""The environment variables that the documented configuration reads."""


class Server:
    """A fresh server on 127.0.0.1, with the user `dagster`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, free_port()
        self._numbers = itertools.count(1)

    def run(self, tool: str, *arguments: str) -> None:
        """Run one of Postgres' own commands."""
        command = [str(PLACES[0] / tool), *arguments]
        if os.geteuid() == 0:
            # Postgres refuses to run as root: as the user whom its package has made.
            command = ["runuser", "-u", "postgres", "--", *command]
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder, timeout=120)

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Server]:
        # Folders of pytest are accessible to their owner only.
        with tempfile.TemporaryDirectory(prefix="statekeeper-postgres-") as made:
            folder = Path(made)
            if os.geteuid() == 0:
                shutil.chown(folder, pwd.getpwnam("postgres").pw_uid)
            server, data = cls(folder), str(folder / "data")
            server.run("initdb", "-D", data, "-U", "dagster", "--auth=trust", "--no-sync")
            how = f"-p {server.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
            server.run("pg_ctl", "-D", data, "-l", str(folder / "log"), "-o", how, "-w", "start")
            try:
                yield server
            finally:
                server.run("pg_ctl", "-D", data, "-m", "immediate", "stop")

    def storage(self) -> str:
        """The storage of an instance as in docs/how-to/postgres.md, with a new database."""
        database = f"dagster_{next(self._numbers)}"
        self.run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "dagster", database)
        described = (REPOSITORY / "docs" / "how-to" / "postgres.md").read_text()
        storage = dedent(described.partition("```yaml\n")[2].partition("    ```")[0])
        return storage.replace("db_name: dagster", f"db_name: {database}").replace("port: 5432", f"port: {self.port}")
