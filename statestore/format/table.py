"""The blocks of an SST (RocksDB's block-based table), to verify each of its checksums without its database.

    data block ... | meta blocks: filter, properties, ... | metaindex, index | footer (53 bytes)
    block = contents, 1 byte: compression type, 4 bytes: checksum

    footer      checksum type, handle of the metaindex, handle of the index, format version, magic number
    metaindex   name of each meta block -> handle (offset, size)
    index       last key of each data block -> handle, as a difference from the handle before it
    properties  among others how the index is encoded

RocksDB verifies a block's checksum when it reads the block, and a scan reads no filter. This module verifies each
block, and requires that the blocks cover the file to its last byte, so that no block is missed. It supports format
versions up to 5, which Spark and this library write; other encodings raise `NotVerified`. Source: RocksDB 9.8,
`table/format.cc`, `table/block_based/block.cc`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import google_crc32c
import pyarrow as pa
import xxhash

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format.compression import Readable

_MAGIC = 0x88E241B785F4CFF7
_FOOTER = struct.Struct("<B40sIQ")
FOOTER_BYTES = _FOOTER.size
_TRAILER = struct.Struct("<BI")
_NEWEST_VERSION = 5
_WORD = 0xFFFFFFFF
_LAST_BYTE_FACTOR = 0x6B9083D9
_MOST_INDEX_BYTES = 256 * 1024 * 1024
_PROPERTIES = b"rocksdb.properties"
_INDEX_TYPE = b"rocksdb.block.based.table.index.type"
_DELTA_ENCODED = b"rocksdb.index.value.is.delta.encoded"
_FLAT_INDEXES = (0, 1)
_CODECS = {1: "snappy", 4: "lz4_raw", 5: "lz4_raw", 7: "zstd"}
_PACKED_WITHOUT_SIZE = ("snappy",)
_BAD = (IndexError, ValueError, struct.error, pa.ArrowException, OverflowError)
"""The errors of decoding invalid bytes. Their checksum matches, so the encoding is unknown."""


class NotVerified(Exception):
    """The encoding of the table is not supported. The table may be intact or damaged."""


@dataclass(frozen=True)
class Handle:
    """The position of a block in its file; the block's trailer follows."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """The start of the next block."""
        return self.offset + self.size + _TRAILER.size


@dataclass(frozen=True)
class Footer:
    """The end of a table."""

    checksum_type: int
    metaindex: Handle
    index: Handle


def require_whole(table: Readable, path: str) -> int:
    """Verify the checksum of each block of a table; return the number of blocks.

    Raises `CorruptFile` for the first block that does not match its checksum, and `NotVerified`.
    """
    footer = read_footer(table[-FOOTER_BYTES:], len(table), path)
    blocks = _Blocks(table, footer.checksum_type, path)
    try:
        metas = dict(blocks.handles_of_metas(footer.metaindex))
        data = list(blocks.handles_of_data(footer.index, metas))
        found = sorted([*data, *metas.values(), footer.metaindex, footer.index], key=lambda one: one.offset)
    except _BAD as error:
        raise NotVerified(f"{path}: {error}") from error
    at = 0
    for handle in found:
        if handle.offset != at:
            raise NotVerified(f"{path}: no known block contains byte {at:,}")
        at = handle.end
    if at != len(table) - FOOTER_BYTES:
        raise NotVerified(f"{path}: no known block contains byte {at:,}")
    for handle in data:
        blocks.require_checksum(handle)
    return len(found)


def read_footer(end: bytes, size_bytes: int, path: str) -> Footer:
    """Parse the footer from the last bytes of a table of `size_bytes`. Raises `CorruptFile`, `NotVerified`."""
    if len(end) < FOOTER_BYTES:
        raise CorruptFile(f"is not an SST: it has only {size_bytes:,} bytes", path=path)
    checksum_type, handles, version, magic = _FOOTER.unpack(end[-FOOTER_BYTES:])
    if magic != _MAGIC:
        raise CorruptFile("is not an SST: the magic number in its footer is wrong", path=path)
    if not 0 < version <= _NEWEST_VERSION:
        raise NotVerified(f"{path}: format version {version} is not supported")
    try:
        metaindex, at = _handle(handles, 0)
        index, at = _handle(handles, at)
    except _BAD as error:
        raise CorruptFile(f"has a footer without valid block handles: {error}", path=path) from error
    for handle in (metaindex, index):
        if handle.end > size_bytes - FOOTER_BYTES:
            raise CorruptFile(
                f"has a footer that names a block at byte {handle.offset:,}, beyond the end of the file", path=path
            )
    return Footer(checksum_type, metaindex, index)


def metas_begin(end: bytes, size_bytes: int, path: str) -> int:
    """Return the start of the meta blocks in a table of `size_bytes`, from its last bytes. RocksDB reads everything
    from there on when it opens the table.

    Raises `CorruptFile`; `NotVerified` also if `end` has too few bytes.
    """
    footer = read_footer(end, size_bytes, path)
    begin = size_bytes - len(end)
    try:
        if footer.metaindex.offset < begin:
            raise ValueError("the metaindex begins earlier")
        at = footer.metaindex.offset - begin
        metas = [_handle(value, 0)[0] for _, value in _entries(end[at : at + footer.metaindex.size])]
    except _BAD as error:
        raise NotVerified(f"{path}: {error}") from error
    return min(handle.offset for handle in (*metas, footer.metaindex, footer.index))


