"""The local copy of a store: damage, locks, and processes that change it."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import LocalStateDamaged
from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits
from statekeeper.statestore.store.state_store import StoreLimits
from tests.support.hosts import History, Host, column
from tests.support.stores import current


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def spoil(path: Path) -> None:
    path.write_bytes(b"garbage" * 10)


def alter(path: Path) -> None:
    """Change the rows of a copy, but not its marker."""
    with Database.open_for_writing(path, EngineLimits()) as database:
        database._rdict[b"of nobody"] = b"altered"


DAMAGES = {
    "no database": lambda db: shutil.rmtree(db),
    "empty database": lambda db: [file.unlink() for file in db.iterdir()],
    "no CURRENT": lambda db: (db / "CURRENT").unlink(),
    "empty CURRENT": lambda db: (db / "CURRENT").write_bytes(b""),
    "garbage CURRENT": lambda db: spoil(db / "CURRENT"),
    "cut MANIFEST": lambda db: cut(next(db.glob("MANIFEST-*"))),
    "garbage MANIFEST": lambda db: spoil(next(db.glob("MANIFEST-*"))),
    "no tables": lambda db: [file.unlink() for file in db.glob("*.sst")],
    "cut tables": lambda db: [cut(file) for file in db.glob("*.sst")],
    "garbage tables": lambda db: [spoil(file) for file in db.glob("*.sst")],
    "empty pointer": lambda db: (db.parent / "current").write_bytes(b""),
    "garbage pointer": lambda db: (db.parent / "current").write_bytes(b"\xff\xfe\0"),
    "altered by another program": lambda db: alter(db),
    "foreign pointer": lambda db: (db.parent / "current").write_text("../elsewhere"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("back", [0, 1])
def test_a_damaged_local_copy_is_rebuilt_and_reported(host: Host, damage: str, back: int) -> None:
    """`back` 1: the copy is to be caught up; else it holds just the wanted version."""
    history = History()
    history.grow(host, 3)
    assert host.advance_local_copy(history.versions[3 - back])
    DAMAGES[damage](current(host))
    with host.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.replaced_damaged_copy
    with host.load(history.head) as store:
        assert store.load_report.base is BaseKind.LOCAL
        assert not store.load_report.replaced_damaged_copy
    assert len(list(host.folder.glob("db-*"))) == 1


def test_damage_found_by_a_read_fails_one_task_and_not_the_next(host: Host) -> None:
    history = History()
    history.commit(host, {b"key %05d" % number: b"%d" % number * 40 for number in range(2000)})
    host.read(history.head)
    assert host.advance_local_copy(history.head)
    table = max(current(host).glob("*.sst"), key=lambda table: table.stat().st_size)
    body = bytearray(table.read_bytes())
    body[100] ^= 0xFF
    table.write_bytes(body)
    with host.load(history.head) as store, pytest.raises(LocalStateDamaged, match="checksum"):
        list(store.scan())
    assert host.read(history.head) == history.states[-1]


def test_an_emptied_folder_is_rebuilt(host: Host) -> None:
    history = History()
    history.grow(host, 3)
    shutil.rmtree(host.folder)
    assert host.read(history.head) == history.states[-1]


def hold_lock(folder: Path, held: multiprocessing.synchronize.Event, done: multiprocessing.synchronize.Event) -> None:
    with LocalCopyFolder(folder, EngineLimits(), RandomIds()).locked(timeout_seconds=5) as mine:
        assert mine
        held.set()
        done.wait(60)


@contextlib.contextmanager
def lock_held_by_another_process(folder: Path) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    held, done = context.Event(), context.Event()
    process = context.Process(target=hold_lock, args=(folder, held, done))
    process.start()
    try:
        assert held.wait(60)
        yield
    finally:
        done.set()
        process.join(60)


def test_a_lock_that_is_held_too_long_causes_a_private_copy(host: Host) -> None:
    history = History()
    history.grow(host, 4)
    assert host.advance_local_copy(history.head)
    served = current(host)
    with lock_held_by_another_process(host.folder):
        # The copy is newer than this version. A slightly older copy would be served without the lock.
        with host.load(history.versions[2], limits=StoreLimits(lock_timeout_seconds=0.0)) as store:
            assert store.load_report.used_private_copy
            assert dict(store.scan()) == history.states[2]
            assert len(list(host.folder.glob("private-*"))) == 1
            store.put(column([b"x"]), column([b"y"]))
            twin = store.commit()
        assert current(host) == served
        assert not list(host.folder.glob("private-*"))
        with host.load(history.head, limits=StoreLimits(lock_timeout_seconds=0.0)) as store:
            assert not store.load_report.used_private_copy
    assert host.read(twin) == {**history.states[2], b"x": b"y"}


def test_a_batch_continues_while_the_copy_advances(host: Host) -> None:
    history = History()
    history.grow(host, 2)
    with lock_held_by_another_process(host.folder):
        assert not host.advance_local_copy(history.head)
        history.grow(host, 3)
        with host.load(history.head, limits=StoreLimits(lock_timeout_seconds=0.0)) as store:
            assert not store.load_report.used_private_copy
            assert dict(store.scan()) == history.states[-1]
