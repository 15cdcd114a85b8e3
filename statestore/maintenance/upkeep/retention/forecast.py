"""Computes what a retention plan deletes now, and when it can delete the other files: counts and bytes. Pure.

The audit, `gc` and the health of a fleet show the same figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.records import announcements
from statekeeper.statestore.maintenance.upkeep.retention import uploads
from statekeeper.statestore.maintenance.upkeep.retention.model import (
    RetentionFacts,
    RetentionPlan,
    RetentionPolicy,
    Rule,
    StoreVerdicts,
)
from statekeeper.statestore.storage import TEMP_FOLDER, Entry

_ASK_AGAIN = {
    Rule.RUNNING: "after their batch or a later batch is committed",
    Rule.REUSABLE: "after the query is stopped, with: gc --orphans --confirm-stopped",
    Rule.UPLOADED: "after the query is stopped, with: gc --orphans --confirm-stopped",
    Rule.PARTITION: "when the retention floor has passed the rescale, after a snapshot of each store",
    Rule.FORMER_ID: "never, because the table of the query may have batches with this id",
    Rule.HELD: "after the findings of the audit are resolved",
    Rule.UNKNOWN: "because gc deletes only recognized files",
}
_BY_AGE = (Rule.YOUNG, Rule.QUARANTINE)
_BY_BATCHES = (Rule.RESTORES, Rule.LOG, Rule.STARTS)


@dataclass(frozen=True)
class Amount:
    """A number of files, and their size in bytes."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Later:
    """Files that one rule keeps for now, and when they can be deleted. `from_seconds`: Unix time at which the first of them
    can be deleted; only for a rule that depends on age alone."""

    rule: Rule
    kept: Amount
    when: str
    from_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The files that a plan deletes `now`, in total and by store, and the files that it keeps for `later`, largest first.

    `floor`: the oldest retained version; `wanted_floor`: the oldest version to retain by count and age.
    """

    head: int | None
    floor: int | None
    wanted_floor: int
    now: Amount
    later: tuple[Later, ...]
    stores: Mapping[StorePath, Amount] = field(default_factory=dict)


def forecast(gathered: RetentionFacts, planned: RetentionPlan, policy: RetentionPolicy) -> Forecast:
    """Compute the figures of a plan that was made from these facts. Pure."""
    files: Counter[Rule] = Counter()
    sizes: Counter[Rule] = Counter()
    for verdict in planned.verdicts:
        files[verdict.rule] += 1
        sizes[verdict.rule] += verdict.size_bytes
    deleted = [rule for rule in files if rule.deletes]
    ages = _ages(gathered, planned, policy)
    later = [
        Later(rule, Amount(files[rule], sizes[rule]), *_when(rule, gathered, planned, policy, ages))
        for rule in files
        if not rule.deletes
    ]
    return Forecast(
        head=planned.head,
        floor=planned.floor,
        wanted_floor=planned.wanted_floor,
        now=Amount(sum(files[rule] for rule in deleted), sum(sizes[rule] for rule in deleted)),
        later=tuple(sorted(later, key=lambda one: (-one.kept.bytes, one.rule.name))),
        stores={store.store: _deleted(store) for store in (*planned.stores, *planned.removed)},
    )


def _deleted(store: StoreVerdicts) -> Amount:
    sizes = [verdict.size_bytes for verdict in store.files if verdict.rule.deletes]
    return Amount(len(sizes), sum(sizes))


def _when(
    rule: Rule,
    gathered: RetentionFacts,
    planned: RetentionPlan,
    policy: RetentionPolicy,
    ages: Mapping[Rule, list[float]],
) -> tuple[str, float | None]:
    if rule in _BY_AGE:
        known = ages.get(rule, [])
        if not known:
            return "unknown: the storage reports no modification time", None
        first, last = min(known), max(known)
        begin, end = utc(first), utc(last)
        return f"from {begin}" + (f"; all of them from {end}" if end != begin else ""), first
    if rule in _BY_BATCHES or rule is Rule.WAY_BACK:
        return _after_batch(
            gathered, planned, policy, newer_than=gathered.switched if rule is Rule.WAY_BACK else 0
        ), None
    return _ASK_AGAIN[rule], None


def _after_batch(
    gathered: RetentionFacts, planned: RetentionPlan, policy: RetentionPolicy, *, newer_than: int | None
) -> str:
    """Return when the floor reaches the next snapshot of any store: from then on, files below that snapshot are not
    needed."""
    bases = {store.store: store.base for store in planned.stores}
    newer = [
        min((v.version for v in chain.snapshots if v.version > max(base.version, newer_than or 0)), default=None)
        for chain in gathered.chains
        if (base := bases.get(chain.store)) is not None
    ]
    there = [version for version in newer if version is not None]
    if not there:
        return "after the next snapshot, when the retention floor reaches it"
    reached = min(there)
    return (
        f"when the retention floor reaches the snapshot of batch {reached - 1:,}, after batch "
        f"{reached + policy.versions - 2:,} and the grace period"
    )


def _ages(gathered: RetentionFacts, planned: RetentionPlan, policy: RetentionPolicy) -> Mapping[Rule, list[float]]:
    """Return, by rule, the Unix times at which the files that are kept only by age can be deleted."""
    rules = {verdict.path: verdict.rule for verdict in planned.verdicts if verdict.rule in _BY_AGE}
    found: dict[Rule, list[float]] = {}
    for entry in _entries(gathered) if rules else ():
        rule = rules.get(entry.path)
        if rule is not None and entry.modified_at_seconds is not None:
            found.setdefault(rule, []).append(entry.modified_at_seconds + _stays_seconds(entry.path, rule, policy))
    return found


def _entries(gathered: RetentionFacts) -> Iterator[Entry]:
    for chain in gathered.chains:
        yield from chain.files.entries
    for files in gathered.removed.values():
        yield from files.entries
    logs = gathered.logs
    yield from (log.entry for log in logs.batch_logs)
    yield from map(uploads.entry_of, logs.uploads)
    for entries in (
        logs.offsets,
        logs.commits,
        logs.pending,
        logs.history,
        logs.announcements,
        logs.leftovers,
        logs.quarantine,
    ):
        yield from entries


def _stays_seconds(path: str, rule: Rule, policy: RetentionPolicy) -> float:
    if rule is Rule.QUARANTINE:
        return policy.quarantine_seconds
    if path.startswith(f"{names.HISTORY}/"):
        return policy.history_seconds
    if uploads.is_upload(path):
        return uploads.LIFE_SECONDS
    if path.startswith((f"{names.DELETING}/", f"{TEMP_FOLDER}/")):
        return announcements.LIFE_SECONDS
    return policy.grace_seconds
