"""Figures of a running query: its objects, latencies, hedged requests and price.

The driver records them with each attempt, because the query's process is not the one that shows them in Dagster.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from msgspec import Meta

from statekeeper.statestore.format import json_records
from statekeeper.statestore.format.json_records import Count

_Figure = Annotated[float, Meta(ge=0, lt=1e18)]
_SECONDS_OF_A_DAY = 24 * 3600


@dataclass(frozen=True)
class Prices:
    """Dollars per 1,000 requests, and of storage. The defaults are those of S3 Standard in us-east-1 in 2026.

    per_1000_writes  PUT, COPY, POST and LIST
    per_1000_reads   GET and HEAD
    per_gb_month     10^9 bytes, stored for a month
    """

    per_1000_writes: float = 0.005
    per_1000_reads: float = 0.0004
    per_gb_month: float = 0.023

    def dollars(self, writes: int, reads: int) -> float:
        """Return the price of requests."""
        return (writes * self.per_1000_writes + reads * self.per_1000_reads) / 1000

    def dollars_of_storage(self, size_bytes: int) -> float:
        """Return the price of a month of storage."""
        return size_bytes / 1e9 * self.per_gb_month


@dataclass(frozen=True, kw_only=True)
class QueryMetrics:
    """Sums over the newest batches of one run of a query, at most 1,000.

    seconds                time from the first of these batches to the end of the last one
    writes, reads          requests of the driver and the tasks to the root, by price
    hedges_sent            requests that were sent a second time because they were slow
    hedges_won             those whose second reply came first
    wait_seconds           pauses before requests were sent again after a failure
    record_bytes           size of the newest record: a batch log, or the small file of an attempt
    members                number of changelogs in it; 0 without batch logs
    record_milliseconds    time to write a record, which delays the commit: p50, p99 and p999 of these batches
    uploaded_bytes         bytes of changelogs that tasks uploaded as own files
    early_bytes            the part of them that was in storage before the commit
    back_pressure_seconds  time that tasks waited for their own uploads before the commit
    """

    batches: Count
    seconds: _Figure
    writes: Count = 0
    reads: Count = 0
    hedges_sent: Count = 0
    hedges_won: Count = 0
    wait_seconds: _Figure = 0.0
    record_bytes: Count = 0
    members: Count = 0
    record_milliseconds: tuple[_Figure, _Figure, _Figure] = (0.0, 0.0, 0.0)
    uploaded_bytes: Count = 0
    early_bytes: Count = 0
    back_pressure_seconds: _Figure = 0.0

    @property
    def early_share(self) -> float | None:
        """The share of the uploaded bytes that were in storage before the commit; None without uploads."""
        return self.early_bytes / self.uploaded_bytes if self.uploaded_bytes else None

    def dollars_a_day(self, prices: Prices) -> float:
        """Return the price of a day with as many requests per second."""
        dollars = prices.dollars(self.writes, self.reads)
        return dollars * _SECONDS_OF_A_DAY / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)

    @classmethod
    def parse(cls, body: object) -> QueryMetrics | None:
        """Parse the figures of a record; None if it has none, or others than this release knows. They are only shown, so
        a record without them is not an error."""
        try:
            return None if body is None else json_records.converted(cls, body)
        except ValueError:
            return None
