"""A native Spark query with one aggregation, its settings, and the measurements around it.

Holds two sets of settings: Spark's defaults, and those that `docs/how-to/spark-queries.md` names for Statekeeper.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery

from statekeeper.pipelines.startup.session import S3A_PACKAGES, spark_session
from tests.support.s3_server import CREDENTIALS, S3Server

MAINTENANCE_SECONDS = 6
_STATE_STORE = "spark.sql.streaming.stateStore."
SPARK_DEFAULTS: Mapping[str, str] = {
    "spark.sql.shuffle.partitions": "4",
    f"{_STATE_STORE}checkpointFormatVersion": "1",
    f"{_STATE_STORE}maintenanceInterval": f"{MAINTENANCE_SECONDS}s",
    f"{_STATE_STORE}minDeltasForSnapshot": "10",
    f"{_STATE_STORE}forceSnapshotUploadOnLag": "true",
    "spark.sql.streaming.minBatchesToRetain": "100",
}
"""Spark's defaults with RocksDB and changelogs, except for the number of partitions and the maintenance interval."""
FOR_STATEKEEPER: Mapping[str, str] = {
    **SPARK_DEFAULTS,
    f"{_STATE_STORE}minDeltasForSnapshot": "2147483647",
    f"{_STATE_STORE}forceSnapshotUploadOnLag": "false",
    "spark.sql.streaming.minBatchesToRetain": "1000000",
}
"""The settings of `docs/how-to/spark-queries.md` for structure V1."""

_MAINTENANCE_THREADS = "state-store-maintenance"
_TIMEOUT_SECONDS = 900.0
_POLL_SECONDS = 0.005


def session(server: S3Server | None = None) -> SparkSession:
    """Start Spark in local mode; `s3a://` is the server."""
    spark = spark_session("statekeeper-benchmark", master="local[2]", packages=S3A_PACKAGES if server else ())
    if server is None:
        return spark
    options = {
        "endpoint": server.endpoint,
        "endpoint.region": CREDENTIALS["region"],
        "access.key": CREDENTIALS["key"],
        "secret.key": CREDENTIALS["secret"],
        "path.style.access": "true",
    }
    hadoop: Any = spark._jsc.hadoopConfiguration()
    for name, value in options.items():
        hadoop.set(f"fs.s3a.{name}", value)
    return spark


@dataclass(frozen=True, kw_only=True)
class NativeQuery:
    """Counts and sums `rows` rows a batch over `keys` keys; Spark keeps the state at `checkpoint`."""

    spark: SparkSession
    checkpoint: str
    settings: Mapping[str, str]
    rows: int
    keys: int

    def start(self, trigger_seconds: float = 0) -> StreamingQuery:
        """Start the query, or restart it from its checkpoint."""
        for name, value in self.settings.items():
            self.spark.conf.set(name, value)
        source = self.spark.readStream.format("rate-micro-batch").option("numPartitions", 1)
        stream = source.option("rowsPerBatch", self.rows).load()
        # A multiplier that shares no factor with the number of keys spreads the keys over the batches.
        key = F.expr(f"pmod(value * 7919, {self.keys})").alias("key")
        counts = stream.groupBy(key).agg(F.count("value").alias("n"), F.sum("value").alias("total"))
        writer = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", self.checkpoint)
        return writer.trigger(processingTime=f"{trigger_seconds:g} seconds").start()

    def run(self, batches: int, trigger_seconds: float = 0, begin: Callable[[], None] = lambda: None) -> int:
        """Start the query, and stop it after at least this many batches.

        Calls `begin` when the first batch after the start is committed. Returns the number of batches since its end.
        """
        query = self.start(trigger_seconds)
        first = _newest_batch(query, -1)
        begin()
        first = _newest_batch(query, first)
        newest = _newest_batch(query, first + batches)
        query.stop()
        return newest - first

    def restart_seconds(self) -> float:
        """Restart the query. Return the seconds until its first batch is committed."""
        commits = Path(self.checkpoint) / "commits"
        newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        started = time.perf_counter()
        query = self.start()
        while not (commits / str(newest + 1)).exists():
            _require_running(query, started)
        seconds = time.perf_counter() - started
        query.stop()
        return seconds


def _newest_batch(query: StreamingQuery, at_least: int) -> int:
    """Wait for a batch. Returns the newest one."""
    started = time.perf_counter()
    while (progress := query.lastProgress) is None or int(progress["batchId"]) < at_least:
        _require_running(query, started)
        time.sleep(0.05)
    return int(progress["batchId"])


