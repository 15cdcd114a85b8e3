"""Records whose order matters: what merges and deleted ranges leave of each key, over what a database holds.

RocksDB's StringAppend operator, by which Spark appends to lists, is resolved here: what is written down are whole values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from statestore.engine.rocks import Database
from statestore.format.changelog import Changes, Kind

_RECORD_BYTES = 200
"""What a record takes here, beside its bytes."""


@dataclass
class _Left:
    """What is left of a key: the pieces of its value, None when it is deleted. `over`: they come behind what it was."""

    pieces: list[bytes] | None
    over: bool = False


class OrderedWindow:
    """Records of successive changelogs, until they take `memory_bytes`; then they are written to the database. So are the
    keys of a deleted range, however many it has.

    The database must be one that nobody reads yet: a window is written before the next one is read.
    """

    def __init__(self, database: Database, delimiter: bytes, memory_bytes: int) -> None:
        self.written_keys = 0
        self._database = database
        self._delimiter = delimiter
        self._memory_bytes = memory_bytes
        self._left: dict[bytes, _Left] = {}
        self._bytes = 0

    def add(self, changes: Changes) -> None:
        """Take records in that come after all others; write all of them when that are enough."""
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
        """Write what was taken in."""
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
                # The range goes on over what the database held when it began: what was just written is in it no more.
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
