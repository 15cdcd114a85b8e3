"""Runs commands of Statekeeper in a Spark application on a small cluster: two or three executors, each a JVM of its own.

    python -m tests.support.on_a_cluster '{"executors": 2, "settings": {}}'

reads one command in each line, as JSON: a list of arguments; or a number: seconds after which an executor is killed while
the next command runs; or the settings of `SquareEach`; or `{"pipes": …}`, the variables with which a client of Dagster
Pipes starts `work_on_spark`. It prints one line of JSON for each: the exit code of a command and the object that it
printed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
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


class _Application:
    """A running application."""

    def __init__(self, executors: int, settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - for what Spark prints, until it ends
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.on_a_cluster",
                json.dumps({"executors": executors, "settings": dict(settings)}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **environment},
        )
        self._printed: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"exit_code"'):
                self._printed.put(line)
        self._printed.put("")

    def run(self, command: Sequence[str] | float | Mapping[str, Any], seconds: float) -> list[Ran]:
        """Run a command; a number runs with the next one. Raises `AssertionError` if the application ends before."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(command)}\n")
        self._process.stdin.flush()
        if isinstance(command, float | int):
            return []
        try:
            line = self._printed.get(timeout=seconds)
        except Empty:
            line = ""
        if not line:
            self._log.seek(0)
            said = self._log.read()[-6000:].decode(errors="replace")
            raise AssertionError(f"the application ended, or did not finish {command} within {seconds} s\n{said}")
        return [Ran(**json.loads(line))]

    def kill_when(self, is_time: Callable[[], bool]) -> None:
        """Kill the driver. Spark ends its JVM, and so the executors."""
        while self.is_alive and not is_time():
            SystemClock().sleep(0.01)
        self._process.kill()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End the application."""
        assert self._process.stdin is not None
        if self._log.closed:
            return
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


_shared: list[_Application] = []


def _shared_application() -> _Application:
    """The application of this process of pytest: a start costs ten seconds."""
    if not _shared or not _shared[0].is_alive:
        _shared.clear()
        _shared.append(_Application(2, {}, {}))
        atexit.register(_shared[0].stop)
    return _shared[0]


def on_a_cluster(
    *commands: Sequence[str] | float | Mapping[str, Any],
    executors: int = 2,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = 240,
) -> list[Ran]:
    """Run commands in an application: one of their own if they change it. A number: seconds after which an executor is
    killed while the next command runs."""
    if (
        executors == 2
        and not settings
        and not environment
        and not any(isinstance(one, float | int) for one in commands)
    ):
        application = _shared_application()
        return [ran for one in commands for ran in application.run(one, seconds)]
    # A test that kills an executor would find those of the shared application.
    while _shared:
        _shared.pop().stop()
    application = _Application(executors, settings or {}, environment or {})
    try:
        return [ran for one in commands for ran in application.run(one, seconds)]
    finally:
        application.stop()


def killed_when(is_time: Callable[[], bool], command: Sequence[str]) -> None:
    """Run a command in an application of its own, and kill its driver as soon as `is_time`. Raises `AssertionError`."""
    application = _Application(2, {}, {})
    threading.Thread(target=application.kill_when, args=(is_time,), daemon=True).start()
    try:
        application.run(command, 240)
    finally:
        application.stop()


@dataclass(frozen=True)
class SquareEach:
    """A task. Its worker dies of the item `deadly`; the item `defect` divides by zero. With `counts_frozen`, it returns the
    number of objects that garbage collections of its worker leave out."""

    deadly: int = -1
    defect: int = -1
    counts_frozen: bool = False

    @property
    def storages(self) -> Sequence[Storage]:
        return ()

    def __call__(self, item: int, place: Place) -> int:
        if item == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if item == self.defect:
            raise ZeroDivisionError(item)
        return gc.get_freeze_count() if self.counts_frozen else item * item


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


def _worked(variables: Mapping[str, str]) -> Ran:
    """Do the work that a run of Dagster asks for, as the application of `spark-submit` does. Shows its jobs of Spark."""
    from dagster_pipes import PipesContext
    from pyspark import SparkContext

    from statekeeper.dagster import work_on_spark

    known: Any = SparkContext.getOrCreate()._jsc.sc().statusStore()
    os.environ.update(variables)
    before = known.jobsList(None).size()
    try:
        work_on_spark()
    finally:
        # A process does one work; this one does several.
        PipesContext._instance = None
    return Ran(0, {"jobs": known.jobsList(None).size() - before}, "")


def _main(given: Mapping[str, Any]) -> None:
    from pyspark.sql import SparkSession

    from statekeeper.statestore.cli import main

    builder = SparkSession.builder.master(f"local-cluster[{given['executors']},1,512]").appName("a test")
    for name, value in {**SETTINGS, **given["settings"]}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    kill_after: float | None = None
    for command in map(json.loads, sys.stdin):
        if isinstance(command, float | int):
            kill_after = command
            continue
        if isinstance(command, dict):
            ran = _worked(command["pipes"]) if "pipes" in command else _squares(command)
            print(json.dumps(ran._asdict()), flush=True)
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
    _main(json.loads(sys.argv[1]))
