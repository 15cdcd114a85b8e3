"""Reads changelogs that are members of batch logs (FLIP-158).

`open_storage` wraps each backend, so that such a changelog has the path that it would have as a file of its own:

    read state/0/3/17_6ad1f0c2-11aa-8c3d-….changelog
      -> the id names the object _statekeeper/log/17-6ad1f0c2-11aa-8c3d.log
      -> its index, fetched once -> the range of store 0/3

So every reader of changelogs supports batch logs. Listings show only real objects; `list_members` adds the members.
The processes of a host share the objects on its local disk if they have a `BatchLogCache`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

from statekeeper.statestore.base.errors import RESTORE, CorruptFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.format import batch_log, names
from statekeeper.statestore.format.batch_log import BatchLog, Place
from statekeeper.statestore.format.limits import SizeLimits, require_json, require_object
from statekeeper.statestore.format.names import STATE, StoreFileKind
from statekeeper.statestore.storage.base import Created, Entry, Storage
from statekeeper.statestore.storage.content import require_size, scratch_file
from statekeeper.statestore.storage.forwarding import CheckedStorage, ForwardingStorage
from statekeeper.statestore.storage.parallel import at_once
from statekeeper.statestore.storage.paths import is_below

LOCKS = 64
"""Lock files are never removed, because two processes could hold a removed and a new one."""

_LOCK_SECONDS = 60.0
"""A process that waits longer for another process reads the object without the cache."""

_POLL_SECONDS = 0.005
_SUFFIX = ".log"
_RANGED_SUFFIX = ".ranged"


class BatchLogCache:
    """The cached batch logs of one root. Thread-safe; `path`: of an object, in its root.

    `most_bytes`: limit for the files. The least recently used ones are removed first.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._has_failed = False

    def locked(self, path: str) -> contextlib.AbstractContextManager[bool]:
        """Hold the lock of an object. Yield False if the lock cannot be had."""
        return self._locked(str(crc32(path.encode()) % LOCKS))

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[bool]:
        # Imported on demand: it imports asyncio, and a command line has no such folder.
        from filelock import FileLock

        lock = FileLock(self.folder / f"lock-{name}", thread_local=False)
        held = False
        # `Timeout` is an OSError.
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock.acquire(timeout=_LOCK_SECONDS, poll_interval=_POLL_SECONDS)
            held = True
        try:
            yield held
        finally:
            if held:
                lock.release()

    def size_bytes(self, path: str) -> int:
        """Return the number of cached bytes of an object."""
        with contextlib.suppress(OSError):
            return self._file(path).stat().st_size
        return 0

    def read(self, path: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from byte `start`, fewer at the end of the file."""
        with contextlib.suppress(OSError), self._file(path).open("rb") as file:
            file.seek(start)
            return file.read(max(min(length, os.fstat(file.fileno()).st_size - start), 0))
        return b""

    def use(self, path: str) -> bool:
        """Record a use of an object. Return whether it has cached bytes."""
        with contextlib.suppress(OSError):
            os.utime(self._file(path))
            return True
        return False

    def has_room(self, path: str, size_bytes: int) -> bool:
        """Return whether an object of this size fits on the disk, perhaps after the removal of others."""
        if self._has_failed or size_bytes > self._most_bytes:
            return False
        with contextlib.suppress(OSError):
            about = os.statvfs(self.folder)
            return about.f_bavail * about.f_frsize > size_bytes - self.size_bytes(path)
        return False

    def append(self, path: str, start: int, data: bytes) -> bool:
        """Add the bytes from byte `start`, the end of the file. Return whether the file has them. Call it under the lock.

        After a failed write this process writes no more objects: another fetch would probably be in vain, too.
        """
        if not self.has_room(path, start + len(data)):
            return False
        # One writer at a time: each must see the sizes that the others have written.
        with self._locked("room") as held:
            if not held:
                return False
            try:
                self._make_room(path, start + len(data))
                with self._file(path).open("ab") as file:
                    # Race: another process drops the file, because it is damaged or old.
                    if file.tell() == start:
                        file.write(data)
                        return True
            except OSError:
                self._has_failed = True
        self.drop(path)
        return False

    def _make_room(self, path: str, size_bytes: int) -> None:
        """Remove the least recently used objects, until this one fits below the limit."""
        found = []
        for place in self.folder.glob(f"*{_SUFFIX}"):
            # Race: another process drops it.
            with contextlib.suppress(FileNotFoundError):
                about = place.stat()
                found.append((about.st_mtime, about.st_size, place))
        excess = size_bytes - self._most_bytes
        excess += sum(size for _, size, place in found if place != self._file(path))
        for _, size, place in sorted(found):
            if excess > 0 and place != self._file(path):
                self.drop(place.name)
                excess -= size

    def drop(self, path: str) -> None:
        """Remove an object. A process that reads it continues with its open file."""
        for file in (self._file(path), self._ranged(path)):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

    def count_ranged(self, path: str) -> int:
        """Record that a member was needed while the file lacked it. Return the number of such members on this host."""
        with contextlib.suppress(OSError), self._ranged(path).open("ab") as file:
            file.write(b".")
            return file.tell()
        return 0

    def _file(self, path: str) -> Path:
        return self.folder / path.rpartition("/")[2]

    def _ranged(self, path: str) -> Path:
        return self.folder / (path.rpartition("/")[2] + _RANGED_SUFFIX)


FIRST_READ_BYTES = 1024 * 1024
"""The first request for a batch log reads so many bytes: the index, and all of a small object."""

MOST_HELD_BYTES = 64 * 1024 * 1024
"""Bytes of batch logs that are held in memory. The least recently used objects are dropped, and read again on demand."""

RANGED_MEMBERS = 2
"""A host with a cache reads so many members of an object by their ranges. The next one fetches the whole object."""

MOST_WHOLE_BYTES = 128 * 1024 * 1024
"""A larger object is only read by ranges. The driver limits its members to half of that."""

_MEMBER_BYTES = 256
"""Approximate memory for the index entry of a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEntry(Entry):
    """A changelog that is a member of a batch log. `log`: the path of that object; `modified_at_seconds` is its time."""

    log: str = ""


@dataclass(frozen=True)
class Members:
    """The members of the batch logs of a root.

    logs     the listed objects, with their members; None for an object that cannot be read
    entries  a changelog each, by its path in its store
    damaged  the objects that cannot be read, or are truncated, with the error
    """

    logs: tuple[tuple[Entry, BatchLog | None], ...]
    entries: tuple[MemberEntry, ...]
    damaged: dict[str, CorruptFile | UnknownFormatVersion]


@dataclass(frozen=True)
class _Held:
    """An object in memory. `front`: its first bytes; empty if the cache has them."""

    log: BatchLog
    front: bytes

    @property
    def size_bytes(self) -> int:
        return max(len(self.front), _MEMBER_BYTES * len(self.log.members))


class BatchLogs:
    """The batch logs of one root. Each object is fetched once while it is in memory, or in the cache. Thread-safe."""

    def __init__(self, storage: Storage, cache: BatchLogCache | None = None) -> None:
        self._storage = storage
        self._cache = cache
        self._whole = threading.Lock()
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._fetching: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def head(self, path: str) -> BatchLog:
        """Read the index of a batch log. Raises `ObjectMissing`, `CorruptFile`, `UnknownFormatVersion`, `StorageError`."""
        return self._fetched(path).log

    def read(self, path: str, place: Place) -> bytes:
        """Read one member, and verify its checksum. Raises as `head`, and `ObjectMissing` without such a member."""
        held = self._fetched(path)
        member = held.log.members.get(place)
        if member is None:
            store, version = place
            raise ObjectMissing(
                f"has no changelog of {version.in_words} of {store}",
                path=path,
                hint=RESTORE,
            )
        end = member.start + member.length
        if end <= len(held.front):
            return batch_log.member_bytes(held.log, place, held.front[member.start : end], path)
        if self._cache is not None:
            data = self._from_cache(self._cache, path, held.log, place)
            if data is not None:
                return data
        data = self._storage.read_range(path, member.start, member.length)
        return batch_log.member_bytes(held.log, place, data, path)

    def _from_cache(self, cache: BatchLogCache, path: str, log: BatchLog, place: Place) -> bytes | None:
        """Read a member from the cache, which may fetch the object. None if the cache lacks the member."""
        member = log.members[place]

        def cached() -> bytes | None:
            data = cache.read(path, member.start, member.length)
            try:
                return batch_log.member_bytes(log, place, data, path)
            except CorruptFile:
                if len(data) == member.length:
                    cache.drop(path)
                return None

        # Without the lock: a complete member does not change any more.
        data = cached()
        if data is not None:
            return data
        with cache.locked(path) as held:
            # Race: another process has fetched the object meanwhile.
            data = cached()
            if data is not None or not held or not self._is_worth_a_fetch(cache, path, log):
                return data
            if cache.has_room(path, log.size_bytes):
                # One at a time, to bound the memory.
                with self._whole:
                    start = cache.size_bytes(path)
                    rest = self._storage.read_range(path, start, log.size_bytes - start)
                if cache.append(path, start, rest):
                    return cached()
        if log.size_bytes <= FIRST_READ_BYTES:
            # The disk is full. For its next member, the object is read into memory.
            self._forget(path)
        return None

    def _is_worth_a_fetch(self, cache: BatchLogCache, path: str, log: BatchLog) -> bool:
        if log.size_bytes <= FIRST_READ_BYTES:
            return True
        return log.size_bytes <= MOST_WHOLE_BYTES and cache.count_ranged(path) > RANGED_MEMBERS

    def _forget(self, path: str) -> None:
        with self._lock:
            held = self._held.pop(path, None)
            self._held_bytes -= held.size_bytes if held else 0

    def _fetched(self, path: str) -> _Held:
        with self._lock:
            fetching = self._fetching[path]
        with fetching:
            with self._lock:
                if path in self._held:
                    self._held.move_to_end(path)
                    return self._held[path]
            held = self._fetch(path)
            with self._lock:
                self._held[path] = held
                self._held_bytes += held.size_bytes
                while self._held_bytes > MOST_HELD_BYTES and len(self._held) > 1:
                    oldest, dropped = self._held.popitem(last=False)
                    self._fetching.pop(oldest, None)
                    self._held_bytes -= dropped.size_bytes
            return held

    def _fetch(self, path: str) -> _Held:
        """Read the front of an object from the cache. If the cache lacks it, fetch and cache it."""
        from_storage = partial(self._storage.read_range, path)
        if self._cache is None:
            return _front(from_storage, path)
        with self._cache.locked(path) as locked:
            if locked and self._cache.use(path):
                try:
                    return _Held(_front(partial(self._cache.read, path), path).log, b"")
                except (CorruptFile, UnknownFormatVersion):
                    self._cache.drop(path)
            fetched = _front(from_storage, path)
            is_cached = locked and self._cache.append(path, 0, fetched.front)
            return _Held(fetched.log, b"") if is_cached else fetched


def _front(read: Callable[[int, int], bytes], path: str) -> _Held:
    """Read the first bytes of an object with `read(start, length)`: the index, and all of a small object."""
    front = read(0, FIRST_READ_BYTES)
    wanted = batch_log.head_bytes(front, path)
    if wanted > len(front) == FIRST_READ_BYTES:
        front += read(len(front), wanted - len(front))
    return _Held(batch_log.parse_head(front, path), front)


class LoggedStorage(ForwardingStorage):
    """A `Storage` in which changelogs of batch logs can be read under their own paths. Writes go to real objects.

    *Guarantee*: bytes that `read`, or the parser of their file, would reject as too large are not written.

    `again`: how another process opens this storage. Without it, the storage cannot be pickled.
    """

    def __init__(
        self,
        storage: Storage,
        cache: BatchLogCache | None = None,
        again: tuple[Callable[..., Storage], tuple[object, ...]] | None = None,
    ) -> None:
        super().__init__(storage)
        self.logs = BatchLogs(storage, cache)
        self._again = again

    def __reduce__(self) -> tuple[object, ...]:
        if self._again is None:
            raise TypeError(f"the storage {self.url} was not opened by `open_storage`: another process cannot open it")
        return self._again

    def read(self, path: str) -> bytes:
        data = self._member(path)
        return self.inner.read(path) if data is None else data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        data = self._member(path)
        return self.inner.read_range(path, start, length) if data is None else data[start : start + length]

    def download(self, path: str, target: Path, *, expected_bytes: int | None = None) -> int:
        data = self._member(path)
        if data is None:
            return self.inner.download(path, target, expected_bytes=expected_bytes)
        require_size(path, len(data), expected_bytes)
        with scratch_file(target) as write:
            write(data)
        return len(data)

    def stat(self, path: str) -> Entry | None:
        found = _place_of(path)
        if found is None:
            return self.inner.stat(path)
        log, place = found
        entry = self.inner.stat(log)
        member = None if entry is None else self.logs.head(log).members.get(place)
        if entry is None or member is None:
            return self.inner.stat(path)
        return MemberEntry(path=path, size_bytes=member.length, modified_at_seconds=entry.modified_at_seconds, log=log)

    def create(self, path: str, data: bytes | Path, *, like: str | None = None) -> Created:
        _require_readable(path, data, self.limits)
        return self.inner.create(path, data, like=like)

    def replace(self, path: str, data: bytes | Path, *, like: str | None = None) -> None:
        _require_readable(path, data, self.limits)
        self.inner.replace(path, data, like=like)

    def _member(self, path: str) -> bytes | None:
        """Read a changelog from its batch log; None for another path, and if only its unpacked file is intact."""
        found = _place_of(path)
        if found is None:
            return None
        log, place = found
        try:
            return self.logs.read(log, place)
        except (ObjectMissing, CorruptFile):
            if self.inner.stat(path) is not None:
                return None
            raise


def _require_readable(path: str, data: bytes | Path, limits: SizeLimits) -> None:
    # Files are downloaded, batch logs are read by ranges, and the record of a rewind is read by lines.
    if isinstance(data, bytes) and names.parse_batch_log(path) is None and not names.is_quarantine_position(path):
        require_object(path, len(data), limits)
        if path.endswith(".json") or path.startswith(f"{names.COMMITS}/"):
            require_json(path, data)


def list_members(storage: Storage, folder: str = STATE, *, listed: Iterable[Entry] | None = None) -> Members:
    """List the batch logs, and the members of them below the folder of a store, or of all stores.

    `listed`: entries that contain the batch logs; by default, one listing. One request more for each object whose index is
    not in memory. Raises `StorageError`.
    """
    logged = storage.inner if isinstance(storage, CheckedStorage) else storage
    logs = logged.logs if isinstance(logged, LoggedStorage) else BatchLogs(storage)
    found = storage.list(names.BATCH_LOGS) if listed is None else listed
    objects = [entry for entry in found if names.parse_batch_log(entry.path)]
    heads: dict[str, BatchLog] = {}
    damaged: dict[str, CorruptFile | UnknownFormatVersion] = {}

    def look(entry: Entry) -> None:
        try:
            heads[entry.path] = logs.head(entry.path)
        except (CorruptFile, UnknownFormatVersion) as error:
            damaged[entry.path] = error
        except ObjectMissing:
            return  # race: retention deletes it after the listing

    at_once(look, objects)
    entries = []
    for entry in objects:
        head = heads.get(entry.path)
        if head is None:
            continue
        if head.size_bytes != entry.size_bytes:
            damaged[entry.path] = CorruptFile(
                f"has {entry.size_bytes:,} bytes; its index expects {head.size_bytes:,}",
                path=entry.path,
                hint=RESTORE,
            )
            continue
        for (store, version), member in head.members.items():
            path = store.changelog(version)
            if is_below(path, folder):
                entries.append(
                    MemberEntry(
                        path=path,
                        size_bytes=member.length,
                        modified_at_seconds=entry.modified_at_seconds,
                        log=entry.path,
                    )
                )
    seen = tuple((entry, None if entry.path in damaged else heads.get(entry.path)) for entry in objects)
    return Members(seen, tuple(sorted(entries, key=lambda one: one.path)), damaged)


def _place_of(path: str) -> tuple[str, Place] | None:
    """The batch log and the place in it of a changelog's path; None for any other path."""
    parsed = names.parse_store_path(path)
    if parsed is None or parsed[1].kind is not StoreFileKind.CHANGELOG:
        return None
    store, file = parsed
    log = batch_log.path_of(file.version)
    return None if log is None else (log, (store, file.version))
