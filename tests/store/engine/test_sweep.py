"""Sweeps of a host's disk: removed files, and files that are kept because a task may use them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.checkpoint.lineage import LocalCopy
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.store.engine.local_copy import LEFTOVER_SECONDS, LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits
from statekeeper.statestore.store.engine.sweep import IN_USE_SECONDS, Reason, SweepLimits, sweep, sweep_when_due

NOW = 1_700_000_000.0
DAY = 24 * 60 * 60
LIMITS = SweepLimits(quota_bytes=2**40, unused_seconds=7 * DAY)
ENGINE = EngineLimits(block_cache_bytes=1024 * 1024)


class Clock:
    """A clock that does not advance."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def now_seconds(self) -> float:
        return self.now

    def monotonic_seconds(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def every(self, seconds: float, action: Callable[[], None]) -> AbstractContextManager[None]:
        raise AssertionError("a sweep has no timer")


def copy_at(host: Path, name: str, *, age: float, size_bytes: int = 10_000) -> Path:
    """Create a copy with a database of about that size and that time since its last use."""
    folder = LocalCopyFolder(host / name, ENGINE, RandomIds())
    path = folder.fresh_directory()
    with Database.create(path, ENGINE) as database:
        version = VersionId(1, RandomIds().fresh())
        database.apply([[(b"key", os.urandom(size_bytes))]], LocalCopy(version, ()))
    folder.serve(path)
    folder.cached_changelog(version).write_bytes(b"as uploaded")
    aged(folder.folder, age)
    return folder.folder


def aged(place: Path, age: float) -> Path:
    for inside in (*place.rglob("*"), place):
        os.utime(inside, (NOW - age, NOW - age))
    return place


def reasons(report) -> dict[str, Reason]:
    return {f"{item.path.parent.name}/{item.path.name}": item.reason for item in report.removed}


def test_a_copy_unused_for_a_week_is_removed_with_its_root_folder(tmp_path):
    copy_at(tmp_path, "dead root/0-0", age=8 * DAY)
    copy_at(tmp_path, "dead root/0-1", age=9 * DAY)
    copy_at(tmp_path, "live root/0-0", age=8 * DAY)
    young = copy_at(tmp_path, "live root/0-1", age=6 * DAY)
    report = sweep(tmp_path, LIMITS, clock=Clock())
    assert reasons(report) == dict.fromkeys(["dead root/0-0", "dead root/0-1", "live root/0-0"], Reason.UNUSED)
    assert all(item.size_bytes > 10_000 for item in report.removed)
    assert not (tmp_path / "dead root").exists()
    assert sorted(path.name for path in (tmp_path / "live root").iterdir()) == ["0-1"]
    assert LocalCopyFolder(young, ENGINE, RandomIds()).open_current() is not None
    assert report.kept_bytes > 10_000


def test_a_locked_copy_is_kept_at_any_age_and_size(tmp_path):
    held = LocalCopyFolder(copy_at(tmp_path, "root/0-0", age=99 * DAY), ENGINE, RandomIds())
    aged(held.folder, 99 * DAY)
    with held.locked(timeout_seconds=0) as mine:
        assert mine
        report = sweep(tmp_path, SweepLimits(quota_bytes=0, unused_seconds=0), clock=Clock())
    assert (report.removed, report.locked) == ((), (held.folder,))
    assert report.kept_bytes > 10_000
    assert held.current().is_dir()


def test_a_task_that_returns_to_an_old_copy_counts_as_use_before_its_load(tmp_path):
    folder = copy_at(tmp_path, "root/0-0", age=99 * DAY)
    LocalCopyFolder(folder, ENGINE, RandomIds())
    assert sweep(tmp_path, LIMITS, clock=Clock()).removed == ()


def batch_logs_at(host: Path, name: str, ages: list[float]) -> Path:
    """Create a cache of batch logs with a lock and an object of each age; return its folder."""
    folder = host / name / "batch-logs"
    folder.mkdir(parents=True)
    for number, age in enumerate(ages):
        (folder / f"{number}-tag.log").write_bytes(b"x" * 1000)
        aged(folder / f"{number}-tag.log", age)
    (folder / "lock-7").write_bytes(b"")
    aged(folder / "lock-7", max(ages))
    os.utime(folder, (NOW - max(ages), NOW - max(ages)))
    return folder


def test_batch_logs_not_used_lately_are_removed_and_their_locks_kept(tmp_path):
    folder = batch_logs_at(tmp_path, "root", [IN_USE_SECONDS + 60, IN_USE_SECONDS - 60, 0])
    report = sweep(tmp_path, LIMITS, clock=Clock())
    assert reasons(report) == {"batch-logs/0-tag.log": Reason.UNUSED}
    assert sorted(path.name for path in folder.iterdir()) == ["1-tag.log", "2-tag.log", "lock-7"]
    assert report.kept_bytes == 2000


def test_an_unused_cache_of_batch_logs_is_removed_with_its_root_folder(tmp_path):
    batch_logs_at(tmp_path, "dead root", [IN_USE_SECONDS + 60])
    batch_logs_at(tmp_path, "live root", [IN_USE_SECONDS + 60])
    copy_at(tmp_path, "live root/0-0", age=0)
    report = sweep(tmp_path, LIMITS, clock=Clock())
    assert reasons(report) == dict.fromkeys(["dead root/batch-logs", "live root/batch-logs"], Reason.UNUSED)
    assert not (tmp_path / "dead root").exists()
    assert [path.name for path in (tmp_path / "live root").iterdir()] == ["0-0"]


def test_leftovers_of_dead_processes_are_removed_and_those_of_running_ones_kept(tmp_path):
    folder = copy_at(tmp_path, "root/0-0", age=2 * DAY)

    def leave(name: str, age: float) -> None:
        place = folder / name
        if name.endswith("scratch.tmp") or name.startswith("private"):
            place.mkdir()
            (place / "000001.sst").write_bytes(b"x" * 500)
        else:
            place.write_bytes(b"x" * 500)
        aged(place, age)

    dead = ["private-dead", "current.dead.tmp", "changelogs/dead.tmp", "changelogs/dead-scratch.tmp"]
    alive = ["private-alive", "current.alive.tmp", "changelogs/alive.tmp", "changelogs/alive-scratch.tmp"]
    for name in dead:
        leave(name, LEFTOVER_SECONDS + 60)
    for name in alive:
        leave(name, LEFTOVER_SECONDS - 60)
    # The folder of a database that is still written to is old, the newest file in it is not.
    leave("changelogs/growing-scratch.tmp", LEFTOVER_SECONDS + 60)
    os.utime(folder / "changelogs/growing-scratch.tmp/000001.sst", (NOW, NOW))
    aged_changelogs = NOW - 2 * DAY
    os.utime(folder / "changelogs", (aged_changelogs, aged_changelogs))
    report = sweep(tmp_path, LIMITS, clock=Clock())
    assert {
        str(item.path.relative_to(folder)): (item.size_bytes, item.reason) for item in report.removed
    } == dict.fromkeys(dead, (500, Reason.LEFTOVER))
    assert all((folder / name).exists() for name in alive)
    assert (folder / "changelogs/growing-scratch.tmp").exists()
    assert LocalCopyFolder(folder, ENGINE, RandomIds()).current().is_dir()


def test_a_sweep_does_not_count_as_use_of_a_copy(tmp_path):
    folder = copy_at(tmp_path, "root/0-0", age=6 * DAY)
    (folder / "changelogs/dead.tmp").write_bytes(b"")
    aged(folder, 6 * DAY)
    assert [item.reason for item in sweep(tmp_path, LIMITS, clock=Clock()).removed] == [Reason.LEFTOVER]
    report = sweep(tmp_path, LIMITS, clock=Clock(NOW + 2 * DAY))
    assert reasons(report) == {"root/0-0": Reason.UNUSED}


def test_the_least_recently_used_copies_are_removed_above_the_quota(tmp_path):
    for place, hours in enumerate([5, 9, 1, 7]):
        copy_at(tmp_path, f"root-{place}/0-0", age=hours * 3600, size_bytes=100_000)
    all_of_it = sweep(tmp_path, LIMITS, clock=Clock())
    assert all_of_it.removed == ()
    quota_bytes = all_of_it.kept_bytes * 6 // 10
    report = sweep(tmp_path, SweepLimits(quota_bytes, 7 * DAY), clock=Clock())
    assert reasons(report) == dict.fromkeys(["root-1/0-0", "root-3/0-0"], Reason.QUOTA)
    assert report.kept_bytes <= quota_bytes
    assert report.kept_bytes == all_of_it.kept_bytes - sum(item.size_bytes for item in report.removed)
    emptied = LocalCopyFolder(tmp_path / "root-1/0-0", ENGINE, RandomIds())
    assert emptied.open_current() is None, "the next load builds it anew"
    assert not list(emptied.folder.glob("db-*"))
    assert LocalCopyFolder(tmp_path / "root-2/0-0", ENGINE, RandomIds()).open_current() is not None


def test_copies_in_use_and_unfinished_files_are_kept_above_the_quota(tmp_path):
    copy_at(tmp_path, "root/0-0", age=IN_USE_SECONDS - 1)
    idle = copy_at(tmp_path, "root/0-1", age=IN_USE_SECONDS + 1)
    unfinished = idle / "changelogs" / "of-a-slow-task.tmp"
    unfinished.write_bytes(b"half")
    aged(idle, IN_USE_SECONDS + 1)
    report = sweep(tmp_path, SweepLimits(quota_bytes=0, unused_seconds=7 * DAY), clock=Clock())
    assert reasons(report) == {"root/0-1": Reason.QUOTA}
    assert unfinished.exists()
    assert report.kept_bytes > 10_000, "the report says that the quota is not kept"


def test_a_task_continues_to_read_a_removed_copy(tmp_path):
    folder = copy_at(tmp_path, "root/0-0", age=3600, size_bytes=300_000)
    reading = LocalCopyFolder(folder, ENGINE, RandomIds()).open_current()
    aged(folder, 3600)
    assert sweep(tmp_path, SweepLimits(quota_bytes=0, unused_seconds=7 * DAY), clock=Clock()).removed
    [value] = reading.get_many([b"key"])
    assert len(value) == 300_000
    reading.close()


@pytest.mark.parametrize("name", ["notes.txt", "root/letters", "root/0-0x", "root/0-1", "0-0"])
def test_files_that_are_not_copies_are_kept(tmp_path, name):
    host = tmp_path / "host"
    host.mkdir()
    elsewhere = copy_at(tmp_path, "elsewhere/0-0", age=99 * DAY)
    (host / name).parent.mkdir(exist_ok=True)
    if name == "root/0-1":
        (host / name).symlink_to(elsewhere)
    else:
        (host / name).mkdir() if name != "notes.txt" else (host / name).write_text("mine")
    os.utime(host / name, (0, 0))
    report = sweep(host, SweepLimits(quota_bytes=0, unused_seconds=0), clock=Clock())
    assert report.removed == ()
    assert (host / name).exists()
    assert elsewhere.is_dir()


def test_a_clock_that_was_set_back_removes_nothing(tmp_path):
    copy_at(tmp_path, "root/0-0", age=0)
    limits = SweepLimits(quota_bytes=0, unused_seconds=7 * DAY)
    assert sweep(tmp_path, limits, clock=Clock(NOW - 99 * DAY)).removed == ()


def test_a_host_is_swept_at_most_once_per_interval(tmp_path):
    assert sweep_when_due(tmp_path / "no folder yet", LIMITS, clock=Clock(), every_seconds=600) is None
    assert sweep_when_due(tmp_path, LIMITS, clock=Clock(), every_seconds=600) is not None
    assert sweep_when_due(tmp_path, LIMITS, clock=Clock(NOW + 599), every_seconds=600) is None
    assert sweep_when_due(tmp_path, LIMITS, clock=Clock(NOW + 601), every_seconds=600) is not None
    assert sweep_when_due(tmp_path, LIMITS, clock=Clock(NOW - DAY), every_seconds=600) is not None, "a clock set back"
