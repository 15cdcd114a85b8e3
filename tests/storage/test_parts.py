"""Objects that are created in parts while their file is still written, on local disk and on S3."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import AlreadyExists, ObjectMissing, StorageError
from statekeeper.statestore.storage import (
    TEMP_FOLDER,
    Created,
    Kind,
    PartsUpload,
    Storage,
    StorageSpec,
    UnfinishedUpload,
    open_storage,
)
from statekeeper.statestore.storage import s3 as s3_parts
from statekeeper.statestore.storage.parts import MOST_IN_FLIGHT, EarlyUpload
from tests.support.clocks import SleeplessClock
from tests.support.faulty_storage import FaultyStorage
from tests.support.s3_server import S3Server, Wire

PART_BYTES = 1000
BODY = os.urandom(10 * PART_BYTES + 7)
TRIES = 5


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART_BYTES)


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.make_bucket()


@pytest.fixture
def on_s3(s3_server: S3Server, bucket: str) -> Storage:
    return open_storage(f"s3://{bucket}/root", options=s3_server.options, clock=SleeplessClock())


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Without the other backends, which create an object in one request."""
    return open_storage(str(tmp_path / "root")) if request.param == "local" else request.getfixturevalue("on_s3")


def early(storage: Storage, file: Path, *, replaces: bool = False, least_bytes: int = 0) -> EarlyUpload:
    return EarlyUpload(
        storage,
        "a/name",
        file,
        clock=SleeplessClock(),
        part_bytes=PART_BYTES,
        least_bytes=least_bytes,
        replaces=replaces,
    )


def grow(upload: EarlyUpload, file: Path, body: bytes = BODY, step: int = 300) -> None:
    """Write the file bit by bit, as a store does."""
    with file.open("wb") as writer:
        for start in range(0, len(body), step):
            writer.write(body[start : start + step])
            upload.extend(writer)
        upload.seal()


def completes(upload: EarlyUpload) -> bool:
    upload.send_rest()
    return upload.complete()


def nothing_is_left(storage: Storage) -> bool:
    return storage.list("a") == [] and storage.list(TEMP_FOLDER) == [] and storage.unfinished_uploads() == []


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("size_bytes", [len(BODY), 10 * PART_BYTES])
def test_the_object_becomes_visible_as_a_whole_when_the_upload_is_complete(
    storage: Storage, tmp_path: Path, size_bytes: int, replaces: bool
) -> None:
    file, body = tmp_path / "file", BODY[:size_bytes]
    if replaces:
        storage.replace("a/name", b"older")
    upload = early(storage, file, replaces=replaces)
    grow(upload, file, body)
    assert storage.stat("a/name") is None or storage.read("a/name") == b"older"
    assert completes(upload)
    assert storage.read("a/name") == body
    assert upload.metrics.sent_bytes >= 8 * PART_BYTES
    assert storage.unfinished_uploads() == [] == storage.list(TEMP_FOLDER)


