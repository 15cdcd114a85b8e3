"""Whether a checkpoint at rest is whole: what is lost, what needs attention, and from where one can go on. Read-only.

    gather(storage)  ->  Facts  ->  judge(facts, policy)  ->  Audit

Whole means: the commit log has no gap and each batch its offsets; the files that describe the checkpoint fit it; every
version from the oldest that is retained to the head loads; each snapshot on the way has its tables, in their sizes; the
lineage in the head names what the commit log does. What the next gc deletes is counted and no finding.

Sources: SPARK-43421 (changelogs and snapshots), SPARK-49374 (ids in the commit log, lineage in changelogs).
"""

from statestore.maintenance.audit.facts import AuditFacts
from statestore.maintenance.audit.findings import (
    Audit,
    AuditPolicy,
    Finding,
    FindingKind,
    Restart,
    Severity,
    StoreAudit,
)
from statestore.maintenance.audit.gather import gather
from statestore.maintenance.audit.judge import judge

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
