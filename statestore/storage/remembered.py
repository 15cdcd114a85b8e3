"""Reads that are not repeated: a process that looks at the same roots again and again reads each file once.

A listing shows each file with its size and its time. If it shows a file as it was when it was read, the bytes come from
memory. Listings are always made, so a file that is missing, replaced or cut is noticed at once.

*Race*: on a file system, a file is replaced by bytes of the same size within the resolution of its time. So the bytes of a
file that is younger than a minute are not kept. In a bucket, a listing identifies the bytes by their `etag`.

Bytes that change without a change of size and time, as on a failing disk, are noticed after a day, when the file is read
again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import msgspec

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.storage.base import Created, Deletion, Entries, Entry, Location, PartsUpload, Storage
from statekeeper.statestore.storage.forwarding import ForwardingStorage

MOST_BYTES = 256 * 1024 * 1024
"""The most bytes in memory, of all roots together. The bytes that were not used for the longest time make room."""

MOST_PACKED_BYTES = 32 * 1024 * 1024
"""The most bytes of one root that are packed for the next process."""

_PACKED_SECONDS = 3_600.0
_LARGEST_BYTES = 1024 * 1024
_YOUNG_SECONDS = 60.0
_OLD_SECONDS = 86_400.0
_OVERHEAD_BYTES = 500
"""Of an entry, without its bytes."""


@dataclass(frozen=True)
class _Kept:
    entry: Entry
    data: bytes
    read_at_seconds: float


_Packed = list[tuple[tuple[str, int, int], _Kept]]
"""Path, start and length of each read, and what it returned."""


class Reads:
    """The bytes that were read, of all roots. Thread-safe."""

    def __init__(self, clock: Clock, *, most_bytes: int = MOST_BYTES) -> None:
        self._clock, self._most_bytes = clock, most_bytes
        self._kept: OrderedDict[tuple[str, str, int, int], _Kept] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()
        self._unpacked: set[str] = set()
        self._new: set[str] = set()
        self._packed_at: dict[str, float] = {}

    @property
    def size_bytes(self) -> int:
        """The bytes in memory."""
        return self._bytes

    def find(self, key: tuple[str, str, int, int], entry: Entry) -> bytes | None:
        """Return the bytes of a file that is listed as it was when it was read; None if it must be read."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            age = self._clock.now_seconds() - kept.read_at_seconds
            if kept.entry != entry or not 0 <= age < _OLD_SECONDS:
                self._drop(key)
                return None
            self._kept.move_to_end(key)
            return kept.data

    def keep(self, key: tuple[str, str, int, int], entry: Entry, data: bytes, *, began_seconds: float) -> None:
        """Keep bytes. `began_seconds`: when the request was made, since the epoch."""
        if len(data) > _LARGEST_BYTES or not _is_identified(entry, began_seconds):
            return
        with self._lock:
            self._add(key, _Kept(entry, data, began_seconds))
            self._new.add(key[0])

    def unpack(self, url: str, packed: Callable[[], bytes | None]) -> None:
        """Add the reads of a root that another process has packed. `packed` is called once for each root, and returns what
        `pack` returned; None or other bytes add nothing."""
        with self._lock:
            if url in self._unpacked:
                return
            self._unpacked.add(url)
        data = packed()
        try:
            found = [] if data is None else msgspec.msgpack.decode(data, type=_Packed)
        except msgspec.MsgspecError:
            return
        with self._lock:
            for (path, start, length), kept in found:
                self._add((url, path, start, length), kept)

    def pack(self, url: str, listed: Mapping[str, Entry]) -> bytes | None:
        """Return the reads of a root for `unpack` in another process: those of `listed` files that have not changed since,
        at most `MOST_PACKED_BYTES`, the last used ones. None if there is no new one, and within an hour of the last call:
        a process that stays has them in memory."""
        now = self._clock.now_seconds()
        with self._lock:
            packed_at = self._packed_at.get(url)
            if url not in self._new or (packed_at is not None and 0 <= now - packed_at < _PACKED_SECONDS):
                return None
            self._new.discard(url)
            self._packed_at[url] = now
            last_used_first = [(key, one) for key, one in reversed(self._kept.items()) if key[0] == url]
        packed: _Packed = []
        left = MOST_PACKED_BYTES
        for (_, path, start, length), one in last_used_first:
            left -= len(one.data) + _OVERHEAD_BYTES
            if left < 0:
                break
            if listed.get(path) == one.entry:
                packed.append(((path, start, length), one))
        return msgspec.msgpack.encode(packed)

    def _add(self, key: tuple[str, str, int, int], kept: _Kept) -> None:
        self._drop(key)
        self._kept[key] = kept
        self._bytes += len(kept.data) + _OVERHEAD_BYTES
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: tuple[str, str, int, int]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= len(kept.data) + _OVERHEAD_BYTES

    def now_seconds(self) -> float:
        """The time of the clock that the ages of the bytes are measured with."""
        return self._clock.now_seconds()


def _is_identified(entry: Entry, now_seconds: float) -> bool:
    """Return whether a later listing with the same entry proves that the bytes are the same."""
    modified = entry.modified_at_seconds
    return entry.etag is not None or (modified is not None and now_seconds - modified >= _YOUNG_SECONDS)


class RememberingStorage(ForwardingStorage):
    """A storage whose reads are remembered in `reads`. It is made for one look at a root: it knows the listings of this
    look only."""

    def __init__(self, inner: Storage, reads: Reads) -> None:
        super().__init__(inner)
        self._reads = reads
        self._listed: dict[str, Entry] = {}

    @property
    def listed(self) -> Mapping[str, Entry]:
        """The listed files by path, without those that this process has changed."""
        return self._listed

    def list(self, prefix: str, *, hidden: bool = False) -> Entries:
        return self._noted(super().list(prefix, hidden=hidden))

    def list_after(self, folder: str, name: str, *, beginning: str) -> Entries:
        return self._noted(super().list_after(folder, name, beginning=beginning))

    def _noted(self, entries: Entries) -> Entries:
        self._listed.update((entry.path, entry) for entry in entries)
        return entries

    def read(self, path: str) -> bytes:
        # A part of a file has a length; the whole has none.
        return self._remembered(path, 0, -1)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self._remembered(path, start, length)

    def _remembered(self, path: str, start: int, length: int) -> bytes:
        entry, key = self._listed.get(path), (self.url, path, start, length)
        found = None if entry is None else self._reads.find(key, entry)
        if found is not None:
            return found
        began = self._reads.now_seconds()
        data = super().read(path) if length < 0 else super().read_range(path, start, length)
        if entry is not None:
            self._reads.keep(key, entry, data, began_seconds=began)
        return data

    # -- what this process changes is not as it was listed --------------------------------------------------------------

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        self._listed.pop(path, None)
        return super().create(path, data, like=like)

    def replace(self, path: str, data: bytes | Path, *, like: str | None = None) -> None:
        self._listed.pop(path, None)
        super().replace(path, data, like=like)

    def copy(self, path: str, source: Location, entry: Entry) -> None:
        self._listed.pop(path, None)
        super().copy(path, source, entry)

    def create_in_parts(self, path: str, *, part_bytes: int, replaces: bool = False) -> PartsUpload | None:
        self._listed.pop(path, None)
        return super().create_in_parts(path, part_bytes=part_bytes, replaces=replaces)

    def delete_unchanged(self, path: str, data: bytes) -> Deletion:
        self._listed.pop(path, None)
        return super().delete_unchanged(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        for path in paths:
            self._listed.pop(path, None)
        super().delete(paths)
