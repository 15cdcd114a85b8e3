"""Lines of objects above the limit of a read are read in pieces."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing
from statekeeper.statestore.format.limits import MOST_READ_BYTES
from statekeeper.statestore.storage import Storage, open_storage, read_lines
from statekeeper.statestore.storage.lines import MOST_LINE_BYTES, PIECE_BYTES


def test_lines_of_an_object_are_read_as_they_are(storage: Storage) -> None:
    expected = {
        b"": [],
        b"\n": [b""],
        b"v1": [b"v1"],
        b"v1\n": [b"v1"],
        b"v1\n{}\n{}": [b"v1", b"{}", b"{}"],
        b"a\r\nb\xe2\x80\xa8c\n\nd": [b"a\r", b"b\xe2\x80\xa8c", b"", b"d"],
    }
    for number, (content, lines) in enumerate(expected.items()):
        storage.create(f"log {number}", content)
        assert list(read_lines(storage, f"log {number}")) == lines
    with pytest.raises(ObjectMissing):
        list(read_lines(storage, "missing"))


@pytest.mark.parametrize("size_bytes", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES])
def test_a_line_that_spans_pieces_is_one_line(tmp_path: Path, size_bytes: int) -> None:
    root = open_storage(str(tmp_path))
    line = b"x" * (size_bytes - 3)
    (tmp_path / "log").write_bytes(b"v1\n" + line)
    assert list(read_lines(root, "log")) == [b"v1", line]
    (tmp_path / "log").write_bytes(b"v1\n" + line[:-1] + b"\n")
    assert list(read_lines(root, "log")) == [b"v1", line[:-1]]


def test_an_object_above_the_limit_of_a_read_needs_little_memory(tmp_path: Path) -> None:
    line = b"x" * 1023
    with (tmp_path / "log").open("wb") as file:
        for _ in range(MOST_READ_BYTES // 1024 + 1024):
            file.write(line + b"\n")
    tracemalloc.start()
    try:
        assert (
            sum(one == line for one in read_lines(open_storage(str(tmp_path)), "log")) == MOST_READ_BYTES // 1024 + 1024
        )
        assert tracemalloc.get_traced_memory()[1] < 5 * PIECE_BYTES
    finally:
        tracemalloc.stop()


def test_a_line_above_its_limit_is_not_held_in_memory(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(4 * MOST_LINE_BYTES)
    with pytest.raises(CorruptFile, match="has a line of more than"):
        list(read_lines(open_storage(str(tmp_path)), "log"))
