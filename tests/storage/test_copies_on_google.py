"""Copies inside Google Cloud Storage do not overwrite an object that another process created."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from statekeeper.statestore.base.errors import AlreadyExists, ObjectMissing, SourceChanged
from statekeeper.statestore.storage import Entry, Storage, open_storage
from tests.support.google_server import GoogleServer
from tests.support.storage_servers import GoogleStore, Testbench

PATH = "state/a ü.sst"
BODY = b"x" * 100_000


@dataclass(frozen=True)
class Copying:
    """A copy of PATH, which `entry` lists, from one root to another."""

    server: GoogleStore
    one: Storage
    two: Storage
    entry: Entry

    def copy(self) -> None:
        self.two.copy(PATH, self.one.location, self.entry)

    def put(self, storage: Storage, body: bytes) -> None:
        self.server.put(f"{storage.url}/{PATH}", body)


def started(server: GoogleStore) -> Copying:
    one, two = (open_storage(server.new_root()) for _ in range(2))
    server.put(f"{one.url}/{PATH}", BODY)
    entry = one.stat(PATH)
    assert entry is not None
    return Copying(server, one, two, entry)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[type[GoogleStore], GoogleStore]]:
    found: dict[type[GoogleStore], GoogleStore] = {}
    yield found
    for server in found.values():
        server.stop()


@pytest.fixture(params=[GoogleServer, pytest.param(Testbench, marks=pytest.mark.slow)])
def copying(request: pytest.FixtureRequest, servers: dict[type[GoogleStore], GoogleStore]) -> Copying:
    kind: type[GoogleStore] = request.param
    if kind not in servers:
        server = kind()
        server.start()
        servers[kind] = server
    return started(servers[kind])


@pytest.fixture
def server() -> Iterator[GoogleServer]:
    made = GoogleServer()
    made.start()
    yield made
    made.stop()


def test_an_object_of_another_process_is_not_overwritten(copying: Copying) -> None:
    copying.put(copying.two, b"y" * len(BODY))
    with pytest.raises(AlreadyExists, match="was not overwritten"):
        copying.copy()
    assert copying.two.read(PATH) == b"y" * len(BODY)


def test_a_copy_that_is_sent_again_is_complete(copying: Copying) -> None:
    for _ in range(2):
        copying.copy()
    assert copying.two.read(PATH) == BODY


def test_an_empty_object_is_copied_again(copying: Copying) -> None:
    copying.put(copying.one, b"")
    entry = copying.one.stat(PATH)
    assert entry is not None
    for _ in range(2):
        copying.two.copy(PATH, copying.one.location, entry)
    assert copying.two.read(PATH) == b""


@pytest.mark.parametrize("there", [None, BODY, b"later", b"of others"])
def test_a_changed_source_is_not_reported_as_an_existing_target(copying: Copying, there: bytes | None) -> None:
    copying.put(copying.one, b"later")
    if there is not None:
        copying.put(copying.two, there)
    with pytest.raises(SourceChanged, match="changed since it was listed"):
        copying.copy()
    found = copying.two.stat(PATH)
    assert (None if found is None else copying.two.read(PATH)) == there


@pytest.mark.parametrize("there", [None, BODY])
def test_a_deleted_source_is_missing(copying: Copying, there: bytes | None) -> None:
    copying.one.delete([PATH])
    if there is not None:
        copying.put(copying.two, there)
    with pytest.raises(ObjectMissing):
        copying.copy()


def test_a_copy_whose_reply_is_lost_is_complete(server: GoogleServer) -> None:
    copying = started(server)
    server.lost_replies = 1
    copying.copy()
    assert copying.two.read(PATH) == BODY
    assert len(server.rewrites) == 2


def test_each_call_of_a_large_copy_has_both_conditions(server: GoogleServer) -> None:
    copying = started(server)
    server.bytes_per_call = len(BODY) // 2
    copying.copy()
    assert copying.two.read(PATH) == BODY
    conditions = [(call["ifSourceGenerationMatch"], call["ifGenerationMatch"]) for call in server.rewrites]
    assert conditions == [(copying.entry.etag, "0")] * 2


def test_an_object_that_is_created_during_a_large_copy_is_not_overwritten(server: GoogleServer) -> None:
    copying = started(server)
    server.bytes_per_call = len(BODY) // 2
    server.between = lambda: server.answer(
        "POST", "/upload/storage/v1/b/container-2/o", {"name": f"a root/{PATH}"}, b"of others"
    )
    with pytest.raises(AlreadyExists):
        copying.copy()
    assert copying.two.read(PATH) == b"of others"
