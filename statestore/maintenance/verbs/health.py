"""Compute the health of a checkpoint: version, restore debt, size and findings."""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.records.history import DeletedFiles, newest_outcome
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.upkeep.audit import Finding, Severity
from statekeeper.statestore.maintenance.upkeep.retention import Amount
from statekeeper.statestore.maintenance.verbs import audit as audits
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Health:
    """The figures of a checkpoint.

    version              newest committed version; 0 before the first batch
    stores               number of stores
    longest_tail         longest tail of a store, in changelogs
    restore_seconds      restore debt: sequential replay of all tails, at the speed that the newest snapshots measured
    files, bytes         of all stores; `reclaimable_`: deleted by the next retention run, logs and records included
    orphan_files         files that no committed version can reach, `orphan_bytes` likewise: see `StoreAudit`
    reclaimed_bytes      deleted by the newest retention run
    least_commits_left   lowest number of commits before a lineage ceiling; None without lineages
    errors, warnings     number of findings; `worst` is the first finding
    requests             requests that this call made
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
        """Whether the audit has no finding."""
        return self.worst is None


def look(storage: Storage, policies: Policies, *, clock: Clock) -> Health:
    """Compute the figures of a checkpoint. Requests: those of `snapshot.gather`, `audit.gather` and `retention.gather`.
    Raises the errors of the first two."""
    before = storage.requests.snapshot()
    gathered = snapshot.gather(storage, at_head=True, supported=tuple(Provider))
    looked = audits.look(storage, policies, clock=clock)
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
