"""Checksum files, compared with those of Spark and Hadoop, and with every byte flipped."""

from __future__ import annotations

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format.checksum import Checksum, checksum, first_misfit, parse_sidecar

BODY = (
    b'{"algorithm":"CRC32C","value":%d,"mainFileSize":%d,"timestampMs":1795340280426,'
    b'"creator":{"executorId":"driver","taskInfo":"Task= 0.0, Stage= 56.0"}}'
)


def test_the_checksum_is_crc32c_as_a_signed_number() -> None:
    # The check value of CRC-32C is 0xE3069283.
    assert checksum([b"1234", b"56789"]) == Checksum(0xE3069283 - 2**32, 9)
    assert checksum([]) == Checksum(0, 0)
    assert parse_sidecar(BODY % (0xE3069283 - 2**32, 9), "x.crc") == checksum([b"123456789"])


@pytest.mark.parametrize("body", [b"", b"garbage", b"[]", b"{}", b'{"algorithm":"CRC32C","value":"x"}', b"\xff{"])
def test_an_invalid_sidecar_is_rejected_with_its_name(body: bytes) -> None:
    with pytest.raises(CorruptFile):
        parse_sidecar(body, "x.crc")


def test_another_checksum_algorithm_is_rejected_with_its_name() -> None:
    with pytest.raises(UnknownFormatVersion, match="checksum algorithm 'XXH64'"):
        parse_sidecar(b'{"algorithm":"XXH64","value":1,"mainFileSize":2}', "x.crc")


@given(st.binary(max_size=200))
def test_arbitrary_sidecars_give_typed_errors(body: bytes) -> None:
    with contextlib.suppress(CorruptFile, UnknownFormatVersion):
        parse_sidecar(body, "x.crc")


def hidden(body: bytes, chunk_bytes: int = 512) -> bytes:
    chunks = [body[start : start + chunk_bytes] for start in range(0, len(body), chunk_bytes)]
    return struct.pack(">4sI", b"crc\0", chunk_bytes) + b"".join(struct.pack(">I", zlib.crc32(c)) for c in chunks)


@given(st.binary(max_size=3000), st.integers(1, 1000), st.integers(1, 700))
def test_hadoops_checksum_matches_for_any_piece_size(body: bytes, chunk_bytes: int, piece_bytes: int) -> None:
    pieces = [body[start : start + piece_bytes] for start in range(0, len(body), piece_bytes)]
    sums = hidden(body, chunk_bytes)
    assert first_misfit(sums, pieces) is None
    assert first_misfit(sums + b"more", pieces) is None
    if body:
        assert first_misfit(sums[:-1], pieces) == (len(body) - 1) // chunk_bytes * chunk_bytes


def test_every_flipped_byte_of_file_or_checksums_is_located_in_its_chunk() -> None:
    body = bytes(range(256)) * 5
    sums = hidden(body)
    for place in range(len(body)):
        assert first_misfit(sums, [body[:place], bytes([body[place] ^ 1]), body[place + 1 :]]) == place // 512 * 512
    for place in range(8, len(sums)):
        broken = sums[:place] + bytes([sums[place] ^ 1]) + sums[place + 1 :]
        assert first_misfit(broken, [body]) == (place - 8) // 4 * 512


@pytest.mark.parametrize("sums", [b"", b"crc\0", b"xxxxxxxxxxxxxxxx", struct.pack(">4sI", b"crc\0", 0) + b"1234"])
def test_checksum_files_of_another_origin_are_ignored_as_by_hadoop(sums: bytes) -> None:
    assert first_misfit(sums, [b"any"]) is None
