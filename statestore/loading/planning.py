"""Plans of loads: which base, and which changelogs.

`lineage` decides, and for structure V1 roots of Statekeeper `confirmed` does. This module fetches the facts they need.
"""

from __future__ import annotations

from statestore.errors import CorruptFile, ObjectMissing
from statestore.format.names import EMPTY, VersionId
from statestore.lineage import BaseKind, LoadPlan, LocalCopy, NeedsHeader, NotLoadable, next_step
from statestore.loading.confirmed import plan_confirmed
from statestore.loading.facts import LoadFacts
from statestore.loading.request import LoadRequest


def plan_from_storage(request: LoadRequest, facts: LoadFacts) -> LoadPlan:
    """Plan a load from a snapshot or from version 0. Raises `VersionNotLoadable`, `StorageError`."""
    if request.target != EMPTY:
        # The listing shows the snapshots that maintenance made since the driver's last listing.
        facts.list_snapshots()
    if request.target.digest is not None:
        return plan_confirmed(request, facts)
    return _plan(request, facts, local=None)


def plan_from_local(request: LoadRequest, facts: LoadFacts, local: LocalCopy, *, fetch: bool) -> LoadPlan | None:
    """Plan a load from the local copy; None if the copy is no ancestor of the target.

    Without `fetch`, a plan in structure V1 uses only changelogs on this host. Raises as `plan_from_storage`.
    """
    if local.version.version > request.target.version:
        return None
    if request.target.digest is None:
        plan = _plan(request, facts, local)
        return plan if plan.base_kind is BaseKind.LOCAL else None
    try:
        replay = facts.changelogs.chain(local.version, request.target, fetch=fetch)
    except ObjectMissing:
        return None
    return None if replay is None else LoadPlan(BaseKind.LOCAL, local.version, replay, ())


def _plan(request: LoadRequest, facts: LoadFacts, local: LocalCopy | None) -> LoadPlan:
    while True:
        step = next_step(request.target, snapshots=facts.snapshots, local=local, headers=facts.lineages)
        match step:
            case LoadPlan(base_kind=kind) if kind is BaseKind.LOCAL or facts.is_listed or request.target == EMPTY:
                return step
            case NeedsHeader(version) if local is not None or facts.is_listed:
                _read_lineage(request, facts, version)
            case _ if not facts.is_listed:
                facts.list_snapshots()
            case NotLoadable(missing, reason):
                raise request.not_loadable(
                    missing,
                    f"there is no base: {reason}",
                    skipped=facts.skipped,
                    action="restore the file, or a snapshot of its version, from a backup",
                    newest="versions with a snapshot can be loaded",
                )


def _read_lineage(request: LoadRequest, facts: LoadFacts, version: VersionId) -> None:
    try:
        facts.lineages[version] = facts.changelogs.lineage(version)
    except (ObjectMissing, CorruptFile) as error:
        if not facts.is_listed:
            # If this version has a snapshot, retention may have deleted its changelog.
            facts.list_snapshots()
            return
        older = max((s for s in facts.snapshots if s.version < version.version), default=None)
        newest = f"the newest older snapshot is of {older.in_words}" if older else "there is no older snapshot"
        raise request.not_loadable(
            version,
            error.what,
            skipped=facts.skipped,
            action=f"restore the file from a backup, or go back to {VersionId(version.version - 1).in_words}",
            newest=newest,
        ) from error
