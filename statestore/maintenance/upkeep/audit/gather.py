"""Gather the facts of a checkpoint: logs, metadata files and stores. Read-only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeGuard

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, StatekeeperError, UnknownFormatVersion
from statekeeper.statestore.checkpoint import catalog, leftovers, moved, rewrite_journal, stateless
from statekeeper.statestore.checkpoint.catalog import FilesByStore, StoreFiles
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.origin import Origin, origin_among
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, RewriteJournal
from statekeeper.statestore.checkpoint.stateless import Stateless
from statekeeper.statestore.contents import restart
from statekeeper.statestore.contents.restart import LostEntries
from statekeeper.statestore.format import file_source, logs, names, operators, sparks
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.operators import OperatorMetadata, StoreInfo
from statekeeper.statestore.format.provider import Provider, provider_of
from statekeeper.statestore.format.state_conf import OURS, StateConf, state_conf
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json
from statekeeper.statestore.maintenance.executors import Executor
from statekeeper.statestore.maintenance.records import quarantine, skipped_batches
from statekeeper.statestore.maintenance.records.skipped_batches import SkippedBatches
from statekeeper.statestore.maintenance.upkeep import verification
from statekeeper.statestore.maintenance.upkeep.audit import checksums, commits, meanwhile, settings
from statekeeper.statestore.maintenance.upkeep.audit.facts import (
    AuditFacts,
    LogFacts,
    Misfit,
    NotAudited,
    RootFacts,
    StoreResult,
    attempt,
)
from statekeeper.statestore.maintenance.upkeep.audit.store import ToLook, Way, gather_store, look_elsewhere
from statekeeper.statestore.root.binding import Binding, read_binding
from statekeeper.statestore.root.columns import OlderSchemas
from statekeeper.statestore.storage import Entry, Storage, at_once, is_hidden, list_members, read_lines

_NEWEST_OFFSETS = 2
"""The offsets of the last committed batch and of a running one. The oldest offsets are read too: they show a later
repartitioning."""

_QUERY_ID = re.compile(r"[0-9A-Fa-f]{1,8}(-[0-9A-Fa-f]{1,4}){3}-[0-9A-Fa-f]{1,12}")
"""The UUIDs that Java accepts."""

_MOST_OPERATORS = 1000
"""Upper bound: a folder with a larger number is unrecognized."""


def gather(
    storage: Storage,
    *,
    scratch: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    cluster: Executor | None = None,
) -> AuditFacts:
    """Gather the facts of a checkpoint. With `scratch`, a folder on local disk, also read every byte of every store.
    `cluster` then reads the stores.

    Requests: four listings, two more if files are ahead of the logs, one for each commit, a handful for the root, two for
    each operator; for a store see `gather_store`; with `scratch`, four more listings. `progress(done, total)` counts
    stores; several threads call it.

    *Guarantee*: nothing is written below the root. A problem of one file or store does not stop the audit of the others.
    With `scratch`, the query may run and files may be deleted meanwhile: if so, logs and files are listed again at the end,
    and the facts are those of that time, see `meanwhile`.
    Raises `NotACheckpoint`; `UnknownFormatVersion` if all commits or all stores have an unsupported format;
    `StorageError` if the root cannot be listed; `LocalStateError`.
    """
    before = storage.requests.snapshot()
    seen = _see(storage, deep=scratch is not None)
    found: dict[StorePath, StoreResult] = {}
    unread = 0

    def note(store: StorePath, looked: StoreResult) -> None:
        found[store] = looked
        progress(len(found), len(seen.committed))

    if scratch is None:
        at_once(lambda store: note(store, seen.look(store)), sorted(seen.committed))
    else:
        from statekeeper.statestore.store.engine.scratch import require_usable

        require_usable(scratch)
        sights = _Sights(storage, seen)
        if cluster is None:
            at_once(lambda store: note(store, _read(sights, store, scratch)), sorted(seen.committed))
        else:
            _read_elsewhere(sights, scratch, note, cluster)
        if sights.newest is not seen or _has_deletions(storage, seen):
            seen, read, found = _see(storage, deep=True), found, {}
            at_once(lambda store: found.update({store: seen.look(store)}), sorted(seen.committed))
            found, unread = meanwhile.as_it_is_now(read, found)
    found = {
        store: looked if isinstance(looked, NotAudited) else replace(looked, gone=seen.gone[store])
        for store, looked in found.items()
    }
    log, root = seen.log, seen.root
    found |= commits.contradicted_among_gone(storage, log, found, seen.described)
    unknown = [store.problem for store in found.values() if _is_unknown(store)]
    if unknown and len(unknown) == len(found):
        raise UnknownFormatVersion(
            unknown[0].text, path=unknown[0].path, hint="nothing was changed; upgrade Statekeeper"
        )
    undescribed = set(seen.files) - set(seen.committed)
    return AuditFacts(
        root=root,
        logs=log,
        misfits=seen.misfits,
        stores=tuple(found[store] for store in sorted(found)),
        undescribed=_undescribed(storage, undescribed, seen.control) if log.readable else (),
        deep=scratch is not None,
        requests=storage.requests.since(before),
        codec=seen.codec,
        uncommitted={} if log.commits else seen.files,
        changed=_changed(storage, log, root) if scratch is not None else (),
        stateless=seen.stateless,
        url=storage.url,
        newest=seen.newest,
        unread=unread,
    )


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A checkpoint at one time, without the contents of its stores.

    paths      the logs and the state files
    described  the stores of each operator
    way        for a look at names, sizes and headers
    committed, gone, misfits, newest: see `commits.committed`
    """

    log: LogFacts
    root: RootFacts
    files: FilesByStore
    control: Sequence[Entry]
    paths: frozenset[str]
    described: Mapping[int, tuple[StoreInfo, ...]]
    committed: Mapping[StorePath, Mapping[int, VersionId]]
    gone: Mapping[StorePath, range]
    misfits: Mapping[int, Misfit]
    newest: frozenset[StorePath]
    codec: str | None
    stateless: Stateless | None
    way: Way

    def look(self, store: StorePath, scratch: Path | None = None) -> StoreResult:
        """Look at a store; with `scratch`, read every byte."""
        return gather_store(replace(self.way, scratch=scratch), store, self.committed[store], self.files.of(store))


