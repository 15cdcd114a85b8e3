"""Figures of a running query: its objects, latencies, hedged requests and price.

The driver records them with each attempt, because the query's process is not the one that shows them in Dagster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

_SECONDS_OF_A_DAY = 24 * 3600


@dataclass(frozen=True)
class Prices:
    """Dollars per 1,000 requests. The defaults are those of S3 Standard in us-east-1 in 2026.

    per_1000_writes  PUT, COPY, POST and LIST
    per_1000_reads   GET and HEAD
    """

    per_1000_writes: float = 0.005
    per_1000_reads: float = 0.0004


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

    batches: int
    seconds: float
    writes: int = 0
    reads: int = 0
    hedges_sent: int = 0
    hedges_won: int = 0
    wait_seconds: float = 0.0
    record_bytes: int = 0
    members: int = 0
    record_milliseconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    uploaded_bytes: int = 0
    early_bytes: int = 0
    back_pressure_seconds: float = 0.0

    @property
    def early_share(self) -> float | None:
        """The share of the uploaded bytes that were in storage before the commit; None without uploads."""
        return self.early_bytes / self.uploaded_bytes if self.uploaded_bytes else None

    def dollars_a_day(self, prices: Prices) -> float:
        """Return the price of a day with as many requests per second."""
        dollars = (self.writes * prices.per_1000_writes + self.reads * prices.per_1000_reads) / 1000
        return dollars * _SECONDS_OF_A_DAY / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)

    @classmethod
    def parse(cls, body: object) -> QueryMetrics | None:
        """Parse the figures of a record; None if it has none, or others than this release knows. They are only shown, so
        a record without them is not an error."""
        if not isinstance(body, Mapping):
            return None
        known = {one.name for one in fields(cls)}
        found = {str(name): value for name, value in body.items() if name in known}
        percentiles = found.pop("record_milliseconds", None)
        if not isinstance(percentiles, list) or len(percentiles) != 3:
            return None
        numbers = [*found.values(), *percentiles]
        if not all(isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < 1e18 for one in numbers):
            return None
        first, second, third = (float(one) for one in percentiles)
        try:
            return cls(**found, record_milliseconds=(first, second, third))
        except TypeError:
            return None
