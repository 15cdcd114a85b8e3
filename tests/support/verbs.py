"""Plans and executes verbs on storages, which tests wrap with faults. Each class has the functions of one verb.

`plan` and `execute` call `contract.prepare` and `contract.perform`. `execute` may get another storage, maintainer or
confirmation than `plan`.
"""

# ruff: noqa: N801
from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, RewriteKind
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.clones import CopyFile
from statekeeper.statestore.maintenance.copies.labels import Label
from statekeeper.statestore.maintenance.copies.mirrors import CleanupPlan
from statekeeper.statestore.maintenance.copies.savepoints.manifest import Summary
from statekeeper.statestore.maintenance.rewrites.edits import Edit as EditGoal
from statekeeper.statestore.maintenance.rewrites.edits import EditPlan
from statekeeper.statestore.maintenance.rewrites.engine import Progress, ProgressCallback
from statekeeper.statestore.maintenance.rewrites.switchover import SwitchPlan
from statekeeper.statestore.maintenance.rewrites.whole_stores import Goal, RewritePlan
from statekeeper.statestore.maintenance.rollback.claim import ClaimPlan
from statekeeper.statestore.maintenance.rollback.repair import RepairAction, RepairPlan
from statekeeper.statestore.maintenance.rollback.rewind import RewindAction
from statekeeper.statestore.maintenance.upkeep.retention import Deleted
from statekeeper.statestore.maintenance.verbs import contract
from statekeeper.statestore.maintenance.verbs import retention as retentions
from statekeeper.statestore.maintenance.verbs import rewrite as rewrites
from statekeeper.statestore.maintenance.verbs import savepoint as savepoints
from statekeeper.statestore.maintenance.verbs.claim import Claim
from statekeeper.statestore.maintenance.verbs.clone import Clone
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Prepared, Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.edit import Edit
from statekeeper.statestore.maintenance.verbs.mirror import Mirror
from statekeeper.statestore.maintenance.verbs.repair import Repair
from statekeeper.statestore.maintenance.verbs.retention import PlannedRetention, Retention
from statekeeper.statestore.maintenance.verbs.rewind import Revert, Rewind
from statekeeper.statestore.maintenance.verbs.savepoint import (
    Remove,
    SaveFiles,
    SaveRows,
    Wrote,
)
from statekeeper.statestore.maintenance.verbs.snapshot import Ended, PlannedSnapshots, Snapshot, Snapshots
from statekeeper.statestore.maintenance.verbs.switch import Switch
from statekeeper.statestore.storage import Storage, open_storage

P = TypeVar("P")
S = TypeVar("S")
R = TypeVar("R")


def a_run(storage: Storage, policies: Policies | None = None, by: Maintainer | None = None, **how: Any) -> Run:
    """A run on a storage. `how`: as in `Run`; `other`: the storage that `open_other` opens, whatever its URL."""
    other: Storage | None = how.pop("other", None)
    if other is not None:
        how["open_other"] = lambda url: other
    given = {name: value for name, value in how.items() if value is not None}
    given.setdefault("scratch", Path(tempfile.gettempdir()))
    maintainer = by or Maintainer("a test", SystemClock(), RandomIds())
    return Run(storage=storage, policies=policies or Policies(), by=maintainer, **given)


def performed(
    prepared: Prepared[P, S, R],
    told: Callable[[S], None] = lambda step: None,
    starting: Callable[[], None] = lambda: None,
    **changed: Any,
) -> Prepared[P, S, R]:
    """Execute a verb with another run than the one of its plan. `changed`: as in `Run`."""
    given = {name: value for name, value in changed.items() if value is not None}
    if "id" not in given:
        given["id"] = ""
    return perform(replace(prepared, run=replace(prepared.run, **given)), told, starting=starting)


class Seen:
    """A prepared verb and its plan, which has the facts beside the plan of its room: the attributes of all of them."""

    def __init__(self, prepared: Prepared[Any, Any, Any]) -> None:
        self.prepared = prepared

    @property
    def refusals(self) -> Any:
        return self.prepared.refusals

    def __getattr__(self, name: str) -> Any:
        plan = self.prepared.plan
        return next(getattr(one, name) for one in (plan, plan.plan) if hasattr(one, name))


def made(prepared: Prepared[P, S, R]) -> R:
    """The result of an executed verb."""
    assert prepared.made is not None
    return prepared.made


def at(clock: Clock | None) -> Maintainer | None:
    return None if clock is None else Maintainer("a test", clock, RandomIds())


