"""Properties of HDFS only: its rename decides, replies are lost before or after it, namenodes fail over, users differ.

`test_storage` and `test_remote` test the properties that all stores have. `make interop-hdfs` runs all these tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import AccessDenied, AlreadyExists, ObjectMissing, StorageError
from statekeeper.statestore.cli import main
from statekeeper.statestore.storage import TEMP_FOLDER, Created, Storage, open_storage
from tests.support.hdfs_server import MiniHdfs, Relay, Wire

TWO_PIECES_BYTES = 17 * 1024 * 1024


def named(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list("")]


def left_over(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list(TEMP_FOLDER)]


@pytest.fixture
def relay(hdfs: MiniHdfs) -> Iterator[Relay]:
    started = Relay(hdfs)
    yield started
    started.stop()


@pytest.fixture
def relayed(relay: Relay) -> Storage:
    """Return a new root behind the relay."""
    return open_storage(f"webhdfs://{relay.address}/relayed/{RandomIds().fresh()}")


def test_an_hdfs_url_is_rejected_with_the_webhdfs_url_to_use() -> None:
    said = CliRunner().invoke(main, ["audit", "hdfs://namenode:8020/jobs/orders"])
    assert said.exit_code == 1
    assert "webhdfs://namenode:9870/jobs/orders" in said.output


def test_a_server_without_webhdfs_does_not_look_like_an_empty_root() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404 if "GETFILESTATUS" in self.path else 200)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    storage = open_storage(f"webhdfs://127.0.0.1:{server.server_port}/jobs")
    for act in (lambda: storage.list(""), lambda: storage.folders(""), lambda: storage.stat("metadata")):
        with pytest.raises(StorageError, match="does not speak WebHDFS"):
            act()
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["webhdfs", "swebhdfs"])
def test_the_error_of_an_unreachable_server_has_no_token(scheme: str, hdfs: MiniHdfs) -> None:
    port = 1 if scheme == "webhdfs" else hdfs.port  # a port without TLS
    storage = open_storage(f"{scheme}://127.0.0.1:{port}/jobs", options={"token": "a-secret"})
    with pytest.raises(StorageError, match=r"refused|SSLError") as failed:
        storage.read("name")
    assert "a-secret" not in "".join(traceback.format_exception(failed.value))


@pytest.mark.slow
def test_after_a_lost_reply_to_a_rename_the_file_is_found(relay: Relay, relayed: Storage) -> None:
    relay.on("RENAME", Wire.LOSE_ANSWER)
    assert relayed.create("name", b"bytes") is Created.SAME
    assert relayed.read("name") == b"bytes"
    relay.on("RENAME", Wire.LOSE_ANSWER, times=2)
    relayed.replace("name", b"other")
    assert relayed.read("name") == b"other"
    assert relay.happened == [Wire.LOSE_ANSWER] * 3
    assert left_over(relayed) == []


@pytest.mark.slow
def test_a_lost_race_with_a_lost_reply_is_reported_as_a_conflict(relay: Relay, relayed: Storage) -> None:
    relayed.create("name", b"another's")
    relay.on("RENAME", Wire.LOSE_ANSWER)
    with pytest.raises(AlreadyExists):
        relayed.create("name", b"bytes")
    assert relayed.read("name") == b"another's"
    assert left_over(relayed) == []


@pytest.mark.slow
@pytest.mark.parametrize("wire", [Wire.LOSE_ANSWER, Wire.CUT_REQUEST, Wire.REFUSE])
def test_an_interrupted_upload_is_retried_and_never_visible_in_part(
    relay: Relay, relayed: Storage, wire: Wire, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(TWO_PIECES_BYTES))
    relay.on("CREATE", wire, to_datanode=True)
    assert relayed.create("large", source) is Created.NEW
    assert relayed.read("large") == source.read_bytes()
    relay.on("CREATE", wire, to_datanode=True)
    relayed.replace("large", b"small")
    assert relayed.read("large") == b"small"
    relay.on("CREATE", wire, to_datanode=True, times=100)
    for act in (lambda: relayed.create("never", source), lambda: relayed.replace("large", source)):
        with pytest.raises(StorageError, match="NotAnswered"):
            act()
    assert named(relayed) == ["large"]
    assert relayed.read("large") == b"small"


@pytest.mark.slow
def test_a_process_killed_during_an_upload_leaves_no_file_under_the_name(hdfs: MiniHdfs, tmp_path: Path) -> None:
    spec = hdfs.new_root()
    storage, source = open_storage(spec), tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(2 * 1024 * 1024 * 1024)
    script = """
