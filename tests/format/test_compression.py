"""Spark's four codecs: its own files, any block boundaries, and damage at every byte."""

from __future__ import annotations

import io
import os
import resource
import struct
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile, StatekeeperError
from statekeeper.statestore.format.changelog import read_changelog
from statekeeper.statestore.format.changelog_header import Header, read_header
from statekeeper.statestore.format.compression import BlockWriter, blocks
from statekeeper.statestore.format.unsafe_row import decode_rows
from tests.support.damage import flips, prefixes, value_or_error
from tests.support.sparks_changelogs import CODECS, VERSIONS, changelog_of, states

Records = list[tuple[bytes, bytes | None]]

SNAPPY_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
ZSTD_MAGIC = bytes.fromhex("28b52ffd")

# Written by Spark 4.2.0: key `kk`, value `vvv`, changelog v3 with an empty lineage.
VECTORS = {
    "lz4": "4c5a34426c6f636b1519000000190000009113fc0e0002763300025b5d000000026b6b00000003767676ffffffff"
    "4c5a34426c6f636b15000000000000000000000000",
    "zstd": "28b52ffd0048c800000002763300025b5d000000026b6b00000003767676ffffffff010000",
    "snappy": "82534e415050590000000001000000010000001b19600002763300025b5d000000026b6b00000003767676ffffffff",
    "lzf": "5a560000190002763300025b5d000000026b6b00000003767676ffffffff",
}

each_codec = pytest.mark.parametrize("codec", CODECS)


def plain(data: bytes) -> bytes:
    return b"".join(blocks(data, "a.changelog"))


def read(data: bytes) -> tuple[Header, Records]:
    header, pieces = read_changelog(data, "a.changelog")
    return header, [pair for changes in pieces for pair in changes.pairs()]


def lz4(pieces: list[bytes]) -> bytes:
    sink = io.BytesIO()
    writer = BlockWriter(sink)
    for piece in pieces:
        writer.write(piece)
    writer.finish()
    return sink.getvalue()


def zstd(pieces: list[bytes]) -> bytes:
    """Write one frame per piece."""
    return b"".join(pa.compress(piece, "zstd", asbytes=True) for piece in pieces or [b""])


def zstd_with_checksum(body: bytes) -> bytes:
    """One raw block in a frame with a content checksum."""
    checksum = struct.pack("<I", xxhash.xxh64_intdigest(body) & 0xFFFFFFFF)
    return ZSTD_MAGIC + bytes([0x04, 0x48]) + (1 | len(body) << 3).to_bytes(3, "little") + body + checksum


def snappy(pieces: list[bytes]) -> bytes:
    """Write one block per piece."""
    packed = [pa.compress(piece, "snappy", asbytes=True) for piece in pieces]
    return SNAPPY_HEADER + b"".join(struct.pack(">i", len(body)) + body for body in packed)


def lzf(pieces: list[bytes]) -> bytes:
    """Write one raw chunk per piece."""
    return b"".join(struct.pack(">2sBH", b"ZV", 0, len(piece)) + piece for piece in pieces or [b""])


def lzf_packed(tokens: bytes, plain_bytes: int) -> bytes:
    return struct.pack(">2sBHH", b"ZV", 1, len(tokens), plain_bytes) + tokens


PACKERS = {"lz4": lz4, "zstd": zstd, "snappy": snappy, "lzf": lzf}


@each_codec
def test_a_changelog_with_a_lineage_that_spark_wrote_is_read_in_each_codec(codec: str) -> None:
    data = bytes.fromhex(VECTORS[codec])
    assert read(data) == (Header(()), [(b"kk", b"vvv")])
    assert read_header(data, "a.changelog") == Header(())


