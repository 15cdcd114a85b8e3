"""The actors of a simulation: a query with its tasks, maintainers, Spark's maintenance, bit rot and an auditor."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from statekeeper.statestore.base.errors import StatekeeperError, StorageError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import batch_log, logs, names
from statekeeper.statestore.format.batch_log import Place
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.snapshot import Snapshot, SnapshotMetadata, TableFile, encode_snapshot, is_small_file
from statekeeper.statestore.maintenance.executors import LocalExecutor
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.upkeep import retention, snapshot
from statekeeper.statestore.maintenance.verbs.as_json import upkeep as as_json
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.state_store import BatchLogPart, StateStore
from tests.faults.promises import Lost
from tests.faults.simulated_world import UnderWay, World
from tests.faults.turns import Actor, VirtualClock
from tests.support import runs
from tests.support.faulty_storage import SimulatedCrash
from tests.support.hosts import changed, column

_TWIN_CHANCE = 0.15
_FULL_PASS_CHANCE = 0.2
_ZOMBIE_CHANCE = 0.1
_LOST_ATTEMPT_CHANCE = 0.08
_LARGE_CHANCE = 0.1
_UPLOADS_TRIED = 4
_VERSIONS_THAT_ROT = 3


def spawn_all(world: World) -> None:
    """Everybody that the weather asks for."""
    spawn = world.turns.spawn
    query = Query(world)
    spawn("driver", query.drive)
    for name in ("maintainer 1", "maintainer 2"):
        spawn(name, Maintainer(world, name).work)
    spawn("auditor", lambda actor: audit(world, actor))
    if world.weather.has_spark:
        spawn("spark", lambda actor: maintain_as_spark(world, actor))
    if world.weather.has_damage:
        spawn("rot", lambda actor: rot(world, actor))


# -- the query ---------------------------------------------------------------------------------------------------------


@dataclass
class _Reports:
    """The reports of the tasks of one attempt at a batch, and the number of tasks that still run."""

    versions: dict[StorePath, list[VersionId]] = field(default_factory=dict)
    members: dict[Place, bytes] = field(default_factory=dict)
    running: dict[StorePath, int] = field(default_factory=dict)
    tag: str = ""
    """Of the attempt's batch log, if it has one."""


