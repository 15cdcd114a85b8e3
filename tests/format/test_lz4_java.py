"""lz4-java's block stream: encoded, decoded and damaged."""

from __future__ import annotations

import io
import resource
import struct

import lz4.block
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.compression import BlockWriter, blocks
from tests.support.damage import flips, prefixes, value_or_error

END = b"LZ4Block" + bytes([0x15]) + bytes(12)


def packed(*writes: bytes) -> bytes:
    sink = io.BytesIO()
    writer = BlockWriter(sink)
    for piece in writes:
        writer.write(piece)
    writer.finish()
    return sink.getvalue()


def block(
    body: bytes, *, plain_bytes: int, token: int = 0x25, checksum: int = 0, packed_bytes: int | None = None
) -> bytes:
    length = len(body) if packed_bytes is None else packed_bytes
    return b"LZ4Block" + struct.pack("<Biii", token, length, plain_bytes, checksum) + body


def plain(data: bytes) -> bytes:
    return b"".join(blocks(data, "a.changelog"))


@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 700))
def test_bytes_written_in_any_pieces_are_read(pieces: list[bytes], times: int) -> None:
    whole = [piece * times for piece in pieces]
    assert plain(packed(*whole)) == b"".join(whole)


@pytest.mark.parametrize("size", [0, 1, 32767, 32768, 32769, 65536, 100_000])
def test_blocks_hold_32_kib_as_sparks_do(size: int) -> None:
    sizes = [len(piece) for piece in blocks(packed(b"x" * size), "a.changelog")]
    assert sizes == [32768] * (size // 32768) + ([size % 32768] if size % 32768 else [])


def test_the_piece_size_does_not_change_the_compressed_bytes() -> None:
    data = bytes(range(256)) * 500
    assert packed(data) == packed(*(data[i : i + 777] for i in range(0, len(data), 777)))


def test_bytes_that_lz4_cannot_shrink_are_stored_raw() -> None:
    noise = b"".join(xxhash.xxh3_128_digest(bytes([number])) for number in range(20))
    assert packed(noise)[8] == 0x15
    assert plain(packed(noise)) == noise


def test_an_empty_stream_is_an_end_mark() -> None:
    assert packed() == END
    assert plain(END) == b""


def test_larger_blocks_are_read() -> None:
    """A query may set `spark.io.compression.lz4.blockSize`."""
    data = bytes(200_000)
    checksum = xxhash.xxh32_intdigest(data, 0x9747B28C) & 0x0FFFFFFF
    body = lz4.block.compress(data, store_size=False)
    assert plain(block(body, plain_bytes=len(data), token=0x28, checksum=checksum) + END) == data


def test_each_flipped_byte_is_detected_or_harmless_and_each_truncation_is_detected() -> None:
    data = packed(b"some text, some text, some text")
    for damaged in flips(data):
        found = value_or_error(plain, damaged, names="a.changelog")
        assert isinstance(found, CorruptFile) or found == b"some text, some text, some text"
    for damaged in prefixes(data):
        with pytest.raises(CorruptFile, match=r"a\.changelog"):
            plain(damaged)


@pytest.mark.parametrize(
    "damaged",
    [
        END + b"\0",
        END + END,
        b"LZ4Block" + bytes([0x35]) + bytes(12),
        block(b"", plain_bytes=5) + END,
        block(b"x", plain_bytes=-1) + END,
        block(b"x", plain_bytes=1, packed_bytes=-1) + END,
        block(b"x", plain_bytes=2**31 - 1) + END,
        block(b"x", plain_bytes=40_000) + END,
        block(b"x", plain_bytes=1, packed_bytes=2**31 - 1) + END,
        block(b"xyz", plain_bytes=2, token=0x15) + END,
        block(b"\x1fx\1\0\xff\xff\xff", plain_bytes=100) + END,
        b"LZ4Block" + bytes([0x15]) + struct.pack("<iii", 0, 0, 7),
    ],
)
def test_impossible_blocks_are_rejected(damaged: bytes) -> None:
    with pytest.raises(CorruptFile, match=r"a\.changelog"):
        plain(damaged)


def test_a_block_with_a_wrong_size_takes_at_most_the_memory_of_the_largest_block() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        with pytest.raises(CorruptFile):
            plain(block(b"x", plain_bytes=32 * 1024 * 1024, token=0x2F) + END)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@given(st.binary(max_size=100))
def test_arbitrary_bytes_give_typed_errors_or_values(data: bytes) -> None:
    for damaged in (data, b"LZ4Block" + data, b"LZ4Block\x25" + data):
        with pytest.raises(CorruptFile):
            plain(damaged)
