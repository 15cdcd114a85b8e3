"""Snapshots of stores with column families, whose names only snapshots know. Made without Spark, as Spark leaves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion, VersionNotLoadable
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.logs import STATE_CONF, CommitLog, OffsetLog
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.snapshot import encode_snapshot, read_snapshot
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotPolicy, Taken, execute, gather, plan
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.changelogs import changelog_with_families
from tests.support.snapshots import publish_snapshot

STORE = StorePath(0, 0)
DEFAULT, VALUES = b"\0\0", b"\1\0"
"""How the keys of two families begin."""
IDS = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(7)]


def version(number: int) -> VersionId:
    return VersionId(number, IDS[number])


def publish(
    storage: Storage, number: int, keys: list[bytes], families: dict[str, int], scratch: Path, *, merges: bool = True
) -> dict[str, str]:
    """A snapshot as Spark writes it for an operator with column families."""
    paths = publish_snapshot(storage, STORE, version(number), dict.fromkeys(keys, b"value"), scratch)
    found = read_snapshot(storage.read(paths["zip"]), paths["zip"])
    operator = b"merge_operator={id=StringAppendOperator;delimiter=,;}"
    files = {
        name: body.replace(b"merge_operator=nullptr", operator) if merges and name.startswith("OPTIONS") else body
        for name, body in found.files.items()
    }
    assert not merges or any(operator in body for body in files.values())
    metadata = replace(found.metadata, column_families=families, largest_family_id=max(families.values()))
    storage.replace(paths["zip"], encode_snapshot(replace(found, files=files, metadata=metadata)))
    return paths


@pytest.fixture
def root(tmp_path: Path) -> Storage:
    """Six versions; the fifth is the first with keys of the second family."""
    storage = open_storage(str(tmp_path / "root"))
    storage.create(names.QUERY_METADATA, logs.encode_metadata("a query"))
    described = operators.OperatorMetadata(
        0, "tws", (operators.StoreInfo(name=names.DEFAULT_STORE, prefix_columns=0, partitions=1),)
    )
    storage.create(names.operator_metadata(0), operators.encode_operator(described))
    for number in range(1, 7):
        lineage = [version(before) for before in range(1 if number <= 3 else 3, number)]
        family = VALUES if number >= 5 else DEFAULT
        storage.create(STORE.changelog(version(number)), changelog_with_families(number, lineage, family))
        storage.create(
            names.offsets(number - 1),
            logs.encode_offsets(
                OffsetLog(watermark_ms=0, timestamp_ms=0, conf=dict(STATE_CONF), sources=('"a source"',))
            ),
        )
        ids = {0: ((IDS[number],),)}
        storage.create(names.commits(number - 1), logs.encode_commit(CommitLog(0, ids)))
    return storage


def taken(storage: Storage, scratch: Path) -> Taken:
    [action] = plan(gather(storage), SnapshotPolicy(), take_all=True).take
    return execute(storage, action, scratch=scratch, clock=SystemClock(), ids=RandomIds())


def test_the_families_are_those_of_the_newest_base(root: Storage, tmp_path: Path) -> None:
    publish(root, 3, [DEFAULT + b"key %d" % n for n in (1, 2, 3)], {"default": 0}, tmp_path)
    newest = {"default": 0, "values": 1, "timers": 2}
    keys = [*(DEFAULT + b"key %d" % n for n in (1, 2, 3, 4)), VALUES + b"key 5"]
    publish(root, 5, keys, newest, tmp_path)
    assert taken(root, tmp_path).skipped_snapshots == ()
    path = STORE.snapshot(version(6))
    made = read_snapshot(root.read(path), path).metadata
    assert (made.column_families, made.largest_family_id, made.key_count) == (newest, 2, 6)


def test_with_a_damaged_newest_base_an_older_one_may_lack_families_and_no_snapshot_is_taken(
    root: Storage, tmp_path: Path
) -> None:
    """The older base names all families with keys, and does not reveal that the newer one names `timers`."""
    publish(root, 3, [DEFAULT + b"key %d" % n for n in (1, 2, 3)], {"default": 0, "values": 1}, tmp_path)
    keys = [*(DEFAULT + b"key %d" % n for n in (1, 2, 3, 4)), VALUES + b"key 5"]
    paths = publish(root, 5, keys, {"default": 0, "values": 1, "timers": 2}, tmp_path)
    root.replace(next(path for name, path in paths.items() if name != "zip"), b"damaged")
    before = {entry.path for entry in root.list(names.STATE)}
    with pytest.raises(
        CorruptFile, match="an older snapshot cannot replace it, because it may lack column families"
    ) as refused:
        taken(root, tmp_path)
    assert refused.value.path == STORE.snapshot(version(5))
    assert {entry.path for entry in root.list(names.STATE)} == before


def test_a_snapshot_that_lacks_the_family_of_a_key_is_no_base(root: Storage, tmp_path: Path) -> None:
    publish(root, 3, [DEFAULT + b"key %d" % n for n in (1, 2, 3)], {"default": 0}, tmp_path)
    with pytest.raises(UnknownFormatVersion, match="has keys of column family 1, and its base does not name"):
        taken(root, tmp_path)
    assert root.stat(STORE.snapshot(version(6))) is None


def test_a_base_whose_options_name_no_merge_operator_is_rejected(root: Storage, tmp_path: Path) -> None:
    keys = [DEFAULT + b"key %d" % n for n in (1, 2, 3)]
    publish(root, 3, keys, {"default": 0, "values": 1}, tmp_path, merges=False)
    with pytest.raises(UnknownFormatVersion, match="a merge operator other than StringAppend"):
        taken(root, tmp_path)
    assert root.stat(STORE.snapshot(version(6))) is None


def rewritten(root: Storage, path: str, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
    """Return the same snapshot with other small files, as a user with write access to the bucket can create it."""
    found = read_snapshot(root.read(path), path)
    root.replace(path, encode_snapshot(replace(found, files=change(found.files))))


def test_the_options_of_a_snapshot_do_not_send_rocksdb_to_other_directories(root: Storage, tmp_path: Path) -> None:
    keys = [DEFAULT + b"key %d" % n for n in (1, 2, 3)]
    zip_path = publish(root, 3, keys, {"default": 0, "values": 1}, tmp_path)["zip"]
    bystanders = [tmp_path / "wal", tmp_path / "logs"]
    for folder in bystanders:
        folder.mkdir()
        (folder / "000004.log").write_bytes(b"of a database that is in use")
        (folder / "LOG").write_bytes(b"what it says")
    sent = f"[DBOptions]\n  wal_dir={bystanders[0]}\n  db_log_dir={bystanders[1]}\n".encode()

    def mislead(files: dict[str, bytes]) -> dict[str, bytes]:
        return {name: body.replace(b"[DBOptions]\n", sent) for name, body in files.items()}

    rewritten(root, zip_path, mislead)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for folder in bystanders for path in folder.iterdir()}
    taken(root, tmp_path)
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for folder in bystanders for path in folder.iterdir()}
    assert after == before
    published = read_snapshot(root.read(STORE.snapshot(version(6))), STORE.snapshot(version(6)))
    written = b"".join(body for name, body in published.files.items() if name.startswith("OPTIONS"))
    assert b"StringAppendOperator" in written
    assert str(tmp_path).encode() not in written


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda files: {**files, "CURRENT": b"../../MANIFEST-000005\n"}, "CURRENT that names"),
        (lambda files: {**files, "CURRENT": b"MANIFEST-000099\n"}, "CURRENT that names"),
        (lambda files: {**files, "000099.log": b"records"}, "has records in the write-ahead log 000099.log"),
        (lambda files: {n: b for n, b in files.items() if not n.startswith("OPTIONS")}, "no OPTIONS file"),
    ],
)
def test_small_files_that_spark_does_not_write_make_a_snapshot_unusable(
    root: Storage, tmp_path: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]], problem: str
) -> None:
    keys = [DEFAULT + b"key %d" % n for n in (1, 2, 3)]
    rewritten(root, publish(root, 3, keys, {"default": 0, "values": 1}, tmp_path)["zip"], change)
    with pytest.raises(VersionNotLoadable, match=problem):
        taken(root, tmp_path)
    assert root.stat(STORE.snapshot(version(6))) is None


def test_a_second_column_family_of_rocksdb_is_unknown(root: Storage, tmp_path: Path) -> None:
    keys = [DEFAULT + b"key %d" % n for n in (1, 2, 3)]

    def more(files: dict[str, bytes]) -> dict[str, bytes]:
        return {n: b + b'\n[CFOptions "odd"]\n' if n.startswith("OPTIONS") else b for n, b in files.items()}

    rewritten(root, publish(root, 3, keys, {"default": 0, "values": 1}, tmp_path)["zip"], more)
    with pytest.raises(UnknownFormatVersion, match="the RocksDB column families default, odd;"):
        taken(root, tmp_path)
