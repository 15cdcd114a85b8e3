"""Behavior specific to local disks."""

from __future__ import annotations

import errno
import os
import pickle
import socket
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import AccessDenied, AlreadyExists, CorruptFile, NotAFile, StorageError
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.storage import TEMP_FOLDER, Created, Storage, StorageSpec, open_storage
from statekeeper.statestore.storage.local import translate


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def storage(root: Path) -> Storage:
    return open_storage(str(root))


def test_the_temp_folder_is_empty_after_each_write(storage: Storage, root: Path) -> None:
    storage.create("name", b"bytes")
    storage.create("name", b"bytes")
    storage.replace("control", b"bytes")
    with pytest.raises(AlreadyExists):
        storage.create("name", b"other")
    assert list((root / TEMP_FOLDER).iterdir()) == []


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_process_killed_before_the_link_leaves_nothing_visible(storage: Storage, root: Path, step: str) -> None:
    storage.create("a/before", b"")
    child = os.fork()
    if not child:
        # Die at the system call itself, without any clean-up, as kill -9 does.
        setattr(os, step, lambda *_, **__: os._exit(9))
        open_storage(str(root)).create("a/name", b"bytes")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9
    assert [entry.path for entry in storage.list("")] == ["a/before"]
    assert storage.stat("a/name") is None
    assert [entry.size_bytes for entry in storage.list(TEMP_FOLDER)] == [5]
    assert storage.create("a/name", b"bytes") is Created.NEW


def test_hadoops_checksum_is_removed_with_its_file(storage: Storage, root: Path) -> None:
    sidecar = root / "commits" / ".7.crc"

    def stale() -> None:
        sidecar.parent.mkdir(parents=True, exist_ok=True)
        sidecar.write_bytes(b"of other bytes")

    stale()
    storage.create("commits/7", b"bytes")
    assert not sidecar.exists()
    stale()
    storage.replace("commits/7", b"other")
    assert not sidecar.exists()
    stale()
    storage.delete(["commits/7"])
    assert not sidecar.exists()


def test_the_checksum_of_a_kept_file_is_kept(storage: Storage, root: Path) -> None:
    storage.create("commits/7", b"bytes")
    sidecar = root / "commits" / ".7.crc"
    sidecar.write_bytes(b"of these bytes")
    storage.create("commits/7", b"bytes")
    with pytest.raises(AlreadyExists):
        storage.create("commits/7", b"other")
    assert sidecar.exists()


def test_a_link_below_the_root_is_rejected(storage: Storage, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    for path in ("folder/secret", "file"):
        for act in (
            lambda path=path: storage.read(path),
            lambda path=path: storage.create(path, b""),
            lambda path=path: storage.replace(path, b""),
            lambda path=path: storage.delete([path]),
            lambda path=path: storage.stat(path),
        ):
            with pytest.raises(StorageError, match="symbolic link"):
                act()
    assert storage.list("") == []
    assert [omitted.shown for omitted in storage.omissions.below("")] == ["file", "folder"]
    assert (outside / "secret").read_bytes() == b"secret"


def test_the_root_itself_may_be_a_link(storage: Storage, root: Path, tmp_path: Path) -> None:
    storage.create("name", b"bytes")
    (tmp_path / "link").symlink_to(root)
    assert open_storage(str(tmp_path / "link")).read("name") == b"bytes"


def test_a_file_in_place_of_a_folder_is_named_in_the_error(storage: Storage) -> None:
    storage.create("a", b"")
    with pytest.raises(StorageError, match="a/b"):
        storage.create("a/b", b"")


def test_a_folder_in_place_of_a_file_is_never_replaced(storage: Storage) -> None:
    storage.create("a/b", b"")
    with pytest.raises(StorageError, match="root/a:"):
        storage.create("a", b"")
    with pytest.raises(StorageError, match="root/a:"):
        storage.replace("a", b"")
    assert storage.read("a/b") == b""


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.ENOSPC, StorageError, "no space is left"),
        (errno.EDQUOT, StorageError, "no space is left"),
        (errno.EACCES, AccessDenied, "permission denied"),
        (errno.EROFS, AccessDenied, "mounted read-only"),
        (errno.EIO, StorageError, "Input/output error"),
    ],
)
def test_errors_of_the_operating_system_are_typed(number: int, kind: type[StorageError], text: str) -> None:
    error = translate(OSError(number, os.strerror(number)), "/root/name")
    assert type(error) is kind
    assert text in str(error)
    assert str(error).startswith("/root/name: ")
    assert error.hint


