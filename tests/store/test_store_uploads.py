"""Changelogs that are uploaded in parts while the batch is computed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.format import batch_log, logs, names
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import TEMP_FOLDER, Storage
from statekeeper.statestore.storage.s3 import S3Storage
from statekeeper.statestore.store.state_store import BatchLogPart, StateStore, StoreAddress
from tests.support.faulty_storage import Fault, FaultyStorage, Request
from tests.support.hosts import STORE, History, Host
from tests.support.s3_server import CREDENTIALS
from tests.support.uploads import PART_BYTES, PIECES, fill, host_with_small_parts


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART_BYTES)


def nothing_is_left(storage: Storage) -> bool:
    return storage.list(STORE.folder) == [] and storage.list(TEMP_FOLDER) == [] and storage.unfinished_uploads() == []


def test_a_large_changelog_is_uploaded_before_commit_is_called(host: Host, other: Host) -> None:
    before = host.storage.requests.snapshot()
    with host_with_small_parts(host).load(EMPTY) as store:
        loaded = host.storage.requests.since(before).total
        state = fill(store)
        assert host.storage.list(STORE.folder) == [], "not visible yet"
        listed = host.storage.requests.since(before).list
        version = store.commit()
    metrics = store.commit_metrics
    assert metrics.early_bytes >= 0.8 * metrics.uploaded_bytes
    assert metrics.early_bytes % PART_BYTES == 0
    assert metrics.requests == host.storage.requests.since(before).total - loaded - listed
    (entry,) = host.storage.list(STORE.folder)
    assert entry.size_bytes == metrics.uploaded_bytes
    assert host.read(version) == state
    assert other.read(version) == state, "in V1 the digest is that of the object"
    assert host.storage.unfinished_uploads() == [] == host.storage.list(TEMP_FOLDER)


def test_the_object_has_the_bytes_of_a_changelog_that_is_uploaded_at_once(
    host: Host, other: Host, structure: Structure
) -> None:
    if structure is Structure.V2:
        with host_with_small_parts(host).load(EMPTY) as early, other.load(EMPTY) as late:
            fill(early)
            fill(late)
            ours, theirs = (host.storage.read(STORE.changelog(store.commit())) for store in (early, late))
        assert ours == theirs
        assert late.commit_metrics.early_bytes == 0 < early.commit_metrics.early_bytes
        return
    with host_with_small_parts(host).load(EMPTY) as early:
        fill(early)
        version = early.commit()
    assert other.commit(EMPTY, {}).digest != version.digest
    with other.load(EMPTY) as late:
        fill(late)
        assert late.commit() == version, "equal bytes have equal digests"


def test_an_abort_leaves_nothing(host: Host) -> None:
    with host_with_small_parts(host).load(EMPTY) as store:
        fill(store)
    assert nothing_is_left(host.storage)
    assert list(host.folder.glob("changelogs/*")) == []


def test_an_update_function_that_fails_leaves_nothing(host: Host) -> None:
    def fail() -> None:
        with host_with_small_parts(host).load(EMPTY) as store:
            fill(store)
            raise RuntimeError("of the update function")

    with pytest.raises(RuntimeError):
        fail()
    assert nothing_is_left(host.storage)


def test_a_small_changelog_is_uploaded_in_one_request(host: Host) -> None:
    with host_with_small_parts(host).load(EMPTY) as store:
        fill(store, 3)
        before = host.storage.requests.snapshot()
        store.commit()
    spent = host.storage.requests.since(before)
    assert spent.create + spent.replace == 1
    assert store.commit_metrics.early_bytes == 0


def has_bytes(request: Request) -> bool:
    return request.kind.value in ("create", "replace")


@pytest.mark.parametrize("number", range(5))
def test_a_failed_part_does_not_lose_the_changes(host: Host, other: Host, number: int) -> None:
    with host_with_small_parts(host).load(EMPTY) as store:
        state = fill(store)
    rehearsal = FaultyStorage(host.storage)
    with host_with_small_parts(host, rehearsal).load(EMPTY) as store:
        begins = len(rehearsal.trace)
    faulty = FaultyStorage(host.storage, {begins + number: Fault.LOST_REPLY})
    with host_with_small_parts(host, faulty).load(EMPTY) as store:
        fill(store)
        version = store.commit()
    assert store.commit_metrics.early_bytes == 0
    assert other.read(version) == state
    left = [*host.storage.unfinished_uploads(), *host.storage.list(TEMP_FOLDER)]
    assert [one.size_bytes for one in left] == ([0] if number == 0 else []), "retention drops an upload without a reply"


def test_a_commit_can_be_repeated_when_the_storage_works_again(host: Host, other: Host) -> None:
    class Broken(FaultyStorage):
        """Fails every write while it is broken."""

        works = True

        def _fault_of(self, request: Request) -> Fault | None:
            return None if self.works or not has_bytes(request) else Fault.LOST_REPLY

        def _do(self, kind, path, act: Callable, tear=None):  # type: ignore[no-untyped-def]
            if not self.works and kind.value in ("create", "replace"):
                raise StorageError("is down", path=path)
            return super()._do(kind, path, act, tear)

    broken = Broken(host.storage)
    with host_with_small_parts(host, broken).load(EMPTY) as store:
        state = fill(store)
        broken.works = False
        for _ in range(2):
            with pytest.raises(StorageError, match="is down"):
                store.commit()
        assert host.storage.list(STORE.folder) == []
        broken.works = True
        version = store.commit()
    assert other.read(version) == state
    assert host.storage.unfinished_uploads() == [] == host.storage.list(TEMP_FOLDER)


def test_a_duplicate_attempt_has_an_object_of_its_own(host: Host, other: Host, structure: Structure) -> None:
    with host_with_small_parts(host).load(EMPTY) as first, host_with_small_parts(other).load(EMPTY) as second:
        state = fill(first)
        fill(second)
        versions = {first.commit(), second.commit()}
    assert len(versions) == len(host.storage.list(STORE.folder)) == (2 if structure is Structure.V2 else 1)
    assert all(other.read(version) == state for version in versions)


def test_a_zombie_does_not_replace_a_confirmed_changelog(host: Host, other: Host, structure: Structure) -> None:
    if structure is Structure.V2:
        pytest.skip("each attempt has a name of its own")
    history = History()
    with host_with_small_parts(host).load(EMPTY) as zombie:
        fill(zombie)
        history.commit(other, {b"key": b"confirmed"})
        zombie.commit()
    assert other.read(history.head) == {b"key": b"confirmed"}
    assert host.storage.unfinished_uploads() == [] == host.storage.list(TEMP_FOLDER)


@pytest.mark.parametrize(("most_bytes", "is_member"), [(10 * PART_BYTES, True), (5 * PART_BYTES, False)])
def test_a_changelog_that_may_be_a_member_of_the_batch_log_is_not_uploaded_early(
    host: Host, tmp_path: Path, structure: Structure, most_bytes: int, is_member: bool
) -> None:
    if structure is Structure.V1:
        pytest.skip("structure V1 has no batch logs")
    pieces = most_bytes // 10_000 - 2 if is_member else PIECES
    with StateStore.load(
        StoreAddress(STORE, tmp_path / "local"),
        EMPTY,
        storage=host.storage,
        clock=host.clock,
        ids=_Ids(),
        limits=replace(host.limits, part_bytes=PART_BYTES),
        batch_log=BatchLogPart(batch_log.tag_of(_Ids().fresh()), most_bytes),
    ) as store:
        fill(store, pieces)
        version = store.commit()
    assert (store.member is not None) is is_member
    assert (store.commit_metrics.early_bytes == 0) is is_member
    assert len(host.storage.list(STORE.folder)) == (not is_member)
    assert (batch_log.path_of(version) is not None) is is_member


class _Ids:
    def fresh(self) -> str:
        return "6ad1f0c2-11aa-4c3d-9f00-0123456789ab"


def test_a_task_that_is_killed_leaves_nothing_visible(host: Host, other: Host) -> None:
    inner = host.storage.inner
    options = {**CREDENTIALS, "endpoint_url": inner._endpoint} if isinstance(inner, S3Storage) else {}
    script = f"""
