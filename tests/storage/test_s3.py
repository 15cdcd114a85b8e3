"""Behavior specific to S3: lost replies, retries, buckets and credentials, over real HTTP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.utils import parse_timestamp

from statekeeper.statestore.base.errors import AccessDenied, AlreadyExists, BucketMissing, CorruptFile, StorageError
from statekeeper.statestore.format.limits import MOST_READ_BYTES
from statekeeper.statestore.storage import Created, RequestCounts, Storage, open_storage, s3
from statekeeper.statestore.storage.s3 import S3Storage
from tests.support.clocks import SleeplessClock
from tests.support.s3_server import S3Server, Wire

TWO_PIECES_BYTES = 17 * 1024 * 1024
TRIES = 5
SENT_A_TRY = {Wire.LOSE_REPLY: 2, Wire.REFUSE: 1, Wire.CUT: 1}
"""Requests per try. aiohttp resends a request once if a connection breaks without a reply."""

READ_A_TRY = {Wire.LOSE_REPLY: 3, Wire.REFUSE: 1, Wire.CUT: 2}
"""Likewise for reads. A read that object_store cannot make is sent again with botocore."""


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.make_bucket()


@pytest.fixture
def clock() -> SleeplessClock:
    return SleeplessClock()


@pytest.fixture
def storage(s3_server: S3Server, bucket: str, clock: SleeplessClock) -> Storage:
    return open_storage(f"s3://{bucket}/root", options=s3_server.options, clock=clock)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    file = tmp_path / "large"
    file.write_bytes(bytes(TWO_PIECES_BYTES))
    return file


@pytest.mark.parametrize("tries", [1, 2])
def test_a_lost_reply_is_not_reported_as_a_conflict(
    storage: Storage, s3_server: S3Server, bucket: str, clock: SleeplessClock, tries: int
) -> None:
    lost_replies = 1 if tries == 1 else SENT_A_TRY[Wire.LOSE_REPLY]
    s3_server.next("PUT", f"{bucket}/root/name", Wire.LOSE_REPLY, times=lost_replies)
    assert storage.create("name", b"bytes") is Created.SAME
    assert storage.requests.snapshot() == RequestCounts(create=tries, stat=1, bytes_written=5 * tries)
    assert len(clock.slept_seconds) == tries - 1


def test_a_conflict_with_a_lost_reply_is_still_a_conflict(storage: Storage, s3_server: S3Server, bucket: str) -> None:
    storage.create("name", b"bytes")
    s3_server.next("PUT", f"{bucket}/root/name", Wire.LOSE_REPLY)
    with pytest.raises(AlreadyExists):
        storage.create("name", b"other")
    assert storage.read("name") == b"bytes"


def test_a_lost_reply_to_the_end_of_a_large_upload_is_not_reported_as_a_conflict(
    storage: Storage, s3_server: S3Server, bucket: str, large: Path
) -> None:
    s3_server.next("POST", "uploadId", Wire.LOSE_REPLY)
    assert storage.create("name", large) in (Created.NEW, Created.SAME)
    assert storage.read_range("name", TWO_PIECES_BYTES - 1, 2) == b"\0"


def test_a_large_upload_costs_one_request_per_piece_and_three_more(storage: Storage, large: Path) -> None:
    storage.list("")
    before = storage.requests.snapshot()
    storage.create("name", large)
    assert storage.requests.since(before) == RequestCounts(create=4, stat=1, bytes_written=TWO_PIECES_BYTES)
    before = storage.requests.snapshot()
    assert storage.create("name", large) is Created.SAME
    assert storage.requests.since(before) == RequestCounts(stat=2)


def test_a_large_file_replaces_an_object_in_pieces(storage: Storage, large: Path) -> None:
    storage.replace("name", b"older")
    before = storage.requests.snapshot()
    storage.replace("name", large)
    assert storage.requests.since(before) == RequestCounts(replace=4, bytes_written=TWO_PIECES_BYTES)
    assert storage.read("name") == large.read_bytes()


def test_equal_bytes_uploaded_in_other_pieces_are_the_same(
    storage: Storage, s3_server: S3Server, bucket: str, large: Path
) -> None:
    # By one request whatever the size, so the ETag is of another kind.
    s3_server.put(bucket, "root/name", large.read_bytes())
    assert storage.create("name", large) is Created.SAME


def test_a_permanently_failed_piece_leaves_no_object_and_no_upload(
    storage: Storage, s3_server: S3Server, bucket: str, large: Path
) -> None:
    s3_server.next("PUT", "partNumber=2", Wire.REFUSE, times=TRIES)
    with pytest.raises(StorageError, match="SlowDown"):
        storage.create("name", large)
    assert storage.stat("name") is None
    assert s3_server.open_uploads(bucket) == 0


@pytest.mark.parametrize("wire", [Wire.REFUSE, Wire.LOSE_REPLY, Wire.CUT])
def test_a_failed_read_is_retried(
    storage: Storage, s3_server: S3Server, bucket: str, wire: Wire, clock: SleeplessClock, tmp_path: Path
) -> None:
    storage.create("name", b"bytes")
    s3_server.next("GET", f"{bucket}/root/name", wire, times=2 * READ_A_TRY[wire])
    assert storage.read("name") == b"bytes"
    s3_server.next("GET", f"{bucket}/root/name", wire, times=2 * READ_A_TRY[wire])
    assert storage.download("name", tmp_path / "target") == 5
    assert (tmp_path / "target").read_bytes() == b"bytes"
    assert storage.requests.snapshot().read == (6 if wire is Wire.REFUSE else 10)
    assert len(clock.slept_seconds) == 4


def test_a_request_fails_after_five_tries_with_growing_pauses(
    storage: Storage, s3_server: S3Server, bucket: str, clock: SleeplessClock, tmp_path: Path
) -> None:
    s3_server.next("GET", f"{bucket}/root/name", Wire.REFUSE, times=TRIES)
    with pytest.raises(StorageError, match=r"root/name: the storage returned SlowDown.* -> try again later"):
        storage.download("name", tmp_path / "target")
    assert storage.requests.snapshot() == RequestCounts(read=TRIES)
    for number, pause_seconds in enumerate(clock.slept_seconds):
        assert 0.1 * 2**number <= pause_seconds <= 0.2 * 2**number
    assert len(clock.slept_seconds) == TRIES - 1
    assert not (tmp_path / "target").exists()


def test_a_permanently_failed_download_leaves_no_partial_file(
    storage: Storage, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    storage.create("name", b"bytes")
    s3_server.next("GET", f"{bucket}/root/name", Wire.CUT, times=TRIES * READ_A_TRY[Wire.CUT])
    with pytest.raises(StorageError, match="root/name"):
        storage.download("name", tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


def test_an_endpoint_that_is_no_url_is_an_error_with_a_hint(s3_server: S3Server) -> None:
    options = {**s3_server.options, "endpoint_url": "localhost"}
    with pytest.raises(StorageError, match="correct endpoint_url"):
        open_storage("s3://bucket/root", options=options).read("name")


def test_an_unreachable_store_is_an_error_with_a_hint(s3_server: S3Server, clock: SleeplessClock) -> None:
    options = {**s3_server.options, "endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(StorageError, match="check endpoint_url"):
        open_storage("s3://bucket/root", options=options, clock=clock).read("name")


def test_a_listing_of_many_pages_is_complete(storage: Storage, s3_server: S3Server, bucket: str) -> None:
    for number in range(1005):
        s3_server.put(bucket, f"root/many/{number:04}", b"1")
    assert [entry.path for entry in storage.list("many")] == [f"many/{number:04}" for number in range(1005)]
    assert storage.requests.snapshot() == RequestCounts(list=2)


def test_markers_of_folders_are_not_listed(storage: Storage, s3_server: S3Server, bucket: str) -> None:
    storage.create("state/name", b"")
    s3_server.put(bucket, "root/state/", b"")
    s3_server.put(bucket, "root/state/0_$folder$", b"")
    assert [entry.path for entry in storage.list("")] == ["state/name"]
    s3_server.put(bucket, "root/state/1_$folder$", b"not empty, and so not one")
    assert [entry.path for entry in storage.list("state")] == ["state/1_$folder$", "state/name"]


def test_a_root_does_not_list_objects_of_another_root(storage: Storage, s3_server: S3Server, bucket: str) -> None:
    open_storage(f"s3://{bucket}/root2", options=s3_server.options).create("name", b"")
    assert storage.list("") == []
    assert [entry.path for entry in open_storage(f"s3://{bucket}", options=s3_server.options).list("")] == [
        "root2/name"
    ]


def test_the_s3a_scheme_is_supported(storage: Storage, s3_server: S3Server, bucket: str) -> None:
    storage.create("name", b"bytes")
    assert open_storage(f"s3a://{bucket}/root/", options=s3_server.options).read("name") == b"bytes"


def test_a_missing_bucket_never_looks_like_an_empty_root(s3_server: S3Server, tmp_path: Path) -> None:
    storage = open_storage("s3://no-such-bucket/root", options=s3_server.options)
    for act in (
        lambda: storage.read("name"),
        lambda: storage.read_range("name", 0, 1),
        lambda: storage.download("name", tmp_path / "target"),
        lambda: storage.create("name", b"bytes"),
        lambda: storage.replace("name", b"bytes"),
        lambda: storage.list(""),
        lambda: storage.stat("name"),
        lambda: storage.delete(["name"]),
    ):
        with pytest.raises(BucketMissing, match="no-such-bucket"):
            act()


def test_the_existence_of_the_bucket_is_checked_once(storage: Storage) -> None:
    assert storage.stat("missing") is None
    assert storage.stat("missing") is None
    assert storage.requests.snapshot() == RequestCounts(stat=3)


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@pytest.mark.usefixtures("no_credentials")
def test_missing_credentials_are_reported_with_the_variables_to_set(s3_server: S3Server, bucket: str) -> None:
    storage = open_storage(f"s3://{bucket}/root", options={"endpoint_url": s3_server.endpoint, "region": "us-east-1"})
    with pytest.raises(AccessDenied, match="AWS_ACCESS_KEY_ID"):
        storage.create("name", b"bytes")


@pytest.mark.usefixtures("no_credentials")
def test_a_public_bucket_is_read_without_credentials(s3_server: S3Server, bucket: str) -> None:
    s3_server.put(bucket, "root/name", b"bytes", acl="public-read")
    options = {"endpoint_url": s3_server.endpoint, "region": "us-east-1", "anon": "true"}
    assert open_storage(f"s3://{bucket}/root", options=options).read("name") == b"bytes"


@pytest.mark.usefixtures("no_credentials")
def test_the_usual_environment_variables_are_honoured(
    storage: Storage, s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("name", b"bytes")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    assert open_storage(f"s3://{bucket}/root").read("name") == b"bytes"


@pytest.fixture
def strict_server(s3_server: S3Server) -> Iterator[S3Server]:
    s3_server.check_credentials(True)
    yield s3_server
    s3_server.check_credentials(False)


def test_rejected_credentials_are_distinguished_from_missing_objects(storage: Storage, strict_server: S3Server) -> None:
    for act in (lambda: storage.read("name"), lambda: storage.stat("name"), lambda: storage.create("name", b"")):
        with pytest.raises(AccessDenied, match="correct the credentials"):
            act()


def test_roots_with_the_same_options_share_a_client_and_others_do_not(
    s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def client(root: str, **options: str) -> object:
        opened = open_storage(f"s3://{bucket}/{root}", options={**s3_server.options, **options})
        opened = opened.inner
        assert isinstance(opened, S3Storage)
        return opened._connection

    assert client("one") is client("two")
    assert client("one") is not client("one", region="eu-central-1")
    before = client("one")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a token")
    assert client("one") is not before


@pytest.mark.usefixtures("no_credentials")
def test_renewed_credentials_are_read_when_the_root_is_opened_again(
    storage: Storage, s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    storage.create("name", b"bytes")
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    options = {"endpoint_url": s3_server.endpoint, "region": "us-east-1"}
    with pytest.raises(AccessDenied):
        open_storage(f"s3://{bucket}/root", options=options).read("name")
    file.write_text("[default]\naws_access_key_id = a-key\naws_secret_access_key = a-secret\n")
    assert open_storage(f"s3://{bucket}/root", options=options).read("name") == b"bytes"


def test_a_forked_process_opens_a_client_of_its_own(storage: Storage, s3_server: S3Server, bucket: str) -> None:
    storage.create("name", b"bytes")
    script = f"""
