"""The records of a mirror in its destination.

_statekeeper/mirror.json                 the source and the newest mirrored batch; the first file of a mirror
_statekeeper/mirrored/<number>.json      {path: mark} of the files that a run copies, written before it copies them
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from statekeeper.statestore.errors import CorruptFile
from statekeeper.statestore.format import mirror_names
from statekeeper.statestore.format.json_object import json_object
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.storage import Storage, at_once, read_or_none

_FORMAT = 1
_HINT = "mirror to an empty location"

Marks = Mapping[str, str]
"""The mark of each copied file by path: see `copies.copy_file.mark`."""


@dataclass(frozen=True, kw_only=True)
class MirrorRecord:
    """The source of a mirror and its progress.

    source   URL of the source
    query    id of the query, which the mirror keeps
    root     id of the mirror's root; "" for a native checkpoint
    batch    the newest mirrored batch; -1 before the first run is complete
    first    the oldest batch of the mirror
    """

    source: str
    query: str
    root: str
    batch: int = -1
    first: int = 0

    def encoded(self) -> bytes:
        """Encode the record."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True).encode()


def read(storage: Storage) -> MirrorRecord | None:
    """Read the record of a mirror; None if the root is no mirror. Raises `CorruptFile`, `StorageError`."""
    data = read_or_none(storage, mirror_names.MIRROR)
    return None if data is None else _parsed(json_object(data, mirror_names.MIRROR))


def read_marks(storage: Storage, numbers: list[int]) -> Marks:
    """Read the lists of copied files with these numbers. One request each. Raises `CorruptFile`, `StorageError`."""
    found: dict[int, dict[str, str]] = {}

    def look(number: int) -> None:
        path = mirror_names.mirrored(number)
        body = json_object(storage.read(path), path)
        try:
            found[number] = {str(name): str(mark) for name, mark in dict(body["files"]).items()}
        except BAD_VALUES as error:
            raise CorruptFile(f"is no valid list of mirrored files: {error}", path=path, hint=_HINT) from error

    at_once(look, numbers)
    return {path: mark for number in sorted(found) for path, mark in found[number].items()}


def encode_marks(marks: Marks) -> bytes:
    """Encode a list of copied files."""
    return json.dumps({"format": _FORMAT, "files": dict(marks)}, sort_keys=True).encode()


def _parsed(body: dict[str, Any]) -> MirrorRecord:
    try:
        if body["format"] != _FORMAT:
            raise ValueError(f"format {body['format']!r}")
        return MirrorRecord(
            source=str(body["source"]),
            query=str(body["query"]),
            root=str(body["root"]),
            batch=int(body["batch"]),
            first=int(body["first"]),
        )
    except BAD_VALUES as error:
        raise CorruptFile(f"is no valid record of a mirror: {error}", path=mirror_names.MIRROR, hint=_HINT) from error