class _Blocks:
    def __init__(self, table: Readable, checksum_type: int, path: str) -> None:
        self._table = table
        self._path = path
        if checksum_type not in _CHECKSUMS:
            raise NotVerified(f"{path}: checksum type {checksum_type} is not supported")
        self._checksum = _CHECKSUMS[checksum_type]

    def require_checksum(self, handle: Handle) -> None:
        """Raise `CorruptFile` if the block does not match its checksum."""
        table, end = self._table, handle.offset + handle.size
        (said,) = struct.unpack("<I", table[end + 1 : handle.end])
        if self._checksum(table[handle.offset : end], table[end]) != said:
            raise CorruptFile(
                f"has a block at byte {handle.offset:,} ({handle.size:,} bytes) that does not match its checksum",
                path=self._path,
            )

    def contents(self, handle: Handle) -> bytes:
        """Return the verified and unpacked contents of a block."""
        if handle.end > len(self._table) - FOOTER_BYTES:
            raise ValueError(f"a block at byte {handle.offset}, beyond the end")
        self.require_checksum(handle)
        end = handle.offset + handle.size
        packed, kind = bytes(self._table[handle.offset : end]), self._table[end]
        return packed if kind == 0 else _unpacked(packed, _CODECS.get(kind, f"compression type {kind}"))

    def handles_of_metas(self, metaindex: Handle) -> Iterator[tuple[bytes, Handle]]:
        """Iterate over the meta blocks by name, each verified."""
        for name, value in _entries(self.contents(metaindex)):
            handle, _ = _handle(value, 0)
            if handle.end > len(self._table) - FOOTER_BYTES:
                raise ValueError(f"meta block {name!r} at byte {handle.offset}, beyond the end")
            self.require_checksum(handle)
            yield name, handle

    def handles_of_data(self, index: Handle, metas: Mapping[bytes, Handle]) -> Iterator[Handle]:
        """Iterate over the data blocks."""
        properties = dict(_entries(self.contents(metas[_PROPERTIES]))) if _PROPERTIES in metas else {}
        (kind,) = struct.unpack("<I", properties.get(_INDEX_TYPE, bytes(4)))
        if kind not in _FLAT_INDEXES:
            raise ValueError(f"index type {kind}")
        is_delta_encoded = _varint(properties.get(_DELTA_ENCODED, b"\0"), 0)[0] != 0
        contents = self.contents(index)
        if is_delta_encoded:
            yield from _delta_encoded(contents)
        else:
            yield from (_handle(value, 0)[0] for _, value in _entries(contents))


def _unpacked(packed: bytes, codec: str) -> bytes:
    at, size = (0, _varint(packed, 0)[0]) if codec in _PACKED_WITHOUT_SIZE else reversed(_varint(packed, 0))
    if size > _MOST_INDEX_BYTES:
        raise ValueError(f"a block that unpacks to {size:,} bytes")
    return bytes(pa.Codec(codec).decompress(packed[at:], decompressed_size=size, asbytes=True))


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the keys and values of a block. Each key is stored as the length shared with the previous key, and
    the rest."""
    end, at, key = _end_of_entries(block), 0, b""
    while at < end:
        shared, at = _varint(block, at)
        rest, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + rest]
        at += rest
        yield key, block[at : at + length]
        at += length


def _delta_encoded(block: bytes) -> Iterator[Handle]:
    """Iterate over the handles of an index. Each restart has a whole handle; other entries have the difference of its
    size from the previous one."""
    end, at, before = _end_of_entries(block), 0, Handle(0, 0)
    while at < end:
        shared, at = _varint(block, at)
        rest, at = _varint(block, at)
        at += rest
        if shared == 0:
            before, at = _handle(block, at)
        else:
            difference, at = _varint(block, at)
            before = Handle(before.end, before.size + ((difference >> 1) ^ -(difference & 1)))
        yield before


def _end_of_entries(block: bytes) -> int:
    (restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 - 4 * (int(restarts) & 0x7FFFFFFF)
    if end < 0:
        raise ValueError(f"a block of {len(block)} bytes declares {restarts} restart points, more than fit")
    return end


def _handle(data: bytes, at: int) -> tuple[Handle, int]:
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return Handle(offset, size), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number in groups of seven bits; also return the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _crc32c(contents: bytes, kind: int) -> int:
    crc = int(google_crc32c.extend(google_crc32c.value(contents), bytes([kind])))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _WORD


def _xxh32(contents: bytes, kind: int) -> int:
    return int(xxhash.xxh32_intdigest(contents + bytes([kind])))


def _xxh64(contents: bytes, kind: int) -> int:
    return int(xxhash.xxh64_intdigest(contents + bytes([kind]))) & _WORD


def _xxh3(contents: bytes, kind: int) -> int:
    return (int(xxhash.xxh3_64_intdigest(contents)) & _WORD) ^ (kind * _LAST_BYTE_FACTOR & _WORD)


_CHECKSUMS: Mapping[int, Callable[[bytes, int], int]] = {1: _crc32c, 2: _xxh32, 3: _xxh64, 4: _xxh3}
