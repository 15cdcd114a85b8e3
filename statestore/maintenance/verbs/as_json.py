"""Encodes plans and outcomes as JSON objects, for the history and for the output of commands.

Programs read some of them back from the history; `history_records` has the types of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias

from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.contents.differences import Change, Difference
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.copies.mirrors import CleanupPlan, Obsolete
from statekeeper.statestore.maintenance.records.history import (
    DeletedFiles,
    FailedSnapshot,
    Json,
    PlannedDeletion,
    PlannedSnapshot,
    RetentionHead,
    TakenSnapshot,
)
from statekeeper.statestore.maintenance.rewrites import migration
from statekeeper.statestore.maintenance.rewrites.edits import EditPlan
from statekeeper.statestore.maintenance.rewrites.engine import Progress
from statekeeper.statestore.maintenance.rewrites.migration import MigrationPlan
from statekeeper.statestore.maintenance.rewrites.switchover import SwitchPlan
from statekeeper.statestore.maintenance.rewrites.whole_stores import EvolutionPreview, FileSinkPlan, Load, RewritePlan
from statekeeper.statestore.maintenance.rollback.repair import Rebuild, Relocate, RepairAction, Rewrite
from statekeeper.statestore.maintenance.rollback.rewind import RewindAction, RewindPlan
from statekeeper.statestore.maintenance.rollback.rewind import Rewrite as RewrittenFile
from statekeeper.statestore.maintenance.upkeep.retention import Deleted, DeletionOutcome, RetentionPlan
from statekeeper.statestore.maintenance.upkeep.snapshot import LeaveAlone, SnapshotPlan, Taken, TakeSnapshot

Record: TypeAlias = Json


def of_snapshot_plan(plan: SnapshotPlan) -> Record:
    """Encode a snapshot plan, with the reason for each store."""
    return {
        "batch": plan.batch,
        "take": [of_action(action) for action in plan.take],
        "leave": [of_action(action) for action in plan.leave],
        "restore_seconds_before": round(plan.seconds_before, 3),
        "restore_seconds_after": round(plan.seconds_after, 3),
    }


def of_action(action: TakeSnapshot | LeaveAlone) -> Record:
    """Encode the planned action for one store."""
    planned = PlannedSnapshot(
        store=action.store, version=action.version, reason=code(action.reason), explained=action.explained
    )
    return planned.encode()


def of_outcome(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> Record:
    """Encode the result of one action."""
    return of_failed(action, outcome) if isinstance(outcome, StatekeeperError) else of_taken(outcome)


def of_taken(taken: Taken) -> Record:
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


def of_failed(action: TakeSnapshot, error: StatekeeperError) -> Record:
    """Encode a snapshot that failed."""
    return FailedSnapshot(store=action.store, code=error.code, error=str(error)).encode()


def of_retention_plan(
    plan: RetentionPlan, *, stored_files: int | None = None, stored_bytes: int | None = None
) -> list[Record]:
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


def of_deleted(step: Deleted) -> Record:
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


def of_cleanup(plan: CleanupPlan) -> list[Record]:
    """Encode the deletions of a mirror: each file with its reason."""
    return [PlannedDeletion(path=file.path, rule=code(file.reason)).encode() for file in plan.obsolete]


def of_cleaned(files: Sequence[Obsolete]) -> Record:
    """Encode the result of one request that deletes files of a mirror."""
    record = DeletedFiles(
        store=None,
        outcome=code(DeletionOutcome.DONE),
        files=len(files),
        bytes=sum(file.size_bytes for file in files),
        spared=(),
        detail="",
        read_files=0,
        read_bytes=0,
    )
    return record.encode()


def of_rewind(plan: RewindPlan) -> list[Record]:
    """Encode a rewind: the batches and query ids, then each file with its reason."""
    head: Record = {
        "batch": plan.batch,
        "newest_batch": plan.newest,
        "former_query_id": plan.former_query,
        "query_id": plan.query,
        **({} if plan.file_sink is None else {"file_sink": plan.file_sink.url}),
    }
    return [head, *map(of_rewind_action, plan.actions)]


def of_rewind_action(action: RewindAction) -> Record:
    """Encode one action of a rewind."""
    does = "rewrite" if isinstance(action, RewrittenFile) else "quarantine"
    return {"path": action.path, "does": does, "reason": code(action.reason), "bytes": action.entry.size_bytes}


def of_switch_plan(plan: SwitchPlan) -> Record:
    """Encode a switchover plan: the step for each store, the files to move, and the refusals."""
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


def of_rewrite_plan(plan: RewritePlan) -> Record:
    """Encode a plan of a rewrite: the stores before and after, and the refusals."""
    return {
        "rewrite": plan.rewrite.value,
        "batch": plan.batch,
        "partitions": plan.partitions,
        "provider": plan.provider.value,
        "structure": plan.structure.value,
        "is_there": plan.is_there,
        "half_done": plan.half_done.begun.number if plan.half_done else None,
        "refusals": list(plan.refusals),
        "groups": [
            {
                "operator": group.operator,
                "store": group.name,
                "partitions_before": len(group.sources),
                "partitions_after": len(group.targets),
                "moves_rows": group.rules is not None,
                "read_bytes": group.read_bytes,
                **({} if plan.load is None else {"rows": group.incoming_rows}),
            }
            for group in plan.groups
        ],
        "read_bytes": plan.read_bytes,
        "local_bytes": plan.local_bytes,
        "seconds": round(plan.seconds, 1),
        "header": plan.header,
        "file_sink": None if plan.file_sink is None else _of_file_sink(plan.file_sink),
        **({} if plan.load is None else _of_load(plan.load, plan.rows)),
        **({"schemas": {name: asdict(one) for name, one in plan.schemas.items()}} if plan.evolve is not None else {}),
    }


def of_migration(plan: MigrationPlan) -> Record:
    """Encode a plan of a migration: that of a rewrite, and what each operator takes over."""
    return {
        **of_rewrite_plan(plan),
        "old": plan.goal.old,
        "blueprint": plan.goal.blueprint,
        "options": list(plan.goal.options[2:]),
        "operators": [
            {
                "operator": one.new.operator,
                "name": one.new.name,
                "from": None if one.old is None else one.old.operator,
                "dropped": list(one.dropped),
                "stores": [
                    {
                        "store": store.store,
                        "family": store.family,
                        "is_empty": store.before is None,
                        "added": {column.field.name: migration.shown(column.default) for column in store.added},
                        "dropped": list(store.dropped),
                    }
                    for store in one.stores
                ],
            }
            for one in plan.operators
        ],
        "dropped": [
            {"operator": one.operator.operator, "name": one.operator.name, "rows": one.rows} for one in plan.dropped
        ],
        "sources": dict(plan.source_map.sources),
        "dropped_sources": list(plan.source_map.dropped),
        "notes": list(plan.notes),
    }


def _of_load(load: Load, rows: int) -> Record:
    saved = load.saved
    return {
        "savepoint": saved.url,
        "savepoint_batch": saved.batch,
        "watermark_ms": saved.watermark_ms,
        "rows": rows,
        "replace_state": load.replaces_state,
    }


def of_preview(found: EvolutionPreview) -> Record:
    """Encode the rows of a schema evolution: their numbers by store, and the first of them before and after."""
    return {
        "rows": {str(store): rows for store, rows in found.rows.items()},
        "first": [of_difference(store, row) for store, row in found.first],
    }


def _of_file_sink(plan: FileSinkPlan) -> Record:
    entry = plan.entry
    return {"url": entry.url, "entry": entry.path, "read_bytes": plan.read_bytes, "sets_interval": plan.interval}


def of_edit_plan(plan: EditPlan) -> Record:
    """Encode a plan of an edit: the numbers of changed rows by store, the first changed rows, and the refusals."""
    return {
        "rewrite": plan.rewrite.value,
        "operator": plan.edit.operator,
        "batch": plan.batch,
        "structure": plan.structure.value,
        "is_there": plan.is_there,
        "is_in_batch": plan.is_in_batch,
        "half_done": plan.half_done.begun.number if plan.half_done else None,
        "refusals": list(plan.refusals),
        "stores": [
            {
                "store": str(one.step.store),
                "rows": one.changes.rows,
                **_counts(one.changes.counts),
                "read_bytes": one.step.read_bytes,
            }
            for one in plan.stores
        ],
        "totals": _counts(plan.totals),
        "first": [of_difference(store, row) for store, row in plan.first],
        "read_bytes": plan.read_bytes,
        "local_bytes": plan.local_bytes,
        "seconds": round(plan.seconds, 1),
        "header": plan.header,
    }


def _counts(counts: Mapping[Change, int]) -> Record:
    return {change.value: counts.get(change, 0) for change in Change}


def of_difference(store: StorePath, row: Difference) -> Record:
    """Encode one changed row of a store."""
    return {
        "store": str(store),
        "family": row.family,
        "change": row.change.value,
        "key": row.key,
        "before": row.before,
        "after": row.after,
    }


def of_progress(progress: Progress) -> Record:
    """Encode the progress of a switchover or another rewrite."""
    store = None if progress.store is None else str(progress.store)
    record: Record = {"phase": code(progress.phase), "done": progress.done, "of": progress.of, "store": store}
    return {**record, "skipped_snapshots": list(progress.skipped_snapshots)} if progress.skipped_snapshots else record


def of_repair(action: RepairAction) -> Record:
    """Encode the repair of one file."""
    repaired = {"aside": action.path}
    if isinstance(action, Rewrite):
        repaired = {"rewrite": action.path, "header": action.header}
    elif isinstance(action, Relocate):
        repaired = {"relocate": action.path, "location": action.location}
    elif isinstance(action, Rebuild):
        repaired = {"rebuild": action.path}
    return {**repaired, "reason": code(action.reason), "explained": action.reason.value}
