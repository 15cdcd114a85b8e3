"""What repairs and switchovers have quarantined: kept as it was, to be put back.

    _statekeeper/aside/<run>.json      of a repair, where the query stood: {"batch": 4, "commit": "<SHA-256 of commits/4>"}
    _statekeeper/aside/<run>/<path>    a file as it was

A snapshot that lies here still names tables in its store's folder. Retention keeps them for as long as it lies here, and
takes what was quarantined longer ago than its policy says.
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
from statestore.storage import Deletion, Entry, Storage, at_once, read_or_none

Snapshots = Mapping[StorePath, Mapping[str, SnapshotMetadata | None]]
"""Snapshots that were quarantined, by store and by the path where they lie now; None for one that cannot be read."""


@dataclass(frozen=True)
class QueryPosition:
    """Where a query stands: its newest batch, and a digest of the commit that says so; -1 and "" before the first."""

    batch: int
    commit: str

    @classmethod
    def of(cls, storage: Storage, heads: Heads | None) -> QueryPosition:
        """Raises `ObjectMissing`, `StorageError`."""
        if heads is None:
            return cls(-1, "")
        return cls(heads.batch, hashlib.sha256(storage.read(names.commits(heads.batch))).hexdigest())


def begin(storage: Storage, run: str, standing: QueryPosition) -> None:
    """Remember where the query stands, before anything is quarantined. Raises `StorageError`."""
    storage.create(names.quarantine_position(run), json.dumps(asdict(standing)).encode())


def standing(storage: Storage, run: str) -> QueryPosition | None:
    """Where the query stood when a run quarantined files; None when it is not known. Raises `CorruptFile`,
    `StorageError`."""
    path = names.quarantine_position(run)
    data = read_or_none(storage, path)
    if data is None:
        return None
    try:
        body = parsed_json(data)
        return QueryPosition(int(body["batch"]), str(body["commit"]))
    except BAD_VALUES as error:
        hint = "copy the files below it to where they were by hand, if the query has not gone on"
        raise CorruptFile("is not the JSON that it should be", path=path, hint=hint) from error


def require_deleted(storage: Storage, path: str, body: bytes) -> None:
    """Delete a file whose bytes were quarantined. Raises `RefusedAsUnsafe` when it holds other bytes now: they stay."""
    if storage.delete_unchanged(path, body) is Deletion.CHANGED:
        raise RefusedAsUnsafe(
            "was written again while it was quarantined: the query is running",
            path=path,
            hint="stop the query, verify that its application has ended, and run this again",
        )


def snapshots(storage: Storage, entries: Iterable[Entry], of: Collection[StorePath]) -> Snapshots:
    """The snapshots of these stores among what was quarantined. One request each. Raises `StorageError`."""
    to_read = [(store, path) for store, path in _zips(entries) if store in of]
    found: dict[StorePath, dict[str, SnapshotMetadata | None]] = {store: {} for store, _ in to_read}

    def read(at: tuple[StorePath, str]) -> None:
        store, path = at
        try:
            found[store][path] = read_snapshot(storage.read(path), path).metadata
        except ObjectMissing:
            return  # put back meanwhile: the snapshot is among its store's again
        except (CorruptFile, UnknownFormatVersion):
            found[store][path] = None

    at_once(read, to_read)
    return found


def stores(entries: Iterable[Entry]) -> frozenset[StorePath]:
    """The stores of which snapshots are quarantined."""
    return frozenset(store for store, _ in _zips(entries))


def _zips(entries: Iterable[Entry]) -> Iterator[tuple[StorePath, str]]:
    """The snapshots among what was quarantined: whose they are, and where they lie now."""
    for entry in entries:
        quarantined = names.parse_quarantined(entry.path)
        place = names.parse_store_path(quarantined[1]) if quarantined else None
        if place is not None and place[1].kind is StoreFileKind.SNAPSHOT:
            yield place[0], entry.path