class snapshot:
    @staticmethod
    def plan(
        storage: Storage,
        policies: Policies,
        *,
        clock: Clock | None = None,
        stopped: bool = False,
        mode: Mode | None = None,
        **options: Any,
    ) -> Seen:
        policies = replace(policies, mode=mode or policies.mode)
        return Seen(prepare(Snapshot(**options), a_run(storage, policies, at(clock), stopped=stopped)))

    @staticmethod
    def execute(storage: Storage, prepared: Seen, by: Maintainer, **how: Any) -> Snapshots:
        return performed(prepared.prepared, storage=storage, by=by, **how).made or Snapshots()

    @staticmethod
    def unattended(
        storage: Storage, policies: Policies, by: Maintainer, *, scratch: Path
    ) -> Prepared[PlannedSnapshots, Ended, Snapshots]:
        return contract.unattended(contract.prepare(Snapshot(), a_run(storage, policies, by, scratch=scratch)))


class retention:
    @staticmethod
    def plan(
        storage: Storage,
        policies: Policies,
        *,
        clock: Clock,
        stopped: bool = False,
        mode: Mode | None = None,
        **options: Any,
    ) -> Seen:
        policies = replace(policies, mode=mode or policies.mode)
        return Seen(prepare(Retention(**options), a_run(storage, policies, at(clock), stopped=stopped)))

    @staticmethod
    def execute(
        storage: Storage,
        prepared: Seen,
        by: Maintainer,
        *,
        progress: Callable[[Deleted], None] = lambda step: None,
        **how: Any,
    ) -> tuple[Deleted, ...]:
        return made(performed(prepared.prepared, progress, storage=storage, by=by, **how))

    @staticmethod
    def unattended(
        storage: Storage, policies: Policies, by: Maintainer, *, scratch: Path | None = None
    ) -> Prepared[PlannedRetention, Deleted, tuple[Deleted, ...]]:
        return retentions.unattended(a_run(storage, policies, by, scratch=scratch))


class switch:
    @staticmethod
    def plan(
        storage: Storage,
        policies: Policies,
        to: Structure,
        spark: Spark | None,
        *,
        clock: Clock | None = None,
        **how: Any,
    ) -> Prepared[SwitchPlan, Progress, Begun]:
        return prepare(Switch(to=to, for_spark=spark), a_run(storage, policies, at(clock), **how))

    @staticmethod
    def execute(
        storage: Storage,
        prepared: Prepared[SwitchPlan, Progress, Begun],
        by: Maintainer,
        progress: ProgressCallback,
        *,
        run: str,
        **how: Any,
    ) -> Prepared[SwitchPlan, Progress, Begun]:
        return performed(prepared, progress, storage=storage, by=by, id=run, **how)

    @staticmethod
    def abort(
        storage: Storage, policies: Policies, by: Maintainer, progress: ProgressCallback, *, run: str, stopped: bool
    ) -> Begun:
        return rewrite.abort(storage, policies, RewriteKind.SWITCH, by, progress, run=run, stopped=stopped)


class OfGoal(rewrites.Rewrite):
    """A rewrite with a goal that the test has read."""

    file_sink = None

    def __init__(self, goal: Goal, spark: Spark | None = None) -> None:
        self._goal = goal
        self.name = type(goal).__name__.lower()
        self.for_spark = spark

    def goal(self, run: Run) -> Goal:
        return self._goal

    def report(self, prepared: Prepared[RewritePlan, Progress, Begun]) -> Any:
        raise NotImplementedError


class rewrite:
    @staticmethod
    def plan(
        storage: Storage,
        policies: Policies,
        goal: Goal,
        spark: Spark | None = None,
        *,
        clock: Clock | None = None,
        **how: Any,
    ) -> Prepared[RewritePlan, Progress, Begun]:
        return prepare(OfGoal(goal, spark), a_run(storage, policies, at(clock), **how))

    @staticmethod
    def execute(
        storage: Storage,
        prepared: Prepared[RewritePlan, Progress, Begun],
        by: Maintainer,
        progress: ProgressCallback,
        *,
        run: str,
        **how: Any,
    ) -> Prepared[RewritePlan, Progress, Begun]:
        return performed(prepared, progress, storage=storage, by=by, id=run, **how)

    @staticmethod
    def abort(
        storage: Storage,
        policies: Policies,
        kind: RewriteKind,
        by: Maintainer,
        progress: ProgressCallback,
        *,
        run: str,
        stopped: bool,
    ) -> Begun:
        return made(
            perform(prepare(rewrites.Rollback(kind), a_run(storage, policies, by, id=run, stopped=stopped)), progress)
        )

    @staticmethod
    def undo(
        storage: Storage,
        policies: Policies,
        kind: RewriteKind,
        undone: str,
        by: Maintainer,
        progress: ProgressCallback,
        *,
        run: str,
        stopped: bool,
    ) -> Begun:
        verb = rewrites.Revert(kind, undone)
        return made(perform(prepare(verb, a_run(storage, policies, by, id=run, stopped=stopped)), progress))


