"""Plans for structure V1 roots of Statekeeper, where commits confirm a digest of each version.

The base is the newest snapshot with a known digest: the commit of its version names it. The changelogs after it must lead
to the digest of the target. If they do not, one of them is not the confirmed file.
"""

from __future__ import annotations

from statekeeper.statestore.errors import CorruptFile, ObjectMissing, UnknownFormatVersion, VersionNotLoadable
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.lineage import MOST_REPLAYED, BaseKind, Lineage, LoadPlan
from statekeeper.statestore.loading.changelogs import Changelogs
from statekeeper.statestore.loading.facts import LoadFacts
from statekeeper.statestore.loading.request import LoadRequest
from statekeeper.statestore.storage import Storage, read_or_none


def confirmed(storage: Storage, store: StorePath, number: int) -> VersionId | None:
    """Read the digest of a version from its commit; None if the commit is missing or has no digests. One request.

    Raises `CorruptFile`, `UnknownFormatVersion`, `StorageError`.
    """
    if number == 0:
        return EMPTY
    path = names.commits(number - 1)
    data = read_or_none(storage, path)
    digests = None if data is None else logs.parse_commit(data, path).digests
    if digests is None:
        return None
    try:
        # A partition of a Statekeeper root has one store.
        return VersionId(number, digest=digests[store.operator][store.partition][0])
    except (KeyError, IndexError):
        raise CorruptFile(
            f"has no digest of store {store}; {VersionId(number).in_words} cannot be verified",
            path=path,
            hint="restore the file from a backup",
        ) from None


def plan_confirmed(
    request: LoadRequest, facts: LoadFacts, changelogs: Changelogs, storage: Storage
) -> tuple[LoadPlan, LoadFacts]:
    """Plan a load of a version with a digest. Fetch and verify the changelogs. Return the plan, and the facts without the
    snapshots that have no digest.

    Requests: one for each snapshot that is a candidate, and the changelogs. Raises `VersionNotLoadable`, `StorageError`,
    `LocalDiskFull`.
    """
    target, base = request.target, EMPTY
    for snapshot in sorted((s for s in facts.snapshots if s.id is None and s.version <= target.version), reverse=True):
        try:
            known = target if snapshot == target else confirmed(storage, request.store, snapshot.version)
        except (CorruptFile, UnknownFormatVersion) as error:
            facts = facts.without(request.store, snapshot, str(error))
            continue
        if known is not None:
            base = known
            break
        problem = f"{names.commits(snapshot.version - 1)} has no digest of its version"
        facts = facts.without(request.store, snapshot, problem)
    if (changes := target.version - base.version) > MOST_REPLAYED:
        problem = f"{changes:,} changelogs lie between it and the newest snapshot"
        raise request.not_loadable(target, problem, action="restore a snapshot from a backup")
    try:
        replay = changelogs.chain(base, target, fetch=True)
        if replay is None:
            # The changelogs on this host may be of attempts that were not confirmed. Storage decides.
            replay = changelogs.as_stored(base, target)
    except ObjectMissing as error:
        file = names.parse_store_path(error.path or "")
        assert file is not None
        raise request.not_loadable(file[1].version, error.what, skipped=facts.skipped) from error
    if replay and not replay[-1].is_same(target):
        raise _mismatch(request, changelogs, storage, replay)
    return LoadPlan(BaseKind.NOTHING if base == EMPTY else BaseKind.SNAPSHOT, base, replay, ()), facts


def _mismatch(request: LoadRequest, changelogs: Changelogs, storage: Storage, stored: Lineage) -> VersionNotLoadable:
    """The error for changelogs in storage that do not lead to the target.

    The culprit is the first changelog that is corrupt, or whose digest differs from that of its commit.
    """
    culprit = stored[-1]
    for version in stored:
        try:
            changelogs.check(version)
            known = confirmed(storage, request.store, version.version)
        except CorruptFile as error:
            if error.path != request.store.changelog(version):
                continue
            return request.unreadable(version, error)
        except UnknownFormatVersion:
            continue
        if known is not None and not known.is_same(version):
            culprit = version
            break
    cached = names.cached_changelog(VersionId(culprit.version, digest="<digest>"))
    return request.not_loadable(
        culprit,
        "was overwritten with other changes by an attempt that was not committed, because the update function is not "
        "deterministic",
        action=f"restore the file from a backup or from a host of the query (local folder, changelogs/{cached}). Then make "
        "the update function deterministic, or switch to structure V2",
    )
