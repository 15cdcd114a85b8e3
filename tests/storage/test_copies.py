"""Copies of objects inside one storage service."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import AlreadyExists, ObjectMissing, SourceChanged, StorageError
from statekeeper.statestore.storage import Entry, Storage, StorageSpec, open_storage
from statekeeper.statestore.storage import s3 as s3_copies
from statekeeper.statestore.storage.content import Content
from tests.support import users
from tests.support.mounts import two_places, used_bytes
from tests.support.s3_server import S3Server

Roots = tuple[Storage, Storage]
SLOW = pytest.mark.slow


@pytest.fixture(params=["local", "s3", *(pytest.param(name, marks=SLOW) for name in ("azurite", "fake_gcs"))])
def roots(request: pytest.FixtureRequest, tmp_path: Path) -> Roots:
    if request.param == "local":
        return open_storage(str(tmp_path / "one")), open_storage(str(tmp_path / "two"))
    server = request.getfixturevalue("s3_server" if request.param == "s3" else request.param)
    if not isinstance(server, S3Server):
        return open_storage(server.new_root()), open_storage(server.new_root())
    one, two = (f"s3://{server.make_bucket()}/a root" for _ in range(2))
    return open_storage(one, options=server.options), open_storage(two, options=server.options)


def entry_of(storage: Storage, path: str) -> Entry:
    found = storage.stat(path)
    assert found is not None
    return found


def test_an_object_is_copied_to_another_root_without_its_bytes(roots: Roots) -> None:
    one, two = roots
    one.create("state/a ü.sst", b"x" * 100_000)
    assert one.location.service == two.location.service
    before = [storage.requests.snapshot() for storage in roots]
    two.copy("state/a ü.sst", one.location, entry_of(one, "state/a ü.sst"))
    spent = [storage.requests.since(old) for storage, old in zip(roots, before, strict=True)]
    assert [(count.bytes_read, count.bytes_written) for count in spent] == [(0, 0), (0, 0)]
    assert spent[1].create == 1
    assert two.read("state/a ü.sst") == b"x" * 100_000
    one.delete(["state/a ü.sst"])
    assert two.read("state/a ü.sst") == b"x" * 100_000


def test_a_replaced_source_is_not_copied(roots: Roots, request: pytest.FixtureRequest) -> None:
    if "fake_gcs" in request.node.callspec.id:
        pytest.skip("fake-gcs-server ignores ifSourceGenerationMatch, which Google Cloud Storage documents")
    one, two = roots
    one.create("state/1.changelog", b"before")
    entry = entry_of(one, "state/1.changelog")
    one.replace("state/1.changelog", b"later!")
    with pytest.raises(SourceChanged, match="changed since it was listed"):
        two.copy("state/1.changelog", one.location, entry)
    assert two.stat("state/1.changelog") is None


def test_a_deleted_source_is_missing(roots: Roots) -> None:
    one, two = roots
    one.create("state/1.changelog", b"before")
    entry = entry_of(one, "state/1.changelog")
    one.delete(["state/1.changelog"])
    with pytest.raises(ObjectMissing):
        two.copy("state/1.changelog", one.location, entry)


def test_an_empty_object_is_copied(roots: Roots) -> None:
    one, two = roots
    one.create("state/0/_keys", b"")
    two.copy("state/0/_keys", one.location, entry_of(one, "state/0/_keys"))
    assert two.read("state/0/_keys") == b""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["azurite", "fake_gcs", "hdfs"])
def test_a_root_inside_another_is_detected_on_each_storage(kind: str, request: pytest.FixtureRequest) -> None:
    spec: StorageSpec = request.getfixturevalue(kind).new_root()
    outer, inner = open_storage(spec), open_storage(StorageSpec(f"{spec.url}/clone", spec.options))
    assert outer.location.contains(inner.location)
    assert not inner.location.contains(outer.location)
    assert outer.location.can_copy_from(inner.location) is (kind != "hdfs")


def test_a_root_inside_another_is_detected_across_both_protocols_of_hdfs() -> None:
    outer = open_storage("webhdfs://one:9870,two:9870/jobs")
    inner, other = (open_storage(f"swebhdfs://two,one/{folder}") for folder in ("jobs/clone", "jobs of others"))
    assert outer.location.contains(inner.location)
    assert not outer.location.contains(other.location)
    assert not outer.location.contains(open_storage("webhdfs://three/jobs/clone").location)


def test_a_file_of_others_is_not_replaced_on_a_local_disk(tmp_path: Path) -> None:
    one, two = (open_storage(str(tmp_path / name)) for name in ("one", "two"))
    one.create("a", b"ours")
    two.create("a", b"of others")
    with pytest.raises(AlreadyExists):
        two.copy("a", one.location, entry_of(one, "a"))
    two.delete(["a"])
    for _ in range(2):
        two.copy("a", one.location, entry_of(one, "a"))
    assert two.read("a") == b"ours"


def test_a_large_object_is_copied_in_parts(s3_server: S3Server) -> None:
    url = f"s3://{s3_server.make_bucket()}/root"
    storage = open_storage(StorageSpec(url, tuple(s3_server.options.items())))
    body = bytes(range(256)) * 4096 * 11
    storage.create("large", body)
    entry = entry_of(storage, "large")
    inner = storage.inner  # type: ignore[attr-defined]
    bucket = url.split("/")[2]
    s3_copies.copy(
        {"Bucket": bucket, "Key": "root/copy"},
        {"Bucket": bucket, "Key": "root/large"},
        "copy",
        entry,
        inner._request,
        part_bytes=5 * 1024**2,
        most_bytes=5 * 1024**2,
    )
    assert storage.read("copy") == body
    assert storage.unfinished_uploads() == []


def test_roots_of_different_services_have_different_locations(s3_server: S3Server, tmp_path: Path) -> None:
    bucket = s3_server.make_bucket()
    ours = open_storage(f"s3://{bucket}/root", options=s3_server.options)
    other = open_storage(f"s3://{bucket}/root", options={**s3_server.options, "key": "another"})
    local = open_storage(str(tmp_path / "root"))
    assert len({storage.location.service for storage in (ours, other, local)}) == 3


@pytest.mark.parametrize(
    ("one", "two", "contains"), [("a", "a/b", True), ("a", "a", True), ("a/b", "a", False), ("a", "ab", False)]
)
def test_a_root_contains_roots_inside_it(tmp_path: Path, one: str, two: str, contains: bool) -> None:
    first, second = (open_storage(str(tmp_path / name)) for name in (one, two))
    assert first.location.contains(second.location) is contains


def test_a_file_is_copied_byte_by_byte_if_it_cannot_be_linked(tmp_path: Path) -> None:
    """As between two mounts of one file system, or to a file of another user."""
    devices = [Path(name) for name in ("/dev/shm", "/var/tmp", str(Path.cwd()))]
    others = [place for place in devices if place.exists() and place.stat().st_dev != tmp_path.stat().st_dev]
    if not others:
        pytest.skip("needs two file systems")
    two = open_storage(str(tmp_path / "two"))
    with tempfile.TemporaryDirectory(dir=others[0]) as folder:
        one = open_storage(str(Path(folder) / "one"))
        one.create("state/1.sst", b"ours")
        for _ in range(2):
            two.copy("state/1.sst", one.location, entry_of(one, "state/1.sst"))
        assert two.read("state/1.sst") == b"ours"
        two.replace("state/1.sst", b"of others")
        with pytest.raises(AlreadyExists):
            two.copy("state/1.sst", one.location, entry_of(one, "state/1.sst"))
    assert [entry.path for entry in two.list("", hidden=True)] == ["state/1.sst"]


BY_KERNEL = pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="needs Linux")
BODY = os.urandom(24 * 1024**2)
"""More than one piece."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_a_file_that_cannot_be_linked_shares_its_blocks_with_its_copy(kind: str) -> None:
    """Two mounts of one XFS, and two subvolumes of one Btrfs."""
    with two_places(kind) as places:
        one, two = (open_storage(str(place)) for place in places)
        one.create("state/1.sst", BODY)
        two.create("small", b"also creates the folders for unfinished files")
        with pytest.raises(OSError, match="cross-device"):
            os.link(places[0] / "state/1.sst", places[1] / "linked")
        assert two.location.can_copy_from(one.location)
        before = used_bytes(places[0])
        two.copy("state/1.sst", one.location, entry_of(one, "state/1.sst"))
        assert used_bytes(places[0]) - before < len(BODY) / 10
        assert two.read("state/1.sst") == BODY
        one.replace("state/1.sst", b"later")
        assert two.read("state/1.sst") == BODY


