"""Failed uploads of a store, and full local disks."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import AlreadyExists, LocalDiskFull, StorageError
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Created, Storage, open_storage
from tests.support.faulty_storage import Fault, FaultyStorage
from tests.support.hosts import STORE, History, Host, column
from tests.support.stores import ONLY_V2, names


@pytest.mark.parametrize("fault", [None, Fault.LOST_REPLY])
def test_after_a_failed_upload_a_second_commit_uploads_the_same_object(
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


def test_a_partial_changelog_is_never_uploaded_even_after_space_is_free_again(tmp_path: Path) -> None:
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


def test_a_full_local_disk_is_reported_and_storage_is_unchanged(host: Host, storage: Storage, small_disk: Path) -> None:
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
