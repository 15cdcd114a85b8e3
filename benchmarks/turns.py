"""Streaming queries of one session that take turns: one runs a batch while the others wait.

The duration of a batch is Spark's `triggerExecution`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import spark_peers

QUICK_MILLISECONDS = 20_000.0
_TIMEOUT_SECONDS = 1800.0
_POLL_SECONDS = 0.05

Start = Callable[[SparkSession, DataFrame, Path], StreamingQuery]


@dataclass(frozen=True, kw_only=True)
class Course:
    """Settings of one comparison."""

    keys: int
    rounds: int
    warm_up: int = 3
    unmeasured: int = 1
    measured: int = 2


@dataclass(kw_only=True)
class Contender:
    """One query, and the milliseconds of its batches by round."""

    name: str
    query: StreamingQuery
    inbox: Path
    fed: int = 0
    newest_milliseconds: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def is_quick(self) -> bool:
        """Whether the newest batch was short, so that the wait before a turn distorts its first batch."""
        return self.newest_milliseconds < QUICK_MILLISECONDS

    def feed(self, file: Path) -> None:
        """Add a file to the input."""
        hidden = self.inbox / f".{self.fed}"
        os.link(file, hidden)
        hidden.rename(self.inbox / f"{self.fed:05}.parquet")
        self.fed += 1

    def milliseconds(self, batch: int) -> float:
        """Wait for a batch, and return its duration in milliseconds."""
        until = monotonic() + _TIMEOUT_SECONDS
        while monotonic() < until:
            newest = self.query.lastProgress
            if newest is not None and newest["batchId"] >= batch:
                # Spark keeps a hundred of them, and to read them all takes longer than a look in the driver should.
                for progress in (newest, *reversed(self.query.recentProgress)):
                    if progress["batchId"] == batch and "addBatch" in progress["durationMs"]:
                        return float(progress["durationMs"]["triggerExecution"])
            if not self.query.isActive:
                raise RuntimeError(f"{self.name} stopped") from self.query.exception()
            sleep(_POLL_SECONDS)
        raise TimeoutError(f"{self.name}: batch {batch}")

    def next_milliseconds(self) -> float:
        """Wait for the batch after the newest one, and return its duration in milliseconds."""
        # Spark also reports triggers that ran no batch.
        batches = [one["batchId"] for one in self.query.recentProgress if "addBatch" in one["durationMs"]]
        return self.milliseconds(max(batches, default=-1) + 1)

    def run(self, file: Path) -> float:
        """Run one batch, and return its duration in milliseconds."""
        self.feed(file)
        self.newest_milliseconds = self.milliseconds(self.fed - 1)
        return self.newest_milliseconds


def compared(session: SparkSession, starts: Mapping[str, Start], course: Course) -> list[Contender]:
    """Run the queries in turns, in this order. Each has the same input."""
    # The workers maintain their local copies a little longer than a query runs.
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        file = input_files(folder / "input", course.keys)
        with contextlib.ExitStack() as running:
            contenders = [
                running.enter_context(started(session, who, start, folder / str(number)))
                for number, (who, start) in enumerate(starts.items())
            ]
            for contender in contenders:
                for _ in range(course.warm_up):
                    contender.run(next(file))
            for _ in range(course.rounds):
                for contender in contenders:
                    for _ in range(course.unmeasured if contender.is_quick else 0):
                        contender.run(next(file))
                    contender.rounds.append([contender.run(next(file)) for _ in range(course.measured)])
    return contenders


@contextlib.contextmanager
def started(session: SparkSession, name: str, start: Start, folder: Path) -> Iterator[Contender]:
    """Start a query on the files of a new folder."""
    inbox = folder / "inbox"
    inbox.mkdir(parents=True)
    own = session.newSession()
    query = start(own, spark_peers.stream(own, inbox), folder)
    try:
        yield Contender(name=name, query=query, inbox=inbox)
    finally:
        query.stop()


def batch_of_file() -> Column:
    """Return the number of the batch whose file has the row, for streams of `started`: see `Contender.feed`."""
    return F.substring("_metadata.file_name", 1, 5).cast("int")


def input_files(folder: Path, keys: int) -> Iterator[Path]:
    """Yield files with one row per key, in random order; four files repeat."""
    folder.mkdir()
    random = np.random.default_rng(keys)
    files = []
    for number in range(4):
        files.append(folder / f"{number}.parquet")
        columns = {"key": random.permutation(keys), "value": random.integers(0, 1000, keys)}
        pq.write_table(pa.table(columns), files[-1])
    while True:
        yield from files
