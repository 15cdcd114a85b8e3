"""The record of merges of a sink table that would leave as many files: later runs do not read their files again.

    _statekeeper/useless_merges.json  {"s3://prod/orders/table": ["5f...", ...]}

A merge is the digest of its files. Their rows never change, so that a merge stays useless as long as it has these files.
"""

from __future__ import annotations

from collections.abc import Collection

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import json_records, names
from statekeeper.statestore.format.json_records import About, Digest
from statekeeper.statestore.storage import Storage, read_or_none

_ABOUT = About("record of merges", hint="delete the file: the next optimize writes it again")


def read(storage: Storage, table: str) -> frozenset[str]:
    """Read the digests of the merges of a table; none if the record is missing or damaged. One request. Raises
    `StorageError`."""
    return frozenset(_all(storage).get(table, ()))


def replace(storage: Storage, table: str, digests: Collection[str]) -> None:
    """Replace the digests of a table. Two requests. Raises `StorageError`."""
    tables = {**_all(storage), table: sorted(digests)}
    storage.replace(
        names.USELESS_MERGES,
        json_records.encoded({url: tables[url] for url in sorted(tables) if tables[url]}, compact=True),
    )


def _all(storage: Storage) -> dict[str, list[Digest]]:
    data = read_or_none(storage, names.USELESS_MERGES)
    if data is None:
        return {}
    try:
        return json_records.decoded(dict[str, list[Digest]], data, names.USELESS_MERGES, _ABOUT)
    except CorruptFile:
        return {}  # the next run reads the files again
