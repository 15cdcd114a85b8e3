"""The records of a savepoint with rows: its source, and its finished stores."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from statestore.errors import CorruptFile
from statestore.format import savepoint_names as names
from statestore.format.json_object import json_object
from statestore.format.names import StorePath
from statestore.format.untrusted import BAD_VALUES
from statestore.storage import Storage, at_once, read_or_none

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
    """The rows that one store adds to a table. `digest`: see `columns.digest_of`."""

    table: str
    family: str | None
    rows: int
    digest: str
    files: tuple[File, ...]


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
            source=str(body["source"]),
            batch=int(body["batch"]),
            tables=str(body["tables"]),
            state=str(body["state"]),
            run=str(body["run"]),
            begun_at_ms=int(body["begun_at_ms"]),
        )
    except BAD_VALUES as error:
        raise _invalid(names.BEGUN, error) from error


def read_finished(storage: Storage, stores: Iterable[StorePath], existing: Iterable[str]) -> dict[StorePath, StoreRows]:
    """Read the records of the finished stores. Raises `CorruptFile`, `StorageError`."""
    there, found = set(existing), {}

    def read(store: StorePath) -> None:
        data = storage.read(names.finished(store))
        try:
            found[store] = StoreRows(store, tuple(_part(part) for part in _body(data, names.finished(store))["parts"]))
        except BAD_VALUES as error:
            raise _invalid(names.finished(store), error) from error

    at_once(read, [store for store in stores if names.finished(store) in there])
    return dict(sorted(found.items()))


def _part(body: dict[str, Any]) -> Part:
    return Part(
        table=str(body["table"]),
        family=None if body["family"] is None else str(body["family"]),
        rows=int(body["rows"]),
        digest=str(body["digest"]),
        files=tuple(File(path=str(f["path"]), rows=int(f["rows"]), bytes=int(f["bytes"])) for f in body["files"]),
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