class Query:
    """A streaming query: a driver, and tasks on two hosts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.turns.chance
        self._hosts = [world.folder("host"), world.folder("host")]
        self._tasks = 0

    def drive(self, actor: Actor) -> None:
        """Commit batches, and come to life again after each death, until there were enough of them."""
        world = self._world
        while not world.closing:
            try:
                self._live(actor, world.connect(actor, of_query=True))
            except SimulatedCrash:
                pass
            except StatekeeperError as error:
                world.failed(actor, error)
            actor.pause(world.weather.batch_seconds)

    def _live(self, actor: Actor, storage: Storage) -> None:
        world = self._world
        known = catalog.snapshots(storage)
        heads = catalog.heads(storage)
        batch = 0 if heads is None else heads.batch + 1
        bases = dict.fromkeys(world.stores, EMPTY) if heads is None else heads.heads
        while batch < world.weather.batches:
            actor.pause(self._chance.expovariate(1 / world.weather.batch_seconds))
            if self._chance.random() < 0.5:
                known = catalog.snapshots(storage)
            chosen, reports = self._attempt(actor, batch, bases, known)
            if self._chance.random() < _LOST_ATTEMPT_CHANCE:
                continue
            if reports.tag:
                _write_batch_log(storage, batch, chosen, reports)
                if self._chance.random() < _LOST_ATTEMPT_CHANCE:
                    continue
            self._commit(storage, batch, chosen)
            bases, batch = chosen, batch + 1
        world.closing = True

    def _attempt(
        self,
        actor: Actor,
        batch: int,
        bases: Mapping[StorePath, VersionId],
        known: Mapping[StorePath, Collection[VersionId]],
    ) -> tuple[dict[StorePath, VersionId], _Reports]:
        in_log = self._world.weather.in_batch_logs
        reports = _Reports(tag=batch_log.tag_of(self._world.ids.fresh()) if in_log else "")
        for store in self._world.stores:
            for _ in range(2 if self._chance.random() < _TWIN_CHANCE else 1):
                self._start_task(reports, store, bases[store], batch, known.get(store, ()))
        while len(reports.versions) < len(bases):
            actor.pause(self._world.weather.batch_seconds / 20)
            for store in self._world.stores:
                if store not in reports.versions and not reports.running[store]:
                    self._start_task(reports, store, bases[store], batch, known.get(store, ()))
        return {store: self._chance.choice(reports.versions[store]) for store in self._world.stores}, reports

    def _start_task(
        self, reports: _Reports, store: StorePath, base: VersionId, batch: int, known: Collection[VersionId]
    ) -> None:
        reports.running[store] = reports.running.get(store, 0) + 1
        self._tasks += 1

        def work(actor: Actor) -> None:
            try:
                version, member = self._task(actor, store, base, batch, known, reports.tag)
                if member is not None:
                    reports.members[store, version] = member
                reports.versions.setdefault(store, []).append(version)
            except SimulatedCrash:
                pass
            except StatekeeperError as error:
                self._world.failed(actor, error)
            finally:
                reports.running[store] -= 1

        self._world.turns.spawn(f"task {self._tasks}", work)

    def _task(
        self, actor: Actor, store: StorePath, base: VersionId, batch: int, known: Collection[VersionId], tag: str
    ) -> tuple[VersionId, bytes | None]:
        world = self._world
        folder = self._chance.choice(self._hosts) / f"{store.partition}"
        # A large changelog is an object of its own.
        most_bytes = 0 if tag and self._chance.random() < _LARGE_CHANCE else 1 << 20
        part = BatchLogPart(tag, most_bytes) if tag else None
        with world.load(store, base, world.connect(actor, of_query=True), folder, known, part) as opened:
            changes: dict[bytes, bytes | None] = {
                b"attempt": str(opened.next).encode(),
                b"key %d" % (batch % 7): b"of batch %d" % batch,
                b"key %d" % ((batch + 3) % 7): None,
            }
            opened.put(column(list(changes)), column(list(changes.values())))
            world.states[store, opened.next] = changed(world.states[store, base], changes)
            if self._chance.random() < _ZOMBIE_CHANCE:
                actor.pause(self._chance.uniform(0, 10) * world.weather.batch_seconds)
            version = _sent(opened)
            # Its id says where its changelog is.
            world.states[store, version] = world.states[store, opened.next] = changed(
                world.states[store, base], changes
            )
            return version, opened.member

    def _commit(self, storage: Storage, batch: int, chosen: Mapping[StorePath, VersionId]) -> None:
        ids = tuple((str(chosen[store].id),) for store in self._world.stores)
        body = logs.encode_commit(logs.CommitLog(0, {0: ids}))
        storage.create(names.offsets(batch), b"offsets of %d" % batch)
        storage.create(names.commits(batch), body)
        self._world.counts.what["batches"] += 1


def _write_batch_log(storage: Storage, batch: int, chosen: Mapping[StorePath, VersionId], reports: _Reports) -> None:
    """Write the object with the changelogs of an attempt; after a lost reply the same object is sent again."""
    members = {place: reports.members[place] for place in chosen.items() if place in reports.members}
    body = batch_log.encode(batch + 1, reports.tag, {"batch": batch}, members)
    for _ in range(_UPLOADS_TRIED - 1):
        with suppress(StorageError):
            storage.create(names.batch_log(batch + 1, reports.tag), body)
            return
    storage.create(names.batch_log(batch + 1, reports.tag), body)


def _sent(opened: StateStore) -> VersionId:
    """Commit; after a lost reply the same object is sent again."""
    for _ in range(_UPLOADS_TRIED - 1):
        try:
            return opened.commit()
        except StorageError:
            continue
    return opened.commit()


# -- maintenance -------------------------------------------------------------------------------------------------------


class Maintainer:
    """A Statekeeper maintainer: takes snapshots and deletes, in turns, like the verbs of the command line."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._chance = world.turns.chance
        self._name = name
        self._clock = VirtualClock(world.turns)
        self._scratch = world.folder("maintainer")

    def work(self, actor: Actor) -> None:
        """Round after round, coming to life again after each death."""
        world = self._world
        while not world.closing:
            actor.pause(self._chance.uniform(0, 2) * world.weather.batch_seconds)
            if self._chance.random() < 0.3:
                jump = world.weather.clock_jumps_seconds
                self._clock.off_by_seconds = self._chance.uniform(-jump, jump)
            storage = world.connect(actor)
            try:
                if self._chance.random() < 0.5:
                    self.take_snapshots(actor, storage)
                else:
                    self.collect(storage)
            except SimulatedCrash:
                actor.pause(self._chance.expovariate(1 / world.weather.batch_seconds))
            except StatekeeperError as error:
                world.failed(actor, error)

    def take_snapshots(self, actor: Actor, storage: Storage) -> None:
        """Take snapshots, like `statekeeper snapshot`."""
        world = self._world
        planned = snapshot.plan(snapshot.gather(storage), world.weather.snapshots)
        run = world.ids.fresh()
        with runs.recorded(storage, "snapshot", run, map(as_json.of_action, planned.take), self._clock):
            for action in planned.take:
                try:
                    snapshot.execute(storage, action, scratch=self._scratch, clock=self._clock, ids=world.ids)
                    world.counts.what["snapshots made"] += 1
                except StatekeeperError as error:
                    world.failed(actor, error)

    def collect(self, storage: Storage) -> None:
        """Delete files, like `statekeeper gc --apply`."""
        with self._world.counted(UnderWay.COLLECTING):
            self._world.runs_begun += 1
            self._collect(storage)

    def _collect(self, storage: Storage) -> None:
        world, policy = self._world, self._world.weather.retention
        was_alone, this_run = world.under_way[UnderWay.COLLECTING] == 1, world.runs_begun
        everything = self._chance.random() < _FULL_PASS_CHANCE
        gathered = retention.gather(storage, policy, clock=self._clock, everything=everything)
        floor = world.promises.floor_for(gathered.wanted_floor)
        planned = retention.plan(gathered, policy)
        run = world.ids.fresh()
        with ExitStack() as stack:
            with world.counted(UnderWay.PLANNED):
                held = stack.enter_context(lease.held(storage, "gc", run=run, holder=self._name, clock=self._clock))
                plan = as_json.of_retention_plan(planned)
                done = stack.enter_context(runs.recorded(storage, "gc", run, plan, self._clock))
            if gathered.since is None:
                world.promises.make(planned, floor, is_alone=was_alone and this_run == world.runs_begun)
            else:
                # Damage in stores that are not due is seen by the next full pass.
                world.promises.make(planned, planned.floor, is_alone=False)
            with world.counted(UnderWay.DELETING):
                one_by_one = LocalExecutor(clock=self._clock, workers=1)
                steps = list(
                    retention.execute(storage, planned, run=run, lease=held, clock=self._clock, executor=one_by_one)
                )
            done += map(as_json.of_deleted, steps)
            retention.remember(storage, gathered, planned, steps)
        world.counts.what["retention runs"] += 1
        world.counts.what["retention runs over what is due"] += gathered.since is not None
        world.counts.what["files spared"] += sum(len(step.spared) for step in steps)
        world.counts.what["stores left alone"] += sum(s.outcome is retention.DeletionOutcome.CHANGED for s in steps)


