"""Encodes rewinds and repairs."""

from __future__ import annotations

from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.rollback.repair import Rebuild, Relocate, RepairAction, Rewrite
from statekeeper.statestore.maintenance.rollback.rewind import RewindAction, RewindPlan
from statekeeper.statestore.maintenance.rollback.rewind import Rewrite as RewrittenFile


def of_rewind(plan: RewindPlan) -> list[Json]:
    """Encode a rewind: the batches and query ids, then each file with its reason."""
    head: Json = {
        "batch": plan.batch,
        "newest_batch": plan.newest,
        "former_query_id": plan.former_query,
        "query_id": plan.query,
        **({} if plan.file_sink is None else {"file_sink": plan.file_sink.url}),
    }
    return [head, *map(of_rewind_action, plan.actions)]


def of_rewind_action(action: RewindAction) -> Json:
    """Encode one action of a rewind."""
    does = "rewrite" if isinstance(action, RewrittenFile) else "quarantine"
    return {"path": action.path, "does": does, "reason": code(action.reason), "bytes": action.entry.size_bytes}


def of_repair(action: RepairAction) -> Json:
    """Encode the repair of one file."""
    repaired = {"aside": action.path}
    if isinstance(action, Rewrite):
        repaired = {"rewrite": action.path, "header": action.header}
    elif isinstance(action, Relocate):
        repaired = {"relocate": action.path, "location": action.location}
    elif isinstance(action, Rebuild):
        repaired = {"rebuild": action.path}
    return {**repaired, "reason": code(action.reason), "explained": action.reason.value}