class _Sights:
    """A checkpoint at the time of the newest look. Several threads look."""

    def __init__(self, storage: Storage, first: _Seen) -> None:
        self.newest = first
        self._storage = storage
        self._lock = Lock()

    def after(self, seen: _Seen) -> _Seen:
        """Look again, unless another thread has since `seen`."""
        with self._lock:
            if self.newest is seen:
                self.newest = _see(self._storage, deep=True)
            return self.newest


def _read(sights: _Sights, store: StorePath, scratch: Path) -> StoreResult:
    """Read every byte of a store. If its newest version is deleted before it is read, read a newer one."""
    seen = sights.newest
    for _ in range(meanwhile.MOST_TRIES):
        if store not in seen.committed:
            break  # a rescale has removed it since
        found = seen.look(store, scratch)
        if not meanwhile.is_outrun(found):
            return found
        seen = sights.after(seen)
    return meanwhile.outrun(store)


def _read_elsewhere(
    sights: _Sights, scratch: Path, note: Callable[[StorePath, StoreResult], None], cluster: Executor
) -> None:
    """Read every byte of all stores on a cluster, and note each, as `_read` does. If each task fails, raise the error of
    the first."""
    seen = sights.newest
    stores, failed = sorted(seen.committed), list[StatekeeperError]()
    total = len(stores)
    for _ in range(meanwhile.MOST_TRIES):
        left: list[StorePath] = []

        def ended(store: StorePath, looked: StoreResult, left: list[StorePath] = left) -> None:
            if meanwhile.is_outrun(looked):
                left.append(store)
            else:
                note(store, looked)

        to_look = [
            ToLook(store=store, committed=seen.committed[store], files=seen.files.of(store))
            for store in stores
            if store in seen.committed
        ]
        failed += look_elsewhere(replace(seen.way, scratch=scratch), to_look, ended, cluster)
        if failed and len(failed) == total:
            raise failed[0]
        stores = sorted(left)
        if not stores:
            return
        seen = sights.after(seen)
    for store in stores:
        note(store, meanwhile.outrun(store))


