"""The store of a streaming task, on local disk and on S3: against a dict, between hosts, and over damage."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statestore.clock import RandomIds
from statestore.engine.local_copy import LocalCopyFolder
from statestore.engine.rocks import Database, EngineLimits
from statestore.errors import (
    AlreadyExists,
    LineageCeiling,
    LocalDiskFull,
    LocalStateDamaged,
    StorageError,
    UnknownFormatVersion,
    UnsupportedType,
    VersionNotLoadable,
)
from statestore.format.changelog import Header, lineage_bytes, read_header
from statestore.format.names import EMPTY, VersionId, cached_changelog
from statestore.format.structure import Structure
from statestore.lineage import BaseKind, Lineage
from statestore.storage import Created, Storage, open_storage
from statestore.store import LINEAGE_STOP_BYTES, StoreLimits
from tests.support.changelogs import written
from tests.support.faulty_storage import Fault, FaultyStorage
from tests.support.hosts import STORE, Changes, History, Host, State, changed, column
from tests.support.snapshots import publish_snapshot

GONE = VersionId(1, "00000000-0000-4000-8000-000000000000")


ONLY_V2 = pytest.mark.parametrize("structure", [Structure.V2])


@pytest.fixture
def host(storage: Storage, tmp_path: Path, structure: Structure) -> Host:
    return Host(storage, tmp_path / "host a", structure=structure)


@pytest.fixture
def other(storage: Storage, tmp_path: Path, structure: Structure) -> Host:
    return Host(storage, tmp_path / "host b", structure=structure)


def carried(host: Host, versions: Collection[VersionId]) -> Lineage:
    """The lineage of a store: structure V1 has none."""
    return () if host.structure is Structure.V1 else tuple(versions)


def overwrite(storage: Storage, path: str, data: bytes) -> None:
    storage.delete([path])
    storage.create(path, data)


def flip(storage: Storage, path: str, position: int) -> None:
    data = bytearray(storage.read(path))
    data[position] ^= 0xFF
    overwrite(storage, path, bytes(data))


def names(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list("")]


def current(host: Host) -> Path:
    return host.folder / (host.folder / "current").read_text()


# --- what a task sees ---------------------------------------------------------------------------------------------


def test_what_was_put_or_deleted_is_seen_before_and_after_the_commit(host: Host) -> None:
    first = host.commit(EMPTY, {b"a": b"1", b"b": b"2", b"c": b"3"})
    with host.load(first) as store:
        store.put(column([b"b", b"d"]), column([b"22", b"4"]))
        store.delete(column([b"a", b"none"]))
        assert store.get(column([b"a", b"b", b"c", b"d", b"none", b"b"])).to_pylist() == [
            None,
            b"22",
            b"3",
            b"4",
            None,
            b"22",
        ]
        assert list(store.scan()) == [(b"b", b"22"), (b"c", b"3"), (b"d", b"4")]
        second = store.commit()
    assert host.read(first) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert host.read(second) == {b"b": b"22", b"c": b"3", b"d": b"4"}


def test_a_null_value_deletes_and_the_last_change_of_a_key_wins(host: Host) -> None:
    with host.load(EMPTY) as store:
        store.put(column([b"a", b"b", b"a", b"b"]), column([b"1", None, None, b"2"]))
        assert store.get(column([b"a", b"b"])).to_pylist() == [None, b"2"]
        version = store.commit()
    assert host.read(version) == {b"b": b"2"}


def test_a_scan_of_a_prefix_sees_just_these_keys_in_order(host: Host) -> None:
    version = host.commit(EMPTY, {key: key for key in (b"a", b"b", b"ba", b"b\xff", b"b\xff\xff", b"c", b"")})
    with host.load(version) as store:
        store.put(column([b"b", b"bb", b"c"]), column([None, b"new", b"x"]))
        assert [key for key, _ in store.scan(b"b")] == [b"ba", b"bb", b"b\xff", b"b\xff\xff"]
        assert [key for key, _ in store.scan(b"b\xff")] == [b"b\xff", b"b\xff\xff"]
        assert [key for key, _ in store.scan(b"bz")] == []
        assert [key for key, _ in store.scan()] == [b"", b"a", b"ba", b"bb", b"b\xff", b"b\xff\xff", b"c"]


def test_what_is_put_during_a_scan_does_not_disturb_it(host: Host) -> None:
    version = host.commit(EMPTY, {b"%02d" % n: b"old" for n in range(20)})
    with host.load(version) as store:
        store.put(column([b"05"]), column([b"new"]))
        seen = {}
        for key, value in store.scan():
            seen[key] = value
            store.put(column([key]), column([value + b"!"]))
        assert seen == {b"%02d" % n: b"new" if n == 5 else b"old" for n in range(20)}
        assert dict(store.scan())[b"05"] == b"new!"


def test_an_abort_leaves_nothing_behind(host: Host, storage: Storage) -> None:
    version = host.commit(EMPTY, {b"a": b"1"})
    before = names(storage)
    with host.load(version) as store:
        store.put(column([b"a"]), column([b"2"]))
    assert names(storage) == before
    assert host.read(version) == {b"a": b"1"}
    assert not list((host.folder / "changelogs").glob("*.tmp"))
    store.abort()


def test_versions_without_changes_are_versions(host: Host, other: Host) -> None:
    history = History()
    for _ in range(3):
        history.commit(host, {})
    history.commit(host, {b"a": b"1"})
    history.commit(host, {})
    assert other.read(history.head) == {b"a": b"1"}
    with host.load(history.head) as store:
        head = store.commit()
    assert host.read(head) == {b"a": b"1"}


def test_a_store_that_was_committed_takes_no_more_changes(host: Host) -> None:
    store = host.load(EMPTY)
    store.put(column([b"a"]), column([b"1"]))
    version = store.commit()
    with pytest.raises(ValueError, match="committed or aborted"):
        store.put(column([b"a"]), column([b"2"]))
    with pytest.raises(ValueError, match="committed or aborted"):
        store.commit()
    assert host.read(version) == {b"a": b"1"}


@pytest.mark.parametrize(
    "key", [b"\xff\xff\xff\xff", b"\xff\xff\xff\xff statekeeper: what this copy holds", b"\xff" * 9]
)
def test_a_key_that_the_local_copy_keeps_for_itself_is_refused_before_it_is_committed(host: Host, key: bytes) -> None:
    with host.load(EMPTY) as store:
        with pytest.raises(UnsupportedType, match="ff ff ff ff"):
            store.put(column([b"a", key]), column([b"1", b"2"]))
        assert store.get(column([b"a"])).to_pylist() == [None]
        version = store.commit()
    assert host.read(version) == {}


def test_keys_and_values_of_other_lengths_are_a_mistake_of_the_caller(host: Host) -> None:
    with host.load(EMPTY) as store, pytest.raises(ValueError, match=r"length|arguments"):
        store.put(column([b"a", b"b"]), column([b"1"]))


# --- against a model ----------------------------------------------------------------------------------------------

keys = st.binary(max_size=3).filter(lambda key: not key.startswith(b"\xff\xff\xff\xff"))
batches = st.dictionaries(keys, st.none() | st.binary(max_size=5), max_size=8)


@given(
    st.lists(st.tuples(batches, st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=8),
    st.binary(max_size=2),
)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_two_hosts_that_take_turns_hold_what_a_dict_holds(
    storage: Storage,
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[Changes, bool, bool, bool]],
    prefix: bytes,
) -> None:
    folder = tmp_path_factory.mktemp("hosts")
    hosts = [Host(storage, folder / "a"), Host(storage, folder / "b")]
    history = History()
    for changes, which, fails, keeps_house in steps:
        if keeps_house:
            hosts[which].advance_local_copy(history.head)
        with hosts[which].load(history.head) as store:
            assert dict(store.scan()) == history.states[-1]
            store.put(column(list(changes)), column(list(changes.values())))
            after = changed(history.states[-1], changes)
            wanted = sorted({*after, *changes, b"none"})
            assert store.get(column(wanted)).to_pylist() == [after.get(key) for key in wanted]
            assert list(store.scan(prefix)) == sorted(item for item in after.items() if item[0].startswith(prefix))
            if fails:
                continue
            history.versions.append(store.commit())
            history.states.append(after)
    for host in (*hosts, Host(storage, folder / "c")):
        for version, state in zip(history.versions, history.states, strict=True):
            assert host.read(version) == state


def test_more_changes_than_memory_may_hold_are_seen_and_committed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statestore.engine.pending_changes.SPILL_KEYS", 10)
    base: State = {b"%04d" % n: b"old" for n in range(100)}
    version = host.commit(EMPTY, base)
    changes: dict[bytes, bytes | None] = {b"%04d" % n: None if n % 3 else b"new" for n in range(50, 150)}
    with host.load(version) as store:
        store._pending._spill_keys = 10
        for key, value in changes.items():
            store.put(column([key]), column([value]))
        after = changed(base, changes)
        assert store._pending._spilled is not None
        assert dict(store.scan()) == after
        assert store.get(column(sorted(changes))).to_pylist() == [after.get(key) for key in sorted(changes)]
        version = store.commit()
    assert host.read(version) == after
    assert not list((host.folder / "changelogs").glob("*.tmp"))


# --- what a load costs --------------------------------------------------------------------------------------------


def test_a_warm_load_makes_no_request(host: Host) -> None:
    history = History()
    history.grow(host, 3)
    assert host.advance_local_copy(history.versions[1])
    with host.load(history.head) as store:
        metrics = store.load_report
        assert (metrics.base, metrics.replayed_changelogs, metrics.replayed_keys) == (BaseKind.LOCAL, 2, 5)
        assert (metrics.requests, metrics.fetched_bytes, metrics.fetched_files) == (0, 0, 0)
    assert host.advance_local_copy(history.head)
    with host.load(history.head) as store:
        metrics = store.load_report
        assert (metrics.base, metrics.replayed_changelogs, metrics.requests) == (BaseKind.LOCAL, 0, 0)
        assert dict(store.scan()) == history.states[-1]


def test_a_copy_on_another_branch_or_further_on_is_not_moved(host: Host) -> None:
    history = History()
    history.grow(host, 3)
    twin = host.commit(history.versions[2], {b"twin": b"1"})
    assert host.advance_local_copy(history.head)
    assert not host.advance_local_copy(twin)
    assert not host.advance_local_copy(history.versions[1])
    assert host.read(history.head) == history.states[-1]
    if host.structure is Structure.V2:
        assert host.read(twin) == {**history.states[2], b"twin": b"1"}


def test_a_cold_load_fetches_each_changelog_once_after_one_listing(host: Host, other: Host, storage: Storage) -> None:
    history = History()
    history.grow(host, 5)
    sizes = [entry.size_bytes for entry in storage.list(STORE.folder)]
    with other.load(history.head) as store:
        metrics = store.load_report
    assert metrics.base is BaseKind.NOTHING
    assert (metrics.replayed_changelogs, metrics.fetched_files, metrics.requests) == (5, 5, 6)
    assert metrics.fetched_bytes == sum(sizes)
    assert metrics.replayed_keys == 9
    assert not metrics.used_private_copy
    assert not metrics.replaced_damaged_copy


def test_a_host_catches_up_with_what_another_wrote_by_fetching_just_that(host: Host, other: Host) -> None:
    history = History()
    history.grow(host, 4)
    other.read(history.head)
    history.grow(host, 2)
    with other.load(history.head) as store:
        metrics = store.load_report
        assert dict(store.scan()) == history.states[-1]
    assert (metrics.base, metrics.replayed_changelogs, metrics.fetched_files) == (BaseKind.LOCAL, 2, 2)
    assert metrics.requests == 2


def test_a_commit_is_one_request_of_the_bytes_it_says(host: Host, storage: Storage) -> None:
    version = host.commit(EMPTY, {b"a": b"1"})
    with host.load(version) as store:
        store.put(column([b"aa", b"b"]), column([b"11", None]))
        before = storage.requests.snapshot()
        second = store.commit()
        spent = storage.requests.since(before)
    metrics = store.commit_metrics
    is_v1 = host.structure is Structure.V1
    # In structure V1 it has looked whether its batch is committed already.
    assert (spent.create, spent.replace, spent.stat, spent.total) == ((0, 1, 1, 2) if is_v1 else (1, 0, 0, 1))
    assert (metrics.requests, metrics.changed_keys, metrics.changed_bytes) == (spent.total, 2, 8 + 2 + 2 + 8 + 1)
    entry = storage.stat(STORE.changelog(second))
    assert entry is not None
    assert metrics.uploaded_bytes == entry.size_bytes == spent.bytes_written
    assert (metrics.lineage_versions, metrics.tail_changelogs) == (0 if is_v1 else 1, 2)


# --- branches -----------------------------------------------------------------------------------------------------


@ONLY_V2
def test_twins_that_commit_the_same_version_do_not_disturb_each_other(host: Host, other: Host) -> None:
    base = host.commit(EMPTY, {b"a": b"1"})
    mine, theirs = host.load(base), other.load(base)
    mine.put(column([b"a"]), column([b"mine"]))
    theirs.put(column([b"a"]), column([b"theirs"]))
    won, lost = theirs.commit(), mine.commit()
    assert won.version == lost.version
    assert host.read(won) == other.read(won) == {b"a": b"theirs"}
    last = host.commit(won, {b"b": b"2"})
    assert other.read(last) == {b"a": b"theirs", b"b": b"2"}


def test_a_copy_on_another_branch_is_built_anew_and_not_caught_up(host: Host) -> None:
    base = host.commit(EMPTY, {b"a": b"1"})
    dead = host.commit(base, {b"dead": b"x"})
    assert host.read(dead) == {b"a": b"1", b"dead": b"x"}
    assert host.advance_local_copy(dead)
    on_dead_branch = current(host)
    assert host.holds() == dead
    head = host.commit(base, {b"b": b"2"})
    head = host.commit(head, {b"c": b"3"})
    with host.load(head) as store:
        assert dict(store.scan()) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert current(host) != on_dead_branch


def test_a_zombie_that_loads_an_older_version_harms_neither_itself_nor_its_successor(host: Host) -> None:
    history = History()
    history.grow(host, 4)
    assert host.advance_local_copy(history.head)
    successor = host.load(history.head)
    zombie = host.load(history.versions[2])
    assert host.holds() == history.versions[2], "the zombie was to build its version in the copy's place"
    assert dict(zombie.scan()) == history.states[2]
    assert dict(successor.scan()) == history.states[4]
    zombie.put(column([b"counter"]), column([b"zombie"]))
    late = zombie.commit()
    successor.put(column([b"counter"]), column([b"5"]))
    head = successor.commit()
    assert host.read(head) == {**history.states[4], b"counter": b"5"}
    if host.structure is Structure.V2:
        assert host.read(late)[b"counter"] == b"zombie"
    assert host.read(history.versions[3]) == history.states[3]


def test_an_open_version_is_read_to_its_end_while_others_replace_the_copy(host: Host) -> None:
    history = History()
    history.grow(host, 6)
    assert host.advance_local_copy(history.head)
    reader = host.load(history.versions[6])
    rows = reader.scan()
    first = next(rows)
    served = {current(host)}
    for number in (2, 5, 1, 4):
        assert host.read(history.versions[number]) == history.states[number]
        assert host.advance_local_copy(history.versions[number])
        served.add(current(host))
    assert len(served) >= 3, "the copy was to be replaced, and moved forward in between"
    assert dict([first, *rows]) == history.states[6]
    assert reader.get(column([b"counter"])).to_pylist() == [b"6"]
    reader.abort()


# --- the local copy -----------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def spoil(path: Path) -> None:
    path.write_bytes(b"garbage" * 10)


def alter(path: Path) -> None:
    """Whatever the marker says, this is not what the version holds."""
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
def test_a_damaged_local_copy_is_rebuilt_and_said_so(host: Host, damage: str, back: int) -> None:
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


def test_damage_that_only_a_read_shows_fails_one_task_and_not_the_next(host: Host) -> None:
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


def test_a_folder_that_somebody_emptied_is_built_anew(host: Host) -> None:
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


def test_a_lock_that_is_held_too_long_is_worked_around_by_a_private_copy(host: Host) -> None:
    history = History()
    history.grow(host, 4)
    assert host.advance_local_copy(history.head)
    served = current(host)
    with lock_held_by_another_process(host.folder):
        # An older version than the copy holds: what is a little behind is served without the lock.
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


def test_a_batch_goes_on_while_the_copy_is_being_changed(host: Host) -> None:
    history = History()
    history.grow(host, 2)
    with lock_held_by_another_process(host.folder):
        assert not host.advance_local_copy(history.head)
        history.grow(host, 3)
        with host.load(history.head, limits=StoreLimits(lock_timeout_seconds=0.0)) as store:
            assert not store.load_report.used_private_copy
            assert dict(store.scan()) == history.states[-1]


# --- changelogs missing and damaged -------------------------------------------------------------------------------


def test_a_cached_changelog_that_is_damaged_is_fetched_again(host: Host) -> None:
    history = History()
    history.grow(host, 3)
    assert host.advance_local_copy(history.versions[1])
    for version, damaged in zip(history.versions[2:], (b"garbage", b""), strict=True):
        (host.folder / "changelogs" / cached_changelog(version)).write_bytes(damaged)
    with host.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.fetched_files == 2


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped"])
def test_a_missing_or_damaged_changelog_names_file_store_version_and_what_still_loads(
    host: Host, other: Host, storage: Storage, damage: str, cold: bool
) -> None:
    history = History()
    history.grow(host, 6)
    if not cold:
        other.read(history.versions[1])
    for number in (5, 3):
        path = STORE.changelog(history.versions[number])
        if damage == "missing":
            storage.delete([path])
        elif damage == "flipped":
            flip(storage, path, 60)
        else:
            overwrite(storage, path, storage.read(path)[: 0 if damage == "empty" else -30])
    with pytest.raises(VersionNotLoadable) as raised:
        other.load(history.head)
    assert raised.value.path == STORE.changelog(history.versions[3])
    assert f"version 6 (batch 5) of {STORE} cannot be loaded" in str(raised.value)
    assert "newest version that can be loaded is version 2 (batch 1)" in str(raised.value)
    assert other.read(history.versions[2]) == history.states[2]


@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_a_head_that_is_missing_or_damaged_is_named_and_the_version_before_still_loads(
    host: Host, other: Host, storage: Storage, damage: str
) -> None:
    history = History()
    history.grow(host, 3)
    path = STORE.changelog(history.head)
    storage.delete([path])
    if damage == "garbage":
        storage.create(path, b"garbage")
    with pytest.raises(VersionNotLoadable) as raised:
        other.load(history.head)
    assert raised.value.path == path
    assert "version 3 (batch 2)" in str(raised.value)
    assert "version 2 (batch 1)" in str(raised.value)
    assert other.read(history.versions[2]) == history.states[2]


def test_a_first_changelog_that_is_gone_leaves_the_empty_version(host: Host, other: Host, storage: Storage) -> None:
    history = History()
    history.grow(host, 2)
    storage.delete([STORE.changelog(history.versions[1])])
    with pytest.raises(VersionNotLoadable, match="can be loaded is version 0"):
        other.load(history.head)


@ONLY_V2
def test_a_version_that_never_was_is_named(host: Host) -> None:
    with pytest.raises(VersionNotLoadable, match=GONE.id):
        host.load(GONE)


def test_a_file_that_is_restored_is_believed_again(host: Host, other: Host, storage: Storage) -> None:
    history = History()
    history.grow(host, 3)
    path = STORE.changelog(history.versions[2])
    good = storage.read(path)
    flip(storage, path, 100)
    with pytest.raises(VersionNotLoadable):
        other.load(history.head)
    overwrite(storage, path, good)
    assert other.read(history.head) == history.states[-1]


@ONLY_V2
def test_a_changelog_without_lineage_under_an_id_is_refused_by_name(host: Host, storage: Storage) -> None:

    storage.create(STORE.changelog(GONE), written([(b"a", b"b")], Header(None)))
    with pytest.raises(UnknownFormatVersion, match="header has no lineage"):
        host.load(GONE)


# --- snapshots ----------------------------------------------------------------------------------------------------


def snapshot(history: History, number: int, storage: Storage, scratch: Path) -> dict[str, str]:
    return publish_snapshot(storage, STORE, history.versions[number], history.states[number], scratch)


def test_a_cold_load_starts_from_the_newest_snapshot_of_its_lineage(
    host: Host, other: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 8)
    for number in (2, 5):
        snapshot(history, number, storage, tmp_path)
    with other.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        metrics = store.load_report
        assert store.lineage == carried(host, history.versions[5:])
    assert (metrics.base, metrics.replayed_changelogs) == (BaseKind.SNAPSHOT, 3)
    assert metrics.skipped_snapshots == ()


def test_a_snapshot_of_the_version_itself_needs_no_changelog(
    host: Host, other: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 6)
    snapshot(history, 6, storage, tmp_path)
    storage.delete([STORE.changelog(version) for version in history.versions[1:]])
    with other.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.lineage == carried(host, [history.head])
    history.grow(other, 2)
    shutil.rmtree(host.folder)
    assert host.read(history.head) == history.states[-1]


def test_a_warm_host_does_not_fetch_a_snapshot_to_go_one_version_on(
    host: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 4)
    host.read(history.versions[3])
    snapshot(history, 4, storage, tmp_path)
    with host.load(history.head, snapshots={history.head}) as store:
        assert (store.load_report.base, store.load_report.requests) == (BaseKind.LOCAL, 0)
        assert store.lineage == carried(host, [history.head])


def test_a_copy_older_than_what_retention_left_is_replaced_from_a_snapshot(
    host: Host, other: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 2)
    other.read(history.head)
    history.grow(host, 6)
    snapshot(history, 6, storage, tmp_path)
    storage.delete([STORE.changelog(version) for version in history.versions[1:7]])
    assert other.read(history.head) == history.states[-1]


@ONLY_V2
def test_known_snapshots_shorten_the_lineage(host: Host, other: Host, storage: Storage, tmp_path: Path) -> None:
    history = History()
    history.grow(host, 6)
    snapshot(history, 4, storage, tmp_path)
    version = history.commit(host, {b"new": b"1"}, snapshots={history.versions[4]})
    header = read_header(storage.read(STORE.changelog(version)), "x")
    assert header.lineage == tuple(history.versions[4:7])
    assert other.read(history.head) == history.states[-1]


def test_the_trace_goes_further_back_when_the_presumed_snapshot_is_gone(
    host: Host, other: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 3)
    snapshot(history, 2, storage, tmp_path)
    history.grow(host, 2)
    gone = snapshot(history, 5, storage, tmp_path)
    history.commit(host, {b"a": b"1"}, snapshots={history.versions[5]})
    history.commit(host, {b"a": b"2"}, snapshots={history.versions[5]})
    storage.delete([gone["zip"]])
    with other.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.replayed_changelogs == 5
        assert store.lineage == carried(host, history.versions[2:])


SNAPSHOT_DAMAGES = [
    "zip cut",
    "zip flipped",
    "zip empty",
    "table gone",
    "table cut",
    "table longer",
    "table's end spoilt",
]


@pytest.mark.parametrize("damage", SNAPSHOT_DAMAGES)
def test_a_damaged_snapshot_is_reported_and_an_older_one_with_a_longer_replay_used(
    host: Host, other: Host, storage: Storage, tmp_path: Path, damage: str
) -> None:
    history = History()
    history.grow(host, 7)
    snapshot(history, 2, storage, tmp_path)
    paths = snapshot(history, 6, storage, tmp_path)
    table = next(path for name, path in paths.items() if name != "zip")
    match damage:
        case "zip cut":
            overwrite(storage, paths["zip"], storage.read(paths["zip"])[:-40])
        case "zip flipped":
            flip(storage, paths["zip"], storage.read(paths["zip"]).index(b"CURRENT") + len("CURRENT") + 2)
        case "zip empty":
            overwrite(storage, paths["zip"], b"")
        case "table gone":
            storage.delete([table])
        case "table cut":
            overwrite(storage, table, storage.read(table)[:-1])
        case "table longer":
            overwrite(storage, table, storage.read(table) + b"\0")
        case _:
            data = storage.read(table)
            overwrite(storage, table, data[:-60] + bytes(60))
    with other.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        metrics = store.load_report
        assert (metrics.base, metrics.replayed_changelogs) == (BaseKind.SNAPSHOT, 5)
        assert store.lineage == carried(host, history.versions[2:])
    (skipped,) = metrics.skipped_snapshots
    assert STORE.snapshot(history.versions[6]) in skipped
    assert len(list(other.folder.glob("db-*"))) == 1


def test_when_all_snapshots_are_damaged_the_load_begins_with_nothing(
    host: Host, other: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 4)
    for number in (2, 4):
        overwrite(storage, snapshot(history, number, storage, tmp_path)["zip"], b"garbage")
    with other.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.base is BaseKind.NOTHING
        assert len(store.load_report.skipped_snapshots) == 2


@ONLY_V2
def test_a_late_snapshot_of_a_dead_attempt_is_ignored(
    host: Host, other: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 3)
    dead = other.commit(history.versions[2], {b"dead": b"x"})
    publish_snapshot(storage, STORE, dead, {b"dead": b"x"}, tmp_path)
    history.grow(host, 2)
    fresh = Host(storage, tmp_path / "host c")
    with fresh.load(history.head, snapshots={dead}) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.base is BaseKind.NOTHING
        assert store.lineage == tuple(history.versions[1:])


def test_foreign_files_beside_the_stores_are_ignored(host: Host, other: Host, storage: Storage) -> None:
    history = History()
    history.grow(host, 3)
    for name in ("foo.zip", f"3_{GONE.id}.zip.tmp", "SSTs/3.zip", f"sub/{history.versions[2]}.zip", "9.zip", "x.crc"):
        storage.create(f"{STORE.folder}/{name}", b"garbage")
    assert other.read(history.head) == history.states[-1]


# --- the lineage ceiling ------------------------------------------------------------------------------------------


def long_lineage(storage: Storage, length: int) -> VersionId:
    """Put a version into storage whose changelog names so many before it. Nothing else of them is there."""

    lineage = tuple(VersionId(number, f"{number:08x}-0000-4000-8000-000000000000") for number in range(1, length + 1))
    version = VersionId(length + 1, GONE.id)
    storage.create(STORE.changelog(version), written([], Header(lineage)))
    for item in lineage:
        storage.create(STORE.changelog(item), written([], Header(lineage[: item.version - 1])))
    return version


@ONLY_V2
def test_near_the_ceiling_the_store_stops_by_name_and_a_snapshot_lets_it_go_on(
    storage_spec: object, storage: Storage, host: Host, tmp_path: Path
) -> None:
    if not storage.url.startswith("file:"):
        pytest.skip("800 objects; the ceiling is no business of the storage")
    length = next(
        n
        for n in range(1, 1000)
        if lineage_bytes([VersionId(m, GONE.id) for m in range(1, n + 2)]) > LINEAGE_STOP_BYTES
    )
    head = long_lineage(storage, length)
    with pytest.raises(LineageCeiling, match="take a snapshot") as raised:
        host.load(head)
    assert raised.value.path == STORE.folder
    assert not list(host.folder.glob("private-*"))
    publish_snapshot(storage, STORE, head, {b"a": b"1"}, tmp_path)
    with host.load(head, snapshots={head}) as store:
        assert len(store.lineage) == 1
        store.commit()


# --- failed uploads and full disks --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [None, Fault.LOST_REPLY])
def test_a_failed_upload_keeps_the_changes_and_a_second_commit_sends_the_same_object(
    storage: Storage, tmp_path: Path, fault: Fault | None, structure: Structure
) -> None:
    host = Host(storage, tmp_path / "a", structure=structure)
    base = host.commit(EMPTY, {b"a": b"1"})
    host.read(base)  # so that the commit's is the first request
    sent = 1 if structure is Structure.V1 else 0
    broken = Broken(storage) if fault is None else FaultyStorage(storage, {sent: fault})
    store = replace(host, storage=broken).load(base)
    store.put(column([b"a", b"b"]), column([b"2", b"3"]))
    for _ in range(2 if fault is None else 1):
        with pytest.raises(StorageError):
            store.commit()
        assert store.get(column([b"a", b"b"])).to_pylist() == [b"2", b"3"]
        with pytest.raises(ValueError, match="committed or aborted"):
            store.put(column([b"c"]), column([b"lost?"]))
    version = store.commit()
    assert version == store.next
    assert Host(storage, tmp_path / "b", structure=structure).read(version) == {b"a": b"2", b"b": b"3"}
    assert [name for name in names(storage) if "/2" in name] == [STORE.changelog(version)]


class Broken(FaultyStorage):
    """Refuses the first two objects."""

    refused = 0

    def create(self, path: str, data: bytes | Path) -> Created:
        self._refuse(path)
        return super().create(path, data)

    def replace(self, path: str, data: bytes | Path) -> None:
        self._refuse(path)
        super().replace(path, data)

    def _refuse(self, path: str) -> None:
        if self.refused < 2:
            self.refused += 1
            raise StorageError("the store is away", path=path)


@ONLY_V2
def test_an_object_with_other_bytes_under_the_new_name_is_not_overwritten(host: Host, storage: Storage) -> None:
    store = host.load(EMPTY)
    store.put(column([b"a"]), column([b"1"]))
    storage.create(STORE.changelog(store.next), b"other")
    with pytest.raises(AlreadyExists):
        store.commit()
    store.abort()
    assert storage.read(STORE.changelog(VersionId(1, store.next.id))) == b"other"


def fill_disk(root: Path, folder: Path, base: VersionId, answers: multiprocessing.Queue) -> None:
    """A process that may write files of 200 KB at most: for the store a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    host = Host(open_storage(str(root)), folder)
    store = host.load(base)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    noise = column([os.urandom(1000) for _ in range(100)])
    for act in (lambda: [store.put(noise, noise) for _ in range(5)], store.commit, store.commit):
        try:
            act()
            answers.put("went well")
        except Exception as error:
            answers.put(f"{type(error).__name__}: {error}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        store.commit()
        answers.put("went well")
    except Exception as error:
        answers.put(f"{type(error).__name__}: {error}")
    store.abort()


def test_half_a_changelog_is_never_sent_even_when_there_is_room_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    storage = open_storage(str(root))
    host = Host(storage, tmp_path / "host")
    base = host.commit(EMPTY, {b"a": b"1"})
    before = names(storage)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=fill_disk, args=(root, host.folder, base, answers))
    process.start()
    outcomes = [answers.get(timeout=60) for _ in range(4)]
    process.join(60)
    assert all(outcome.startswith("LocalStateError") for outcome in outcomes), outcomes
    assert names(storage) == before
    assert host.read(base) == {b"a": b"1"}
    assert not list((host.folder / "changelogs").glob("*.tmp"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small disk"
    place.mkdir()
    if os.system(f"mount -t tmpfs -o size=3m none '{place}' 2>/dev/null"):
        pytest.skip("only root can mount")
    yield place
    os.system(f"umount -l '{place}'")


def test_a_full_local_disk_is_named_and_storage_unharmed(host: Host, storage: Storage, small_disk: Path) -> None:
    history = History()
    noise = {os.urandom(8): os.urandom(1000) for _ in range(4000)}
    history.commit(host, noise)
    history.commit(host, {b"a": b"1"})
    before = names(storage)
    tiny = Host(storage, small_disk / "host", structure=host.structure)
    for _ in range(2):
        with pytest.raises(LocalDiskFull, match="space"):
            tiny.load(history.head)
        assert names(storage) == before
    assert not list(tiny.folder.glob("db-*"))
    with tiny.load(EMPTY) as store, pytest.raises(LocalDiskFull):
        store.put(column(list(noise)), column(list(noise.values())))
    assert names(storage) == before
    assert host.read(history.head) == history.states[-1]
