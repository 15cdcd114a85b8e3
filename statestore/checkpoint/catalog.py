"""A checkpoint at rest: its stores, their heads in the commit log, and its files.

This module gives facts; `maintenance` decides on actions. It supports roots of Statekeeper and checkpoints of Spark, which
have the same names and logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from statekeeper.statestore.base.errors import RESTORE, CorruptFile, NotACheckpoint, ObjectMissing, VersionNotLoadable
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.checkpoint.commit_log import CommitLog, Heads, batches_of
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.lineage import Lineage
from statekeeper.statestore.checkpoint.partitions import Partitions
from statekeeper.statestore.checkpoint.stateless import stateless
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format import state_conf as conf
from statekeeper.statestore.format.batch_log import object_of
from statekeeper.statestore.format.changelog_header import read_header
from statekeeper.statestore.format.names import StoreFileKind, StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Entry, MemberEntry, Members, Storage, list_members, read_or_none

_LISTED_NAMES = 1_000
"""Names in one page of a listing. Numbers with equally many digits sort as their names do."""

_HEADER_BYTES = 128 * 1024
"""More than the longest compressed lineage: the header of a changelog is read without its records."""

_LONGEST_HEADER_BYTES = 33 * 1024 * 1024
"""More than the largest block of any codec."""


@dataclass(kw_only=True)
class StoreFiles:
    """The files of one store in a listing.

    tables   SST files and archived logs by their name in `SSTs/` and `logs/`
    damaged  the batch logs of the root whose members cannot be listed, by path
    """

    changelogs: dict[VersionId, Entry] = field(default_factory=dict)
    snapshots: dict[VersionId, Entry] = field(default_factory=dict)
    tables: dict[str, Entry] = field(default_factory=dict)
    others: list[Entry] = field(default_factory=list)
    damaged: Mapping[str, FileProblem] = field(default_factory=dict)

    @property
    def entries(self) -> list[Entry]:
        """All files."""
        return [*self.changelogs.values(), *self.snapshots.values(), *self.tables.values(), *self.others]

    def object_of(self, changelog: VersionId) -> str:
        """The path of the object that holds a changelog: its own file, or a batch log."""
        entry = self.changelogs[changelog]
        return entry.log if isinstance(entry, MemberEntry) else entry.path

    def unlisted(self, store: StorePath, changelog: VersionId) -> FileProblem:
        """The problem of a changelog that is not in the listing: its object is missing, or it is a damaged batch log."""
        path = object_of(store, changelog)
        return self.damaged.get(path) or FileProblem(path, Flaw.MISSING, "is missing")

    def has_other(self, path: str) -> bool:
        """Whether a file exists that is no changelog, snapshot or table, such as a sidecar."""
        return any(entry.path == path for entry in self.others)


class FilesByStore(dict[StorePath, StoreFiles]):
    """The files of a listing by store. `damaged`: see `StoreFiles`."""

    def __init__(self, damaged: Mapping[str, FileProblem]) -> None:
        super().__init__()
        self.damaged = damaged

    def of(self, store: StorePath) -> StoreFiles:
        """Return the files of a store; none if the listing has none of it."""
        return self.get(store) or StoreFiles(damaged=self.damaged)


def files(storage: Storage, folder: str = names.STATE, *, provider: Provider = Provider.ROCKSDB) -> FilesByStore:
    """List all files below `state/`, or below the folder of one store, by store, with the members of batch logs.

    Files of another provider are `others`. Two listings, and the requests of `list_members`.
    """
    return with_members(list_members(storage, folder), storage.list(folder), provider)


def with_members(members: Members, entries: Iterable[Entry], provider: Provider = Provider.ROCKSDB) -> FilesByStore:
    """Group the files of a listing, and the members of batch logs, by store."""
    damaged = {path: FileProblem(path, Flaw.of(error), error.what) for path, error in members.damaged.items()}
    # A member comes before a file, so that an unpacked file of the same version replaces it.
    return by_store([*members.entries, *entries], damaged, provider)


def by_store(
    entries: Iterable[Entry],
    damaged: Mapping[str, FileProblem] | None = None,
    provider: Provider = Provider.ROCKSDB,
) -> FilesByStore:
    """Group the files of a listing by store. Files outside of stores are left out. `damaged`: see `StoreFiles`."""
    found = FilesByStore(damaged or {})
    for entry in entries:
        place = names.parse_place(entry.path, provider)
        if place is None:
            continue
        store, name = place
        of_store = found.setdefault(store, StoreFiles(damaged=found.damaged))
        parsed = names.parse_store_file(name, provider)
        if parsed is None:
            shared = names.parse_shared_file(name)
            if shared is None:
                of_store.others.append(entry)
            else:
                of_store.tables[shared] = entry
        elif parsed.kind is StoreFileKind.SNAPSHOT:
            of_store.snapshots[parsed.version] = entry
        else:
            of_store.changelogs[parsed.version] = entry
    return found


def have_sidecars(heads: Heads, files: Mapping[StorePath, StoreFiles]) -> bool:
    """Whether the files of the newest batch have sidecars: Spark 4.1 or later wrote them."""
    written = {name(head) for store, head in heads.heads.items() for name in (store.changelog, store.snapshot)}
    sidecars = {names.sidecar(path) for path in written}
    return any(entry.path in sidecars for of_store in files.values() for entry in of_store.others)


def snapshots(storage: Storage) -> Mapping[StorePath, frozenset[VersionId]]:
    """List the versions of each store with a snapshot. One listing of all files below `state/`."""
    listed = by_store(storage.list(names.STATE))
    return {store: frozenset(of_store.snapshots) for store, of_store in listed.items() if of_store.snapshots}


def newest_batch(storage: Storage, *, since: int | None = None, listed: int = _LISTED_NAMES) -> int | None:
    """Find the newest batch in the commit log; None if there is none.

    `since`: a batch that was committed. If it still is, only later commits are listed, one request for each `listed` of
    them. If it is not, because the query was rolled back, all commits are listed. A stateful query commits every batch, so
    that the search ends at a gap.
    """
    if since is None or since < listed:
        return max(_batches(storage), default=None)
    newest: int | None = None
    first = since
    while True:
        # The previous batch has equally many digits, except at the start of a thousand.
        before = str(first - 1) if first % listed else ""
        entries = storage.list_after(names.COMMITS, before, beginning=str(first // listed))
        later = [batch for batch in batches_of(entries) if batch // listed == first // listed]
        if newest is None and since not in later:
            return max(_batches(storage), default=None)
        newest = max((*later, newest or since))
        if newest % listed != listed - 1 or not later:
            return newest
        first = newest + 1


def newest_begun(storage: Storage) -> int:
    """Find the newest batch in the offset log; -1 if there is none."""
    return max(batches_of(storage.list(names.OFFSETS)), default=-1)


def structure_at(storage: Storage, batch: int) -> Structure:
    """Read the structure of a batch from its commit. Raises `ObjectMissing`, `CorruptFile`, `UnknownFormatVersion`."""
    path = names.commits(batch)
    return logs.parse_commit(storage.read(path), path).structure


def heads(storage: Storage) -> Heads | None:
    """Find the head of each store; None if no batch is committed.

    Raises `NotACheckpoint`, `CorruptFile` for a commit that contradicts the operators' metadata, `UnknownFormatVersion`;
    `HalfSwitched` if a rewrite was interrupted between its commit and its offsets.
    """
    return _heads(storage, _batches(storage))


def heads_at(storage: Storage, batch: int) -> Heads:
    """Find the version that a batch committed for each store; batch -1 gives version 0.

    Raises as `heads`, and `VersionNotLoadable` for a batch that is not in the commit log.
    """
    batches = _batches(storage)
    if batch in batches:
        return Heads(batch, _committed(storage, batch, _Described(storage, [batch])))
    newest = _heads(storage, batches)
    if batch == -1 and newest is not None:
        return Heads(batch, dict.fromkeys(newest.heads, names.EMPTY))
    raise _not_committed(batch, batches)


def _not_committed(batch: int, batches: Collection[int]) -> VersionNotLoadable:
    there = f"batches {min(batches)} to {max(batches)}" if batches else "no batch"
    if batches and len(batches) <= max(batches) - min(batches):
        there = f"{len(batches)} of the {there}"
    return VersionNotLoadable(
        f"batch {batch} is not committed and cannot be loaded",
        path=names.commits(batch),
        hint=f"the commit log has {there}; choose one of them",
    )


def operator_at(storage: Storage, operator: int, batch: int) -> operators.OperatorMetadata | None:
    """Read the metadata of an operator that was valid at a batch; None if there is none. Raises as `heads`."""
    listed = storage.list(names.operator_metadata_by_batch(operator))
    by_batch = {place[1]: entry.path for entry in listed if (place := names.parse_operator_metadata(entry.path))}
    if by_batch:
        # The oldest metadata is valid for older batches, too: Spark deletes metadata that no retained batch needs.
        held = max((since for since in by_batch if since <= batch), default=min(by_batch))
        return _parsed(storage, by_batch[held])
    data = read_or_none(storage, names.operator_metadata(operator))
    return None if data is None else operators.parse_operator(data, names.operator_metadata(operator))


def commit_log(storage: Storage, *, down_to: int | None = None, at: int | None = None) -> CommitLog | None:
    """Open the commit log, by default at the newest batch, or as it was at batch `at`; None if no batch is committed.

    The commits from that batch down to batch `down_to` are read now: one request a batch, and the requests of
    `Partitions`. Older ones are read on demand. Raises as `heads`, also on later reads; `VersionNotLoadable` if the log
    does not have batch `at`.
    """
    batches = _batches(storage)
    if at is not None and batches:
        if at not in batches:
            raise _not_committed(at, batches)
        batches = [batch for batch in batches if batch <= at]
    # The newest commit is read first: it fills `known` for all others.
    known = _Described(storage, batches)
    newest = _heads(storage, batches, known)
    if newest is None:
        return None

    def read(batch: int) -> Mapping[StorePath, VersionId] | None:
        try:
            return _committed(storage, batch, known)
        except ObjectMissing:
            return None  # race: retention deletes it after the listing

    log = CommitLog(newest, [batch for batch in batches if batch < newest.batch], read)
    if down_to is not None:
        log.read_down_to(down_to)
    return log


def state_conf(storage: Storage, heads: Heads, supported: Collection[Provider] = conf.ROCKSDB) -> StateConf:
    """Read the state configuration of Spark's query, which each offset log repeats. A stateless query has none.

    Raises `UnsupportedProvider` for a provider that is not `supported`, `ObjectMissing`, `CorruptFile`,
    `UnknownFormatVersion`; `HalfSwitched` for a rewrite that was interrupted before it wrote the offsets.
    """
    if stateless(storage, heads.batch, heads.heads.keys()) is not None:
        return StateConf()
    batch = heads.batch
    path = names.offsets(batch)
    data = read_or_none(storage, path)
    if data is None:
        rewrite_journal.require_none(storage)
        raise ObjectMissing(
            f"is missing, but batch {batch} is committed; the state configuration of the query is unknown",
            path=path,
            hint="restore the file from a backup. To find the batch from which a restart is possible, run: "
            "statekeeper audit ROOT",
        )
    found = conf.state_conf(logs.parse_offsets(data, path), path)
    conf.require_provider(found, supported, path)
    return found


def _batches(storage: Storage) -> list[int]:
    return batches_of(storage.list(names.COMMITS))


class _Described:
    """A cache of operator facts. `metadata`: None for an operator without metadata."""

    def __init__(self, storage: Storage, batches: Collection[int]) -> None:
        self.metadata: dict[int, operators.OperatorMetadata | None] = {}
        self.partitions = Partitions(storage, batches)


def _heads(storage: Storage, batches: list[int], known: _Described | None = None) -> Heads | None:
    if not batches:
        if read_or_none(storage, names.QUERY_METADATA) is None:
            raise NotACheckpoint(
                "is not a checkpoint: it has neither `metadata` nor `commits/`",
                path=storage.url,
                hint="use the checkpointLocation of a query, or a name in statekeeper.toml",
            )
        return None
    newest = max(batches)
    try:
        return Heads(newest, _committed(storage, newest, known or _Described(storage, [newest])))
    except CorruptFile:
        # The commit of a rewrite that was interrupted before it wrote the offsets is not damaged.
        if storage.stat(names.offsets(newest)) is None:
            rewrite_journal.require_none(storage)
        raise


def _committed(storage: Storage, batch: int, known: _Described) -> dict[StorePath, VersionId]:
    """The version that a batch committed for each store."""
    path = names.commits(batch)
    log = logs.parse_commit(storage.read(path), path)
    marks = log.marks
    found: dict[StorePath, VersionId] = {}
    # Only RocksDB has ids, and only roots of Statekeeper have digests.
    provider = known.partitions.provider(batch) if marks is None else Provider.ROCKSDB
    for operator in _operators(storage, batch, None if marks is None else marks.keys(), known):
        named_partitions = None if marks is None else len(marks[operator.operator])
        partitions = known.partitions.at(batch, operator, named_partitions)
        for place, info in enumerate(operator.stores):
            for partition in range(partitions):
                store = StorePath(operator.operator, partition, info.name, provider)
                if marks is None:
                    found[store] = VersionId(batch + 1)
                else:
                    what = "digest" if log.structure is Structure.V1 else "checkpoint id"
                    found[store] = log.version(batch + 1, _mark_of(marks, store, place, what, path))
    if marks is not None:
        # Maintenance would silently skip a store without metadata.
        named = sum(len(stores) for partitions in marks.values() for stores in partitions)
        if named != len(found):
            raise CorruptFile(
                f"names {named} stores, but the metadata of the operators describes {len(found)}; the heads of the stores "
                f"are unknown",
                path=path,
                hint=f"restore {names.STATE}/<operator>/_metadata from a backup",
            )
    return found


def lineage(storage: Storage, store: StorePath, version: VersionId) -> Lineage:
    """Read the lineage in the header of a changelog, ascending; empty in structure V1. One request.

    Raises `ObjectMissing`, `CorruptFile`, `UnknownFormatVersion`.
    """
    path = store.changelog(version)
    head = storage.read_range(path, 0, _HEADER_BYTES)
    try:
        return read_header(head, path).lineage or ()
    except CorruptFile:
        # A first block that is larger than the read range looks truncated.
        return read_header(storage.read_range(path, 0, _LONGEST_HEADER_BYTES), path).lineage or ()


def _operators(
    storage: Storage,
    batch: int,
    numbers: Collection[int] | None,
    described_before: _Described,
) -> list[operators.OperatorMetadata]:
    """The metadata of these operators, or of all operators. The latter needs a listing."""
    known, of_logs = described_before.metadata, described_before.partitions
    if numbers is None:
        if not known:
            paths = [entry.path for entry in storage.list(names.STATE)]
            described = newest_metadata(paths)
            known.update({number: _parsed(storage, path) for number, path in described.items()})
            stores = (names.parse_store_path(path, of_logs.provider(batch)) for path in paths)
            bare = {place[0] for place in stores if place is not None and place[0].operator not in described}
            if bare:
                known.update({one.operator: one for one in undescribed(bare, _shuffle_partitions(storage, batch))})
        numbers = known.keys()
    for number in numbers:
        if number not in known:
            known[number] = _operator(storage, number)
    return [found for found in (known[number] for number in sorted(numbers)) if found is not None]


def _operator(storage: Storage, number: int) -> operators.OperatorMetadata | None:
    """Read the newest metadata of an operator: one request, and a listing more for one with column families."""
    path = names.operator_metadata(number)
    data = read_or_none(storage, path)
    if data is not None:
        return operators.parse_operator(data, path)
    listed = newest_metadata(entry.path for entry in storage.list(names.operator_metadata_by_batch(number)))
    return _parsed(storage, listed[number]) if number in listed else None


def _parsed(storage: Storage, path: str) -> operators.OperatorMetadata:
    return operators.parse_operator(storage.read(path), path)


def newest_metadata(paths: Iterable[str]) -> Mapping[int, str]:
    """Choose the newest metadata of each operator among these paths."""
    found: dict[int, tuple[int, str]] = {}
    for path in paths:
        if parsed := names.parse_operator_metadata(path):
            operator, batch = parsed
            found[operator] = max(found.get(operator, (batch, path)), (batch, path))
    return {operator: path for operator, (_, path) in found.items()}


def with_families(paths: Iterable[str]) -> frozenset[int]:
    """The operators whose stores have column families. Their metadata has another version, and so another path."""
    return frozenset(parsed[0] for path in paths if (parsed := names.parse_operator_metadata(path)) and parsed[1] >= 0)


def undescribed(stores: Iterable[StorePath], partitions: int | None) -> list[operators.OperatorMetadata]:
    """Derive operators without metadata from the stores that have files, as Spark before 4.0 leaves them.

    `partitions`: see `width`.
    """
    there = list(stores)
    found = []
    for number in sorted({store.operator for store in there}):
        kinds = sorted({store.store for store in there if store.operator == number})
        seen = {store.partition for store in there if store.operator == number}
        infos = tuple(
            operators.StoreInfo(name=kind, prefix_columns=0, partitions=width(seen, partitions)) for kind in kinds
        )
        found.append(operators.OperatorMetadata(number, "", infos))
    return found


def width(seen: Collection[int], partitions: int | None) -> int:
    """The number of partitions of an operator, if those in `seen` have folders: one, or `partitions`, the number of the
    query; None if unknown. In structure V1 only this number shows that the folder of a partition is missing."""
    newest = max(seen, default=-1)
    return newest + 1 if newest < 1 or partitions is None else partitions


def _shuffle_partitions(storage: Storage, batch: int) -> int | None:
    path = names.offsets(batch)
    data = read_or_none(storage, path)
    return None if data is None else conf.shuffle_partitions(logs.parse_offsets(data, path), path)


def _mark_of(marks: logs.ByStore, store: StorePath, place: int, what: str, path: str) -> str:
    try:
        return marks[store.operator][store.partition][place]
    except (KeyError, IndexError):
        raise CorruptFile(f"has no {what} of store {store}; its head is unknown", path=path, hint=RESTORE) from None
