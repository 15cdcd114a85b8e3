"""Rebuilds a group of stores, on this machine or by the tasks of an executor elsewhere.

    sort      a task for each source    its rows -> a sorted run for each target, in the storage of the root
    build     a task for each target    its runs of all sources -> tables under names of their own, and a snapshot
    compare   this process              the digests of all rows: those of the sources must be those of the targets
    publish   this process              the snapshots get their names
    read back a task for each target    the rows of the published snapshot; this process notes it in the journal

The rows never pass through this process. No reader sees a snapshot before the digests were compared: until then, its tables
have names that no snapshot names, and its zip is in the folder of `runs`. Only this process, which holds the lease, gives a
name to a snapshot or deletes a file: a task that stalls may write long after the rewrite has ended. See ADR 076.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from statekeeper.statestore.base.errors import AlreadyExists, CorruptFile, ObjectMissing
from statekeeper.statestore.checkpoint.rewrite_journal import Made
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.maintenance.executors import Executor, Place, Task, results_of
from statekeeper.statestore.maintenance.records.quarantine import copy_file
from statekeeper.statestore.maintenance.rewrites.engine.model import Machine, RewritePhase, StoppedStore
from statekeeper.statestore.maintenance.rewrites.engine.snapshots import Skipped, build_each, table_name
from statekeeper.statestore.maintenance.rewrites.engine.steps import Rewriting
from statekeeper.statestore.maintenance.rewrites.whole_stores.load import (
    LoadedPart,
    Reading,
    RowProgress,
    parts_of,
    pieces,
)
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import RewritePlan, StoreGroup
from statekeeper.statestore.maintenance.rewrites.whole_stores.read import Moves, Source, read_one
from statekeeper.statestore.maintenance.rewrites.whole_stores.runs import (
    ROWS,
    SNAPSHOT,
    SOURCE,
    TARGET,
    BuiltTarget,
    Handed,
    Run,
    SortedSource,
    fetched,
    write_runs,
)
from statekeeper.statestore.maintenance.rewrites.whole_stores.snapshots import (
    PIECE_SHARE,
    Compared,
    NewDatabases,
    NewFiles,
    compared_of,
    new_snapshots,
    rebuild_here,
    require_all_rows,
    written,
)
from statekeeper.statestore.maintenance.rewrites.whole_stores.spool import OpenPart
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.storage import Entry, Storage, at_once
from statekeeper.statestore.store.engine.rocks import translated
from statekeeper.statestore.store.engine.rows_digest import RowsDigest
from statekeeper.statestore.store.engine.scratch import work_folder

Item = TypeVar("Item")
Part = TypeVar("Part", bound="HasNumber")
Result = TypeVar("Result")


class HasNumber(Protocol):
    """An item of the work on a group."""

    @property
    def number(self) -> int:
        """Its place in the group."""


@dataclass(frozen=True)
class Numbered(Generic[Item]):
    """A source, by its place in the group."""

    number: int
    of: Item


@dataclass(frozen=True, kw_only=True)
class Sorting:
    """Sorts the rows of a source, and hands them over. `targets`: the numbers of the new partitions; `sources`: the number
    of all sources, whose runs a target merges."""

    handed: Handed
    targets: tuple[int, ...]
    sources: int

    def sorted(self, number: int, place: Place, fill: Callable[[OpenPart, Path], Source]) -> SortedSource:
        """`fill` adds the rows to a spool; it may use a local folder."""
        attempt = place.ids.fresh()
        with work_folder(place.scratch, "rewrite") as folder, translated(place.folder):
            (folder / "source").mkdir()
            with OpenPart.create(folder / "spool", _share(place) // PIECE_SHARE) as spool:
                source = fill(spool, folder / "source")
                shutil.rmtree(folder / "source")
                lengths = write_runs(spool, self.targets, self.sources, folder / ROWS)
            if any(lengths):
                self.handed.storage.create(self.handed.file(SOURCE, number, attempt, ROWS), folder / ROWS)
        base = None if source.base is None else replace(source.base, tables=(), archived_logs=())
        result = SortedSource(attempt=attempt, lengths=lengths, digest=str(source.digest), base=base)
        self.handed.note(SOURCE, number, result)
        return result


@dataclass(frozen=True, kw_only=True)
class SortEach:
    """The task that sorts the rows of a present partition. `old`: the checkpoint that has it; None if it is the root."""

    sorting: Sorting
    old: Storage | None
    conf: StateConf
    moves: Moves

    @property
    def storages(self) -> Sequence[Storage]:
        root = self.sorting.handed.storage
        return (root,) if self.old is None else (root, self.old)

    def __call__(self, item: Numbered[StoppedStore], place: Place) -> SortedSource:
        """Raises as `read`."""

        def fill(spool: OpenPart, folder: Path) -> Source:
            return read_one(
                self.old or self.sorting.handed.storage,
                item.of,
                self.moves,
                spool,
                folder,
                conf=self.conf,
                share_bytes=_share(place),
                clock=place.clock,
                ids=place.ids,
            )

        return self.sorting.sorted(item.number, place, fill)


@dataclass(frozen=True, kw_only=True)
class SortEachPart:
    """The task that sorts the rows of a part of a savepoint."""

    sorting: Sorting
    reading: Reading

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.sorting.handed.storage, self.reading.storage)

    def __call__(self, item: Numbered[LoadedPart], place: Place) -> SortedSource:
        """Raises as `require_intact`."""

        def fill(spool: OpenPart, folder: Path) -> Source:
            digest = RowsDigest()
            spool.add(pieces(self.reading, item.of, folder, digest, None))
            return Source(digest, None)

        return self.sorting.sorted(item.number, place, fill)


@dataclass(frozen=True)
class Target:
    """A new partition, by its place in the group, with the runs of its rows."""

    number: int
    store: StorePath
    runs: tuple[Run, ...]


@dataclass(frozen=True, kw_only=True)
class BuildEach:
    """The task that builds the snapshot of a new partition.

    new       the kind of its files, below a folder that each task replaces by its own
    compared  what its rows have in common with the present ones; None if they are the present ones
    conf      how its rows are encoded
    run       that of the journal
    """

    handed: Handed
    new: NewDatabases | NewFiles
    compared: Compared | None
    conf: StateConf
    header: str
    run: str

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.handed.storage,)

    def __call__(self, item: Target, place: Place) -> BuiltTarget:
        """Raises `CorruptFile` for a damaged run."""
        storage, attempt = self.handed.storage, place.ids.fresh()
        path = self.handed.file(TARGET, item.number, attempt, SNAPSHOT)
        with work_folder(place.scratch, "rewrite") as folder, translated(place.folder):
            new = replace(self.new, folder=folder)
            with fetched(storage, item.runs, folder / ROWS) as parts:
                digest, compared = written(new, parts, item.store, self.compared)
            (folder / ROWS).unlink()
            tables: tuple[str, ...] = ()
            if isinstance(new, NewDatabases):
                name_of = partial(table_name, self.run, attempt=attempt)
                body, tables = new.upload(
                    storage, item.store, digest.rows, header=self.header, conf=self.conf, name_of=name_of
                )
                storage.create(path, body)
            else:
                # A copy keeps the owner and the mode, which must be those that the query can read.
                storage.create(path, new.path(item.store), like=names.QUERY_METADATA)
        result = BuiltTarget(attempt=attempt, digest=str(digest), compared=str(compared), tables=tables)
        self.handed.note(TARGET, item.number, result)
        return result


@dataclass(frozen=True, kw_only=True)
class PublishedSnapshot:
    """A published snapshot, with the digest of its rows and the tables that it names."""

    store: StorePath
    version: VersionId
    made: Made


@dataclass(frozen=True, kw_only=True)
class ReadBackEach:
    """The task that reads a published snapshot back. `conf`: see `BuildEach`."""

    root: Storage
    conf: StateConf

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.root,)

    def __call__(self, one: PublishedSnapshot, place: Place) -> tuple[Made, Skipped]:
        """Raises `CorruptFile` if the published rows differ."""
        conf = replace(self.conf, provider=one.store.provider)
        with work_folder(place.scratch, "rewrite") as folder, translated(place.folder):
            snapshot.require_same(
                self.root, one.store, one.version, one.made.digest, folder / "back", conf=conf, at_hand={}
            )
        return one.made, ()


def rebuild(work: Rewriting, planned: RewritePlan, group: StoreGroup, machine: Machine, read_rows: RowProgress) -> None:
    """Make the snapshots of a group. `read_rows`: of a load.

    *Guarantee*: as `rebuild_here`. After a crash, the next run uses what the tasks have recorded. Tables of attempts that
    were not published stay: see `delete_unpublished`. Raises as `rebuild_here`; `TaskLost`.
    """
    executor = machine.executor
    if executor.is_here:
        rebuild_here(work, planned, group, machine, read_rows)
    else:
        rebuilt = _Elsewhere(work=work, planned=planned, group=group, executor=executor, scratch=machine.scratch)
        rebuilt.rebuild(read_rows)


@dataclass(frozen=True, kw_only=True)
class _Elsewhere:
    """Rebuilds a group by tasks elsewhere."""

    work: Rewriting
    planned: RewritePlan
    group: StoreGroup
    executor: Executor
    scratch: Path

    def rebuild(self, read_rows: RowProgress) -> None:
        work, planned, group = self.work, self.planned, self.group
        storage, begun, conf = work.storage, work.begun, planned.conf_after or planned.conf
        handed = Handed(storage, names.handed_over(begun.run, group.operator, group.name))
        runs, sources = self._sort(handed, read_rows)
        new = new_snapshots(planned, group, sources, Path(), most_record_bytes=storage.limits.record_bytes)
        task = BuildEach(
            handed=handed,
            new=new,
            compared=compared_of(group.conversion, new),
            conf=conf,
            header=begun.header,
            run=begun.run,
        )
        of_targets = handed.runs(runs, len(group.targets))
        targets = [
            Target(number, store, of_target)
            for number, (store, of_target) in enumerate(zip(group.targets, of_targets, strict=True))
        ]
        try:
            noted = handed.noted(TARGET, BuiltTarget)
            built = self._done(task, targets, noted, self._counted(RewritePhase.BUILT, targets))
            require_all_rows(group, sources, [RowsDigest.parse(one.compared) for one in built])
        except CorruptFile:
            # The rows were damaged on the way: the next run must not use them.
            handed.clear()
            raise
        self._publish(handed, targets, built, conf)
        handed.clear()

    def _sort(self, handed: Handed, read_rows: RowProgress) -> tuple[list[SortedSource], list[Source]]:
        """Sort the rows of all sources. Return their runs, and what is compared with the targets."""
        group, planned = self.group, self.planned
        targets = tuple(store.partition for store in group.targets)
        noted = {
            number: one
            for number, one in handed.noted(SOURCE, SortedSource).items()
            if len(one.lengths) == len(targets)
        }
        bases: list[Source] = []
        if planned.load is None:
            sources = [Numbered(number, one) for number, one in enumerate(group.sources)]
            sorting = Sorting(handed=handed, targets=targets, sources=len(sources))
            task = SortEach(sorting=sorting, old=planned.source, conf=planned.conf, moves=Moves.of(group))
            runs = self._done(task, sources, noted, self._counted(RewritePhase.SORTED, sources))
        else:
            of_load, found = parts_of(self.work.storage, group)
            parts = [Numbered(number, one) for number, one in enumerate(of_load)]
            sorting = Sorting(handed=handed, targets=targets, sources=len(parts))
            of_parts = SortEachPart(sorting=sorting, reading=Reading.of(planned))
            runs = self._done(of_parts, parts, noted, lambda part: read_rows.add(part.of.rows))
            bases = [Source(RowsDigest(), base) for base in found]
        return runs, [*(Source(RowsDigest.parse(one.digest), one.base) for one in runs), *bases]

    def _counted(self, phase: RewritePhase, items: Sequence[object]) -> Callable[[object], None]:
        """Return what reports the progress of a phase after each item."""
        done = itertools.count(1)
        return lambda _: self.work.tell(phase, next(done), len(items))

    def _done(
        self,
        task: Task[Part, Result],
        items: Sequence[Part],
        noted: Mapping[int, Result],
        told: Callable[[Part], None],
    ) -> list[Result]:
        """Return the result of each item: the noted one of an interrupted run, or that of the task."""

        def ended(item: Part, _: Result) -> None:
            self.work.still_held()
            told(item)

        for one in items:
            if one.number in noted:
                told(one)
        left = [one for one in items if one.number not in noted]
        made = results_of(self.executor, task, left, ended)
        found = {**noted, **{one.number: result for one, result in zip(left, made, strict=True)}}
        return [found[one.number] for one in items]

    def _publish(
        self, handed: Handed, targets: Sequence[Target], built: Sequence[BuiltTarget], conf: StateConf
    ) -> None:
        """Publish the snapshots, read back those that the journal does not have, and note them there."""
        work = self.work
        published: dict[StorePath, PublishedSnapshot] = {}

        def publish(one: tuple[Target, BuiltTarget]) -> None:
            target, of = one
            file = handed.file(TARGET, target.number, of.attempt, SNAPSHOT)
            published[target.store] = self._published(file, target.store, of)

        work.still_held()
        at_once(publish, list(zip(targets, built, strict=True)))
        unread = [published[store] for store in self.group.targets if store not in work.made]
        build_each(work, ReadBackEach(root=work.storage, conf=conf), unread, executor=self.executor)

    def _published(self, file: str, store: StorePath, built: BuiltTarget) -> PublishedSnapshot:
        """Give a snapshot its name. *Guarantee*: keeps the one that an interrupted run has published, which is then read
        back like this one."""
        storage, version = self.work.storage, self.work.begun.stores[store]
        path, tables = store.snapshot(version), built.tables
        try:
            if store.provider is Provider.ROCKSDB:
                storage.create(path, storage.read(file))
            elif storage.stat(path) is None:  # a copy may overwrite
                copy_file(storage, _there(storage, file), storage, path, scratch=self.scratch)
        except AlreadyExists:
            if store.provider is Provider.ROCKSDB:
                tables = tuple(one.dfs_name for one in read_snapshot(storage.read(path), path).metadata.tables)
        return PublishedSnapshot(store=store, version=version, made=Made(built.digest, tables))


def _there(storage: Storage, path: str) -> Entry:
    """Return the entry of an object. Raises `ObjectMissing`."""
    entry = storage.stat(path)
    if entry is None:
        raise ObjectMissing("is missing; no snapshot was published from it", path=path, hint="run this command again")
    return entry


def _share(place: Place) -> int:
    """Return the memory of a task."""
    return place.memory_bytes // place.at_a_time
