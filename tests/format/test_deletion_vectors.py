"""Deletion vectors: bytes and positions, in the format of Delta Lake."""

from __future__ import annotations

import struct
import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format.deletion_vectors import (
    Descriptor,
    Positions,
    encode,
    encode_file,
    parse,
    parse_descriptor,
    parse_from_file,
)


def sorted_positions(*parts: Positions) -> Positions:
    return np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))


@given(st.sets(st.integers(0, 2**34), max_size=300), st.integers(0, 2**20), st.integers(0, 10_000))
def test_a_vector_is_read_back(some: set[int], first: int, run: int) -> None:
    positions = sorted_positions(np.array(sorted(some), np.int64), np.arange(first, first + run))
    assert np.array_equal(parse(encode(positions), "a file"), positions)


def test_several_vectors_share_a_file_and_their_descriptors_name_them() -> None:
    vectors = [np.array([3, 4, 7, 11, 18, 29]), np.arange(100_000), np.array([2**33 + 1])]
    file = uuid.UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")
    data, descriptors = encode_file(vectors, file)
    for positions, one in zip(vectors, descriptors, strict=True):
        again = parse_descriptor(one.as_json(), "a log")
        assert again == one
        assert np.array_equal(parse_from_file(data[one.offset :], one), positions)
        assert one.rows == len(positions)


def test_the_name_of_a_file_is_written_as_the_protocol_shows_it() -> None:
    """The example of the protocol, without its random prefix."""
    file = uuid.UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")
    _, [one] = encode_file([np.array([1])], file)
    assert one.as_json()["pathOrInlineDv"] == "^-aqEH.-t@S}K{vb[*k^"
    assert one.path == "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def test_an_inline_vector_is_read() -> None:
    """Another program may write a small vector into the action itself."""
    vector = encode(np.array([3, 4, 7, 11, 18, 29]))
    written = Descriptor(file=None, offset=0, size_bytes=len(vector), rows=6, inline=vector)
    one = parse_descriptor(written.as_json(), "a log")
    assert one == written
    assert parse(one.inline, "a log").tolist() == [3, 4, 7, 11, 18, 29]


def test_runs_are_read() -> None:
    """Spark encodes consecutive rows as runs; this library does not."""
    runs = struct.pack("<H", 12347) + struct.pack("<H", 0) + b"\x01" + struct.pack("<HH", 0, 11)
    runs += struct.pack("<H", 2) + struct.pack("<HHHH", 5, 9, 100, 1)
    data = struct.pack("<iqi", 1681511377, 1, 0) + runs
    assert parse(data, "a file").tolist() == [*range(5, 15), 100, 101]


def test_damage_is_an_error_of_the_file() -> None:
    data, [one] = encode_file([np.array([1, 2])], uuid.uuid4())
    for damaged in (data[one.offset : -1], data[one.offset : -4] + b"abcd", b"\0" * len(data)):
        with pytest.raises(CorruptFile):
            parse_from_file(damaged, one)
    for damaged in (b"", b"\0" * 20, encode(np.array([1]))[:-1]):
        with pytest.raises(CorruptFile):
            parse(damaged, "a file")
    with pytest.raises(UnknownFormatVersion):
        parse_descriptor({**one.as_json(), "storageType": "p"}, "a log")
    with pytest.raises(CorruptFile):
        parse_descriptor({"storageType": "u"}, "a log")
