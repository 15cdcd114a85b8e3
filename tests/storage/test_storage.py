"""Behavior common to all storage backends: each test runs on each backend."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from statekeeper.statestore.base.errors import AlreadyExists, CorruptFile, LocalStateError, ObjectMissing, StorageError
from statekeeper.statestore.storage import TEMP_FOLDER, Created, RequestCounts, Storage, StorageSpec, open_storage
from statekeeper.statestore.storage.batch_logs import LoggedStorage
from statekeeper.statestore.storage.remote import RemoteStorage

TWO_PIECES_BYTES = 17 * 1024 * 1024
MEGABYTE = 1024 * 1024


def names(storage: Storage, prefix: str = "") -> list[str]:
    return [entry.path for entry in storage.list(prefix)]


def takes_many(storage: Storage) -> bool:
    """Return whether the backend deletes many objects with one request."""
    assert isinstance(storage, LoggedStorage)
    return not isinstance(storage.inner, RemoteStorage)


def outcome(act: Callable[[], Created]) -> Created | type[Exception]:
    try:
        return act()
    except StorageError as error:
        return type(error)


def test_a_created_object_is_read_back(storage: Storage) -> None:
    assert storage.create("state/0/3/1.changelog", b"bytes") is Created.NEW
    assert storage.read("state/0/3/1.changelog") == b"bytes"


def test_an_empty_object_is_an_object(storage: Storage) -> None:
    assert storage.create("empty", b"") is Created.NEW
    assert storage.create("empty", b"") is Created.SAME
    assert storage.read("empty") == b""
    assert storage.read_range("empty", 0, 10) == b""
    entry = storage.stat("empty")
    assert entry is not None
    assert entry.size_bytes == 0


def test_creating_the_same_bytes_again_returns_same(storage: Storage) -> None:
    storage.create("name", b"bytes")
    assert storage.create("name", b"bytes") is Created.SAME


@pytest.mark.parametrize("other", [b"BYTES", b"longer bytes", b""])
def test_creating_other_bytes_is_rejected_and_changes_nothing(storage: Storage, other: bytes) -> None:
    storage.create("name", b"bytes")
    with pytest.raises(AlreadyExists, match="name"):
        storage.create("name", other)
    assert storage.read("name") == b"bytes"


def test_one_of_two_threads_with_different_bytes_creates_the_object(storage: Storage) -> None:
    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            path, start = f"races/{number}", Barrier(2)

            def run(mine: bytes, path: str = path, start: Barrier = start) -> Created | type[Exception]:
                start.wait()
                return outcome(lambda: storage.create(path, mine))

            outcomes = list(pool.map(run, [b"first", b"other"]))
            assert sorted(map(str, outcomes)) == sorted(map(str, [Created.NEW, AlreadyExists]))
            assert storage.read(path) == (b"first" if outcomes[0] is Created.NEW else b"other")


def test_one_of_two_threads_with_the_same_bytes_gets_new(storage: Storage) -> None:
    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            path, start = f"twins/{number}", Barrier(2)

            def run(_: int, path: str = path, start: Barrier = start) -> Created:
                start.wait()
                return storage.create(path, b"same")

            assert sorted(pool.map(run, [1, 2]), key=str) == [Created.NEW, Created.SAME]


def test_one_of_two_large_files_under_one_name_is_stored_whole(storage: Storage, tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file, letter in zip(files, b"ab", strict=True):
        file.write_bytes(bytes([letter]) * TWO_PIECES_BYTES)
    start = Barrier(2)

    def run(file: Path) -> Created | type[Exception]:
        start.wait()
        return outcome(lambda: storage.create("large", file))

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(run, files))
    assert sorted(map(str, outcomes)) == sorted(map(str, [Created.NEW, AlreadyExists]))
    assert storage.read("large") == files[outcomes.index(Created.NEW)].read_bytes()


def test_a_large_file_is_uploaded_and_downloaded_in_pieces(storage: Storage, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(TWO_PIECES_BYTES))
    assert storage.create("large", source) is Created.NEW
    assert storage.create("large", source) is Created.SAME
    assert storage.download("large", target) == TWO_PIECES_BYTES
    assert target.read_bytes() == source.read_bytes()


def test_an_object_of_another_size_is_rejected_before_its_bytes_are_read(storage: Storage, tmp_path: Path) -> None:
    storage.create("large", bytes(3_000_000))
    before = storage.requests.snapshot()
    with pytest.raises(CorruptFile, match="has 3,000,000 bytes instead of 1,471"):
        storage.download("large", tmp_path / "target", expected_bytes=1471)
    assert storage.requests.since(before).bytes_read == 0
    assert not (tmp_path / "target").exists()
    assert storage.download("large", tmp_path / "target", expected_bytes=3_000_000) == 3_000_000


def test_a_large_file_that_differs_in_its_last_byte_is_rejected(storage: Storage, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(TWO_PIECES_BYTES))
    storage.create("large", source)
    source.write_bytes(bytes(TWO_PIECES_BYTES - 1) + b"!")
    with pytest.raises(AlreadyExists):
        storage.create("large", source)


def test_a_large_file_is_stored_and_fetched_in_little_memory(storage_spec: StorageSpec, tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(200 * MEGABYTE)
    script = """
