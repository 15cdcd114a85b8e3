"""The local database: atomic marker and data, bounds of a scan, concurrent readers and writers, and typed errors."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import (
    CorruptFile,
    LocalDiskFull,
    LocalStateDamaged,
    LocalStateError,
    LocalStateLocked,
    StatekeeperError,
    UnsupportedType,
)
from statekeeper.statestore.checkpoint.lineage import LocalCopy
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.store.engine.rocks import (
    FIRST_RESERVED_KEY,
    SCAN_BATCH_ROWS,
    Database,
    EngineLimits,
    translated,
)

LIMITS = EngineLimits(block_cache_bytes=1024 * 1024)
IDS = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(100)]


def copy_of(number: int) -> LocalCopy:
    return LocalCopy(VersionId(number, IDS[number]), tuple(VersionId(n, IDS[n]) for n in range(1, number + 1)))


def rows(database: Database, prefix: bytes = b"") -> dict[bytes, bytes]:
    return {k: v for keys, values in database.scan(prefix) for k, v in zip(keys, values, strict=True)}


def in_order(*windows: Mapping[bytes, bytes | None]) -> Iterator[list[tuple[bytes, bytes | None]]]:
    return (sorted(window.items(), key=itemgetter(0)) for window in windows)


def made(path: Path, *windows: Mapping[bytes, bytes | None]) -> Path:
    with Database.create(path, LIMITS) as database:
        database.apply(in_order(*windows), copy_of(1))
    return path


def test_a_new_database_is_empty(tmp_path: Path) -> None:
    with Database.create(tmp_path / "db", LIMITS) as database:
        assert database.holds() is None
        assert rows(database) == {}


def test_a_reader_has_the_configured_cache_and_filters(tmp_path: Path) -> None:
    """In read-only mode, rocksdict silently uses RocksDB's defaults: no filters, another cache."""
    present = {b"%06d" % number: b"" for number in range(0, 20_000, 2)}
    path = made(tmp_path / "db", present)
    absent = [b"%06d" % number for number in range(1, 20_000, 200)]
    with Database.open_read_only(path, LIMITS) as database:
        assert database._rdict.property_int_value("rocksdb.block-cache-capacity") == LIMITS.block_cache_bytes
        assert database.get_many(absent) == [None] * len(absent)
        read_for_absent_keys = database._rdict.property_int_value("rocksdb.block-cache-usage")
        assert database.get_many(sorted(present)) == [b""] * len(present)
        assert read_for_absent_keys < database._rdict.property_int_value("rocksdb.block-cache-usage") / 4


@pytest.mark.parametrize("holds", [LocalCopy(EMPTY, ()), copy_of(1), copy_of(3)])
def test_the_marker_is_read_back_and_is_not_a_row(tmp_path: Path, holds: LocalCopy) -> None:
    with Database.create(tmp_path / "db", LIMITS) as database:
        assert database.apply(in_order({b"a": b"1"}), holds) == 1
    with Database.open_read_only(tmp_path / "db", LIMITS) as database:
        assert database.holds() == holds
        assert rows(database) == {b"a": b"1"}


def test_later_windows_win_over_earlier_ones(tmp_path: Path) -> None:
    windows = [{b"a": b"1", b"b": b"1"}, {b"a": None, b"c": b"2"}, {b"a": b"3", b"b": None}]
    with Database.open_read_only(made(tmp_path / "db", *windows), LIMITS) as database:
        assert rows(database) == {b"a": b"3", b"c": b"2"}


def test_unreadable_changes_change_nothing_and_raise_their_own_error(tmp_path: Path) -> None:
    path = made(tmp_path / "db", {b"a": b"1"})

    def windows() -> Iterator[list[tuple[bytes, bytes | None]]]:
        yield [(b"a", b"2")]
        raise CorruptFile("cut", path="7.changelog")

    with Database.open_for_writing(path, LIMITS) as database:
        with pytest.raises(CorruptFile, match="cut"):
            database.apply(windows(), copy_of(2))
        assert rows(database) == {b"a": b"1"}
        assert database.holds() == copy_of(1)
        assert not list(path.glob("ingest-*"))
        database.apply(in_order({b"a": b"3"}), copy_of(2))
        assert (rows(database), database.holds()) == ({b"a": b"3"}, copy_of(2))


