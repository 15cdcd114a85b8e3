"""Encodes snapshots and deletions."""

from __future__ import annotations

from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.maintenance.records.history import (
    DeletedFiles,
    FailedSnapshot,
    Json,
    PlannedDeletion,
    PlannedSnapshot,
    RetentionHead,
    TakenSnapshot,
)
from statekeeper.statestore.maintenance.upkeep.retention import Deleted, RetentionPlan
from statekeeper.statestore.maintenance.upkeep.snapshot import LeaveAlone, SnapshotPlan, Taken, TakeSnapshot


def of_snapshot_plan(plan: SnapshotPlan) -> Json:
    """Encode a snapshot plan, with the reason for each store."""
    return {
        "batch": plan.batch,
        "take": [of_action(action) for action in plan.take],
        "leave": [of_action(action) for action in plan.leave],
        "restore_seconds_before": round(plan.seconds_before, 3),
        "restore_seconds_after": round(plan.seconds_after, 3),
    }


def of_action(action: TakeSnapshot | LeaveAlone) -> Json:
    """Encode the planned action for one store."""
    planned = PlannedSnapshot(
        store=action.store, version=action.version, reason=code(action.reason), explained=action.explained
    )
    return planned.encode()


def of_outcome(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> Json:
    """Encode the result of one action."""
    return of_failed(action, outcome) if isinstance(outcome, StatekeeperError) else of_taken(outcome)


def of_taken(taken: Taken) -> Json:
    """Encode a snapshot that was made."""
    record = TakenSnapshot(
        store=taken.action.store,
        version=taken.action.version,
        outcome=code(taken.published),
        keys=taken.keys,
        tables=taken.tables,
        new_tables=taken.new_tables,
        uploaded_bytes=taken.uploaded_bytes,
        replayed_keys=taken.replayed_keys,
        skipped_snapshots=taken.skipped_snapshots,
        tail_bytes=taken.action.tail_bytes,
        restore_seconds=taken.restore_seconds,
        seconds=taken.seconds,
        kept_tables=taken.kept_tables,
    )
    return record.encode()


def of_failed(action: TakeSnapshot, error: StatekeeperError) -> Json:
    """Encode a snapshot that failed."""
    return FailedSnapshot(store=action.store, code=error.code, error=str(error)).encode()


def of_retention_plan(
    plan: RetentionPlan, *, stored_files: int | None = None, stored_bytes: int | None = None
) -> list[Json]:
    """Encode a retention plan: the head, then each file to delete, with its rule. `stored_files`, `stored_bytes`: of all
    stores before the run."""
    head = RetentionHead(
        head=plan.head,
        floor=plan.floor,
        findings=plan.findings,
        reads=tuple(str(read.store) for read in plan.reads),
        read_bytes=plan.read_bytes,
        stored_files=stored_files,
        stored_bytes=stored_bytes,
    )
    deletions = (PlannedDeletion(path=verdict.path, rule=code(verdict.rule)) for verdict in plan.deletions)
    return [head.encode(), *(deletion.encode() for deletion in deletions)]


def of_deleted(step: Deleted) -> Json:
    """Encode the result of one request of retention."""
    record = DeletedFiles(
        store=step.store,
        outcome=code(step.outcome),
        files=step.files,
        bytes=step.size_bytes,
        spared=step.spared,
        detail=step.detail,
        read_files=step.read_files,
        read_bytes=step.read_bytes,
    )
    return record.encode()