import os, signal
from tests.support.uploads import fill, host_with_small_parts
from tests.support.hosts import Host
from statekeeper.statestore.format.names import EMPTY
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from pathlib import Path
host = Host(open_storage({host.storage.url!r}, options={options}), Path({str(host.folder)!r}),
            structure=Structure({host.structure.value!r}))
with host_with_small_parts(host).load(EMPTY) as store:
    fill(store)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert host.storage.list("") == []
    left = [*host.storage.unfinished_uploads(), *host.storage.list(TEMP_FOLDER)]
    assert [one.size_bytes >= 10 * PART_BYTES for one in left] == [True]
    # The next attempt is not disturbed, on this host or another.
    with host_with_small_parts(host).load(EMPTY) as store:
        state = fill(store)
        version = store.commit()
    assert other.read(version) == state


def test_the_next_batch_builds_on_a_changelog_in_parts(host: Host, other: Host, structure: Structure) -> None:
    with host_with_small_parts(host).load(EMPTY) as store:
        state = fill(store)
        first = store.commit()
    if structure is Structure.V1:
        digests = {STORE.operator: ((str(first.digest),),) * (STORE.partition + 1)}
        host.storage.create(names.commits(0), logs.encode_commit(logs.CommitLog(0, None, digests)))
    second: VersionId = host.commit(first, {b"counter": None})
    del state[b"counter"]
    assert host.read(second) == other.read(second) == state