def test_a_leftover_of_a_killed_ingestion_does_not_truncate_its_table(tmp_path: Path) -> None:
    path = made(tmp_path / "db", {b"a": b"1"})
    (table,) = path.glob("*.sst")
    os.link(table, path / "ingest-0.tmp")
    reader = Database.open_read_only(path, LIMITS)
    with Database.open_for_writing(path, LIMITS) as database:
        database.apply(in_order({b"b": b"2"}), copy_of(2))
        assert rows(database) == {b"a": b"1", b"b": b"2"}
    assert rows(reader) == {b"a": b"1"}


@pytest.mark.parametrize("key", [FIRST_RESERVED_KEY, b"\xff" * 8])
def test_a_key_after_the_marker_is_rejected(tmp_path: Path, key: bytes) -> None:
    with Database.create(tmp_path / "db", LIMITS) as database:
        with pytest.raises(UnsupportedType, match="ff ff ff ff"):
            database.apply(in_order({key: b"1"}), copy_of(1))
        assert database.holds() is None


@given(st.sets(st.binary(max_size=3)), st.binary(max_size=2) | st.sampled_from([b"\xff", b"\xff\xff", b"a\xff"]))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_scan_gives_the_keys_of_a_prefix_in_order(
    tmp_path_factory: pytest.TempPathFactory, keys: set[bytes], prefix: bytes
) -> None:
    path = made(tmp_path_factory.mktemp("scan") / "db", dict.fromkeys(keys, b"v"))
    with Database.open_read_only(path, LIMITS) as database:
        found = [key for batch, _ in database.scan(prefix) for key in batch]
    assert found == sorted(key for key in keys if key.startswith(prefix))


def test_a_batch_of_a_scan_is_bounded_by_keys_and_values(tmp_path: Path) -> None:
    path = made(tmp_path / "db", {bytes([n]) + bytes(8 * 1024 * 1024): b"v" for n in range(9)})
    with Database.open_read_only(path, LIMITS) as database:
        assert [len(keys) for keys, _ in database.scan()] == [4, 4, 1]


@pytest.mark.parametrize("size", [0, SCAN_BATCH_ROWS - 1, SCAN_BATCH_ROWS, SCAN_BATCH_ROWS + 1, 2 * SCAN_BATCH_ROWS])
def test_a_scan_in_batches_is_complete(tmp_path: Path, size: int) -> None:
    full, rest = divmod(size, SCAN_BATCH_ROWS)
    path = made(tmp_path / "db", {b"%d" % number: b"v" for number in range(size)})
    with Database.open_read_only(path, LIMITS) as database:
        assert [len(keys) for keys, _ in database.scan()] == [SCAN_BATCH_ROWS] * full + [rest] * (rest > 0)


def test_get_many_returns_values_in_order_and_none(tmp_path: Path) -> None:
    with Database.open_read_only(made(tmp_path / "db", {b"a": b"1", b"b": b""}), LIMITS) as database:
        assert database.get_many([b"b", b"none", b"a", b"b"]) == [b"", None, b"1", b""]
        assert database.get_many([]) == []


# --- beside others ------------------------------------------------------------------------------------------------


def merge_often(path: Path, ready: multiprocessing.synchronize.Event, stop: multiprocessing.synchronize.Event) -> None:
    number = 2
    while not stop.is_set():
        with Database.open_for_writing(path, LIMITS) as database:
            for _ in range(9):
                changes = {b"%04d" % key: b"new" * 20 for key in range(number % 7, 500, 7)}
                database.apply(in_order(changes), copy_of(number % 90 + 1))
                number += 1
            assert database.wants_merge()
            database.merge_tables()
            assert not database.wants_merge()
        ready.set()


