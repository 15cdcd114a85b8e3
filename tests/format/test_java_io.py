"""`writeUTF` and big-endian ints, as Java writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.java_io import UTF_LIMIT_BYTES, Reader, from_modified_utf8, utf
from tests.support.damage import value_or_error


@given(st.text(st.characters(exclude_categories=()), max_size=100))
def test_any_text_is_read_back_including_lone_surrogates(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    reader = Reader(utf(text), "file")
    assert reader.utf("a text").encode("utf-16-be", "surrogatepass") == units
    assert reader.position == len(reader.data)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("", ""),
        ("v3", "7633"),
        ("\0", "c080"),
        ("\u00e9", "c3a9"),
        ("\u20ac", "e282ac"),
        ("\U0001f600", "eda0bdedb880"),
    ],
)
def test_encoded_bytes_equal_javas_bytes(text: str, body: str) -> None:
    assert utf(text)[2:] == bytes.fromhex(body)
    assert from_modified_utf8(bytes.fromhex(body)) == text


def test_the_longest_text_fits_and_a_longer_one_is_rejected() -> None:
    assert Reader(utf("x" * UTF_LIMIT_BYTES), "file").utf("a text") == "x" * UTF_LIMIT_BYTES
    for longer in ("x" * (UTF_LIMIT_BYTES + 1), "\0" * 40_000):
        with pytest.raises(ValueError, match="the maximum of writeUTF"):
            utf(longer)


@given(st.binary(max_size=20))
def test_arbitrary_bytes_give_typed_errors_or_values(data: bytes) -> None:
    for read in (lambda reader: reader.utf("a text"), lambda reader: reader.int32("a number")):
        value_or_error(lambda data, read=read: read(Reader(data, "file")), data, names="file")


def test_a_read_past_the_end_names_file_and_position() -> None:
    reader = Reader(b"\0\0\0\1\0", "1.changelog")
    assert reader.int32("a number") == 1
    with pytest.raises(
        CorruptFile, match=r"1\.changelog: is truncated: a number at byte 4 has 4 bytes, but the file has only 5"
    ):
        reader.int32("a number")
    with pytest.raises(CorruptFile, match="truncated"):
        reader.take(-1, "a piece")
