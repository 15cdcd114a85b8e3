"""Cost of the maintenance of a native Spark query: CPU in the executors, requests to S3 and their price."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.measure import Table
from benchmarks.native_query import (
    DOLLARS_PER_READ,
    DOLLARS_PER_WRITE,
    FOR_STATEKEEPER,
    MAINTENANCE_SECONDS,
    SPARK_DEFAULTS,
    CountingS3Server,
    NativeQuery,
    Of,
    Requests,
    Resident,
    maintenance_cpu_seconds,
    session,
)

PRICED_BATCHES = 110
STORES = 200

_ROWS = 2_000
_KEYS = 100_000
MEASURED_STORES = 4
_BATCH_SECONDS = 10
_COMPRESSION = 60 // MAINTENANCE_SECONDS
_COMPRESSED_BATCH_SECONDS = _BATCH_SECONDS / _COMPRESSION
_DUE_BATCHES = 50
"""The default of `snapshot.changelogs`."""
_MOST_DELAY = 1.2
_MONTH_BATCHES = 30 * 24 * 3600 / _BATCH_SECONDS


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark. The number of rounds is fixed: a round takes minutes."""
    del options
    server = CountingS3Server()
    server.start()
    try:
        spark = session(server)
        try:
            with_defaults = priced(spark, server, SPARK_DEFAULTS, outside=False)
            configured = priced(spark, server, FOR_STATEKEEPER, outside=True)
        finally:
            spark.stop()
    finally:
        server.stop()
    return [_price_table(with_defaults, configured)]


@dataclass(frozen=True, kw_only=True)
class Side:
    """The cost of one query on S3 during `batches` batches, and the cost of Statekeeper's work on its checkpoint.

    of_changelogs, of_stores, of_query   requests for changelogs, for other files of stores, and for the rest
    """

    batches: int
    of_changelogs: Requests
    of_stores: Requests
    of_query: Requests
    executor_cpu_seconds: float
    outside_cpu_seconds: float
    outside_batches: int

    @property
    def month(self) -> Requests:
        """Return the requests of a query of `STORES` stores in 30 days."""
        whole = self.of_changelogs.plus(self.of_stores).times(STORES / MEASURED_STORES).plus(self.of_query)
        return whole.times(_MONTH_BATCHES / self.batches)

    def per_thousand(self, seconds: float) -> str:
        return f"{seconds * 1000 / self.batches:.1f} s"


def priced(
    spark: SparkSession,
    server: CountingS3Server,
    settings: Mapping[str, str],
    *,
    outside: bool,
    rows: int = _ROWS,
    keys: int = _KEYS,
) -> Side:
    """Run a query on S3 while the server counts, and Statekeeper beside it if it works `outside`."""
    path = f"{server.make_bucket()}/query/checkpoint"
    query = NativeQuery(spark=spark, checkpoint=f"s3a://{path}", settings=settings, rows=rows, keys=keys)
    seconds_before = started = cpu_before = cpu_after = 0.0
    visits = 0
    resident: Resident | None = None

    def begin() -> None:
        nonlocal seconds_before, started, resident, cpu_before, visits
        if outside:
            resident = Resident(Path(folder), f"s3://{path}", server, watch_seconds=MAINTENANCE_SECONDS)
            while not (visits := resident.visits()):
                time.sleep(0.1)
            cpu_before = resident.cpu_seconds()
        started = time.perf_counter()
        server.reset()
        seconds_before = maintenance_cpu_seconds(spark)

    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as folder:
        batches = query.run(PRICED_BATCHES, _COMPRESSED_BATCH_SECONDS, begin)
        if resident is not None:
            visits = resident.visits() - visits
            cpu_after = resident.cpu_seconds()
            resident.stop()
    pace = (time.perf_counter() - started) / batches
    if pace > _MOST_DELAY * _COMPRESSED_BATCH_SECONDS:
        # Spark's maintenance runs by the clock: with slower batches its cost per batch would be overstated.
        raise RuntimeError(
            f"a batch took {pace:.1f} s, not {_COMPRESSED_BATCH_SECONDS:g} s: use a machine that is idle"
        )
    cpu_seconds = maintenance_cpu_seconds(spark) - seconds_before
    return Side(
        batches=batches,
        of_changelogs=server.requests(Of.CHANGELOG),
        of_stores=server.requests(Of.STORE),
        of_query=server.requests(Of.REST),
        executor_cpu_seconds=cpu_seconds,
        outside_cpu_seconds=cpu_after - cpu_before,
        outside_batches=visits * _DUE_BATCHES,
    )


def _price_table(spark: Side, ours: Side) -> Table:
    sides, months = (spark, ours), (spark.month, ours.month)
    outside = f"{ours.outside_cpu_seconds * 1000 / ours.outside_batches:.1f} s"
    return Table(
        title=f"Maintenance and requests of a native query on S3, a batch every {_BATCH_SECONDS} s",
        columns=["", "Spark's defaults", "configured for Statekeeper"],
        rows=[
            ["CPU of maintenance in executors, 1,000 batches, 4 stores"]
            + [one.per_thousand(one.executor_cpu_seconds) for one in sides],
            ["CPU of maintenance outside, 1,000 batches, 4 stores", "0.0 s", outside],
            [f"PUT, COPY, POST and LIST requests a month, {STORES} stores"] + [f"{one.writes:,}" for one in months],
            [f"GET and HEAD requests a month, {STORES} stores"] + [f"{one.reads:,}" for one in months],
            [f"dollars a month for requests, {STORES} stores"] + [f"{one.dollars:,.0f}" for one in months],
        ],
        targets=[
            f"CPU outside the query, Statekeeper to Spark's own maintenance: "
            f"{ours.outside_cpu_seconds / ours.outside_batches / (spark.executor_cpu_seconds / spark.batches):.2f}x",
            f"dollars a month, Spark's defaults to Statekeeper: {months[0].dollars / months[1].dollars:.2f}x",
        ],
        notes=[
            f"One round of {spark.batches} and {ours.batches} batches, {MEASURED_STORES} stores, structure V1. Requests "
            f"to the stores are multiplied by {STORES} / {MEASURED_STORES}; those to the rest of the checkpoint are not.",
            f"Time is compressed {_COMPRESSION} times: a batch every {_COMPRESSED_BATCH_SECONDS:g} s and "
            f"Spark's maintenance every {MAINTENANCE_SECONDS} s stand for {_BATCH_SECONDS} s and 60 s.",
            "Statekeeper: one process `statekeeper maintain --all --watch 60s` in mode full. Its start and its first visit "
            f"are not in the CPU, and {ours.outside_batches // _DUE_BATCHES} visits are, one for each {_DUE_BATCHES} "
            "batches. Its requests are in the figures.",
            "CPU in executors: Spark's maintenance threads. The RocksDB checkpoint that a task takes for a snapshot, and "
            "the threads of the S3 client, are not in it.",
            f"Prices of S3 Standard in us-east-1: {DOLLARS_PER_WRITE * 1000:g} dollars per 1,000 PUT, COPY, POST and LIST "
            f"requests, {DOLLARS_PER_READ * 1000:g} per 1,000 GET and HEAD requests, deletions free. Storage and transfer "
            "are not in it.",
            "Limit of the CPU: Statekeeper fetches each changelog, which an executor has on its disk. Limit of the "
            "dollars: most requests are those of the query itself through S3A, which maintenance cannot change.",
            "An S3 server on the same machine counts the requests. Spark reaches it through S3A with its defaults.",
        ],
    )