class edit:
    @staticmethod
    def plan(
        storage: Storage,
        policies: Policies,
        goal: EditGoal,
        by: Maintainer,
        spark: Spark | None = None,
        **how: Any,
    ) -> Prepared[EditPlan, Progress, Begun]:
        verb = Edit(operator=goal.operator, delete=goal.texts, for_spark=spark)
        return prepare(verb, a_run(storage, policies, by, **how))

    @staticmethod
    def execute(
        storage: Storage,
        prepared: Prepared[EditPlan, Progress, Begun],
        by: Maintainer,
        progress: ProgressCallback,
        *,
        run: str,
        **how: Any,
    ) -> Prepared[EditPlan, Progress, Begun]:
        return performed(prepared, progress, storage=storage, by=by, id=run, **how)

    @staticmethod
    def undo(
        storage: Storage,
        policies: Policies,
        undone: str,
        by: Maintainer,
        progress: ProgressCallback,
        *,
        run: str,
        stopped: bool,
    ) -> Begun:
        return rewrite.undo(storage, policies, RewriteKind.EDIT, undone, by, progress, run=run, stopped=stopped)


class repair:
    @staticmethod
    def plan(
        storage: Storage,
        policies: Policies,
        spark: Spark | None,
        location: str | None = None,
        *,
        clock: Clock | None = None,
    ) -> Prepared[RepairPlan, RepairAction, tuple[RepairAction, ...]]:
        return prepare(Repair(for_spark=spark, location=location), a_run(storage, policies, at(clock)))

    @staticmethod
    def execute(
        storage: Storage,
        prepared: Prepared[RepairPlan, RepairAction, tuple[RepairAction, ...]],
        by: Maintainer,
        *,
        run: str,
        stopped: bool,
    ) -> Prepared[RepairPlan, RepairAction, tuple[RepairAction, ...]]:
        return performed(prepared, storage=storage, by=by, id=run, stopped=stopped)

    @staticmethod
    def undo(
        storage: Storage,
        policies: Policies,
        undone: str,
        by: Maintainer,
        *,
        run: str,
        stopped: bool,
        of: Literal["repair", "rewind"] = "repair",
        open_sink: Callable[[str], Storage] = open_storage,
    ) -> list[str]:
        how = a_run(storage, policies, by, id=run, stopped=stopped, open_other=open_sink)
        return made(perform(prepare(Revert(of=of, undone=undone), how)))


class rewind:
    @staticmethod
    def plan(
        storage: Storage,
        policies: Policies,
        by: Maintainer,
        batch: int,
        *,
        scratch: Path,
        sink: Storage | None = None,
        file_sink: Storage | None = None,
        **options: Any,
    ) -> Seen:
        given = {"sink": sink, "file_sink": file_sink}
        urls: dict[str, Any] = {name: None if one is None else one.url for name, one in given.items()}
        others = {one.url: one for one in (sink, file_sink) if one is not None}
        verb = Rewind(batch=batch, **urls, **options)
        return Seen(prepare(verb, a_run(storage, policies, by, scratch=scratch, open_other=others.__getitem__)))

    @staticmethod
    def execute(
        storage: Storage,
        prepared: Seen,
        by: Maintainer,
        *,
        run: str,
        stopped: bool,
        scratch: Path,
        progress: Callable[[RewindAction], None] = lambda action: None,
    ) -> Seen:
        return Seen(
            performed(prepared.prepared, progress, storage=storage, by=by, id=run, stopped=stopped, scratch=scratch)
        )

    @staticmethod
    def undo(
        storage: Storage, policies: Policies, undone: str, by: Maintainer, *, run: str, stopped: bool, **how: Any
    ) -> list[str]:
        return repair.undo(storage, policies, undone, by, run=run, stopped=stopped, of="rewind", **how)


class claim:
    @staticmethod
    def plan(
        root: Storage, checkpoint: Storage | None, policies: Policies, by: Maintainer, *, query_id: str | None = None
    ) -> Prepared[ClaimPlan, None, None]:
        verb = Claim(checkpoint=None if checkpoint is None else checkpoint.url, query_id=query_id)
        return prepare(verb, a_run(root, policies, by, other=checkpoint))

    @staticmethod
    def execute(
        root: Storage,
        checkpoint: Storage | None,
        prepared: Prepared[ClaimPlan, None, None],
        by: Maintainer,
        *,
        run: str,
        stopped: bool,
    ) -> None:
        other = checkpoint or root
        performed(prepared, storage=root, by=by, id=run, stopped=stopped, open_other=lambda url: other)


