"""Which stores a plan gives a snapshot, and why."""

from __future__ import annotations

from dataclasses import replace

from statekeeper.statestore.checkpoint.lineage import BaseKind, LoadPlan
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.upkeep.snapshot import (
    SkipReason,
    SnapshotFacts,
    SnapshotPolicy,
    SnapshotReason,
    StoreSnapshotFacts,
    plan,
)


def facts(partition: int, tail: int, tail_bytes: int) -> StoreSnapshotFacts:
    versions = tuple(VersionId(n, f"{n:08x}-0000-4000-8000-000000000000") for n in range(1, tail + 2))
    load = LoadPlan(BaseKind.SNAPSHOT, versions[0], versions[1:], versions)
    return StoreSnapshotFacts(store=StorePath(0, partition), head=versions[-1], load=load, tail_bytes=tail_bytes)


def test_stores_with_long_tails_are_planned_worst_first_with_reasons() -> None:
    broken = replace(facts(4, 3, 0), load=None, problem="state/0/4/2.changelog is missing")
    stores = [facts(0, 3, 100), facts(1, 10, 500), facts(2, 2, 9_999), facts(3, 0, 0), broken]
    made = plan(
        SnapshotFacts(batch=9, origin=Origin.OWN, stores=tuple(stores), replay_bytes_per_second=100.0),
        SnapshotPolicy(10, 90.0),
    )
    assert [(action.store.partition, action.reason) for action in made.take] == [
        (2, SnapshotReason.RESTORE),
        (1, SnapshotReason.COUNT),
    ]
    assert made.take[1].explained == (
        "many changelogs since the newest snapshot: 10 changelogs, 500 bytes since batch 0"
    )
    assert [(action.store.partition, action.reason) for action in made.leave] == [
        (0, SkipReason.SHORT_TAIL),
        (3, SkipReason.AT_HEAD),
        (4, SkipReason.NOT_LOADABLE),
    ]
    assert made.leave[2].explained == "the head cannot be loaded: state/0/4/2.changelog is missing"
    every = plan(
        SnapshotFacts(batch=9, origin=Origin.OWN, stores=(stores[0], stores[3], broken)),
        SnapshotPolicy(10, 90.0),
        take_all=True,
    )
    assert [(action.store.partition, action.reason) for action in every.take] == [(0, SnapshotReason.ASKED)]


def test_a_restore_target_takes_the_longest_tails_until_the_rest_meets_it() -> None:
    stores = [facts(0, 3, 100), facts(1, 3, 400), facts(2, 3, 300), facts(3, 3, 200), facts(4, 0, 0)]
    gathered = SnapshotFacts(batch=9, origin=Origin.OWN, stores=tuple(stores), replay_bytes_per_second=100.0)
    without = plan(gathered, SnapshotPolicy(10, 90.0))
    assert (without.take, without.seconds_before, without.seconds_after) == ((), 10.0, 10.0)
    for target, partitions in {10.0: [], 9.9: [1], 6.0: [1], 5.9: [1, 2], 3.0: [1, 2], 0.5: [1, 2, 3, 0]}.items():
        made = plan(gathered, SnapshotPolicy(10, 90.0, target))
        assert [action.store.partition for action in made.take] == partitions, target
        assert {action.reason for action in made.take} <= {SnapshotReason.TARGET}
        assert made.seconds_before == 10.0
        assert made.seconds_after == 10.0 - sum(stores[partition].tail_bytes for partition in partitions) / 100
        assert made.seconds_after <= target


def test_a_restore_target_counts_the_stores_that_another_rule_takes_as_done() -> None:
    stores = [facts(0, 12, 900), facts(1, 3, 100)]
    gathered = SnapshotFacts(batch=9, origin=Origin.OWN, stores=tuple(stores), replay_bytes_per_second=100.0)
    made = plan(gathered, SnapshotPolicy(10, 90.0, 2.0))
    assert [(action.store.partition, action.reason) for action in made.take] == [(0, SnapshotReason.COUNT)]
    assert (made.seconds_before, made.seconds_after) == (10.0, 1.0)
