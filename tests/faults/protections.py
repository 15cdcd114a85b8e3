"""What keeps a checkpoint safe, taken out of the library one by one: a simulation must see that each is missed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from unittest import mock

from statestore.chain import Chain
from statestore.maintenance import announcements, retention
from statestore.maintenance.retention import Deleted, MayDelete, Outcome, RetentionPolicy, Rule, StoreVerdicts
from statestore.maintenance.snapshot import SnapshotPolicy
from statestore.storage import Storage


@dataclass(frozen=True)
class Protection:
    """Something that is missed when it is taken out, soonest in the weather that is given: what differs from chance's."""

    what: str
    removed: Callable[[], AbstractContextManager[object]]
    weather: Mapping[str, object] = field(default_factory=dict)


def _version_rule(instead: Callable[..., Rule | None]) -> AbstractContextManager[object]:
    """Another rule for changelogs and snapshots, where `instead` gives one."""
    right = retention._Judge._version_rule

    def rule(judge, chain, base, version, entry, *, is_snapshot):  # type: ignore[no-untyped-def]
        given = right(judge, chain, base, version, entry, is_snapshot=is_snapshot)
        other = instead(judge, given, chain, version)
        if other is not None and not judge._is_young(entry):
            return other
        return given

    return mock.patch.object(retention._Judge, "_version_rule", rule)


def _running_is_dead(_judge, given, _chain, _version):  # type: ignore[no-untyped-def]
    return Rule.DEAD_BRANCH if given is Rule.RUNNING else None


def _only_the_log_counts(judge, given, chain, version):  # type: ignore[no-untyped-def]
    in_log = version.version in judge._gathered.log.of_store(chain.store)
    return Rule.DEAD_BRANCH if given is Rule.RESTORES and not in_log else None


def _without_a_second_look(storage: Storage, planned: StoreVerdicts, may_delete: MayDelete) -> Iterator[Deleted]:
    for part in retention._delete(storage, planned.deletions, may_delete):
        yield Deleted(planned.store, Outcome.DONE, len(part), 0)


def _wanted_whatever_loads(chains: Iterable[Chain], wanted: int) -> int | None:
    return wanted if any(chain.bases for chain in chains) else None


_MANY_SNAPSHOTS: Mapping[str, object] = {
    "retention": RetentionPolicy(versions=3, grace_seconds=0.0),
    "snapshots": SnapshotPolicy(changelogs=1),
    "has_spark": True,
}

PROTECTIONS = {
    "announcements": Protection(
        "nobody heeds what is announced for deletion",
        lambda: mock.patch.object(announcements, "doomed", return_value=frozenset()),
        _MANY_SNAPSHOTS
        | {
            "stores": 1,
            "batches": 40,
            "stall_chance_of_changes": 0.15,
            "crash_chance": 0.0,
            "failure_chance": 0.0,
            "has_damage": False,
        },
    ),
    "running": Protection("what is newer than the head is taken for dead", lambda: _version_rule(_running_is_dead)),
    "lineage": Protection(
        "committed versions that only a lineage names are taken for dead", lambda: _version_rule(_only_the_log_counts)
    ),
    "second look": Protection(
        "a store is not looked at again before its files go",
        lambda: mock.patch.object(retention, "_execute_store", _without_a_second_look),
        {"has_damage": True},
    ),
    "common floor": Protection(
        "the floor rises whatever the stores load",
        lambda: mock.patch.object(retention, "_common_floor", _wanted_whatever_loads),
        _MANY_SNAPSHOTS | {"stores": 2, "has_damage": True, "stall_chance_of_changes": 0.01, "crash_chance": 0.0},
    ),
    "bounded clocks": Protection(
        "a clock may be off by more than an announcement stands",
        nullcontext,
        _MANY_SNAPSHOTS | {"clock_jumps_seconds": 2 * announcements.STANDS_SECONDS},
    ),
}
