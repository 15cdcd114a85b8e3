"""Reads through object_store show the same as reads through botocore, which takes over where they cannot be made."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import AccessDenied, BucketMissing, ObjectMissing
from statekeeper.statestore.storage import RequestCounts, Storage, open_storage, s3_reads
from statekeeper.statestore.storage.base import Entries
from tests.support.s3_server import S3Server

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


def opened(server: S3Server, folder: str = "root", bucket: str | None = None) -> Storage:
    """A root in a bucket of its own, whose reads were not turned off yet."""
    return open_storage(f"s3://{bucket or server.make_bucket()}/{folder}", options={**server.options, "hedge": "false"})


def shown(storage: Storage, path: str, target: Path) -> tuple[bytes, bytes, bytes, Entries]:
    """All kinds of reads of a file."""
    storage.download(path, target)
    return storage.read(path), storage.read_range(path, 1, 3), target.read_bytes(), storage.list("")


@pytest.mark.parametrize("folder", ["root", "a root/ü%20+#"])
@pytest.mark.parametrize("name", NAMES)
def test_both_ways_show_the_same_for_each_name(name: str, folder: str, s3_server: S3Server, tmp_path: Path) -> None:
    storage = opened(s3_server, folder)
    storage.create(name, b"bytes")
    quick = shown(storage, name, tmp_path / "quick")
    s3_server.rejects_agent = "object_store"
    try:
        slow = shown(storage, name, tmp_path / "slow")
    finally:
        s3_server.rejects_agent = None
    assert quick == slow
    assert quick[:3] == (b"bytes", b"yte", b"bytes")
    assert [entry.path for entry in quick[3]] == [name]


def test_reads_are_made_by_object_store(s3_server: S3Server, tmp_path: Path) -> None:
    storage = opened(s3_server)
    storage.create("name", b"bytes")
    s3_server.rejects_agent = "Botocore"
    try:
        shown(storage, "name", tmp_path / "target")
    finally:
        s3_server.rejects_agent = None
    assert storage.requests.snapshot() == RequestCounts(read=3, create=1, list=1, bytes_read=13, bytes_written=5)


def test_botocore_gets_all_reads_of_a_bucket_where_only_it_succeeds(
    rejecting: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "statekeeper")
    storage = opened(rejecting)
    storage.create("name", b"bytes")
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
