"""A conditional delete keeps an object that another process has overwritten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import NoExclusiveCreate
from statekeeper.statestore.root.binding import Binding, bind
from statekeeper.statestore.root.columns import StoreSchema
from statekeeper.statestore.storage import TEMP_FOLDER, Deletion, Storage, open_storage
from statekeeper.statestore.storage.exclusive import require_exclusive_create
from tests.support.s3_server import S3Server, Wire


@pytest.fixture
def server() -> Iterator[S3Server]:
    """A new server, because the support is tested once per server."""
    server = S3Server()
    server.start()
    yield server
    server.stop()


def bucket_of(server: S3Server) -> Storage:
    return open_storage(f"s3://{server.make_bucket()}/root", options=server.options)


def test_an_object_is_deleted_only_if_it_has_the_given_bytes(storage: Storage) -> None:
    storage.create("name", b"mine")
    assert storage.delete_unchanged("name", b"other") is Deletion.CHANGED
    assert storage.delete_unchanged("name", b"longer than mine") is Deletion.CHANGED
    assert storage.read("name") == b"mine"
    assert storage.delete_unchanged("name", b"mine") is Deletion.DELETED
    assert storage.delete_unchanged("name", b"mine") is Deletion.MISSING
    assert [entry.path for entry in (*storage.list(""), *storage.list(TEMP_FOLDER))] == []


@pytest.mark.parametrize("honours", [True, False], ids=["If-Match is honoured", "If-Match is ignored"])
def test_support_of_conditional_deletes_is_tested_once(server: S3Server, honours: bool) -> None:
    server.deletes_on_condition = honours
    storage = bucket_of(server)
    for expected in (3, 0):
        storage.create("name", b"mine")
        before = storage.requests.snapshot()
        assert storage.delete_unchanged("name", b"mine") is Deletion.DELETED
        spent = storage.requests.since(before)
        assert (spent.read, spent.total - spent.read) == (1, expected + 1)
    assert storage.list(TEMP_FOLDER) == []


def test_an_object_written_between_check_and_delete_is_kept_on_s3(server: S3Server) -> None:
    server.deletes_on_condition = True
    storage = bucket_of(server)
    storage.create("first", b"")
    storage.delete_unchanged("first", b"")
    storage.create("name", b"mine")
    backend = storage.inner
    delete_if = backend._delete_if

    def late(path: str, etag: str) -> None:
        storage.replace(path, b"the successor's")
        delete_if(path, etag)

    backend._delete_if = late
    assert storage.delete_unchanged("name", b"mine") is Deletion.CHANGED
    assert storage.read("name") == b"the successor's"


def test_a_file_written_between_check_and_delete_is_kept_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(str(tmp_path))
    storage.create("name", b"mine")
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        if self.name == "name":
            storage.replace("name", b"the successor's")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    assert storage.delete_unchanged("name", b"mine") is Deletion.CHANGED
    assert storage.read("name") == b"the successor's"
    assert storage.list(TEMP_FOLDER) == []


def test_a_delete_with_a_lost_reply_is_not_reported_as_a_change(server: S3Server) -> None:
    server.deletes_on_condition = True
    storage = bucket_of(server)
    storage.create("first", b"")
    storage.delete_unchanged("first", b"")
    storage.create("name", b"mine")
    server.next("DELETE", "name", Wire.LOSE_REPLY)
    assert storage.delete_unchanged("name", b"mine") in (Deletion.DELETED, Deletion.MISSING)
    assert storage.stat("name") is None


def test_a_store_that_overwrites_silently_is_rejected(server: S3Server) -> None:
    storage = bucket_of(server)
    require_exclusive_create(storage, RandomIds())
    server.ignores_if_none_match = True
    with pytest.raises(NoExclusiveCreate, match="If-None-Match"):
        require_exclusive_create(storage, RandomIds())
    store = StoreSchema("default", '{"type":"struct","fields":[]}', '{"type":"struct","fields":[]}')
    with pytest.raises(NoExclusiveCreate):
        bind(
            storage,
            Binding(root_id="", query_id="a query", partitions=2, key_groups=64, stores=(store,)),
            batch=0,
            ids=RandomIds(),
        )
    assert (storage.list(""), storage.list(TEMP_FOLDER)) == ([], [])


def test_exclusive_create_is_tested_only_when_a_root_is_created(storage: Storage) -> None:
    wanted = Binding(
        root_id="",
        query_id="a query",
        partitions=2,
        key_groups=64,
        stores=(StoreSchema("default", '{"fields":[]}', '{"fields":[]}'),),
    )
    bind(storage, wanted, batch=0, ids=RandomIds())
    before = storage.requests.snapshot()
    bind(storage, wanted, batch=0, ids=RandomIds())
    spent = storage.requests.since(before)
    assert (spent.read, spent.list, spent.total) == (1, 1, 2)
    assert storage.list(TEMP_FOLDER) == []
