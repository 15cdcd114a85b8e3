"""How a query of Spark's is best set while its snapshots are made outside, and whether its checkpoint shows that it is not.

The reasons are in docs/how-to/spark-queries.md. The confs are those of a run, not of the checkpoint: Spark takes them
anew at each start, and what a checkpoint does not show is not told.
"""

from __future__ import annotations

from dataclasses import dataclass

from statestore import catalog
from statestore.chain import look_at_snapshot
from statestore.maintenance.snapshot import SnapshotFacts
from statestore.storage import Storage

_STATE = "spark.sql.streaming.stateStore."
_CHANGELOGS = f"{_STATE}rocksdb.changelogCheckpointing.enabled"
_DELTAS = f"{_STATE}minDeltasForSnapshot"
_FORCED = f"{_STATE}forceSnapshotUploadOnLag"
_NEVER = 2_147_483_647
_BEFORE_THE_CEILING = 250
"""In structure V2 a query that runs on and on needs a snapshot of Spark's own now and then: after some 800 changelogs it
stops, and does not see those that are made outside before it starts again. Two that fail are borne."""


@dataclass(frozen=True)
class Advice:
    """What the checkpoint shows, and the confs that would do better."""

    seen: str
    confs: dict[str, str]


def advice(storage: Storage, gathered: SnapshotFacts) -> list[Advice]:
    """For a checkpoint of Spark's; none for our own. A listing, and one request at most. Raises `StorageError`."""
    if gathered.is_own or not gathered.stores:
        return []
    files = catalog.files(storage, gathered.stores[0].store.folder)
    store = gathered.stores[0].store
    of_store = files.get(store, catalog.StoreFiles())
    if not of_store.snapshots:
        return []
    if not of_store.changelogs:
        return [Advice("there are snapshots and no changelogs: each batch uploads one", {_CHANGELOGS: "true"})]
    newest = max(of_store.snapshots, key=lambda version: version.version)
    facts = look_at_snapshot(storage, store, newest, of_store)
    if facts.metadata is None or facts.is_ours or (facts.metadata.column_families and newest.version == 1):
        return []
    deltas = _NEVER if newest.id is None else _BEFORE_THE_CEILING
    return [
        Advice(
            "Spark makes snapshots itself: whoever makes them outside makes them a second time",
            {_DELTAS: f"{deltas}", _FORCED: "false"},
        )
    ]
