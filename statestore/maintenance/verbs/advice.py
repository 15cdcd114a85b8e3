"""Recommend the configuration of a native query whose snapshots Statekeeper takes, if its checkpoint shows another one.

The reasons are in docs/how-to/spark-queries.md. Spark reads these configuration values at each start and does not store
them in the checkpoint. Without maintenance, a query needs Spark's own snapshots: only a checkpoint that Statekeeper
maintains on a schedule gets the advice to disable them.
"""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.chain import look_at_snapshot
from statekeeper.statestore.maintenance.records import history
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotFacts
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.storage import Storage

_STATE = "spark.sql.streaming.stateStore."
_CHANGELOGS = f"{_STATE}rocksdb.changelogCheckpointing.enabled"
_DELTAS = f"{_STATE}minDeltasForSnapshot"
_FORCED = f"{_STATE}forceSnapshotUploadOnLag"
_NEVER = 2_147_483_647
_BEFORE_THE_CEILING = 250
"""In structure V2 a running query needs its own snapshots: it fails after about 800 changelogs, and detects snapshots of
Statekeeper only at a restart. This interval tolerates two failed snapshots."""

_DAY_SECONDS = 86_400.0
_MAINTAINED_DAYS = 2
"""The nightly sweep maintains idle queries, too. Twice its interval tolerates one failed night."""
_SCHEDULED_DAYS, _OF_DAYS = 3, 7
"""A schedule has run on three of the last seven days. One run, or several in one evening, can be a person's."""

_VERBS = ("snapshot", "gc")
"""The verbs that a schedule runs, and whose runs the history of a checkpoint records."""


@dataclass(frozen=True)
class Advice:
    """An observation in the checkpoint, and the recommended configuration."""

    seen: str
    confs: dict[str, str]


def advice(storage: Storage, gathered: SnapshotFacts, mode: Mode, *, clock: Clock) -> list[Advice]:
    """Return the advice for a native checkpoint; none for a Python job. At most two listings and one request.

    `mode`: of the checkpoint; in mode `observe`, Statekeeper takes no snapshots. Raises `StorageError`."""
    if gathered.origin is Origin.OWN or not gathered.stores:
        return []
    files = catalog.files(storage, gathered.stores[0].store.folder)
    store = gathered.stores[0].store
    of_store = files.of(store)
    if not of_store.snapshots:
        return []
    if not of_store.changelogs:
        return [Advice("the checkpoint has no changelogs: each batch uploads a snapshot", {_CHANGELOGS: "true"})]
    newest = max(of_store.snapshots, key=lambda version: version.version)
    facts = look_at_snapshot(storage, store, newest, of_store)
    if facts.metadata is None or facts.is_ours or (facts.metadata.column_families and newest.version == 1):
        return []
    if mode is Mode.OBSERVE or not _is_maintained(storage, clock.now_seconds()):
        return []
    deltas = _NEVER if newest.id is None else _BEFORE_THE_CEILING
    return [
        Advice(
            "Spark takes its own snapshots, which duplicate the work of Statekeeper",
            {_DELTAS: f"{deltas}", _FORCED: "false"},
        )
    ]


def _is_maintained(storage: Storage, now_seconds: float) -> bool:
    """Return whether Statekeeper takes snapshots, or deletes files after it examined the checkpoint, on a schedule."""
    ages = [(now_seconds - started) / _DAY_SECONDS for started in history.starts_of_runs(storage, _VERBS)]
    days = {int(age) for age in ages if age < _OF_DAYS}
    return len(days) >= _SCHEDULED_DAYS and min(ages) <= _MAINTAINED_DAYS
