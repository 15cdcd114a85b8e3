"""Computes the versions that a checkpoint has lost, and the versions that a retention plan would lose. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format.batch_log import object_of
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.upkeep.audit import Audit, AuditFacts, Finding
from statekeeper.statestore.maintenance.upkeep.audit.facts import StoreAuditFacts
from statekeeper.statestore.maintenance.upkeep.audit.view import ranges
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPlan


@dataclass(frozen=True)
class StoreLoss:
    """Lost versions of one store, ascending.

    `already`: retained versions that do not load now; `by_deleting`: versions below the floor that load now, but not after
    the deletions.
    """

    store: StorePath
    already: tuple[VersionId, ...]
    by_deleting: tuple[VersionId, ...]


@dataclass(frozen=True)
class Losses:
    """The losses of a checkpoint.

    `findings`: errors of the audit, each with its file; `stores`: stores with a lost version; `files`, `bytes`: amount that
    the plan deletes.
    """

    findings: tuple[Finding, ...]
    stores: tuple[StoreLoss, ...]
    files: int
    bytes: int

    def lines(self) -> Iterator[str]:
        """List the errors of the audit, the versions that are lost already and those that the deletion adds."""
        for finding in self.findings:
            yield f"error: {finding.place}: {finding.problem}"
        for store in self.stores:
            if store.already:
                yield f"{store.store}: these batches already cannot be loaded: {ranges(store.already)}"
            if store.by_deleting:
                lost = ranges(store.by_deleting)
                yield f"{store.store}: these batches cannot be loaded after the deletion: {lost}"


def losses(facts: AuditFacts, found: Audit, planned: RetentionPlan) -> Losses:
    """Return the versions that are lost according to the audit, and the loadable versions that this plan deletes."""
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
    changelogs = {v: object_of(store, v) for v in chain.versions}
    gone = {
        version: FileProblem(path, Flaw.MISSING, "is deleted by the plan")
        for version, path in changelogs.items()
        if path in deleted
    }
    after = replace(chain, snapshots=snapshots, broken={**chain.broken, **gone}).bases
    return tuple(version for version in chain.bases if version not in after)
