"""The lease of a root: how long it lives, and what a run does that has lost it."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import LeaseLost, RootHeld, StatekeeperError, StorageError
from statekeeper.statestore.format import names, savepoint_names
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.records import lease as liveness
from statekeeper.statestore.maintenance.rewrites.evolution import parse_changes
from statekeeper.statestore.maintenance.rewrites.whole_stores import Convert, Goal, Rescale
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from statekeeper.statestore.storage import Entry, Storage, open_storage, parallel
from statekeeper.statestore.storage.base import Created, Location
from statekeeper.statestore.storage.forwarding import ForwardingStorage
from tests.faults.fuzz.roots import Stage, made
from tests.support import edits, loads, verbs
from tests.support.clocks import SleeplessClock
from tests.support.commands import run as command
from tests.support.mounts import fill, small_disk

SLOW_SECONDS = lease.LIFE_SECONDS + 60
"""Virtual time of each request."""
FULL = Policies(mode=Mode.FULL, retention=RetentionPolicy(versions=1, grace_seconds=0.0))


class SlowStorage(ForwardingStorage):
    """A storage in virtual time, whose requests outlive a lease. After each of them, `look` is called."""

    def __init__(self, inner: Storage, clock: SleeplessClock, look: Callable[[Storage], None]) -> None:
        super().__init__(inner)
        self.wrote: list[str] = []
        self._clock = clock
        self._look = look
        self._times: dict[str, float] = {}

    def read(self, path: str) -> bytes:
        self._wait(path)
        return super().read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        self._wait(path)
        return super().read_range(path, start, length)

    def download(self, path: str, target: Path, *, expected_bytes: int | None = None) -> int:
        self._wait(path)
        return super().download(path, target, expected_bytes=expected_bytes)

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        self._note(path)
        done = super().create(path, data, like=like)
        self._wait(path)
        return done

    def replace(self, path: str, data: bytes | Path, *, like: str | None = None) -> None:
        self._note(path)
        super().replace(path, data, like=like)

    def copy(self, path: str, source: Location, entry: Entry) -> None:
        self._note(path)
        super().copy(path, source, entry)
        self._wait(path)

    def delete(self, paths: Iterable[str]) -> None:
        gone = list(paths)
        for path in gone:
            self._note(path)
        super().delete(gone)

    def list(self, prefix: str, *, hidden: bool = False) -> list[Entry]:
        found = super().list(prefix, hidden=hidden)
        return [replace(one, modified_at_seconds=self._times.get(one.path, one.modified_at_seconds)) for one in found]

    def _note(self, path: str) -> None:
        self._times[path] = self._clock.now_seconds()
        if not path.startswith((names.LEASES, names.HISTORY)):
            self.wrote.append(path)

    def _wait(self, path: str) -> None:
        if not path.startswith((names.LEASES, names.HISTORY, savepoint_names.HOLDS)):
            # Time stands still while `look` looks.
            with self._clock.waiting:
                self._clock.sleep(SLOW_SECONDS)
                self._look(self)


class WithoutTimers(SleeplessClock):
    """The clock of a process that is suspended between its requests."""

    def every(self, seconds: float, action: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass
class World:
    """A job root, two checkpoints of Spark and an empty destination, which are slow, and their maintainer."""

    folder: Path
    clock: SleeplessClock
    look: Callable[[Storage], None]

    def __post_init__(self) -> None:
        self.root, self.sparks, self.sparks_v1, self.empty = (
            SlowStorage(open_storage(str(self.folder / name)), self.clock, self.look)
            for name in ("root", "sparks", "sparks-v1", "empty")
        )
        self.slow = (self.root, self.sparks, self.sparks_v1, self.empty)
        self.by = Maintainer("host:1", self.clock, RandomIds(), 0.0)
        self.how = {"scratch": self.folder / "scratch"}


def snapshot(world: World) -> None:
    done = verbs.snapshot.execute(
        world.root,
        verbs.snapshot.plan(world.root, FULL, clock=world.clock, at_head=True, stopped=True),
        world.by,
        workers=1,
        **world.how,
    )
    for _, error in done.failed:
        raise error


def retention(world: World) -> None:
    prepared = verbs.retention.plan(world.root, FULL, clock=world.clock)
    verbs.retention.execute(world.root, prepared, world.by, workers=1, **world.how)


def switch(world: World) -> None:
    prepared = verbs.switch.plan(world.root, FULL, Structure.V1, None, workers=1, **world.how)
    verbs.switch.execute(
        world.root, prepared, world.by, lambda _: None, run=world.by.ids.fresh(), stopped=True, workers=1, **world.how
    )


def _rewrite(world: World, storage: Storage, goal: Goal) -> None:
    prepared = verbs.rewrite.plan(storage, FULL, goal, **world.how)
    verbs.rewrite.execute(
        storage, prepared, world.by, lambda _: None, run=world.by.ids.fresh(), stopped=True, workers=1, **world.how
    )


def rescale(world: World) -> None:
    _rewrite(world, world.sparks, Rescale(3))


def convert(world: World) -> None:
    _rewrite(world, world.sparks_v1, Convert(Provider.HDFS_BACKED))


def load(world: World) -> None:
    source = open_storage(str(world.folder / "sparks-v1"))
    _rewrite(world, world.sparks, loads.goal(loads.savepoint(source, world.folder / "savepoint")))


def evolve(world: World) -> None:
    changes = {"stores": {"default": {"rename": {"n": "number"}}}}
    _rewrite(world, world.root, parse_changes(changes, "a file", ("--schema", "changes.toml")))


def edit(world: World) -> None:
    goal = edits.goal(name="counter", day="0")
    prepared = verbs.edit.plan(world.root, FULL, goal, world.by, workers=1, **world.how)
    verbs.edit.execute(
        world.root, prepared, world.by, lambda _: None, run=world.by.ids.fresh(), stopped=True, workers=1, **world.how
    )


def rewind(world: World) -> None:
    prepared = verbs.rewind.plan(world.root, FULL, world.by, 5, **world.how)
    verbs.rewind.execute(world.root, prepared, world.by, run=world.by.ids.fresh(), stopped=True, **world.how)


def clone(world: World) -> None:
    prepared = verbs.clone.plan(world.root, world.empty, FULL, world.by)
    verbs.clone.execute(world.root, world.empty, prepared, world.by, **world.how)


def mirror(world: World) -> None:
    prepared = verbs.mirror.plan(world.root, world.empty, FULL, world.by)
    verbs.mirror.execute(world.root, world.empty, prepared, world.by, **world.how)


def savepoint(world: World) -> None:
    prepared = verbs.savepoint.plan_rows(world.root, world.empty, world.by)
    verbs.savepoint.execute_rows(world.root, world.empty, prepared, world.by, FULL, workers=1, **world.how)


VERBS = (snapshot, retention, switch, rescale, convert, load, evolve, edit, rewind, clone, mirror, savepoint)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def root(cache: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made(cache, "own-v2", Stage.WRITTEN), tmp_path / "root"))


@pytest.fixture
def sparks(cache: Path, tmp_path: Path) -> Path:
    shutil.copytree(made(cache, "v1-aggregation", Stage.WRITTEN), tmp_path / "sparks-v1")
    return Path(shutil.copytree(made(cache, "v2-aggregation", Stage.WRITTEN), tmp_path / "sparks"))


def _held(storage: Storage) -> lease.LeaseState | None:
    found = lease.current(storage)
    return None if found is None or found.lease.released else found


COPIES = "statekeeper.statestore.maintenance.copies"


def one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies have a pool of their own."""
    monkeypatch.setattr(import_module(f"{COPIES}.clones"), "AT_ONCE", 1)
    monkeypatch.setattr(parallel, "AT_ONCE", 1)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_keeps_its_lease_while_a_request_takes_long(
    verb: Callable[[World], None], root: Path, sparks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The virtual time of one thread must not pass while another thread renews the lease.
    one_request_at_a_time(monkeypatch)
    clock = SleeplessClock(SystemClock().now_seconds())
    seen: list[bool] = []

    def look(storage: Storage) -> None:
        found = _held(storage)
        if found is not None:
            seen.append(found.is_alive(clock.now_seconds()))
            with pytest.raises(RootHeld):
                lease.acquire(storage, "gc", run="second", holder="another:1", clock=clock)

    verb(World(tmp_path, clock, look))
    assert seen
    assert all(seen)


@pytest.mark.parametrize("verb", VERBS)
def test_a_run_that_has_lost_its_lease_writes_nothing_more(
    verb: Callable[[World], None], root: Path, sparks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What another thread has begun at the time of the loss may still be written.
    one_request_at_a_time(monkeypatch)
    clock = SleeplessClock(SystemClock().now_seconds())
    wrote: list[tuple[SlowStorage, int]] = []

    def look(storage: Storage) -> None:
        if not wrote and _held(storage) is not None:
            lease.break_lease(storage, run="second", holder="another:1", clock=clock)
            # A run that only adds files looks once in this time.
            clock.sleep(lease.BEAT_SECONDS)
            wrote.extend((one, len(one.wrote)) for one in world.slow)

    world = World(tmp_path, clock, look)
    with pytest.raises(LeaseLost):
        verb(world)
    assert wrote
    for storage, number in wrote:
        # A hold is no part of the lease: its run deletes it.
        later = [path for path in storage.wrote[number:] if "/holds/" not in path]
        assert later == []
    assert [one for one in world.slow if _held(one) is not None] == []


@pytest.mark.parametrize("verb", [snapshot, rescale])
def test_a_run_that_was_suspended_writes_nothing_after_another_one_has_begun(
    verb: Callable[[World], None], root: Path, sparks: Path, tmp_path: Path
) -> None:
    clock = WithoutTimers(SystemClock().now_seconds())
    second: list[tuple[SlowStorage, int]] = []

    def look(storage: Storage) -> None:
        if not second and _held(storage) is not None:
            lease.acquire(storage, "gc", run="second", holder="another:1", clock=clock)
            assert isinstance(storage, SlowStorage)
            second.append((storage, len(storage.wrote)))

    world = World(tmp_path, clock, look)
    with pytest.raises(LeaseLost):
        verb(world)
    [(storage, number)] = second
    assert storage.wrote[number:] == []
    found = _held(storage)
    assert found is not None
    assert found.lease.run == "second"


# -- holders that have ended -------------------------------------------------------------------------------------------


def _hold(root: str, ready: multiprocessing.connection.Connection) -> None:
    lease.acquire(open_storage(root), "rescale", run="first", holder="here:1", clock=SystemClock())
    ready.send(os.getpid())
    signal.pause()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[multiprocessing.Process]:
    """Another process that holds the lease of `root`."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(str(tmp_path / "root"), theirs))
    process.start()
    mine.recv()
    yield process
    process.kill()
    process.join()


def _acquire(storage: Storage) -> None:
    with lease.held(storage, "gc", run="second", holder="here:2", clock=SystemClock()):
        pass


def test_the_lease_of_a_killed_process_of_this_machine_does_not_block(
    holder: multiprocessing.Process, tmp_path: Path
) -> None:
    storage = open_storage(str(tmp_path / "root"))
    with pytest.raises(RootHeld) as refused:
        _acquire(storage)
    assert f"statekeeper lease {storage.url} --break" in str(refused.value)
    holder.kill()
    holder.join()
    shown = command("lease", tmp_path / "root").output
    assert shown.startswith("held by here:1: rescale, since ")
    assert shown.endswith("its process has ended; it can be acquired\n")
    _acquire(storage)


@pytest.mark.parametrize("field", [0, 1])
def test_the_lease_of_another_machine_or_container_blocks_until_it_expires(
    holder: multiprocessing.Process, tmp_path: Path, field: int
) -> None:
    storage = open_storage(str(tmp_path / "root"))
    holder.kill()
    holder.join()
    path = tmp_path / "root" / names.lease(1)
    body = json.loads(path.read_bytes())
    parts = body["process"].split("/")
    parts[field] = "other"
    path.write_text(json.dumps({**body, "process": "/".join(parts)}))
    with pytest.raises(RootHeld):
        _acquire(storage)


def test_a_process_id_that_another_process_has_now_is_that_of_an_ended_process() -> None:
    name = liveness.this_process()
    assert not liveness.has_ended(name)
    assert liveness.has_ended(f"{name}0")


@pytest.mark.parametrize("name", ["", "/", "///", "a/b/c/d", "\0/\0/1/2", "x" * 9999, "1/2/-1/4", f"1/2/{'9' * 400}/4"])
def test_a_strange_name_of_a_process_proves_nothing(name: str) -> None:
    assert not liveness.has_ended(name)
    place = liveness.this_process().rsplit("/", 2)[0]
    for digits in (400, 5000):
        assert not liveness.has_ended(f"{place}/{'9' * digits}/4")


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_of_the_root_leaves_no_lease_behind(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024**2) as disk:
        storage, clock = open_storage(str(disk / "root")), SystemClock()
        storage.create("metadata", b"{}")
        with (
            pytest.raises(StorageError),
            lease.held(storage, "rescale", run="first", holder="here:1", clock=clock),
        ):
            # The unfinished file of the failed request is deleted: the release has room.
            storage.create("state/0/0/1.changelog", bytes(2 * 1024**2))
        found = lease.current(storage)
        assert found is not None
        assert found.lease.released

        full = None
        with (
            suppress(StatekeeperError),
            lease.held(storage, "rescale", run="second", holder="here:1", clock=clock),
        ):
            # Another process fills the disk.
            full = fill(disk)
            storage.create("state/0/0/2.changelog", bytes(1024))
        assert full is not None
        full.unlink()
        later = SleeplessClock(clock.now_seconds() + lease.LIFE_SECONDS)
        with lease.held(storage, "gc", run="third", holder="here:2", clock=later):
            pass


def test_the_largest_number_of_a_lease_is_a_typed_error_with_a_way_out(root: Path) -> None:
    storage = open_storage(str(root))
    for number in (99_999_998, 99_999_999):
        (root / names.LEASES).mkdir(parents=True, exist_ok=True)
        for path in (root / names.LEASES).iterdir():
            path.unlink()
        planted = {"run": "x", "holder": "x", "verb": "gc", "since_seconds": 1.0, "released": True, "beat": 0}
        (root / f"{names.LEASES}/{number}.json").write_text(json.dumps(planted))
        with pytest.raises(StatekeeperError) as refused:
            _acquire(storage)
        assert f"statekeeper lease {storage.url} --break" in str(refused.value)
        assert command("lease", root, "--break").exit_code == 0
        _acquire(storage)