def _require_running(query: StreamingQuery, started: float) -> None:
    time.sleep(_POLL_SECONDS)
    if not query.isActive:
        raise RuntimeError("the query ended") from query.exception()
    if time.perf_counter() - started > _TIMEOUT_SECONDS:
        raise TimeoutError(f"no batch in {_TIMEOUT_SECONDS:.0f} s")


def maintenance_cpu_seconds(spark: SparkSession) -> float:
    """The CPU seconds that Spark's maintenance threads have used so far in this JVM."""
    threads: Any = spark._jvm.java.lang.management.ManagementFactory.getThreadMXBean()  # type: ignore[union-attr]
    nanoseconds = 0
    for thread in threads.getAllThreadIds():
        info = threads.getThreadInfo(thread)
        if info is not None and str(info.getThreadName()).startswith(_MAINTENANCE_THREADS):
            nanoseconds += max(0, int(threads.getThreadCpuTime(thread)))
    return nanoseconds / 1e9


@dataclass(frozen=True)
class VerbRun:
    """Seconds and CPU seconds of a verb's whole process."""

    seconds: float
    cpu_seconds: float


def environment(server: S3Server | None) -> dict[str, str]:
    """Return the environment of a process that has access to the server."""
    access = {
        "AWS_ACCESS_KEY_ID": CREDENTIALS["key"],
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS["secret"],
        "AWS_REGION": CREDENTIALS["region"],
    }
    return {**os.environ, **access, **({"AWS_ENDPOINT_URL": server.endpoint} if server else {})}


class Resident:
    """A process `statekeeper maintain --all --watch` over one checkpoint, in mode full."""

    def __init__(self, folder: Path, root: str, server: S3Server, *, watch_seconds: float) -> None:
        self._state = folder / "state.json"
        configuration = folder / "fleet.toml"
        configuration.write_text(f'[roots.query]\nurl = "{root}"\nmode = "full"\n')
        command = [sys.executable, "-m", "statekeeper", "--config", str(configuration), "maintain", "--all"]
        command += ["--watch", f"{watch_seconds:g}s", "--state", str(self._state)]
        self._log = (folder / "maintain.log").open("w")
        self._process = subprocess.Popen(
            command, env=environment(server), stdout=self._log, stderr=subprocess.STDOUT, text=True
        )

    def visits(self) -> int:
        """Return the number of its visits to the query."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the process ended: {Path(self._log.name).read_text()}")
        if not self._state.exists():
            return 0
        queries = json.loads(self._state.read_text())["queries"]
        return int(queries["query"]["totals"]["visits"]) if "query" in queries else 0

    def cpu_seconds(self) -> float:
        """Return the CPU that it has used."""
        after_name = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()
        self._log.close()


def statekeeper(arguments: Iterable[str], server: S3Server | None = None) -> VerbRun:
    """Run a verb in a process of its own."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "statekeeper", *arguments]
    done = subprocess.run(command, env=environment(server), capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return VerbRun(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


@dataclass(frozen=True)
class Requests:
    """Requests by Amazon's price class. Amazon does not charge for deletions."""

    writes: int = 0
    """PUT, COPY, POST and LIST."""
    reads: int = 0
    """GET and HEAD."""

    @property
    def dollars(self) -> float:
        """The price in us-east-1, S3 Standard, 2026."""
        return self.writes * DOLLARS_PER_WRITE + self.reads * DOLLARS_PER_READ

    def times(self, factor: float) -> Requests:
        """Return the requests of a longer time or of more stores."""
        return Requests(round(self.writes * factor), round(self.reads * factor))

    def plus(self, other: Requests) -> Requests:
        """Return the requests of both."""
        return Requests(self.writes + other.writes, self.reads + other.reads)


DOLLARS_PER_WRITE = 0.005 / 1000
DOLLARS_PER_READ = 0.0004 / 1000


class Of(Enum):
    """What a request concerns: a changelog, another file of a store, or the rest of the checkpoint."""

    CHANGELOG = 1
    STORE = 2
    REST = 3


class CountingS3Server(S3Server):
    """Counts the requests that it answers, by what they concern, and by price class."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[Of, bool]] = Counter()

    def reset(self) -> None:
        """Count from zero."""
        self._counts.clear()

    def requests(self, of: Of) -> Requests:
        """Return the requests so far."""
        return Requests(self._counts[of, True], self._counts[of, False])

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        is_list = "list-type" in query
        if method != "DELETE" and not (method == "POST" and query.split("=")[0] == "delete"):
            uri = environ["RAW_URI"].replace("%2F", "/")
            of = Of.REST if "/state/0/" not in uri else Of.CHANGELOG if ".changelog" in uri else Of.STORE
            self._counts[of, method in ("PUT", "POST") or is_list] += 1
        return super()._answer(environ, start)
