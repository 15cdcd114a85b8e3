"""Plans of loads: which base, and which changelogs.

`lineage` decides, and for structure V1 roots of Statekeeper `confirmed` does. This module reads the lineages they need.
"""

from __future__ import annotations

from statekeeper.statestore.errors import CorruptFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.lineage import BaseKind, Lineage, LoadPlan, LocalCopy, NeedsHeader, NotLoadable, next_step
from statekeeper.statestore.loading.changelogs import Changelogs
from statekeeper.statestore.loading.facts import LoadFacts
from statekeeper.statestore.loading.request import LoadRequest


def plan_from_storage(request: LoadRequest, facts: LoadFacts, changelogs: Changelogs) -> LoadPlan:
    """Plan a load from a snapshot or from version 0, for a version without a digest.

    Raises `VersionNotLoadable`, `UnknownFormatVersion`, `StorageError`, `LocalDiskFull`.
    """
    lineages: dict[VersionId, Lineage] = {}
    while True:
        match next_step(request.target, snapshots=facts.snapshots, local=None, headers=lineages):
            case LoadPlan() as plan:
                return plan
            case NeedsHeader(version):
                try:
                    lineage = changelogs.header(version).lineage
                except (ObjectMissing, CorruptFile) as error:
                    older = max((s for s in facts.snapshots if s.version < version.version), default=None)
                    before = VersionId(version.version - 1).in_words
                    newest = (
                        f"the newest older snapshot is of {older.in_words}" if older else "there is no older snapshot"
                    )
                    raise request.not_loadable(
                        version,
                        error.what,
                        skipped=facts.skipped,
                        action=f"restore the file from a backup, or go back to {before}",
                        newest=newest,
                    ) from error
                if lineage is None:
                    raise _no_lineage(request, version)
                lineages[version] = lineage
            case NotLoadable(missing, reason):
                raise request.not_loadable(
                    missing,
                    f"there is no base: {reason}",
                    skipped=facts.skipped,
                    action="restore the file, or a snapshot of its version, from a backup",
                    newest="versions with a snapshot can be loaded",
                )


def plan_from_local(
    request: LoadRequest, changelogs: Changelogs, local: LocalCopy, *, fetch: bool
) -> LoadPlan | NotLoadable | None:
    """Plan a load from the local copy; None if the copy is no ancestor of the target.

    `NotLoadable` if a changelog cannot be read: its version may have a snapshot in storage. Without `fetch`, a plan of a
    version with a digest uses only changelogs on this host. Raises `UnknownFormatVersion`, `StorageError`, `LocalDiskFull`.
    """
    if local.version.version > request.target.version:
        return None
    if request.target.digest is not None:
        try:
            replay = changelogs.chain(local.version, request.target, fetch=fetch)
        except ObjectMissing:
            return None
        return None if replay is None else LoadPlan(BaseKind.LOCAL, local.version, replay, ())
    lineages: dict[VersionId, Lineage] = {}
    while True:
        match next_step(request.target, snapshots=request.known_snapshots, local=local, headers=lineages):
            case LoadPlan(base_kind=kind) as plan:
                return plan if kind is BaseKind.LOCAL else None
            case NotLoadable() as reason:
                return reason
            case NeedsHeader(version):
                try:
                    lineage = changelogs.header(version).lineage
                except (ObjectMissing, CorruptFile) as error:
                    return NotLoadable(version, error.what)
                if lineage is None:
                    raise _no_lineage(request, version)
                lineages[version] = lineage


def _no_lineage(request: LoadRequest, version: VersionId) -> UnknownFormatVersion:
    return UnknownFormatVersion(
        "has a checkpoint id in its name, but no lineage in its header; the version cannot be loaded",
        path=request.store.changelog(version),
        hint="if a later release of Spark or Statekeeper wrote the file, upgrade Statekeeper",
    )
