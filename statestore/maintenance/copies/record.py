"""The record of a clone in its destination: `_statekeeper/cloned.json`, the first file that is written there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from statekeeper.statestore.errors import CorruptFile
from statekeeper.statestore.format import names
from statekeeper.statestore.format.json_object import json_object
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.storage import Storage, read_or_none

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class CloneRecord:
    """Where a clone comes from, and the ids that it got. A second run uses the same ids.

    source    URL of the source
    batch     the newest batch of the clone
    query     id of its query: that of the source, or a new one
    root      id of its root; "" for a native checkpoint
    """

    source: str
    batch: int
    query: str
    root: str

    def encoded(self) -> bytes:
        """Encode the record."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True).encode()


def read(storage: Storage) -> CloneRecord | None:
    """Read the record of a clone; None if the root is no clone. Raises `CorruptFile`, `StorageError`."""
    data = read_or_none(storage, names.CLONED)
    return None if data is None else _parsed(json_object(data, names.CLONED))


def _parsed(body: dict[str, Any]) -> CloneRecord:
    try:
        if body["format"] != _FORMAT:
            raise ValueError(f"format {body['format']!r}")
        return CloneRecord(
            source=str(body["source"]), batch=int(body["batch"]), query=str(body["query"]), root=str(body["root"])
        )
    except BAD_VALUES as error:
        raise CorruptFile(
            f"is no valid record of a clone: {error}", path=names.CLONED, hint="clone to an empty location"
        ) from error
