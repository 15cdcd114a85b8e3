"""The steps of maintenance that nobody watches, each from its facts to what was done: for schedulers of any kind.

    take_snapshots  ->  audit  ->  delete
    switch, abort_switch                      by hand: the query is stopped for it

The command line does the same by the same functions, with a person who looks at the plan in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from statestore.clock import Clock, Ids
from statestore.errors import RefusedAsUnsafe, StatekeeperError
from statestore.format import names
from statestore.format.names import StorePath
from statestore.format.sparks import Spark
from statestore.format.structure import Structure
from statestore.maintenance import audit, retention, runs, snapshot, switchover
from statestore.maintenance.audit import Audit, AuditPolicy, Facts
from statestore.maintenance.config import Mode, Policies
from statestore.maintenance.pool import WORKERS
from statestore.maintenance.quiet import require_stopped
from statestore.maintenance.retention import Deleted, RetentionPlan
from statestore.maintenance.snapshot import Gathered, SnapshotPlan, Taken, TakeSnapshot
from statestore.maintenance.switchover import Begun, Machine, SwitchPlan, Told
from statestore.storage import Storage


@dataclass(frozen=True)
class SnapshotPass:
    """What became of a snapshot plan. `mode` says whether anything could; `taken` and `failed` are in the plan's order."""

    mode: Mode
    gathered: Gathered
    plan: SnapshotPlan
    taken: tuple[Taken, ...] = ()
    failed: tuple[tuple[TakeSnapshot, StatekeeperError], ...] = ()

    @property
    def tails_before(self) -> Mapping[StorePath, int]:
        """How many changelogs a restart of each store that loads would have replayed."""
        return {fact.store: len(fact.load.replay) for fact in self.gathered.stores if fact.load is not None}

    @property
    def tails_after(self) -> Mapping[StorePath, int]:
        """The same with the snapshots that were made, at the same head: what was committed meanwhile does not count."""
        return {**self.tails_before, **{one.action.store: 0 for one in self.taken}}


@dataclass(frozen=True)
class RetentionPass:
    """What became of a retention plan. `before`: the audit that allowed it; `done` is empty where `mode` does not."""

    mode: Mode
    before: Audit
    planned: RetentionPlan
    done: tuple[Deleted, ...] = ()