def test_parts_are_written_in_any_order(storage: Storage, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(BODY)
    upload = storage.create_in_parts("a/name", part_bytes=PART_BYTES)
    assert upload is not None
    for number in reversed(range(11)):
        upload.send(number, BODY[number * PART_BYTES : (number + 1) * PART_BYTES])
    assert upload.complete(file) is Created.NEW
    assert storage.read("a/name") == BODY


def test_an_upload_costs_a_request_for_each_part_and_two_more(storage: Storage, tmp_path: Path) -> None:
    storage.list("")
    before = storage.requests.snapshot()
    upload = early(storage, tmp_path / "file")
    grow(upload, tmp_path / "file")
    assert completes(upload)
    spent = storage.requests.since(before)
    assert (spent.total, spent.create, spent.bytes_written) == (13, 13, len(BODY))
    assert upload.metrics.requests == 12


@pytest.mark.parametrize(("size_bytes", "least_bytes"), [(PART_BYTES - 1, 0), (3 * PART_BYTES, 3 * PART_BYTES + 1)])
def test_a_small_file_is_not_sent(storage: Storage, tmp_path: Path, size_bytes: int, least_bytes: int) -> None:
    before = storage.requests.snapshot()
    upload = early(storage, tmp_path / "file", least_bytes=least_bytes)
    grow(upload, tmp_path / "file", BODY[:size_bytes])
    assert not completes(upload)
    upload.abort()
    assert storage.requests.since(before).total == 0
    assert upload.metrics.sent_bytes == 0


def test_an_aborted_upload_leaves_nothing(storage: Storage, tmp_path: Path) -> None:
    upload = early(storage, tmp_path / "file")
    grow(upload, tmp_path / "file")
    upload.abort()
    assert nothing_is_left(storage)
    assert not completes(upload)
    upload.abort()
    assert nothing_is_left(storage)


def test_the_same_object_of_another_attempt_is_no_conflict(storage: Storage, tmp_path: Path) -> None:
    upload = early(storage, tmp_path / "file")
    grow(upload, tmp_path / "file")
    storage.create("a/name", BODY)
    assert completes(upload)
    assert storage.unfinished_uploads() == [] == storage.list(TEMP_FOLDER)


def test_another_object_under_the_name_is_a_conflict(storage: Storage, tmp_path: Path) -> None:
    upload = early(storage, tmp_path / "file")
    grow(upload, tmp_path / "file")
    storage.create("a/name", b"other")
    with pytest.raises(AlreadyExists):
        completes(upload)
    assert storage.read("a/name") == b"other"
    assert storage.unfinished_uploads() == [] == storage.list(TEMP_FOLDER)


def test_another_process_may_abort_the_upload(on_s3: Storage, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    first, second = early(on_s3, file), early(on_s3, file)
    s3_server.next("PUT", "partNumber=4", Wire.NO_UPLOAD)
    before = on_s3.requests.snapshot()
    grow(first, file)
    assert not completes(first)
    assert on_s3.requests.since(before).wait_seconds == 0, "404 is not retried"
    grow(second, file, BODY[: 2 * PART_BYTES])
    s3_server.next("POST", "uploadId", Wire.NO_UPLOAD)
    assert not completes(second), "404 NoSuchUpload at the end"
    assert second.metrics.sent_bytes == 0
    assert nothing_is_left(on_s3)


def test_a_lost_reply_to_the_end_of_an_upload_is_no_conflict(
    on_s3: Storage, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    upload = early(on_s3, tmp_path / "file")
    grow(upload, tmp_path / "file")
    before = on_s3.requests.snapshot()
    s3_server.next("POST", "uploadId", Wire.LOSE_REPLY, times=2)
    assert completes(upload)
    assert on_s3.read("a/name") == BODY
    assert s3_server.open_uploads(bucket) == 0
    assert on_s3.requests.since(before).bytes_read == len(BODY), "compared by the ETag of the parts, and read here once"


@pytest.mark.parametrize(
    ("method", "part_of_url"), [("POST", "?uploads"), ("PUT", "partNumber=3"), ("PUT", "partNumber=11")]
)
def test_after_a_failed_request_the_object_can_be_created_from_the_file(
    on_s3: Storage, s3_server: S3Server, bucket: str, tmp_path: Path, method: str, part_of_url: str
) -> None:
    file = tmp_path / "file"
    upload = early(on_s3, file)
    s3_server.next(method, part_of_url, Wire.REFUSE, times=TRIES)
    grow(upload, file)
    assert not completes(upload)
    assert nothing_is_left(on_s3)
    assert on_s3.create("a/name", file) is Created.NEW
    assert s3_server.open_uploads(bucket) == 0


def test_after_a_failed_end_the_object_can_be_created_from_the_file(
    on_s3: Storage, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    upload = early(on_s3, tmp_path / "file")
    grow(upload, tmp_path / "file")
    s3_server.next("POST", "uploadId", Wire.REFUSE, times=TRIES)
    with pytest.raises(StorageError, match="SlowDown"):
        completes(upload)
    assert nothing_is_left(on_s3)
    assert not completes(upload)
    assert on_s3.create("a/name", tmp_path / "file") is Created.NEW


def test_early_parts_do_not_wait_for_storage_that_is_unavailable(
    s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    clock = SleeplessClock()
    spec = StorageSpec(f"s3://{bucket}/root", tuple(s3_server.options.items()), timeout_seconds=600)
    storage = open_storage(spec, clock=clock)
    upload = early(storage, tmp_path / "file")
    s3_server.next("PUT", "partNumber=3", Wire.REFUSE, times=TRIES)
    s3_server.next("DELETE", "uploadId", Wire.REFUSE, times=TRIES)
    grow(upload, tmp_path / "file")
    assert not completes(upload)
    assert sum(clock.slept_seconds) < 10
    upload = early(storage, tmp_path / "file")
    grow(upload, tmp_path / "file")
    s3_server.next("POST", "uploadId", Wire.REFUSE, times=2 * TRIES)
    assert completes(upload), "the commit waits"


def test_a_failed_abort_is_no_error_and_the_upload_is_listed(
    on_s3: Storage, s3_server: S3Server, tmp_path: Path
) -> None:
    upload = early(on_s3, tmp_path / "file")
    grow(upload, tmp_path / "file", BODY[: 3 * PART_BYTES])
    s3_server.next("DELETE", "uploadId", Wire.REFUSE, times=TRIES)
    upload.abort()
    assert on_s3.list("") == []
    (found,) = on_s3.unfinished_uploads()
    assert found.path == "a/name"
    assert found.size_bytes >= 2 * PART_BYTES, "the last part may not have begun"
    on_s3.abort_upload(found)
    on_s3.abort_upload(found)
    assert nothing_is_left(on_s3)


def test_uploads_of_other_roots_are_not_listed(on_s3: Storage, s3_server: S3Server, bucket: str) -> None:
    for root in ("root2", "other"):
        open_storage(f"s3://{bucket}/{root}", options=s3_server.options).create_in_parts("x", part_bytes=PART_BYTES)
    assert on_s3.create_in_parts("b", part_bytes=PART_BYTES) is not None
    assert on_s3.create_in_parts("a", part_bytes=PART_BYTES) is not None
    assert [found.path for found in on_s3.unfinished_uploads()] == ["a", "b"]


class Pages:
    """The replies of a store with one upload or part in each page; moto returns all at once."""

    def __init__(self) -> None:
        self.requests: list[Kind] = []

    async def list_multipart_uploads(self, *, Bucket: str, Prefix: str, **position: str) -> dict[str, object]:
        assert (Bucket, Prefix) == ("bucket", "root/")
        number = int(position.get("KeyMarker", "root/0").removeprefix("root/"))
        assert number == 0 or position["UploadIdMarker"] == f"id {number}"
        upload = {
            "Key": f"root/{number + 1}",
            "UploadId": f"id {number + 1}",
            "Initiated": datetime.fromtimestamp(7, UTC),
        }
        following = {"NextKeyMarker": upload["Key"], "NextUploadIdMarker": upload["UploadId"]}
        return {"Uploads": [upload], "IsTruncated": number < 2, **following}

    async def list_parts(self, *, UploadId: str, PartNumberMarker: int = 0, **_: str) -> dict[str, object]:
        if UploadId == "id 2":
            raise ObjectMissing("does not exist", path="2")
        part = {"Size": 10 * (PartNumberMarker + 1)}
        return {"Parts": [part], "IsTruncated": PartNumberMarker < 3, "NextPartNumberMarker": PartNumberMarker + 1}

    def send(self, kind: Kind, path: str, call, *, bytes_written: int = 0, is_optional: bool = False):  # type: ignore[no-untyped-def]
        self.requests.append(kind)
        return asyncio.run(call(self))


def test_uploads_and_parts_are_listed_page_by_page_and_completed_ones_are_omitted() -> None:
    pages = Pages()
    found = s3_parts.unfinished("bucket", "root/", lambda key: key.removeprefix("root/"), pages.send)
    assert found == [UnfinishedUpload("1", "id 1", 100, 7.0), UnfinishedUpload("3", "id 3", 100, 7.0)]
    assert pages.requests == [Kind.LIST] * (3 + 4 + 1 + 4)


def test_a_process_that_dies_leaves_only_an_unfinished_file(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "root"))
    upload = storage.create_in_parts("a/name", part_bytes=PART_BYTES)
    assert upload is not None
    upload.send(0, BODY[:PART_BYTES])
    assert storage.list("") == []
    (left,) = storage.list(TEMP_FOLDER)
    assert left.size_bytes == PART_BYTES


class SlowStorage(FaultyStorage):
    """Sends no part before it may, and counts the parts in flight."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.may_send = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.in_flight = 0
        self.most_in_flight: list[int] = []

    def create_in_parts(self, path: str, *, part_bytes: int, replaces: bool = False) -> PartsUpload | None:
        inner = super().create_in_parts(path, part_bytes=part_bytes, replaces=replaces)
        assert inner is not None
        return SlowParts(inner, self)


class SlowParts:
    def __init__(self, inner: PartsUpload, storage: SlowStorage) -> None:
        self.inner = inner
        self.storage = storage

    def send(self, number: int, data: bytes) -> None:
        with self.storage.lock:
            self.storage.in_flight += 1
            self.storage.most_in_flight.append(self.storage.in_flight)
        assert self.storage.may_send.acquire(timeout=60)
        self.inner.send(number, data)
        with self.storage.lock:
            self.storage.in_flight -= 1

    def complete(self, file: Path) -> Created:
        return self.inner.complete(file)

    def abort(self) -> None:
        self.inner.abort()


class TickingClock(SleeplessClock):
    def monotonic_seconds(self) -> float:
        self.sleep(1)
        return super().monotonic_seconds()


def test_the_caller_waits_while_too_many_parts_are_in_flight(tmp_path: Path) -> None:
    slow = SlowStorage(open_storage(str(tmp_path / "root")))
    file = tmp_path / "file"
    upload = EarlyUpload(slow, "a/name", file, clock=TickingClock(), part_bytes=PART_BYTES)
    body = os.urandom(40 * PART_BYTES)
    writing = threading.Thread(target=grow, args=(upload, file, body))
    writing.start()
    for _ in range(40):
        slow.may_send.release()
    writing.join(60)
    assert not writing.is_alive()
    assert completes(upload)
    assert slow.most_in_flight[0] == 1
    assert max(slow.most_in_flight) <= MOST_IN_FLIGHT
    assert slow.read("a/name") == body


def test_a_store_that_never_replies_holds_back_a_fifth_of_the_file_at_most(tmp_path: Path) -> None:
    slow = SlowStorage(open_storage(str(tmp_path / "root")))
    for parts in (12, 17, 33, 49, 100):
        file = tmp_path / f"file {parts}"
        body = bytes(parts * PART_BYTES + PART_BYTES - 1)
        upload = EarlyUpload(slow, f"a/{parts}", file, clock=TickingClock(), part_bytes=PART_BYTES)
        writing = threading.Thread(target=grow, args=(upload, file, body))
        writing.start()
        # The store sends a part only when the task waits for it.
        while writing.is_alive():
            if slow.in_flight >= 1 and len(slow.most_in_flight):
                writing.join(0.002)
                if writing.is_alive():
                    slow.may_send.release()
        sent_bytes = upload.metrics.sent_bytes
        for _ in range(MOST_IN_FLIGHT + 1):
            slow.may_send.release()
        assert completes(upload)
        while slow.may_send.acquire(blocking=False):
            pass
        assert upload.metrics.back_pressure_seconds > 0
        assert sent_bytes >= 0.8 * len(body), f"{parts} parts"


@pytest.mark.parametrize("replaces", [False, True])
def test_a_file_in_parts_has_the_mode_of_the_adjacent_files(tmp_path: Path, replaces: bool) -> None:
    storage = open_storage(str(tmp_path / "root"))
    storage.create("a/adjacent", b"")
    (tmp_path / "root/a/adjacent").chmod(0o664)
    upload = early(storage, tmp_path / "file", replaces=replaces)
    grow(upload, tmp_path / "file")
    assert completes(upload)
    storage.create("a/other", b"")
    modes = {(tmp_path / "root/a" / name).stat().st_mode & 0o777 for name in ("adjacent", "name", "other")}
    assert modes == {0o664}


def test_a_backend_without_parts_creates_the_object_at_the_end(tmp_path: Path) -> None:
    class OneRequest(FaultyStorage):
        def create_in_parts(self, path: str, *, part_bytes: int, replaces: bool = False) -> PartsUpload | None:
            return None

    storage = OneRequest(open_storage(str(tmp_path / "root")))
    upload = early(storage, tmp_path / "file")
    grow(upload, tmp_path / "file")
    assert not completes(upload)
    assert storage.trace == []


def test_an_aborted_upload_is_missing(on_s3: Storage, s3_server: S3Server, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(BODY)
    upload = on_s3.create_in_parts("a/name", part_bytes=PART_BYTES)
    assert upload is not None
    upload.abort()
    upload.abort()
    s3_server.next("PUT", "partNumber=1", Wire.NO_UPLOAD)
    with pytest.raises(ObjectMissing):
        upload.send(0, b"x")
    s3_server.next("POST", "uploadId", Wire.NO_UPLOAD, times=2)
    with pytest.raises(ObjectMissing):
        upload.complete(file)
    on_s3.create("a/name", file)
    assert upload.complete(file) is Created.SAME, "the reply to an earlier try was lost"
