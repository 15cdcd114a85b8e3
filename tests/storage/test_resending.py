"""Requests to unavailable storage are sent again until a time limit, over real HTTP."""

from __future__ import annotations

import logging

import pytest

from statekeeper.statestore.base.errors import AccessDenied, StorageError
from statekeeper.statestore.storage import Created, StorageSpec, open_storage
from statekeeper.statestore.storage.base import Requests
from statekeeper.statestore.storage.resending import TRIES, Resending
from tests.support.clocks import SleeplessClock
from tests.support.s3_server import S3Server, Wire

LIMIT_SECONDS = 120.0


class SameId:
    """One id for each request, so that the pauses and their sum are fixed."""

    def fresh(self) -> str:
        return "80000000-0000-4000-8000-000000000000"


class Unavailable(Exception):
    """The answer of a store during an outage."""


def after(failures: int):
    remaining = [Unavailable("down\nand the second line")] * failures

    def attempt() -> str:
        if remaining:
            raise remaining.pop()
        return "reply"

    return attempt


@pytest.fixture
def clock() -> SleeplessClock:
    return SleeplessClock()


def resending(clock: SleeplessClock, limit_seconds: float = LIMIT_SECONDS, *, tries: int = TRIES) -> Resending:
    return Resending(
        "s3://bucket/root", Requests(), clock=clock, ids=SameId(), tries=tries, timeout_seconds=limit_seconds
    )


@pytest.mark.parametrize("limit_seconds", [0.0, LIMIT_SECONDS])
def test_a_short_failure_is_bridged_in_silence(clock, caplog, limit_seconds):
    assert resending(clock, limit_seconds).send(after(TRIES - 1), lambda _: True) == "reply"
    assert caplog.records == []


def test_without_a_time_limit_the_error_of_the_last_try_is_raised(clock):
    with pytest.raises(Unavailable):
        resending(clock, 0.0).send(after(TRIES), lambda _: True)
    assert len(clock.slept_seconds) == TRIES - 1


def test_an_outage_is_waited_for_and_reported(clock, caplog):
    assert resending(clock).send(after(20), lambda _: True) == "reply"
    first, *_, last = [record.getMessage() for record in caplog.records]
    assert first.startswith(
        "s3://bucket/root is unavailable since 2 s (down); the request is sent again for up to 118 s"
    )
    assert last == f"s3://bucket/root is available again after {clock.monotonic_seconds():.0f} s; nothing is lost"
    assert max(clock.slept_seconds) <= 5.0
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_an_outage_is_reported_every_half_minute(clock, caplog):
    with pytest.raises(Unavailable):
        resending(clock).send(after(10_000), lambda _: True)
    assert len(caplog.records) == 4


def test_after_the_time_limit_the_error_is_raised(clock):
    with pytest.raises(Unavailable):
        resending(clock).send(after(10_000), lambda _: True)
    assert LIMIT_SECONDS <= clock.monotonic_seconds() < LIMIT_SECONDS + 5.0


def test_an_error_that_is_not_transient_is_raised_at_once(clock):
    with pytest.raises(Unavailable):
        resending(clock).send(after(1), lambda _: False)
    assert clock.slept_seconds == []


@pytest.mark.parametrize("wire", [Wire.REFUSE, Wire.LOSE_REPLY])
def test_an_object_is_created_after_an_outage_of_a_bucket(s3_server: S3Server, clock: SleeplessClock, wire: Wire):
    bucket = s3_server.make_bucket()
    spec = StorageSpec(f"s3://{bucket}/root", tuple(s3_server.options.items()), timeout_seconds=LIMIT_SECONDS)
    storage = open_storage(spec, clock=clock)
    s3_server.next("PUT", f"{bucket}/root/name", wire, times=20)
    # After lost replies the object exists already.
    assert storage.create("name", b"bytes") is (Created.NEW if wire is Wire.REFUSE else Created.SAME)
    assert storage.read("name") == b"bytes"
    assert storage.requests.snapshot().wait_seconds == clock.monotonic_seconds() > 0


def test_denied_access_does_not_wait_for_a_time_limit(s3_server: S3Server, clock: SleeplessClock):
    bucket = s3_server.make_bucket()
    spec = StorageSpec(f"s3://{bucket}/root", tuple(s3_server.options.items()), timeout_seconds=LIMIT_SECONDS)
    s3_server.check_credentials(True)
    try:
        with pytest.raises(AccessDenied):
            open_storage(spec, clock=clock).read("name")
    finally:
        s3_server.check_credentials(False)
    assert clock.slept_seconds == []


def test_a_server_that_is_away_raises_a_storage_error_after_the_time_limit(clock: SleeplessClock):
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "a", "secret": "b", "region": "us-east-1"}
    spec = StorageSpec("s3://bucket/root", tuple(options.items()), timeout_seconds=LIMIT_SECONDS)
    with pytest.raises(StorageError):
        open_storage(spec, clock=clock).read("name")
    assert clock.monotonic_seconds() >= LIMIT_SECONDS
