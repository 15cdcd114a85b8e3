"""Removes the protections of a checkpoint one by one. A simulation must detect each removal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from unittest import mock

from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.maintenance.records import announcements
from statekeeper.statestore.maintenance.upkeep.retention import (
    Deleted,
    DeletionOutcome,
    RetentionPolicy,
    Rule,
    StoreVerdicts,
    model,
)
from statekeeper.statestore.maintenance.upkeep.retention.execute import MayDelete
from statekeeper.statestore.maintenance.upkeep.retention.model import BatchLogFile
from statekeeper.statestore.maintenance.upkeep.retention.plan import Judge
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPolicy
from statekeeper.statestore.maintenance.upkeep.verification import Reads
from statekeeper.statestore.storage import Entry, Storage
from tests.faults.weather import Weather

# The packages export functions of the same names.
gathering, planning, deleting = (
    import_module(f"statekeeper.statestore.maintenance.upkeep.retention.{module}")
    for module in ("gather", "plan", "execute")
)


@dataclass(frozen=True)
class Protection:
    """A protection whose removal must cause a failure, soonest with the probabilities of `weather`."""

    what: str
    removed: Callable[[], AbstractContextManager[object]]
    weather: Callable[[Weather], Weather] = lambda weather: weather


WrongRule = Callable[[Judge, Rule, Chain, VersionId], Rule | None]


def _version_rule(instead: WrongRule) -> AbstractContextManager[object]:
    """Another rule for changelogs and snapshots, where `instead` gives one."""
    right = Judge.version_rule

    def rule(
        judging: Judge,
        chain: Chain,
        base: VersionId | None,
        version: VersionId,
        entry: Entry,
        *,
        is_snapshot: bool,
    ) -> Rule:
        given = right(judging, chain, base, version, entry, is_snapshot=is_snapshot)
        other = instead(judging, given, chain, version)
        return given if other is None or judging.is_young(entry) else other

    return mock.patch.object(Judge, "version_rule", rule)


def _running_is_dead(_judging: Judge, given: Rule, _chain: Chain, _version: VersionId) -> Rule | None:
    return Rule.DEAD_BRANCH if given is Rule.RUNNING else None


def _only_the_log_counts(judging: Judge, given: Rule, chain: Chain, version: VersionId) -> Rule | None:
    log = judging.gathered.log
    assert log is not None
    in_log = version.version in log.of_store(chain.store)
    return Rule.DEAD_BRANCH if given is Rule.RESTORES and not in_log else None


def _without_a_second_look(
    storage: Storage, planned: StoreVerdicts, _reads: Reads, _kept_by_quarantine: frozenset[str], may_delete: MayDelete
) -> Iterator[Deleted]:
    for part in deleting._delete(storage, planned.deletions, may_delete):
        yield Deleted(store=planned.store, outcome=DeletionOutcome.DONE, files=len(part), size_bytes=0)


def _trusts_what_was_planned() -> AbstractContextManager[object]:
    """Either of the two finds a base that was damaged after the plan was made."""
    patched = ExitStack()
    patched.enter_context(mock.patch.object(planning, "reads_before", return_value=None))
    patched.enter_context(mock.patch.object(deleting, "_execute_store", _without_a_second_look))
    return patched


def _wanted_whatever_loads(chains: Iterable[Chain], wanted: int) -> int | None:
    return wanted if any(chain.bases for chain in chains) else None


def _floor_rises() -> AbstractContextManager[object]:
    patched = ExitStack()
    for module in (gathering, model):
        patched.enter_context(mock.patch.object(module, "common_floor", _wanted_whatever_loads))
    return patched


def _one_store_decides() -> AbstractContextManager[object]:
    """Delete the object with the changelogs of several stores when one store no longer needs its changelog."""
    right = Judge._batch_log_rule

    def rule(judging: Judge, log: BatchLogFile) -> Rule:
        given = right(judging, log)
        needless = (judging._member_rule(store, version, log.entry) for store, version in log.members or {})
        return next((one for one in needless if one is Rule.SUPERSEDED), given)

    return mock.patch.object(Judge, "_batch_log_rule", rule)


def _many_snapshots(weather: Weather) -> Weather:
    return replace(
        weather,
        retention=RetentionPolicy(versions=3, grace_seconds=0.0),
        snapshots=SnapshotPolicy(changelogs=1),
        has_spark=True,
    )


PROTECTIONS = {
    "announcements": Protection(
        "nobody heeds what is announced for deletion",
        lambda: mock.patch.object(announcements, "pending_delete", return_value=frozenset()),
        lambda weather: replace(
            _many_snapshots(weather),
            stores=1,
            batches=40,
            stall_chance_of_changes=0.15,
            crash_chance=0.0,
            failure_chance=0.0,
            has_damage=False,
        ),
    ),
    "running": Protection("what is newer than the head is taken for dead", lambda: _version_rule(_running_is_dead)),
    "lineage": Protection(
        "committed versions that only a lineage names are taken for dead", lambda: _version_rule(_only_the_log_counts)
    ),
    "second look": Protection(
        "before the files of a store are deleted, its base is neither read nor looked at again",
        _trusts_what_was_planned,
        lambda weather: replace(weather, has_damage=True),
    ),
    "common floor": Protection(
        "the floor rises whatever the stores load",
        _floor_rises,
        lambda weather: replace(
            _many_snapshots(weather), stores=2, has_damage=True, stall_chance_of_changes=0.01, crash_chance=0.0
        ),
    ),
    "every member": Protection(
        "a batch log is deleted when one of its stores no longer needs it",
        _one_store_decides,
        lambda weather: replace(
            _many_snapshots(weather), stores=3, snapshots=SnapshotPolicy(changelogs=4), in_batch_logs=True
        ),
    ),
    "bounded clocks": Protection(
        "a clock may be off by more than an announcement stands",
        nullcontext,
        lambda weather: replace(_many_snapshots(weather), clock_jumps_seconds=2 * announcements.LIFE_SECONDS),
    ),
}
