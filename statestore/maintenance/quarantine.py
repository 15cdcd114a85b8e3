"""Quarantine of repairs and switchovers: files as they were, so that they can be restored.

    _statekeeper/aside/<run>.json      the query position at a repair: {"batch": 4, "commit": "<SHA-256 of commits/4>"}
    _statekeeper/aside/<run>/<path>    the file that was at <path>

A quarantined snapshot still requires SST files in its store's folder. Retention keeps these files, and deletes quarantined
files after the period in its policy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

from statestore.commit_log import Heads
from statestore.errors import CorruptFile, ObjectMissing, RefusedAsUnsafe, UnknownFormatVersion
from statestore.format import names
from statestore.format.names import StoreFileKind, StorePath
from statestore.format.snapshot import SnapshotMetadata, read_snapshot
from statestore.format.untrusted import BAD_VALUES, parsed_json
from statestore.maintenance import hidden_checksums
from statestore.storage import Deletion, Entry, Storage, at_once, is_hidden, read_or_none

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


def begin(storage: Storage, run: str, position: QueryPosition) -> None:
    """Record the query position before files are quarantined. Raises `StorageError`."""
    storage.create(names.quarantine_position(run), json.dumps(asdict(position)).encode())


def recorded_position(storage: Storage, run: str) -> QueryPosition | None:
    """Return the recorded query position of a run; None without a record. Raises `CorruptFile`, `StorageError`."""
    path = names.quarantine_position(run)
    data = read_or_none(storage, path)
    if data is None:
        return None
    try:
        body = parsed_json(data)
        return QueryPosition(int(body["batch"]), str(body["commit"]))
    except BAD_VALUES as error:
        hint = "if the query has not committed since, copy the files in this folder back to their paths"
        raise CorruptFile("is not a valid query position", path=path, hint=hint) from error


def require_deleted(storage: Storage, path: str, body: bytes) -> None:
    """Delete a file after its quarantine. Raises `RefusedAsUnsafe` if its bytes have changed; then it stays."""
    if storage.delete_unchanged(path, body) is Deletion.CHANGED:
        raise RefusedAsUnsafe(
            "was written again during its quarantine: the query is running",
            path=path,
            hint="stop the query, verify that its application has ended, and run this again",
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
    return quarantined is not None and hidden_checksums.log_of(quarantined[1]) is not None


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
