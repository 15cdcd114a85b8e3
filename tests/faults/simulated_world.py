"""State that the actors of a simulation share: the root, their storage clients, and the contents of each version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from statekeeper.statestore.base.errors import StatekeeperError, StorageError
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.storage import Created, Kind, Storage
from statekeeper.statestore.storage.batch_logs import LoggedStorage
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import EngineLimits
from statekeeper.statestore.store.loading.loader import Loader
from statekeeper.statestore.store.state_store import BatchLogPart, StateStore, StoreAddress, StoreLimits
from tests.faults.promises import Promises
from tests.faults.turns import Actor, SeededIds, Turns, VirtualClock
from tests.faults.weather import Counts, Weather
from tests.support.faulty_storage import Fault, FaultyStorage, Request
from tests.support.hosts import State
from tests.support.memory import MemoryStorage

LIMITS = StoreLimits(block_cache_bytes=1024 * 1024, lock_timeout_seconds=0)
"""Does not wait for a lock, because its holder may be waiting for its turn."""

ENGINE = EngineLimits(block_cache_bytes=LIMITS.block_cache_bytes)


class UnderWay(Enum):
    """Activities that several actors can be in, and that others watch."""

    COLLECTING = "a retention run, from its first request to its last"
    PLANNED = "it has a plan and has not begun to carry it out"
    DELETING = "it is between its last look and its last deletion"
    ASLEEP = "a deletion is on its way, and late"


class _Stall(Enum):
    """How long a stall is, in batches."""

    MOMENT = (0, 1)
    UNTIL_OTHERS_CHANGED_SOMETHING = (1, 6)
    UNTIL_THE_PLAN_IS_OUTDATED = (6, 20)
    UNTIL_IT_MATTERS = (0, 0.5)
    """A deletion sleeps until the head has left it behind, all else until a deletion sleeps."""


class World:
    """One checkpoint and all its actors."""

    def __init__(self, turns: Turns, weather: Weather, scratch: Path) -> None:
        self.turns = turns
        self.weather = weather
        self.scratch = scratch
        self.counts = Counts()
        self.ids = SeededIds(turns.chance.getrandbits(64))
        self.stores = [StorePath(0, partition) for partition in range(weather.stores)]
        self.closing = False
        """Whether all actors are to come to an end."""
        self.written_at_seconds = turns.now_seconds
        """The modification time of objects that the current request writes: for a long upload, the time of its start."""
        self.root = Root(self)
        self.states: dict[tuple[StorePath, VersionId], State] = {(store, EMPTY): {} for store in self.stores}
        """The state of each attempt that was begun, committed or not."""
        self.promises = Promises(self.root, self.stores, weather.retention.versions)
        self.runs_begun = 0
        """Retention runs, whatever became of them."""
        self.under_way: Counter[UnderWay] = Counter()
        self._folders = 0
        self._create_root()

    def connect(self, actor: Actor, *, of_query: bool = False) -> Storage:
        """Return a storage client for one life of one process. A query's writes stall no more often than other requests:
        while the head does not advance, no version can be lost."""
        return LoggedStorage(Connection(self, actor, of_query=of_query))

    @property
    def storage(self) -> Storage:
        """The root without faults, for a process that has read nothing yet."""
        return LoggedStorage(self.root)

    def folder(self, name: str) -> Path:
        """A new folder on local disk."""
        self._folders += 1
        folder = self.scratch / f"{name}-{self._folders}"
        folder.mkdir()
        return folder

    def failed(self, actor: Actor, error: StatekeeperError) -> None:
        """Record an error of the library in a process that continues or restarts."""
        self.counts.errors[f"{actor.name.partition(' ')[0]}: {error.code}"] += 1
        self.turns.note(f"{actor.name}: {error.code}")

    @contextmanager
    def counted(self, what: UnderWay) -> Iterator[None]:
        """One more is at this, for as long as the block lasts."""
        self.under_way[what] += 1
        try:
            yield
        finally:
            self.under_way[what] -= 1

    def load(
        self,
        store: StorePath,
        version: VersionId,
        storage: Storage,
        folder: Path,
        snapshots: Collection[VersionId] = (),
        part: BatchLogPart | None = None,
    ) -> StateStore:
        """A version on a host. `part`: of the batch log of an attempt."""
        return StateStore.load(
            StoreAddress(store, folder),
            version,
            storage=storage,
            clock=VirtualClock(self.turns),
            ids=self.ids,
            snapshots=snapshots,
            limits=LIMITS,
            batch_log=part,
        )

    def loader(self, store: StorePath, storage: Storage, folder: Path) -> Loader:
        """Return a loader for a host without local state."""
        cache = LocalCopyFolder(folder / "store", ENGINE, self.ids)
        clock = VirtualClock(self.turns)
        return Loader(store, storage, cache, ENGINE, clock=clock, lock_timeout_seconds=0)

    def _create_root(self) -> None:
        self.root.create(names.BINDING, b"{}")
        self.root.create(names.QUERY_METADATA, logs.encode_metadata("a query"))
        info = operators.StoreInfo(name=names.DEFAULT_STORE, prefix_columns=1, partitions=len(self.stores))
        metadata = operators.OperatorMetadata(0, "counting", (info,))
        self.root.create(names.operator_metadata(0), operators.encode_operator(metadata))


class Root(MemoryStorage):
    """The root, without faults. It records commits and the result of each deletion."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.written_at_seconds)
        self._world = world

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        created = super().create(path, data, like=like)
        if created is Created.NEW and path.startswith(f"{names.COMMITS}/"):
            self._world.promises.learn(path)
        return created

    def delete(self, paths: Iterable[str]) -> None:
        there = [path for path in paths if path in self.objects]
        super().delete(there)
        self._world.counts.what["files deleted"] += len(there)
        self._world.counts.what["batch logs deleted"] += sum(path.startswith(names.BATCH_LOGS) for path in there)
        if any(path.startswith((f"{names.STATE}/", names.BATCH_LOGS)) for path in there):
            self._world.promises.require(f"the deletion of {len(there)} files, the first of them {there[0]}")