def _has_deletions(storage: Storage, seen: _Seen) -> bool:
    """Return whether a log or a state file was deleted since. Four listings."""
    folders = (names.STATE, names.BATCH_LOGS, names.COMMITS, names.OFFSETS)
    return not seen.paths <= {entry.path for folder in folders for entry in storage.list(folder)}


def _see(storage: Storage, *, deep: bool) -> _Seen:
    """Look at a checkpoint. `deep`: read all logs. Raises as `gather`."""
    # Race: if files are listed before the log is read, a running query can commit in between. Then the log names a version
    # whose changelog is not in the listing. Files written after the log was read are newer than its head.
    log, strangers, batches = _logs(storage, deep=deep)
    control = storage.list(names.CONTROL)
    origin = origin_among(control)
    listed = storage.list(names.STATE, hidden=True)
    state = [entry for entry in listed if not is_hidden(entry.path)]
    if origin is Origin.NATIVE:
        log = settings.checked(storage, log, batches, state)
        log = _with_lost_entries(storage, log, batches, deep=deep)
    members = list_members(storage, listed=control)
    provider = _provider(log, origin)
    files = catalog.with_members(members, state, provider)
    log = commits.with_commits(storage, log, batches, files)
    if _may_have_been_rescaled(log, files):
        log = _with_offsets(storage, log, log.offsets)
    without_state = None if listed or origin is Origin.OWN else _stateless(log)
    # Raises for a state store provider of another library.
    conf, codec = _conf(log, has_state=origin is Origin.NATIVE and without_state is None)
    hidden = frozenset(entry.path for entry in listed if is_hidden(entry.path))
    if not log.commits:
        catalog.heads(storage)  # raises NotACheckpoint
    if origin is Origin.NATIVE:
        places = ((path, names.parse_place(path)) for path in hidden)
        strangers += [path for path, place in places if place and sparks.stops_cleanup(place[1], provider)]
        log = replace(log, newest_version=_newest_version(storage, log, files))
    root = _root(storage, origin, log, state, control, files, [*strangers, *_strangers(state, provider)], provider)
    rewound = quarantine.rewound_batches((entry.path for entry in control), max(log.commits, default=-1))
    root = replace(root, provider=provider, batch_logs=tuple(files.damaged.values()), rewound=rewound)
    if origin is Origin.NATIVE:
        # Imported on demand: only a native checkpoint has schemas, which need Arrow.
        from statekeeper.statestore.maintenance.upkeep.audit.layouts import layouts

        read = {path: root.operators[op] for op, path in root.metadata_paths.items()}
        found_moved = (
            moved.moved(storage.url, path, one) for path, one in read.items() if isinstance(one, OperatorMetadata)
        )
        root = replace(
            root,
            layouts=layouts(storage, root.operators, {entry.path for entry in state}, provider),
            moved=tuple(one for one in found_moved if one is not None),
            older_metadata=_older_metadata(storage, root, state),
            skipped=_skipped(storage, log, files, control),
        )
    described = _described(root, log, files)
    committed, gone, misfits, newest = commits.committed(root, log, described)
    with_families = catalog.with_families(root.metadata_paths.values())
    kept_hidden = hidden if leftovers.are_kept(storage) else frozenset()
    is_on_record = any(entry.path == names.VERIFIED for entry in control)
    reads = verification.record(storage) if is_on_record else {}
    way = Way(
        storage=storage,
        scratch=None,
        conf=conf,
        hidden=kept_hidden,
        with_families=with_families,
        omitted=root.omitted,
        readable=frozenset(log.readable),
        reads=reads,
        layouts=root.layouts,
    )
    paths = {
        *(entry.path for entry in state),
        *(entry.path for entry in control if names.parse_batch_log(entry.path)),
        *map(names.commits, batches),
        *map(names.offsets, log.offsets),
    }
    return _Seen(
        log=log,
        root=root,
        files=files,
        control=control,
        paths=frozenset(paths),
        described=described,
        committed=committed,
        gone=gone,
        misfits=misfits,
        newest=newest,
        codec=codec,
        stateless=without_state,
        way=way,
    )


