"""The progress of a copy in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from statekeeper.statestore.cli.common import TALK
from statekeeper.statestore.maintenance.copies.clones import CopyFile, Way


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
