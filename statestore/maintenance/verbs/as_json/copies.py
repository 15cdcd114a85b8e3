"""Encodes the deletions of a mirror."""

from __future__ import annotations

from collections.abc import Sequence

from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.maintenance.copies.mirrors import CleanupPlan, Obsolete
from statekeeper.statestore.maintenance.records.history import DeletedFiles, Json, PlannedDeletion
from statekeeper.statestore.maintenance.upkeep.retention import DeletionOutcome


def of_cleanup(plan: CleanupPlan) -> list[Json]:
    """Encode the deletions of a mirror: each file with its reason."""
    return [PlannedDeletion(path=file.path, rule=code(file.reason)).encode() for file in plan.obsolete]


def of_cleaned(files: Sequence[Obsolete]) -> Json:
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
