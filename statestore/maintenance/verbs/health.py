"""Compute the health of a checkpoint: version, restore debt, size and findings."""

from __future__ import annotations

from dataclasses import dataclass, field

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.records import drills
from statekeeper.statestore.maintenance.records.history import DeletedFiles, newest_outcome_among, runs_since
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.upkeep.audit import Finding, Severity
from statekeeper.statestore.maintenance.upkeep.retention import Amount
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotFacts
from statekeeper.statestore.maintenance.verbs import audit as audits
from statekeeper.statestore.maintenance.verbs.audit import Looked
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.root.attempts import metrics_at
from statekeeper.statestore.storage import Entry, RequestCounts, Storage
from statekeeper.statestore.storage.query_metrics import QueryMetrics

_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Health:
    """The figures of a checkpoint.

    version              newest committed version; 0 before the first batch
    stores               number of stores
    longest_tail         longest tail of a store, in changelogs
    restore_seconds      restore debt: sequential replay of all tails, at the speed that the newest snapshots measured; with
                         the bases, at the speed that drills measured, if there were any
    drilled_at_seconds   of the newest drill that measured it; None without one
    files, bytes         of all stores; `reclaimable_`: deleted by the next retention run, logs and records included
    orphan_files         files that no committed version can reach, `orphan_bytes` likewise: see `StoreAudit`
    reclaimed_bytes      deleted by the newest retention run
    least_commits_left   lowest number of commits before a lineage ceiling; None without lineages
    errors, warnings     number of findings; `worst` is the first finding
    counts               requests that this call made, by price; `requests` is their number
    runs_of_last_day     runs of maintenance of the last 24 hours that the history has
    job                  figures that the job recorded; None for a native query, and for a job without them
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
    counts: RequestCounts = field(default_factory=RequestCounts)
    runs_of_last_day: int = 0
    job: QueryMetrics | None = None
    drilled_at_seconds: float | None = None

    @property
    def requests(self) -> int:
        """The number of requests that this call made."""
        return self.counts.total

    @property
    def is_clean(self) -> bool:
        """Whether the audit has no finding."""
        return self.worst is None


@dataclass(frozen=True)
class Examined:
    """The figures of a checkpoint, and what they were computed from. `history`: the listing of the history."""

    health: Health
    looked: Looked
    gathered: SnapshotFacts
    history: tuple[Entry, ...]


def look(storage: Storage, policies: Policies, *, clock: Clock) -> Health:
    """Compute the figures of a checkpoint. See `examined`."""
    return examined(storage, policies, clock=clock).health


def examined(storage: Storage, policies: Policies, *, clock: Clock) -> Examined:
    """Compute the figures of a checkpoint. Requests: those of `snapshot.gather`, `audit.gather` and `retention.gather`, the
    record of drills, a listing of the history, and for a job those of `metrics_at`. Raises the errors of the first two."""
    before = storage.requests.snapshot()
    gathered = snapshot.gather(storage, at_head=True, supported=tuple(Provider))
    gathered = gathered.corrected_by(drills.read(storage))
    looked = audits.look(storage, policies, clock=clock)
    audit = looked.audit
    reclaimable = looked.forecast.now if looked.forecast else Amount()
    listed = tuple(storage.list(names.HISTORY))
    reclaimed = newest_outcome_among(storage, "gc", listed)
    batch = audit.batch if gathered.origin is Origin.OWN else None
    job = None if batch is None else metrics_at(storage, batch)
    health = Health(
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
        counts=storage.requests.since(before),
        runs_of_last_day=runs_since(clock.now_seconds() - _DAY_SECONDS, listed),
        job=job,
        drilled_at_seconds=None if gathered.measured is None else gathered.measured.drilled_at_seconds,
    )
    return Examined(health, looked, gathered, listed)
