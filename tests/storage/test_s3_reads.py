"""Requests through object_store have the results of requests through botocore, which takes over where they cannot be made.

A storage whose requests may be hedged sends them in an event loop, another in the calling thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import s3fs
from obstore.store import S3Store

from statekeeper.statestore.base.errors import AccessDenied, AlreadyExists, BucketMissing, ObjectMissing
from statekeeper.statestore.storage import RequestCounts, Storage, open_storage, s3_reads
from statekeeper.statestore.storage.base import Created, Entries
from statekeeper.statestore.storage.s3_reads import QuickReads
from tests.support.s3_server import S3Server, Wire

NAMES = [
    "plain",
    "a b",
    "a+b",
    "a%41",
    "%2e%2e",
    "ä/é",
    "日本",
    "a'b\"c",
    "#1",
    "a?b=c&d",
    "x*~!$(),;=@",
    "_v=1/[x]{y}^`|",
]


@pytest.fixture
def rejecting(s3_server: S3Server) -> Iterator[S3Server]:
    """A server that rejects the requests of object_store."""
    s3_server.rejects_agent = "object_store"
    yield s3_server
    s3_server.rejects_agent = None


def opened(server: S3Server, folder: str = "root", bucket: str | None = None, *, is_hurried: bool = False) -> Storage:
    """A root in a bucket of its own, whose requests were not turned off yet."""
    url = f"s3://{bucket or server.make_bucket()}/{folder}"
    # A first request opens what later ones use, whose requests are counted from 0.
    with suppress(BucketMissing):
        open_storage(url, options=server.options, is_hurried=is_hurried).list("none")
    return open_storage(url, options=server.options, is_hurried=is_hurried)


def shown(storage: Storage, path: str, target: Path) -> tuple[bytes, bytes, bytes, Entries]:
    """All kinds of reads of a file."""
    storage.download(path, target)
    return storage.read(path), storage.read_range(path, 1, 3), target.read_bytes(), storage.list("")


@pytest.mark.parametrize("folder", ["root", "a root/ü%20+#"])
@pytest.mark.parametrize("name", NAMES)
def test_all_ways_show_the_same_for_each_name(name: str, folder: str, s3_server: S3Server, tmp_path: Path) -> None:
    bucket = s3_server.make_bucket()
    storage = opened(s3_server, folder, bucket)
    storage.create(name, b"bytes")
    quick = shown(storage, name, tmp_path / "quick")
    in_loop = shown(opened(s3_server, folder, bucket, is_hurried=True), name, tmp_path / "in loop")
    s3_server.rejects_agent = "object_store"
    try:
        slow = shown(storage, name, tmp_path / "slow")
    finally:
        s3_server.rejects_agent = None
    assert quick == in_loop == slow
    assert quick[:3] == (b"bytes", b"yte", b"bytes")
    assert [entry.path for entry in quick[3]] == [name]
    assert storage.stat(name) == quick[3][0]


@pytest.mark.parametrize("is_hurried", [False, True])
def test_reads_are_made_by_object_store(s3_server: S3Server, tmp_path: Path, *, is_hurried: bool) -> None:
    storage = opened(s3_server, is_hurried=is_hurried)
    storage.create("name", b"bytes")
    s3_server.rejects_agent = "Botocore"
    try:
        shown(storage, "name", tmp_path / "target")
    finally:
        s3_server.rejects_agent = None
    assert storage.requests.snapshot() == RequestCounts(read=3, create=1, list=1, bytes_read=13, bytes_written=5)


def test_a_head_without_hedging_is_made_by_object_store_and_shows_the_same_as_botocore(s3_server: S3Server) -> None:
    storage = opened(s3_server)
    storage.create("name", b"bytes")
    s3_server.rejects_agent = "Botocore"
    try:
        quick, missing = storage.stat("name"), storage.stat("missing")
    finally:
        s3_server.rejects_agent = None
    assert missing is None
    assert storage.requests.snapshot().stat == 2
    s3_server.rejects_agent = "object_store"
    try:
        assert (storage.stat("name"), storage.stat("missing")) == (quick, None)
    finally:
        s3_server.rejects_agent = None
    assert quick in storage.list("")


def test_a_missing_object_is_asked_of_botocore_until_object_store_has_had_an_answer(s3_server: S3Server) -> None:
    bucket = s3_server.make_bucket()
    s3_server.rejects_agent = "object_store"
    try:
        storage = opened(s3_server, bucket=bucket)
    finally:
        s3_server.rejects_agent = None
    assert storage.stat("missing") is None
    # One of object_store, one of botocore, and one of the bucket.
    assert storage.requests.snapshot().stat == 3
    storage.list("")
    assert storage.stat("missing") is None
    assert storage.requests.snapshot().stat == 4


def test_a_head_that_the_store_throttles_is_an_answer_and_is_sent_again_after_a_pause(s3_server: S3Server) -> None:
    storage = opened(s3_server)
    storage.create("name", b"bytes")
    storage.read("name")
    s3_server.next("HEAD", "root/name", Wire.REFUSE, times=s3_reads.FAILURES_IN_A_ROW)
    s3_server.rejects_agent = "Botocore"
    try:
        assert storage.stat("name") is not None
    finally:
        s3_server.rejects_agent = None
    counts = storage.requests.snapshot()
    assert counts.stat == s3_reads.FAILURES_IN_A_ROW + 1
    assert counts.wait_seconds > 0


class _LoginPage(BaseHTTPRequestHandler):
    """Answers each request as a login page does, not as S3 does."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "123")
        self.end_headers()


