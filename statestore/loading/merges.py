"""The replay of records whose order matters: merges and range deletions.

RocksDB's StringAppend operator, with which Spark appends to lists, is resolved here: only whole values are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from statekeeper.statestore.engine.rocks import Database
from statekeeper.statestore.format.changelog import Changes, Kind

_RECORD_BYTES = 200
"""The memory for a record, in addition to its bytes."""


@dataclass
class _Left:
    """The result for a key: the pieces of its value, None if deleted. `over`: the pieces follow the existing value."""

    pieces: list[bytes] | None
    over: bool = False


class OrderedWindow:
    """Records of successive changelogs. They are written to the database when they take `memory_bytes`, and so are the keys
    of a deleted range.

    The database must not be in use yet: a window is written before the next one is read.
    """

    def __init__(self, database: Database, delimiter: bytes, memory_bytes: int) -> None:
        self.written_keys = 0
        self._database = database
        self._delimiter = delimiter
        self._memory_bytes = memory_bytes
        self._left: dict[bytes, _Left] = {}
        self._bytes = 0

    def add(self, changes: Changes) -> None:
        """Add records in order. Write all if they exceed the memory."""
        kinds = [None] * len(changes) if changes.kinds is None else changes.kinds.tolist()
        for (key, value), kind in zip(changes.pairs(), kinds, strict=True):
            self._bytes += len(key) + len(value or b"") + _RECORD_BYTES
            if value is None:
                self._left[key] = _Left(None)
            elif kind == Kind.MERGE:
                left = self._left.setdefault(key, _Left([], over=True))
                if left.pieces is None:
                    left.pieces = []
                left.pieces.append(value)
            elif kind == Kind.DELETE_RANGE:
                self._delete_range(key, value)
            else:
                self._left[key] = _Left([value])
        if self._bytes >= self._memory_bytes:
            self.write()

    def write(self) -> None:
        """Write the records in memory."""
        self.written_keys += self._database.apply([list(self._resolved())] if self._left else [], None)
        self._left.clear()
        self._bytes = 0

    def _delete_range(self, begin: bytes, end: bytes) -> None:
        for key in self._left:
            if begin <= key < end:
                self._left[key] = _Left(None)
        for key in self._database.keys_between(begin, end):
            self._left[key] = _Left(None)
            self._bytes += len(key) + _RECORD_BYTES
            if self._bytes >= self._memory_bytes:
                # The iteration continues over the database as it was at its start, without the keys just written.
                self.write()

    def _resolved(self) -> Iterator[tuple[bytes, bytes | None]]:
        ordered = sorted(self._left)
        over = [key for key in ordered if self._left[key].over]
        before = dict(zip(over, self._database.get_many(over), strict=True))
        for key in ordered:
            pieces = self._left[key].pieces
            first = before.get(key)
            if pieces is None:
                yield key, None
            else:
                yield key, self._delimiter.join(pieces if first is None else [first, *pieces])