@each_codec
def test_sparks_changelogs_in_each_codec_give_the_state_that_spark_shows(codec: str) -> None:
    key, value = pa.schema([("k", pa.string())]), pa.schema([("n", pa.int64()), ("total", pa.int64())])
    state: dict[bytes, bytes | None] = {}
    for version, shown in zip(VERSIONS, states(), strict=True):
        state.update(read(changelog_of(codec, version))[1])
        keys, values = (pa.array(column, pa.large_binary()) for column in (list(state), list(state.values())))
        # Each row has its encoding's version in front.
        names = decode_rows(keys, key, skip=1).column("k").to_pylist()
        rows = [[*row.values()] for row in decode_rows(values, value, skip=1).to_pylist()]
        found = [[name[:10], len(name), *row] for name, row in sorted(zip(names, rows, strict=True))]
        assert found == shown


@given(st.sampled_from(CODECS), st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 300))
def test_block_boundaries_do_not_change_the_decompressed_bytes(codec: str, cuts: list[bytes], times: int) -> None:
    pieces = [piece * times for piece in cuts]
    assert plain(PACKERS[codec](pieces)) == b"".join(pieces)


@given(st.data())
def test_lzf_tokens_decode_like_a_byte_by_byte_copy(data: st.DataObject) -> None:
    tokens, expected = bytearray(), bytearray()
    for _ in range(data.draw(st.integers(1, 30))):
        if expected and data.draw(st.booleans()):
            distance = data.draw(st.integers(1, min(len(expected), 8192)))
            length = data.draw(st.integers(3, 264))
            high, low = divmod(distance - 1, 256)
            tokens += bytes([(length - 2) << 5 | high, low] if length < 9 else [7 << 5 | high, length - 9, low])
            for _ in range(length):
                expected.append(expected[-distance])
        else:
            literal = data.draw(st.binary(min_size=1, max_size=32))
            tokens += bytes([len(literal) - 1]) + literal
            expected += literal
    assert plain(lzf_packed(bytes(tokens), len(expected))) == expected


@each_codec
@pytest.mark.parametrize("version", VERSIONS)
def test_each_truncation_of_sparks_files_is_detected(codec: str, version: int) -> None:
    """If the codec has no end mark, the end mark of the records detects it."""
    for damaged in prefixes(changelog_of(codec, version)):
        with pytest.raises(CorruptFile, match=r"a\.changelog"):
            read(damaged)


def each_bit(data: bytes) -> Iterator[bytes]:
    for position in range(len(data)):
        for bit in range(8):
            yield data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


@pytest.mark.parametrize(("codec", "unseen_percent"), [("lz4", 0), ("zstd", 30), ("snappy", 29), ("lzf", 21)])
def test_at_most_the_documented_share_of_flipped_bits_is_undetected(codec: str, unseen_percent: int) -> None:
    """The docstring of `compression` gives the share. Undetected flips change records, and never raise untyped errors."""
    outcomes: Counter[str] = Counter()
    for data in (changelog_of(codec, 1), changelog_of(codec, 2), bytes.fromhex(VECTORS[codec])):
        undamaged = read(data)
        for damaged in each_bit(data):
            found = value_or_error(read, damaged, names="a.changelog")
            if isinstance(found, StatekeeperError):
                outcomes["found"] += 1
            else:
                outcomes["harmless" if found == undamaged else "unseen"] += 1
    assert outcomes["found"] > outcomes.total() / 2
    assert 100 * outcomes["unseen"] <= unseen_percent * outcomes.total()


@each_codec
def test_damage_in_one_of_several_blocks_gives_typed_errors(codec: str) -> None:
    data = changelog_of(codec, 3)
    for damaged in [*flips(data)][::7]:
        value_or_error(plain, damaged, names="a.changelog")


def test_a_flipped_bit_in_a_zstd_frame_with_a_checksum_is_detected_or_harmless() -> None:
    data = zstd_with_checksum(b"some text")
    assert plain(data) == b"some text"
    for damaged in each_bit(data):
        found = value_or_error(plain, damaged, names="a.changelog")
        assert isinstance(found, CorruptFile) or found == b"some text"
    with pytest.raises(CorruptFile, match="checksum"):
        plain(data[:-1] + bytes([data[-1] ^ 1]))