def _skipped(
    storage: Storage, log: LogFacts, files: Mapping[StorePath, StoreFiles], control: Sequence[Entry]
) -> SkippedBatches | None:
    """Return the batches that Spark skipped after a rewind. No request if the newest batch has state."""
    newest = max(
        (version.version for one in files.values() for version in (*one.changelogs, *one.snapshots)), default=0
    )
    if max((*log.commits, *log.offsets), default=-1) < newest:
        return None
    rewinds = skipped_batches.rewinds(storage, (entry.path for entry in control))
    return skipped_batches.find(rewinds, committed=log.commits, begun=log.offsets, newest_version=newest)


def _with_lost_entries(storage: Storage, log: LogFacts, committed: Sequence[int], *, deep: bool) -> LogFacts:
    """Add the lost entries in the logs of file sources. One listing; if entries are lost, all offsets are read; if `deep`,
    the entries since the newest compaction, too."""
    read = log.offsets_readable
    if not read:
        return log
    files = {entry.path: entry for entry in storage.list(names.SOURCES)}
    newest = read[max(read)]
    damage = {"problem_of": partial(_problem_of_entry, storage)} if deep else {}
    lost = tuple(restart.lost_entries(file_source.positions(newest, newest, files), files, **damage))
    if not lost:
        return log
    log = _with_offsets(storage, log, log.offsets)
    positions = {
        batch: file_source.positions(of_batch, newest, files).entries
        for batch, of_batch in log.offsets_readable.items()
    }

    def needed_from(one: LostEntries) -> int:
        readers = (batch for batch, entries in positions.items() if entries.get(one.folder, -1) >= one.first)
        return min(readers, default=max((*log.offsets, *committed), default=-1) + 1)

    return replace(log, lost_entries=tuple((one, needed_from(one)) for one in lost))


def _problem_of_entry(storage: Storage, entry: Entry) -> FileProblem | None:
    """Read an entry of a file source in full. Returns its damage. Other sources have other formats: these are not read."""
    number = 0
    try:
        for number, line in enumerate(read_lines(storage, entry.path), 1):
            if number == 1 and not line.startswith(b"v"):
                return None if entry.size_bytes else FileProblem(entry.path, Flaw.CORRUPT, "is empty")
            if number > 1:
                parsed_json(line)
    except BAD_VALUES as error:
        return FileProblem(entry.path, Flaw.CORRUPT, f"has a line {number} that is not valid JSON: {error}")
    except (ObjectMissing, CorruptFile) as error:
        return FileProblem(entry.path, Flaw.of(error), error.what)
    # Spark writes an entry only if it has files.
    return None if number > 1 else FileProblem(entry.path, Flaw.CORRUPT, "has no file: it was cut")


def _with_offsets(storage: Storage, log: LogFacts, batches: Iterable[int]) -> LogFacts:
    """Read the offsets of these batches that were not read yet."""
    read = dict(log.offsets_read)

    def read_offset(batch: int) -> None:
        path = names.offsets(batch)
        read[batch] = attempt(path, lambda: logs.parse_offsets(storage.read(path), path))

    at_once(read_offset, [batch for batch in batches if batch not in read])
    return replace(log, offsets_read=dict(sorted(read.items())))


def _may_have_been_rescaled(log: LogFacts, files: Mapping[StorePath, StoreFiles]) -> bool:
    """Return whether a batch between those whose offsets were read can have another number of partitions: the query was
    rescaled, and later rescaled back.

    In structure V2, the commits show it. In V1, each partition has a file of each version, so that the partitions differ.
    """
    named: dict[int, set[int]] = {}
    for commit in log.readable.values():
        for operator, marks in (commit.marks or {}).items():
            named.setdefault(operator, set()).add(len(marks))
    written: dict[int, dict[int, set[int]]] = {}
    oldest: dict[int, int] = {}
    for store, of_store in files.items():
        versions = {one.version for one in (*of_store.changelogs, *of_store.snapshots) if one.id is None}
        if versions:
            oldest[store.operator] = max(min(versions), oldest.get(store.operator, 0))
        for version in versions:
            written.setdefault(store.operator, {}).setdefault(version, set()).add(store.partition)
    return any(len(numbers) > 1 for numbers in named.values()) or any(
        # Retention has deleted older versions of some of the partitions.
        len({frozenset(there) for version, there in of_operator.items() if version >= oldest[operator]}) > 1
        for operator, of_operator in written.items()
    )


