"""The faulty storage itself: it causes exactly the planned faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import ObjectMissing, StorageError
from statekeeper.statestore.storage import TEMP_FOLDER, Created, Kind, Storage
from tests.support.faulty_storage import Fault, FaultyStorage, SimulatedCrash, crash_matrix

DIES = [Fault.BEFORE, Fault.AFTER, Fault.TORN]


def names(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list("")]


def test_without_planned_faults_it_behaves_like_the_inner_storage(storage: Storage, tmp_path: Path) -> None:
    faulty: Storage = FaultyStorage(storage)
    assert faulty.create("a", b"0123") is Created.NEW
    assert faulty.create("a", b"0123") is Created.SAME
    faulty.replace("b", b"x")
    assert faulty.read("a") == b"0123"
    assert faulty.read_range("a", 1, 2) == b"12"
    assert faulty.download("a", tmp_path / "a") == 4
    assert faulty.list("") == storage.list("")
    assert faulty.stat("a") == storage.stat("a")
    faulty.delete(["b"])
    assert names(faulty) == ["a"]
    assert faulty.url == storage.url
    assert faulty.requests is storage.requests
    with pytest.raises(ObjectMissing):
        faulty.read("b")


def test_each_call_is_recorded_under_its_number(storage: Storage) -> None:
    faulty = FaultyStorage(storage)
    faulty.create("a", b"")
    faulty.list("")
    faulty.delete(["a", "b"])
    assert [(request.number, request.kind, request.path) for request in faulty.trace] == [
        (0, Kind.CREATE, "a"),
        (1, Kind.LIST, ""),
        (2, Kind.DELETE, "a"),
    ]


@pytest.mark.parametrize("fault", DIES)
def test_a_create_that_dies_is_complete_or_absent(storage: Storage, fault: Fault) -> None:
    faulty = FaultyStorage(storage, {1: fault})
    faulty.create("first", b"")
    with pytest.raises(SimulatedCrash):
        faulty.create("second", b"bytes")
    assert names(storage) == (["first", "second"] if fault is Fault.AFTER else ["first"])


def test_a_torn_create_leaves_on_disk_what_a_real_crash_leaves(storage: Storage) -> None:
    with pytest.raises(SimulatedCrash):
        FaultyStorage(storage, {0: Fault.TORN}).create("name", b"123456")
    leftovers = [entry.size_bytes for entry in storage.list(TEMP_FOLDER)]
    assert leftovers == ([3] if storage.url.startswith("file:") else [])


@pytest.mark.parametrize("fault", DIES)
def test_a_replace_that_dies_leaves_the_old_or_the_new_file(storage: Storage, fault: Fault) -> None:
    storage.replace("control", b"old")
    with pytest.raises(SimulatedCrash):
        FaultyStorage(storage, {0: fault}).replace("control", b"new")
    assert storage.read("control") == (b"new" if fault is Fault.AFTER else b"old")


def test_a_torn_delete_has_deleted_some_files(storage: Storage) -> None:
    for path in "abcd":
        storage.create(path, b"")
    with pytest.raises(SimulatedCrash):
        FaultyStorage(storage, {0: Fault.TORN}).delete("abcd")
    assert names(storage) == ["c", "d"]


def test_a_torn_download_leaves_a_partial_scratch_file(storage: Storage, tmp_path: Path) -> None:
    storage.create("name", b"123456")
    with pytest.raises(SimulatedCrash):
        FaultyStorage(storage, {0: Fault.TORN}).download("name", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"123"


def test_a_lost_reply_is_a_timeout_of_a_completed_call(storage: Storage) -> None:
    faulty = FaultyStorage(storage, {0: Fault.LOST_REPLY})
    with pytest.raises(StorageError, match="timed out"):
        faulty.create("name", b"bytes")
    assert faulty.create("name", b"bytes") is Created.SAME


def test_no_exception_handler_or_cleanup_runs_after_death(storage: Storage) -> None:
    faulty = FaultyStorage(storage, {1: Fault.BEFORE})
    faulty.create("lease", b"")

    def verb() -> None:
        try:
            faulty.create("name", b"")
        except Exception:
            faulty.create("handled", b"")
        finally:
            faulty.delete(["lease"])

    with pytest.raises(SimulatedCrash):
        verb()
    assert names(storage) == ["lease"]
    assert len(faulty.trace) == 2


def test_the_matrix_contains_each_request_with_each_distinct_fault(storage: Storage) -> None:
    faulty = FaultyStorage(storage)
    faulty.create("name", b"")
    faulty.stat("name")
    assert [(request.number, fault) for request, fault in crash_matrix(faulty.trace)] == [
        (0, Fault.BEFORE),
        (0, Fault.AFTER),
        (0, Fault.TORN),
        (0, Fault.LOST_REPLY),
        (1, Fault.BEFORE),
        (1, Fault.AFTER),
        (1, Fault.LOST_REPLY),
    ]
