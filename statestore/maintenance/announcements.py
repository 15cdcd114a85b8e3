"""Tables that a retention run is about to delete, told before it does: what keeps it and a snapshot's maker apart.

    _statekeeper/deleting/<run>.jsonl    {"delete": "<path>"}, one a line

*The losing schedule*: a table that no zip names is planned for deletion; a snapshot that names it is published; it is
deleted, maybe much later, by a run that slept meanwhile. So an announced table is **pending_delete** for as long as its
announcement stands: no new snapshot names it (it is sent again under another name), and no retention run rests on a
snapshot that does. An announcement stands until its run is through, and that of a dead run for `STANDS_SECONDS`: by then
the run is long dead (it deletes nothing more than `DELETES_FOR_SECONDS` after it began to). How old one is, the store's
own clock says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from statestore.errors import CorruptFile
from statestore.format import names
from statestore.format.json_object import json_lines
from statestore.storage import Entry, Storage, read_or_none

DELETES_FOR_SECONDS = 3600.0
STANDS_SECONDS = 24 * 3600.0


def announce(storage: Storage, run: str, paths: Iterable[str]) -> None:
    """Tell that these tables are going to be deleted. Raises `StorageError`."""
    storage.create(names.deleting(run), "".join(json.dumps({"delete": path}) + "\n" for path in paths).encode())


def withdraw(storage: Storage, run: str) -> None:
    """The run is through: what it did not delete is safe."""
    storage.delete([names.deleting(run)])


def standing(storage: Storage) -> list[Entry]:
    """The announcements that there are. One listing."""
    return storage.list(names.DELETING)


def pending_delete(storage: Storage) -> frozenset[str]:
    """All announced paths. One listing, and one request for each announcement.

    Raises `CorruptFile` for one that cannot be read: what it protects is not known then. `StorageError`.
    """
    found: set[str] = set()
    for entry in standing(storage):
        for line in json_lines(read_or_none(storage, entry.path) or b"", entry.path):
            path = line.get("delete")
            if not isinstance(path, str):
                raise CorruptFile(
                    "a line that announces nothing", path=entry.path, hint="delete the file when it is a day old"
                )
            found.add(path)
    return frozenset(found)