def _undescribed(storage: Storage, stores: set[StorePath], control: Sequence[Entry]) -> tuple[StorePath, ...]:
    """Return the stores that nothing describes. The journal of a completed rescale describes the partitions that it
    removed. No request if every store is described."""
    paths = [entry.path for entry in control]
    rescaled = attempt(names.SWITCHOVERS, lambda: rewrite_journal.newest_rescale(storage, paths)) if stores else None
    after = rescaled.stores if isinstance(rescaled, Begun) else {}
    rescaled_kinds = {(one.operator, one.store) for one in after}
    return tuple(sorted(one for one in stores if one in after or (one.operator, one.store) not in rescaled_kinds))


def _changed(storage: Storage, log: LogFacts, root: RootFacts) -> tuple[FileProblem, ...]:
    """Return the logs and metadata files that do not match their hidden Hadoop checksum."""
    if not leftovers.are_kept(storage):
        return ()
    schemas = [layout.path for layout in root.layouts.values()]
    unreadable = {
        bad.path for bad in (*log.commits.values(), *log.offsets_read.values()) if isinstance(bad, FileProblem)
    }
    logged = [*map(names.commits, log.commits), *map(names.offsets, log.offsets)]
    every = [names.QUERY_METADATA, *logged, *root.metadata_paths.values(), *schemas]
    return tuple(checksums.of_descriptions(storage, [path for path in every if path not in unreadable]))


def _older_metadata(storage: Storage, root: RootFacts, state: Sequence[Entry]) -> tuple[FileProblem, ...]:
    """Return the problems of older operator metadata. One request for each file."""
    newest = set(root.metadata_paths.values())
    older = [e.path for e in state if names.parse_operator_metadata(e.path) is not None and e.path not in newest]
    read = (_operator(storage, path) for path in older)
    return tuple(one for one in read if isinstance(one, FileProblem))


def _stateless(log: LogFacts) -> Stateless | None:
    """Return why the checkpoint has no state files; None if a commit names stores or no commit is readable."""
    if not log.readable or any(commit.marks for commit in log.readable.values()):
        return None
    return stateless.kind(_newest_offsets(log))


def _newest_offsets(log: LogFacts) -> logs.OffsetLog | None:
    readable = log.offsets_readable
    return readable[max(readable)] if readable else None


def _provider(log: LogFacts, origin: Origin) -> Provider:
    """Return the provider that the newest readable offsets name. `_conf` rejects one of another library."""
    offsets = _newest_offsets(log) if origin is Origin.NATIVE else None
    return (provider_of(offsets.conf) if offsets else None) or Provider.ROCKSDB


def _conf(log: LogFacts, *, has_state: bool) -> tuple[StateConf, str | None]:
    """Return the state configuration and the changelog codec, from the newest readable offsets."""
    readable = log.offsets_readable
    if not has_state or not readable:
        return OURS, None
    newest = max(readable)
    return state_conf(readable[newest], names.offsets(newest)), readable[newest].conf.get(logs.CODEC)


def _newest_version(storage: Storage, log: LogFacts, files: Mapping[StorePath, StoreFiles]) -> int:
    """Return the newest version that a batch may be writing. If files of later versions exist, list the logs again: the
    query may be running."""
    known = leftovers.newest_known(committed=log.commits, begun=log.offsets)
    there = (version.version for of_store in files.values() for version in (*of_store.changelogs, *of_store.snapshots))
    if max(there, default=0) <= known:
        return known
    commits = _batches(storage.list(names.COMMITS), names.commits, [])
    offsets = _batches(storage.list(names.OFFSETS), names.offsets, [])
    return leftovers.newest_known(committed=commits, begun=offsets)


def _is_unknown(store: StoreResult) -> TypeGuard[NotAudited]:
    return isinstance(store, NotAudited) and store.problem.flaw is Flaw.UNKNOWN_FORMAT