def maintain_as_spark(world: World, actor: Actor) -> None:
    """Take snapshots like a Spark executor: reuse earlier tables even if their deletion is announced, and do not
    check afterwards that they exist."""
    scratch = world.folder("spark")
    chance = world.turns.chance
    while not world.closing:
        actor.pause(chance.uniform(0.5, 5) * world.weather.batch_seconds)
        store = chance.choice(world.stores)
        version = world.promises.committed[world.promises.head][store]
        try:
            if version != EMPTY:
                _upload_as_spark(world, world.connect(actor), store, version, scratch)
                world.counts.what["snapshots as Spark makes them"] += 1
        except SimulatedCrash:
            continue
        except StatekeeperError as error:
            world.failed(actor, error)


def _upload_as_spark(world: World, storage: Storage, store: StorePath, version: VersionId, scratch: Path) -> None:
    folder = scratch / world.ids.fresh()
    restored = world.loader(store, storage, folder).restore(version, folder / "database")
    with restored.database as database:
        keys = database.count_keys()
        database.capture(folder / "captured")
    held = {table.local_name: table for table in (restored.base.tables if restored.base else ())}
    suffix = world.ids.fresh()
    tables = []
    for path in sorted((folder / "captured").glob("*.sst")):
        table = held.get(path.name) or TableFile(path.name, f"{path.stem}-{suffix}.sst", path.stat().st_size)
        tables.append(table)
        if path.name not in held:
            storage.create(store.table_file(table.dfs_name), path)
    small = {path.name: path.read_bytes() for path in (folder / "captured").iterdir() if is_small_file(path.name)}
    body = encode_snapshot(
        Snapshot(small, SnapshotMetadata(header="v1", tables=tuple(tables), key_count=keys, column_families={}))
    )
    storage.create(store.snapshot(version), body)
    shutil.rmtree(folder)


