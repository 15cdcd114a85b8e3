"""Reads that are not repeated: only bytes that a listing proves to be the same come from memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import ObjectMissing
from statekeeper.statestore.storage import Reads, RememberingStorage, open_storage, remembered
from tests.support.clocks import SleeplessClock
from tests.support.s3_server import S3Server

DAY = 86_400.0


class Root:
    """A folder with one file, and looks at it with one memory."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "a" / "b"
        self.file.parent.mkdir()
        self.storage = open_storage(str(folder))
        self.clock = SleeplessClock()
        self.reads = Reads(self.clock)
        self.write(b"first", age=1000)

    def write(self, data: bytes, *, age: float) -> None:
        """Replace the file by one of this age, in seconds."""
        self.file.write_bytes(data)
        modified = self.clock.now_seconds() - age
        os.utime(self.file, (modified, modified))

    def look(self) -> RememberingStorage:
        looking = RememberingStorage(self.storage, self.reads)
        looking.list("a")
        return looking

    def requests(self, looking: RememberingStorage) -> tuple[bytes, int]:
        """The bytes of the file, and the requests for them."""
        before = self.storage.requests.snapshot()
        data = looking.read("a/b")
        assert looking.read_range("a/b", 1, 2) == data[1:3]
        return data, self.storage.requests.since(before).read


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def test_a_file_that_is_listed_as_it_was_is_read_once(root: Root) -> None:
    assert root.requests(root.look()) == (b"first", 2)
    assert root.requests(root.look()) == (b"first", 0)


def test_a_file_that_was_replaced_is_read_again(root: Root) -> None:
    root.requests(root.look())
    root.write(b"other", age=900)
    assert root.requests(root.look()) == (b"other", 2)
    root.file.unlink()
    with pytest.raises(ObjectMissing):
        root.look().read("a/b")


def test_a_young_file_is_not_kept_because_it_may_be_replaced_within_the_same_time(root: Root) -> None:
    root.write(b"young", age=10)
    stat = root.file.stat()
    assert root.requests(root.look()) == (b"young", 2)
    root.file.write_bytes(b"again")
    os.utime(root.file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert root.requests(root.look()) == (b"again", 2)


def test_a_file_is_read_again_after_a_day(root: Root) -> None:
    root.requests(root.look())
    root.clock.sleep(DAY - 1)
    assert root.requests(root.look())[1] == 0
    root.clock.sleep(2)
    assert root.requests(root.look())[1] == 2


def test_a_file_that_this_look_did_not_list_or_has_changed_is_read(root: Root) -> None:
    root.requests(root.look())
    unlisted = RememberingStorage(root.storage, root.reads)
    assert root.requests(unlisted) == (b"first", 2)
    looking = root.look()
    looking.replace("a/b", b"mine!")
    assert root.requests(looking) == (b"mine!", 2)
    looking = root.look()
    looking.delete(["a/b"])
    with pytest.raises(ObjectMissing):
        looking.read("a/b")


def test_the_memory_is_bounded_and_keeps_what_was_used_last(root: Root) -> None:
    root.reads = Reads(root.clock, most_bytes=3_000)
    for name in "cdefgh":
        root.file.with_name(name).write_bytes(b"x" * 500)
        os.utime(root.file.with_name(name), (0, 0))
    looking = root.look()
    for name in "cdefgh":
        looking.read(f"a/{name}")
        looking.read("a/c")
        assert root.reads.size_bytes <= 3_000
    before = root.storage.requests.snapshot()
    looking.read("a/c")
    assert root.storage.requests.since(before).read == 0
    looking.read("a/d")
    assert root.storage.requests.since(before).read == 1


def test_in_a_bucket_the_etag_identifies_the_bytes_of_a_young_file(s3_server: S3Server) -> None:
    storage = open_storage(f"s3://{s3_server.make_bucket()}/root", options=s3_server.options)
    reads = Reads(SleeplessClock())
    for data, expected in ((b"first", 1), (b"first", 0), (b"other", 1), (b"other", 0)):
        if expected:
            storage.replace("a/b", data)
        looking = RememberingStorage(storage, reads)
        looking.list("a")
        before = storage.requests.snapshot()
        assert looking.read("a/b") == data
        assert storage.requests.since(before).read == expected


# -- what the next process knows ------------------------------------------------------------------------------------------


def _of_next_process(root: Root, packed: bytes | None) -> tuple[bytes, int]:
    root.reads = Reads(root.clock)
    root.reads.unpack(root.storage.url, lambda: packed)
    return root.requests(root.look())


def _packed(root: Root) -> bytes:
    looking = root.look()
    root.requests(looking)
    packed = root.reads.pack(root.storage.url, looking.listed)
    assert packed is not None
    return packed


def test_a_process_does_not_read_what_an_earlier_one_has_read(root: Root) -> None:
    packed = _packed(root)
    assert _of_next_process(root, packed) == (b"first", 0)
    assert root.reads.pack(root.storage.url, root.look().listed) is None, "nothing new was read"


def test_a_process_that_stays_packs_its_reads_once_in_an_hour(root: Root) -> None:
    _packed(root)
    for age, seconds in ((900, 3_599), (800, 1)):
        root.write(b"other", age=age)
        looking = root.look()
        root.requests(looking)
        root.clock.sleep(seconds)
        assert (root.reads.pack(root.storage.url, looking.listed) is None) == (seconds != 1)


def test_the_last_used_reads_are_packed_up_to_a_bound(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST_PACKED_BYTES", 2 * remembered._OVERHEAD_BYTES + 2)
    assert _of_next_process(root, _packed(root)) == (b"first", 1)


def test_a_process_reads_a_file_again_that_was_replaced_since_an_earlier_process(root: Root) -> None:
    packed = _packed(root)
    root.write(b"other", age=900)
    assert _of_next_process(root, packed) == (b"other", 2)


def test_a_process_reads_a_file_again_a_day_after_an_earlier_process_did(root: Root) -> None:
    packed = _packed(root)
    root.clock.sleep(DAY)
    assert _of_next_process(root, packed) == (b"first", 2)


@pytest.mark.parametrize("packed", [None, b"", b"no reads", b"\x91\x92\x01\x02"])
def test_what_no_process_has_packed_adds_no_reads(packed: bytes | None, root: Root) -> None:
    assert _of_next_process(root, packed) == (b"first", 2)


def test_reads_of_files_that_are_not_listed_any_more_are_not_packed(root: Root) -> None:
    root.requests(root.look())
    assert root.reads.pack(root.storage.url, {}) == b"\x90", "an empty list"
