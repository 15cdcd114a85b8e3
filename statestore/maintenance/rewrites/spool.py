"""Local disk between the old and the new partitions: rows arrive by source and leave by target, sorted.

One RocksDB holds all rows of a group of stores, each under the number of its target and its key. So each row is written
twice, whatever the numbers of sources and targets, and memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from statestore.engine.rocks import Database, EngineLimits
from statestore.maintenance.rewrites.plans import Partitions

_TARGET_BYTES = 4
_LIMITS = EngineLimits(block_cache_bytes=1024 * 1024, block_bytes=4096, has_filters=False, merges=True)
"""The rows are read once, in order."""
_ROWS = 10_000
"""Rows of a piece that are Python objects at a time."""


class Spool:
    """Rows of one group of stores. `piece_bytes`: rows that are sorted at a time; the sort takes this memory again."""

    def __init__(self, path: Path, piece_bytes: int) -> None:
        self._database = Database.create(path, _LIMITS)
        self._piece_bytes = piece_bytes
        self._writing = Lock()

    def add(self, rows: Iterator[tuple[Partitions, Sequence[bytes], Sequence[bytes]]]) -> None:
        """Add the rows of one source: pieces of targets, keys and values. Several threads may add, each another
        source. Raises `LocalStateError`."""
        piece = _Piece()
        for targets, keys, values in rows:
            piece.add(targets, keys, values)
            if piece.size_bytes >= self._piece_bytes:
                self._write(piece)
                piece = _Piece()
        if piece.size_bytes:
            self._write(piece)

    def _write(self, piece: _Piece) -> None:
        # An ingestion writes its tables under fixed names below the database.
        with self._writing:
            self._database.apply([piece.sorted_rows()], None)
        pa.default_memory_pool().release_unused()
        pa.default_memory_pool().release_unused()

    def rows_of(self, target: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Iterate over the rows of a target, in the order of their keys, in batches of keys and values."""
        for keys, values in self._database.scan(_prefix(target)):
            yield [key[_TARGET_BYTES:] for key in keys], values

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.__exit__(kind, error, trace)


class _Piece:
    """Rows of one source that are not written yet. They are Arrow arrays, which need less memory than Python objects."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, targets: Partitions, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        columns = [pa.array(targets), pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary())]
        batch = pa.RecordBatch.from_arrays(columns, names=["target", "key", "value"])
        self.size_bytes += batch.nbytes
        self._batches.append(batch)

    def sorted_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the rows once, by target and key."""
        rows = pa.Table.from_batches(self._batches).combine_chunks()
        self._batches.clear()
        # Arrow compares bytes like RocksDB.
        order = pc.sort_indices(rows, sort_keys=[("target", "ascending"), ("key", "ascending")])
        for begin in range(0, len(order), _ROWS):
            some = rows.take(order.slice(begin, _ROWS))
            for target, key, value in zip(*(column.to_pylist() for column in some.columns), strict=True):
                yield _prefix(target) + key, value


def _prefix(target: int) -> bytes:
    return target.to_bytes(_TARGET_BYTES, "big")
