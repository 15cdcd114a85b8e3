"""The folder that all workers of a host share: its lock, pointer and leftovers."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import LocalStateDamaged
from statekeeper.statestore.checkpoint.lineage import LocalCopy
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.store.engine.local_copy import LEFTOVER_SECONDS, LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits

LIMITS = EngineLimits(block_cache_bytes=1024 * 1024)
ID = "6ad1c2f0-1111-4222-8333-444455556666"


def folder_at(path: Path) -> LocalCopyFolder:
    return LocalCopyFolder(path, LIMITS, RandomIds())


@pytest.fixture
def folder(tmp_path: Path) -> LocalCopyFolder:
    return folder_at(tmp_path / "copy")


def build(folder: LocalCopyFolder, number: int) -> Path:
    path = folder.fresh_directory()
    with Database.create(path, LIMITS) as database:
        database.apply([[(b"number", b"%d" % number)]], LocalCopy(VersionId(number, ID), ()))
    return path


def hold(path: Path, held: multiprocessing.synchronize.Event) -> None:
    with folder_at(path).locked(timeout_seconds=30) as mine:
        assert mine
        held.set()
        signal.pause()


def test_the_lock_is_released_when_its_process_dies(folder: LocalCopyFolder) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=hold, args=(folder.folder, held))
    process.start()
    try:
        assert held.wait(60)
        with folder.locked(timeout_seconds=0) as mine:
            assert not mine
    finally:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(60)
    with folder.locked(timeout_seconds=30) as mine:
        assert mine


def test_the_lock_is_released_when_its_holder_fails(folder: LocalCopyFolder) -> None:
    with pytest.raises(KeyError), folder.locked(timeout_seconds=0):
        raise KeyError
    with folder.locked(timeout_seconds=0) as mine:
        assert mine


def test_an_empty_folder_serves_nothing(folder: LocalCopyFolder) -> None:
    assert folder.open_current() is None
    assert folder.current() is None
    folder.touch()
    folder.sweep()
    folder.condemn(folder.fresh_directory())


def test_a_reader_keeps_its_database_when_the_pointer_moves(folder: LocalCopyFolder) -> None:
    folder.serve(build(folder, 1))
    reader = folder.open_current()
    assert reader is not None
    for number in range(2, 6):
        folder.serve(build(folder, number))
        fresh = folder.open_current()
        assert fresh is not None
        with fresh:
            assert fresh.get_many([b"number"]) == [b"%d" % number]
    assert reader.get_many([b"number"]) == [b"1"]
    assert list(reader.scan()) == [([b"number"], [b"1"])]
    reader.close()


def test_serving_removes_older_databases_and_half_written_pointers_and_leaves_private_copies(
    folder: LocalCopyFolder,
) -> None:
    folder.serve(build(folder, 1))
    leftover = build(folder, 2)
    pointer = folder.folder / "current.0.tmp"
    pointer.write_text("db-half")
    private = folder.fresh_private_directory()
    private.mkdir()
    served = build(folder, 3)
    folder.serve(served)
    assert not leftover.exists()
    assert not pointer.exists()
    assert private.exists()
    assert folder.current() == served
    assert [path.name for path in folder.folder.glob("db-*")] == [served.name]


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"db/../..", b"../outside", b"/etc", b"elsewhere", b"\xff\xfe", b"db-gone"]
)
def test_an_invalid_pointer_is_damage(folder: LocalCopyFolder, text: bytes) -> None:
    (folder.folder / "current").write_bytes(text)
    with pytest.raises(LocalStateDamaged):
        folder.open_current()


def test_a_condemned_directory_is_no_longer_served(folder: LocalCopyFolder) -> None:
    served = build(folder, 1)
    folder.serve(served)
    folder.condemn(build(folder, 2))
    assert folder.current() == served
    folder.condemn(served)
    assert folder.open_current() is None


def test_cached_changelogs_of_all_attempts_are_removed_up_to_a_version(folder: LocalCopyFolder) -> None:
    names = [f"1_{ID}", f"2_{ID}", f"2_{ID[:-1]}0", f"10_{ID}"]
    for name in names:
        (folder.folder / "changelogs" / f"{name}.changelog").write_bytes(b"x")
    foreign = folder.folder / "changelogs" / "notes"
    foreign.write_text("x")
    folder.forget_changelogs(2)
    assert folder.cached_changelog(VersionId(10, ID)).exists()
    assert foreign.exists()
    assert len(list((folder.folder / "changelogs").iterdir())) == 2


def test_old_leftovers_of_dead_processes_are_swept(folder: LocalCopyFolder) -> None:
    served = build(folder, 1)
    folder.serve(served)
    now = (folder.folder / "current").stat().st_mtime
    old, young = [], []
    for number in range(2):
        private = folder.fresh_private_directory()
        private.mkdir()
        (private / "000001.sst").write_bytes(b"x")
        spilled = folder.unfinished_file()
        spilled.mkdir()
        file = folder.unfinished_file()
        file.write_bytes(b"x")
        (young if number else old).extend([private, spilled, file])
    for path in old:
        os.utime(path, (now - LEFTOVER_SECONDS - 10,) * 2)
    folder.sweep()
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in (*young, served))