def _logs(storage: Storage, *, deep: bool) -> tuple[LogFacts, list[str], list[int]]:
    """Read the newest offsets, all if `deep`. Returns the logs, unrecognized files, and the committed batches."""
    strangers: list[str] = []
    listed = {folder: storage.list(folder, hidden=True) for folder in (names.COMMITS, names.OFFSETS)}
    commits = _batches(listed[names.COMMITS], names.commits, strangers)
    offsets = _batches(listed[names.OFFSETS], names.offsets, strangers)
    in_the_way = [
        *leftovers.blocking(storage, listed[names.COMMITS]),
        *leftovers.blocking(storage, listed[names.OFFSETS]),
    ]
    log = LogFacts(commits={}, offsets=frozenset(offsets), offsets_read={}, in_the_way=tuple(in_the_way))
    log = _with_offsets(storage, log, offsets if deep else sorted({*offsets[:1], *offsets[-_NEWEST_OFFSETS:]}))
    if len({*log.shuffled.values()}) > 1:
        log = _with_offsets(storage, log, offsets)  # the query was repartitioned
    return log, strangers, commits


def _batches(entries: Sequence[Entry], path_of: Callable[[int], str], strangers: list[str]) -> list[int]:
    found: list[int] = []
    for entry in entries:
        if is_hidden(entry.path):
            continue
        batch = names.parse_batch(entry.path)
        if batch is None or path_of(batch) != entry.path:
            strangers.append(entry.path)
        else:
            found.append(batch)
    return sorted(found)


def _root(
    storage: Storage,
    origin: Origin,
    log: LogFacts,
    state: Sequence[Entry],
    control: Sequence[Entry],
    files: Mapping[StorePath, StoreFiles],
    strangers: list[str],
    provider: Provider,
) -> RootFacts:
    marks = [commit.marks for commit in log.readable.values()]
    numbers = {operator for of_commit in marks for operator in of_commit or ()}
    paths = {entry.path for entry in state}
    described = catalog.newest_metadata(paths)
    numbers |= described.keys()
    if None in marks:
        # A native V1 commit names no stores: take them from the folders.
        numbers |= {store.operator for store in files}
    # Spark numbers operators from 0 without a gap: a gap is a missing V1 folder.
    if len(numbers) < max(numbers, default=-1) + 1 <= _MOST_OPERATORS:
        numbers |= set(range(max(numbers)))
    # Only V2 commits and the offset log show a partition whose folder is missing.
    shuffled = _shuffle_partitions(log)
    seen = {
        operator: max(
            len({store.partition for store in files if store.operator == operator}),
            *(len((of_commit or {}).get(operator, ())) for of_commit in marks),
            shuffled or 0,
        )
        for operator in numbers
    }
    metadata_paths = {number: described.get(number, names.operator_metadata(number)) for number in sorted(numbers)}
    if described or origin is Origin.OWN or not _is_older_than_descriptions(log):
        metadata = {number: _operator(storage, path) for number, path in metadata_paths.items()}
    else:
        with_files = [store for store, of_store in files.items() if of_store.changelogs or of_store.snapshots]
        metadata = {one.operator: one for one in catalog.undescribed(with_files, shuffled)}
    switched, half_switched = _switchovers(storage, control)
    strangers = [path for path in strangers if not _is_former(path, provider, switched)]
    return RootFacts(
        query=attempt(names.QUERY_METADATA, lambda: _query(storage, origin)),
        origin=origin,
        binding=_binding(storage, origin),
        operators=metadata,
        metadata_paths=metadata_paths,
        schemas={
            operator: _schema(storage, operator)
            for operator in sorted(numbers)
            if origin is Origin.OWN or names.state_schema(operator) in paths
        },
        seen=seen,
        strangers=tuple(sorted(strangers)),
        omitted=storage.omissions.below(""),
        switched=switched,
        half_switched=half_switched,
        quarantined=quarantine.stores(control),
    )


def _switchovers(storage: Storage, control: Sequence[Entry]) -> tuple[int | None, RewriteJournal | FileProblem | None]:
    """Return the version with which the newest switchover begins, and the journal of an incomplete one."""
    paths = [entry.path for entry in control]
    half_done = attempt(names.SWITCHOVERS, lambda: rewrite_journal.open_journal(storage, paths))
    if isinstance(half_done, FileProblem):
        return None, half_done
    return rewrite_journal.newest_switched(storage, paths), half_done


