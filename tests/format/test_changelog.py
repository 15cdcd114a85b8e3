"""Changelogs: encoded and decoded, compared with Spark's bytes, and damaged at every byte."""

from __future__ import annotations

import io
import resource
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import (
    CorruptFile,
    LineageCeiling,
    RecordTooLarge,
    StatekeeperError,
    UnknownFormatVersion,
)
from statekeeper.statestore.format import changelog, compression
from statekeeper.statestore.format.changelog import ChangelogWriter, Kind, read_changelog
from statekeeper.statestore.format.changelog_header import Header, lineage_bytes, lineage_json, read_header
from statekeeper.statestore.format.java_io import UTF_LIMIT_BYTES, utf
from statekeeper.statestore.format.names import VersionId
from tests.support.changelogs import Records, packed, written
from tests.support.damage import flips, prefixes, value_or_error

IDS = [f"{number:08x}-0000-4000-8000-00000000000{number}" for number in range(10)]
LINEAGE = (VersionId(7, IDS[7]), VersionId(8, IDS[8]))
SMALL: Records = [(b"key", b"value"), (b"", b""), (b"gone", None), (b"key", b"later")]

# Written by Spark 4.2.0: key `kk`, value `vvv`, changelog v3 with an empty lineage, lz4.
BY_SPARK = bytes.fromhex(
    "4c5a34426c6f636b1519000000190000009113fc0e0002763300025b5d000000026b6b00000003767676ffffffff"
    "4c5a34426c6f636b15000000000000000000000000"
)

records = st.lists(st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=60)), max_size=60)


def read(data: bytes) -> tuple[Header, Records]:
    header, pieces = read_changelog(data, "a.changelog")
    return header, [pair for changes in pieces for pair in changes.pairs()]


def record(key: bytes, value: bytes | None) -> bytes:
    body = struct.pack(">i", len(key)) + key
    return body + (struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value)