class Connection(FaultyStorage):
    """The storage of one life of a process: each request is a turn, and can stall, fail, or be its last."""

    def __init__(self, world: World, actor: Actor, *, of_query: bool) -> None:
        super().__init__(world.root)
        self._of_query = of_query
        self._world = world
        self._actor = actor

    def _fault_of(self, request: Request) -> Fault | None:
        world, weather, chance = self._world, self._world.weather, self._world.turns.chance
        begun = world.turns.now_seconds
        is_change = request.kind in (Kind.CREATE, Kind.DELETE) and not self._of_query
        self._actor.pause(chance.expovariate(1 / weather.request_seconds))
        if chance.random() < (weather.stall_chance_of_changes if is_change else weather.stall_chance):
            world.counts.what["stalls"] += 1
            self._stall(request)
        world.written_at_seconds = begun if chance.random() < 0.5 else world.turns.now_seconds
        world.counts.what["requests"] += 1
        fault = None
        draw = chance.random()
        if draw < weather.crash_chance:
            fault = chance.choice((Fault.BEFORE, Fault.AFTER, Fault.TORN))
            world.counts.what["crashes"] += 1
        elif draw < weather.crash_chance + weather.failure_chance:
            fault = Fault.LOST_REPLY
            world.counts.what["failures"] += 1
        told = f"  {fault.name}" if fault else ""
        if fault is Fault.LOST_REPLY and chance.random() < 0.5:
            world.turns.note(f"{self._actor.name}: {request.kind} {request.path}  NOT DONE")
            raise StorageError("timed out", path=request.path, hint="try again")
        world.turns.note(f"{self._actor.name}: {request.kind} {request.path}{told}")
        return fault

    def _stall(self, request: Request) -> None:
        world, weather, chance = self._world, self._world.weather, self._world.turns.chance
        kind = chance.choice(list(_Stall))
        if kind is _Stall.UNTIL_IT_MATTERS and not self._of_query:
            if request.kind is not Kind.DELETE:
                self._wait(6, lambda: world.under_way[UnderWay.ASLEEP] > 0)
            elif request.path.startswith(f"{names.STATE}/"):
                left_behind = world.promises.head + weather.retention.versions + chance.randint(1, 6)
                with world.counted(UnderWay.ASLEEP):
                    self._wait(20, lambda: world.promises.head >= left_behind)
        low, high = kind.value
        self._actor.pause(min(chance.uniform(low, high) * weather.batch_seconds, weather.longest_stall_seconds / 2))

    def _wait(self, most_batches: float, until: Callable[[], bool]) -> None:
        world, weather = self._world, self._world.weather
        seconds = min(most_batches * weather.batch_seconds, weather.longest_stall_seconds / 2)
        latest = world.turns.now_seconds + seconds
        while not until() and not world.closing and world.turns.now_seconds < latest:
            self._actor.pause(weather.batch_seconds / 3)
