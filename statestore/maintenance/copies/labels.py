"""The records of labeled savepoints: one in the savepoint, and one in its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import json_records
from statekeeper.statestore.format import savepoint_names as names
from statekeeper.statestore.format.json_records import About, Count, Text, UnixMs
from statekeeper.statestore.storage import Storage, read_or_none

_FORMAT = 1
_ABOUT = About("record of a savepoint", hint="restore the file from a backup, or delete it")


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
    deleting               its deletion has begun; only in the source
    """

    label: str
    note: str
    content: Content
    source: str
    destination: Text
    batch: Count
    size_bytes: Count
    created_at_ms: UnixMs
    deleting: bool = False

    def encoded(self) -> bytes:
        """Encode the record."""
        body = {"format": _FORMAT, **asdict(self)}
        if not self.deleting:
            del body["deleting"]
        return json_records.encoded(body, sort_keys=True, ensure_ascii=False)

    def is_same(self, other: Label) -> bool:
        """Return whether both are the same savepoint."""
        mine, theirs = ((one.label, one.content, one.source, one.destination, one.batch) for one in (self, other))
        return mine == theirs


@dataclass(frozen=True)
class Labels:
    """The savepoints that a location lists, oldest first, and the records that cannot be read."""

    labels: tuple[Label, ...]
    problems: tuple[CorruptFile, ...] = ()


def read(storage: Storage) -> Label | None:
    """Read the label of a savepoint; None if the location has none. Raises `CorruptFile`, `StorageError`."""
    data = read_or_none(storage, names.LABEL)
    return None if data is None else _parsed(data, names.LABEL)


def read_in_source(source: Storage, label: str) -> Label | None:
    """Read the record of a label in the source; None if there is none. Raises `CorruptFile`, `StorageError`."""
    data = read_or_none(source, names.label(label))
    return None if data is None else _parsed(data, names.label(label))


def listed(storage: Storage) -> Labels:
    """List the savepoints that a source records, and the location itself if it is one. Raises `StorageError`."""
    found: list[Label] = []
    problems: list[CorruptFile] = []
    for path in [*(entry.path for entry in storage.list(names.LABELS)), names.LABEL]:
        data = read_or_none(storage, path)
        try:
            found += [] if data is None else [_parsed(data, path)]
        except CorruptFile as problem:
            problems.append(problem)
    return Labels(tuple(sorted(found, key=lambda label: (label.created_at_ms, label.label))), tuple(problems))


def _parsed(data: bytes, path: str) -> Label:
    label = json_records.decoded(Label, data, path, _ABOUT, only_format=_FORMAT)
    if not names.is_label(label.label):
        raise _ABOUT.invalid(f"{label.label[:100]!r} is not a valid label", path)
    return label
