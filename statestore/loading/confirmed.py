"""Loading a version of structure V1 that a commit of ours confirmed: from which base, and whether the files still say so.

The base is the newest snapshot whose digest is known: the commit of its version tells it. From there the changelogs in
storage must lead to the digest that is asked for; when they do not, one of them is not the one that was confirmed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from statestore.errors import CorruptFile, ObjectMissing, UnknownFormatVersion, VersionNotLoadable
from statestore.format import logs, names
from statestore.format.names import EMPTY, StorePath, VersionId
from statestore.lineage import MOST_REPLAYED, BaseKind, Lineage, LoadPlan
from statestore.loading.changelogs import Changelogs
from statestore.storage import Storage, read_or_none


@dataclass(frozen=True)
class ConfirmedPlan:
    """How to load a version, and which snapshots are no base because nothing tells their digest."""

    plan: LoadPlan
    skipped: tuple[str, ...]


def confirmed(storage: Storage, store: StorePath, number: int) -> VersionId | None:
    """A version as its commit says it is; None where the commit is gone, or says no digest. One request.

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
        # A partition of ours has one store.
        return VersionId(number, digest=digests[store.operator][store.partition][0])
    except (KeyError, IndexError):
        raise CorruptFile(f"names no digest of {store}", path=path) from None


def plan_confirmed(
    storage: Storage,
    store: StorePath,
    target: VersionId,
    snapshots: Collection[VersionId],
    changelogs: Changelogs,
    tried: Collection[str] = (),
) -> ConfirmedPlan:
    """How to load `target`. `snapshots`: the versions that have one; `tried`: what is wrong with others, where they were
    the base. The changelogs are on this host then, and verified.

    Requests: one for each snapshot that is looked at, and the changelogs. Raises `VersionNotLoadable`, `StorageError`,
    `LocalDiskFull`.
    """
    skipped: list[str] = []
    base = EMPTY
    for snapshot in sorted((s for s in snapshots if s.id is None and s.version <= target.version), reverse=True):
        known = target if snapshot == target else _known(storage, store, snapshot, skipped)
        if known is not None:
            base = known
            break
    if (changes := target.version - base.version) > MOST_REPLAYED:
        what = f"{changes:,} changelogs lie between it and the newest snapshot"
        raise _not_loadable(store, target, target, what, "restore a snapshot")
    try:
        replay = changelogs.chain(base, target, fetch=True)
        if replay is None:
            # What this host has may be of attempts that lost: storage decides.
            replay = changelogs.as_stored(base, target)
    except ObjectMissing as error:
        raise _missing(store, target, error, [*tried, *skipped]) from error
    if replay and not replay[-1].is_same(target):
        raise _refused(storage, store, target, replay, changelogs)
    kind = BaseKind.NOTHING if base == EMPTY else BaseKind.SNAPSHOT
    return ConfirmedPlan(LoadPlan(kind, base, replay, ()), tuple(skipped))


def _known(storage: Storage, store: StorePath, snapshot: VersionId, skipped: list[str]) -> VersionId | None:
    path = store.snapshot(snapshot)
    try:
        known = confirmed(storage, store, snapshot.version)
    except (CorruptFile, UnknownFormatVersion) as error:
        skipped.append(f"{path}: {error}")
        return None
    if known is None:
        skipped.append(f"{path}: {names.commits(snapshot.version - 1)} does not tell the digest of its version")
    return known


def _missing(store: StorePath, target: VersionId, error: ObjectMissing, skipped: list[str]) -> VersionNotLoadable:
    file = names.parse_store_path(error.path or "")
    assert file is not None
    what = "".join((error.what, *(f"; {reason}" for reason in skipped)))
    return _not_loadable(store, target, file[1].version, what, "restore the file")


def _refused(
    storage: Storage, store: StorePath, target: VersionId, stored: Lineage, changelogs: Changelogs
) -> VersionNotLoadable:
    """Which file is not the confirmed one: the first that is damaged, or behind which files and commits part."""
    culprit = stored[-1]
    for version in stored:
        try:
            changelogs.check(version)
            said = confirmed(storage, store, version.version)
        except CorruptFile as error:
            if error.path != store.changelog(version):
                continue
            return _not_loadable(store, target, version, error.what, "restore the file")
        except UnknownFormatVersion:
            continue
        if said is not None and not said.is_same(version):
            culprit = version
            break
    kept = names.cached_changelog(VersionId(culprit.version, digest="<digest>"))
    return _not_loadable(
        store,
        target,
        culprit,
        "was replaced by an attempt that was not confirmed, and holds other changes than the confirmed one did: for the "
        "same input the update function gives this or that",
        f"restore the file: a host of the query may still have it in its local folder, as changelogs/{kept}; and mend the "
        "function, or go on in structure V2, where each attempt has files of its own",
    )


def _not_loadable(
    store: StorePath, target: VersionId, culprit: VersionId, what: str, action: str
) -> VersionNotLoadable:
    return VersionNotLoadable(
        f"{target.in_words} of {store} cannot be loaded: {what}",
        path=store.changelog(culprit),
        hint=f"{action}; the newest version that still loads is {VersionId(culprit.version - 1).in_words}",
    )
