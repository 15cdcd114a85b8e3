"""A checkpoint at rest: which stores and files it has, from listings alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from statestore.format import names
from statestore.format.names import StoreFileKind, StorePath, VersionId
from statestore.storage import Storage


def snapshots(storage: Storage) -> Mapping[StorePath, frozenset[VersionId]]:
    """The versions of each store that have a snapshot. One listing of `state/`: it costs what is there."""
    found: defaultdict[StorePath, set[VersionId]] = defaultdict(set)
    for entry in storage.list(names.STATE):
        parsed = names.parse_store_path(entry.path)
        if parsed is not None and parsed[1].kind is StoreFileKind.SNAPSHOT:
            found[parsed[0]].add(parsed[1].version)
    return {store: frozenset(versions) for store, versions in found.items()}


def newest_batch(storage: Storage) -> int | None:
    """The newest batch in the commit log; None when there is none."""
    batches = (names.parse_batch(entry.path.rpartition("/")[2]) for entry in storage.list(names.COMMITS))
    return max((batch for batch in batches if batch is not None), default=None)
