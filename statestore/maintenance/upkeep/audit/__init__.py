"""Verify the integrity of a checkpoint at rest: lost versions, warnings, and the batch to restart from. Read-only.

    gather(storage)  ->  Facts  ->  judge(facts, policy)  ->  Audit

A checkpoint is intact if the commit log has no gap and each batch has its offsets; the metadata files match each other;
every version from the oldest retained version to the head loads; each snapshot has its SST files with their sizes; the
lineage in the head equals the commit log. Files that the next garbage collection deletes are counted and are no finding.

Sources: SPARK-43421 (changelogs and snapshots), SPARK-49374 (ids in the commit log, lineage in changelogs).
"""

from statekeeper.statestore.maintenance.upkeep.audit.facts import AuditFacts
from statekeeper.statestore.maintenance.upkeep.audit.findings import (
    Audit,
    AuditPolicy,
    Finding,
    FindingKind,
    Restart,
    Severity,
    StoreAudit,
)
from statekeeper.statestore.maintenance.upkeep.audit.gather import gather
from statekeeper.statestore.maintenance.upkeep.audit.judge import judge

__all__ = [
    "Audit",
    "AuditFacts",
    "AuditPolicy",
    "Finding",
    "FindingKind",
    "Restart",
    "Severity",
    "StoreAudit",
    "gather",
    "judge",
]
