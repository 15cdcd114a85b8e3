"""Gathers the facts of a mirror. Reads only."""

from __future__ import annotations

from statestore.binding import parse_binding
from statestore.commit_log import batches_of
from statestore.format import mirror_names, names
from statestore.format.state_conf import ROCKSDB
from statestore.maintenance import copies
from statestore.maintenance.mirrors import record as records
from statestore.maintenance.mirrors.facts import CleanupFacts, MirrorFacts
from statestore.maintenance.mirrors.record import MirrorRecord
from statestore.storage import Entry, Storage, at_once, read_or_none


def gather(source: Storage, destination: Storage, *, batch: int | None = None, stopped: bool = False) -> MirrorFacts:
    """Gather the facts of a mirror and of its source, by default at the newest batch whose files no longer change.

    Requests: those of `copies.gather`; the records of the mirror and its binding; the newest mirrored entry of both logs in
    both roots. Raises as `copies.gather`.
    """
    record = records.read(destination)
    existing = destination.list("")
    lists = tuple(sorted(_numbers(existing)))
    since = None if record is None or record.batch < 0 else _since(source, existing, record)
    facts = copies.gather(source, destination, batch=batch, stopped=stopped, since=since, supported=ROCKSDB)
    held = None if record is None else read_or_none(destination, names.BINDING)
    return MirrorFacts(
        copy=facts,
        record=record,
        marks=records.read_marks(destination, list(lists)),
        lists=lists,
        binding=None if held is None else parse_binding(held),
        logs={} if record is None else _logs(source, destination, existing, record),
    )


def gather_cleanup(source: Storage, destination: Storage) -> CleanupFacts:
    """Gather the facts to delete files of a mirror. The mirror is listed first. Raises `CorruptFile`, `StorageError`."""
    record = records.read(destination)
    existing = destination.list("")
    first = 0 if record is None else record.first
    paths = frozenset(entry.path for entry in source.list(""))
    omitted = source.omissions.below("")
    marks = records.read_marks(destination, _numbers(existing))
    gone = {entry.path for entry in existing if entry.path in marks} - paths
    return CleanupFacts(
        marks=marks,
        source=paths,
        existing={entry.path: entry.size_bytes for entry in existing},
        chains=copies.chains(destination, down_to=first + 1, without=gone) if gone else {},
        first=first,
        omitted=omitted[0].shown if omitted else None,
    )


def _numbers(existing: list[Entry]) -> list[int]:
    listed = (entry.path for entry in existing if entry.path.startswith(f"{mirror_names.MIRRORED}/"))
    return [number for path in listed if (number := mirror_names.parse_mirrored(path)) is not None]


def _since(source: Storage, existing: list[Entry], record: MirrorRecord) -> int:
    """The oldest batch that the mirror has and that the source may still have."""
    mirrored = batches_of(entry for entry in existing if entry.path.startswith(f"{names.COMMITS}/"))
    retained = batches_of(source.list(names.COMMITS))
    return max(record.first, min(mirrored, default=0), min(retained, default=0))


def _logs(
    source: Storage, destination: Storage, existing: list[Entry], record: MirrorRecord
) -> dict[str, tuple[bytes | None, bytes | None]]:
    """Read the newest mirrored entry of both logs, and all entries that the mirror has after it."""
    paths = [names.offsets(record.batch), names.commits(record.batch)] if record.batch >= 0 else []
    for entry in existing:
        folder, _, name = entry.path.rpartition("/")
        number = names.parse_batch(name)
        if folder in (names.OFFSETS, names.COMMITS) and number is not None and number > record.batch:
            paths.append(entry.path)
    found: dict[str, tuple[bytes | None, bytes | None]] = {}

    def read(path: str) -> None:
        found[path] = (read_or_none(source, path), read_or_none(destination, path))

    at_once(read, paths)
    return found