import os
from statekeeper.statestore.storage import open_storage
def read():
    return open_storage("s3://{bucket}/root", options={s3_server.options}).read("name")
assert read() == b"bytes"
child = os.fork()
if child:
    assert read() == b"bytes"
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0 if read() == b"bytes" else 1)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_local_root_does_not_load_the_s3_client() -> None:
    opened = "from statekeeper.statestore.storage import open_storage; open_storage('/tmp/x')"
    script = f"import sys; {opened}; print('s3fs' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert output == "False\n"


def test_keys_that_are_not_valid_paths_are_not_listed(storage: Storage, s3_server: S3Server, bucket: str) -> None:
    for key in ("root/state//0/1.changelog", "root/state/../2.changelog", "root/a&b"):
        s3_server.put(bucket, key, b"bytes")
    assert [entry.path for entry in storage.list("")] == ["a&b"]
    assert [omitted.shown for omitted in storage.omissions.below("")] == [
        "state/../2.changelog",
        "state//0/1.changelog",
    ]


def test_an_object_above_the_read_limit_is_not_downloaded(storage: Storage, s3_server: S3Server, bucket: str) -> None:
    s3_server.put(bucket, "root/commits/0", bytes(MOST_READ_BYTES + 1))
    with pytest.raises(CorruptFile, match="has 67,108,865 bytes"):
        storage.read("commits/0")
    assert storage.requests.snapshot().bytes_read == 0
    assert storage.read_range("commits/0", 0, 20) == bytes(20)


@pytest.mark.parametrize(
    "text", ["2026-03-01T03:00:00.000Z", "2026-03-01T03:00:00Z", "Sun, 01 Mar 2026 03:00:00 GMT", "1772334000"]
)
def test_a_time_of_a_listing_or_of_a_header_is_parsed_as_botocore_does(text: str) -> None:
    assert s3._time(text) == parse_timestamp(text)
    assert s3._time(text).timestamp() == 1_772_334_000
