"""The steps of maintenance that nobody watches, each from its facts to what was done: for schedulers of any kind.

    take_snapshots  ->  audit  ->  delete

The command line does the same by the same functions, with a person who looks at the plan in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from statestore.clock import Clock, Ids
from statestore.errors import RefusedAsUnsafe, StatekeeperError
from statestore.format.names import StorePath
from statestore.maintenance import audit, retention, runs, snapshot
from statestore.maintenance.audit import Audit, AuditPolicy, Facts
from statestore.maintenance.config import Mode, Policies
from statestore.maintenance.retention import Deleted, RetentionPlan
from statestore.maintenance.snapshot import Gathered, SnapshotPlan, Taken, TakeSnapshot
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


def require_whole(found: Audit) -> None:
    """Raises `RefusedAsUnsafe` with the first file that is broken."""
    if found.breaks:
        first = found.breaks[0]
        more = f" (and {len(found.breaks) - 1:,} more findings)" if len(found.breaks) > 1 else ""
        raise RefusedAsUnsafe(
            f"{first.problem}: while the lineage is broken nothing is deleted{more}", path=first.file, hint=first.action
        )
