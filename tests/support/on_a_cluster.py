"""Runs commands of Statekeeper in one Spark application on a small cluster: two or three executors, each a JVM of its own.

    python -m tests.support.on_a_cluster COMMANDS.json

Each command is a list of arguments; or a number: seconds after which an executor is killed while the next command runs; or
the settings of `SquareEach`. Prints one line of JSON for each: the exit code of a command and the object that it printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.maintenance.executors import Place
from statekeeper.statestore.maintenance.executors.spark import SparkExecutor
from statekeeper.statestore.storage import Storage
from tests.support.maintainers import MAINTAINER

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "512m",
    "spark.log.level": "ERROR",
}


class Ran(NamedTuple):
    """A command that ran."""

    exit_code: int
    printed: dict[str, Any]
    errors: str


def on_a_cluster(
    folder: Path,
    *commands: Sequence[str] | float | Mapping[str, Any],
    executors: int = 2,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: int = 240,
) -> list[Ran]:
    """Run commands in an application of their own. A number: seconds after which an executor is killed while the next
    command runs."""
    file = folder / "commands.json"
    file.write_text(json.dumps({"executors": executors, "settings": dict(settings or {}), "commands": commands}))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.on_a_cluster", str(file)],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **(environment or {})},
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"exit_code"')]
    expected = sum(not isinstance(one, float | int) for one in commands)
    assert len(lines) == expected, (
        f"{len(lines)} of {expected} commands ran\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    )
    return [Ran(**json.loads(line)) for line in lines]


@dataclass(frozen=True)
class SquareEach:
    """A task. Its worker dies of the item `deadly`; the item `defect` divides by zero."""

    deadly: int = -1
    defect: int = -1

    @property
    def storages(self) -> Sequence[Storage]:
        return ()

    def __call__(self, item: int, place: Place) -> int:
        if item == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if item == self.defect:
            raise ZeroDivisionError(item)
        return item * item


def _squares(given: Mapping[str, Any]) -> Ran:
    told: dict[str, Any] = {}

    def ended(item: int, outcome: int | StatekeeperError) -> None:
        told[str(item)] = outcome.code if isinstance(outcome, StatekeeperError) else outcome

    # By its importable name: the workers do not have this module as __main__.
    from tests.support import on_a_cluster as named

    try:
        SparkExecutor(memory_bytes=0).map(named.SquareEach(**given["task"]), range(given["items"]), ended)
    except RuntimeError as error:
        return Ran(1, told, str(error))
    return Ran(0, told, "")


def _main(file: Path) -> None:
    from pyspark.sql import SparkSession

    from statekeeper.statestore.cli import main

    given = json.loads(file.read_text())
    builder = SparkSession.builder.master(f"local-cluster[{given['executors']},1,512]").appName("a test")
    for name, value in {**SETTINGS, **given["settings"]}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    kill_after: float | None = None
    for command in given["commands"]:
        if isinstance(command, float | int):
            kill_after = command
            continue
        if isinstance(command, dict):
            print(json.dumps(_squares(command)._asdict()), flush=True)
            continue
        if kill_after is not None:
            threading.Timer(kill_after, _kill_an_executor).start()
            kill_after = None
        out, err = io.StringIO(), io.StringIO()
        code = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                # Without its standalone mode, click returns the exit code of an error.
                code = main([*command, "--output", "json"], obj=MAINTAINER, standalone_mode=False) or 0
            except SystemExit as end:
                code = int(end.code or 0)
        text = out.getvalue()
        printed = json.loads(text) if text.strip() else {}
        print(json.dumps({"exit_code": code, "printed": printed, "errors": err.getvalue()}), flush=True)
    session.stop()


def _kill_an_executor() -> None:
    """Kill one JVM of the executors, and so its Python workers."""
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline()):
                print(f"killed executor {one.pid} at {SystemClock().now_seconds()}", file=sys.stderr, flush=True)
                one.send_signal(signal.SIGKILL)
                return


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
