"""The common part of the commands that copy a checkpoint: progress in bytes, and displays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from statekeeper.statestore.cli.common import FINDINGS, TALK, Output
from statekeeper.statestore.cli.reports import show
from statekeeper.statestore.maintenance.copies.clones import CopyFile, Way
from statekeeper.statestore.maintenance.verbs.clone import Copy
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare


@contextmanager
def copy_progress(files: Iterable[CopyFile]) -> Iterator[Callable[[CopyFile], None]]:
    """Show on stderr how many bytes of the files are copied, with bytes per second and the remaining time.

    Gives the function to call after each file. Hidden when stderr is no terminal. The bar advances by whole files.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=TALK,
        transient=True,
        disable=not TALK.is_terminal,
    )
    pending = [file for file in files if file.way is not Way.PRESENT]
    with bar:
        task = bar.add_task(f"{len(pending):,} files", total=sum(file.size_bytes for file in pending))
        yield lambda file: bar.advance(task, file.size_bytes)


def copy(verb: Copy[Any, CopyFile, Any], run: Run, output: Output, *, dry_run: bool) -> None:
    """Show the plan of a copy of files, or make it."""
    prepared = prepare(verb, run)
    if dry_run:
        show(output, prepared)
        sys.exit(FINDINGS if prepared.refusals else 0)
    with copy_progress(prepared.plan.plan.files) as copied:
        show(output, perform(prepared, copied))
