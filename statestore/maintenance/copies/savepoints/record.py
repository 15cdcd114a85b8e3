"""The records of a savepoint with rows: its source, and its finished stores."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import savepoint_names as names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.untrusted import BAD_VALUES, count, digest, json_object, text, unix_ms, uuid_text
from statekeeper.statestore.storage import Entry, Storage, at_once, read_or_none

_FORMAT = 1


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
    batch: int
    tables: str
    state: str
    run: str
    begun_at_ms: int

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
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """The rows that one store adds to a table. `digest`: see `columns.digest_of`; `state_bytes`: of their keys and values
    in the store."""

    table: str
    family: str | None
    rows: int
    digest: str
    files: tuple[File, ...]
    state_bytes: int = 0


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
        return _encoded({"format": _FORMAT, "parts": [asdict(part) for part in self.parts]})


def read_begun(storage: Storage) -> Begun | None:
    """Read the record of a savepoint with rows; None if there is none. Raises `CorruptFile`, `StorageError`."""
    data = read_or_none(storage, names.BEGUN)
    if data is None:
        return None
    try:
        body = _body(data, names.BEGUN)
        return Begun(
            source=text(body["source"]),
            batch=count(body["batch"]),
            tables=text(body["tables"]),
            state=digest(body["state"]),
            run=uuid_text(body["run"]),
            begun_at_ms=unix_ms(body["begun_at_ms"]),
        )
    except BAD_VALUES as error:
        raise _invalid(names.BEGUN, error) from error


def read_finished(
    storage: Storage, stores: Iterable[StorePath], existing: Mapping[str, Entry]
) -> dict[StorePath, StoreRows]:
    """Read the records of the finished stores: those whose files all exist with the recorded sizes.

    `existing`: the files of the destination by path. Raises `CorruptFile`, `StorageError`.
    """
    found: dict[StorePath, StoreRows] = {}

    def read(store: StorePath) -> None:
        data = storage.read(names.finished(store))
        try:
            parts = _body(data, names.finished(store))["parts"]
            rows = StoreRows(store, tuple(_part(part, store) for part in parts))
        except BAD_VALUES as error:
            raise _invalid(names.finished(store), error) from error
        if _are_there((file for part in rows.parts for file in part.files), existing):
            found[store] = rows

    at_once(read, [store for store in stores if names.finished(store) in existing])
    return dict(sorted(found.items()))


def is_whole(manifest: bytes, existing: Mapping[str, Entry]) -> bool:
    """Return whether the destination has all files in its manifest, with their sizes. Raises `CorruptFile`."""
    try:
        tables = [_manifest_table(table) for table in json_object(manifest, names.MANIFEST)["tables"]]
    except BAD_VALUES as error:
        raise invalid_manifest(error) from error
    return all(
        _are_there(files, existing) if files else names.empty_part(folder) in existing for folder, files in tables
    )


def invalid_manifest(error: Exception) -> CorruptFile:
    """Return the error of a manifest that cannot be parsed."""
    return CorruptFile(
        f"is no valid manifest of a savepoint: {error}", path=names.MANIFEST, hint="make the savepoint again"
    )


def _manifest_table(body: dict[str, Any]) -> tuple[str, list[File]]:
    return text(body["path"]), [_file(file) for part in body["partitions"] for file in part["files"]]


def _are_there(files: Iterable[File], existing: Mapping[str, Entry]) -> bool:
    return all((entry := existing.get(file.path)) is not None and entry.size_bytes == file.bytes for file in files)


def _file(body: dict[str, Any]) -> File:
    return File(path=text(body["path"]), rows=count(body["rows"]), bytes=count(body["bytes"]))


def _part(body: dict[str, Any], store: StorePath) -> Part:
    family = None if body["family"] is None else text(body["family"])
    table = names.table(store.operator, store.store, family)
    files = tuple(map(_file, body["files"]))
    if body["table"] != table:
        raise ValueError(f"{str(body['table'])[:100]!r} is not the table {table}")
    for number, file in enumerate(files):
        if file.path != names.part(table, store.partition, number):
            raise ValueError(f"{file.path[:100]!r} is not file {number} of {store} in {table}")
    return Part(
        table=table,
        family=family,
        rows=count(body["rows"]),
        digest=digest(body["digest"]),
        files=files,
        # An earlier release did not record it.
        state_bytes=count(body.get("state_bytes", 0)),
    )


def _body(data: bytes, path: str) -> dict[str, Any]:
    body = json_object(data, path)
    if body["format"] != _FORMAT:
        raise ValueError(f"format {body['format']!r}")
    return body


def _invalid(path: str, error: Exception) -> CorruptFile:
    return CorruptFile(
        f"is no valid record of a savepoint: {error}",
        path=path,
        hint="delete the folder of the savepoint, or choose an empty one",
    )


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, ensure_ascii=False).encode()
