"""Loads of a store from its snapshots, whole and damaged, and the lineage ceiling."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import LineageCeiling
from statekeeper.statestore.checkpoint.lineage import LINEAGE_STOP_BYTES, BaseKind
from statekeeper.statestore.format.changelog_header import Header, lineage_bytes, read_header
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.storage import Storage
from tests.support.changelogs import written
from tests.support.hosts import STORE, History, Host
from tests.support.snapshots import publish_snapshot
from tests.support.stores import GONE, ONLY_V2, carried, flip, overwrite

# --- snapshots ----------------------------------------------------------------------------------------------------


def snapshot(history: History, number: int, storage: Storage, scratch: Path) -> dict[str, str]:
    return publish_snapshot(storage, STORE, history.versions[number], history.states[number], scratch)


def test_a_cold_load_starts_from_the_newest_snapshot_of_its_lineage(
    host: Host, other: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 8)
    for number in (2, 5):
        snapshot(history, number, storage, tmp_path)
    with other.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        metrics = store.load_report
        assert store.lineage == carried(host, history.versions[5:])
    assert (metrics.base, metrics.replayed_changelogs) == (BaseKind.SNAPSHOT, 3)
    assert metrics.skipped_snapshots == ()


def test_a_snapshot_of_the_version_itself_needs_no_changelog(
    host: Host, other: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 6)
    snapshot(history, 6, storage, tmp_path)
    storage.delete([STORE.changelog(version) for version in history.versions[1:]])
    with other.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.lineage == carried(host, [history.head])
    history.grow(other, 2)
    shutil.rmtree(host.folder)
    assert host.read(history.head) == history.states[-1]


def test_a_warm_host_does_not_fetch_a_snapshot_to_advance_one_version(
    host: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 4)
    host.read(history.versions[3])
    snapshot(history, 4, storage, tmp_path)
    with host.load(history.head, snapshots={history.head}) as store:
        assert (store.load_report.base, store.load_report.requests) == (BaseKind.LOCAL, 0)
        assert store.lineage == carried(host, [history.head])


def test_a_copy_older_than_the_retained_files_is_replaced_from_a_snapshot(
    host: Host, other: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 2)
    other.read(history.head)
    history.grow(host, 6)
    snapshot(history, 6, storage, tmp_path)
    storage.delete([STORE.changelog(version) for version in history.versions[1:7]])
    assert other.read(history.head) == history.states[-1]


@ONLY_V2
def test_known_snapshots_shorten_the_lineage(host: Host, other: Host, storage: Storage, tmp_path: Path) -> None:
    history = History()
    history.grow(host, 6)
    snapshot(history, 4, storage, tmp_path)
    version = history.commit(host, {b"new": b"1"}, snapshots={history.versions[4]})
    header = read_header(storage.read(STORE.changelog(version)), "x")
    assert header.lineage == tuple(history.versions[4:7])
    assert other.read(history.head) == history.states[-1]


def test_if_the_presumed_snapshot_is_missing_the_trace_continues_to_older_versions(
    host: Host, other: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 3)
    snapshot(history, 2, storage, tmp_path)
    history.grow(host, 2)
    gone = snapshot(history, 5, storage, tmp_path)
    history.commit(host, {b"a": b"1"}, snapshots={history.versions[5]})
    history.commit(host, {b"a": b"2"}, snapshots={history.versions[5]})
    storage.delete([gone["zip"]])
    with other.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.replayed_changelogs == 5
        assert store.lineage == carried(host, history.versions[2:])


SNAPSHOT_DAMAGES = [
    "zip cut",
    "zip flipped",
    "zip empty",
    "table gone",
    "table cut",
    "table longer",
    "table's end spoilt",
]


@pytest.mark.parametrize("damage", SNAPSHOT_DAMAGES)
def test_a_damaged_snapshot_is_reported_and_an_older_one_is_used(
    host: Host, other: Host, storage: Storage, tmp_path: Path, damage: str
) -> None:
    history = History()
    history.grow(host, 7)
    snapshot(history, 2, storage, tmp_path)
    paths = snapshot(history, 6, storage, tmp_path)
    table = next(path for name, path in paths.items() if name != "zip")
    match damage:
        case "zip cut":
            overwrite(storage, paths["zip"], storage.read(paths["zip"])[:-40])
        case "zip flipped":
            flip(storage, paths["zip"], storage.read(paths["zip"]).index(b"CURRENT") + len("CURRENT") + 2)
        case "zip empty":
            overwrite(storage, paths["zip"], b"")
        case "table gone":
            storage.delete([table])
        case "table cut":
            overwrite(storage, table, storage.read(table)[:-1])
        case "table longer":
            overwrite(storage, table, storage.read(table) + b"\0")
        case _:
            data = storage.read(table)
            overwrite(storage, table, data[:-60] + bytes(60))
    with other.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        metrics = store.load_report
        assert (metrics.base, metrics.replayed_changelogs) == (BaseKind.SNAPSHOT, 5)
        assert store.lineage == carried(host, history.versions[2:])
    (skipped,) = metrics.skipped_snapshots
    assert STORE.snapshot(history.versions[6]) in skipped
    assert len(list(other.folder.glob("db-*"))) == 1


def test_if_all_snapshots_are_damaged_the_load_replays_from_the_empty_version(
    host: Host, other: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 4)
    for number in (2, 4):
        overwrite(storage, snapshot(history, number, storage, tmp_path)["zip"], b"garbage")
    with other.load(history.head) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.base is BaseKind.NOTHING
        assert len(store.load_report.skipped_snapshots) == 2


@ONLY_V2
def test_a_late_snapshot_of_a_dead_attempt_is_ignored(
    host: Host, other: Host, storage: Storage, tmp_path: Path
) -> None:
    history = History()
    history.grow(host, 3)
    dead = other.commit(history.versions[2], {b"dead": b"x"})
    publish_snapshot(storage, STORE, dead, {b"dead": b"x"}, tmp_path)
    history.grow(host, 2)
    fresh = Host(storage, tmp_path / "host c")
    with fresh.load(history.head, snapshots={dead}) as store:
        assert dict(store.scan()) == history.states[-1]
        assert store.load_report.base is BaseKind.NOTHING
        assert store.lineage == tuple(history.versions[1:])


def test_foreign_files_beside_the_stores_are_ignored(host: Host, other: Host, storage: Storage) -> None:
    history = History()
    history.grow(host, 3)
    for name in ("foo.zip", f"3_{GONE.id}.zip.tmp", "SSTs/3.zip", f"sub/{history.versions[2]}.zip", "9.zip", "x.crc"):
        storage.create(f"{STORE.folder}/{name}", b"garbage")
    assert other.read(history.head) == history.states[-1]


# --- the lineage ceiling ------------------------------------------------------------------------------------------


def long_lineage(storage: Storage, length: int) -> VersionId:
    """Write a version and its `length` predecessors as changelogs, without a snapshot."""

    lineage = tuple(VersionId(number, f"{number:08x}-0000-4000-8000-000000000000") for number in range(1, length + 1))
    version = VersionId(length + 1, GONE.id)
    storage.create(STORE.changelog(version), written([], Header(lineage)))
    for item in lineage:
        storage.create(STORE.changelog(item), written([], Header(lineage[: item.version - 1])))
    return version


@ONLY_V2
def test_near_the_ceiling_the_store_stops_with_a_typed_error_until_a_snapshot_exists(
    storage_spec: object, storage: Storage, host: Host, tmp_path: Path
) -> None:
    if not storage.url.startswith("file:"):
        pytest.skip("800 objects; the ceiling does not depend on the storage")
    length = next(
        n
        for n in range(1, 1000)
        if lineage_bytes([VersionId(m, GONE.id) for m in range(1, n + 2)]) > LINEAGE_STOP_BYTES
    )
    head = long_lineage(storage, length)
    with pytest.raises(LineageCeiling, match="run: statekeeper snapshot ROOT --all") as raised:
        host.load(head)
    assert raised.value.path == STORE.folder
    assert not list(host.folder.glob("private-*"))
    publish_snapshot(storage, STORE, head, {b"a": b"1"}, tmp_path)
    with host.load(head, snapshots={head}) as store:
        assert len(store.lineage) == 1
        store.commit()