runs_of_one_length = st.builds(
    lambda key_bytes, value_bytes, numbers: [
        (bytes([n % 256]) * key_bytes, None if value_bytes is None else bytes([n // 256]) * value_bytes)
        for n in range(numbers)
    ],
    st.integers(0, 5),
    st.none() | st.integers(0, 5),
    st.sampled_from([1, 2, 63, 64, 65, 255, 256, 257, 700]),
)


@given(st.lists(records | runs_of_one_length, max_size=5))
def test_runs_of_records_of_equal_length_are_read_correctly(runs: list[Records]) -> None:
    changes = [change for run in runs for change in run]
    assert read(written(changes, Header(None)))[1] == changes


@given(records, st.sampled_from([None, (), LINEAGE]), st.integers(1, 5))
def test_decoding_returns_the_encoded_values(
    changes: Records, lineage: tuple[VersionId, ...] | None, pieces: int
) -> None:
    data = written(changes, Header(lineage), pieces=pieces)
    assert read(data) == (Header(lineage), changes)
    assert read_header(data, "a.changelog") == Header(lineage)


def test_a_changelog_that_spark_wrote_is_read() -> None:
    assert read(BY_SPARK) == (Header(()), [(b"kk", b"vvv")])


def test_encoded_bytes_equal_sparks_bytes() -> None:
    assert written([(b"kk", b"vvv")], Header(())) == BY_SPARK


def test_a_slice_of_an_arrow_array_writes_only_its_rows() -> None:
    keys = pa.array([b"a", b"bb", b"ccc", b"dddd"], pa.large_binary()).slice(1, 2)
    values = pa.array([b"1", None, b"333", b"4"], pa.large_binary()).slice(1, 2)
    sink = io.BytesIO()
    writer = ChangelogWriter(sink, Header(None))
    writer.append(keys, values)
    writer.finish()
    assert read(sink.getvalue())[1] == [(b"bb", None), (b"ccc", b"333")]
    assert writer.record_bytes == 8 + 2 + 8 + 3 + 3


def test_records_over_several_windows_are_all_read() -> None:
    changes: Records = [(f"key {number}".encode(), b"v" * (number % 4000)) for number in range(14_000)]
    assert sum(len(value or b"") for _, value in changes) > 3 * changelog.WINDOW_BYTES
    assert read(written(changes, Header(LINEAGE)))[1] == changes


def test_a_record_larger_than_a_window_is_read() -> None:
    changes: Records = [(b"small", b"1"), (b"large", bytes(2 * changelog.WINDOW_BYTES)), (b"last", b"2")]
    assert read(written(changes, Header(())))[1] == changes


def test_a_record_that_declares_two_gigabytes_is_rejected_at_once() -> None:
    filler = b"".join(record(b"%d" % number, b"x" * 1000) for number in range(2 * changelog.WINDOW_BYTES // 1000))
    for claim in (struct.pack(">i", 2**31 - 1), struct.pack(">ii", 0, 2**31 - 1)):
        with pytest.raises(CorruptFile, match=r"a record of 2,147,483,6\d\d bytes"):
            read(packed(claim + filler + struct.pack(">i", -1)))


def test_a_record_above_the_memory_limit_is_rejected_before_decompression() -> None:
    """64 KiB of zstd that contain one value of 2 GiB."""
    packed_file = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed_file, "zstd") as plain:
        plain.write(struct.pack(">i", 3) + b"key" + struct.pack(">i", 2**31 - 1))
        for _ in range(2048):
            plain.write(bytes(1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RecordTooLarge, match=r"2,147,483,6\d\d bytes, above the limit of 67,108,864"):
        read(packed_file.getvalue().to_pybytes())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 * 1024
    changes: Records = [(b"key", bytes(2 * changelog.WINDOW_BYTES))]
    with pytest.raises(RecordTooLarge):
        list(read_changelog(written(changes, Header(())), "a", most_record_bytes=2 * changelog.WINDOW_BYTES)[1])


def test_records_after_the_end_mark_are_rejected() -> None:
    end = struct.pack(">i", -1)
    for behind in (b"\0", end, record(b"a", b"b") + end, bytes(2 * changelog.WINDOW_BYTES)):
        with pytest.raises(CorruptFile, match="does not end with an end mark"):
            read(packed(end + behind))


@pytest.mark.parametrize("version", ["v5", "v101"])
def test_formats_of_later_spark_releases_are_rejected(version: str) -> None:
    data = packed(utf(version) + utf("[]") + b"\0")
    for act in (read, lambda bytes_: read_header(bytes_, "a.changelog")):
        with pytest.raises(UnknownFormatVersion, match=rf"a\.changelog: has changelog format {version}"):
            act(data)


# -- column families ---------------------------------------------------------------------------------------------------


def typed(*changes: tuple[Kind, bytes, bytes | None], header: bytes = utf("v2")) -> bytes:
    return header + b"".join(bytes([kind]) + record(key, value) for kind, key, value in changes) + b"\0"


def kinds_read(plain: bytes) -> list[tuple[Kind, bytes, bytes | None]]:
    """The records of a changelog; a piece without kinds puts and deletes."""
    found = []
    for piece in read_changelog(packed(plain), "a.changelog")[1]:
        kinds = [None] * len(piece) if piece.kinds is None else piece.kinds.tolist()
        for (key, value), kind in zip(piece.pairs(), kinds, strict=True):
            found.append((Kind((Kind.DELETE if value is None else Kind.PUT) if kind is None else kind), key, value))
    return found


EVERY_KIND = [
    (Kind.PUT, b"\2\0kk", b"vvv"),
    (Kind.MERGE, b"\2\0kk", b"more"),
    (Kind.DELETE, b"\2\0zz", None),
    (Kind.DELETE_RANGE, b"\2\0a", b"\2\0b"),
    (Kind.PUT, b"", b""),
]


@pytest.mark.parametrize("version", ["v2", "v4"])
def test_typed_records_are_read_in_order_with_their_kinds(version: str) -> None:
    header = utf("v2") if version == "v2" else utf("v4") + utf(lineage_json(LINEAGE))
    data = typed(*EVERY_KIND, header=header)
    assert kinds_read(data) == EVERY_KIND
    assert read_header(packed(data), "a") == Header(LINEAGE if version == "v4" else None, is_typed=True)


def test_without_merges_the_last_record_wins_and_kinds_are_none() -> None:
    [piece] = read_changelog(packed(typed((Kind.PUT, b"a", b"1"), (Kind.DELETE, b"a", None))), "a")[1]
    assert piece.kinds is None


@given(st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=9), st.binary(max_size=70)), max_size=400))
def test_typed_records_of_any_length_are_read(
    drawn: list[tuple[Kind, bytes, bytes]],
) -> None:
    changes = [(kind, key, None if kind is Kind.DELETE else value) for kind, key, value in drawn]
    assert kinds_read(typed(*changes)) == changes


def test_long_runs_of_typed_records_of_equal_length_keep_their_kinds() -> None:
    changes = [(Kind.MERGE if n % 1000 == 999 else Kind.PUT, b"%06d" % n, b"%03d" % (n % 7)) for n in range(3000)]
    assert kinds_read(typed(*changes)) == changes


@pytest.mark.parametrize("key_bytes", [0, 6])
def test_long_runs_of_deletes_are_read(key_bytes: int) -> None:
    puts = [(Kind.PUT, b"%09d" % n, b"v") for n in range(700)]
    deletes: list[tuple[Kind, bytes, bytes | None]] = [
        (Kind.DELETE, (b"%06d" % n)[:key_bytes], None) for n in range(3000)
    ]
    changes = deletes + puts + deletes[:1500] + [(Kind.DELETE, b"another length", None)] + puts + deletes
    assert kinds_read(typed(*changes)) == changes
    untyped = [(key, value) for _, key, value in changes]
    assert read(written(untyped, Header(None)))[1] == untyped


def test_a_typed_changelog_that_is_truncated_or_too_long_is_rejected() -> None:
    whole = typed(*EVERY_KIND)
    for cut in range(len(utf("v2")), len(whole)):
        with pytest.raises(CorruptFile):
            kinds_read(whole[:cut])
    for behind in (b"\0", b"\1", record(b"a", b"b")):
        with pytest.raises(CorruptFile, match="does not end with an end mark"):
            kinds_read(whole + behind)


def test_unknown_record_kinds_and_deletes_with_values_are_rejected() -> None:
    head = utf("v2")
    with pytest.raises(UnknownFormatVersion, match="has a record of the unknown kind 0x21 at byte 4"):
        kinds_read(head + b"\x21" + record(b"k", b"v") + b"\0")
    for odd in (bytes([Kind.DELETE]) + record(b"k", b"v"), bytes([Kind.PUT]) + record(b"k", None)):
        with pytest.raises(CorruptFile, match="a delete with a value, or a put without a value"):
            kinds_read(head + odd + b"\0")


@pytest.mark.parametrize("text", ["x3", "v", "vx", "v3.0", ""])
def test_a_text_that_is_no_version_is_a_key_of_version_1(text: str) -> None:
    """Spark's rule (SPARK-51922): the first key may look like the start of a header."""
    key = text.encode().ljust(5, b"\0")
    assert read(written([(key, b"v")], Header(None))) == (Header(None), [(key, b"v")])


def test_a_first_key_that_starts_like_a_header_is_a_key() -> None:
    # The key length 0x0002 and the key "v3" look like the start of a v3 header.
    large: Records = [(b"\0" * 0x0076, b"v3"), (bytes([0, 2]) + b"v3" + b"\0\2[]", b"x")]
    assert read(written(large, Header(None))) == (Header(None), large)


@pytest.mark.parametrize("header", [Header(None), Header(LINEAGE)])
def test_each_flipped_byte_is_detected_or_harmless(header: Header) -> None:
    data = written(SMALL, header)
    outcomes = {"found": 0, "harmless": 0}
    for damaged in flips(data):
        found = value_or_error(read, damaged, names="a.changelog")
        outcomes["found" if isinstance(found, StatekeeperError) else "harmless"] += 1
        assert isinstance(found, StatekeeperError) or found == (header, SMALL)
    # Harmless are the five bits that say how large a block may be.
    assert outcomes["found"] > 20 * outcomes["harmless"] > 0


@pytest.mark.parametrize("header", [Header(None), Header(LINEAGE)])
def test_each_truncation_is_detected(header: Header) -> None:
    for damaged in prefixes(written(SMALL, header)):
        with pytest.raises(CorruptFile, match=r"a\.changelog"):
            read(damaged)


@pytest.mark.parametrize("header", [Header(None), Header(LINEAGE)])
def test_damage_with_a_valid_checksum_gives_typed_errors_or_records(header: Header) -> None:
    """A forged file has valid checksums, so that only the decoder detects the damage."""
    plain = b"".join(compression.blocks(written(SMALL, header), "x"))
    for damaged in (*flips(plain), *prefixes(plain)):
        value_or_error(read, packed(damaged), names="a.changelog")


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_arbitrary_uncompressed_bytes_give_typed_errors_or_records(plain: bytes) -> None:
    for data in (plain, packed(plain), packed(utf("v3") + plain), packed(utf("v3") + utf("[]") + plain)):
        value_or_error(read, data, names="a.changelog")


@pytest.mark.parametrize(
    "lineage",
    [
        "{}",
        "[1]",
        "[" * 30_000,
        '[{"version":1e999,"checkpointUniqueId":"00000001-0000-4000-8000-000000000001"}]',
        '[{"version":0,"checkpointUniqueId":"00000001-0000-4000-8000-000000000001"}]',
        '[{"version":true,"checkpointUniqueId":"00000001-0000-4000-8000-000000000001"}]',
        '[{"version":1,"checkpointUniqueId":"../../../../outside"}]',
        '[{"version":1,"checkpointUniqueId":null}]',
        '[{"version":1}]',
        "not json",
    ],
)
def test_an_invalid_lineage_or_id_is_rejected(lineage: str) -> None:
    data = packed(utf("v3") + utf(lineage) + struct.pack(">i", -1))
    for act in (read, lambda bytes_: read_header(bytes_, "a.changelog")):
        with pytest.raises(CorruptFile, match=r"a\.changelog"):
            act(data)


def test_a_lineage_has_the_predicted_size_and_at_most_sparks_maximum() -> None:
    lineage = tuple(VersionId(number, IDS[1]) for number in range(1, 1000))
    fits = next(n for n in range(len(lineage), 0, -1) if lineage_bytes(lineage[:n]) <= UTF_LIMIT_BYTES)
    assert 860 <= fits <= 870
    assert read(written([], Header(lineage[:fits])))[0].lineage == lineage[:fits]
    with pytest.raises(LineageCeiling, match="snapshot"):
        ChangelogWriter(io.BytesIO(), Header(lineage[: fits + 1]))


def test_a_header_is_read_without_decompressing_the_rest() -> None:
    data = written([(b"k%d" % n, bytes(1000)) for n in range(1000)], Header(LINEAGE))
    first_block_bytes = 21 + struct.unpack_from("<i", data, 9)[0]
    assert read_header(data[:first_block_bytes], "a.changelog") == Header(LINEAGE)


def test_a_changelog_of_zeros_is_read_in_bounded_memory() -> None:
    """4,000 records of 64 KiB of zeros: 1 MiB packed, 256 MiB plain."""
    script = textwrap.dedent("""
        import io, resource, pyarrow as pa
        from statekeeper.statestore.format.changelog import read_changelog
        from statekeeper.statestore.format.changelog_header import Header
        from statekeeper.statestore.format.changelog import ChangelogWriter
        sink = io.BytesIO()
        writer = ChangelogWriter(sink, Header(()))
        for number in range(4000):
            writer.append(pa.array([b"%d" % number], pa.large_binary()), pa.array([bytes(65536)], pa.large_binary()))
        writer.finish()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert sum(len(c) for c in read_changelog(sink.getvalue(), "x")[1]) == 4000
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < 100 * 1024


def test_pages_of_a_mapped_changelog_are_released_after_reading(tmp_path: Path) -> None:
    """96 MiB that cannot be packed."""
    script = textwrap.dedent("""
        import mmap, os, pathlib, sys
        from statekeeper.statestore.format import compression
        path = pathlib.Path(sys.argv[1])
        with path.open("wb") as file:
            writer = compression.BlockWriter(file)
            for _ in range(96):
                writer.write(os.urandom(1 << 20))
            writer.finish()
        def mapped_kib():
            lines = pathlib.Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:"))
        before = mapped_kib()
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        plain_bytes = 0
        for block in compression.blocks(data, "x"):
            plain_bytes += len(block)
        assert plain_bytes == 96 << 20
        print(mapped_kib() - before)
    """)
    command = [sys.executable, "-c", script, tmp_path / "large"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < 32 * 1024


def test_reading_garbage_takes_little_memory() -> None:
    """Blocks and records that declare more bytes than they contain."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        for claim in (struct.pack(">i", 2**31 - 1), struct.pack(">ii", 0, 2**31 - 1)):
            with pytest.raises(CorruptFile):
                read(packed(claim))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
