"""Encodes switchovers, edits and other rewrites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.contents.differences import Change
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.rewrites import migration
from statekeeper.statestore.maintenance.rewrites.edits import EditPlan
from statekeeper.statestore.maintenance.rewrites.engine import Progress
from statekeeper.statestore.maintenance.rewrites.migration import MigrationPlan
from statekeeper.statestore.maintenance.rewrites.switchover import SwitchPlan
from statekeeper.statestore.maintenance.rewrites.whole_stores import EvolutionPreview, FileSinkPlan, Load, RewritePlan
from statekeeper.statestore.maintenance.verbs.as_json.differences import of_difference


def of_switch_plan(plan: SwitchPlan) -> Json:
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


def of_rewrite_plan(plan: RewritePlan) -> Json:
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


def of_migration(plan: MigrationPlan) -> Json:
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


def _of_load(load: Load, rows: int) -> Json:
    saved = load.saved
    return {
        "savepoint": saved.url,
        "savepoint_batch": saved.batch,
        "watermark_ms": saved.watermark_ms,
        "rows": rows,
        "replace_state": load.replaces_state,
    }


def of_preview(found: EvolutionPreview) -> Json:
    """Encode the rows of a schema evolution: their numbers by store, and the first of them before and after."""
    return {
        "rows": {str(store): rows for store, rows in found.rows.items()},
        "first": [of_difference(store, row) for store, row in found.first],
    }


def _of_file_sink(plan: FileSinkPlan) -> Json:
    entry = plan.entry
    return {"url": entry.url, "entry": entry.path, "read_bytes": plan.read_bytes, "sets_interval": plan.interval}


def of_edit_plan(plan: EditPlan) -> Json:
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


def _counts(counts: Mapping[Change, int]) -> Json:
    return {change.value: counts.get(change, 0) for change in Change}


def of_progress(progress: Progress) -> Json:
    """Encode the progress of a switchover or another rewrite."""
    store = None if progress.store is None else str(progress.store)
    record: Json = {"phase": code(progress.phase), "done": progress.done, "of": progress.of, "store": store}
    return {**record, "skipped_snapshots": list(progress.skipped_snapshots)} if progress.skipped_snapshots else record
