"""Each request of a load and a commit, with each fault that can occur, on local disk and on S3.

After each: a restart on the same scratch folder and one on a fresh host must find nothing lost and nothing wrong, and
the operation must run to its end.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.checkpoint import digests
from statekeeper.statestore.format.names import StoreFileKind, VersionId, parse_store_file
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage
from tests.support.faulty_storage import FaultyStorage, SimulatedCrash, crash_matrix
from tests.support.hosts import STORE, History, Host, changed, column
from tests.support.snapshots import publish_snapshot
from tests.support.switching import WRITES

PART_BYTES = 20_000
CHANGES: dict[bytes, bytes | None] = {b"counter": b"new", b"key 002": None, b"one more": b"x"}
CHANGES |= {b"large %d" % number: random.Random(number).randbytes(10_000) for number in range(10)}


@dataclass(frozen=True)
class Scene:
    """A checkpoint of six versions with a snapshot of the third, and a folder of the host that is about to act."""

    storage: Storage
    history: History
    folder: Path
    structure: Structure

    def host(self, folder: Path, storage: Storage | None = None) -> Host:
        return Host(storage or self.storage, folder, structure=self.structure)


def load(host: Host, scene: Scene) -> VersionId | None:
    with host.load(scene.history.head) as store:
        assert dict(store.scan()) == scene.history.states[-1]
    return None


def commit(host: Host, scene: Scene) -> VersionId | None:
    with host.load(scene.history.head) as store:
        store.put(column(list(CHANGES)), column(list(CHANGES.values())))
        return store.commit()


def commit_in_parts(host: Host, scene: Scene) -> VersionId | None:
    """Five full parts go out before the commit, and a last one with it."""
    host = replace(host, limits=replace(host.limits, part_bytes=PART_BYTES))
    with host.load(scene.history.head) as store:
        for key, value in CHANGES.items():
            store.put(column([key]), column([b"overwritten below"]))
            store.put(column([key]), column([value]))
        version = store.commit()
        assert store.commit_metrics.uploaded_bytes > 5 * PART_BYTES
        return version


Act = Callable[[Host, Scene], VersionId | None]

# The local copy at the start: none, an older version, or the head.
ACTS: dict[str, tuple[Act, int | None]] = {
    "cold load": (load, None),
    "load that catches up": (load, 4),
    "cold load and commit": (commit, None),
    "warm load and commit": (commit, 6),
    "warm load and commit in parts": (commit_in_parts, 6),
}
FEWEST_CASES = {
    "cold load": 17,
    "load that catches up": 8,
    "cold load and commit": 21,
    "warm load and commit": 4,
    "warm load and commit in parts": 24,
}
"""Fewer would mean that requests are no longer seen."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART_BYTES)


@pytest.fixture
def scene(storage: Storage, tmp_path: Path, structure: Structure) -> Scene:
    history = History()
    writer = Host(storage, tmp_path / "writer", structure=structure)
    history.grow(writer, 6)
    publish_snapshot(storage, STORE, history.versions[3], history.states[3], tmp_path)
    return Scene(storage, history, tmp_path / "hosts", structure)


@pytest.mark.parametrize("name", ACTS)
def test_a_crash_at_any_request_loses_no_committed_version_and_shows_no_wrong_row(
    scene: Scene, name: str, record_property: Callable[[str, object], None]
) -> None:
    act, warm = ACTS[name]
    prepared = scene.folder / "prepared"
    if warm is None:
        prepared.mkdir(parents=True)
    else:
        assert scene.host(prepared).read(scene.history.versions[warm]) == scene.history.states[warm]

    rehearsal = FaultyStorage(scene.storage)
    act(scene.host(_copy(prepared, scene.folder / "rehearsal"), rehearsal), scene)
    _forget(scene)
    cases = crash_matrix(rehearsal.trace)
    for number, (request, fault) in enumerate(cases):
        before = _versions_in_storage(scene)
        faulty = FaultyStorage(scene.storage, {request.number: fault})
        folder = _copy(prepared, scene.folder / f"case {number}")
        version: VersionId | None = None
        with suppress(SimulatedCrash, StorageError):
            version = act(scene.host(folder, faulty), scene)
        assert len(faulty.trace) > request.number, f"{request} was not reached"

        # The same host starts again, and a host without local state.
        fresh = scene.host(scene.folder / f"fresh {number}")
        again = scene.host(folder)
        for host in (again, fresh):
            assert host.read(scene.history.head) == scene.history.states[-1], (request, fault)
        _check_what_was_added(scene, before, again, version)
        done = act(again, scene)
        if done is not None:
            assert fresh.read(done) == changed(scene.history.states[-1], CHANGES), (request, fault)
        # A request that only reads leaves the older versions as they were.
        older = list(zip(scene.history.versions, scene.history.states, strict=True))[::2]
        for old, state in older if request.kind in WRITES else ():
            assert fresh.read(old) == state, (request, fault)
        _forget(scene)
        shutil.rmtree(folder)
        shutil.rmtree(fresh.folder)
    assert len(cases) >= FEWEST_CASES[name]
    record_property("crash_matrix_cases", len(cases))
    print(f"{name} on {_kind(scene.storage)}: {len(rehearsal.trace)} requests, {len(cases)} cases")


def _check_what_was_added(scene: Scene, before: set[VersionId], host: Host, version: VersionId | None) -> None:
    """A commit that was cut short is wholly there under its own id or not at all; one that was reported is there."""
    added = _versions_in_storage(scene) - before
    assert len(added) <= 1
    assert version is None or version in added
    for landed in added:
        assert landed.version == scene.history.head.version + 1
        if scene.structure is Structure.V1:
            landed = confirmed_as(landed, scene, host)
        assert host.read(landed) == changed(scene.history.states[-1], CHANGES)


def confirmed_as(version: VersionId, scene: Scene, host: Host) -> VersionId:
    """The version with the digest that its file gives it on top of the head."""
    file = host.folder / "landed"
    scene.storage.download(STORE.changelog(version), file)
    return digests.following(STORE, scene.history.head, file)


def _forget(scene: Scene) -> None:
    """Delete the changelog of structure V1. The next case writes the same name, and the two could not be distinguished."""
    if scene.structure is Structure.V1:
        scene.storage.delete([STORE.changelog(VersionId(scene.history.head.version + 1))])


def _versions_in_storage(scene: Scene) -> set[VersionId]:
    found = [parse_store_file(entry.path.rpartition("/")[2]) for entry in scene.storage.list(STORE.folder)]
    return {file.version for file in found if file is not None and file.kind is StoreFileKind.CHANGELOG}


def _copy(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


def _kind(storage: Storage) -> str:
    return storage.url.split(":")[0]
