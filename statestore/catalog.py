"""A checkpoint at rest: its stores, their heads by the commit log, and the files that there are.

Facts only; what to do about them is `maintenance`'s business. Works for the roots of our own jobs and, by the same names
and logs, for checkpoints of Spark's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from statestore.commit_log import CommitLog, Heads
from statestore.errors import CorruptFile, NotACheckpoint, ObjectMissing, VersionNotLoadable
from statestore.format import logs, names, operators
from statestore.format import state_conf as conf
from statestore.format.changelog import read_header
from statestore.format.names import StoreFileKind, StorePath, VersionId
from statestore.format.state_conf import StateConf
from statestore.format.structure import Structure
from statestore.lineage import Lineage
from statestore.partitions import Partitions
from statestore.stateless import stateless
from statestore.storage import Entry, Storage, read_or_none

_LISTED = 1_000
"""Names that a store gives at a time. Numbers of as many digits sort as names do."""

_HEADER_BYTES = 128 * 1024
"""More than the longest lineage takes, compressed: the head of a changelog is read without its records."""

_LONGEST_HEADER_BYTES = 33 * 1024 * 1024
"""More than the largest block that a codec may have."""


@dataclass
class StoreFiles:
    """The files of one store, as a listing shows them; `tables`, and archived logs among them, by their name in `SSTs/` and
    `logs/`."""

    changelogs: dict[VersionId, Entry] = field(default_factory=dict)
    snapshots: dict[VersionId, Entry] = field(default_factory=dict)
    tables: dict[str, Entry] = field(default_factory=dict)
    others: list[Entry] = field(default_factory=list)

    @property
    def entries(self) -> list[Entry]:
        """All of them."""
        return [*self.changelogs.values(), *self.snapshots.values(), *self.tables.values(), *self.others]

    def has_other(self, path: str) -> bool:
        """Whether a file that is none of the others, such as a sidecar, is there under that path."""
        return any(entry.path == path for entry in self.others)


def files(storage: Storage, folder: str = names.STATE) -> Mapping[StorePath, StoreFiles]:
    """All files below `state/`, or below one store's folder, by the store that they belong to. One listing."""
    return by_store(storage.list(folder))


def by_store(entries: Iterable[Entry]) -> Mapping[StorePath, StoreFiles]:
    """The files of a listing by the store that they belong to; those that are in no store are left out."""
    found: defaultdict[StorePath, StoreFiles] = defaultdict(StoreFiles)
    for entry in entries:
        place = names.parse_place(entry.path)
        if place is None:
            continue
        store, name = place
        of_store = found[store]
        parsed = names.parse_store_file(name)
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
    return dict(found)


def have_sidecars(heads: Heads, files: Mapping[StorePath, StoreFiles]) -> bool:
    """Whether there are checksums beside what the newest batch wrote: Spark 4.1 or a later one did."""
    written = {name(head) for store, head in heads.heads.items() for name in (store.changelog, store.snapshot)}
    sidecars = {names.sidecar(path) for path in written}
    return any(entry.path in sidecars for of_store in files.values() for entry in of_store.others)


def snapshots(storage: Storage) -> Mapping[StorePath, frozenset[VersionId]]:
    """The versions of each store that have a snapshot. One listing of `state/`: it costs what is there."""
    return {store: frozenset(of_store.snapshots) for store, of_store in files(storage).items() if of_store.snapshots}


