"""Calls of the command-line interface, in this process or at a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys

from click.testing import CliRunner, Result

from statekeeper.statestore.cli import main
from tests.support.maintainers import MAINTAINER


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def statekeeper(*arguments: object) -> Result:
    """Call as `run`, by a maintainer that waits briefly before it treats a query as stopped."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], obj=MAINTAINER)


def json_output(*arguments: object) -> dict:
    result = run(*arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def shown_at_a_terminal(*arguments: object) -> str:
    """Call the command in its own process, and return its progress, which it writes to the terminal at stderr."""
    returncode, shown = at_a_terminal(*arguments, stream="stderr")
    assert returncode == 0, shown
    return shown


def at_a_terminal(*arguments: object, stream: str, columns: int = 120) -> tuple[int, str]:
    """Call the command in its own process, and return its exit code and what it writes to `stream`, a terminal."""
    terminal, end = pty.openpty()
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: end}
    with subprocess.Popen(
        [sys.executable, "-m", "statekeeper", *map(str, arguments)],
        **streams,
        env={**os.environ, "COLUMNS": str(columns)},
    ) as process:
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal is closed at the end of the process
            while piece := os.read(terminal, 4096):
                shown += piece
    os.close(terminal)
    return process.returncode, shown.decode().replace("\r\n", "\n")
