"""Executes plans under the lease, without the guards that `contract.perform` evaluates before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

from statekeeper.statestore.base.clock import Clock, Ids, RandomIds
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, RewriteJournal, RewriteKind
from statekeeper.statestore.maintenance.records.history import recorded as recorded
from statekeeper.statestore.maintenance.rewrites.edits import EditPlan
from statekeeper.statestore.maintenance.rewrites.engine import Machine, ProgressCallback
from statekeeper.statestore.maintenance.rewrites.switchover import SwitchPlan
from statekeeper.statestore.maintenance.rewrites.whole_stores import RewritePlan
from statekeeper.statestore.maintenance.rollback.repair import RepairAction, RepairPlan
from statekeeper.statestore.maintenance.upkeep.audit import Audit
from statekeeper.statestore.maintenance.upkeep.retention import Deleted, RetentionFacts, RetentionPlan
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPlan, Taken, TakeSnapshot
from statekeeper.statestore.maintenance.verbs import rewrite as rewrites
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Run, execute
from statekeeper.statestore.maintenance.verbs.edit import Edit
from statekeeper.statestore.maintenance.verbs.repair import Repair
from statekeeper.statestore.maintenance.verbs.retention import PlannedRetention, Retention
from statekeeper.statestore.maintenance.verbs.rewind import Revert
from statekeeper.statestore.maintenance.verbs.snapshot import PlannedSnapshots, Snapshot
from statekeeper.statestore.maintenance.verbs.switch import Switch
from statekeeper.statestore.storage import RequestCounts, Storage, open_storage


def a_run(storage: Storage, holder: str, clock: Clock, ids: Ids | None = None, **how: Any) -> Run:
    """A run of a maintainer with this name."""
    by = Maintainer(holder, clock, ids or RandomIds())
    return Run(storage=storage, by=by, scratch=how.pop("scratch", None) or Path("/tmp"), **how)


def on_machine(storage: Storage, holder: str, machine: Machine, **how: Any) -> Run:
    """A run that may use a machine."""
    return a_run(
        storage,
        holder,
        machine.clock,
        machine.ids,
        scratch=machine.scratch,
        workers=machine.workers,
        memory_bytes=machine.memory_bytes,
        process_bytes=machine.process_bytes,
        cluster=machine.cluster,
        **how,
    )


def switch(
    storage: Storage, planned: SwitchPlan, progress: ProgressCallback, *, run: str, holder: str, machine: Machine
) -> Begun:
    return execute(Switch(to=planned.to), on_machine(storage, holder, machine, id=run), planned, progress)


def rewrite(
    storage: Storage,
    planned: RewritePlan | EditPlan,
    progress: ProgressCallback,
    *,
    run: str,
    holder: str,
    machine: Machine,
    sink: Storage | None = None,
) -> Begun:
    """Execute a rewrite. `sink`: the output folder, if the plan has a file sink."""
    how = on_machine(storage, holder, machine, id=run, open_other=lambda url: sink or open_storage(url))
    if isinstance(planned, EditPlan):
        return execute(Edit(operator=planned.edit.operator), how, planned, progress)
    verb: rewrites.Rewrite = {
        RewriteKind.RESCALE: rewrites.Rescale(partitions=1),
        RewriteKind.CONVERT: rewrites.Convert(to=planned.provider),
        RewriteKind.LOAD: rewrites.Load(savepoint=""),
        RewriteKind.EVOLVE: rewrites.Evolve(schema_file=""),
    }[planned.rewrite]
    return execute(verb, how, planned, progress)


def abort(
    storage: Storage,
    journal: RewriteJournal,
    progress: ProgressCallback,
    *,
    run: str,
    holder: str,
    clock: Clock,
    sink: Storage | None = None,
) -> Begun:
    how = a_run(storage, holder, clock, id=run, open_other=lambda url: sink or open_storage(url))
    return execute(rewrites.Rollback(journal.begun.rewrite), how, journal, progress)


def undo_rewrite(
    storage: Storage,
    undone: str,
    progress: ProgressCallback,
    kind: RewriteKind,
    *,
    run: str,
    holder: str,
    clock: Clock,
) -> Begun:
    return execute(rewrites.Revert(kind, undone), a_run(storage, holder, clock, id=run), undone, progress)


def repair(storage: Storage, planned: RepairPlan, *, run: str, holder: str, clock: Clock) -> list[RepairAction]:
    done: list[RepairAction] = []
    execute(Repair(), a_run(storage, holder, clock, id=run), planned, done.append)
    return done


def undo_repair(
    storage: Storage,
    undone: str,
    *,
    run: str,
    holder: str,
    clock: Clock,
    verb: Literal["repair", "rewind"] = "repair",
) -> list[str]:
    return execute(Revert(of=verb, undone=undone), a_run(storage, holder, clock, id=run), undone)


def delete(
    storage: Storage,
    gathered: RetentionFacts,
    planned: RetentionPlan,
    *,
    holder: str,
    clock: Clock,
    ids: Ids,
    scratch: Path | None = None,
) -> tuple[Deleted, ...]:
    """Execute a retention plan that was made from these facts, without the audit."""
    of_audit = cast(Any, None)
    nothing = Audit(
        batch=None, restart=of_audit, findings=(), stores=(), decoded={}, requests=RequestCounts(), unproven=()
    )
    plan = PlannedRetention(
        mode=Mode.FULL,
        facts=of_audit,
        before=nothing,
        losses=of_audit,
        gathered=gathered,
        plan=planned,
        forecast=of_audit,
        needs_stopped=False,
    )
    return execute(Retention(), a_run(storage, holder, clock, ids, scratch=scratch), plan)


def take_snapshots(
    storage: Storage,
    planned: SnapshotPlan,
    ended: Callable[[TakeSnapshot, Taken | StatekeeperError], None],
    *,
    scratch: Path,
    holder: str,
    clock: Clock,
    ids: Ids,
) -> None:
    plan = PlannedSnapshots(mode=Mode.FULL, policy=cast(Any, None), gathered=cast(Any, None), plan=planned)
    execute(Snapshot(), a_run(storage, holder, clock, ids, scratch=scratch), plan, lambda one: ended(*one))
