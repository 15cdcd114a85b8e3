"""The records of a savepoint with rows: its source, and its finished stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from statekeeper.statestore.format import json_records
from statekeeper.statestore.format import savepoint_names as names
from statekeeper.statestore.format.json_records import About, Count, Digest, Record, UnixMs, Uuid
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.storage import Entry, Storage, at_once, read_or_none

_FORMAT = 1

_ABOUT = About("record of a savepoint", hint="delete the folder of the savepoint, or choose an empty one")
MANIFEST = About("manifest of a savepoint", hint="make the savepoint again")
"""For the errors of a manifest."""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A savepoint with rows. A second run continues it.

    source          URL of the source
    batch           the batch whose rows the savepoint has
    tables          the format of its tables: parquet or delta
    state           a digest of the versions of all stores
    run             id of the first run
    begun_at_ms     when it began, Unix time
    """

    source: str
    batch: Count
    tables: str
    state: Digest
    run: Uuid
    begun_at_ms: UnixMs

    def encoded(self) -> bytes:
        """Encode the record."""
        return _encoded({"format": _FORMAT, **asdict(self)})

    def is_continued_by(self, other: Begun) -> bool:
        """Return whether another run makes the same savepoint."""
        return (self.source, self.batch, self.tables, self.state) == (
            other.source,
            other.batch,
            other.tables,
            other.state,
        )


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of a table."""

    path: str
    rows: Count
    bytes: Count


@dataclass(frozen=True, kw_only=True)
class Part:
    """The rows that one store adds to a table. `digest`: see `columns.digest_of`; `state_bytes`: of their keys and values
    in the store, which an earlier release did not record."""

    table: str
    family: str | None
    rows: Count
    digest: Digest
    files: tuple[File, ...]
    state_bytes: Count = 0


@dataclass(frozen=True)
class StoreRows:
    """The parts of one store in all its tables."""

    store: StorePath
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(part.rows for part in self.parts)

    @property
    def path(self) -> str:
        """The path of this record."""
        return names.finished(self.store)

    def encoded(self) -> bytes:
        """Encode the record."""
        return _encoded({"format": _FORMAT, "parts": self.parts})


class _Finished(Record):
    """The record of a store."""

    parts: tuple[Part, ...]


class _ManifestPart(Record):
    files: tuple[File, ...]


class _ManifestTable(Record):
    path: str
    partitions: tuple[_ManifestPart, ...]


class _Manifest(Record):
    """The files in a manifest."""

    tables: tuple[_ManifestTable, ...]


def read_begun(storage: Storage) -> Begun | None:
    """Read the record of a savepoint with rows; None if there is none. Raises `CorruptFile`, `StorageError`."""
    data = read_or_none(storage, names.BEGUN)
    return None if data is None else json_records.decoded(Begun, data, names.BEGUN, _ABOUT, only_format=_FORMAT)


def read_finished(
    storage: Storage, stores: Iterable[StorePath], existing: Mapping[str, Entry]
) -> dict[StorePath, StoreRows]:
    """Read the records of the finished stores: those whose files all exist with the recorded sizes.

    `existing`: the files of the destination by path. Raises `CorruptFile`, `StorageError`.
    """
    found: dict[StorePath, StoreRows] = {}

    def read(store: StorePath) -> None:
        path = names.finished(store)
        written = json_records.decoded(_Finished, storage.read(path), path, _ABOUT, only_format=_FORMAT)
        rows = StoreRows(store, written.parts)
        for part in rows.parts:
            table = names.table(store.operator, store.store, part.family)
            expected = [names.part(table, store.partition, number) for number in range(len(part.files))]
            if part.table != table or [file.path for file in part.files] != expected:
                problem = f"{part.table[:100]!r} is not the table {table} of {store} with its files"
                raise _ABOUT.invalid(problem, path)
        if _are_there((file for part in rows.parts for file in part.files), existing):
            found[store] = rows

    at_once(read, [store for store in stores if names.finished(store) in existing])
    return dict(sorted(found.items()))


def is_whole(manifest: bytes, existing: Mapping[str, Entry]) -> bool:
    """Return whether the destination has all files in its manifest, with their sizes. Raises `CorruptFile`."""
    written = json_records.decoded(_Manifest, manifest, names.MANIFEST, MANIFEST)
    tables = {table.path: [file for part in table.partitions for file in part.files] for table in written.tables}
    return all(
        _are_there(files, existing) if files else names.empty_part(folder) in existing
        for folder, files in tables.items()
    )


def _are_there(files: Iterable[File], existing: Mapping[str, Entry]) -> bool:
    return all((entry := existing.get(file.path)) is not None and entry.size_bytes == file.bytes for file in files)


def _encoded(body: dict[str, Any]) -> bytes:
    return json_records.encoded(body, sort_keys=True, ensure_ascii=False)
