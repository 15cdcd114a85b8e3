"""Files of Spark's default provider: read as Spark wrote them, written, and damaged at every byte."""

from __future__ import annotations

import io
import resource
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile, RecordTooLarge, StatekeeperError, UnknownFormatVersion
from statekeeper.statestore.format import changelog, compression, hdfs_backed
from statekeeper.statestore.format.unsafe_row import decode_rows
from tests.support.changelogs import Records, packed
from tests.support.damage import flips, prefixes, value_or_error
from tests.support.hdfs_files import CODECS, VERSIONS, delta_of, snapshots_of, states

END = struct.pack(">i", -1)
KEY = pa.schema([("k", pa.string())])
VALUE = pa.schema([("n", pa.int64()), ("total", pa.int64())])
SMALL: Records = [(b"key", b"value"), (b"", b""), (b"gone", None), (b"key", b"later")]
UNGUARDED = ("zstd", "snappy", "lzf")

each_codec = pytest.mark.parametrize("codec", CODECS)
each_writer = pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "lz4-checksums"])
records = st.lists(st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=60)), max_size=60)


def read(data: bytes, *, row_checksums: bool = False) -> Records:
    pieces = hdfs_backed.read_delta(data, "1.delta", row_checksums=row_checksums)
    return [pair for changes in pieces for pair in changes.pairs()]


def read_snapshot(data: bytes, *, row_checksums: bool = False) -> Records:
    pieces = hdfs_backed.read_snapshot(data, "1.snapshot", row_checksums=row_checksums)
    return [pair for changes in pieces for pair in changes.pairs()]


def written(changes: Records, codec: str = "lz4", *, row_checksums: bool = False) -> bytes:
    sink = io.BytesIO()
    writer = hdfs_backed.HdfsBackedWriter(sink, codec, row_checksums=row_checksums)
    writer.append([key for key, _ in changes], [value for _, value in changes])
    writer.finish()
    return sink.getvalue()


def has_checksums(codec: str) -> bool:
    return codec.endswith("checksums")


def shown(rows: dict[bytes, bytes | None]) -> list[list[object]]:
    keys, values = (pa.array(column, pa.large_binary()) for column in (list(rows), list(rows.values())))
    names = decode_rows(keys, KEY).column("k").to_pylist()
    of_rows = [[*row.values()] for row in decode_rows(values, VALUE).to_pylist()]
    return [[name[:10], len(name), *row] for name, row in sorted(zip(names, of_rows, strict=True))]


@each_codec
def test_sparks_deltas_and_snapshots_give_the_state_that_spark_shows(codec: str) -> None:
    rows: dict[bytes, bytes | None] = {}
    snapshots = snapshots_of(codec)
    assert snapshots
    for version in VERSIONS:
        rows.update(read(delta_of(codec, version), row_checksums=has_checksums(codec)))
        assert shown(rows) == states()[version - 1]
        if version in snapshots:
            snapshot = read_snapshot(snapshots[version], row_checksums=has_checksums(codec))
            assert shown(dict(snapshot)) == states()[version - 1]


@each_writer
@given(changes=records, row_checksums=st.booleans())
def test_decoding_returns_the_encoded_values(codec: str, changes: Records, row_checksums: bool) -> None:
    assert read(written(changes, codec, row_checksums=row_checksums), row_checksums=row_checksums) == changes


def plain(data: bytes) -> bytes:
    return b"".join(compression.blocks(data, "1.delta"))


@each_codec
def test_encoded_records_equal_sparks_records(codec: str) -> None:
    """Compressors differ, so the bytes are compared uncompressed."""
    data = delta_of(codec, 1)
    changes = read(data, row_checksums=has_checksums(codec))
    ours = written(changes, codec.partition("-")[0], row_checksums=has_checksums(codec))
    assert plain(ours) == plain(data)


@each_writer
def test_a_file_of_many_blocks_is_read_in_each_codec(codec: str) -> None:
    changes: Records = [(b"key %d" % number, bytes([number % 256]) * 700) for number in range(20_000)]
    assert sum(len(value or b"") for _, value in changes) > changelog.WINDOW_BYTES
    assert read(written(changes, codec)) == changes


def test_a_codec_is_named_by_its_class_too() -> None:
    assert written(SMALL, "org.apache.spark.io.ZStdCompressionCodec") == written(SMALL, "zstd")