# -- damage and readers ------------------------------------------------------------------------------------------------


def rot(world: World, actor: Actor) -> None:
    """Files are lost or cut off, until promised versions are lost with them; the heads can do without."""
    chance = world.turns.chance
    first = chance.uniform(0.3, 0.9) * world.weather.batches
    between_plan_and_deletion = chance.random() < 0.5
    while not world.closing and len(world.promises.rotten) < _VERSIONS_THAT_ROT:
        # No verb can detect damage between its last read of the file and a deletion.
        is_time = world.under_way[UnderWay.PLANNED] > 0 or not between_plan_and_deletion
        if is_time and world.promises.head >= first and not world.under_way[UnderWay.DELETING]:
            paths = chance.choice((_versions_above_the_floor, _base_of_the_floor, _any_file))(world)
            _damage(world, paths)
        actor.pause(world.weather.batch_seconds / 10)


def _damage(world: World, paths: list[str]) -> None:
    objects = world.root.objects
    whole = {path: objects[path] for path in paths if path in objects}
    for path, found in whole.items():
        del objects[path]
        if not path.endswith(".changelog") and world.turns.chance.random() < 0.5:
            objects[path] = replace(found, data=found.data[: len(found.data) // 2])
    if world.promises.heads_load():
        world.promises.rot()
        world.turns.note(f"rot: {list(whole)}")
        world.counts.what["files that rotted"] += len(whole)
    else:
        objects.update(whole)


def _versions_above_the_floor(world: World) -> list[str]:
    store, promises = world.turns.chance.choice(world.stores), world.promises
    first = world.turns.chance.randint(promises.floor, promises.head)
    last = min(promises.head - 1, first + world.turns.chance.randint(0, 3))
    versions = [promises.committed[number][store] for number in range(first, last + 1)]
    return [path for version in versions for path in (batch_log.object_of(store, version), store.snapshot(version))]


def _base_of_the_floor(world: World) -> list[str]:
    store, promises = world.turns.chance.choice(world.stores), world.promises
    floor = promises.head - world.weather.retention.versions + 1
    bases = [version for version in promises.whole_snapshots(store) if version.version <= floor]
    return [store.snapshot(bases[-1])] if bases else []


def _any_file(world: World) -> list[str]:
    files = world.promises.files()
    return [world.turns.chance.choice(files)] if files else []


def audit(world: World, actor: Actor) -> None:
    """At random moments, promised versions are restored on a fresh host and compared."""
    while not world.closing:
        actor.pause(world.turns.chance.uniform(1, 4) * world.weather.batch_seconds)
        promised = world.promises.promised()
        if promised:
            require_right(world, *world.turns.chance.choice(promised))


def require_right(world: World, store: StorePath, version: VersionId) -> None:
    """Restore a version from storage alone, and compare it with the committed one. Raises `Lost`."""
    folder = world.folder("auditor")
    try:
        with world.loader(store, world.storage, folder).restore(version, folder / "database").database as database:
            found = {key: value for keys, values in database.scan() for key, value in zip(keys, values, strict=True)}
    except StatekeeperError as error:
        raise Lost(f"{store} {version}: {error}") from error
    finally:
        shutil.rmtree(folder)
    if found != world.states[store, version]:
        raise Lost(f"{store} {version} holds {found}, not {world.states[store, version]}")
    world.counts.what["versions restored and compared"] += 1
