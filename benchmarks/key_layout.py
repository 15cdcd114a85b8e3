"""Layouts of the key group in a state key: an int column, or a binary column of two big-endian bytes.

`state_rows` writes the int. Its four little-endian bytes keep each group together, but order group 256 before group 1.
Two big-endian bytes order all groups; a binary value is stored after its slot.
"""

from __future__ import annotations

import argparse
import io
import itertools
import struct
import tempfile
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

from benchmarks.measure import Spread, Table, flat, ratio
from statekeeper.statestore.checkpoint.lineage import LocalCopy
from statekeeper.statestore.format.changelog import ChangelogWriter
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.state_rows import encode_keys, encode_values, group_prefix, key_group
from statekeeper.statestore.format.unsafe_row import encode_rows, normalise_keys
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits

KEYS = 300_000
GROUPS = 1_024
MOVED_GROUPS = range(300, 620)
"""The groups of one partition after a rescale."""

_VERSION = b"\0"
_BINARY_ROW = struct.Struct("<qq2s6x")
_BINARY_PREFIX_BYTES = len(_VERSION) + _BINARY_ROW.size
_BODY_AT = 16 << 32 | 2

Encode = Callable[[np.ndarray, pa.Table], pa.LargeBinaryArray]


def encode_big_endian(groups: np.ndarray, columns: pa.Table) -> pa.LargeBinaryArray:
    """Encode keys like `encode_keys`, but with a binary column in the prefix row."""
    prefix = _big_endian_prefix(0) + _VERSION
    head = np.tile(np.frombuffer(prefix, np.uint8), (len(groups), 1))
    at = len(prefix) - len(_VERSION) - 8
    head[:, at : at + 2] = groups.astype(">u2").view(np.uint8).reshape(-1, 2)
    return encode_rows(normalise_keys(columns), head=head)


def _big_endian_prefix(group: int) -> bytes:
    row = _BINARY_ROW.pack(0, _BODY_AT, group.to_bytes(2, "big"))
    return struct.pack("<i", _BINARY_PREFIX_BYTES) + _VERSION + row


def _big_endian_group(key: bytes) -> int:
    return int.from_bytes(key[4 + len(_VERSION) + 16 :][:2], "big")


@dataclass
class Layout:
    """A key layout and its measurements."""

    name: str
    encode: Encode
    prefix: Callable[[int], bytes]
    group_of: Callable[[bytes], int]
    _: KW_ONLY
    key_bytes: float = 0.0
    changelog_bytes: float = 0.0
    table_bytes: float = 0.0
    ranges: int = 0
    encode_milliseconds: list[list[float]] = field(default_factory=list)
    scan_milliseconds: list[list[float]] = field(default_factory=list)


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark: `options.rounds` rounds, alternating between the layouts."""
    layouts = [
        Layout("int", encode_keys, group_prefix, key_group),
        Layout("two big-endian bytes", encode_big_endian, _big_endian_prefix, _big_endian_group),
    ]
    random = np.random.default_rng(1)
    groups = random.integers(0, GROUPS, KEYS).astype(np.int32)
    columns = pa.table({"key": random.permutation(KEYS)})
    values = encode_values(pa.table({"count": random.integers(0, 1000, KEYS), "mean": random.random(KEYS)}))
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as folder:
        databases = []
        for number, layout in enumerate(layouts):
            databases.append(_filled(layout, layout.encode(groups, columns), values, Path(folder) / str(number)))
        for _ in range(options.rounds):
            for layout, database in zip(layouts, databases, strict=True):
                layout.encode_milliseconds.append([_milliseconds(partial(layout.encode, groups, columns))])
                layout.scan_milliseconds.append([_milliseconds(partial(_moved, layout, database))])
        for database in databases:
            database.close()
    return [_table(layouts)]


def _filled(layout: Layout, keys: pa.LargeBinaryArray, values: pa.LargeBinaryArray, path: Path) -> Database:
    layout.key_bytes = keys.nbytes / len(keys) - 8
    changelog = io.BytesIO()
    writer = ChangelogWriter(changelog, Header(()))
    writer.append(keys, values)
    writer.finish()
    layout.changelog_bytes = changelog.tell() / len(keys)
    limits = EngineLimits()
    changes = sorted(zip(keys.to_pylist(), values.to_pylist(), strict=True))
    with Database.create(path, limits) as database:
        database.apply([changes], LocalCopy(VersionId(1, None), ()))
    layout.table_bytes = sum(file.stat().st_size for file in path.glob("*.sst")) / len(keys)
    database = Database.open_read_only(path, limits)
    in_order = [layout.group_of(key) for key in sorted(keys.to_pylist())]
    moved = [group in MOVED_GROUPS for group, _ in itertools.groupby(in_order)]
    layout.ranges = sum(inside for inside, _ in itertools.groupby(moved))
    return database


def _moved(layout: Layout, database: Database) -> int:
    """Read each moved group by its prefix. Return the number of keys."""
    return sum(len(keys) for group in MOVED_GROUPS for keys, _ in database.scan(layout.prefix(group)))


def _milliseconds(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return (perf_counter() - started) * 1000


def _table(layouts: list[Layout]) -> Table:
    first, other = layouts
    rows = [
        [
            layout.name,
            f"{layout.key_bytes:.0f}",
            f"{layout.changelog_bytes:.1f}",
            f"{layout.table_bytes:.1f}",
            Spread.of(flat(layout.encode_milliseconds)).shown(1),
            Spread.of(flat(layout.scan_milliseconds)).shown(1),
            f"{layout.ranges}",
        ]
        for layout in layouts
    ]
    return Table(
        title=f"The key group in a state key, {KEYS:,} keys in {GROUPS:,} groups",
        columns=["layout", "key B", "changelog B/key", "SST B/key", "encode ms", "scan ms", "byte ranges"],
        rows=rows,
        targets=[
            f"{other.name} to int, encode: {ratio(other.encode_milliseconds, first.encode_milliseconds).shown(2, 'x')}",
            f"{other.name} to int, scan: {ratio(other.scan_milliseconds, first.scan_milliseconds).shown(2, 'x')}",
        ],
        notes=[
            "The key is one bigint column, in random order. The value is a bigint and a double. Changelog and SST are "
            "compressed with LZ4.",
            f"Scan: groups {MOVED_GROUPS.start} to {MOVED_GROUPS.stop - 1}, each by its prefix. Byte ranges: the number of "
            "contiguous key ranges that contain exactly these groups.",
        ],
    )