class clone:
    @staticmethod
    def plan(
        source: Storage,
        destination: Storage,
        policies: Policies,
        by: Maintainer,
        *,
        stopped: bool = False,
        **options: Any,
    ) -> Seen:
        verb = Clone(destination=destination.url, **options)
        return Seen(prepare(verb, a_run(source, policies, by, stopped=stopped, other=destination)))

    @staticmethod
    def execute(
        source: Storage,
        destination: Storage,
        prepared: Seen,
        by: Maintainer,
        *,
        scratch: Path,
        copied: Callable[[CopyFile], None] = lambda file: None,
    ) -> None:
        moved = replace(prepared.prepared, plan=replace(prepared.prepared.plan, destination=destination))
        performed(moved, copied, storage=source, by=by, scratch=scratch)


class mirror:
    @staticmethod
    def plan(
        source: Storage,
        destination: Storage,
        policies: Policies,
        by: Maintainer,
        *,
        stopped: bool = False,
        **options: Any,
    ) -> Seen:
        verb = Mirror(destination=destination.url, **options)
        return Seen(prepare(verb, a_run(source, policies, by, stopped=stopped, other=destination)))

    @staticmethod
    def execute(
        source: Storage,
        destination: Storage,
        prepared: Seen,
        by: Maintainer,
        *,
        scratch: Path,
        copied: Callable[[CopyFile], None] = lambda file: None,
    ) -> CleanupPlan:
        moved = replace(prepared.prepared, plan=replace(prepared.prepared.plan, destination=destination))
        deleted: CleanupPlan = performed(moved, copied, storage=source, by=by, scratch=scratch).made or prepared.cleanup
        return deleted


class savepoint:
    listed = staticmethod(savepoints.listed)
    find = staticmethod(savepoints.find)
    record_label = staticmethod(savepoints.record_label)

    @staticmethod
    def plan_rows(
        source: Storage,
        destination: Storage,
        by: Maintainer,
        *,
        policies: Policies | None = None,
        stopped: bool = False,
        **options: Any,
    ) -> Seen:
        verb = SaveRows(destination=destination.url, **options)
        return Seen(prepare(verb, a_run(source, policies, by, stopped=stopped, other=destination)))

    @staticmethod
    def execute_rows(
        source: Storage,
        destination: Storage,
        prepared: Seen,
        by: Maintainer,
        policies: Policies,
        *,
        scratch: Path,
        workers: int | None = None,
        wrote: Callable[[int], None] = lambda rows: None,
        finished: Callable[[Any], None] = lambda store: None,
    ) -> Summary:
        def told(one: Wrote) -> None:
            if isinstance(one, int):
                wrote(one)
            else:
                finished(one)

        mode = policies.mode_for(prepared.gathered.contents.origin)
        moved = replace(prepared.prepared, plan=replace(prepared.prepared.plan, destination=destination, mode=mode))
        summary: Summary = made(performed(moved, told, storage=source, by=by, scratch=scratch, workers=workers))
        return summary

    @staticmethod
    def plan_files(
        source: Storage,
        destination: Storage,
        policies: Policies,
        by: Maintainer,
        *,
        stopped: bool = False,
        **options: Any,
    ) -> Seen:
        verb = SaveFiles(destination=destination.url, **options)
        return Seen(prepare(verb, a_run(source, policies, by, stopped=stopped, other=destination)))

    @staticmethod
    def execute_files(
        source: Storage,
        destination: Storage,
        prepared: Seen,
        by: Maintainer,
        *,
        scratch: Path,
    ) -> bool:
        moved = replace(prepared.prepared, plan=replace(prepared.prepared.plan, destination=destination))
        is_listed: bool = made(performed(moved, storage=source, by=by, scratch=scratch))
        return is_listed

    @staticmethod
    def plan_removal(
        source: Storage,
        destination: Storage,
        label: Label,
        policies: Policies,
        by: Maintainer,
        *,
        forget: bool = False,
    ) -> Seen:
        return Seen(
            prepare(Remove(savepoint=label.label, forget=forget), a_run(source, policies, by, other=destination))
        )

    @staticmethod
    def execute_removal(source: Storage, destination: Storage, prepared: Seen) -> None:
        performed(
            replace(prepared.prepared, plan=replace(prepared.prepared.plan, destination=destination)), storage=source
        )