def test_an_unreadable_folder_is_named_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(str(tmp_path))
    storage.create("state/0/1/1.changelog", b"changes")
    scandir = os.scandir

    def refused(folder: Path) -> object:
        """Simulate missing permissions, because root has them all."""
        if folder.name == "1":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(AccessDenied, match=f"^{tmp_path}/state/0/1: "):
        storage.list("state")


@pytest.fixture
def spaced(tmp_path: Path) -> Path:
    folder = tmp_path / "a root"
    folder.mkdir()
    return folder


def test_a_local_root_is_named_by_a_path_or_a_file_url(spaced: Path) -> None:
    open_storage(str(spaced)).create("name", b"bytes")
    urls = [f"file://{spaced}", f"file:{spaced}", f"file://{str(spaced).replace(' ', '%20')}"]
    for url in (*urls, open_storage(str(spaced)).url):
        assert open_storage(url).read("name") == b"bytes"


@pytest.mark.parametrize("url", ["", "ftp://bucket/x", "gs:///x", "dbfs:/x", "file://tmp/x", "s3:///x", "s3:/bucket/x"])
def test_an_unknown_url_is_rejected_with_the_supported_ones(url: str) -> None:
    with pytest.raises(StorageError, match="s3://bucket/folder"):
        open_storage(url)


def test_an_unknown_option_is_rejected(root: Path) -> None:
    with pytest.raises(StorageError, match="endpoint"):
        open_storage(str(root), options={"endpoint": "x"})
    with pytest.raises(StorageError, match="use endpoint_url"):
        open_storage("s3://bucket", options={"endpoint": "x"})


def test_a_spec_does_not_show_its_secret() -> None:
    assert "hush" not in repr(StorageSpec("s3://bucket", (("secret", "hush"),)))


def test_entries_that_are_not_regular_files_are_not_listed_and_never_opened(
    storage: Storage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("a/file", b"bytes")
    (root / "a" / "dangling").symlink_to(root / "nowhere")
    (root / "a" / "loop").symlink_to(root / "a")
    os.mkfifo(root / "a" / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        # The path of a socket has at most 107 bytes, and that of the temporary folder may be longer.
        monkeypatch.chdir(root / "a")
        server.bind("socket")
        (root / "a" / os.fsdecode(b"\xff.zip")).write_bytes(b"no text")
        (root / os.fsdecode(b"folder \xfe")).mkdir()
        assert [entry.path for entry in storage.list("")] == ["a/file"]
        assert storage.folders("") == ["_statekeeper", "a"]
        shown = ["a/\\xff.zip", "a/dangling", "a/fifo", "a/loop", "a/socket", "folder \\xfe"]
        assert [omitted.shown for omitted in storage.omissions.below("")] == shown
        assert [omitted.shown for omitted in storage.omissions.below("a")] == shown[:5]
        for path in ("a/fifo", "a/socket", "a/dangling", "a/loop/file"):
            with pytest.raises(NotAFile):
                storage.read(path)
            with pytest.raises(NotAFile):
                storage.read_range(path, 0, 1)
            with pytest.raises(NotAFile):
                storage.download(path, root / "target")


def test_folders_as_deep_as_a_path_can_be_are_listed(storage: Storage, root: Path) -> None:
    path = "/".join("d" * 1100)
    folders = [root / path[: 2 * level] for level in range(1101)]
    for folder in folders:
        folder.mkdir()
    (root / path / "file").write_bytes(b"")
    try:
        assert [entry.path for entry in storage.list("")] == [f"{path}/file"]
    finally:
        # pytest's own clean-up is recursive.
        (root / path / "file").unlink()
        for folder in reversed(folders):
            folder.rmdir()


def test_a_file_above_the_read_limit_is_rejected(storage: Storage, root: Path) -> None:
    storage.create("commits/0", b"bytes")
    os.truncate(root / "commits" / "0", 20 * 1024**3)
    with pytest.raises(CorruptFile, match="has 21,474,836,480 bytes"):
        storage.read("commits/0")


def test_control_characters_in_names_are_escaped() -> None:
    assert printable("a/\x1b[31m\n\udcff é") == "a/\\x1b[31m\\n\\xff é"


def test_another_process_opens_the_storage_of_a_relative_path_in_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    opened = open_storage("root")
    opened.create("name", b"bytes")
    sent = pickle.dumps(opened)
    monkeypatch.chdir(tmp_path / "there")
    assert pickle.loads(sent).read("name") == b"bytes"
