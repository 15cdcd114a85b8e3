"""Cost of `statekeeper maintain --all --watch` for a fleet on S3: CPU and requests of an idle and of a busy hour, beside
Spark's own maintenance in a busy hour.

The S3 server has a process of its own, so the CPU is that of the maintaining process alone. Of Spark, the CPU is that of
its maintenance threads.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.maintenance_cost import MEASURED_STORES, PRICED_BATCHES, priced
from benchmarks.measure import Spread, Table
from benchmarks.native_query import SPARK_DEFAULTS, CountingS3Server, session
from benchmarks.s3_process import s3_process
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.maintenance.rounds.memory import Memory
from statekeeper.statestore.maintenance.rounds.rounds import SWEEP_SECONDS, Rounds
from statekeeper.statestore.maintenance.rounds.visit import Visit
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.verbs.config import Configuration, Policies, Root
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Run
from statekeeper.statestore.storage import StorageSpec, at_once, open_storage
from tests.support.checkpoints import Checkpoint, copy_files

QUERIES = 50
STORES = 200
_MEASURED_STORES = 50
BATCH_SECONDS = 10
WATCH_SECONDS = 60
_DUE_BATCHES = 50
"""The default of `snapshot.changelogs`."""
_KEYS = 10
_IDLE_LOOKS = 5
_BATCHES_OF_KEYS = 7
"""After as many batches, the keys repeat."""


@dataclass(frozen=True)
class _Cost:
    """CPU seconds and requests."""

    cpu_seconds: float
    requests: int

    def times(self, factor: float) -> _Cost:
        return _Cost(self.cpu_seconds * factor, round(self.requests * factor))

    def plus(self, other: _Cost) -> _Cost:
        return _Cost(self.cpu_seconds + other.cpu_seconds, self.requests + other.requests)


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name, s3_process() as bucket:
        folder = Path(name)
        ticks = _ticks(folder / "small", bucket, options.rounds)
        first, again, busy = _visits(folder / "files", bucket, in_batch_logs=False)
        logged_first, logged_again, logged_busy = _visits(folder / "logs", bucket, in_batch_logs=True)
    of_spark = _sparks_maintenance()
    tick = Spread.of([one.cpu_seconds for one in ticks])
    looks = 3600 / WATCH_SECONDS
    of_ticks = _Cost(tick.median, ticks[-1].requests).times(looks)
    visits_an_hour = QUERIES * 3600 / (BATCH_SECONDS * _DUE_BATCHES)
    rows: list[list[str]] = []
    for layout, of_first, of_again, of_busy in (
        ("a changelog per store", first, again, busy),
        ("one object per batch", logged_first, logged_again, logged_busy),
    ):
        idle_hour = of_ticks.plus(of_again.times(QUERIES))
        busy_hour = of_ticks.plus(of_busy.times(visits_an_hour))
        for what, cost in (
            ("first visit of a query", of_first),
            ("visit of an idle query", of_again),
            (f"visit after {_DUE_BATCHES} batches", of_busy),
            (f"an idle hour of {QUERIES} queries", idle_hour),
            (f"a busy hour of {QUERIES} queries", busy_hour),
        ):
            rows.append([f"{layout}: {what}", f"{cost.cpu_seconds:,.2f} s", f"{cost.requests:,}"])
    idle = of_ticks.plus(again.times(QUERIES))
    share = of_ticks.plus(busy.times(visits_an_hour)).cpu_seconds / (2 * 3600)
    logged_share = of_ticks.plus(logged_busy.times(visits_an_hour)).cpu_seconds / (2 * 3600)
    return [
        Table(
            title=f"A fleet of {QUERIES} queries with {STORES} stores each on S3, maintained by one process",
            columns=["", "CPU", "requests"],
            rows=[
                ["look without a due query", f"{tick.shown(3, ' s')}", f"{ticks[-1].requests:,}"],
                *rows,
                [
                    f"Spark's own maintenance: a busy hour of {QUERIES} queries",
                    f"{of_spark.cpu_seconds:,.2f} s",
                    f"{of_spark.requests:,}",
                ],
            ],
            targets=[
                _verdict("CPU of a look without a due query", tick.median, 0.1, " s"),
                _verdict("CPU of an idle hour", idle.cpu_seconds, 20.0, " s"),
                _verdict("share of two cores in a busy hour, a changelog per store", share, 1.0, ""),
                _verdict("share of two cores in a busy hour, one object per batch", logged_share, 1.0, ""),
            ],
            notes=[
                f"A look every {WATCH_SECONDS} s. Idle: a visit of each query every {SWEEP_SECONDS / 60:.0f} minutes. "
                f"Busy: a batch of each query every {BATCH_SECONDS} s, so a visit of each after {_DUE_BATCHES} batches.",
                f"Measured: looks at {QUERIES} small roots, whose cost does not depend on the stores; visits of one root "
                f"of a job with {_MEASURED_STORES} stores in structure V2 and mode full, {_KEYS} keys a batch and store, "
                f"multiplied by {STORES} / {_MEASURED_STORES}. The hours are calculated from these.",
                f"Spark's own maintenance: measured for {PRICED_BATCHES} batches of one query with {MEASURED_STORES} "
                "stores in structure V1, Spark's defaults, as many keys a batch and store; multiplied. Batches and "
                "maintenance follow each other ten times as fast. CPU of the maintenance threads only, without the threads "
                "that RocksDB and S3A start. Requests to the stores, except for changelogs, which the query itself writes, "
                "and except for deletions.",
                "Statekeeper's requests are of all kinds. The S3 server is a Python process on the same machine.",
                "Limit: with a changelog per store, each changelog is one GET, and it is replayed. One object per batch is "
                "one GET a batch. Busy visits are measured once.",
            ],
        )
    ]


def _ticks(folder: Path, bucket: StorageSpec, rounds: int) -> list[_Cost]:
    """Look at the whole fleet while no query is due."""
    first = Checkpoint(open_storage(str(folder / "root")), folder / "job", partitions=1)
    first.grow(2)
    specs = {f"q{number:02}": replace(bucket, url=f"{bucket.url}/small/q{number:02}") for number in range(QUERIES)}
    for spec in specs.values():
        copy_files(first.storage, open_storage(spec))
    look, _ = _maintainer(specs)
    look(False)  # the first visits
    return [look(False) for _ in range(rounds)]


def _visits(folder: Path, bucket: StorageSpec, *, in_batch_logs: bool) -> tuple[_Cost, _Cost, _Cost]:
    """Visit a query for the first time, when nothing is new, and when it has as many new batches as make it due."""
    made = Checkpoint(
        open_storage(str(folder / "root")), folder / "job", partitions=_MEASURED_STORES, in_batch_logs=in_batch_logs
    )
    spec = replace(bucket, url=f"{bucket.url}/{folder.name}")
    target = open_storage(spec)
    sent: set[str] = set()

    def grow(batches: int) -> None:
        for _ in range(batches):
            number = len(made.versions)
            rows = {b"key %d %d" % (number % _BATCHES_OF_KEYS, key): b"%d" % number for key in range(_KEYS)}
            made.batch(*(rows for _ in range(_MEASURED_STORES)))
        new = [entry.path for entry in made.storage.list("") if entry.path not in sent]

        def send(path: str) -> None:
            target.create(path, made.storage.read(path))

        at_once(send, new)
        sent.update(new)

    grow(_DUE_BATCHES)
    look, visits = _maintainer({"query": spec})
    first = look(True)
    look(True)  # finds nothing to do
    # Milliseconds, so that a collection of garbage would be most of it.
    again = sorted((look(True) for _ in range(_IDLE_LOOKS)), key=lambda one: one.cpu_seconds)[_IDLE_LOOKS // 2]
    grow(_DUE_BATCHES)
    busy = look(False)
    assert len(visits[-1].taken.taken) == _MEASURED_STORES, "the new batches made the query due"
    factor = STORES / _MEASURED_STORES
    return first.times(factor), again.times(factor), busy.times(factor)


def _sparks_maintenance() -> _Cost:
    """The busy hour of Spark's own maintenance for the same fleet."""
    server = CountingS3Server()
    server.start()
    try:
        spark = session(server)
        rows, keys = MEASURED_STORES * _KEYS, MEASURED_STORES * _KEYS * _BATCHES_OF_KEYS
        try:
            side = priced(spark, server, SPARK_DEFAULTS, outside=False, rows=rows, keys=keys)
        finally:
            spark.stop()
    finally:
        server.stop()
    batches = QUERIES * 3600 / BATCH_SECONDS
    requests = side.of_stores.reads + side.of_stores.writes
    return _Cost(side.executor_cpu_seconds, requests).times(batches / side.batches * STORES / MEASURED_STORES)


