"""Plans and makes snapshots of stores with long tails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.contents.quiet import QUIET_SECONDS, require_stopped
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.upkeep.snapshot import (
    MEMORY_BYTES,
    SnapshotFacts,
    SnapshotPlan,
    SnapshotPolicy,
    Taken,
    TakeSnapshot,
)
from statekeeper.statestore.maintenance.verbs import guards, runs
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.guards import Maintainer, Refusals
from statekeeper.statestore.maintenance.verbs.runs import Ended
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True, kw_only=True)
class PreparedSnapshots:
    """A snapshot plan by a policy, its facts, and the guards that block it."""

    mode: Mode
    policy: SnapshotPolicy
    gathered: SnapshotFacts
    plan: SnapshotPlan
    refusals: Refusals


@dataclass(frozen=True, kw_only=True)
class SnapshotPass:
    """The result of a snapshot pass. `taken` and `failed` have the order of the plan."""

    mode: Mode
    gathered: SnapshotFacts
    plan: SnapshotPlan
    taken: tuple[Taken, ...] = ()
    failed: tuple[tuple[TakeSnapshot, StatekeeperError], ...] = ()

    @property
    def tails_before(self) -> Mapping[StorePath, int]:
        """Number of changelogs that a restart replays before the pass, for each loadable store."""
        return {fact.store: len(fact.load.replay) for fact in self.gathered.stores if fact.load is not None}

    @property
    def tails_after(self) -> Mapping[StorePath, int]:
        """The same after the pass, at the same head: batches that were committed during the pass do not count."""
        return {**self.tails_before, **{one.action.store: 0 for one in self.taken}}


def plan(
    storage: Storage,
    policies: Policies,
    *,
    clock: Clock,
    mode: Mode | None = None,
    take_all: bool = False,
    at_head: bool = False,
    stopped: bool = False,
    spark: Spark | None = None,
    quiet_seconds: float = QUIET_SECONDS,
) -> PreparedSnapshots:
    """Plan the snapshots that the policy requires, or with `take_all` or `at_head` those of all stores. Read-only.

    `at_head`: snapshots of the head even if a running query may replace it (a Spark query in structure V1). That needs
    `stopped`: a person confirms that the query is stopped. `quiet_seconds`: how long the checkpoint must then not change.
    `mode` overrides the configured mode; `spark`: the release that continues. Raises `RefusedAsUnsafe` for `at_head` while
    the query runs; `NotACheckpoint`, `CorruptFile`, `StorageError`.
    """
    gathered = snapshot.gather(storage)
    if at_head and gathered.replaces_versions:
        require_stopped(storage, confirmed=stopped, clock=clock, seconds=quiet_seconds)
        gathered = snapshot.gather(storage, at_head=True)
    planned = snapshot.plan(gathered, policies.snapshot, take_all=take_all or at_head, spark=spark)
    allowed = mode or policies.mode_for(gathered.origin)
    by_guards = (guards.adds(storage, allowed), guards.half_switched(storage), guards.unheld(storage, clock))
    found = guards.refusals(*(by_guards if planned.take else ()))
    return PreparedSnapshots(mode=allowed, policy=policies.snapshot, gathered=gathered, plan=planned, refusals=found)


def execute(
    storage: Storage,
    prepared: PreparedSnapshots,
    by: Maintainer,
    *,
    scratch: Path,
    ended: Ended = lambda action, outcome: None,
    workers: int = WORKERS,
    memory_bytes: int = MEMORY_BYTES,
) -> SnapshotPass:
    """Make the planned snapshots; call `ended` after each store. A plan without snapshots does nothing.

    *Guarantee*: as `snapshot.execute`; it only adds files. A failure does not stop the other stores. Raises the first
    refusal; `RootHeld`, `HalfSwitched`, `StorageError`; `RefusedAsUnsafe` after a switchover.
    """
    planned = prepared.plan
    outcomes: dict[StorePath, Taken | StatekeeperError] = {}

    def keep(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> None:
        outcomes[action.store] = outcome
        ended(action, outcome)

    if planned.take:
        guards.require_none(prepared.refusals)
        runs.take_snapshots(
            storage,
            planned.take,
            keep,
            scratch=scratch,
            workers=workers,
            memory_bytes=memory_bytes,
            holder=by.holder,
            clock=by.clock,
            ids=by.ids,
        )
    in_order = [(action, outcomes[action.store]) for action in planned.take]
    return SnapshotPass(
        mode=prepared.mode,
        gathered=prepared.gathered,
        plan=planned,
        taken=tuple(outcome for _, outcome in in_order if isinstance(outcome, Taken)),
        failed=tuple((action, outcome) for action, outcome in in_order if isinstance(outcome, StatekeeperError)),
    )


def unattended(storage: Storage, policies: Policies, by: Maintainer, *, scratch: Path) -> SnapshotPass:
    """Plan snapshots for a schedule, and make them if the mode allows it.

    Raises as `plan` and `execute`, but not for a mode that allows no snapshots.
    """
    prepared = plan(storage, policies, clock=by.clock)
    if prepared.mode is Mode.OBSERVE:
        return SnapshotPass(mode=prepared.mode, gathered=prepared.gathered, plan=prepared.plan)
    return execute(storage, prepared, by, scratch=scratch)
