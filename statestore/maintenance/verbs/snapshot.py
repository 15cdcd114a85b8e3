"""Plans and makes snapshots of stores with long tails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records.history import History, Json
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.upkeep.snapshot import (
    SnapshotFacts,
    SnapshotPlan,
    SnapshotPolicy,
    Taken,
    TakeSnapshot,
)
from statekeeper.statestore.maintenance.verbs import as_json, guards
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import Run, Verb, Work
from statekeeper.statestore.storage import Storage

Ended: TypeAlias = tuple[TakeSnapshot, Taken | StatekeeperError]
"""A planned snapshot and its result. A verb tells them from one thread at a time."""


@dataclass(frozen=True, kw_only=True)
class PlannedSnapshots:
    """A snapshot plan by a policy, its facts, and the mode of the root."""

    mode: Mode
    policy: SnapshotPolicy
    gathered: SnapshotFacts
    plan: SnapshotPlan

    @property
    def tails(self) -> Mapping[StorePath, int]:
        """Number of changelogs that a restart replays, for each loadable store."""
        return {fact.store: len(fact.load.replay) for fact in self.gathered.stores if fact.load is not None}


@dataclass(frozen=True)
class Snapshots:
    """The results of the planned snapshots. `taken` and `failed` have the order of the plan."""

    taken: tuple[Taken, ...] = ()
    failed: tuple[tuple[TakeSnapshot, StatekeeperError], ...] = ()

    @classmethod
    def of(cls, ended: Sequence[Ended], planned: SnapshotPlan) -> Snapshots:
        """Sort results into the order of the plan. A store without a result is left out."""
        outcomes = {action.store: outcome for action, outcome in ended}
        in_order = [(action, outcomes[action.store]) for action in planned.take if action.store in outcomes]
        return cls(
            tuple(outcome for _, outcome in in_order if isinstance(outcome, Taken)),
            tuple((action, outcome) for action, outcome in in_order if isinstance(outcome, StatekeeperError)),
        )

    def tails(self, planned: PlannedSnapshots) -> Mapping[StorePath, int]:
        """The tails after the run, at the same head: batches that were committed during the run do not count."""
        return {**planned.tails, **{one.action.store: 0 for one in self.taken}}


@dataclass(frozen=True, kw_only=True)
class Snapshot(Verb[PlannedSnapshots, Ended, Snapshots]):
    """Take the snapshots that the policy requires, or with `take_all` or `at_head` those of all stores.

    `at_head`: snapshots of the head even if a running query may replace it (a Spark query in structure V1). That query must
    be stopped. `for_spark`: the release that continues. The query may be running otherwise, and the run only adds files. A
    failure does not stop the other stores.
    """

    name = "snapshot"
    take_all: bool = False
    at_head: bool = False
    for_spark: Spark | None = None

    def plan(self, run: Run) -> PlannedSnapshots:
        """Raises `RefusedAsUnsafe` for `at_head` while the query runs; `NotACheckpoint`, `CorruptFile`, `StorageError`."""
        gathered = snapshot.gather(run.storage)
        if self.at_head and gathered.replaces_versions:
            run.require_stopped(confirmed=run.stopped)
            gathered = snapshot.gather(run.storage, at_head=True)
        policy = run.policies.snapshot
        planned = snapshot.plan(gathered, policy, take_all=self.take_all or self.at_head, spark=self.for_spark)
        return PlannedSnapshots(
            mode=run.policies.mode_for(gathered.origin), policy=policy, gathered=gathered, plan=planned
        )

    def has_work(self, plan: PlannedSnapshots) -> bool:
        return bool(plan.plan.take)

    def allowed(self, run: Run, plan: PlannedSnapshots) -> StatekeeperError | None:
        return guards.adds(run.storage, plan.mode)

    def needs_stopped(self, plan: PlannedSnapshots) -> bool:
        return False

    def record(self, plan: PlannedSnapshots) -> list[Json]:
        return [as_json.of_action(action) for action in plan.plan.take]

    def record_step(self, step: Ended) -> Json:
        return as_json.of_outcome(*step)

    def execute(self, run: Run, plan: PlannedSnapshots, work: Work[Ended]) -> Snapshots:
        """Make the planned snapshots. *Guarantee*: as `snapshot.execute`. Raises `RefusedAsUnsafe` if the structure of the
        checkpoint has changed since the plan."""
        _require_no_ids_in_v1(run.storage, plan.plan.take)
        ended: list[Ended] = []

        def record(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> None:
            ended.append((action, outcome))
            work.tell((action, outcome))

        snapshot.execute_all(
            work.storage,
            plan.plan.take,
            record,
            scratch=run.scratch,
            workers=run.workers,
            memory_bytes=run.memory_bytes,
            clock=run.by.clock,
            ids=run.by.ids,
        )
        return Snapshots.of(ended, plan.plan)


def _require_no_ids_in_v1(storage: Storage, actions: Sequence[TakeSnapshot]) -> None:
    """Require that no planned snapshot has an id if the checkpoint has structure V1.

    Race: the snapshots are planned; a switchover to structure V1 starts, ends, and releases the lease; a snapshot with an
    id is published, and no query starts beside it. A snapshot without an id does no harm in structure V2.
    """
    newest = catalog.newest_batch(storage)
    with_id = next((action for action in actions if action.version.id is not None), None)
    if with_id and newest is not None and catalog.structure_at(storage, newest) is Structure.V1:
        raise RefusedAsUnsafe(
            "the checkpoint was switched to structure V1 after the plan was made; no snapshot was made",
            path=with_id.path,
            hint="run this command again",
        )


def take_emergency_snapshots(
    storage: Storage,
    actions: Sequence[TakeSnapshot],
    ended: Callable[[TakeSnapshot, Taken | StatekeeperError], None],
    unrecorded: Callable[[StatekeeperError], None],
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
) -> None:
    """Make the snapshots that a running job cannot wait for: one at a time, and without the lease.

    An error of the record does not stop them; `unrecorded` is called with it. A failure does not stop the others.
    """
    history = History.begin(storage, "snapshot", ids.fresh(), clock)
    done: list[Json] = []

    def record(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> None:
        done.append(as_json.of_outcome(action, outcome))
        ended(action, outcome)

    _reported(unrecorded, lambda: history.plan(map(as_json.of_action, actions)))
    snapshot.execute_all(storage, actions, record, scratch=scratch, workers=1, clock=clock, ids=ids)
    _reported(unrecorded, lambda: history.outcome(done))


def _reported(report: Callable[[StatekeeperError], None], work: Callable[[], None]) -> None:
    try:
        work()
    except StatekeeperError as error:
        report(error)