def _maintainer(specs: dict[str, StorageSpec]) -> tuple[Callable[[bool], _Cost], list[Visit]]:
    """Return what makes a round, also over queries that are not due, and measures it; and the visits so far."""
    clock, visits = SystemClock(), list[Visit]()
    by = Maintainer("a benchmark", clock, RandomIds())
    policies = Policies(retention=RetentionPolicy(versions=100, grace_seconds=0))
    roots = {name: Root(name, spec, policies) for name, spec in specs.items()}
    opened = {name: open_storage(spec, is_hurried=False) for name, spec in specs.items()}
    scratch = Path(tempfile.gettempdir())

    def run_of(root: Root, workers: int) -> Run:
        return Run(storage=opened[root.name], policies=policies, by=by, scratch=scratch, workers=workers)

    rounds = Rounds("fleet", lambda: Configuration(roots), run_of, Memory(), clock=clock, visited=visits.append)

    def look(everything: bool) -> _Cost:
        before = len(visits)
        started = time.process_time()
        rounds.round(everything=everything)
        cpu_seconds = time.process_time() - started
        requests = sum(one.requests.total for one in visits[before:])
        # Each look lists the commit log of each query.
        return _Cost(cpu_seconds, requests + len(specs))

    return look, visits


def _verdict(what: str, value: float, target: float, unit: str) -> str:
    reached = "reached" if value <= target else "missed"
    return f"{what}: {value:,.2f}{unit}, target at most {target:g}{unit}: {reached}"
