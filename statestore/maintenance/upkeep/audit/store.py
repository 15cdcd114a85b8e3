"""Gather the facts of one store: its chain, the lineage of its head, and the content of all files in a deep audit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from statekeeper.statestore.base.errors import (
    StatekeeperError,
    StorageError,
    UnknownFormatVersion,
)
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.lineage import Lineage
from statekeeper.statestore.contents.chain import Chain, StoredSnapshot, walk
from statekeeper.statestore.format.batch_log import object_of
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.maintenance.executors import Executor, Place
from statekeeper.statestore.maintenance.upkeep import verification
from statekeeper.statestore.maintenance.upkeep.audit import checksums
from statekeeper.statestore.maintenance.upkeep.audit.facts import (
    Decoded,
    Layout,
    NotAudited,
    Refused,
    StoreAuditFacts,
    StoreKind,
    StoreResult,
    attempt,
)
from statekeeper.statestore.maintenance.upkeep.verification import Reads
from statekeeper.statestore.storage import Omitted, Storage
from statekeeper.statestore.storage.paths import is_below

_LARGE_SHARE = 8
"""Ratio of compression that a large value usually does not exceed. A deep audit also finds values that do."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """Shared inputs for all stores of a checkpoint.

    scratch          see `gather`
    hidden           files that a plain listing omits
    omitted          entries that the listing of `state/` has omitted, such as links
    readable         the batches whose commits can be read
    with_families    operators whose stores have column families
    reads            the record of files that were read in full
    layouts          row layouts of a native checkpoint
    """

    storage: Storage
    scratch: Path | None
    conf: StateConf
    hidden: frozenset[str] = frozenset()
    with_families: frozenset[int] = frozenset()
    omitted: tuple[Omitted, ...] = ()
    readable: Collection[int] = frozenset()
    reads: Reads = field(default_factory=dict)
    layouts: Mapping[StoreKind, Layout | FileProblem] = field(default_factory=dict)


def gather_store(way: Way, store: StorePath, committed: Mapping[int, VersionId], files: StoreFiles) -> StoreResult:
    """Gather the facts of one store. `committed`: its versions in the commit log.

    Requests: the start of its newest changelog, or all of a large one of a job; one for each snapshot on the chain; one if
    the commit log and the lineage do not reach a base. Raises `LocalStateError`.
    """
    linked = [one for one in way.omitted if one.shown == store.folder or is_below(store.folder, one.shown)]
    if linked and not files.entries:
        problem = FileProblem(linked[0].shown, Flaw.MISMATCH, f"is not read: {linked[0].reason}")
        return NotAudited(store, problem, "stop the query, and replace the link by the folder to which it leads")
    if not committed:
        return NotAudited(store, FileProblem(store.folder, Flaw.MISMATCH, "is not named by any readable commit"))
    try:
        return _gather_store(way, store, committed, files)
    except UnknownFormatVersion as error:
        return NotAudited(store, FileProblem(error.path or store.folder, Flaw.UNKNOWN_FORMAT, error.what))
    except StorageError as error:
        return NotAudited(store, FileProblem(store.folder, Flaw.CORRUPT, f"cannot be read from storage: {error}"))


@dataclass(frozen=True, kw_only=True)
class ToLook:
    """A store for a task: as the arguments of `gather_store`."""

    store: StorePath
    committed: Mapping[int, VersionId]
    files: StoreFiles


@dataclass(frozen=True)
class LookEach:
    """The task of a deep audit of one store."""

    way: Way

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.way.storage,)

    def __call__(self, item: ToLook, place: Place) -> StoreResult:
        return gather_store(replace(self.way, scratch=place.folder), item.store, item.committed, item.files)


def look_elsewhere(
    way: Way,
    stores: Sequence[ToLook],
    note: Callable[[StorePath, StoreResult], None],
    cluster: Executor,
) -> list[StatekeeperError]:
    """Gather the facts of stores on a cluster, and note each. A store whose task failed is noted as not audited. Return the
    errors of these tasks."""
    failed: list[StatekeeperError] = []

    def ended(item: ToLook, outcome: StoreResult | StatekeeperError) -> None:
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
            problem = FileProblem(item.store.folder, Flaw.CORRUPT, f"was not read, because its task failed: {outcome}")
            outcome = NotAudited(item.store, problem, "run: statekeeper audit ROOT --deep")
        note(item.store, outcome)

    cluster.map(LookEach(way), stores, ended)
    return failed


def _gather_store(way: Way, store: StorePath, committed: Mapping[int, VersionId], files: StoreFiles) -> StoreAuditFacts:
    storage = way.storage
    head = committed[max(committed)]
    bad = {
        version: FileProblem(entry.path, Flaw.CORRUPT, "is empty")
        for version, entry in files.changelogs.items()
        if entry.size_bytes == 0
    }
    lineage: Lineage | None = None
    if head.id is not None and head in files.changelogs and head not in bad:
        read = attempt(store.changelog(head), lambda: catalog.lineage(storage, store, head))
        if isinstance(read, FileProblem):
            refuse_unknown(read)
            bad[head] = read
        else:
            lineage = read
    believed = _believed(committed, lineage or (), files)
    needs_base = store.operator in way.with_families
    faults = verification.faults(way.reads, {entry.path: entry for entry in files.entries})
    chain = walk(
        storage,
        store,
        believed[head.version],
        believed,
        files,
        down_to=min(committed),
        needs_base=needs_base,
        faults=faults,
        is_first=lambda version: _is_first(version, committed, way.readable),
    )
    if lineage is not None and (problem := conflict(chain, head, lineage)):
        bad[head] = FileProblem(store.changelog(head), Flaw.MISMATCH, problem)
    if way.scratch is None and head not in bad and (unread := _large_head(way, chain)):
        bad[chain.head] = unread
    unnoticed = {v for v, facts in chain.snapshots.items() if facts.fault is not None and not facts.fault.is_noticed}
    look = Look(chain=chain, changelogs=_changelogs(chain, bad), snapshots=_snapshots(chain), unnoticed=unnoticed)
    decoded: Decoded | None = None
    if way.scratch is not None:
        from statekeeper.statestore.maintenance.upkeep.audit.deep import Decoding

        decoded = Decoding(way, look, way.scratch).run()
    refused = [*checksums.of_zips(chain), *(checksums.empty(chain) if decoded is None else look.refused)]
    chain = with_problems(chain, look.changelogs, look.snapshots)
    contradicted = {number: version for number, version in committed.items() if believed[number] != version}
    return StoreAuditFacts(
        store=store,
        committed=committed,
        contradicted=contradicted,
        chain=chain,
        changelogs=look.changelogs,
        snapshots=look.snapshots,
        unnoticed=frozenset(look.unnoticed),
        lineage=lineage,
        decoded=decoded,
        refused=tuple(refused),
        strays=checksums.strays(storage, chain),
    )


def with_problems(
    chain: Chain, changelogs: Mapping[VersionId, FileProblem], snapshots: Mapping[VersionId, FileProblem]
) -> Chain:
    """Return a chain whose versions load as these problems of its files allow."""
    return replace(
        chain,
        broken=changelogs,
        snapshots={
            version: StoredSnapshot(metadata=facts.metadata, damage=snapshots.get(version))
            for version, facts in chain.snapshots.items()
        },
    )


def _is_first(version: int, committed: Mapping[int, VersionId], readable: Collection[int]) -> bool:
    """Return whether a version is the first of its store, or the first after a rescale added its partition again:
    the commit before it exists and does not have the store."""
    return version <= 1 or (version in committed and version - 1 not in committed and version - 2 in readable)


def _large_head(way: Way, chain: Chain) -> FileProblem | None:
    """Read the newest changelog of a job in full if it can have a value above the limit. Return its problem.

    No batch follows such a value, because no load can read it, so earlier changelogs have none. One download, if the
    changelog has at least `record_bytes` / `_LARGE_SHARE` compressed bytes and its version has no snapshot.
    """
    head, limits = chain.head, way.storage.limits
    entry = chain.files.changelogs.get(head)
    snapshot = chain.snapshots.get(head)
    if way.conf != OURS or entry is None or (snapshot is not None and snapshot.is_whole):
        return None
    if entry.size_bytes < limits.record_bytes // _LARGE_SHARE:
        return None

    # Imported on demand, as every read of a whole file: a shallow audit needs neither Arrow nor RocksDB for it.
    from statekeeper.statestore.maintenance.upkeep.audit.deep import read_changelog

    found = read_changelog(way, entry)
    if found is None:
        return None
    refuse_unknown(found)
    return found


def refuse_unknown(bad: FileProblem) -> None:
    """Raise `UnknownFormatVersion` for a file of an unknown format."""
    if bad.flaw is Flaw.UNKNOWN_FORMAT:
        raise UnknownFormatVersion(bad.text, path=bad.path)


def _believed(committed: Mapping[int, VersionId], lineage: Lineage, files: StoreFiles) -> dict[int, VersionId]:
    """Merge the commit log with the lineage of the head. The lineage wins if the version in the log has no files, as in a
    load. If that version has files, `conflict` reports the changelog."""
    believed = {version.version: version for version in lineage}
    for number, version in committed.items():
        expected = believed.get(number, version)
        if expected == version or version in files.changelogs or version in files.snapshots:
            believed[number] = version
    return believed


def conflict(chain: Chain, version: VersionId, lineage: Lineage) -> str | None:
    """Return how the lineage in a changelog contradicts the chain; None if it does not."""
    numbers = [before.version for before in lineage]
    if numbers != list(range(version.version - len(numbers), version.version)):
        return "has a lineage that skips a batch"
    if not lineage and version.version > 1:
        return "has a lineage without the batch before"
    ours = {known.version: known for known in chain.versions}
    for named in lineage:
        known = ours.get(named.version, named)
        if known != named:
            return f"has {named.id} as version {named.version} in its lineage, but the commit log has {known.id}"
    return None


@dataclass(kw_only=True)
class Look:
    """The known problems of the files of a chain."""

    chain: Chain
    changelogs: dict[VersionId, FileProblem]
    snapshots: dict[VersionId, FileProblem]
    unnoticed: set[VersionId] = field(default_factory=set)
    refused: list[Refused] = field(default_factory=list)


def _changelogs(chain: Chain, found: Mapping[VersionId, FileProblem]) -> dict[VersionId, FileProblem]:
    bad: dict[VersionId, FileProblem] = {}
    for version in chain.versions:
        path = object_of(chain.store, version)
        if version in found:
            bad[version] = found[version]
        elif version not in chain.files.changelogs and path not in chain.files.damaged:
            bad[version] = FileProblem(path, Flaw.MISSING, "is missing")
        elif version in chain.broken:
            bad[version] = FileProblem(path, Flaw.CORRUPT, chain.broken[version].text)
    return bad


def _snapshots(chain: Chain) -> dict[VersionId, FileProblem]:
    bad: dict[VersionId, FileProblem] = {}
    for version, facts in chain.snapshots.items():
        path = chain.store.snapshot(version)
        if facts.is_unknown:
            assert facts.damage is not None
            raise UnknownFormatVersion(facts.damage.text, path=path)
        for table in facts.metadata.named_files if facts.metadata else ():
            held = chain.files.tables.get(table.dfs_name)
            table_path = chain.store.table_file(table.dfs_name)
            if held is None:
                bad[version] = FileProblem(table_path, Flaw.MISSING, "is missing")
                break
            if held.size_bytes != table.size_bytes:
                sizes = f"has {held.size_bytes:,} bytes, but its snapshot expects {table.size_bytes:,}"
                bad[version] = FileProblem(table_path, Flaw.MISMATCH, sizes)
                break
        else:
            if facts.fault is not None:
                bad[version] = FileProblem(
                    facts.faulty_file or path, Flaw.CORRUPT, f"is corrupt (read in full): {facts.fault.text}"
                )
            elif facts.damage is not None:
                bad[version] = FileProblem(path, Flaw.CORRUPT, facts.damage.text)
    return bad
