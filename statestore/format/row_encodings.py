"""Re-encoding of rows between Spark's two state store providers. The rows themselves do not change.

    default provider   key = one row for all columns · value = row
    RocksDB            key and value as `family_rows` describes; with row checksums, a value has its checksum and size

Only stores without column families exist in both: the encoders are WHOLE and PREFIX. Source: RocksDBStateEncoder and
HDFSBackedStateStoreProvider of Spark 4.2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import row_checksum
from statekeeper.statestore.format.families import Family, KeyEncoder
from statekeeper.statestore.format.family_rows import decode_keys
from statekeeper.statestore.format.unsafe_row import encode_rows

_VERSION = b"\0"
_INT = struct.Struct("<i")
_CHECKSUM = struct.Struct("<II")

Rows = tuple[Sequence[bytes], Sequence[bytes]]
"""Keys and their values."""


@dataclass(frozen=True)
class RowEncoding:
    """How RocksDB stores the rows of one store. `family`: the layout with its encoder; `row_checksums`: of the query."""

    family: Family
    row_checksums: bool

    def encoded(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Encode rows of the default provider for RocksDB. Raises `CorruptFile` for a key that does not fit the schema."""
        versioned = [_VERSION + key for key in keys]
        if self.family.encoder is KeyEncoder.PREFIX:
            versioned = self._in_two(versioned)
        rows = [_VERSION + value for value in values]
        if self.row_checksums:
            pairs = zip(versioned, rows, strict=True)
            rows = [_CHECKSUM.pack(row_checksum.checksum(key, row), len(row)) + row for key, row in pairs]
        return versioned, rows

    def bare(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Decode rows of RocksDB for the default provider. Raises `CorruptFile` for bytes that do not fit the schema."""
        if self.family.encoder is KeyEncoder.PREFIX:
            plain = [bytes(key) for key in encode_rows(decode_keys(keys, self.family)).to_pylist()]
        else:
            plain = [_after_version(key) for key in keys]
        head = _CHECKSUM.size if self.row_checksums else 0
        return plain, [_after_version(value[head:]) for value in values]

    def _in_two(self, keys: Sequence[bytes]) -> list[bytes]:
        whole = Family(self.family.key, self.family.value)
        columns = decode_keys(keys, whole)
        front = _rows_of(columns.select(list(self.family.front)))
        behind = [place for place in range(columns.num_columns) if place not in self.family.front]
        rest = _rows_of(columns.select(behind))
        return [_INT.pack(len(first)) + first + second for first, second in zip(front, rest, strict=True)]


def _rows_of(columns: pa.Table) -> list[bytes]:
    return [bytes(row) for row in encode_rows(columns, head=_VERSION).to_pylist()]


def _after_version(row: bytes) -> bytes:
    if row[:1] != _VERSION:
        hint = "to find all damaged files, run: statekeeper audit ROOT --deep"
        raise CorruptFile("a row has an unknown version byte", hint=hint)
    return row[1:]
