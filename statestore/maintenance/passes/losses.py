"""What a checkpoint with errors has lost, and what retention would add to that. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from statestore.chain import Chain, FileProblem
from statestore.format.names import StorePath, VersionId
from statestore.maintenance.audit import Audit, AuditFacts, Finding
from statestore.maintenance.audit.facts import StoreAuditFacts
from statestore.maintenance.retention import RetentionPlan


@dataclass(frozen=True)
class StoreLoss:
    """Versions of one store, ascending. `already`: retained versions that do not load now; `by_deleting`: versions that
    load now, and not after the deletions, because they are older than the floor."""

    store: StorePath
    already: tuple[VersionId, ...]
    by_deleting: tuple[VersionId, ...]


@dataclass(frozen=True)
class Losses:
    """`findings`: the errors of the audit, each with its file; `stores`: those that lose or have lost a version;
    `files` and `bytes`: what the plan deletes."""

    findings: tuple[Finding, ...]
    stores: tuple[StoreLoss, ...]
    files: int
    bytes: int


def losses(facts: AuditFacts, found: Audit, planned: RetentionPlan) -> Losses:
    """What is lost already, by the audit of these facts, and what this plan deletes of what still loads."""
    deleted = {verdict.path for verdict in planned.deletions}
    already = {store.store: store.lost for store in found.stores}
    stores = [
        StoreLoss(one.store, already.get(one.store, ()), _lost_by(one.chain, deleted))
        for one in facts.stores
        if isinstance(one, StoreAuditFacts)
    ]
    return Losses(
        found.breaks,
        tuple(one for one in stores if one.already or one.by_deleting),
        len(deleted),
        sum(verdict.size_bytes for verdict in planned.deletions),
    )


def _lost_by(chain: Chain, deleted: Collection[str]) -> tuple[VersionId, ...]:
    store = chain.store
    snapshots = {v: facts for v, facts in chain.snapshots.items() if store.snapshot(v) not in deleted}
    changelogs = {v: store.changelog(v) for v in chain.versions}
    gone = {v: FileProblem(path, "is deleted by the plan") for v, path in changelogs.items() if path in deleted}
    after = replace(chain, snapshots=snapshots, broken={**chain.broken, **gone}).bases
    return tuple(version for version in chain.bases if version not in after)
