"""Slow requests to S3 are sent a second time, over real HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from statekeeper.statestore.base.errors import AlreadyExists, ObjectMissing
from statekeeper.statestore.storage import Created, Kind, RequestCounts, Storage, open_storage
from statekeeper.statestore.storage.hedging import CLOSED_SECONDS, SHARE, Budget, Latencies, percentile
from tests.support.s3_server import S3Server, Wire

OF = (Kind.READ, 0)
FEWEST = 50
"""Requests after which the percentile is known."""


def test_a_request_is_slow_above_the_96th_percentile_of_its_kind_and_size():
    latencies = Latencies()
    for number in range(FEWEST - 1):
        latencies.add(OF, number / 1000)
    assert latencies.slow_seconds(OF) is None
    latencies.add(OF, 0.049)
    assert latencies.slow_seconds(OF) == 0.047
    assert latencies.slow_seconds((Kind.CREATE, 0)) is None


def test_the_percentile_follows_the_newest_thousand_requests():
    latencies = Latencies()
    for seconds in (0.2, 0.001):
        for _ in range(1000):
            latencies.add(OF, seconds)
        assert latencies.slow_seconds(OF) == seconds


def test_percentiles_are_values_that_were_measured():
    ordered = [float(number) for number in range(1, 1001)]
    assert [percentile(ordered, share) for share in (0.5, 0.99, 0.999, 1.0)] == [500.0, 990.0, 999.0, 1000.0]
    assert percentile([3.0], 0.999) == 3.0


def test_second_requests_never_exceed_their_share():
    budget, sent = Budget(), 0
    for first in range(1, 2000):
        budget.earn()
        # Long runs of slow requests, and long runs without any.
        sent += first % 400 < 200 and budget.spend(0.0)
        assert sent <= first * SHARE
    assert sent > 40


def test_a_throttling_store_gets_no_second_requests_for_a_minute():
    budget = Budget()
    for _ in range(100):
        budget.earn()
    budget.close(10.0)
    for _ in range(100):
        budget.earn()
    assert not budget.spend(10.0 + CLOSED_SECONDS - 0.001)
    assert budget.spend(10.0 + CLOSED_SECONDS)


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.make_bucket()


@pytest.fixture
def storage(s3_server: S3Server, bucket: str) -> Storage:
    """A root whose latencies are known, with a budget for some second requests."""
    storage = open_storage(f"s3://{bucket}/root", options=s3_server.options)
    for number in range(FEWEST):
        storage.create(f"before/{number}", b"bytes")
        storage.read(f"before/{number}")
    return storage


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def sent_twice(storage: Storage, before: RequestCounts) -> Callable[[], bool]:
    return lambda: storage.requests.since(before).hedges_sent == 1


def test_a_slow_read_is_sent_again_and_the_faster_reply_counts(storage: Storage, s3_server: S3Server, bucket: str):
    before = storage.requests.snapshot()
    released = s3_server.hold("GET", f"{bucket}/root/before/7")
    assert storage.read("before/7") == b"bytes"
    released.set()
    assert storage.requests.since(before) == RequestCounts(read=2, bytes_read=5, hedges_sent=1, hedges_won=1)


def test_the_first_reply_counts_if_it_comes_first(
    storage: Storage, s3_server: S3Server, bucket: str, threads: ThreadPoolExecutor
):
    before = storage.requests.snapshot()
    first = s3_server.hold("GET", f"{bucket}/root/before/7")
    second = s3_server.hold("GET", f"{bucket}/root/before/7")
    read = threads.submit(storage.read, "before/7")
    wait_until(sent_twice(storage, before))
    first.set()
    assert read.result() == b"bytes"
    second.set()
    assert storage.requests.since(before) == RequestCounts(read=2, bytes_read=5, hedges_sent=1)


def test_a_missing_object_is_reported_without_the_slower_reply(
    storage: Storage, s3_server: S3Server, bucket: str, threads: ThreadPoolExecutor
):
    released = s3_server.hold("GET", f"{bucket}/root/absent")
    try:
        with pytest.raises(ObjectMissing):
            threads.submit(storage.read, "absent").result(timeout=20)
    finally:
        released.set()


def test_a_read_whose_second_request_fails_takes_the_first_reply(
    storage: Storage, s3_server: S3Server, bucket: str, threads: ThreadPoolExecutor
):
    before = storage.requests.snapshot()
    first = s3_server.hold("GET", f"{bucket}/root/before/7")
    s3_server.next("GET", f"{bucket}/root/before/7", Wire.REFUSE)
    read = threads.submit(storage.read, "before/7")
    wait_until(sent_twice(storage, before))
    first.set()
    assert read.result() == b"bytes"
    assert storage.requests.since(before) == RequestCounts(read=2, bytes_read=5, hedges_sent=1)


def test_a_slow_create_is_sent_again(storage: Storage, s3_server: S3Server, bucket: str):
    before = storage.requests.snapshot()
    released = s3_server.hold("PUT", f"{bucket}/root/name")
    assert storage.create("name", b"bytes") is Created.NEW
    # Counted before the read, which is sent again, too, if it takes longer than usual.
    spent = storage.requests.since(before)
    released.set()
    assert storage.read("name") == b"bytes"
    assert (spent.create, spent.bytes_written, spent.hedges_sent, spent.hedges_won) == (2, 10, 1, 1)


def test_a_conflict_with_the_first_request_is_no_conflict(
    storage: Storage, s3_server: S3Server, bucket: str, threads: ThreadPoolExecutor
):
    before = storage.requests.snapshot()
    first = s3_server.hold("PUT", f"{bucket}/root/name", replies=True)
    created = threads.submit(storage.create, "name", b"bytes")
    wait_until(lambda: sent_twice(storage, before)() and s3_server.answered("PUT", f"{bucket}/root/name") == [412])
    with pytest.raises(TimeoutError):
        created.result(timeout=0.3)
    first.set()
    assert created.result() is Created.NEW


def test_two_conflicts_are_compared_with_the_object(
    storage: Storage, s3_server: S3Server, bucket: str, threads: ThreadPoolExecutor
):
    storage.create("name", b"bytes")

    def created(data: bytes) -> Future[Created]:
        before = storage.requests.snapshot()
        first = s3_server.hold("PUT", f"{bucket}/root/name")
        future = threads.submit(storage.create, "name", data)
        wait_until(sent_twice(storage, before))
        first.set()
        return future

    assert created(b"bytes").result() is Created.SAME
    with pytest.raises(AlreadyExists):
        created(b"other").result()


def test_nothing_is_sent_twice_after_the_store_asked_for_fewer_requests(
    storage: Storage, s3_server: S3Server, bucket: str
):
    s3_server.next("GET", f"{bucket}/root/before/1", Wire.REFUSE)
    assert storage.read("before/1") == b"bytes"
    before = storage.requests.snapshot()
    released = s3_server.hold("GET", f"{bucket}/root/before/7")
    timer = threading.Timer(0.5, released.set)
    timer.start()
    assert storage.read("before/7") == b"bytes"
    assert storage.requests.since(before) == RequestCounts(read=1, bytes_read=5)


def test_a_root_whose_latencies_are_unknown_sends_nothing_twice(s3_server: S3Server, bucket: str):
    storage = open_storage(f"s3://{bucket}/root", options=s3_server.options)
    storage.create("name", b"bytes")
    released = s3_server.hold("GET", f"{bucket}/root/name")
    threading.Timer(0.3, released.set).start()
    assert storage.read("name") == b"bytes"
    assert storage.requests.snapshot().hedges_sent == 0


def test_hedging_can_be_turned_off(s3_server: S3Server, bucket: str):
    storage = open_storage(f"s3://{bucket}/root", options={**s3_server.options, "hedge": "false"})
    for number in range(FEWEST):
        storage.create(f"before/{number}", b"bytes")
        storage.read(f"before/{number}")
    released = s3_server.hold("GET", f"{bucket}/root/before/7")
    threading.Timer(0.3, released.set).start()
    assert storage.read("before/7") == b"bytes"
    assert storage.requests.snapshot().hedges_sent == 0


@pytest.mark.parametrize("delete", ["delete", "delete_unchanged"])
def test_a_deleted_object_does_not_come_back_with_the_slower_create(
    storage: Storage, s3_server: S3Server, bucket: str, threads: ThreadPoolExecutor, delete: str
):
    released = s3_server.hold("PUT", f"{bucket}/root/lease")
    assert storage.create("lease", b"mine") is Created.NEW
    if delete == "delete":
        deleted = threads.submit(lambda: storage.delete(["lease"]))
    else:
        deleted = threads.submit(lambda: storage.delete_unchanged("lease", b"mine") and None)
    with pytest.raises(TimeoutError):
        deleted.result(timeout=0.3)
    released.set()
    deleted.result()
    wait_until(lambda: len(s3_server.answered("PUT", f"{bucket}/root/lease")) == 2)
    with pytest.raises(ObjectMissing):
        storage.read("lease")


def test_no_error_of_a_slower_request_is_logged(
    storage: Storage, s3_server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture
):
    released = s3_server.hold("PUT", f"{bucket}/root/name")
    storage.create("name", b"bytes")
    released.set()
    wait_until(lambda: sorted(s3_server.answered("PUT", f"{bucket}/root/name")) == [200, 412])
    storage.delete(["name"])
    assert [record for record in caplog.records if record.name == asyncio.__name__] == []
