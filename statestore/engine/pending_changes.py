"""Changes that lie over a local copy: those of versions that are not in it yet, and those of the batch that runs."""

from __future__ import annotations

import contextlib
import itertools
import operator
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from statestore.engine.rocks import translated

SPILL_KEYS = 100_000
"""So many changed keys are held in memory (some 30 MB of short rows); more go to a scratch database."""

SPILL_BYTES = 32 * 1024 * 1024
"""So many bytes of keys and values are held in memory, however few they are."""

_MEMTABLE_BYTES = 16 * 1024 * 1024
"""RocksDB's own default is four times as much, twice: a fifth of what a worker may have."""

_WRITTEN_AT_ONCE = 10_000

_DELETED = b"\0"
_PRESENT = b"\1"


class PendingChanges:
    """A map from key to value, None for a deleted key, that moves to disk when it grows.

    `scratch` is the folder for that; it is made when needed and removed by `close`. `earlier` are changes that come
    before all others; the map is taken over and emptied here.
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
        """Bytes of keys and values that were put since the last move to disk; an overwritten one counts twice."""
        return self._bytes

    def __bool__(self) -> bool:
        return bool(self._memory) or self._spilled is not None

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Remember the newest value of each key."""
        self._memory.update(zip(keys, values, strict=True))
        self._bytes += sum(map(len, keys)) + sum(map(len, filter(None, values)))
        if len(self._memory) > self._spill_keys or self._bytes > self._spill_bytes:
            self._spill()

    def split(self, keys: Sequence[bytes]) -> tuple[dict[bytes, bytes | None], list[bytes]]:
        """What was changed among `keys`, and the keys that were not."""
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

    def ordered(self, prefix: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """All changes whose key begins with `prefix`, in key order."""
        if self._spilled is not None:
            self._spill()
            entries = self._spilled.iter()
            entries.seek(prefix)
            while entries.valid() and entries.key().startswith(prefix):
                yield entries.key(), _plain(entries.value())
                entries.next()
            return
        # A list of its own: who scans may put meanwhile, and a spill empties the map.
        wanted = [(key, value) for key, value in self._memory.items() if key.startswith(prefix)]
        wanted.sort(key=operator.itemgetter(0))
        yield from wanted

    def close(self) -> None:
        """Forget everything."""
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
            # Not all at once: the map, a copy of it for RocksDB, and RocksDB's own would be there together.
            while part := list(itertools.islice(changes, _WRITTEN_AT_ONCE)):
                batch = WriteBatch(raw_mode=True)
                for key, value in part:
                    batch.put(key, _DELETED if value is None else _PRESENT + value)
                self._spilled.write(batch, without_log)
        # In place: whoever gave the map away must not keep what is in it alive.
        self._memory.clear()
        self._bytes = 0


def _plain(packed: bytes) -> bytes | None:
    return None if packed == _DELETED else packed[1:]
