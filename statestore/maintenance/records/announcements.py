"""Announcements of the tables that a retention run is about to delete. They prevent a race with a new snapshot.

    _statekeeper/deleting/<run>.jsonl    {"delete": "<path>"}, one per line

Race: retention plans to delete a table that no zip names; a snapshot that names the table is published; the retention
run, maybe after a long stall, deletes the table. So an announced table is **pending_delete** while its announcement
exists: a new snapshot does not name the table (it uploads a copy under another name), and retention does not use a snapshot
that names it as a base. A run withdraws its announcement when it ends. The announcement of a dead run expires after
`LIFE_SECONDS`; a run deletes nothing later than `DELETES_FOR_SECONDS` after its start. The age of an announcement is
measured by the clock of the storage.
"""

from __future__ import annotations

from collections.abc import Iterable

from statekeeper.statestore.format import json_records, names
from statekeeper.statestore.format.json_records import About, Record
from statekeeper.statestore.storage import Storage, read_or_none

DELETES_FOR_SECONDS = 3600.0
LIFE_SECONDS = 24 * 3600.0
_ABOUT = About(
    "list of planned deletions",
    "Statekeeper cannot tell which files a run of gc is deleting",
    "the query is not affected. When the list is more than one day old, no run of gc uses it: then delete it",
)


class _Announced(Record):
    """One line. `delete`: the path of a table."""

    delete: str


def announce(storage: Storage, run: str, paths: Iterable[str]) -> None:
    """Announce that this run is about to delete these tables. Raises `StorageError`."""
    storage.create(names.deleting(run), json_records.encoded_lines(_Announced(delete=path) for path in paths))


def withdraw(storage: Storage, run: str) -> None:
    """Withdraw the announcement of a run that deletes nothing more. Raises `StorageError`."""
    storage.delete([names.deleting(run)])


def pending_delete(storage: Storage) -> frozenset[str]:
    """Return all announced paths. One listing, and one request for each announcement.

    Raises `CorruptFile` for an announcement that cannot be decoded, because its tables are unknown; `StorageError`.
    """
    found: set[str] = set()
    for entry in storage.list(names.DELETING):
        data = read_or_none(storage, entry.path) or b""
        lines = json_records.decoded_lines(_Announced, data, entry.path, _ABOUT)
        found.update(line.delete for line in lines)
    return frozenset(found)
