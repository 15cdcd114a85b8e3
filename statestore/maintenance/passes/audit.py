"""The audit as maintenance uses it: with the retention policy of the checkpoint, and what retention makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from statestore.clock import Clock
from statestore.errors import CorruptFile, NotAFile, ObjectMissing, UnknownFormatVersion
from statestore.maintenance import audit, retention
from statestore.maintenance.audit import Audit, AuditFacts, AuditPolicy
from statestore.maintenance.config import Policies
from statestore.maintenance.retention import Forecast
from statestore.storage import RequestCounts, Storage


@dataclass(frozen=True)
class Looked:
    """An audit, the facts behind it, and what the next gc deletes: None where nothing can be planned, which is a finding
    of the audit, too. `requests`: what both took."""

    facts: AuditFacts
    audit: Audit
    forecast: Forecast | None
    requests: RequestCounts


def policy_of(policies: Policies) -> AuditPolicy:
    """What the audit of a checkpoint with these policies retains."""
    return AuditPolicy(retained_versions=policies.retention.versions)


def judged(facts: AuditFacts, policies: Policies) -> Audit:
    """The audit of a checkpoint, as its retention sees it. Pure."""
    return audit.judge(facts, policy_of(policies))


def look(
    storage: Storage,
    policies: Policies,
    *,
    clock: Clock,
    scratch: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Looked:
    """The audit of a checkpoint, as its retention sees it, and the plan of retention in figures: the same plan that
    `retention.prepare` makes. Read-only. Raises as `audit.gather`; `scratch`, `progress`: see there."""
    before = storage.requests.snapshot()
    facts = audit.gather(storage, scratch=scratch, progress=progress)
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
