"""Local disk between the old and the new partitions: rows arrive by source and leave by target, sorted.

A RocksDB holds the rows of a group of stores, each under the number of its target and its key. So each row is written
twice, whatever the numbers of sources and targets, and memory is bounded. If several processes add rows, there are several
parts, each a RocksDB, because only one process can write to one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.maintenance.rewrites.whole_stores.model import Partitions
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits

_TARGET_BYTES = 4
_LIMITS = EngineLimits(block_cache_bytes=1024 * 1024, block_bytes=4096, has_filters=False, merges=True)
"""The rows are read once, in order."""
_ROWS = 10_000
"""Rows of a piece that are Python objects at a time."""

Piece = tuple[Partitions, Sequence[bytes], Sequence[bytes]]
"""The target of each row, its key and its value."""
Pairs = tuple[Sequence[bytes], Sequence[bytes]]
"""Keys and values, in the order of the keys."""


class OpenRows(Protocol):
    """Rows that are sorted by their target and key."""

    def rows_of(self, target: int, parts: int) -> Iterator[Pairs]:
        """Iterate over the rows of a target, in the order of their keys, in batches. `parts`: number of those that are read
        at the same time."""


class ReadablePart(Protocol):
    """Rows that can be merged with others."""

    def reading(self) -> AbstractContextManager[OpenRows]:
        """Open it to read rows, unless it is open."""


class Part(ReadablePart, Protocol):
    """A part of a spool."""

    def writing(self) -> AbstractContextManager[OpenPart]:
        """Open it to add rows, unless it is open."""


class Spool(Protocol):
    """The rows of one group of stores."""

    def lend(self) -> AbstractContextManager[Part]:
        """Lend a part to add the rows of one source."""

    @property
    def parts(self) -> Sequence[Part]:
        """The parts, which no process writes to any more."""


class OpenPart:
    """A part that is open in this process, or a whole spool that only this process uses.

    `piece_bytes`: rows that are sorted at a time; the sort takes this memory again.
    """

    def __init__(self, database: Database, piece_bytes: int) -> None:
        self._database = database
        self._piece_bytes = piece_bytes
        self._piece = _Piece()
        self._writing = Lock()

    @classmethod
    def create(cls, path: Path, piece_bytes: int) -> OpenPart:
        """Create an empty one."""
        return cls(Database.create(path, _LIMITS), piece_bytes)

    def add(self, rows: Iterable[Piece]) -> None:
        """Add the rows of one source. Several threads may add, each another source. Raises `LocalStateError`."""
        for targets, keys, values in rows:
            batch = _batch(targets, keys, values)
            with self._writing:
                self._piece.add(batch)
                if self._piece.size_bytes >= self._piece_bytes:
                    self._write()

    def _write(self) -> None:
        # Small sources share a piece: each ingestion waits for the disk. It writes its tables under fixed names.
        if self._piece.size_bytes:
            self._database.apply([self._piece.sorted_rows()], None)
            self._piece = _Piece()
            pa.default_memory_pool().release_unused()
            pa.default_memory_pool().release_unused()

    def rows_of(self, target: int, parts: int) -> Iterator[Pairs]:
        """See `OpenRows`."""
        with self._writing:
            self._write()
        for keys, values in self._database.scan(_prefix(target), self._piece_bytes // parts):
            yield [key[_TARGET_BYTES:] for key in keys], values

    def writing(self) -> AbstractContextManager[OpenPart]:
        """Return the part itself; it stays open."""
        return nullcontext(self)

    reading = lend = writing

    @property
    def parts(self) -> Sequence[Part]:
        """As a whole spool: the part itself."""
        return (self,)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._database.__exit__(kind, error, trace)
            return
        with self._database:
            self._write()


@dataclass(frozen=True)
class ClosedPart:
    """A part that another process opens. `piece_bytes`: see `OpenPart`."""

    path: Path
    piece_bytes: int

    def writing(self) -> AbstractContextManager[OpenPart]:
        """Open or create it."""
        if not self.path.exists():
            return OpenPart.create(self.path, self.piece_bytes)
        return OpenPart(Database.open_for_writing(self.path, _LIMITS), self.piece_bytes)

    def reading(self) -> AbstractContextManager[OpenPart]:
        """Open it for reading. Other processes may read it, too."""
        return OpenPart(Database.open_read_only(self.path, _LIMITS), self.piece_bytes)


class SharedSpool:
    """A spool of several processes, in the new folder `path`. `piece_bytes`: see `OpenPart`."""

    def __init__(self, path: Path, piece_bytes: int) -> None:
        self._path = path
        self._piece_bytes = piece_bytes
        self._parts: list[ClosedPart] = []
        self._free: list[ClosedPart] = []
        self._lending = Lock()
        path.mkdir()

    @contextmanager
    def lend(self) -> Iterator[Part]:
        """Lend a part that no other caller has, so that there are as many parts as callers at a time."""
        with self._lending:
            part = self._free.pop() if self._free else ClosedPart(self._path / f"{len(self._parts)}", self._piece_bytes)
            if part not in self._parts:
                self._parts.append(part)
        yield part
        with self._lending:
            self._free.append(part)

    @property
    def parts(self) -> Sequence[Part]:
        """The parts."""
        return tuple(self._parts)


def rows_of(parts: Sequence[ReadablePart], target: int) -> Iterator[Pairs]:
    """Iterate over the rows of a target, in the order of their keys, in batches. Raises `LocalStateError`."""
    with ExitStack() as stack:
        of_parts = [_Waiting(stack.enter_context(part.reading()).rows_of(target, len(parts))) for part in parts]
        while of_parts := [one for one in of_parts if one.has_rows()]:
            # All rows up to the last key of the batch that ends first are here.
            end = min(one.last_key for one in of_parts)
            batches = [one.taken(end) for one in of_parts]
            yield batches[0] if len(batches) == 1 else _merged(batches)


class _Waiting:
    """The sorted rows of a part that are not merged yet."""

    def __init__(self, batches: Iterator[Pairs]) -> None:
        self._batches = batches
        self._keys: Sequence[bytes] = ()
        self._values: Sequence[bytes] = ()

    def has_rows(self) -> bool:
        """Whether there are rows. Reads the next batch if necessary."""
        if not self._keys:
            self._keys, self._values = next(self._batches, ((), ()))
        return bool(self._keys)

    @property
    def last_key(self) -> bytes:
        return self._keys[-1]

    def taken(self, end: bytes) -> Pairs:
        """Remove and return the rows up to the key `end`, inclusive."""
        at = bisect_right(self._keys, end)
        taken = self._keys[:at], self._values[:at]
        self._keys, self._values = self._keys[at:], self._values[at:]
        return taken


def _merged(batches: Iterable[Pairs]) -> Pairs:
    """Merge sorted batches. No key is in two of them."""
    # The sort of Python merges lists that are sorted already.
    pairs = sorted(chain.from_iterable(zip(keys, values, strict=True) for keys, values in batches))
    return [key for key, _ in pairs], [value for _, value in pairs]


class _Piece:
    """Rows that are not written yet. They are Arrow arrays, which need less memory than Python objects."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
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


def _batch(targets: Partitions, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
    columns = [pa.array(targets), pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary())]
    return pa.RecordBatch.from_arrays(columns, names=["target", "key", "value"])


def _prefix(target: int) -> bytes:
    return target.to_bytes(_TARGET_BYTES, "big")
