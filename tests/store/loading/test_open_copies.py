"""Copies that a process keeps open between batches: when a load uses them, and when it must not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.format.names import EMPTY
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage, open_storage
from statekeeper.statestore.store.loading.open_copies import UNUSED_SECONDS, OpenCopies
from tests.support.clocks import SleeplessClock
from tests.support.hosts import Changes, History, Host, changed, column


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "root"))


@pytest.fixture(params=list(Structure), ids=lambda structure: structure.name)
def host(request: pytest.FixtureRequest, storage: Storage, tmp_path: Path) -> Host:
    return process(storage, tmp_path / "host", structure=request.param)


def process(storage: Storage, folder: Path, *, structure: Structure = Structure.V2, **limits: int) -> Host:
    """Return one of several processes that share the local copy in a folder."""
    return Host(storage, folder, structure=structure, open_copies=OpenCopies(SleeplessClock(), **limits))


def kept(host: Host) -> OpenCopies:
    assert host.open_copies is not None
    return host.open_copies


def twin(host: Host) -> Host:
    """Return another process on the same machine."""
    return process(host.storage, host.folder, structure=host.structure)


def test_the_load_after_a_commit_reads_no_changelog_and_opens_no_database(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History()
    history.grow(host, 1)
    monkeypatch.delattr("statekeeper.statestore.store.engine.rocks.Database.open_read_only")
    monkeypatch.delattr("statekeeper.statestore.format.records.read_changelog")
    history.grow(host, 5)
    with host.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert (store.load_report.base, store.load_report.replayed_changelogs) == (BaseKind.LOCAL, 0)
        assert store.load_report.requests == 0
    monkeypatch.undo()
    assert twin(host).read(history.head) == history.states[-1]


def test_a_version_of_another_attempt_is_loaded_from_its_own_changelog(host: Host) -> None:
    history = History()
    history.grow(host, 3)
    base = history.head
    dead = host.commit(base, {b"dead": b"1"})
    chosen = twin(host).commit(base, {b"chosen": b"1"})
    assert len(kept(host)) == 1
    assert not dead.is_same(chosen)
    assert host.read(chosen) == changed(history.states[-1], {b"chosen": b"1"})
    assert len(kept(host)) == 0, "the copy of the dead attempt was closed"


def test_a_copy_that_lags_behind_replays_only_the_missing_changelogs(host: Host) -> None:
    history = History()
    history.grow(host, 4)
    history.grow(twin(host), 2)
    with host.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.replayed_changelogs == 2


def test_a_copy_whose_missing_changelogs_another_process_removed_is_opened_again(host: Host) -> None:
    history = History()
    history.grow(host, 4)
    other = twin(host)
    history.grow(other, 2)
    assert other.advance_local_copy(history.head)
    with host.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.replayed_changelogs == 0
        assert store._loaded.ahead_versions == 0


def test_a_copy_stays_readable_when_another_process_merges_its_tables(host: Host) -> None:
    history = History()
    history.grow(host, 1)
    other = twin(host)
    for _ in range(9):
        history.grow(host, 1)
        assert other.advance_local_copy(history.head)
        with host.load(history.head) as store:
            assert dict(store.scan()) == history.states[-1]


def test_a_copy_is_not_used_after_its_directory_was_replaced(host: Host) -> None:
    history = History()
    history.grow(host, 3)
    (host.folder / "current").unlink()
    with host.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.replayed_changelogs == 3


def test_an_aborted_batch_leaves_no_copy_open(host: Host) -> None:
    history = History()
    history.grow(host, 3)
    with host.load(history.head) as store:
        store.put(column([b"aborted"]), column([b"1"]))
    assert len(kept(host)) == 0
    assert host.read(history.head) == history.states[-1]


def test_a_copy_with_many_changes_in_memory_is_not_kept(host: Host) -> None:
    changes: Changes = {b"%06d" % number: b"" for number in range(20_000)}
    head = host.commit(EMPTY, changes)
    assert len(kept(host)) == 0
    assert host.read(head) == changes


def test_a_copy_that_is_to_be_compacted_is_opened_again_after_the_compaction(host: Host) -> None:
    history = History()
    history.grow(host, 13)
    with host.load(history.head) as store:
        assert store.needs_compaction
        history.versions.append(store.commit())
        history.states.append(history.states[-1])
    assert len(kept(host)) == 0
    assert host.advance_local_copy(history.versions[-2])
    with host.load(history.head) as store:
        assert store._loaded.ahead_versions == 1
        assert dict(store.scan()) == history.states[-1]


@pytest.mark.parametrize("limits", [{"most_files": 7}, {"most_bytes": 250_000}], ids=["files", "bytes"])
def test_copies_beyond_a_limit_are_closed_and_those_here_stay(
    tmp_path: Path, storage: Storage, limits: dict[str, int]
) -> None:
    copies = OpenCopies(SleeplessClock(), **limits)
    hosts = [Host(storage, tmp_path / f"host {number}", open_copies=copies) for number in range(3)]
    heads = [host.commit(EMPTY, {b"a": bytes(100_000)}) for host in hosts]
    assert len(copies) == 2
    assert copies.lend(hosts[0].folder) is not None
    for host, head in zip(hosts, heads, strict=True):
        assert host.read(head) == {b"a": bytes(100_000)}


def test_a_copy_without_use_is_closed_after_a_minute(tmp_path: Path, storage: Storage) -> None:
    clock = SleeplessClock()
    copies = OpenCopies(clock)
    first, second = (Host(storage, tmp_path / name, open_copies=copies) for name in ("first", "second"))
    first.commit(EMPTY, {b"a": b"1"})
    clock.sleep(UNUSED_SECONDS - 1)
    second.commit(EMPTY, {b"a": b"1"})
    assert len(copies) == 2
    clock.sleep(1)
    head = second.commit(EMPTY, {b"a": b"1"})
    assert copies.lend(first.folder) is None
    assert second.read(head) == {b"a": b"1"}


@pytest.mark.parametrize("seed", range(12))
def test_processes_with_open_copies_always_read_what_was_committed(storage: Storage, tmp_path: Path, seed: int) -> None:
    """Attempts that are aborted or not chosen, compactions, damaged pointers, and two hosts of two processes each."""
    chance = random.Random(seed)
    structure = chance.choice(list(Structure))
    folders = [tmp_path / "one", tmp_path / "two"]
    processes = [process(storage, folder, structure=structure) for folder in folders for _ in range(2)]
    history = History()
    for number in range(60):
        host = chance.choice(processes)
        changes: Changes = {
            b"%d" % chance.randrange(20): chance.choice([None, b"%d" % number]) for _ in range(chance.randrange(4))
        }
        match chance.randrange(8):
            case 0:
                with host.load(history.head) as store:
                    store.put(column([b"aborted"]), column([b""]))
            case 1 if structure is Structure.V2:
                host.commit(history.head, {b"not chosen": b""})
            case 2:
                host.advance_local_copy(history.head)
            case 3 if chance.randrange(3) == 0:
                (host.folder / "current").unlink(missing_ok=True)
            case _:
                history.commit(host, changes)
        reader = chance.choice(processes)
        assert reader.read(history.head) == history.states[-1], (seed, number)
    for host in processes:
        kept(host).close()
        assert len(kept(host)) == 0


def test_an_advance_moves_an_empty_copy_to_a_version_that_begins_at_version_one(
    storage: Storage, tmp_path: Path
) -> None:
    host = process(storage, tmp_path / "host")
    history = History()
    history.grow(host, 5)
    assert host.holds() == EMPTY
    assert host.advance_local_copy(history.versions[4])
    assert host.holds() == history.versions[4]
    assert host.read(history.head) == history.states[-1]


def test_open_copies_share_one_block_cache(storage: Storage, tmp_path: Path) -> None:
    copies = OpenCopies(SleeplessClock(), block_cache_bytes=3 * 1024 * 1024)
    for name in ("first", "second"):
        host = Host(storage, tmp_path / name, open_copies=copies)
        head = host.commit(EMPTY, {b"a": b"1"})
        with host.load(head) as store:
            capacity = store._database._rdict.property_int_value("rocksdb.block-cache-capacity")
            assert capacity == 3 * 1024 * 1024 != host.limits.block_cache_bytes
