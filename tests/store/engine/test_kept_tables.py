"""Kept tables on a disk that several processes share: the bound, the age, and processes that die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.storage import Entry
from statekeeper.statestore.store.engine import kept_tables
from statekeeper.statestore.store.engine.kept_tables import UNUSED_SECONDS, KeptStore, KeptTables, sweep
from tests.support.clocks import SleeplessClock
from tests.support.mounts import fill, small_disk

URL = "s3://bucket/root"
MIB = 1024**2


def table(number: int, size_bytes: int = 1_000) -> Entry:
    return Entry(f"state/0/0/SSTs/{number:06}-of-a-test.sst", size_bytes, 1_700_000_000.0, f"etag {number}")


def body_of(one: Entry) -> bytes:
    return (one.path.encode() * one.size_bytes)[: one.size_bytes]


def file_of(folder: Path, one: Entry) -> Path:
    """A table of a snapshot on the same disk."""
    folder.mkdir(exist_ok=True)
    path = folder / one.path.rpartition("/")[2]
    path.write_bytes(body_of(one))
    return path


def keep(scratch: Path, one: Entry, *, store: str, most: int = 64 * MIB, clock: SleeplessClock | None = None) -> None:
    """Keep a table that the snapshot itself has deleted from the disk since."""
    kept = store_of(scratch, store, most=most, clock=clock)
    path = file_of(scratch / "work", one)
    kept.keep([(one, path)])
    path.unlink()


def store_of(scratch: Path, store: str, *, most: int = 64 * MIB, clock: SleeplessClock | None = None) -> KeptStore:
    found = KeptTables(scratch, most, clock or SystemClock()).of(URL, store)
    assert found is not None
    return found


def has(scratch: Path, one: Entry, *, store: str, clock: SleeplessClock | None = None) -> bool:
    target = scratch / "a link"
    try:
        return store_of(scratch, store, clock=clock).link(one, target)
    finally:
        target.unlink(missing_ok=True)


def kept_bytes(scratch: Path) -> int:
    return sum(path.stat().st_size for path in scratch.rglob("kept-tables/*/*"))


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def test_the_least_recently_used_tables_above_the_bound_are_removed(scratch: Path) -> None:
    clock, most = SleeplessClock(), 1_000_000
    for number in range(10):
        clock.sleep(1)
        keep(scratch, table(number, 100_000), store=f"state/0/{number}", most=most, clock=clock)
    clock.sleep(1)
    assert has(scratch, table(0, 100_000), store="state/0/0", clock=clock)
    clock.sleep(1)
    for number in range(10, 13):
        keep(scratch, table(number, 100_000), store=f"state/0/{number}", most=most, clock=clock)
    assert kept_bytes(scratch) <= most + most / 8
    sweep(scratch / f"statekeeper-{os.geteuid()}" / "kept-tables", most, now_seconds=clock.now_seconds())
    assert kept_bytes(scratch) == most
    left = [
        number for number in range(13) if has(scratch, table(number, 100_000), store=f"state/0/{number}", clock=clock)
    ]
    assert left == [0, 4, 5, 6, 7, 8, 9, 10, 11, 12]


def test_a_process_sweeps_by_itself_after_it_has_added_an_eighth_of_the_bound(scratch: Path) -> None:
    clock, most = SleeplessClock(), 1_000_000
    for number in range(40):
        clock.sleep(1)
        keep(scratch, table(number, 100_000), store=f"state/0/{number}", most=most, clock=clock)
        assert kept_bytes(scratch) <= most + most / 8


def test_a_table_that_was_not_used_for_a_week_is_removed_at_the_next_use_of_the_folder(scratch: Path) -> None:
    clock = SleeplessClock()
    keep(scratch, table(1), store="state/0/1", clock=clock)
    clock.sleep(UNUSED_SECONDS + 1)
    store_of(scratch, "state/0/2", clock=clock)
    assert kept_bytes(scratch) == 0
    assert list(scratch.rglob("kept-tables/*")) == []


def test_kept_tables_take_at_most_half_of_the_free_space(scratch: Path) -> None:
    with small_disk(scratch / "disk", 16 * MIB) as disk:
        for number in range(4):
            keep(disk, table(number, 2 * MIB), store=f"state/0/{number}", most=1024 * MIB)
        folder = disk / f"statekeeper-{os.geteuid()}" / "kept-tables"
        fill(disk, left_bytes=4 * MIB)
        sweep(folder, 1024 * MIB, now_seconds=time.time())
        assert 2 * MIB <= kept_bytes(disk) <= 6 * MIB


def test_a_table_above_the_bound_is_not_kept(scratch: Path) -> None:
    keep(scratch, table(1, 1_000), store="state/0/1", most=999)
    assert kept_bytes(scratch) == 0


def test_a_table_that_the_listing_does_not_identify_is_not_kept(scratch: Path) -> None:
    one = Entry(table(1).path, 1_000, None)
    keep(scratch, one, store="state/0/1")
    assert kept_bytes(scratch) == 0
    assert not has(scratch, one, store="state/0/1")


def test_a_sweep_deletes_no_other_file(scratch: Path) -> None:
    keep(scratch, table(1), store="state/0/1")
    [kept] = scratch.rglob("kept-tables/*/*")
    others = [kept.with_name("note.txt"), kept.parent.with_name("a folder")]
    for other in others:
        other.touch()
    sweep(kept.parent.parent, 0, now_seconds=time.time())
    assert not kept.exists()
    assert all(other.exists() for other in others)


@pytest.mark.parametrize(
    "other",
    [
        Entry(table(1).path, 1_000, 1_700_000_000.0, "another etag"),
        Entry(table(1).path, 999, 1_700_000_000.0, table(1).etag),
        Entry(table(2).path, 1_000, 1_700_000_000.0, table(1).etag),
    ],
    ids=["etag", "size", "path"],
)
def test_a_table_is_used_only_for_the_listed_file_that_it_was_kept_for(scratch: Path, other: Entry) -> None:
    keep(scratch, table(1), store="state/0/1")
    assert has(scratch, table(1), store="state/0/1")
    assert not has(scratch, other, store="state/0/1")


def test_a_store_does_not_use_the_tables_of_a_store_with_the_same_names_in_another_root(scratch: Path) -> None:
    keep(scratch, table(1), store="state/0/1")
    [kept] = scratch.rglob("kept-tables/*/*")
    another = KeptTables(scratch, MIB, SystemClock()).of("s3://bucket/another", "state/0/1")
    assert another is not None
    target = scratch / "a link"
    assert not another.link(table(1), target)
    another.keep([])
    moved = another._folder / kept.name
    moved.parent.mkdir(exist_ok=True)
    kept.rename(moved)
    assert not another.link(table(1), target)


def _files(scratch: Path) -> list[str]:
    return sorted(path.suffix for path in scratch.rglob("kept-tables/*/*"))


def test_the_newest_reads_replace_the_earlier_ones(scratch: Path) -> None:
    for data in (b"first", b"second", b"second", b"third"):
        store_of(scratch, "").keep_reads(data)
        assert store_of(scratch, "").reads() == data
        assert _files(scratch) == [".reads"]
    assert store_of(scratch, "state/0/0").reads() is None


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"X" + data[1:], lambda data: b""])
def test_damaged_reads_are_removed(scratch: Path, damage: Callable[[bytes], bytes]) -> None:
    store_of(scratch, "").keep_reads(b"some reads")
    (kept,) = scratch.rglob("*.reads")
    kept.write_bytes(damage(kept.read_bytes()))
    assert store_of(scratch, "").reads() is None
    assert _files(scratch) == []


def test_if_the_disk_is_full_the_earlier_reads_stay(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 4 * MIB) as disk:
        store_of(disk, "").keep_reads(b"some reads")
        fill(disk, left_bytes=100_000)
        store_of(disk, "").keep_reads(os.urandom(MIB))
        assert store_of(disk, "").reads() == b"some reads"
        assert _files(disk) == [".reads"]


def test_half_written_reads_of_a_killed_process_are_not_used_and_go_with_the_next_ones(scratch: Path) -> None:
    store_of(scratch, "").keep_reads(b"some reads")
    (kept,) = scratch.rglob("*.reads")
    kept.with_suffix(".unfinished").write_bytes(b"some")
    assert store_of(scratch, "").reads() == b"some reads"
    assert _files(scratch) == [".reads", ".unfinished"]
    store_of(scratch, "").keep_reads(b"more reads")
    assert _files(scratch) == [".reads"]


def _hammer(scratch: Path, seed: int) -> None:
    """Keep, use and sweep tables of the same stores for ever."""
    work = scratch / f"work of {seed}"
    number = seed
    while True:
        number += 1
        one, store = table(number % 7, 50_000), f"state/0/{number % 3}"
        kept = store_of(scratch, store, most=MIB)
        if not kept.link(one, work / "linked"):
            kept.keep([(one, file_of(work, one))])
        elif (work / "linked").read_bytes() != body_of(one):
            os._exit(3)
        (work / "linked").unlink(missing_ok=True)
        if number % 5 == 0:
            sweep(scratch / f"statekeeper-{os.geteuid()}" / "kept-tables", 100_000, now_seconds=time.time())


def test_processes_that_share_a_folder_and_are_killed_leave_only_whole_tables(scratch: Path) -> None:
    context = multiprocessing.get_context("fork")
    for number in range(6):
        workers = [context.Process(target=_hammer, args=(scratch, seed)) for seed in (1, 4)]
        for worker in workers:
            (scratch / f"work of {1 + 3 * workers.index(worker)}").mkdir(exist_ok=True)
            worker.start()
        time.sleep(0.05 + 0.02 * number)
        for worker in workers:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()
            assert worker.exitcode == -signal.SIGKILL
        for path in scratch.rglob("kept-tables/*/*"):
            key, _, _ = path.name.partition("-")
            assert path.name == f"{key}-{kept_tables._digest(path, key)}.sst"
