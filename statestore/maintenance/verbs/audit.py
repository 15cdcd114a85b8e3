"""The audit with the retention policy of the checkpoint, and the forecast of the next retention run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.maintenance.executors import Executor
from statekeeper.statestore.maintenance.upkeep import audit, retention
from statekeeper.statestore.maintenance.upkeep.audit import Audit, AuditFacts, AuditPolicy, Finding
from statekeeper.statestore.maintenance.upkeep.retention import Forecast
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.storage import RequestCounts, Storage


@dataclass(frozen=True)
class Looked:
    """An audit, its facts, and the forecast of the next gc.

    `forecast`: None if no plan is possible, which is also a finding of the audit; `requests`: storage requests of both.
    """

    facts: AuditFacts
    audit: Audit
    forecast: Forecast | None
    requests: RequestCounts


def policy_of(policies: Policies) -> AuditPolicy:
    """Return the audit policy for these policies."""
    return AuditPolicy(retained_versions=policies.retention.versions)


def judged(facts: AuditFacts, policies: Policies) -> Audit:
    """Judge the facts with the retention policy of the checkpoint. Pure."""
    return audit.judge(facts, policy_of(policies))


def described(findings: Sequence[Finding]) -> str:
    """Describe the worst finding: its file, problem, consequence and action. `findings`: at least one, the worst first."""
    worst = findings[0]
    more = f" There are {len(findings) - 1:,} more findings." if len(findings) > 1 else ""
    return f"{worst.place} {worst.problem}; {worst.meaning} -> {worst.action}.{more}"


def look(
    storage: Storage,
    policies: Policies,
    *,
    clock: Clock,
    scratch: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    cluster: Executor | None = None,
) -> Looked:
    """Audit a checkpoint with its retention policy, and forecast the plan that `retention.plan` makes. Read-only.

    `scratch`, `progress`, `cluster`: as in `audit.gather`. Raises as `audit.gather`.
    """
    before = storage.requests.snapshot()
    facts = audit.gather(storage, scratch=scratch, progress=progress, cluster=cluster)
    found = judged(facts, policies)
    figures = _forecast(storage, policies, clock)
    return Looked(facts, found, figures, storage.requests.since(before))


def _forecast(storage: Storage, policies: Policies, clock: Clock) -> Forecast | None:
    policy = policies.retention
    try:
        gathered = retention.gather(storage, policy, clock=clock)
    except (CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion):
        return None
    return retention.forecast(gathered, retention.plan(gathered, policy), policy)