@each_codec
@pytest.mark.parametrize("behind", [b"\0", b"Z", b"ZV", b"(\xb5/", bytes(100), b"\xff" * 100])
def test_bytes_after_the_end_are_rejected(codec: str, behind: bytes) -> None:
    with pytest.raises(CorruptFile, match=r"a\.changelog"):
        plain(changelog_of(codec, 3) + behind)


@each_codec
@pytest.mark.parametrize("other", CODECS)
def test_two_concatenated_changelogs_are_rejected(codec: str, other: str) -> None:
    with pytest.raises(CorruptFile, match=r"a\.changelog"):
        read(changelog_of(codec, 1) + changelog_of(other, 2))


@pytest.mark.parametrize("data", [b"", b"Z", b"LZ4B", b"PK\3\4 a zip", b"\x82SNAPPX\0" + bytes(20), bytes(50)])
def test_an_unknown_codec_is_rejected_with_its_first_bytes(data: bytes) -> None:
    with pytest.raises(
        CorruptFile, match=r"a\.changelog: (begins with the bytes [0-9a-f]+, which no codec|is empty).* -> restore"
    ):
        plain(data)


@pytest.mark.parametrize("empty", [SNAPPY_HEADER, lzf([]), zstd([]), lz4([])])
def test_a_file_without_plain_bytes_has_no_header(empty: bytes) -> None:
    assert plain(empty) == b""
    for act in (read, lambda data: read_header(data, "a.changelog")):
        with pytest.raises(CorruptFile, match=r"a\.changelog: is truncated"):
            act(empty)


@pytest.mark.parametrize(
    "damaged",
    [
        # A dictionary, a window of 2 TB, a content of 16 EB, a block type that is reserved.
        ZSTD_MAGIC + bytes([0x01, 0x48, 7, 0x01, 0, 0]),
        ZSTD_MAGIC + bytes([0x00, 0xFF, 0x01, 0, 0]),
        ZSTD_MAGIC + bytes([0xE0]) + b"\xff" * 8 + bytes([0x01, 0, 0]),
        ZSTD_MAGIC + bytes([0x00, 0x48, 0x07, 0, 0]),
        # Streams of another version, or that want a later reader.
        SNAPPY_HEADER[:8] + struct.pack(">ii", 2, 1),
        SNAPPY_HEADER[:8] + struct.pack(">ii", 1, 2),
        # Packed lengths.
        SNAPPY_HEADER + struct.pack(">i", 0),
        SNAPPY_HEADER + struct.pack(">i", -1) + b"\1\0x",
        SNAPPY_HEADER + struct.pack(">i", 2**31 - 1) + b"\1\0x",
        # Plain lengths: more than there is, less, more than can be, of six bytes, of none that ends.
        SNAPPY_HEADER + struct.pack(">i", 3) + b"\2\0x",
        SNAPPY_HEADER + struct.pack(">i", 3) + b"\0\0x",
        SNAPPY_HEADER + struct.pack(">i", 7) + b"\xff\xff\xff\xff\x07\0x",
        SNAPPY_HEADER + struct.pack(">i", 8) + b"\x80\x80\x80\x80\x80\x01\0x",
        SNAPPY_HEADER + struct.pack(">i", 2) + b"\x81\x81",
        # A copy from before the beginning.
        SNAPPY_HEADER + struct.pack(">i", 3) + b"\4\1\1",
        # Other kinds of chunk, and chunks that claim too much or too little.
        b"ZV\2\0\1x",
        b"ZV\0\0\2x",
        b"ZV\1\0\2\0\2\0x",
        b"ZV\1\0\2\0\0\0x",
        b"ZV\1\xff\xff\0\1\0x",
        # Copies from before the beginning; tokens that go beyond their end.
        lzf_packed(b"\x20\0", 3),
        lzf_packed(b"\0x\x20\1", 4),
        lzf_packed(b"\0x\x20", 4),
        lzf_packed(b"\0x\xe0\1", 11),
        lzf_packed(b"\0x\xe0", 11),
        lzf_packed(b"\1x", 1),
        lzf_packed(b"\1x", 2),
    ],
)
def test_impossible_blocks_of_each_codec_are_rejected(damaged: bytes) -> None:
    with pytest.raises(CorruptFile, match=r"a\.changelog"):
        plain(damaged)