def test_an_unknown_codec_is_rejected() -> None:
    with pytest.raises(UnknownFormatVersion, match=r"com\.example\.Codec is not supported \(supported: lz4, zstd"):
        written(SMALL, "com.example.Codec")


def test_a_snapshot_with_a_removed_key_is_rejected() -> None:
    assert read_snapshot(written([(b"key", b"value")])) == [(b"key", b"value")]
    with pytest.raises(CorruptFile, match=r"1\.snapshot: is a snapshot with a removed key"):
        read_snapshot(written(SMALL))


def test_a_key_that_starts_like_the_header_of_a_changelog_is_read() -> None:
    """Its length, 161,585, starts with the text "v1" as `writeUTF` encodes it."""
    key = bytes(0x00027631)
    assert read(written([(key, b"value")])) == [(key, b"value")]


# -- damage ------------------------------------------------------------------------------------------------------------


def test_each_prefix_of_a_file_is_rejected_with_its_name() -> None:
    for codec in CODECS:
        for cut in prefixes(delta_of(codec, 2)):
            assert isinstance(value_or_error(read, cut, names="1.delta"), StatekeeperError), (codec, len(cut))


def test_each_flipped_byte_is_rejected_or_changes_nothing() -> None:
    for data in (delta_of("lz4", 1), *snapshots_of("lz4").values(), written(SMALL)):
        if len(data) > 1000:
            continue
        right = read(data)
        for flipped in flips(data):
            found = value_or_error(read, flipped, names="1.delta")
            # The end mark of lz4 has a level that no reader uses.
            assert isinstance(found, StatekeeperError) or found == right


@pytest.mark.parametrize("codec", UNGUARDED)
def test_a_flipped_byte_without_checksums_is_rejected_or_gives_other_records(codec: str) -> None:
    for flipped in flips(delta_of(codec, 1)):
        value_or_error(read, flipped, names="1.delta")


def test_a_flipped_byte_is_detected_by_the_row_checksums() -> None:
    changes: Records = [(b"key", b"value"), (b"gone", None), (b"", b"")]
    for data in (delta_of("lz4-checksums", 1), written(changes, row_checksums=True)):
        assert read(packed(plain(data)), row_checksums=True) == read(data, row_checksums=True)
        for flipped in flips(plain(data)):
            found = value_or_error(lambda bad: read(packed(bad), row_checksums=True), flipped, names="1.delta")
            assert isinstance(found, StatekeeperError)


def test_a_record_too_short_for_a_checksum_is_rejected() -> None:
    for short in ((b"key", b"abc"), (b"key", None)):
        with pytest.raises(CorruptFile, match="does not match its checksum"):
            read(written([short]), row_checksums=True)


@pytest.mark.parametrize("key_bytes", [-2, -(2**31), 2**31 - 1])
def test_an_impossible_key_size_is_rejected(key_bytes: int) -> None:
    with pytest.raises(CorruptFile, match=r"1\.delta: "):
        read(packed(struct.pack(">i", key_bytes) + b"key" + END))


@pytest.mark.parametrize("value_bytes", [-2, -(2**31), 2**31 - 1])
def test_an_impossible_value_size_is_rejected(value_bytes: int) -> None:
    with pytest.raises(CorruptFile, match=r"1\.delta: "):
        read(packed(struct.pack(">i", 3) + b"key" + struct.pack(">i", value_bytes) + b"value" + END))


def test_bytes_after_the_end_mark_are_rejected() -> None:
    for behind in (b"\0", END, bytes(2 * changelog.WINDOW_BYTES)):
        with pytest.raises(CorruptFile, match="does not end with an end mark"):
            read(packed(END + behind))


def test_a_record_above_the_memory_limit_is_rejected_before_decompression() -> None:
    """64 KiB of zstd that contain one value of 2 GiB."""
    packed_file = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed_file, "zstd") as plain:
        plain.write(struct.pack(">i", 3) + b"key" + struct.pack(">i", 2**31 - 1))
        for _ in range(2048):
            plain.write(bytes(1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RecordTooLarge, match=r"1\.delta: has a record of 2,147,483,6\d\d bytes"):
        read(packed_file.getvalue().to_pybytes())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 * 1024
