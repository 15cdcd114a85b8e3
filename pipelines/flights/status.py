"""The terminal of a running job: steps of its start with the elapsed time, a live table, and the summary at the end."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from statekeeper.pipelines.batch.progress import BatchReport, Outcome, Phase
from statekeeper.pipelines.flights.root_figures import RootFigures
from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.storage.query_metrics import Prices, QueryMetrics

_WINDOW_BATCHES = 200
_LINE_SECONDS = 30.0
_ROOT_SECONDS = 15.0
_DAY = 86_400.0

Figures = Iterable[tuple[str, str]]


@dataclass(kw_only=True)
class _Totals:
    batches: int = 0
    rows: int = 0
    not_computed: int = 0
    commit_milliseconds: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW_BATCHES))
    batch_seconds: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_WINDOW_BATCHES))


class Status:
    """An `Observer` that shows the progress of a job: a live table on a terminal, otherwise a line every 30 s.

    started_at  Unix time from which the elapsed time counts; by default the time of the call
    stop_after  number of batches after which `wanted_batches_are_done` is set
    root        looks at the state root, every 15 s in a thread of its own; None before the first commit
    beside      name -> figure of a process beside the job; a row of the live table, or a line when it changes
    prices      of requests; the default is S3 Standard
    """

    def __init__(
        self,
        console: Console,
        clock: Clock,
        *,
        started_at: float | None = None,
        stop_after: int | None = None,
        root: Callable[[], RootFigures | None] | None = None,
        beside: Callable[[], Figures] = tuple,
        prices: Prices | None = None,
    ) -> None:
        self.wanted_batches_are_done = threading.Event()
        self._prices = prices or Prices()
        self._console = console
        self._clock = clock
        self._started = clock.now_seconds() if started_at is None else started_at
        self._stop_after = stop_after
        self._look = root
        self._root: RootFigures | None = None
        self._beside = beside
        self._totals = _Totals()
        self._newest: BatchReport | None = None
        self._phase: tuple[int, Phase] | None = None
        self._step = ""
        self._is_stopping = False
        self._printed_beside: list[tuple[str, str]] = []
        self._line_at = 0.0
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._table, transient=True)
        self._running = ExitStack()

    def __enter__(self) -> Status:
        if self._look is not None:
            self._running.enter_context(self._clock.every(_ROOT_SECONDS, self._look_at_root))
        if self._console.is_terminal:
            self._running.enter_context(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def step(self, text: str) -> None:
        """Print a step of the start, after the seconds that have passed."""
        self._step = text
        self._console.print(f"[{self._elapsed():4.0f} s] {text}", markup=False, highlight=False, soft_wrap=True)

    def phase(self, batch: int, phase: Phase) -> None:
        if self._phase is None:
            self.step(f"batch {batch} runs")
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
        totals.not_computed += report.outcome is not Outcome.COMPUTED
        totals.commit_milliseconds.extend(s.commit.encode_milliseconds + s.commit.upload_milliseconds for s in stores)
        totals.batch_seconds.append((rows, sum(report.milliseconds.values()) / 1000))
        self._newest = report
        if totals.batches == 1:
            self.step(f"batch {report.batch} is committed")
            self._line_at = self._clock.monotonic_seconds() + _LINE_SECONDS
            self._look_at_root()
        if self._stop_after is not None and totals.batches >= self._stop_after:
            self.wanted_batches_are_done.set()

    def print_figures(self) -> None:
        """Without a terminal: print a line if it is due, and the figures beside the job that have changed."""
        if self._live.is_started:
            return
        figures = list(self._beside())
        for name, value in figures:
            if (name, value) not in self._printed_beside:
                self.step(f"{name}: {value}")
        self._printed_beside = figures
        if self._newest is not None and self._clock.monotonic_seconds() >= self._line_at:
            self._line_at = self._clock.monotonic_seconds() + _LINE_SECONDS
            self.step(self._line(self._newest))

    def print_summary(self, closing: Callable[[], str]) -> None:
        """Print the summary of the run."""
        self._look_at_root()
        table = Table(
            title=f"{self._totals.batches} batches in {self._elapsed():.0f} s", title_justify="left", show_header=False
        )
        for name, value in self._figures():
            table.add_row(name, value)
        self._console.print(table)
        self._console.print(closing())

    def _elapsed(self) -> float:
        return max(0.0, self._clock.now_seconds() - self._started)

    def _look_at_root(self) -> None:
        # The figures of an earlier look stay while the storage does not reply.
        with suppress(StatekeeperError):
            self._root = (self._look and self._look()) or self._root

    def _table(self) -> Group:
        table = Table(show_header=False, box=None, padding=(0, 2))
        for name, value in (*self._figures(), *self._beside()):
            table.add_row(name, value)
        now = self._step if self._phase is None else f"batch {self._phase[0]}: {self._phase[1].value}"
        hint = "stopping after this batch" if self._is_stopping else "Ctrl-C stops; run again to continue"
        return Group(Text(f"{now}, {self._elapsed():.0f} s", style="bold"), table, Text(hint, style="dim"))

    def _figures(self) -> list[tuple[str, str]]:
        newest, totals = self._newest, self._totals
        if newest is None:
            return []
        figures = list(self._main_figures(newest))
        if len(totals.commit_milliseconds) > 1:
            cuts = statistics.quantiles(totals.commit_milliseconds, n=100, method="inclusive")
            figures.append(("commit of a store", f"{cuts[49]:.1f} ms median, {cuts[98]:.1f} ms p99"))
        figures.extend(_of_metrics(newest.metrics))
        if totals.not_computed:
            figures.append(("found done at the start", f"{totals.not_computed:,} batches"))
        return figures

    def _line(self, newest: BatchReport) -> str:
        """Return the figures that matter most, in less than 150 characters."""
        rows, batches = self._speed()
        parts = [f"batch {newest.batch:,}, {rows:,.0f} rows/s, {batches:,.1f} batches/s"]
        if self._root is not None:
            parts += [f"state {_size(self._root.size_bytes)}", f"restart now {self._root.restart_seconds:,.1f} s"]
            parts += [f"maintenance {self._maintenance(self._root)}"]
        return "; ".join([*parts, f"{newest.metrics.dollars_a_day(self._prices):,.2f} dollars a day"])

    def _main_figures(self, newest: BatchReport) -> Iterator[tuple[str, str]]:
        rows, batches = self._speed()
        yield "batch", f"{newest.batch:,}"
        yield "speed", f"{rows:,.0f} rows/s, {batches:,.1f} batches/s"
        if self._root is not None:
            yield "state", f"{_size(self._root.size_bytes)} in {self._root.files:,} files"
            changelogs = f"{self._root.longest_tail:,} changelogs of a store"
            yield "restart now", f"{self._root.restart_seconds:,.1f} s for at most {changelogs}"
            yield "maintenance", self._maintenance(self._root)
        metrics = newest.metrics
        if metrics.seconds > 0:
            writes = metrics.writes * _DAY / metrics.seconds
            yield "a day", f"{writes:,.0f} writes, {metrics.dollars_a_day(self._prices):,.2f} dollars for requests"

    def _speed(self) -> tuple[float, float]:
        """Return rows and batches per second of the newest batches, without the time between them."""
        spent = sum(seconds for _, seconds in self._totals.batch_seconds) or 1.0
        return sum(rows for rows, _ in self._totals.batch_seconds) / spent, len(self._totals.batch_seconds) / spent

    def _maintenance(self, root: RootFigures) -> str:
        if root.maintained_seconds is None:
            return "none yet"
        return f"{max(0.0, self._clock.now_seconds() - root.maintained_seconds):,.0f} s ago"


def _of_metrics(metrics: QueryMetrics) -> Iterator[tuple[str, str]]:
    if metrics.record_bytes:
        yield "record of a batch", f"{_size(metrics.record_bytes)} with {metrics.members:,} changelogs"
    if metrics.early_share:
        yield "uploaded before commit", f"{metrics.early_share:.0%}"
    if metrics.back_pressure_seconds:
        yield "waited for uploads", f"{metrics.back_pressure_seconds:,.1f} s"
    if metrics.hedges_sent:
        yield "slow requests", f"{metrics.hedges_sent:,} sent twice, second reply first {metrics.hedges_won:,} times"
    if metrics.wait_seconds:
        yield "waited for storage", f"{metrics.wait_seconds:,.0f} s"


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GB"