def _shuffle_partitions(log: LogFacts) -> int | None:
    """Return the number of shuffle partitions in the newest readable offsets."""
    return log.shuffled[max(log.shuffled)] if log.shuffled else None


def _is_older_than_descriptions(log: LogFacts) -> bool:
    """Return whether a Spark release before 4.0, which writes no operator metadata, created the checkpoint."""
    confs = [offsets.conf for offsets in log.offsets_readable.values()]
    return bool(confs) and not any(logs.ENCODING in conf for conf in confs)


def _query(storage: Storage, origin: Origin) -> str:
    body = storage.read(names.QUERY_METADATA)
    if body == logs.UNFINISHED:
        return body.decode()
    query = logs.parse_metadata(body, names.QUERY_METADATA)
    if origin is Origin.NATIVE and not _QUERY_ID.fullmatch(query):
        raise CorruptFile(
            f"contains a query id that is not a UUID: {query[:40]!r}",
            path=names.QUERY_METADATA,
            hint="restore the file from a backup",
        )
    return query


def _binding(storage: Storage, origin: Origin) -> tuple[Binding, OlderSchemas] | FileProblem | None:
    return attempt(names.BINDING, lambda: read_binding(storage)) if origin is Origin.OWN else None


def _operator(storage: Storage, path: str) -> OperatorMetadata | FileProblem:
    return attempt(path, lambda: operators.parse_operator(storage.read(path), path))


def _schema(storage: Storage, operator: int) -> tuple[str, str] | FileProblem:
    path = names.state_schema(operator)
    return attempt(path, lambda: operators.parse_schema(storage.read(path), path))


def _is_former(path: str, provider: Provider, switched: int | None) -> bool:
    """Whether a file is of the provider from which the checkpoint was converted: gc deletes it later."""
    other = next(one for one in Provider if one is not provider)
    place = None if switched is None else names.parse_place(path.removesuffix(names.SIDECAR), other)
    if place is None:
        return False
    file = names.parse_store_file(place[1], other)
    is_table = other is Provider.ROCKSDB and names.parse_shared_file(place[1]) is not None
    return is_table or (file is not None and file.version.version < (switched or 0))


def _strangers(state: Sequence[Entry], provider: Provider) -> list[str]:
    """Return unrecognized files below `state/`. Files of another provider are unrecognized."""
    found = []
    for entry in state:
        place = names.parse_place(entry.path)
        if place is None:
            known = any(part in ("_metadata", "_stateSchema") for part in entry.path.split("/"))
        else:
            name = place[1]
            is_table = (names.parse_shared_file(name) or "").endswith((".sst", ".log"))
            is_of_store = names.is_sidecar(name, provider) or names.parse_store_file(name, provider) is not None
            known = is_of_store or (is_table and provider is Provider.ROCKSDB)
        if not known:
            found.append(entry.path)
    return found


def _described(
    root: RootFacts, log: LogFacts, files: Mapping[StorePath, StoreFiles]
) -> Mapping[int, tuple[StoreInfo, ...]]:
    """Return the stores of each operator, in the order of their ids. For an operator without metadata, derive them from
    files and commit log if it has one kind of store or no commit names its stores."""
    described: dict[int, tuple[StoreInfo, ...]] = {}
    for operator, metadata in root.operators.items():
        if isinstance(metadata, OperatorMetadata):
            described[operator] = metadata.stores
            continue
        kinds = {store.store for store in files if store.operator == operator}
        is_named = any(commit.marks for commit in log.readable.values())
        widths = {len(stores) for commit in log.readable.values() for stores in (commit.marks or {}).get(operator, ())}
        # Only the metadata defines the order in which a commit names the ids of several kinds.
        if kinds and (len(kinds) == 1 or not is_named) and widths <= {1}:
            named = max((len((commit.marks or {}).get(operator, ())) for commit in log.readable.values()), default=0)
            folders = {store.partition for store in files if store.operator == operator}
            partitions = named or catalog.width(folders, _shuffle_partitions(log))
            described[operator] = tuple(
                StoreInfo(name=kind, prefix_columns=0, partitions=partitions) for kind in sorted(kinds)
            )
    return described
