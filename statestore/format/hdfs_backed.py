"""Files of HDFSBackedStateStoreProvider, Spark's default state store: the changes of a version, or all of its rows.

    <v>.delta        the puts and removals of version v, in write order; the last one of a key wins
    <v>.snapshot     one put for each key of version v, in no particular order

Both are compressed with the codec of the query and contain the records of a changelog v1: `int key length, key, int value
length, value`, big-endian, then int -1. Value length -1 removes the key; a snapshot has no removals. Keys and values are
UnsafeRows without a version byte. With row checksums: value = int32 CRC32C(key, row), row, and the key of a removal =
int32 CRC32C(key), key (little-endian).

Spark 3.5 to 4.3 write the same bytes. A store has no column families and no checkpoint ids: the structure is always V1.
Source: HDFSBackedStateStoreProvider and KeyValueChecksumEncoder of Spark 4.2, and the bytes that it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import row_checksum
from statekeeper.statestore.format.changelog import ChangelogWriter, Changes, read_records
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.compression import Readable
from statekeeper.statestore.format.limits import MOST_RECORD_BYTES

DEFAULT_CODEC = "lz4"
"""The codec of a query whose offset log names none."""


def read_delta(
    data: Readable, path: str, *, row_checksums: bool = False, most_record_bytes: int = MOST_RECORD_BYTES
) -> Iterator[Changes]:
    """Read a compressed delta file in pieces of about `changelog.WINDOW_BYTES`, to bound the memory.

    `row_checksums`: whether the query has them; they are verified and removed. Raises `RecordTooLarge` for a record of more
    than `most_record_bytes` before it is decompressed, and `CorruptFile` only at the damage: do not use any piece before
    the last one was read.
    """
    pieces = read_records(data, path, most_record_bytes=most_record_bytes)
    return (row_checksum.without(piece, path) for piece in pieces) if row_checksums else pieces


def read_snapshot(
    data: Readable, path: str, *, row_checksums: bool = False, most_record_bytes: int = MOST_RECORD_BYTES
) -> Iterator[Changes]:
    """Read a compressed snapshot file as `read_delta`. Also raises `CorruptFile` for a removal."""
    for piece in read_delta(data, path, row_checksums=row_checksums, most_record_bytes=most_record_bytes):
        if (piece.value_length < 0).any():
            raise CorruptFile(
                "is a snapshot with a removed key, which Spark rejects",
                path=path,
                hint="restore the file from a backup, or load an older version",
            )
        yield piece


class HdfsBackedWriter:
    """Encodes and compresses a delta or snapshot file into `sink` as rows arrive. Memory is bounded by one call's rows.

    `codec`: of the query, by its name in the offset log; Spark reads no other. `most_record_bytes`, `path`: see
    `ChangelogWriter`. Raises `UnknownFormatVersion` for an unknown codec.
    """

    def __init__(
        self,
        sink: BinaryIO,
        codec: str = DEFAULT_CODEC,
        *,
        row_checksums: bool = False,
        most_record_bytes: int = MOST_RECORD_BYTES,
        path: str | None = None,
    ) -> None:
        self._writer = ChangelogWriter(
            sink, Header(lineage=None), codec=codec, most_record_bytes=most_record_bytes, path=path
        )
        self._row_checksums = row_checksums

    def append(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Append one record for each key, in order; None removes its key. A snapshot has each key once and no None."""
        if self._row_checksums:
            keys, values = row_checksum.added(keys, values)
        self._writer.append(pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary()))

    def finish(self) -> None:
        """Write the end mark. The sink remains open."""
        self._writer.finish()
