"""Changelogs built from records, and the oracle of a replay."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import pyarrow as pa

from statekeeper.statestore.format import compression
from statekeeper.statestore.format.changelog import ChangelogWriter, Changes, Kind
from statekeeper.statestore.format.changelog_header import Header, lineage_json
from statekeeper.statestore.format.compression import BlockWriter
from statekeeper.statestore.format.java_io import utf
from statekeeper.statestore.format.names import VersionId

Records = list[tuple[bytes, bytes | None]]


def written(changes: Records, header: Header, *, pieces: int = 1) -> bytes:
    sink = io.BytesIO()
    writer = ChangelogWriter(sink, header)
    step = max(1, -(-len(changes) // pieces))
    for start in range(0, len(changes), step):
        part = changes[start : start + step]
        writer.append(
            pa.array([key for key, _ in part], pa.large_binary()), pa.array([v for _, v in part], pa.large_binary())
        )
    writer.finish()
    assert writer.records == len(changes)
    return sink.getvalue()


def packed(plain: bytes) -> bytes:
    sink = io.BytesIO()
    writer = compression.BlockWriter(sink)
    writer.write(plain)
    writer.finish()
    return sink.getvalue()


def changes_of(records: Records, *, garbage: bytes = b"") -> Changes:
    """The records as a changelog holds them, behind something that is none."""
    plain = bytearray(garbage)
    columns: list[list[int]] = [[], [], [], []]
    for key, value in records:
        place = len(plain) + 4
        sizes = place, len(key), place + len(key) + 4, -1 if value is None else len(value)
        for column, size in zip(columns, sizes, strict=True):
            column.append(size)
        plain += struct.pack(">i", len(key)) + key + struct.pack(">i", sizes[3]) + (value or b"")
    return Changes.of(bytes(plain), *(np.array(column, np.int64) for column in columns))


def one_by_one(records: Records) -> Records:
    """The oracle."""
    return sorted(dict(records).items(), key=itemgetter(0))


def changelog_with_families(number: int, lineage: Sequence[VersionId] | None, family: bytes) -> bytes:
    """Encode a changelog as Spark does for stores with column families."""
    body, key, value = io.BytesIO(), family + b"key %d" % number, b"value"
    writer = BlockWriter(body)
    writer.write(utf("v2") if lineage is None else utf("v4") + utf(lineage_json(tuple(lineage))))
    writer.write(bytes([Kind.PUT]) + len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big") + value)
    writer.write(b"\0")
    writer.finish()
    return body.getvalue()
