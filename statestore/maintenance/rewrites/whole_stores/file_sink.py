"""Adds the batch that a rewrite appends to the log of Spark's file sink, and removes it.

Spark calls the sink for each batch that it runs. It never runs the appended batch, so the log of a file sink would lack it,
and the sink and every reader of the output would fail. The entry is written after the batch: a query that found the entry
alone would run the batch, and the sink would drop its rows.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.errors import AlreadyExists, RefusedAsUnsafe
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, SinkEntry
from statekeeper.statestore.contents import file_logs
from statekeeper.statestore.format import file_sink
from statekeeper.statestore.format.file_sink import LogEntry
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.rocks import translated
from statekeeper.statestore.store.engine.scratch import work_folder

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FileSinkPlan:
    """The entry to add to the log of a file sink.

    sources     the entries whose lines it repeats, if it is compacted
    read_bytes  bytes to download
    interval    batches from one compaction to the next, if this entry is the first compaction and so sets the interval
    """

    entry: SinkEntry
    sources: tuple[str, ...] = ()
    read_bytes: int = 0
    interval: int | None = None


def plan(sink: Storage, batch: int, *, begun: SinkEntry | None) -> FileSinkPlan:
    """Plan the entry of a batch. `begun`: the entry of an interrupted run, which may have written it. Reads only.

    One listing, and two requests for each entry since the newest compaction. Raises as `file_sink.next_entry` and
    `file_sink.require_entry`; `RefusedAsUnsafe` if the log has later batches than the checkpoint.
    """
    log = file_logs.listed(sink)
    if begun is None:
        _require_no_later(sink, log, batch - 1)
    following = file_sink.next_entry(log, batch, sink.url)
    file_logs.verify(sink, log, following.needed)
    if begun is not None and begun.path != following.entry.path:
        # A former release wrote no compacted entry before the tenth batch.
        return FileSinkPlan(entry=begun)
    return FileSinkPlan(
        entry=SinkEntry(sink.url, following.entry.path),
        sources=tuple(entry.path for entry in following.sources),
        read_bytes=sum(log[entry].size_bytes for entry in following.sources),
        interval=following.interval if following.sets_interval else None,
    )


def write(sink: Storage, planned: FileSinkPlan, scratch: Path) -> None:
    """Create the entry, or verify the one of an interrupted run. The batch is appended.

    *Guarantee*: overwrites no file. Raises `RefusedAsUnsafe` if the entry exists with other lines; `StorageError`.
    """
    with work_folder(scratch, "file-sink") as folder, translated(scratch):
        content = _content(sink, planned.sources, folder)
        try:
            sink.create(planned.entry.path, content)
        except AlreadyExists as error:
            raise RefusedAsUnsafe(
                "already exists with other contents; another query wrote it",
                path=f"{sink.url}/{planned.entry.path}",
                hint="reverse the rewrite with --abort",
            ) from error


def remove(sink: Storage, begun: Begun) -> None:
    """Delete the entry of a rewrite whose batch is appended and is removed next.

    The log had no entry of this batch when the rewrite started, and Spark does not run a committed batch: so the entry is
    of the rewrite. Raises `RefusedAsUnsafe` if the log has a later batch.
    """
    assert begun.file_sink is not None
    _require_no_later(sink, file_logs.listed(sink), begun.batch + 1)
    sink.delete([begun.file_sink.path])


def _require_no_later(sink: Storage, entries: Iterable[LogEntry], batch: int) -> None:
    way_out = (
        "If only the checkpoint was rolled back, first roll this sink back to the same batch: statekeeper rewind ROOT "
        f"--to-batch {batch} --file-sink {shlex.quote(sink.url)} --apply --confirm-stopped"
    )
    file_logs.require_no_later(sink, entries, batch, "the newest batch of the checkpoint", way_out)


def _content(sink: Storage, sources: Sequence[str], folder: Path) -> Path:
    """Write the lines of all sources, in the order of their batches, below one header."""
    whole, part = folder / "entry", folder / "source"
    with whole.open("wb") as target:
        target.write(file_sink.EMPTY)
        for source in sources:
            sink.download(source, part)
            with part.open("rb") as lines:
                lines.seek(len(file_sink.EMPTY))
                while piece := lines.read(_PIECE_BYTES):
                    target.write(piece)
            part.unlink()
    return whole
