"""Quarantine of repairs, rewinds and switchovers: files as they were, so that they can be restored.

    _statekeeper/aside/<run>.json      the query position after the run: {"batch": 4, "commit": "<SHA-256 of commits/4>"};
                                       a rewind adds the commits that it removes, the files that it rewrites, the output
                                       folder of the query's file sink, and a line for each file, in its order
    _statekeeper/aside/<run>/<path>    the file that was at <path>; `_spark_metadata/...`: in the output folder

A quarantined snapshot still requires SST files in its store's folder. Retention keeps these files, and deletes quarantined
files after the period in its policy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, RefusedAsUnsafe, UnknownFormatVersion
from statekeeper.statestore.checkpoint import leftovers
from statekeeper.statestore.checkpoint.commit_log import Heads
from statekeeper.statestore.format import file_sink, names
from statekeeper.statestore.format.limits import MOST_READ_BYTES
from statekeeper.statestore.format.names import StoreFileKind, StorePath
from statekeeper.statestore.format.snapshot import SnapshotMetadata, read_snapshot
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json, text
from statekeeper.statestore.storage import Deletion, Entry, Storage, at_once, is_hidden, read_lines

Snapshots = Mapping[StorePath, Mapping[str, SnapshotMetadata | None]]
"""Quarantined snapshots by store and present path; None for an unreadable snapshot."""


@dataclass(frozen=True)
class QueryPosition:
    """The position of a query: its newest batch and the SHA-256 of that commit; -1 and "" before the first commit."""

    batch: int
    commit: str

    @classmethod
    def of(cls, storage: Storage, heads: Heads | None) -> QueryPosition:
        """Read the present position. Raises `ObjectMissing`, `StorageError`."""
        if heads is None:
            return cls(-1, "")
        return cls(heads.batch, hashlib.sha256(storage.read(names.commits(heads.batch))).hexdigest())


@dataclass(frozen=True, kw_only=True)
class QuarantineRecord:
    """The record of a run that quarantines files.

    position   the query position after the run
    rewound    the SHA-256 of each commit that a rewind removes, by batch
    rewritten  the SHA-256 of each file that the run replaces, by path
    created    the SHA-256 of each file that the run creates, by path; undo deletes them
    order      the paths in the order in which a rewind removes them; undo restores them in the opposite order
    file_sink  the output folder of the query's file sink, from whose log a rewind removes entries; None without one
    """

    position: QueryPosition
    rewound: Mapping[int, str] = field(default_factory=dict)
    rewritten: Mapping[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    file_sink: str | None = None
    created: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """Encode the record: a line with all but the order, then a line for each path. That of most repairs has only the
        position."""
        body: dict[str, Any] = asdict(self.position)
        if self.order:
            rewound = {str(batch): digest for batch, digest in self.rewound.items()}
            body |= {"rewound": rewound, "rewritten": dict(self.rewritten), "files": len(self.order)}
        elif self.rewritten:
            body |= {"rewritten": dict(self.rewritten)}
        if self.created:
            body |= {"created": dict(self.created)}
        if self.file_sink is not None:
            body["file_sink"] = self.file_sink
        return b"\n".join(json.dumps(line).encode() for line in (body, *self.order))


def begin(storage: Storage, run: str, record: QuarantineRecord) -> None:
    """Write the record before files are quarantined. Raises `StorageError`."""
    storage.create(names.quarantine_position(run), record.encoded())


def recorded(storage: Storage, run: str) -> QuarantineRecord | None:
    """Return the record of a run; None without one. Raises `CorruptFile`, `StorageError`."""
    path = names.quarantine_position(run)
    try:
        first, *paths = map(parsed_json, read_lines(storage, path))
        # Former records have the order in the first line.
        order = tuple(text(one) for one in (*first.get("order", ()), *paths))
        if len(order) != first.get("files", len(order)):
            raise ValueError("a path is missing")
        return QuarantineRecord(
            position=QueryPosition(int(first["batch"]), str(first["commit"])),
            rewound={int(batch): str(digest) for batch, digest in dict(first.get("rewound", {})).items()},
            rewritten={str(path): str(digest) for path, digest in dict(first.get("rewritten", {})).items()},
            order=order,
            file_sink=None if (sink := first.get("file_sink")) is None else text(sink),
            created={str(path): str(digest) for path, digest in dict(first.get("created", {})).items()},
        )
    except ObjectMissing:
        return None
    except BAD_VALUES as error:
        hint = "if the query has not committed since, copy the files in this folder back to their paths"
        raise CorruptFile("is not a valid query position", path=path, hint=hint) from error


def rewound_batches(paths: Iterable[str], newest: int) -> range | None:
    """Return the batches after the newest one that rewinds removed: the query writes their output again. None if the query
    has committed the first of them since, and for rewinds that also rolled back the file sink of the query. Pure.

    `paths`: a listing that includes the quarantine."""
    places = [place for path in paths if (place := names.parse_quarantined(path)) is not None]
    with_sink = {run for run, path in places if path.startswith(f"{file_sink.LOG}/")}
    found = {
        batch
        for run, path in places
        if path.startswith(f"{names.COMMITS}/") and run not in with_sink
        if (batch := names.parse_batch(path)) is not None and batch > newest
    }
    return range(newest + 1, max(found) + 1) if newest + 1 in found else None


def copy_file(source: Storage, entry: Entry, target: Storage, path: str, *, scratch: Path) -> None:
    """Copy a file of the checkpoint to another path in it, or between the checkpoint and the output folder of its sink; the
    storage service copies it if it can.

    `scratch`: a folder for a large file that passes through this machine. Raises `ObjectMissing`, `SourceChanged` if the
    file has changed since it was listed, `AlreadyExists`, `StorageError`.
    """
    with suppress(NotImplementedError):
        if target is source or target.location.can_copy_from(source.location):
            target.copy(path, source.location, entry)
            return
    if entry.size_bytes <= MOST_READ_BYTES:
        target.create(path, source.read(entry.path))
        return
    from statekeeper.statestore.store.engine.scratch import work_folder

    with work_folder(scratch, "copy") as folder:
        piece = folder / "file"
        source.download(entry.path, piece, expected_bytes=entry.size_bytes)
        target.create(path, piece)


def require_deleted(storage: Storage, path: str, body: bytes) -> None:
    """Delete a file after its quarantine. Raises `RefusedAsUnsafe` if its bytes have changed; then it stays."""
    if storage.delete_unchanged(path, body) is Deletion.CHANGED:
        raise RefusedAsUnsafe(
            "was written again while it was moved to quarantine: the query is running",
            path=path,
            hint="stop the query, verify that its application has ended, and run this command again",
        )


def snapshots(storage: Storage, entries: Iterable[Entry], of: Collection[StorePath]) -> Snapshots:
    """Return the quarantined snapshots of these stores. One request each. Raises `StorageError`."""
    to_read = [(store, path) for store, path in _zips(entries) if store in of]
    found: dict[StorePath, dict[str, SnapshotMetadata | None]] = {store: {} for store, _ in to_read}

    def read(at: tuple[StorePath, str]) -> None:
        store, path = at
        try:
            found[store][path] = read_snapshot(storage.read(path), path).metadata
        except ObjectMissing:
            return  # restored meanwhile
        except (CorruptFile, UnknownFormatVersion):
            found[store][path] = None

    at_once(read, to_read)
    return found


def files(storage: Storage, folder: str = names.QUARANTINE) -> tuple[Entry, ...]:
    """List quarantined files; of hidden files only checksums of logs, which a repair quarantines."""
    listed = storage.list(folder, hidden=True)
    return tuple(entry for entry in listed if not is_hidden(entry.path) or _is_checksum_of_log(entry.path))


def _is_checksum_of_log(path: str) -> bool:
    quarantined = names.parse_quarantined(path)
    return quarantined is not None and leftovers.log_of(quarantined[1]) is not None


def stores(entries: Iterable[Entry]) -> frozenset[StorePath]:
    """Return the stores that have quarantined snapshots."""
    return frozenset(store for store, _ in _zips(entries))


def _zips(entries: Iterable[Entry]) -> Iterator[tuple[StorePath, str]]:
    """Yield quarantined snapshots with their store and present path."""
    for entry in entries:
        quarantined = names.parse_quarantined(entry.path)
        place = names.parse_store_path(quarantined[1]) if quarantined else None
        if place is not None and place[1].kind is StoreFileKind.SNAPSHOT:
            yield place[0], entry.path
