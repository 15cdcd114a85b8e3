"""Reads the log of Spark's file sink, for the verbs that change it: a rewrite appends a batch, a rewind removes batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, RefusedAsUnsafe, UnknownFormatVersion
from statekeeper.statestore.format import file_sink, file_source, names
from statekeeper.statestore.format.file_sink import LogEntry, parse_entry
from statekeeper.statestore.format.file_source import Positions
from statekeeper.statestore.format.logs import OffsetLog, parse_offsets
from statekeeper.statestore.storage import Entry, Storage, at_once


def listed(sink: Storage) -> dict[LogEntry, Entry]:
    """List the entries of the log. One request. Raises `StorageError`."""
    return {entry: one for one in sink.list(file_sink.LOG) if (entry := parse_entry(one.path))}


def verify(sink: Storage, log: Mapping[LogEntry, Entry], needed: Iterable[LogEntry]) -> None:
    """Verify the first and the last bytes of these entries. Two requests each. Raises as `file_sink.require_entry`."""

    def look(entry: LogEntry) -> None:
        last_byte = max(0, log[entry].size_bytes - 1)
        head, last = sink.read_range(entry.path, 0, 3), sink.read_range(entry.path, last_byte, 1)
        file_sink.require_entry(head, last, f"{sink.url}/{entry.path}")

    at_once(look, list(needed))


def require_no_later(sink: Storage, entries: Iterable[LogEntry], batch: int, of: str, way_out: str) -> None:
    """Require that the log has no entry after a batch. `of`: describes the batch in the error. `way_out`: its hint, for a
    sink that does belong to the query.
    Raises `RefusedAsUnsafe`."""
    newest = max(entries, default=None)
    if newest is not None and newest.batch > batch:
        raise RefusedAsUnsafe(
            f"is newer than batch {batch}, {of}: another query writes to this sink, or only the checkpoint was rolled "
            "back; nothing was changed",
            path=f"{sink.url}/{newest.path}",
            hint=f"give the `path` of the sink of this query with --file-sink. {way_out}",
        )


def newest_offsets(storage: Storage, batch: int, offsets: OffsetLog, paths: Collection[str]) -> OffsetLog:
    """Read the offsets of the newest batch that has begun, if the checkpoint has logs of file sources. They show which
    sources a batch had not read yet.

    `offsets`: of `batch`; they are returned if the newest ones cannot be read. `paths`: of the checkpoint. Raises
    `StorageError`.
    """
    begun = [names.parse_batch(path) for path in paths if path.startswith(f"{names.OFFSETS}/")]
    newest = max((number for number in begun if number is not None), default=batch)
    if newest > batch and any(map(file_source.parse, paths)):
        path = names.offsets(newest)
        with suppress(CorruptFile, ObjectMissing, UnknownFormatVersion):
            return parse_offsets(storage.read(path), path)
    return offsets


def positions_at(storage: Storage, batch: int, offsets: OffsetLog, paths: Collection[str]) -> Positions:
    """Find the position of a batch in each file source. Arguments and errors as of `newest_offsets`."""
    return file_source.positions(offsets, newest_offsets(storage, batch, offsets, paths), paths)
