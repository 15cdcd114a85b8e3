"""Every checksum in an SST is verified, in Spark's tables and in tables of RocksDB with other options."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from rocksdict import BlockBasedOptions, ChecksumType, DBCompressionType, Options, SstFileWriter

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.table import FOOTER_BYTES, NotVerified, require_whole

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"
PADDING_BYTES = 40


def tables_of_spark() -> dict[str, bytes]:
    found = {}
    for fixture in FIXTURES.glob("*.zip"):
        with zipfile.ZipFile(fixture) as archive:
            tables = (name for name in archive.namelist() if name.endswith(".sst"))
            found.update({f"{fixture.stem}/{name}": archive.read(name) for name in tables})
    return found


def written(path: Path, options: Options, keys: int) -> bytes:
    writer = SstFileWriter(options)
    writer.open(str(path))
    for number in range(keys):
        writer[b"key %08d" % number] = b"%d " % number * 20
    writer.finish()
    return path.read_bytes()


def options(checksum: ChecksumType, compression: DBCompressionType, version: int = 5) -> Options:
    made, blocks = Options(raw_mode=True), BlockBasedOptions()
    made.set_compression_type(compression)
    blocks.set_checksum_type(checksum)
    blocks.set_format_version(version)
    blocks.set_bloom_filter(10, False)
    made.set_block_based_table_factory(blocks)
    return made


def test_every_table_of_sparks_fixtures_is_whole() -> None:
    tables = tables_of_spark()
    assert len(tables) > 20
    for path, table in tables.items():
        assert require_whole(table, path) >= 4, path


def test_each_flipped_byte_of_a_table_is_detected() -> None:
    path, table = min(tables_of_spark().items(), key=lambda item: len(item[1]))
    unseen = []
    for place in range(len(table)):
        damaged = bytearray(table)
        damaged[place] ^= 1 << place % 8
        try:
            require_whole(bytes(damaged), path)
            unseen.append(place)
        except (CorruptFile, NotVerified):
            continue
    padding = range(len(table) - FOOTER_BYTES + 1, len(table) - FOOTER_BYTES + 1 + PADDING_BYTES)
    assert set(unseen) <= set(padding), "what fills the footer up holds nothing and has no checksum"


@pytest.mark.parametrize("cut", [0, 1, 52, 53, 100])
def test_a_truncated_table_is_rejected(cut: int) -> None:
    path, table = next(iter(tables_of_spark().items()))
    with pytest.raises(CorruptFile, match="is not an SST"):
        require_whole(table[:cut], path)


@pytest.mark.parametrize(
    ("checksum", "compression"),
    [
        (ChecksumType.crc32c(), DBCompressionType.snappy()),
        (ChecksumType.xxhash(), DBCompressionType.none()),
        (ChecksumType.xxhash64(), DBCompressionType.zstd()),
        (ChecksumType.xxh3(), DBCompressionType.lz4()),
        (ChecksumType.xxh3(), DBCompressionType.lz4hc()),
    ],
    ids=["crc32c-snappy", "xxh32-none", "xxh64-zstd", "xxh3-lz4", "xxh3-lz4hc"],
)
def test_all_checksums_and_codecs_of_rocksdb_are_supported(
    tmp_path: Path, checksum: ChecksumType, compression: DBCompressionType
) -> None:
    table = written(tmp_path / "a.sst", options(checksum, compression), 5_000)
    blocks = require_whole(table, "a.sst")
    assert blocks > 50
    damaged = bytearray(table)
    damaged[len(table) // 2] ^= 0x10
    with pytest.raises(CorruptFile, match="does not match its checksum"):
        require_whole(bytes(damaged), "a.sst")


def test_a_table_of_an_unknown_format_version_is_reported_as_not_verified(tmp_path: Path) -> None:
    table = written(tmp_path / "a.sst", options(ChecksumType.xxh3(), DBCompressionType.lz4(), version=6), 100)
    with pytest.raises(NotVerified, match="format version 6"):
        require_whole(table, "a.sst")