def test_a_reader_keeps_its_version_during_writes_and_compactions(tmp_path: Path) -> None:
    old = {b"%04d" % key: b"old" * 20 for key in range(500)}
    path = made(tmp_path / "db", old)
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=merge_often, args=(path, ready, stop))
    reader = Database.open_read_only(path, LIMITS)
    process.start()
    opened = 0
    try:
        assert ready.wait(60)
        for _ in range(40):
            assert rows(reader) == old
            assert reader.holds() == copy_of(1)
            try:
                late = Database.open_read_only(path, LIMITS)
            except LocalStateDamaged:
                continue  # opened in the middle of a change: the caller takes the lock and looks again
            with late:
                opened += 1
                seen = rows(late)
                assert seen.keys() == old.keys()
                assert set(seen.values()) <= {b"old" * 20, b"new" * 20}
    finally:
        stop.set()
        process.join(60)
    assert process.exitcode == 0
    assert opened > 0


# --- errors -------------------------------------------------------------------------------------------------------


def test_a_second_writer_gets_a_locked_error(tmp_path: Path) -> None:
    path = made(tmp_path / "db")
    with Database.open_for_writing(path, LIMITS), pytest.raises(LocalStateLocked, match="db"):
        Database.open_for_writing(path, LIMITS)
    Database.open_for_writing(path, LIMITS).close()


def kinds(path: Path) -> dict[str, list[Path]]:
    return {
        "CURRENT": [path / "CURRENT"],
        "MANIFEST": list(path.glob("MANIFEST-*")),
        "SST": list(path.glob("*.sst")),
    }