@given(st.binary(max_size=100))
def test_arbitrary_bytes_after_any_codec_header_give_typed_errors(data: bytes) -> None:
    beginnings = [
        ZSTD_MAGIC,
        ZSTD_MAGIC + bytes([0x00, 0x48]),
        SNAPPY_HEADER,
        SNAPPY_HEADER + struct.pack(">i", len(data)),
        b"ZV",
        struct.pack(">2sBH", b"ZV", 1, len(data)),
    ]
    for beginning in beginnings:
        value_or_error(plain, beginning + data, names="a.changelog")


def test_large_blocks_of_snappy_are_read() -> None:
    """A query may set `spark.io.compression.snappy.blockSize`."""
    assert plain(snappy([bytes(4 << 20), b"x"])) == bytes(4 << 20) + b"x"


def test_headers_that_declare_large_sizes_take_little_memory() -> None:
    tokens = b"\0x" + b"\xe0\xff\0" * 20_000
    claims = [
        SNAPPY_HEADER + struct.pack(">i", 6) + b"\xff\xff\xff\x0f\0x",  # 32 MiB - 1 in a byte
        lzf_packed(tokens, 65_535),  # 5 MB in a chunk
        *(ZSTD_MAGIC + bytes([0x00, exponent << 3]) for exponent in range(32)),  # windows of 1 KiB to 2 TiB
        *(
            ZSTD_MAGIC + bytes([0xE0]) + struct.pack("<Q", 1 << bits) for bits in range(64)
        ),  # content, which is the window
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for claim in claims * 3:
        with pytest.raises(CorruptFile):
            plain(claim)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


READER = textwrap.dedent("""
    import mmap, pathlib, sys
    from statekeeper.statestore.format.compression import blocks
    def kib(field):
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field))
    with open(sys.argv[1], "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    import pyarrow  # its own memory does not count
    peak_before = kib("VmHWM:")
    next(blocks(data, "x"))
    mapped_before = kib("RssFile:")
    plain_bytes = mapped = 0
    for number, block in enumerate(blocks(data, "x")):
        plain_bytes += len(block)
        mapped = max(mapped, kib("RssFile:")) if number % 100 == 0 else mapped
    print(plain_bytes, mapped - mapped_before, kib("VmHWM:") - peak_before)
""")


def taken(file: Path) -> tuple[int, int, int]:
    """Uncompressed bytes, and the maximum memory growth of a process that reads them: KiB mapped, KiB in total."""
    command = [sys.executable, "-c", READER, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    plain_bytes, mapped_kib, kib = map(int, done.stdout.split())
    return plain_bytes, mapped_kib, kib


@pytest.mark.parametrize("codec", ["zstd", "snappy", "lzf"])
def test_pages_of_a_mapped_file_are_released_after_reading(codec: str, tmp_path: Path) -> None:
    """64 MiB that cannot be packed."""
    noise = os.urandom(32 * 1024)
    file = tmp_path / "large"
    file.write_bytes(PACKERS[codec]([noise] * 2048))
    assert file.stat().st_size > 64 << 20
    plain_bytes, mapped_kib, _ = taken(file)
    assert plain_bytes == 64 << 20
    assert mapped_kib < 24 * 1024


def test_a_zstd_bomb_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """1 GiB of zeros in 50 KB, in one frame."""
    file = tmp_path / "bomb"
    with pa.CompressedOutputStream(pa.OSFile(str(file), "wb"), "zstd") as stream:
        for _ in range(256):
            stream.write(bytes(4 << 20))
    assert file.stat().st_size < 100_000
    plain_bytes, _, kib = taken(file)
    assert plain_bytes == 1 << 30
    assert kib < 32 * 1024
