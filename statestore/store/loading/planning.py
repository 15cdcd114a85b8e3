"""Plans of loads: which base, and which changelogs.

`lineage` decides, and for structure V1 roots of Statekeeper `confirmed` does. This module reads the lineages they need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from statekeeper.statestore.base.errors import (
    RESTORE,
    CorruptFile,
    ObjectMissing,
    RecordTooLarge,
    UnknownFormatVersion,
    VersionNotLoadable,
)
from statekeeper.statestore.checkpoint.lineage import (
    MOST_REPLAYED,
    BaseKind,
    Lineage,
    LoadPlan,
    LocalCopy,
    NeedsHeader,
    NotLoadable,
    next_step,
)
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.batch_log import object_of
from statekeeper.statestore.format.limits import UNKNOWN_ROOT
from statekeeper.statestore.format.names import EMPTY, StoreFileKind, StorePath, VersionId, parse_store_file
from statekeeper.statestore.storage import Entry, Storage, read_or_none
from statekeeper.statestore.store.loading.changelogs import Changelogs


@dataclass(frozen=True)
class LoadRequest:
    """One version of one store to load.

    known_snapshots  versions of the store that had a snapshot earlier
    root             the URL of the checkpoint, for the commands in errors
    """

    store: StorePath
    target: VersionId
    known_snapshots: frozenset[VersionId] = frozenset()
    root: str = "ROOT"

    def not_loadable(
        self, culprit: VersionId, problem: str, *, skipped: Collection[str] = (), action: str = "", newest: str = ""
    ) -> VersionNotLoadable:
        """The error that names the changelog of `culprit` and its problem.

        `skipped`: the snapshots that cannot be a base, with their problems; `action` and `newest` replace the usual ends
        of the hint: restore the file, and the newest version that can be loaded.
        """
        unusable = f"; unusable snapshots: {'; '.join(skipped)}" if skipped else ""
        if not newest:
            before = culprit.version - 2
            newest = f"the newest batch that can be loaded is {before}" if before >= 0 else "no batch can be loaded"
        return VersionNotLoadable(
            f"{problem} (the file is of {culprit.in_words}); {self.target.in_words} of {self.store} cannot be loaded"
            f"{unusable}",
            path=object_of(self.store, culprit),
            hint=f"{action or 'restore the file from a backup'}; {newest}. To see which batches can be loaded, run: "
            f"statekeeper audit {self.root}",
        )

    def unreadable(
        self,
        culprit: VersionId,
        error: ObjectMissing | CorruptFile,
        *,
        skipped: Collection[str] = (),
        of_job: bool = True,
    ) -> VersionNotLoadable:
        """The error for a changelog that cannot be read. One with a value above the limit is intact: no backup helps, but
        a larger limit does. `of_job`: a native query has no such limit, and needs no rewind."""
        if not isinstance(error, RecordTooLarge):
            return self.not_loadable(culprit, error.what, skipped=skipped)
        batch = culprit.version - 2
        back = (
            f". Or stop the query, and go back to batch {batch}: statekeeper rewind {self.root} --to-batch {batch}"
            if of_job and batch >= 0
            else ""
        )
        raised = (error.hint or "").replace(f"StorageSpec({UNKNOWN_ROOT},", f'StorageSpec("{self.root}",')
        return self.not_loadable(culprit, error.what, skipped=skipped, action=f"{raised}{back}")


@dataclass(frozen=True)
class LoadFacts:
    """Snapshots of one store.

    snapshots   versions with a snapshot that can be the base
    skipped     snapshots that cannot be a base, each with its problem
    files       the listed files of the store by path
    """

    snapshots: frozenset[VersionId]
    skipped: tuple[str, ...] = ()
    files: Mapping[str, Entry] = field(default_factory=dict)

    def without(self, store: StorePath, snapshot: VersionId, problem: str) -> LoadFacts:
        """The facts after the snapshot turned out to be unusable."""
        path = store.snapshot(snapshot)
        reason = problem if problem.startswith(f"{path}: ") else f"{path}: {problem}"
        return replace(self, snapshots=self.snapshots - {snapshot}, skipped=(*self.skipped, reason))


def gather(request: LoadRequest, storage: Storage) -> LoadFacts:
    """List the snapshots in storage, and add the known ones. One request, none for version 0. Raises `StorageError`.

    The listing shows the snapshots that maintenance made since the driver's last listing.
    """
    found, files = set(request.known_snapshots), dict[str, Entry]()
    if request.target != EMPTY:
        for entry in storage.list(request.store.folder):
            files[entry.path] = entry
            folder, _, name = entry.path.rpartition("/")
            parsed = parse_store_file(name, request.store.provider)
            if folder == request.store.folder and parsed is not None and parsed.kind is StoreFileKind.SNAPSHOT:
                found.add(parsed.version)
    return LoadFacts(frozenset(found), files=files)


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
                    action="restore the file, or a snapshot of its batch, from a backup",
                    newest="batches with a snapshot can be loaded",
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
        "has a checkpoint id in its name, but no lineage in its header; its batch cannot be loaded",
        path=request.store.changelog(version),
        hint="if a later release of Spark or Statekeeper wrote the file, upgrade Statekeeper",
    )


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
            hint=RESTORE,
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
