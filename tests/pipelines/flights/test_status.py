"""The status output of a job and of Dagster: in a terminal and in a file."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from statekeeper.pipelines.batch.progress import BatchReport, Outcome, Phase
from statekeeper.pipelines.flights.root_figures import RootFigures
from statekeeper.pipelines.flights.status import Status
from statekeeper.resources.launcher.children import Children, Command
from statekeeper.resources.launcher.platform import Platform
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.storage.query_metrics import QueryMetrics
from tests.support.clocks import SleeplessClock

SLEEPS = "import time; time.sleep(600)"


FIGURES = RootFigures(
    size_bytes=123_456_789_012, files=1_234_567, restart_seconds=12_345.6, longest_tail=98_765, maintained_seconds=None
)


def console(*, terminal: bool, width: int = 200) -> tuple[Console, io.StringIO]:
    said = io.StringIO()
    return Console(file=said, force_terminal=terminal, width=width, color_system=None), said


def report(batch: int) -> BatchReport:
    metrics = QueryMetrics(batches=10, seconds=1.0, writes=999, reads=99_999, record_bytes=4_000_000, members=12_345)
    return BatchReport(
        batch=batch,
        outcome=Outcome.COMPUTED,
        attempts=1,
        partitions=(),
        milliseconds={Phase.COMPUTING: 1_500.0},
        driver_requests=1,
        metrics=metrics,
    )


def wait_for(seen: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def one_child(folder: Path) -> Children:
    command = Command("daemon", [sys.executable, "-c", SLEEPS], folder / "daemon.log")
    return Children([command], os.environ, SystemClock(), end_seconds=5)


URL = "http://127.0.0.1:1"


def platform(children: Children, folder: Path) -> Platform:
    """A Dagster whose webserver does not listen yet."""
    return Platform(URL, children, folder)


def test_in_a_terminal_the_live_table_shows_dagster_beside_the_phase_of_the_job(tmp_path: Path) -> None:
    out, said = console(terminal=True)
    with one_child(tmp_path) as children:
        dagster = platform(children, tmp_path)
        wait_for(lambda: children.states() == {"daemon": "up"})
        with Status(out, SystemClock(), beside=dagster.figures) as status:
            status.phase(7, Phase.COMPUTING)
            wait_for(
                lambda: (
                    "batch 7: computing" in said.getvalue() and f"starts; its logs are in {tmp_path}" in said.getvalue()
                )
            )
            os.kill(children.process_ids()["daemon"], signal.SIGKILL)
            wait_for(lambda: f"{URL}/assets/fleet_health (daemon" in said.getvalue())
            before = said.getvalue().count("] Dagster:")
            status.print_figures()
            assert said.getvalue().count("] Dagster:") == before, "the table tells it already"


def test_without_a_terminal_a_dead_process_is_reported_once_in_one_line(tmp_path: Path) -> None:
    out, said = console(terminal=False)
    with one_child(tmp_path) as children:
        dagster = platform(children, tmp_path)
        wait_for(lambda: children.states() == {"daemon": "up"})
        with Status(out, SystemClock(), beside=dagster.figures) as status:
            status.print_figures()
            status.print_figures()
            assert lines_of(said) == [f"Dagster: starts; its logs are in {tmp_path}"]
            os.kill(children.process_ids()["daemon"], signal.SIGKILL)

            def told() -> list[str]:
                status.print_figures()
                return lines_of(said)[1:]

            wait_for(lambda: any("daemon up, restarts: 1" in line for line in told()))
            assert len(told()) == len(set(told())), "each once"


def lines_of(said: io.StringIO) -> list[str]:
    """The printed lines without the elapsed time."""
    return [line.partition("] ")[2] for line in said.getvalue().splitlines()]


def test_without_other_processes_no_process_is_shown(tmp_path: Path) -> None:
    out, said = console(terminal=False)
    with Status(out, SystemClock()) as status:
        status.print_figures()
    assert said.getvalue() == ""


def test_without_a_terminal_one_line_every_half_minute_has_all_figures_in_160_columns() -> None:
    out, said = console(terminal=False)
    clock = SleeplessClock()
    with Status(out, clock, root=lambda: FIGURES) as status:
        clock.sleep(3)
        status.finished(report(batch=1_234_567))
        for _ in range(4):
            clock.sleep(20)
            status.print_figures()
    lines = said.getvalue().splitlines()
    assert lines[0] == "[   3 s] batch 1234567 is committed"
    assert [line[:8] for line in lines[1:]] == ["[  43 s]", "[  83 s]"]
    for line in lines[1:]:
        assert len(line) <= 160
        for part in ("rows/s", "state 115.0 GB", "restart now 12,345.6 s", "maintenance none yet", "dollars"):
            assert part in line


def test_the_summary_fits_into_80_columns_and_names_a_unit_in_each_row() -> None:
    out, said = console(terminal=False, width=80)
    status = Status(out, SleeplessClock(), root=lambda: FIGURES)
    status.finished(report(batch=41))
    status.print_summary(lambda: "the end")
    lines = said.getvalue().splitlines()
    rows = dict(tuple(cell.strip() for cell in line.strip("│").split("│")) for line in lines if line.startswith("│"))
    assert rows == {
        "batch": "41",
        "speed": "0 rows/s, 0.7 batches/s",
        "state": "115.0 GB in 1,234,567 files",
        "restart now": "12,345.6 s for at most 98,765 changelogs of a store",
        "maintenance": "none yet",
        "a day": "86,313,600 writes, 3,887.53 dollars for requests",
        "record of a batch": "3.8 MB with 12,345 changelogs",
    }
    assert all(len(line) <= 80 for line in lines)