import sys
from pathlib import Path
from statekeeper.statestore.storage import open_storage
open_storage(sys.argv[1]).create("large", Path(sys.argv[2]))
"""
    sender = subprocess.Popen([sys.executable, "-c", script, spec.url, str(source)])
    while not left_over(storage):
        assert sender.poll() is None
    sender.kill()
    sender.wait()
    assert (storage.stat("large"), named(storage)) == (None, [])
    assert len(left_over(storage)) == 1
    assert storage.create("large", b"other") is Created.NEW
    storage.delete(left_over(storage))
    assert left_over(storage) == []


@pytest.mark.slow
def test_an_interrupted_read_does_not_look_like_the_end_of_the_file(relay: Relay, relayed: Storage) -> None:
    relayed.create("name", b"0123456789")
    for read in (lambda: relayed.read("name"), lambda: relayed.read_range("name", 0, 100)):
        relay.on("OPEN", Wire.CUT_ANSWER, to_datanode=True)
        assert read() == b"0123456789"
        relay.on("OPEN", Wire.REFUSE, to_datanode=True)
        assert read() == b"0123456789"
    assert len(relay.happened) == 4


@pytest.mark.slow
def test_a_listing_fails_if_a_part_of_it_fails(relay: Relay, relayed: Storage) -> None:
    for path in ("state/0/0/1", "state/0/1/1", "state/1/0/1"):
        relayed.create(path, b"")
    relay.on("LISTSTATUS", Wire.CUT_ANSWER, times=2)
    assert named(relayed) == ["state/0/0/1", "state/0/1/1", "state/1/0/1"]
    relay.on("LISTSTATUS", Wire.LOSE_ANSWER, times=100)
    with pytest.raises(StorageError, match="NotAnswered"):
        relayed.list("")


@pytest.mark.slow
def test_a_server_that_ignores_rename_options_is_rejected(relay: Relay, relayed: Storage) -> None:
    relayed.create("there", b"bytes")
    relay.on("RENAME", Wire.WITHOUT_OPTIONS, times=100)
    for act in (lambda: relayed.create("a", b""), lambda: relayed.replace("there", b"other")):
        with pytest.raises(StorageError, match="as HttpFS does"):
            act()
    assert relayed.read("there") == b"bytes"
    assert left_over(relayed) == []


@pytest.mark.slow
def test_a_file_is_never_moved_into_a_folder_of_its_name_and_no_folder_is_deleted(hdfs: MiniHdfs) -> None:
    storage = open_storage(hdfs.new_root())
    storage.create("folder/name", b"bytes")
    for act in (lambda: storage.create("folder", b""), lambda: storage.replace("folder", b"")):
        with pytest.raises(StorageError, match="directories"):
            act()
    with pytest.raises(ObjectMissing):
        storage.create("folder/name/below", b"")
    storage.delete(["folder"])
    assert named(storage) == ["folder/name"]
    assert left_over(storage) == []


@pytest.mark.slow
def test_a_reader_during_a_replace_sees_the_old_or_the_new_bytes(hdfs: MiniHdfs) -> None:
    spec = hdfs.new_root()
    storage, reader = open_storage(spec), open_storage(spec)
    bodies = [bytes([letter]) * 1000 for letter in b"abcdefghijklmnopqrst"]
    storage.replace("name", bodies[0])
    done = threading.Event()

    def read() -> set[bytes]:
        seen = set()
        while not done.is_set():
            # For blocks that were deleted meanwhile, a datanode returns an error, never other blocks.
            seen.add(reader.read("name"))
            (about,) = reader.list("")
            assert about.size_bytes == 1000
        return seen

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for body in bodies:
            storage.replace("name", body)
        done.set()
        assert reading.result() <= set(bodies)


@pytest.mark.slow
def test_a_user_without_permission_gets_access_denied(hdfs: MiniHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = hdfs.new_root()
    open_storage(spec).create("name", b"bytes")
    other = open_storage(spec, options={"user": "somebody"})
    assert other.read("name") == b"bytes"
    for act in (lambda: other.create("mine", b""), lambda: other.replace("name", b""), lambda: other.delete(["name"])):
        with pytest.raises(AccessDenied, match="Permission denied: user=somebody"):
            act()
    monkeypatch.setenv("HADOOP_USER_NAME", "another")
    with pytest.raises(AccessDenied, match="user=another"):
        open_storage(spec).create("mine", b"")
    with pytest.raises(AccessDenied, match="not allowed to impersonate"):
        open_storage(spec, options={"user": "somebody", "proxy_to": "another"}).read("name")


@pytest.mark.slow
def test_requests_go_to_the_active_of_two_namenodes() -> None:
    server = MiniHdfs(namenodes=2)
    server.start()
    try:
        spec = server.new_root()
        first, turned = open_storage(spec), open_storage(spec.url.replace(*_swapped(server)))
        assert first.create("name", b"bytes") is turned.create("other", b"") is Created.NEW
        server.fail_over()
        assert first.create("name", b"bytes") is Created.SAME
        first.replace("name", b"later")
        assert turned.read("name") == first.read("name") == b"later"
        assert named(turned) == ["name", "other"]
        standby = spec.url.replace(f",127.0.0.1:{server.ports[1]}", "")
        with pytest.raises(StorageError, match="StandbyException"):
            open_storage(standby).read("name")
    finally:
        server.stop()


def _swapped(server: MiniHdfs) -> tuple[str, str]:
    first, second = (f"127.0.0.1:{port}" for port in server.ports)
    return f"{first},{second}", f"{second},{first}"
