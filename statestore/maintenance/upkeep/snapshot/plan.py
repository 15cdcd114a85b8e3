"""Plans which stores get a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.upkeep.snapshot.model import (
    LeaveAlone,
    SkipReason,
    SnapshotFacts,
    SnapshotPlan,
    SnapshotPolicy,
    SnapshotReason,
    StoreSnapshotFacts,
    TakeSnapshot,
)


def plan(
    gathered: SnapshotFacts, policy: SnapshotPolicy, *, take_all: bool = False, spark: Spark | None = None
) -> SnapshotPlan:
    """Plan which stores get a snapshot, longest tail first. `spark`: the release that continues, if known. Pure."""
    reasons = {fact.store: _reason(gathered, fact, policy, take_all=take_all) for fact in gathered.stores}
    reasons |= dict.fromkeys(_beyond_target(gathered, policy, reasons), SnapshotReason.TARGET)
    take: list[TakeSnapshot] = []
    leave: list[LeaveAlone] = []
    for fact in gathered.stores:
        reason = reasons[fact.store]
        if isinstance(reason, SnapshotReason) and spark is None and _depends_on_spark(gathered, fact):
            reason = SkipReason.WHICH_SPARK
        if isinstance(reason, SnapshotReason):
            assert fact.load is not None
            version = fact.load.replay[-1]
            header = spark.header if spark is not None and version.id is not None else None
            take.append(
                TakeSnapshot(
                    store=fact.store,
                    version=version,
                    load=fact.load,
                    tail_bytes=fact.tail_bytes,
                    reason=reason,
                    conf=gathered.conf,
                    header=header,
                )
            )
        else:
            leave.append(LeaveAlone(fact.store, fact.head, reason, _detail(fact, reason)))
    take.sort(key=lambda action: (-action.tail_bytes, -len(action.load.replay), action.store))
    taken = {action.store for action in take}
    return SnapshotPlan(
        gathered.batch,
        tuple(take),
        tuple(leave),
        gathered.stateless,
        seconds_before=sum(map(gathered.restore_seconds, gathered.stores)),
        seconds_after=sum(gathered.restore_seconds(fact) for fact in gathered.stores if fact.store not in taken),
    )


def _beyond_target(
    gathered: SnapshotFacts, policy: SnapshotPolicy, reasons: Mapping[StorePath, SnapshotReason | SkipReason]
) -> Iterator[StorePath]:
    """Yield the stores with short tails that must get a snapshot so that the other replays meet the restore target."""
    if policy.restore_target_seconds is None:
        return
    rest = [fact for fact in gathered.stores if not isinstance(reasons[fact.store], SnapshotReason)]
    seconds = sum(map(gathered.restore_seconds, rest))
    for fact in sorted(rest, key=lambda fact: (-fact.tail_bytes, fact.store)):
        if seconds <= policy.restore_target_seconds:
            return
        if reasons[fact.store] is SkipReason.SHORT_TAIL:
            seconds -= gathered.restore_seconds(fact)
            yield fact.store


def _depends_on_spark(gathered: SnapshotFacts, fact: StoreSnapshotFacts) -> bool:
    """Return whether the header depends on the Spark release: the store has no snapshot to copy it from."""
    return gathered.may_be_of_4_0 and fact.load is not None and fact.load.base_kind is BaseKind.NOTHING


def _reason(
    gathered: SnapshotFacts, fact: StoreSnapshotFacts, policy: SnapshotPolicy, *, take_all: bool
) -> SnapshotReason | SkipReason:
    if fact.load is None:
        return SkipReason.NOT_LOADABLE
    if not fact.load.replay and fact.load.base != fact.head:
        return SkipReason.DAMAGED if fact.problem else SkipReason.NEAR_HEAD
    if not fact.load.replay:
        return SkipReason.DAMAGED if fact.problem else SkipReason.AT_HEAD
    if fact.stray_sidecar is not None:
        return SkipReason.SIDECAR
    if take_all:
        return SnapshotReason.ASKED
    if len(fact.load.replay) >= policy.changelogs:
        return SnapshotReason.COUNT
    is_long = gathered.restore_seconds(fact) >= policy.restore_seconds
    return SnapshotReason.RESTORE if is_long else SkipReason.SHORT_TAIL


def _detail(fact: StoreSnapshotFacts, reason: SkipReason) -> str:
    if reason is SkipReason.SIDECAR:
        return fact.stray_sidecar or ""
    if reason.is_finding:
        return fact.problem or ""
    if reason is SkipReason.SHORT_TAIL and fact.load is not None:
        return f"{counted(len(fact.load.replay), 'changelog')}, {fact.tail_bytes:,} bytes since {fact.load.since}"
    return ""