import pickle, sys, tracemalloc
from pathlib import Path
from statekeeper.statestore.storage import open_storage
storage = open_storage(pickle.loads(bytes.fromhex(sys.argv[1])))
storage.create("warm", b"up")
tracemalloc.start()
storage.create("large", Path(sys.argv[2]))
storage.download("large", Path(sys.argv[2] + "-back"))
print(tracemalloc.get_traced_memory()[1])
tracemalloc.stop()
"""
    arguments = [sys.executable, "-c", script, pickle.dumps(storage_spec).hex(), str(source)]
    # Not the peak of the process's resident memory: Linux hands that of the parent on to the child.
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60 * MEGABYTE


def test_a_range_ends_where_the_object_ends(storage: Storage) -> None:
    storage.create("name", b"0123456789")
    assert storage.read_range("name", 2, 3) == b"234"
    assert storage.read_range("name", 8, 100) == b"89"
    assert storage.read_range("name", 10, 1) == b""
    assert storage.read_range("name", 2, 0) == b""
    with pytest.raises(ValueError, match="range"):
        storage.read_range("name", -1, 2)


def test_a_missing_object_is_named_in_the_error(storage: Storage, tmp_path: Path) -> None:
    target = tmp_path / "target"
    for act in (
        lambda: storage.read("state/missing"),
        lambda: storage.read_range("state/missing", 0, 1),
        lambda: storage.read_range("state/missing", 0, 0),
        lambda: storage.download("state/missing", target),
    ):
        with pytest.raises(ObjectMissing, match="state/missing"):
            act()
    assert storage.stat("state/missing") is None
    assert not target.exists()


def test_a_folder_is_not_an_object(storage: Storage) -> None:
    storage.create("folder/name", b"")
    assert storage.stat("folder") is None
    with pytest.raises(ObjectMissing):
        storage.read("folder")


def test_errors_of_the_scratch_folder_are_not_storage_errors(storage: Storage, tmp_path: Path) -> None:
    storage.create("name", b"bytes")
    with pytest.raises(LocalStateError, match="no-such-folder"):
        storage.download("name", tmp_path / "no-such-folder" / "target")


def test_a_replaced_object_has_the_newest_bytes(storage: Storage, tmp_path: Path) -> None:
    storage.replace("_statekeeper/owner", b"first")
    storage.replace("_statekeeper/owner", b"second")
    assert storage.read("_statekeeper/owner") == b"second"
    (tmp_path / "file").write_bytes(b"third")
    storage.replace("_statekeeper/owner", tmp_path / "file")
    assert storage.read("_statekeeper/owner") == b"third"
    assert names(storage) == ["_statekeeper/owner"]


def test_a_listing_is_recursive_sorted_and_limited_to_its_folder(storage: Storage) -> None:
    for path in ("state/1/b", "state/10/a", "state/1/a/deep/er", "state/1-other", "commits/0"):
        storage.create(path, path.encode())
    assert names(storage) == ["commits/0", "state/1-other", "state/1/a/deep/er", "state/1/b", "state/10/a"]
    assert names(storage, "state/1") == ["state/1/a/deep/er", "state/1/b"]
    assert names(storage, "state/1/b") == []
    assert names(storage, "nowhere") == []
    assert [entry.size_bytes for entry in storage.list("commits")] == [9]


def test_folders_are_listed_without_their_contents(storage: Storage) -> None:
    for path in ("jobs/b/state/0/1", "jobs/a/metadata", "jobs/note", "jobs/.hidden/x", "metadata"):
        storage.create(path, b"")
    before = storage.requests.snapshot()
    assert storage.folders("jobs") == ["a", "b"]
    assert set(storage.folders("")) - {"_statekeeper"} == {"jobs"}, "where a local root keeps unfinished files"
    assert storage.folders("nowhere") == storage.folders("metadata") == []
    assert storage.requests.since(before).list == 4


def test_a_listing_has_the_modification_times(storage: Storage) -> None:
    storage.create("name", b"bytes")
    (listed,) = storage.list("")
    found = storage.stat("name")
    assert found is not None
    assert listed.modified_at_seconds == pytest.approx(found.modified_at_seconds, abs=1)
    assert listed.modified_at_seconds == pytest.approx(time.time(), abs=60)


def test_names_may_be_written_in_any_script(storage: Storage) -> None:
    odd = ["with space/a b", "ü/日本語", "plus+and&=#?%25", "quote'\"<>", "😀.changelog"]
    for path in odd:
        assert storage.create(path, path.encode()) is Created.NEW
    assert names(storage) == sorted(odd)
    for path in odd:
        assert storage.read(path) == path.encode()
    storage.delete(odd)
    assert names(storage) == []


def test_hidden_and_unfinished_files_are_not_listed(storage: Storage) -> None:
    for path in (".hidden", "a/.1.crc", "a/.folder/b", f"{TEMP_FOLDER}/unfinished", "_statekeeper/owner", "a/1"):
        storage.create(path, b"")
    assert names(storage) == ["_statekeeper/owner", "a/1"]
    assert names(storage, "_statekeeper") == ["_statekeeper/owner"]


def test_hidden_files_are_listed_on_request_but_not_unfinished_files(storage: Storage) -> None:
    for path in (".hidden", "a/.2.crc", "a/.folder/b", f"{TEMP_FOLDER}/unfinished", "a/1"):
        storage.create(path, b"")
    assert [entry.path for entry in storage.list("", hidden=True)] == [".hidden", "a/.2.crc", "a/.folder/b", "a/1"]
    assert [entry.path for entry in storage.list("a", hidden=True)] == ["a/.2.crc", "a/.folder/b", "a/1"]


def test_unfinished_files_are_listed_in_the_temp_folder(storage: Storage) -> None:
    storage.create(f"{TEMP_FOLDER}/leftover", b"")
    assert names(storage, TEMP_FOLDER) == [f"{TEMP_FOLDER}/leftover"]


def test_only_the_temp_folder_itself_is_omitted(storage: Storage) -> None:
    storage.create(f"{TEMP_FOLDER}erature", b"")
    assert names(storage) == [f"{TEMP_FOLDER}erature"]


def test_missing_objects_are_ignored_by_delete(storage: Storage) -> None:
    storage.create("a/1", b"")
    storage.create("a/2", b"")
    storage.delete(["a/1", "a/never", "nowhere/at/all"])
    storage.delete(iter([]))
    assert names(storage) == ["a/2"]


def test_deletes_are_batched_by_a_thousand_per_request(storage: Storage) -> None:
    storage.create("a/1500", b"")
    before = storage.requests.snapshot()
    storage.delete(f"a/{number}" for number in range(2001))
    assert storage.requests.since(before) == RequestCounts(delete=3 if takes_many(storage) else 2001)
    assert names(storage) == []


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../out", "a/../../out", "a//b", "a/", "a/./b", ".", "a\0b"])
def test_a_path_outside_of_the_root_is_rejected(storage: Storage, path: str, tmp_path: Path) -> None:
    for act in (
        lambda: storage.read(path),
        lambda: storage.read_range(path, 0, 1),
        lambda: storage.download(path, tmp_path / "target"),
        lambda: storage.create(path, b""),
        lambda: storage.replace(path, b""),
        lambda: storage.stat(path),
        lambda: storage.delete(["fine", path]),
        lambda: storage.list(path or "a/"),
        lambda: storage.folders(path or "a/"),
    ):
        with pytest.raises(ValueError, match="not a valid path in a checkpoint"):
            act()
    assert storage.requests.snapshot() == RequestCounts()


def test_each_call_costs_one_request_and_its_bytes(storage: Storage, tmp_path: Path) -> None:
    storage.create("name", b"12345")
    storage.read("name")
    storage.read_range("name", 1, 2)
    storage.download("name", tmp_path / "target")
    storage.replace("control", b"123")
    storage.list("")
    storage.stat("name")
    storage.delete(["name", "control"])
    assert storage.requests.snapshot() == RequestCounts(
        read=3,
        create=1,
        replace=1,
        list=1,
        stat=1,
        delete=1 if takes_many(storage) else 2,
        bytes_read=12,
        bytes_written=8,
    )


def test_another_process_opens_a_storage_and_its_spec_again(storage_spec: StorageSpec) -> None:
    opened = open_storage(storage_spec)
    opened.create("name", b"bytes")
    assert pickle.loads(pickle.dumps(opened)).read("name") == b"bytes"
    assert open_storage(pickle.loads(pickle.dumps(storage_spec))).read("name") == b"bytes"
    with pytest.raises(TypeError, match="another process cannot open it"):
        pickle.dumps(LoggedStorage(opened))


def test_a_forked_worker_opens_its_own_storage(storage_spec: StorageSpec) -> None:
    open_storage(storage_spec).create("parent", b"from the parent")
    worker = multiprocessing.get_context("fork").Process(target=_work, args=(storage_spec,))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    assert open_storage(storage_spec).read("child") == b"from the parent"


def _work(spec: StorageSpec) -> None:
    storage = open_storage(spec)
    storage.create("child", storage.read("parent"))
