"""Which stores a drill restores: the longest restores, and each store within a quarter."""

from __future__ import annotations

import pytest

from statekeeper.statestore.checkpoint.lineage import BaseKind, LoadPlan
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.maintenance.records.drills import StoreDrill, measured
from statekeeper.statestore.maintenance.upkeep.drill import DrillFacts, DrillPlan, Reason, StoreFacts, plan, sample_size
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotFacts

WEEK = 7 * 86_400.0
LOAD = LoadPlan(BaseKind.NOTHING, EMPTY, (VersionId(1),), ())


def facts(stores: int, last: dict[StorePath, StoreDrill] | None = None, lost: int = 0) -> DrillFacts:
    """Stores of which the first ones have the longest restores. `lost`: those without a load."""
    every = tuple(
        StoreFacts(
            store=StorePath(0, number),
            version=VersionId(1),
            load=None if number < lost else LOAD,
            predicted_seconds=float(stores - number),
        )
        for number in range(stores)
    )
    return DrillFacts(gathered=SnapshotFacts(batch=0, origin=Origin.OWN, stores=()), stores=every, last=last or {})


def reasons(planned: DrillPlan) -> dict[int, Reason]:
    return {one.store.partition: one.reason for one in planned.drill}


def drill_at(seconds: float, **given: object) -> StoreDrill:
    return StoreDrill(version=1, drilled_at_seconds=seconds, digest="0:0", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("stores", [1, 2, 4, 13, 14, 50, 200, 1000])
def test_weekly_drills_restore_each_store_within_a_quarter(stores: int) -> None:
    last: dict[StorePath, StoreDrill] = {}
    for week in range(13):
        planned = plan(facts(stores, last))
        assert len(planned.drill) == sample_size(stores) <= max(8, stores / 13 * 2 + 2)
        last |= {one.store: drill_at(week * WEEK) for one in planned.drill}
    assert len(last) == stores
    assert min(one.drilled_at_seconds for one in last.values()) >= 0


@pytest.mark.parametrize("stores", [1, 13, 50, 200])
def test_stores_whose_drills_are_not_recorded_take_turns(stores: int) -> None:
    restored = {one.store for week in range(2918, 2931) for one in plan(facts(stores), turn=week).drill}
    assert len(restored) == stores


def test_the_worst_restores_come_first_and_are_in_every_sample() -> None:
    last = {StorePath(0, number): drill_at(1000.0 - number) for number in range(26)}
    assert reasons(plan(facts(26, last), sample=4)) == {
        0: Reason.WORST,
        1: Reason.WORST,
        24: Reason.OLDEST,
        25: Reason.OLDEST,
    }
    assert [one.store.partition for one in plan(facts(26, last), sample=4).drill] == [0, 1, 24, 25]
    assert list(reasons(plan(facts(26), sample=4))) == [0, 1, 2, 3], "none was ever restored"


def test_a_store_that_was_never_restored_is_before_those_that_were() -> None:
    last = {StorePath(0, number): drill_at(0.0) for number in range(25)}
    assert reasons(plan(facts(26, last), sample=2)) == {0: Reason.WORST, 25: Reason.NEVER}


def test_the_plan_says_how_many_drills_restore_each_store() -> None:
    assert plan(facts(260)).rounds == 13
    assert plan(facts(26), sample=1).rounds == 26
    assert plan(facts(26), sample=100).rounds == 1


def test_a_store_without_a_load_is_in_each_sample() -> None:
    last = {StorePath(0, number): drill_at(1000.0 + number) for number in range(26)}
    found = reasons(plan(facts(26, last, lost=3), sample=2))
    assert [number for number, reason in found.items() if reason is Reason.NOT_LOADABLE] == [0, 1, 2]
    assert len(found) == 5


def test_measurements_give_a_rate_for_long_tails_and_seconds_per_changelog_for_short_ones() -> None:
    mib = 1024 * 1024
    found = measured(
        {
            StorePath(0, 0): drill_at(9.0, has_base=True, base_seconds=1.0, replay_seconds=2.0, tail_bytes=8 * mib),
            StorePath(0, 1): drill_at(9.0, has_base=True, base_seconds=3.0, replay_seconds=0.5, changelogs=5),
            StorePath(0, 2): drill_at(9.0 - 10 * WEEK, has_base=True, base_seconds=99.0),
        }.items()
    )
    assert found is not None
    assert (found.stores, found.seconds, found.base_seconds) == (2, 6.5, 2.0)
    assert (found.bytes_per_second, found.seconds_per_changelog) == (4 * mib, 0.1)
    how = {"changelogs": 10, "tail_bytes": 40 * mib, "bytes_per_second": 1.0}
    assert found.load_seconds(StorePath(0, 1), has_base=True, **how) == 3.0 + 10.0  # type: ignore[arg-type]
    assert found.load_seconds(StorePath(0, 9), has_base=True, **how) == 2.0 + 10.0  # type: ignore[arg-type]
    assert found.load_seconds(StorePath(0, 9), has_base=False, **how) == 10.0  # type: ignore[arg-type]
    assert measured([]) is None