@users.AS_ROOT
def test_the_kernel_copies_a_file_that_may_not_be_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another user: fs.protected_hardlinks forbids a link."""
    if Path("/proc/sys/fs/protected_hardlinks").read_text().strip() != "1":
        pytest.skip("needs fs.protected_hardlinks")

    def read(content: Content, number: int) -> bytes:
        raise AssertionError("the bytes pass through this process")

    with users.public_folder() as folder:
        one, two = (open_storage(str(folder / name)) for name in ("one", "two"))
        one.create("state/1.sst", BODY)
        users.give(folder / "one")
        entry = entry_of(one, "state/1.sst")

        def copy() -> None:
            two.copy("state/1.sst", one.location, entry)

        with monkeypatch.context() as patched:
            patched.setattr(Content, "piece", read)
            assert users.as_user(users.OTHER, copy) == 0
        assert (folder / "two/state/1.sst").stat().st_uid == users.OTHER
        assert (folder / "two/state/1.sst").stat().st_nlink == 1
        assert two.read("state/1.sst") == BODY


@BY_KERNEL
@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM])
@pytest.mark.parametrize("done", [0, 1024])
def test_a_file_is_copied_through_this_process_if_the_kernel_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, done: int
) -> None:
    copied = os.copy_file_range

    def fail(source: int, target: int, count: int, offset: int, at: int) -> int:
        if offset < done:
            return copied(source, target, done - offset, offset, at)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "copy_file_range", fail)
    origin = tmp_path / "origin"
    origin.write_bytes(BODY)
    storage = open_storage(str(tmp_path / "root"))
    storage.create("state/1.sst", origin)
    assert storage.read("state/1.sst") == BODY


@BY_KERNEL
def test_a_copy_of_a_file_that_became_smaller_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = tmp_path / "origin"
    origin.write_bytes(BODY)
    storage = open_storage(str(tmp_path / "root"))
    copied = os.copy_file_range

    def shrink(*arguments: int) -> int:
        os.truncate(origin, 1024)
        return copied(*arguments)

    monkeypatch.setattr(os, "copy_file_range", shrink)
    with pytest.raises(StorageError, match="became smaller"):
        storage.create("state/1.sst", origin)
    assert storage.list("", hidden=True) == []


@BY_KERNEL
def test_a_full_disk_is_an_error_and_not_a_reason_to_copy_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "copy_file_range", fail)
    origin = tmp_path / "origin"
    origin.write_bytes(b"x")
    with pytest.raises(StorageError, match="no space is left"):
        open_storage(str(tmp_path / "root")).create("state/1.sst", origin)
