"""Merges and deleted ranges, resolved over a real database."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.format import compression
from statekeeper.statestore.format.changelog import Changes, Kind, read_changelog
from statekeeper.statestore.format.java_io import utf
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits
from statekeeper.statestore.store.loading.replay import OrderedWindow

Record = tuple[Kind, bytes, bytes | None]
BEFORE = {b"a": b"1", b"b": b"", b"c": b"3", b"d": b"4"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("databases")


def changes(records: list[Record]) -> Iterator[Changes]:
    """As they come out of a changelog."""
    sink = io.BytesIO()
    writer = compression.BlockWriter(sink)
    writer.write(utf("v2"))
    for kind, key, value in records:
        length = -1 if value is None else len(value)
        writer.write(bytes([kind]) + len(key).to_bytes(4, "big") + key + length.to_bytes(4, "big", signed=True))
        writer.write(value or b"")
    writer.write(b"\0")
    writer.finish()
    return read_changelog(sink.getvalue(), "a.changelog")[1]


def held(database: Database) -> dict[bytes, bytes]:
    return {key: value for keys, values in database.scan() for key, value in zip(keys, values, strict=True)}


def left(folder: Path, records: list[Record], delimiter: bytes, memory_bytes: int) -> dict[bytes, bytes]:
    """Apply records to a database with BEFORE, and return its rows."""
    path = folder / f"db-{len(list(folder.iterdir()))}"
    with Database.create(path, EngineLimits()) as database:
        database.apply([sorted(BEFORE.items())], None)
        window = OrderedWindow(database, delimiter, memory_bytes)
        # Pieces of a few records each: a window is written only between two of them.
        for first in range(0, len(records), 3):
            for piece in changes(records[first : first + 3]):
                window.add(piece)
        window.write()
        return held(database)


def expected(records: list[Record], delimiter: bytes) -> dict[bytes, bytes]:
    """The same by the plainest means."""
    found = dict(BEFORE)
    for kind, key, value in records:
        match kind:
            case Kind.PUT:
                found[key] = value or b""
            case Kind.DELETE:
                found.pop(key, None)
            case Kind.MERGE:
                found[key] = found[key] + delimiter + (value or b"") if key in found else value or b""
            case Kind.DELETE_RANGE:
                found = {k: v for k, v in found.items() if not key <= k < (value or b"")}
    return found


@pytest.mark.parametrize("delimiter", [b"", b","])
def test_a_merge_appends_to_an_existing_value_or_creates_one(folder: Path, delimiter: bytes) -> None:
    records: list[Record] = [
        (Kind.MERGE, b"a", b"x"),
        (Kind.MERGE, b"a", b"y"),
        (Kind.MERGE, b"b", b"x"),
        (Kind.MERGE, b"new", b"x"),
        (Kind.PUT, b"c", b"9"),
        (Kind.MERGE, b"c", b"x"),
        (Kind.DELETE, b"d", None),
        (Kind.MERGE, b"d", b"x"),
    ]
    assert left(folder, records, delimiter, 1 << 20) == {
        b"a": delimiter.join([b"1", b"x", b"y"]),
        b"b": delimiter + b"x",
        b"c": b"9" + delimiter + b"x",
        b"d": b"x",
        b"new": b"x",
    }


def test_a_deleted_range_deletes_stored_and_earlier_keys_but_not_its_end(folder: Path) -> None:
    records: list[Record] = [
        (Kind.PUT, b"bb", b"new"),
        (Kind.MERGE, b"c", b"x"),
        (Kind.DELETE_RANGE, b"b", b"d"),
        (Kind.MERGE, b"c", b"y"),
    ]
    assert left(folder, records, b"", 1 << 20) == {b"a": b"1", b"c": b"y", b"d": b"4"}


def test_a_deleted_range_of_any_length_needs_only_the_memory_of_a_window(folder: Path) -> None:
    path = folder / f"db-{len(list(folder.iterdir()))}"
    records = 10_000
    with Database.create(path, EngineLimits()) as database:
        database.apply([[(b"%06d" % number, b"x") for number in range(records)]], None)
        windows: list[int] = []
        apply = database.apply

        def watched(window: Iterable[Iterable[tuple[bytes, bytes | None]]], holds: None) -> int:
            windows.append(apply(window, holds))
            return windows[-1]

        database.apply = watched
        window = OrderedWindow(database, b"", memory_bytes=206 * 1000)
        for piece in changes([(Kind.PUT, b"000500x", b"1"), (Kind.DELETE_RANGE, b"000100", b"009900")]):
            window.add(piece)
        for piece in changes([(Kind.PUT, b"000200", b"2")]):
            window.add(piece)
        window.write()
        assert sum(windows) == window.written_keys == 9800 + 2
        assert max(windows) <= 1002
        expected = {b"%06d" % number: b"x" for number in (*range(100), *range(9900, records))}
        assert held(database) == expected | {b"000200": b"2"}


_keys = st.sampled_from([b"a", b"b", b"bb", b"c", b"d", b"e"])
_records = st.one_of(
    st.tuples(st.just(Kind.PUT), _keys, st.binary(max_size=3)),
    st.tuples(st.just(Kind.MERGE), _keys, st.binary(max_size=3)),
    st.tuples(st.just(Kind.DELETE), _keys, st.none()),
    st.tuples(st.just(Kind.DELETE_RANGE), _keys, _keys),
)


@given(st.lists(_records, max_size=30), st.sampled_from([b"", b","]), st.sampled_from([0, 900, 1 << 20]))
def test_one_window_and_many_windows_give_the_same_result(
    folder: Path, records: list[Record], delimiter: bytes, memory_bytes: int
) -> None:
    assert left(folder, records, delimiter, memory_bytes) == expected(records, delimiter)
