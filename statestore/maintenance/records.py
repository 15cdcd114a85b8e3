"""Plans and outcomes of the verbs that write, as objects of JSON: in the history, in the command's output, in drills."""

from __future__ import annotations

from typing import Any

from statestore.errors import StatekeeperError
from statestore.maintenance.codes import code
from statestore.maintenance.repair import Relocate, RepairAction, Rewrite
from statestore.maintenance.retention import Deleted, RetentionPlan
from statestore.maintenance.snapshot import LeaveAlone, SnapshotPlan, Taken, TakeSnapshot
from statestore.maintenance.switchover import Progress, SwitchPlan

Record = dict[str, Any]


def of_snapshot_plan(plan: SnapshotPlan) -> Record:
    """The plan, with the reason for each store."""
    return {
        "batch": plan.batch,
        "take": [of_action(action) for action in plan.take],
        "leave": [of_action(action) for action in plan.leave],
    }


def of_action(action: TakeSnapshot | LeaveAlone) -> Record:
    """What is to become of one store."""
    return {
        "store": str(action.store),
        "version": str(action.version),
        "reason": code(action.reason),
        "explained": action.explained,
    }


def of_outcome(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> Record:
    """What became of a snapshot."""
    return of_failed(action, outcome) if isinstance(outcome, StatekeeperError) else of_taken(outcome)


def of_taken(taken: Taken) -> Record:
    """A snapshot that was made."""
    return {
        "store": str(taken.action.store),
        "version": str(taken.action.version),
        "outcome": code(taken.published),
        "keys": taken.keys,
        "tables": taken.tables,
        "new_tables": taken.new_tables,
        "uploaded_bytes": taken.uploaded_bytes,
        "replayed_keys": taken.replayed_keys,
        "skipped_snapshots": list(taken.skipped_snapshots),
        "tail_bytes": taken.action.tail_bytes,
        "restore_seconds": round(taken.restore_seconds, 3),
        "seconds": round(taken.seconds, 3),
    }


def of_failed(action: TakeSnapshot, error: StatekeeperError) -> Record:
    """A snapshot that was not made."""
    return {"store": str(action.store), "code": error.code, "error": str(error)}


def of_retention_plan(plan: RetentionPlan) -> list[Record]:
    """The head, and each file that goes, with its rule."""
    head = {
        "head": plan.head,
        "floor": plan.floor,
        "findings": list(plan.findings),
        "reads": [str(read.store) for read in plan.reads],
        "read_bytes": plan.read_bytes,
    }
    return [head, *({"delete": verdict.path, "rule": code(verdict.rule)} for verdict in plan.deletions)]


def of_deleted(step: Deleted) -> Record:
    """What one request of retention did."""
    return {
        "store": None if step.store is None else str(step.store),
        "outcome": code(step.outcome),
        "files": step.files,
        "bytes": step.size_bytes,
        "spared": list(step.spared),
        "detail": step.detail,
        "read_files": step.read_files,
        "read_bytes": step.read_bytes,
    }


def of_switch_plan(plan: SwitchPlan) -> Record:
    """What a switchover does with each store, and what else, or why it does not."""
    return {
        "to": plan.to.value,
        "batch": plan.batch,
        "is_there": plan.is_there,
        "half_done": plan.half_done.begun.number if plan.half_done else None,
        "refusals": list(plan.refusals),
        "stores": [
            {
                "store": str(step.store),
                "head": str(step.head),
                "source": code(step.source),
                "explained": step.explained,
                "read_bytes": step.read_bytes,
                "write_bytes": step.write_bytes,
            }
            for step in plan.stores
        ],
        "aside": [*plan.first, *plan.last],
        "read_bytes": plan.read_bytes,
        "write_bytes": plan.write_bytes,
        "local_bytes": plan.local_bytes,
        "seconds": round(plan.seconds, 1),
        "stays": {"files": plan.stays_files, "bytes": plan.stays_bytes},
        "header": plan.header,
        "start_with": plan.start_with,
    }


def of_progress(progress: Progress) -> Record:
    """How far a switchover is."""
    store = None if progress.store is None else str(progress.store)
    record: Record = {"phase": code(progress.phase), "done": progress.done, "of": progress.of, "store": store}
    return {**record, "skipped_snapshots": list(progress.skipped_snapshots)} if progress.skipped_snapshots else record


def of_repair(action: RepairAction) -> Record:
    """What becomes of one file that is in Spark's way."""
    what = {"aside": action.path}
    if isinstance(action, Rewrite):
        what = {"rewrite": action.path, "header": action.header}
    elif isinstance(action, Relocate):
        what = {"relocate": action.path, "location": action.location}
    return {**what, "reason": code(action.why), "explained": action.why.value}
