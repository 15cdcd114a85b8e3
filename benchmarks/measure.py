"""Shared parts of the benchmarks: samples, ratios with their spread, the machine, and tables.

The speed of a shared machine changes from minute to minute, so ratios compare only samples of the same round.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np
import psutil

_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        low, high = np.quantile(values, [0.25, 0.75])
        return cls(statistics.median(values), float(low), float(high))

    def shown(self, digits: int = 0, unit: str = "") -> str:
        """Return the median and, in brackets, the quartiles."""
        return f"{self.median:,.{digits}f}{unit} [{self.low:,.{digits}f} .. {self.high:,.{digits}f}]"


def ratio(over: Sequence[Sequence[float]], under: Sequence[Sequence[float]]) -> Spread:
    """Divide the medians of `over` by those of `under`, round by round."""
    pairs = zip(over, under, strict=True)
    return Spread.of([statistics.median(a) / statistics.median(b) for a, b in pairs])


def flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Return the samples of all rounds."""
    return [value for samples in rounds for value in samples]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Result of a benchmark. `notes` describe the measurement; `targets` include the reached values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    targets: Sequence[str] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    def as_text(self) -> str:
        """Return the table for a terminal."""
        widths = [max(len(row[i]) for row in [self.columns, *self.rows]) for i in range(len(self.columns))]
        lines = [self.title, ""]
        for row in [self.columns, ["-" * width for width in widths], *self.rows]:
            cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
            lines.append("  " + "  ".join(cells))
        lines += ["", *(f"  {line}" for line in self.targets)]
        lines += ["", *(f"  - {note}" for note in self.notes), ""]
        return "\n".join(lines)

    def as_markdown(self) -> str:
        """Return the table for a document."""
        lines = [f"### {self.title}", ""]
        aligned = [":--", *("--:" for _ in self.columns[1:])]
        lines += ["| " + " | ".join(row) + " |" for row in [self.columns, aligned, *self.rows]]
        lines += ["", *(f"**{line}**  " for line in self.targets), "", *(f"- {note}" for note in self.notes), ""]
        return "\n".join(lines)


def verdict(
    what: str, reached: Spread, *, at_most: float | None = None, at_least: float | None = None, unit: str = "x"
) -> str:
    """Return a line with the reached value and its target."""
    if at_most is not None:
        good, bound = reached.median <= at_most, f"at most {at_most:g}"
    else:
        assert at_least is not None
        good, bound = reached.median >= at_least, f"at least {at_least:g}"
    return f"{what}: {reached.shown(2, unit)}, target {bound}{unit}: {'reached' if good else 'missed'}"


def cpu_of_processes() -> tuple[float, float]:
    """Return the CPU seconds of this process, and of it with all processes that it has started."""
    mine = psutil.Process()
    own = mine.cpu_times()
    every = own.user + own.system + own.children_user + own.children_system
    for child in mine.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            spent = child.cpu_times()
            every += spent.user + spent.system + spent.children_user + spent.children_system
    return own.user + own.system, every


class OtherWork:
    """The CPU time that other processes of the machine take from now on: a ratio beside much of it is too good for us."""

    def __init__(self) -> None:
        self._busy, self._started = _busy_seconds(), monotonic()
        self._ours = self._seen = 0.0
        self._ended = threading.Event()
        self._add()
        self._ours = 0.0
        self._watch = threading.Thread(target=self._follow, daemon=True)
        self._watch.start()

    def share(self) -> float:
        """Return the share of the machine's CPU time since the start, and end the measurement."""
        self._ended.set()
        self._watch.join()
        self._add()
        others = _busy_seconds() - self._busy - self._ours
        return max(0.0, others) / ((monotonic() - self._started) * (os.cpu_count() or 1))

    def _follow(self) -> None:
        # The time of a process whose parent is killed, such as Spark's workers, is in no other process after its end.
        while not self._ended.wait(_LOOK_SECONDS):
            self._add()

    def _add(self) -> None:
        seen = cpu_of_processes()[1]
        self._ours += max(0.0, seen - self._seen)
        self._seen = seen


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def machine(other_work: OtherWork) -> str:
    """Describe the machine, and what else it did, in one line."""
    model = platform.processor() or platform.machine()
    memory = ""
    for path, key in ((Path("/proc/cpuinfo"), "model name"), (Path("/proc/meminfo"), "MemTotal")):
        if path.exists():
            found = next((line.split(":")[1].strip() for line in path.read_text().splitlines() if key in line), "")
            if key == "model name":
                model = found or model
            else:
                memory = f", {int(found.split()[0]) / 2**20:.0f} GiB"
    system = f"{platform.system()}, Python {platform.python_version()}"
    share = other_work.share()
    return (
        f"{model}, {os.cpu_count()} cores{memory}, {system}; other processes took {share:.0%} of its CPU time meanwhile"
    )
