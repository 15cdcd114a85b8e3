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

from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.batch.status import Status
from statekeeper.resources.launcher.children import Children, Command
from statekeeper.resources.launcher.platform import Platform
from statekeeper.statestore.base.clock import SystemClock

SLEEPS = "import time; time.sleep(600)"


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    said = io.StringIO()
    return Console(file=said, force_terminal=terminal, width=200, color_system=None), said


def wait_for(seen: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def one_child(folder: Path) -> Children:
    command = Command("daemon", [sys.executable, "-c", SLEEPS], folder / "daemon.log")
    return Children([command], os.environ, SystemClock(), end_seconds=5)


def test_in_a_terminal_the_live_table_shows_dagster_beside_the_phase_of_the_job(tmp_path: Path) -> None:
    out, said = console(terminal=True)
    with one_child(tmp_path) as children:
        platform = Platform("http://127.0.0.1:3000", children)
        wait_for(lambda: not platform.troubles())
        with Status(out, SystemClock(), beside=platform.figures) as status:
            status.phase(7, Phase.COMPUTING)
            wait_for(lambda: "batch 7" in said.getvalue() and "http://127.0.0.1:3000" in said.getvalue())
            os.kill(children.process_ids()["daemon"], signal.SIGKILL)
            wait_for(lambda: "http://127.0.0.1:3000 (daemon" in said.getvalue())
            before = said.getvalue().count("\nDagster ")
            status.print_figures_beside()
            assert said.getvalue().count("\nDagster ") == before, "the table tells it already"


def test_without_a_terminal_a_dead_process_is_reported_once_in_one_line(tmp_path: Path) -> None:
    out, said = console(terminal=False)
    with one_child(tmp_path) as children:
        platform = Platform("http://127.0.0.1:3000", children)
        wait_for(lambda: bool(children.process_ids()))
        with Status(out, SystemClock(), beside=platform.figures) as status:
            status.print_figures_beside()
            status.print_figures_beside()
            assert said.getvalue() == "Dagster http://127.0.0.1:3000\n"
            os.kill(children.process_ids()["daemon"], signal.SIGKILL)

            def told() -> list[str]:
                status.print_figures_beside()
                return said.getvalue().splitlines()[1:]

            wait_for(lambda: "Dagster http://127.0.0.1:3000 (daemon up, restarts: 1)" in told())
            assert len(told()) == len(set(told())), "each once"


def test_without_other_processes_no_process_is_shown(tmp_path: Path) -> None:
    out, said = console(terminal=False)
    with Status(out, SystemClock()) as status:
        status.print_figures_beside()
    assert said.getvalue() == ""