def take_snapshots(
    storage: Storage, policies: Policies, *, scratch: Path, holder: str, clock: Clock, ids: Ids
) -> SnapshotPass:
    """Make the snapshots that the policy asks for, where the mode lets them be made.

    *Guarantee*: as `snapshot.execute`: it only adds files. One store that fails does not stop the others.
    Raises `NotACheckpoint`, `CorruptFile`, `RootHeld`, `StorageError`.
    """
    gathered = snapshot.gather(storage)
    plan = snapshot.plan(gathered, policies.snapshot)
    mode = policies.mode_for(is_own=gathered.is_own)
    if mode is Mode.OBSERVE or not plan.take:
        return SnapshotPass(mode, gathered, plan)
    outcomes: dict[StorePath, Taken | StatekeeperError] = {}

    def ended(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> None:
        outcomes[action.store] = outcome

    runs.take_snapshots(storage, plan.take, ended, scratch=scratch, holder=holder, clock=clock, ids=ids)
    in_order = [(action, outcomes[action.store]) for action in plan.take]
    return SnapshotPass(
        mode,
        gathered,
        plan,
        tuple(outcome for _, outcome in in_order if isinstance(outcome, Taken)),
        tuple((action, outcome) for action, outcome in in_order if isinstance(outcome, StatekeeperError)),
    )


def judged(facts: Facts, policies: Policies) -> Audit:
    """The audit of a checkpoint, as its retention sees it. Pure."""
    return audit.judge(facts, AuditPolicy(retained_versions=policies.retention.versions))


def look(storage: Storage, policies: Policies) -> Audit:
    """The audit of a checkpoint, as its retention sees it. Read-only. Raises as `audit.gather`."""
    return judged(audit.gather(storage), policies)


def delete(storage: Storage, policies: Policies, *, holder: str, clock: Clock, ids: Ids) -> RetentionPass:
    """Delete what nobody needs, where the mode allows it and the lineage is whole.

    *Danger*: it deletes without asking. *Guarantee*: as `retention.execute`; and an audit comes first, since who called
    for it may have looked long ago, or not at all.
    Raises `RefusedAsUnsafe` with the first file that is broken, and as `runs.delete`.
    """
    before = look(storage, policies)
    require_whole(before)
    gathered = retention.gather(storage, policies.retention, clock=clock)
    planned = retention.plan(gathered, policies.retention)
    mode = policies.mode_for(is_own=planned.is_own)
    if mode is not Mode.FULL:
        return RetentionPass(mode, before, planned)
    done: Sequence[Deleted] = list(runs.delete(storage, gathered, planned, holder=holder, clock=clock, ids=ids))
    return RetentionPass(mode, before, planned, tuple(done))


def plan_switch(
    storage: Storage, policies: Policies, to: Structure, spark: Spark | None, *, scratch: Path, workers: int = WORKERS
) -> SwitchPlan:
    """How the checkpoint gets the other structure, or why it does not. Read-only. Raises as `switchover.gather`."""
    policy = AuditPolicy(retained_versions=policies.retention.versions)
    return switchover.plan(switchover.gather(storage, scratch=scratch, policy=policy), to, spark, workers=workers)


def switch(
    storage: Storage,
    policies: Policies,
    to: Structure,
    spark: Spark | None,
    told: Told,
    *,
    stopped: bool,
    run: str,
    holder: str,
    machine: Machine,
) -> SwitchPlan:
    """Give the checkpoint the other structure, or finish what an interrupted run began. Nothing is done where the plan
    that is returned has refusals, or says that there is nothing to do. `stopped`: a person says that the query is.

    Raises as `runs.switch`; `RefusedAsUnsafe` also where a mode is configured that forbids it, and for a query at work.
    """
    scratch, workers = machine.scratch, machine.workers
    planned = plan_switch(storage, policies, to, spark, scratch=scratch, workers=workers)
    if planned.refusals or planned.is_there:
        return planned
    _require_full(storage, policies)
    # Jobs of our own refuse to start on what is half done, and begin no batch where it is done under them. But one that is
    # in a batch looks just like one that died in it, and would commit in the structure in which it began.
    require_stopped(storage, said=stopped or (planned.is_own and not planned.is_in_batch), clock=machine.clock)
    # What was planned before may have been of a query that was at work.
    planned = plan_switch(storage, policies, to, spark, scratch=scratch, workers=workers)
    if not (planned.refusals or planned.is_there):
        policy = AuditPolicy(retained_versions=policies.retention.versions)
        runs.switch(storage, planned, told, run=run, holder=holder, machine=machine, policy=policy)
    return planned


def abort_switch(
    storage: Storage, policies: Policies, told: Told, *, stopped: bool, run: str, holder: str, clock: Clock
) -> Begun:
    """Make a checkpoint what it was before a switchover that is half done; which that was. Raises as `runs.abort_switch`,
    and `RefusedAsUnsafe` as `switch`, and when none is half done."""
    standing = switchover.standing(storage)
    if standing is None:
        raise RefusedAsUnsafe(
            "no switchover is half done", path=storage.url, hint="one that has ended is led back by --to"
        )
    _require_full(storage, policies)
    is_own = storage.stat(names.BINDING) is not None
    require_stopped(storage, said=stopped or is_own, clock=clock)
    runs.abort_switch(storage, standing, told, run=run, holder=holder, clock=clock)
    return standing.begun


def _require_full(storage: Storage, policies: Policies) -> None:
    if policies.mode not in (None, Mode.FULL):
        raise RefusedAsUnsafe(
            f"mode {policies.mode.value} is configured: nothing may be changed",
            path=storage.url,
            hint='set mode = "full" for it in statekeeper.toml',
        )


def require_whole(found: Audit) -> None:
    """Raises `RefusedAsUnsafe` with the first file that is broken."""
    if found.breaks:
        first = found.breaks[0]
        more = f" (and {len(found.breaks) - 1:,} more findings)" if len(found.breaks) > 1 else ""
        raise RefusedAsUnsafe(
            f"{first.problem}: while the lineage is broken nothing is deleted{more}", path=first.file, hint=first.action
        )
