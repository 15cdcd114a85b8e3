"""The live status of a running job in the terminal, and the summary at its end."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from statekeeper.pipelines.batch.progress import BatchReport, Outcome, Phase
from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.checkpoint.lineage import LINEAGE_WARN_BYTES
from statekeeper.statestore.storage.query_metrics import Prices, QueryMetrics

_WINDOW_BATCHES = 200
_PLAIN_EVERY = 10
_LINEAGE_ITEM_BYTES = 76


@dataclass(kw_only=True)
class _Totals:
    batches: int = 0
    rows: int = 0
    changed_bytes: int = 0
    uploaded_bytes: int = 0
    requests: int = 0
    replayed: int = 0
    not_computed: int = 0
    commit_milliseconds: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW_BATCHES))
    batch_seconds: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_WINDOW_BATCHES))


class Status:
    """An `Observer` that shows the progress of a job: a live table on a terminal, otherwise a line from time to time.

    `stop_after`: number of batches after which `wanted_batches_are_done` is set. `beside`: name -> figure of a process
    beside the job; shown in the live table, or as a line when a figure changes (see `print_figures_beside`). `prices`: of
    requests; the default is S3 Standard.
    """

    def __init__(
        self,
        console: Console,
        clock: Clock,
        *,
        stop_after: int | None = None,
        beside: Callable[[], Iterable[tuple[str, str]]] = tuple,
        prices: Prices | None = None,
    ) -> None:
        self._prices = prices or Prices()
        self.wanted_batches_are_done = threading.Event()
        self._console = console
        self._clock = clock
        self._stop_after = stop_after
        self._beside = beside
        self._totals = _Totals()
        self._newest: BatchReport | None = None
        self._phase: tuple[int, Phase] | None = None
        self._is_stopping = False
        self._printed_beside: list[tuple[str, str]] = []
        self._started = clock.monotonic_seconds()
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._table, transient=True)

    def __enter__(self) -> Status:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def phase(self, batch: int, phase: Phase) -> None:
        self._phase = (batch, phase)

    def stopping(self) -> None:
        """Show that the job stops after the current batch."""
        self._is_stopping = True

    def finished(self, report: BatchReport) -> None:
        totals = self._totals
        stores = [store for partition in report.partitions for store in partition.stores]
        rows = sum(partition.rows_in for partition in report.partitions)
        totals.batches += 1
        totals.rows += rows
        totals.changed_bytes += sum(store.commit.changed_bytes for store in stores)
        totals.uploaded_bytes += sum(store.commit.uploaded_bytes for store in stores)
        totals.requests += report.driver_requests + sum(s.commit.requests + s.load.requests for s in stores)
        totals.replayed += sum(store.load.replayed_changelogs for store in stores)
        totals.not_computed += report.outcome is not Outcome.COMPUTED
        totals.commit_milliseconds.extend(s.commit.encode_milliseconds + s.commit.upload_milliseconds for s in stores)
        totals.batch_seconds.append((rows, sum(report.milliseconds.values()) / 1000))
        self._newest = report
        if not self._console.is_terminal and (totals.batches % _PLAIN_EVERY == 0 or totals.batches == self._stop_after):
            self._console.print(", ".join(f"{name} {value}" for name, value in self._figures()), soft_wrap=True)
        if self._stop_after is not None and totals.batches >= self._stop_after:
            self.wanted_batches_are_done.set()

    def print_figures_beside(self) -> None:
        """Print the figures of the processes beside the job if they changed and no live table shows them."""
        if self._live.is_started:
            return
        figures = list(self._beside())
        for name, value in figures:
            if (name, value) not in self._printed_beside:
                self._console.print(f"{name} {value}", highlight=False, soft_wrap=True)
        self._printed_beside = figures

    def print_summary(self, closing: Callable[[], str]) -> None:
        """Print the summary of the run."""
        seconds = self._clock.monotonic_seconds() - self._started
        table = Table(
            title=f"{self._totals.batches} batches in {seconds:.0f} s", title_justify="left", show_header=False
        )
        for name, value in self._figures():
            table.add_row(name, value)
        self._console.print(table)
        self._console.print(closing())

    def _table(self) -> Group:
        table = Table(show_header=False, box=None, padding=(0, 2))
        for name, value in (*self._figures(), *self._beside()):
            table.add_row(name, value)
        now = (
            "starting Spark (the first time it fetches Delta's jars)"
            if self._phase is None
            else f"batch {self._phase[0]}: {self._phase[1].value}"
        )
        hint = "stopping after this batch" if self._is_stopping else "Ctrl-C stops; run again to continue"
        return Group(Text(now, style="bold"), table, Text(hint, style="dim"))

    def _figures(self) -> list[tuple[str, str]]:
        totals, newest = self._totals, self._newest
        if newest is None:
            return []
        spent = sum(seconds for _, seconds in totals.batch_seconds) or 1.0
        rows_per_second = sum(rows for rows, _ in totals.batch_seconds) / spent
        figures = [
            ("batch -> version", f"{newest.batch:,} -> {newest.batch + 1:,}"),
            ("rows/s", f"{rows_per_second:,.0f}"),
            ("commit ms p50 / p99", _percentiles(list(totals.commit_milliseconds))),
            ("uploaded / changed", f"{_size(totals.uploaded_bytes)} / {_size(totals.changed_bytes)}"),
            ("changelogs since the newest snapshot", self._tail(newest)),
            ("changelogs replayed", f"{totals.replayed:,}"),
            ("requests", f"{totals.requests:,}"),
        ]
        figures.extend(_of_metrics(newest.metrics, self._prices))
        if totals.not_computed:
            figures.append(("batches found done after a restart", f"{totals.not_computed:,}"))
        return figures

    def _tail(self, newest: BatchReport) -> str:
        commits = [store.commit for partition in newest.partitions for store in partition.stores]
        if not commits:
            return "not known yet"
        lineage = max(commit.lineage_versions for commit in commits) * _LINEAGE_ITEM_BYTES
        near = " (near the lineage ceiling: take snapshots)" if lineage > LINEAGE_WARN_BYTES else ""
        return f"{max(commit.tail_changelogs for commit in commits):,}{near}"


def _of_metrics(metrics: QueryMetrics, prices: Prices) -> Iterator[tuple[str, str]]:
    times = " / ".join(f"{one:,.1f}" for one in metrics.record_milliseconds)
    if metrics.record_bytes:
        size = f"{_size(metrics.record_bytes)} with {metrics.members:,} changelogs"
        yield "record of a batch, ms p50 / p99 / p999", f"{times}, {size}"
    yield "dollars a day for requests", f"{metrics.dollars_a_day(prices):,.2f}"
    if metrics.early_share is not None:
        yield "uploaded before the commit", f"{metrics.early_share:.0%}"
    if metrics.back_pressure_seconds:
        yield "waited for uploads", f"{metrics.back_pressure_seconds:,.1f} s"
    if metrics.hedges_sent:
        yield "slow requests sent twice / second reply first", f"{metrics.hedges_sent:,} / {metrics.hedges_won:,}"
    if metrics.wait_seconds:
        yield "waited for storage", f"{metrics.wait_seconds:,.0f} s"


def _percentiles(values: list[float]) -> str:
    if len(values) < 2:
        return "-"
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return f"{cuts[49]:.1f} / {cuts[98]:.1f}"


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GB"
