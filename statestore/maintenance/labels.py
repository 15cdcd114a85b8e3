"""The records of labeled savepoints: one in the savepoint, and one in its source."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from statestore.errors import CorruptFile, ObjectMissing
from statestore.format import savepoint_names as names
from statestore.format.json_object import json_object
from statestore.format.untrusted import BAD_VALUES
from statestore.storage import Storage, read_or_none

_FORMAT = 1


class Content(StrEnum):
    """The content of a savepoint."""

    FILES = "files"
    """A checkpoint, from which Spark or a job can start."""
    ROWS = "rows"
    """Tables."""


@dataclass(frozen=True, kw_only=True)
class Label:
    """A labeled savepoint.

    source, destination    URLs of the checkpoint and of the savepoint
    size_bytes             of all its files
    created_at_ms          Unix time
    """

    label: str
    note: str
    content: Content
    source: str
    destination: str
    batch: int
    size_bytes: int
    created_at_ms: int

    def encoded(self) -> bytes:
        """Encode the record."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True, ensure_ascii=False).encode()

    def is_same(self, other: Label) -> bool:
        """Return whether both are the same savepoint."""
        mine, theirs = ((one.label, one.content, one.source, one.destination, one.batch) for one in (self, other))
        return mine == theirs


def read(storage: Storage) -> Label | None:
    """Read the label of a savepoint; None if the location has none. Raises `CorruptFile`, `StorageError`."""
    data = read_or_none(storage, names.LABEL)
    return None if data is None else _parsed(data, names.LABEL)


def read_in_source(source: Storage, label: str) -> Label | None:
    """Read the record of a label in the source; None if there is none. Raises `CorruptFile`, `StorageError`."""
    data = read_or_none(source, names.label(label))
    return None if data is None else _parsed(data, names.label(label))


def listed(storage: Storage) -> list[Label]:
    """List the savepoints that a source records, oldest first, or the location itself if it is one.

    Raises `CorruptFile`, `StorageError`.
    """
    found = list(_read_all(storage, [entry.path for entry in storage.list(names.LABELS)]))
    own = read(storage)
    if own is not None:
        found.append(own)
    return sorted(found, key=lambda label: (label.created_at_ms, label.label))


def _read_all(storage: Storage, paths: Iterable[str]) -> Iterable[Label]:
    for path in paths:
        try:
            yield _parsed(storage.read(path), path)
        except ObjectMissing:
            continue  # deleted since the listing


def _parsed(data: bytes, path: str) -> Label:
    try:
        body: dict[str, Any] = json_object(data, path)
        if body["format"] != _FORMAT or not names.is_label(str(body["label"])):
            raise ValueError(f"format {body['format']!r}, label {str(body['label'])[:100]!r}")
        return Label(
            label=str(body["label"]),
            note=str(body["note"]),
            content=Content(body["content"]),
            source=str(body["source"]),
            destination=str(body["destination"]),
            batch=int(body["batch"]),
            size_bytes=int(body["size_bytes"]),
            created_at_ms=int(body["created_at_ms"]),
        )
    except BAD_VALUES as error:
        raise CorruptFile(
            f"is no valid record of a savepoint: {error}",
            path=path,
            hint="restore the file from a backup, or delete it",
        ) from error