def test_a_head_that_is_not_answered_by_a_store_is_no_object() -> None:
    server = HTTPServer(("127.0.0.1", 0), _LoginPage)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        store = S3Store(
            "bucket",
            endpoint=f"http://127.0.0.1:{server.server_port}",
            client_options={"allow_http": True},
            skip_signature=True,
        )
        reads = QuickReads("bucket", s3fs.S3FileSystem(), connect_timeout_seconds=5, read_timeout_seconds=5)
        with pytest.raises(ValueError, match="without an ETag"):
            reads.head_here(store, "root/name")
    finally:
        server.shutdown()
        server.server_close()


def test_a_create_without_hedging_is_made_by_object_store_and_never_replaces(s3_server: S3Server) -> None:
    storage = opened(s3_server)
    s3_server.rejects_agent = "Botocore"
    try:
        assert storage.create("name", b"bytes") is Created.NEW
    finally:
        s3_server.rejects_agent = None
    assert storage.create("name", b"bytes") is Created.SAME
    with pytest.raises(AlreadyExists, match="root/name"):
        storage.create("name", b"other")
    assert storage.read("name") == b"bytes"
    # The two conflicts are answers, and each is examined with a HEAD.
    assert storage.requests.snapshot().create == 3


def test_a_create_that_object_store_cannot_make_is_made_by_botocore(rejecting: S3Server) -> None:
    storage = opened(rejecting)
    assert storage.create("name", b"bytes") is Created.NEW
    assert storage.read("name") == b"bytes"


def test_a_create_that_is_not_decided_yet_is_sent_again_whatever_the_name(s3_server: S3Server) -> None:
    storage = opened(s3_server)
    s3_server.next("PUT", "root/412_a", Wire.UNDECIDED)
    assert storage.create("412_a", b"bytes") is Created.NEW


def test_a_create_whose_reply_is_lost_is_found_to_be_ones_own(s3_server: S3Server) -> None:
    storage = opened(s3_server)
    s3_server.next("PUT", "root/name", Wire.LOSE_REPLY)
    assert storage.create("name", b"bytes") is Created.SAME


@pytest.mark.parametrize("is_hurried", [False, True])
def test_botocore_gets_all_reads_of_a_bucket_where_only_it_succeeds(
    s3_server: S3Server, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest, *, is_hurried: bool
) -> None:
    caplog.set_level(logging.INFO, "statekeeper")
    storage = opened(s3_server, is_hurried=is_hurried)
    storage.create("name", b"bytes")
    request.getfixturevalue("rejecting")
    for _ in range(s3_reads.FAILURES_IN_A_ROW + 4):
        assert storage.read("name") == b"bytes"
    assert storage.requests.snapshot().read == 2 * s3_reads.FAILURES_IN_A_ROW + 4
    assert "use botocore for 600 s" in caplog.text


def test_an_answer_of_the_store_is_not_asked_again(s3_server: S3Server) -> None:
    storage = opened(s3_server)
    storage.create("name", b"bytes")
    with pytest.raises(ObjectMissing, match="root/missing: does not exist"):
        storage.read("missing")
    assert storage.read_range("name", 5, 1) == b""
    assert storage.requests.snapshot().read == 2
    with pytest.raises(BucketMissing):
        opened(s3_server, bucket="no-such-bucket").list("")


def test_a_listing_with_an_empty_object_is_made_by_botocore(s3_server: S3Server) -> None:
    """object_store omits the slash of a marker of a folder, so that it looks like an empty file."""
    bucket = s3_server.make_bucket()
    s3_server.put(bucket, "root/state/", b"")
    s3_server.put(bucket, "root/empty", b"")
    storage = opened(s3_server, bucket=bucket)
    assert [entry.path for entry in storage.list("")] == ["empty"]
    assert storage.requests.snapshot() == RequestCounts(list=2)


def test_names_that_are_no_paths_are_omitted_in_both_ways(s3_server: S3Server) -> None:
    bucket = s3_server.make_bucket()
    s3_server.put(bucket, "root/a//b", b"1")
    s3_server.put(bucket, "root/name", b"1")
    storage = opened(s3_server, bucket=bucket)
    assert [entry.path for entry in storage.list("")] == ["name"]
    assert [omitted.shown for omitted in storage.omissions.below("")] == ["a//b"]


def test_wrong_credentials_are_the_error_of_botocore(s3_server: S3Server) -> None:
    storage = opened(s3_server)
    storage.create("name", b"bytes")
    s3_server.check_credentials(True)
    try:
        with pytest.raises(AccessDenied, match="access denied"):
            storage.read("name")
    finally:
        s3_server.check_credentials(False)
