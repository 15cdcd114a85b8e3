"""Starts Dagster: the code server, the webserver and the daemon, with their files below one folder.

    <home>/dagster.yaml      a copy of the repository's, made by the first start and never changed by later ones
    <home>/workspace.yaml    the address of the code server
    <home>/process-logs/     the output of each process; not <home>/logs, which Dagster's telemetry uploads
    <home>/history, storage, schedules    Dagster's storage; deleting it loses only history

The webserver and the daemon share one code server. That saves a process and its memory. If it dies, the launcher restarts
it, and the other two wait meanwhile.
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
from rich.text import Text

from statekeeper.resources.launcher.children import Children, Command
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import PortInUse, StatekeeperError
from statekeeper.statestore.base.extras import how_to_install, missing
from statekeeper.statestore.base.messages import CONFIGURATION_FILE
from statekeeper.statestore.maintenance.verbs import config

HOST = "127.0.0.1"
PORT = 3000
FLEET_HEALTH = "fleet_health"
_LOOK_SECONDS = 1.0
_PROBE_SECONDS = 0.2
LOGS = "process-logs"
"""Folder of the logs below a home."""

_CONFIGURATION = Path(__file__).with_name("dagster.yaml")
"""The `dagster.yaml` of the repository, to which a link points in this folder; the wheel contains a copy."""
_WORKSPACE = """load_from:
  - grpc_server: {{socket: "{socket}", location_name: statekeeper}}
"""


@dataclass(frozen=True)
class Platform:
    """A running Dagster: the URL of its UI, its processes, and the folder of their logs."""

    url: str
    children: Children
    logs: Path

    @property
    def page(self) -> str:
        """The URL of the page to begin with: the state of all queries, the worst first."""
        return f"{self.url}/assets/{FLEET_HEALTH}"

    def figures(self) -> list[tuple[str, str]]:
        """The rows for the status in the terminal."""
        if (troubles := self.troubles()) != "":
            return [("Dagster", f"{self.page} ({troubles}; logs in {self.logs})")]
        return [("Dagster", self.page if self._listens() else f"starts; its logs are in {self.logs}")]

    def _listens(self) -> bool:
        host, _, port = self.url.rpartition("/")[2].partition(":")
        with socket.socket() as probe:
            probe.settimeout(_PROBE_SECONDS)
            return probe.connect_ex((host, int(port))) == 0

    def troubles(self) -> str:
        """The processes that are down or were restarted; "" if there are none."""
        states = self.children.states().items()
        return ", ".join(f"{name} {state}" for name, state in states if state not in ("up", "waiting"))


def require_port(port: int) -> None:
    """Check that the port is free. Raises `PortInUse`."""
    with socket.socket() as probe:
        # The webserver sets it, too: closing connections of an earlier webserver do not occupy the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PortInUse(
                f"port {port} on {HOST} is in use: {error.strerror}",
                hint="stop the program that listens on it, choose another port with --port, or use --no-ui",
            ) from error


@contextmanager
def started(home: Path, configuration: Path, *, port: int = PORT, health_cron: str | None = None) -> Iterator[Platform]:
    """Run Dagster until the block ends. `configuration`: the `statekeeper.toml` of the fleet.

    Raises `PortInUse` and `BadConfiguration` before it starts a process.
    """
    require_port(port)
    config.load(configuration)
    home = home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    _configure(home / "dagster.yaml")
    # The path of a socket has at most about 100 characters; the path of a home can be longer.
    with tempfile.TemporaryDirectory(prefix="statekeeper-") as short:
        listens = Path(short) / "code"
        workspace = home / "workspace.yaml"
        workspace.write_text(_WORKSPACE.format(socket=listens))
        environment = _environment(home, configuration.resolve(), health_cron, port)
        with Children(_commands(listens, workspace, home / LOGS, port), environment, SystemClock()) as children:
            yield Platform(f"http://{HOST}:{port}", children, home / LOGS)


_DAEMON = """\
import sys
from importlib.metadata import entry_points
[daemon, *_] = entry_points(group="console_scripts", name="dagster-daemon")
sys.exit(daemon.load()())
"""
"""Runs `dagster-daemon`. Its module is private, and its script need not be in the folder of the interpreter."""


def _configure(path: Path) -> None:
    """Copy our configuration if there is none. The copy is atomic: later starts keep whatever exists."""
    if not path.exists():
        new = path.with_suffix(".new")
        shutil.copyfile(_CONFIGURATION, new)
        new.replace(path)


def _commands(listens: Path, workspace: Path, logs: Path, port: int) -> list[Command]:
    def command(name: str, *arguments: str, after: Path | None = None) -> Command:
        return Command(name, [sys.executable, *arguments], logs / f"{name}.log", after)

    code = ("--module-name", "statekeeper.assets.definitions", "--location-name", "statekeeper")
    where = ("--workspace", str(workspace))
    return [
        command("code-server", "-m", "dagster", "api", "grpc", "--socket", str(listens), *code),
        command("webserver", "-m", "dagster_webserver", "--host", HOST, "--port", str(port), *where, after=listens),
        command("daemon", "-c", _DAEMON, "run", *where, after=listens),
    ]


def _environment(home: Path, configuration: Path, health_cron: str | None, port: int) -> Mapping[str, str]:
    environment = {**os.environ, "DAGSTER_HOME": str(home), "STATEKEEPER_CONFIG": str(configuration)}
    # Each run starts an interpreter, which takes twice as long without compiled modules.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # Dagster starts its telemetry threads in spite of dagster.yaml, and they upload the files in DAGSTER_HOME/logs.
    environment["DAGSTER_DISABLE_TELEMETRY"] = "yes"
    environment.setdefault("STATEKEEPER_UI_URL", f"http://{HOST}:{port}")
    if health_cron is not None:
        environment.setdefault("STATEKEEPER_HEALTH_CRON", health_cron)
    return environment


def main(arguments: Sequence[str] | None = None) -> int:
    """Run Dagster for the roots in a configuration. Returns the exit code of the error's class, or 0 when it is stopped."""
    parser = argparse.ArgumentParser(prog="make platform", description="Dagster for the roots in statekeeper.toml.")
    parser.add_argument("--config", type=Path, default=Path(CONFIGURATION_FILE), help="default: %(default)s")
    parser.add_argument("--home", type=Path, default=Path("var/dagster"), help="DAGSTER_HOME (default: %(default)s)")
    parser.add_argument("--port", type=int, default=PORT, help="port of the webserver (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    if (package := missing("dagster", "dagster_webserver")) is not None:
        parser.exit(1, f"the package {package} is not installed; run: {how_to_install('platform')}\n")
    console = Console()
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    try:
        with started(chosen.home, chosen.config, port=chosen.port) as platform:
            console.print(f"Dagster: {platform.page}, logs in {chosen.home / LOGS}; Ctrl-C stops it")
            reported = ""
            while not stop.wait(_LOOK_SECONDS):
                if (troubles := platform.troubles()) != reported:
                    console.print(troubles, highlight=False, soft_wrap=True)
                    reported = troubles
            console.print("stopping Dagster")
    except StatekeeperError as error:
        console.print(Text.assemble((error.code, "red"), ": ", str(error)), soft_wrap=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
