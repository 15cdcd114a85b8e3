"""The Sparks of other environments, a process each, and queries that run in them as `NativeQuery` does in this one."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import quick_spark
from tests.support.native import OPERATORS, NativeQuery

REPOSITORY = Path(__file__).resolve().parents[3]
ENVIRONMENTS = REPOSITORY / "var" / "sparks"
MINORS = ("3.5", "4.0", "4.1", "4.2", "4.3")
_JAVA = {"JDK_JAVA_OPTIONS": quick_spark.java_options(), "SPARK_LOCAL_IP": "127.0.0.1"}


class Refused(Exception):
    """Spark's error for a request that it rejected."""


class RemoteSpark:
    """A Spark in its own process, for queries of one structure."""

    def __init__(self, minor: str, structure: str, log: Path) -> None:
        self.minor = minor
        python = ENVIRONMENTS / minor / "bin" / "python"
        if not python.exists():
            raise FileNotFoundError(f"no environment of Spark {minor}: `make sparks` makes it")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as said:
            self._process = subprocess.Popen(
                [str(python), "-m", "tests.interop.sparks.child", structure],
                cwd=REPOSITORY,
                env={**_JAVA, **os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self.log = log
        self.version: str = self._answer()["version"]

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Do something. Raises `Refused`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps({'do': do, **what})}\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "refused" in answer:
            raise Refused(answer["refused"])
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Spark {self.minor} died: {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Sparks:
    """Started as they are asked for, one of each release, and of 4.0 one for each structure."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[tuple[str, str], RemoteSpark] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for spark in self._running.values():
            spark.stop()

    def get(self, minor: str, structure: str) -> RemoteSpark:
        """The Spark of a minor release, for queries of this structure; all but 4.0 run those of either in one process."""
        structure = structure if minor == "4.0" else "1"
        if (minor, structure) not in self._running:
            self._running[minor, structure] = RemoteSpark(minor, structure, self._logs / f"{minor}-V{structure}.log")
        return self._running[minor, structure]

    def drop_dead(self) -> None:
        """Those whose process has ended are started again when they are asked for."""
        self._running = {which: spark for which, spark in self._running.items() if spark.is_alive}


class RemoteQuery(NativeQuery):
    """A query in another process. `spark` runs its next batches, and can be replaced by another release."""

    spark: RemoteSpark

    def __init__(self, spark: RemoteSpark, folder: Path, name: str, confs: Mapping[str, str]) -> None:
        super().__init__(spark, folder, OPERATORS[name], confs)
        self.confs = dict(confs)
        self._asked: dict[str, Any] = {"operator": name, "folder": str(folder)}

    @property
    def asked(self) -> dict[str, Any]:
        """Which query a request is of."""
        return {**self._asked, "confs": self.confs, "checkpoint": str(self.checkpoint)}

    def repartition(self, partitions: int) -> None:
        self.spark.ask("repartition", partitions=partitions, **self.asked)

    def run(self, batches: int) -> None:
        done, self.batches = self.batches, self.batches + batches
        answer = self.spark.ask("run", done=done, batches=batches, **self.asked)
        self.outputs.update({int(batch): Counter(rows) for batch, rows in answer["outputs"].items()})


def state(query: RemoteQuery, *, spark: RemoteSpark | None = None) -> dict[str, Counter[str]]:
    """As `native.state`, by the query's Spark or by another."""
    answer = (spark or query.spark).ask("state", **query.asked)
    return {view: Counter(rows) for view, rows in answer["state"].items()}


def views_as_json(query: RemoteQuery, *, spark: RemoteSpark | None = None) -> dict[str, list[str]]:
    """As `native.views_as_json`, by the query's Spark or by another."""
    views: dict[str, list[str]] = (spark or query.spark).ask("views", batch=None, **query.asked)["views"]
    return views
