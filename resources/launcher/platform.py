"""Dagster beside a job: the code server, the webserver and the daemon, below one folder.

    <home>/dagster.yaml      a copy of the repository's, made once, then its owner's to change
    <home>/workspace.yaml    where the code server listens
    <home>/process-logs/     the output of each process; never <home>/logs, which Dagster's telemetry takes for its own
    <home>/history, storage, schedules    Dagster's own; can be deleted, nothing but history is lost

Both the webserver and the daemon ask one code server. Starting it once saves a process and its memory, and one that was
killed is started again without the other two noticing more than a pause.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from resources.launcher.children import Children, Command
from statestore.clock import SystemClock
from statestore.errors import PortInUse, StatekeeperError
from statestore.maintenance import config

HOST = "127.0.0.1"
PORT = 3000
_LOOK_SECONDS = 1.0
LOGS = "process-logs"
"""Below a home: where the logs are."""

_REPOSITORY = Path(__file__).resolve().parents[2]
_WORKSPACE = """load_from:
  - grpc_server: {{socket: "{socket}", location_name: statekeeper}}
"""


@dataclass(frozen=True)
class Platform:
    """A running Dagster: where people look at it, and how its processes are."""

    url: str
    children: Children

    def figures(self) -> list[tuple[str, str]]:
        """For the status in the terminal."""
        odd = ", ".join(f"{name} {state}" for name, state in self.children.states().items() if state != "up")
        return [("Dagster", f"{self.url} ({odd})" if odd else self.url)]

    def troubles(self) -> str:
        """Which processes are down or had to be started again; "" when all is well."""
        states = self.children.states().items()
        return ", ".join(f"{name} {state}" for name, state in states if state not in ("up", "waiting"))


def require_port(port: int) -> None:
    """Raises `PortInUse` when somebody listens there."""
    with socket.socket() as probe:
        # As the webserver does: connections of an earlier one that are still being closed are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PortInUse(
                f"port {port} on {HOST} is in use: {error.strerror}",
                hint="stop what listens there, choose another with --port, or do without with --no-ui",
            ) from error


@contextmanager
def started(home: Path, configuration: Path, *, port: int = PORT, health_cron: str | None = None) -> Iterator[Platform]:
    """Dagster, from now until the block is left. `configuration`: the `statekeeper.toml` of the fleet.

    Raises `PortInUse`, `BadConfiguration`, before anything is started.
    """
    require_port(port)
    config.load(configuration)
    home = home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    _configure(home / "dagster.yaml")
    # A socket's path may have a hundred characters, a home's more.
    with tempfile.TemporaryDirectory(prefix="statekeeper-") as short:
        listens = Path(short) / "code"
        workspace = home / "workspace.yaml"
        workspace.write_text(_WORKSPACE.format(socket=listens))
        environment = _environment(home, configuration.resolve(), health_cron)
        with Children(_commands(listens, workspace, home / LOGS, port), environment, SystemClock()) as children:
            yield Platform(f"http://{HOST}:{port}", children)


def _configure(path: Path) -> None:
    """Dagster's configuration: ours where there is none. Whole or not at all, since half of one would stay."""
    if not path.exists():
        new = path.with_suffix(".new")
        shutil.copyfile(_REPOSITORY / "dagster.yaml", new)
        new.replace(path)


def _commands(listens: Path, workspace: Path, logs: Path, port: int) -> list[Command]:
    def command(name: str, *arguments: str, after: Path | None = None) -> Command:
        return Command(name, [sys.executable, "-m", *arguments], logs / f"{name}.log", after)

    definitions = str(_REPOSITORY / "assets" / "definitions.py")
    code = ("--python-file", definitions, "--working-directory", str(_REPOSITORY), "--location-name", "statekeeper")
    where = ("--workspace", str(workspace))
    return [
        command("code-server", "dagster", "api", "grpc", "--socket", str(listens), *code),
        command("webserver", "dagster_webserver", "--host", HOST, "--port", str(port), *where, after=listens),
        command("daemon", "dagster._daemon", "run", *where, after=listens),
    ]


def _environment(home: Path, configuration: Path, health_cron: str | None) -> Mapping[str, str]:
    environment = {**os.environ, "DAGSTER_HOME": str(home), "STATEKEEPER_CONFIG": str(configuration)}
    # Each run is a fresh interpreter: without compiled modules it starts half as fast.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # Whatever dagster.yaml says of telemetry, its threads run, and send what they find in DAGSTER_HOME/logs away.
    environment["DAGSTER_DISABLE_TELEMETRY"] = "yes"
    if health_cron is not None:
        environment.setdefault("STATEKEEPER_HEALTH_CRON", health_cron)
    return environment


def main(arguments: Sequence[str] | None = None) -> int:
    """Dagster alone, for one's own checkpoints. Returns the exit code of the error's class, 0 when it was stopped."""
    parser = argparse.ArgumentParser(prog="make platform", description="Dagster for the roots in statekeeper.toml.")
    parser.add_argument("--config", type=Path, default=Path(config.FILE_NAME), help="default: %(default)s")
    parser.add_argument("--home", type=Path, default=Path("var/dagster"), help="DAGSTER_HOME (default: %(default)s)")
    parser.add_argument("--port", type=int, default=PORT, help="of the webserver (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    console = Console()
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    try:
        with started(chosen.home, chosen.config, port=chosen.port) as platform:
            console.print(f"Dagster: {platform.url}, logs in {chosen.home / LOGS}; Ctrl-C ends it")
            told = ""
            while not stop.wait(_LOOK_SECONDS):
                if (troubles := platform.troubles()) != told:
                    console.print(troubles, highlight=False, soft_wrap=True)
                    told = troubles
            console.print("ending Dagster")
    except StatekeeperError as error:
        console.print(f"[red]{error.code}[/red]: {error}", highlight=False, soft_wrap=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
