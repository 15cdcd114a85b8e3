"""Changes over a local copy: those of versions that it does not contain yet, and those of the current batch."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from statekeeper.statestore.store.engine.rocks import KeyRange, translated

SPILL_KEYS = 100_000
"""The most changed keys in memory, about 30 MB of short rows. More go to a scratch database."""

SPILL_BYTES = 32 * 1024 * 1024
"""The most bytes of keys and values in memory."""

_MEMTABLE_BYTES = 16 * 1024 * 1024
"""RocksDB's default, two memtables of four times this size, is a fifth of a worker's memory."""

_WRITTEN_AT_ONCE = 10_000

MERGED_KEYS = 10_000
"""The most changed keys that are merged with stored keys at once."""

Columns = tuple[list[bytes], list[bytes]]
"""Keys and their values, of the same length."""

_DELETED = b"\0"
_PRESENT = b"\1"


class PendingChanges:
    """A map from key to value, None for a deleted key. It moves to disk when it exceeds a limit.

    `scratch`: the folder for that, created when needed and removed by `close`. `earlier`: changes before all others; this
    object takes over the map and empties it.
    """

    def __init__(
        self,
        scratch: Path,
        earlier: dict[bytes, bytes | None] | None = None,
        *,
        spill_keys: int = SPILL_KEYS,
        spill_bytes: int = SPILL_BYTES,
    ) -> None:
        self._scratch = scratch
        self._spill_keys = spill_keys
        self._spill_bytes = spill_bytes
        self._memory: dict[bytes, bytes | None] = earlier or {}
        self._bytes = sum(map(len, self._memory)) + sum(map(len, filter(None, self._memory.values())))
        self._spilled: Rdict | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes of keys and values since the last move to disk. Overwritten values count, too."""
        return self._bytes

    def __len__(self) -> int:
        """The number of changed keys in memory."""
        return len(self._memory)

    def __bool__(self) -> bool:
        return bool(self._memory) or self._spilled is not None

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Add changes. The newest value of each key counts."""
        self._memory.update(zip(keys, values, strict=True))
        self._bytes += sum(map(len, keys)) + sum(map(len, filter(None, values)))
        if len(self._memory) > self._spill_keys or self._bytes > self._spill_bytes:
            self._spill()

    def split(self, keys: Sequence[bytes]) -> tuple[dict[bytes, bytes | None], list[bytes]]:
        """Return the changes to `keys`, and the keys without a change."""
        changed = {key: self._memory[key] for key in keys if key in self._memory}
        others: list[Any] = [key for key in keys if key not in changed]
        if self._spilled is not None and others:
            with translated(self._scratch):
                found = cast("list[bytes | None]", self._spilled.get(others))
            changed.update(
                {key: _plain(packed) for key, packed in zip(others, found, strict=True) if packed is not None}
            )
            others = [key for key in others if key not in changed]
        return changed, others

    def ordered(self, ranges: Sequence[KeyRange]) -> Iterator[tuple[bytes, bytes | None]]:
        """Iterate over the changes whose key is in one of the ranges, in key order. The ranges ascend."""
        if self._spilled is not None:
            self._spill()
            for start, end in ranges:
                with translated(self._scratch):
                    entries = self._spilled.iter()
                    entries.seek(start)
                while entries.valid() and entries.key() < end:
                    yield entries.key(), _plain(entries.value())
                    entries.next()
                # An iterator also ends at a block that it cannot read.
                with translated(self._scratch):
                    entries.status()
            return
        # A copy: the caller may put during the scan, and a spill empties the map.
        held = self._memory.copy()
        keys = sorted(held)
        for start, end in ranges:
            for key in keys[bisect_left(keys, start) : bisect_left(keys, end)]:
                yield key, held[key]

    def over(
        self, stored: Iterable[Columns], ranges: Sequence[KeyRange], *, at_once: int = MERGED_KEYS
    ) -> Iterator[Columns]:
        """Iterate over stored pairs with the changes of these ranges applied, in key order. No piece is empty.

        Most pieces of a local copy have no change, and are passed on as they are.
        """
        changes = self.ordered(ranges)
        change = next(changes, None)
        for keys, values in stored:
            start = 0
            while change is not None and change[0] <= keys[-1]:
                part, change = _next_part(changes, change, keys[-1], at_once)
                is_last = change is None or change[0] > keys[-1]
                end = len(keys) if is_last else bisect_right(keys, next(reversed(part)))
                yield from _applied(part, keys[start:end], values[start:end])
                start = end
            if start < len(keys):
                yield (keys[start:], values[start:]) if start else (keys, values)
        while change is not None:
            part, change = _next_part(changes, change, None, at_once)
            yield from _applied(part, [], [])

    def take(self) -> dict[bytes, bytes | None] | None:
        """Hand over the map, and leave none; None if changes are on disk."""
        if self._spilled is not None:
            return None
        taken, self._memory = self._memory, {}
        return taken

    def close(self) -> None:
        """Discard all changes."""
        self._memory.clear()
        if self._spilled is not None:
            self._spilled.close()
            self._spilled = None
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._scratch)

    def _spill(self) -> None:
        with translated(self._scratch):
            if self._spilled is None:
                self._scratch.mkdir(parents=True, exist_ok=True)
                options = Options(raw_mode=True)
                options.set_write_buffer_size(_MEMTABLE_BYTES)
                self._spilled = Rdict(str(self._scratch), options)
            without_log = WriteOptions()
            setattr(without_log, "disable_wal", True)  # noqa: B010 - a property that the stubs call a method
            changes = iter(self._memory.items())
            # In parts: the map, its copy for RocksDB, and RocksDB's memtable would be in memory together.
            while part := list(itertools.islice(changes, _WRITTEN_AT_ONCE)):
                batch = WriteBatch(raw_mode=True)
                for key, value in part:
                    batch.put(key, _DELETED if value is None else _PRESENT + value)
                self._spilled.write(batch, without_log)
        # In place, to free the memory even if the caller still refers to the map.
        self._memory.clear()
        self._bytes = 0


def _next_part(
    changes: Iterator[tuple[bytes, bytes | None]],
    change: tuple[bytes, bytes | None],
    last: bytes | None,
    at_once: int,
) -> tuple[dict[bytes, bytes | None], tuple[bytes, bytes | None] | None]:
    """Take at most `at_once` changes from `change` on, up to the key `last`. Return them, and the next change."""
    part: dict[bytes, bytes | None] = {}
    following: tuple[bytes, bytes | None] | None = change
    while following is not None and (last is None or following[0] <= last) and len(part) < at_once:
        part[following[0]] = following[1]
        following = next(changes, None)
    return part, following


def _applied(part: dict[bytes, bytes | None], keys: list[bytes], values: list[bytes]) -> Iterator[Columns]:
    pairs: dict[bytes, bytes | None] = dict(zip(keys, values, strict=True))
    pairs.update(part)
    left = sorted((key, value) for key, value in pairs.items() if value is not None)
    if left:
        yield [key for key, _ in left], [value for _, value in left]


def _plain(packed: bytes) -> bytes | None:
    return None if packed == _DELETED else packed[1:]
