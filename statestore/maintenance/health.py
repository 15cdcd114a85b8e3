"""One row for each checkpoint of a fleet: how far it is, what a restart would cost, what it holds, what is wrong."""

from __future__ import annotations

from dataclasses import dataclass

from statestore.clock import Clock
from statestore.maintenance import passes, snapshot
from statestore.maintenance.audit import Finding, Severity
from statestore.maintenance.config import Policies
from statestore.maintenance.history import newest_outcome
from statestore.maintenance.history_records import DeletedFiles
from statestore.maintenance.retention import Amount
from statestore.storage import Storage


@dataclass(frozen=True)
class Health:
    """The figures of a checkpoint.

    version              the newest committed one; 0 before the first batch
    stores               how many there are
    longest_tail         changelogs between base and head, of the store that has most
    restore_seconds      what a restart would wait for all tails, one after the other, as the newest snapshots measured it
    files, bytes         of all stores; `reclaimable_`: what the next retention run deletes, logs and records included
    orphan_files         of all files, those that no committed version can reach, `orphan_bytes`: see `StoreAudit`
    reclaimed_bytes      what the newest retention run deleted
    least_commits_left   to the ceiling of the lineage, of the store that is nearest; None where there is none
    errors, warnings     findings of the audit; `worst` is the first of them
    requests             what looking cost
    """

    version: int
    stores: int
    longest_tail: int
    tail_bytes: int
    restore_seconds: float
    files: int
    bytes: int
    reclaimable_files: int
    reclaimable_bytes: int
    orphan_files: int
    orphan_bytes: int
    reclaimed_bytes: int
    least_commits_left: int | None
    errors: int
    warnings: int
    worst: Finding | None
    requests: int

    @property
    def is_clean(self) -> bool:
        """Whether its audit had no finding."""
        return self.worst is None


def look(storage: Storage, policies: Policies, *, clock: Clock) -> Health:
    """The figures of a checkpoint; what `snapshot.gather`, `audit.gather` and `retention.gather` take. Raises as the first
    two."""
    before = storage.requests.snapshot()
    gathered = snapshot.gather(storage, at_head=True)
    looked = passes.audit.look(storage, policies, clock=clock)
    audit = looked.audit
    reclaimable = looked.forecast.now if looked.forecast else Amount()
    reclaimed = newest_outcome(storage, "gc")
    return Health(
        version=0 if audit.batch is None else audit.batch + 1,
        stores=len(gathered.stores),
        longest_tail=max((len(fact.load.replay) for fact in gathered.stores if fact.load), default=0),
        tail_bytes=sum(fact.tail_bytes for fact in gathered.stores),
        restore_seconds=sum(gathered.restore_seconds(fact) for fact in gathered.stores),
        files=sum(store.files for store in audit.stores),
        bytes=sum(store.bytes for store in audit.stores),
        reclaimable_files=reclaimable.files,
        reclaimable_bytes=reclaimable.bytes,
        orphan_files=sum(store.orphan_files for store in audit.stores),
        orphan_bytes=sum(store.orphan_bytes for store in audit.stores),
        reclaimed_bytes=sum(record.bytes for record in reclaimed if isinstance(record, DeletedFiles)),
        least_commits_left=min((s.commits_left for s in audit.stores if s.commits_left is not None), default=None),
        errors=audit.count(Severity.ERROR),
        warnings=audit.count(Severity.WARNING),
        worst=next(iter(audit.findings), None),
        requests=storage.requests.since(before).total,
    )