def newest_batch(storage: Storage, *, since: int | None = None) -> int | None:
    """The newest batch in the commit log; None when there is none.

    `since`: a batch that was committed. If it still is, only the commits after it are listed, in one request for each
    thousand; else, as after the query was taken back, all of them. A query with state commits every batch: commits are not
    looked for behind a gap that ends none of these thousands.
    """
    if since is None or since < _LISTED:
        return max(_batches(storage), default=None)
    newest: int | None = None
    first = since
    while True:
        # The batch before has as many digits, unless a thousand begins.
        before = str(first - 1) if first % _LISTED else ""
        entries = storage.list_after(names.COMMITS, before, beginning=str(first // _LISTED))
        found = [batch for entry in entries if (batch := names.parse_batch(entry.path.rpartition("/")[2])) is not None]
        later = [batch for batch in found if batch // _LISTED == first // _LISTED]
        if newest is None and since not in later:
            return max(_batches(storage), default=None)
        newest = max((*later, newest or since))
        if newest % _LISTED != _LISTED - 1 or not later:
            return newest
        first = newest + 1


def newest_begun(storage: Storage) -> int:
    """The newest batch in the offset log; -1 when there is none."""
    batches = (names.parse_batch(entry.path.rpartition("/")[2]) for entry in storage.list(names.OFFSETS))
    return max((batch for batch in batches if batch is not None), default=-1)


def structure_at(storage: Storage, batch: int) -> Structure:
    """The structure that the commit of a batch has. Raises `ObjectMissing`, `CorruptFile`, `UnknownFormatVersion`."""
    path = names.commits(batch)
    return Structure.V1 if logs.parse_commit(storage.read(path), path).ids is None else Structure.V2


def heads(storage: Storage) -> Heads | None:
    """The head of every store; None when no batch was committed yet.

    Raises `NotACheckpoint`, `CorruptFile` for a commit that does not fit the operators, `UnknownFormatVersion`.
    """
    return _heads(storage, _batches(storage))


def heads_at(storage: Storage, batch: int) -> Heads:
    """The version of every store that a batch made, -1 for version 0. Raises as `heads`, and `VersionNotLoadable` for a
    batch that is not in the commit log."""
    batches = _batches(storage)
    if batch in batches:
        return Heads(batch, _committed(storage, batch, _Described(storage, [batch])))
    newest = _heads(storage, batches)
    if batch == -1 and newest is not None:
        return Heads(batch, dict.fromkeys(newest.heads, names.EMPTY))
    there = f"batches {min(batches)} to {max(batches)}" if batches else "no batch"
    raise VersionNotLoadable(
        f"version {batch + 1} (batch {batch}) is not committed",
        path=names.commits(batch),
        hint=f"the commit log has {there}",
    )


def operator_at(storage: Storage, operator: int, batch: int) -> operators.OperatorMetadata | None:
    """The metadata of an operator that held at a batch; None when it has none. Raises as `heads`."""
    listed = storage.list(names.operator_metadata_by_batch(operator))
    by_batch = {place[1]: entry.path for entry in listed if (place := names.parse_operator_metadata(entry.path))}
    if by_batch:
        # The oldest holds for what was before it: Spark deletes those that no batch that it keeps needs.
        held = max((since for since in by_batch if since <= batch), default=min(by_batch))
        return _parsed(storage, by_batch[held])
    data = read_or_none(storage, names.operator_metadata(operator))
    return None if data is None else operators.parse_operator(data, names.operator_metadata(operator))


def commit_log(storage: Storage, *, down_to: int | None = None) -> CommitLog | None:
    """The commit log; None when no batch was committed yet. The commits from batch `down_to` on are read now, one request
    a batch and what `Partitions` takes; older ones when they are asked for.

    Raises as `heads`, and so does what it reads later.
    """
    batches = _batches(storage)
    # The newest commit goes first: what it leaves in `known` need not be read again for each of the others.
    known = _Described(storage, batches)
    newest = _heads(storage, batches, known)
    if newest is None:
        return None

    def read(batch: int) -> Mapping[StorePath, VersionId] | None:
        try:
            return _committed(storage, batch, known)
        except ObjectMissing:
            return None  # retention may be at work beside this

    log = CommitLog(newest, [batch for batch in batches if batch < newest.batch], read)
    if down_to is not None:
        log.read_down_to(down_to)
    return log


def state_conf(storage: Storage, heads: Heads) -> StateConf:
    """The confs of the state that Spark's query began with, which its offset log repeats in every batch. A query without
    state has none.

    Raises `ObjectMissing`, `CorruptFile`, `UnknownFormatVersion`.
    """
    if stateless(storage, heads.batch, heads.heads.keys()) is not None:
        return StateConf()
    batch = heads.batch
    path = names.offsets(batch)
    data = read_or_none(storage, path)
    if data is None:
        hint = "restore the file from a backup; statekeeper audit says from which batch a restart is possible"
        raise ObjectMissing(f"the offsets of batch {batch}, which is committed, are gone", path=path, hint=hint)
    return conf.state_conf(logs.parse_offsets(data, path), path)


def _batches(storage: Storage) -> list[int]:
    parsed = (names.parse_batch(entry.path.rpartition("/")[2]) for entry in storage.list(names.COMMITS))
    return [batch for batch in parsed if batch is not None]


class _Described:
    """What was read of the operators. `metadata` is None for one that has none."""

    def __init__(self, storage: Storage, batches: Collection[int]) -> None:
        self.metadata: dict[int, operators.OperatorMetadata | None] = {}
        self.partitions = Partitions(storage, batches)


def _heads(storage: Storage, batches: list[int], known: _Described | None = None) -> Heads | None:
    if not batches:
        if read_or_none(storage, names.QUERY_METADATA) is None:
            raise NotACheckpoint(
                "neither `metadata` nor `commits/`", path=storage.url, hint="name a checkpoint's folder"
            )
        return None
    newest = max(batches)
    return Heads(newest, _committed(storage, newest, known or _Described(storage, [newest])))


def _committed(storage: Storage, batch: int, known: _Described) -> dict[StorePath, VersionId]:
    """The version of each store that a batch made."""
    path = names.commits(batch)
    log = logs.parse_commit(storage.read(path), path)
    marks = log.marks
    found: dict[StorePath, VersionId] = {}
    for operator in _operators(storage, batch, None if marks is None else marks.keys(), known.metadata):
        named_partitions = None if marks is None else len(marks[operator.operator])
        partitions = known.partitions.at(batch, operator, named_partitions)
        for place, info in enumerate(operator.stores):
            for partition in range(partitions):
                store = StorePath(operator.operator, partition, info.name)
                if marks is None:
                    found[store] = VersionId(batch + 1)
                else:
                    what = "digest" if log.ids is None else "checkpoint id"
                    found[store] = log.version(batch + 1, _mark_of(marks, store, place, what, path))
    if marks is not None:
        # A store that nobody describes would be left out of all maintenance without a word.
        named = sum(len(stores) for partitions in marks.values() for stores in partitions)
        if named != len(found):
            raise CorruptFile(
                f"names {named} stores, the operators' metadata describes {len(found)}",
                path=path,
                hint=f"restore {names.STATE}/<operator>/_metadata",
            )
    return found


def lineage(storage: Storage, store: StorePath, version: VersionId) -> Lineage:
    """What the head of a version's changelog names before it, ascending; empty in structure V1.

    Raises `ObjectMissing`, `CorruptFile`, `UnknownFormatVersion`.
    """
    path = store.changelog(version)
    head = storage.read_range(path, 0, _HEADER_BYTES)
    try:
        return read_header(head, path).lineage or ()
    except CorruptFile:
        # A first block that is larger than what was read looks cut off.
        return read_header(storage.read_range(path, 0, _LONGEST_HEADER_BYTES), path).lineage or ()


def _operators(
    storage: Storage,
    batch: int,
    numbers: Collection[int] | None,
    known: dict[int, operators.OperatorMetadata | None],
) -> list[operators.OperatorMetadata]:
    """The metadata of these operators; of all that there are for a commit that names none, which takes a listing."""
    if numbers is None:
        if not known:
            paths = [entry.path for entry in storage.list(names.STATE)]
            described = newest_metadata(paths)
            known.update({number: _parsed(storage, path) for number, path in described.items()})
            bare = {store for store in _stores(paths) if store.operator not in described}
            if bare:
                known.update({one.operator: one for one in undescribed(bare, _shuffle_partitions(storage, batch))})
        numbers = known.keys()
    for number in numbers:
        if number not in known:
            known[number] = _operator(storage, number)
    return [found for found in (known[number] for number in sorted(numbers)) if found is not None]


def _operator(storage: Storage, number: int) -> operators.OperatorMetadata | None:
    """One request for what operators without column families have, a listing more for others."""
    path = names.operator_metadata(number)
    data = read_or_none(storage, path)
    if data is not None:
        return operators.parse_operator(data, path)
    listed = newest_metadata(entry.path for entry in storage.list(names.operator_metadata_by_batch(number)))
    return _parsed(storage, listed[number]) if number in listed else None


def _parsed(storage: Storage, path: str) -> operators.OperatorMetadata:
    return operators.parse_operator(storage.read(path), path)


def newest_metadata(paths: Iterable[str]) -> Mapping[int, str]:
    """Which of these paths is the newest metadata of each operator."""
    found: dict[int, tuple[int, str]] = {}
    for path in paths:
        if parsed := names.parse_operator_metadata(path):
            operator, batch = parsed
            found[operator] = max(found.get(operator, (batch, path)), (batch, path))
    return {operator: path for operator, (_, path) in found.items()}


def with_families(paths: Iterable[str]) -> frozenset[int]:
    """The operators whose stores have column families, by the metadata among these paths: Spark writes another version of
    it for them."""
    return frozenset(parsed[0] for path in paths if (parsed := names.parse_operator_metadata(path)) and parsed[1] >= 0)


def undescribed(stores: Iterable[StorePath], partitions: int | None) -> list[operators.OperatorMetadata]:
    """Operators as the stores that have files show them: what Spark before 4.0 leaves, which describes none. `partitions`:
    see `width`."""
    there = list(stores)
    found = []
    for number in sorted({store.operator for store in there}):
        kinds = sorted({store.store for store in there if store.operator == number})
        seen = {store.partition for store in there if store.operator == number}
        infos = tuple(operators.StoreInfo(kind, 0, width(seen, partitions)) for kind in kinds)
        found.append(operators.OperatorMetadata(number, "", infos))
    return found


def width(seen: Collection[int], partitions: int | None) -> int:
    """How many partitions an operator has of which these have folders: one, or as many as its query has (`partitions`, None
    when that is not known). Of a partition whose folder is gone nothing else in a checkpoint of structure V1 would tell."""
    newest = max(seen, default=-1)
    return newest + 1 if newest < 1 or partitions is None else partitions


def _stores(paths: Iterable[str]) -> set[StorePath]:
    return {place[0] for path in paths if (place := names.parse_store_path(path))}


def _shuffle_partitions(storage: Storage, batch: int) -> int | None:
    path = names.offsets(batch)
    data = read_or_none(storage, path)
    return None if data is None else conf.shuffle_partitions(logs.parse_offsets(data, path), path)


def _mark_of(marks: logs.ByStore, store: StorePath, place: int, what: str, path: str) -> str:
    try:
        return marks[store.operator][store.partition][place]
    except (KeyError, IndexError):
        raise CorruptFile(f"names no {what} of {store}", path=path) from None