@pytest.mark.parametrize("kind", ["CURRENT", "MANIFEST", "SST"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "garbage"])
def test_damage_gives_a_typed_error_or_is_harmless(tmp_path: Path, kind: str, damage: str) -> None:
    state = {b"%04d" % key: b"value %d" % key * 5 for key in range(300)}
    whole = made(tmp_path / "whole", state)
    for number, open_it in enumerate((Database.open_read_only, Database.open_for_writing)):
        path = tmp_path / f"db{number}"
        shutil.copytree(whole, path)
        for file in kinds(path)[kind]:
            body = file.read_bytes()
            if damage == "missing":
                file.unlink()
            else:
                file.write_bytes({"empty": b"", "half": body[: len(body) // 2], "garbage": b"\xa5" * len(body)}[damage])
        with pytest.raises(LocalStateDamaged, match=path.name):
            _read_all(open_it(path, LIMITS))


def _read_all(database: Database) -> None:
    with database:
        # A MANIFEST that ends early is an older version of the database: its marker says so.
        if database.holds() != copy_of(1):
            raise LocalStateDamaged("holds no version", path=str(database.path))
        rows(database)


def test_each_flipped_byte_of_a_table_gives_a_typed_error_or_the_same_rows(tmp_path: Path) -> None:
    state = {b"%02d" % key: b"value %d" % key for key in range(10)}
    path = made(tmp_path / "db", state)
    (table,) = path.glob("*.sst")
    body = table.read_bytes()
    found = 0
    for position in range(0, len(body), 3):
        table.write_bytes(body[:position] + bytes([body[position] ^ 0xFF]) + body[position + 1 :])
        try:
            with Database.open_read_only(path, LIMITS) as database:
                assert database.holds() == copy_of(1)
                assert rows(database) == state
                assert database.get_many(sorted(state)) == [state[key] for key in sorted(state)]
        except LocalStateDamaged:
            found += 1
    assert found > len(body) // 3 // 3


def test_an_invalid_marker_is_damage(tmp_path: Path) -> None:
    for number, marker in enumerate(
        (b"", b"{}", b"[]", b"null", b"\xff", b'{"version":"x","lineage":[]}', b"[" * 99_999)
    ):
        path = made(tmp_path / f"db{number}")
        with Database.open_for_writing(path, LIMITS) as database:
            database._rdict[b"\xff\xff\xff\xff statekeeper: what this copy holds"] = marker
            with pytest.raises(LocalStateDamaged, match="marker"):
                database.holds()


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (Exception("IO error: No space left on device: while appending"), LocalDiskFull),
        (OSError(errno.ENOSPC, "No space left on device"), LocalDiskFull),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), LocalDiskFull),
        (OSError(errno.EIO, "Input/output error"), LocalStateError),
        (Exception("IO error: lock hold by current process"), LocalStateLocked),
        (Exception("IO error: While lock file: /x/LOCK: Resource temporarily unavailable"), LocalStateLocked),
        (Exception("Corruption: block checksum mismatch"), LocalStateDamaged),
        (CorruptFile("cut", path="7.changelog"), CorruptFile),
        (ValueError("a mistake of the caller"), ValueError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_errors_of_the_engine_are_typed_and_others_pass(raised: BaseException, becomes: type[BaseException]) -> None:
    with pytest.raises(becomes) as seen, translated(Path("folder")):
        raise raised
    assert type(seen.value) is becomes
    if isinstance(seen.value, StatekeeperError) and seen.value is not raised:
        assert seen.value.path == "folder"
        assert seen.value.__cause__ is raised


def test_tables_are_written_as_spark_3_5_reads_them(tmp_path: Path) -> None:
    with Database.create(tmp_path / "db", LIMITS) as database:
        database.apply([[(b"k", b"v")]], copy_of(1))
        database.capture(tmp_path / "captured")
    [table] = (tmp_path / "captured").glob("*.sst")
    # The footer ends with the version of the format and the magic number.
    assert int.from_bytes(table.read_bytes()[-12:-8], "little") == 5


@pytest.mark.parametrize("windows", [[[b"a"]], [[b"a", b"m"], [b"b", b"z"], [b"c"]], [[b"a"], [b"b"], [b"c"]], []])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_marker_is_valid_for_its_ingestion_with_any_overlap_of_tables(
    tmp_path: Path, windows: list[list[bytes]], steps: int
) -> None:
    path = tmp_path / "db"
    with Database.create(path, LIMITS) as database:
        for step in range(steps):
            holds = LocalCopy(VersionId(step, "id"), ())
            pairs = [[(b"%d" % step + key, b"value") for key in window] for window in windows]
            database.apply(pairs, holds)
            assert database.holds() == holds
        database.merge_tables()
    with Database.open_read_only(path, LIMITS) as database:
        assert database.holds() == holds


@pytest.mark.parametrize("change", ["put", "delete", "put of another key", "flushed"])
def test_a_write_after_the_marker_is_damage(tmp_path: Path, change: str) -> None:
    path = tmp_path / "db"
    with Database.create(path, LIMITS) as database:
        database.apply([[(b"key", b"value")]], LocalCopy(VersionId(1, "id"), ()))
    with Database.open_for_writing(path, LIMITS) as database:
        match change:
            case "delete":
                del database._rdict[b"key"]
            case "put of another key":
                database._rdict[b"0"] = b"altered"
            case _:
                database._rdict[b"key"] = b"altered"
        if change == "flushed":
            database._rdict.flush()
    for opened in (Database.open_read_only, Database.open_for_writing):
        with opened(path, LIMITS) as database, pytest.raises(LocalStateDamaged, match="modified after its last load"):
            database.holds()


def test_a_table_of_another_database_under_an_existing_name_is_damage(tmp_path: Path) -> None:
    for name, value in (("mine", b"value"), ("other", b"altered")):
        with Database.create(tmp_path / name, LIMITS) as database:
            database.apply([[(b"key", value[:5])]], LocalCopy(VersionId(1, "id"), ()))
    [mine] = (tmp_path / "mine").glob("*.sst")
    [other] = (tmp_path / "other").glob("*.sst")
    assert mine.stat().st_size == other.stat().st_size
    mine.write_bytes(other.read_bytes())
    with pytest.raises(LocalStateDamaged):
        Database.open_read_only(tmp_path / "mine", LIMITS).holds()
