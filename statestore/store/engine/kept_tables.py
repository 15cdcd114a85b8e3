"""What the next maintenance of a root would fetch again, kept on local disk: SST files of the newest snapshots, and the
small reads of plans and audits.

    <user folder>/kept-tables/<store>/<key>-<digest>.sst
    <user folder>/kept-tables/<root>/<key>-<digest>.reads

A `.sst` file is a hard link to a table of a snapshot. `<store>` is a hash of root and store. `<key>` is a hash of the root,
of the path, and of the size and etag in the listing of the storage (of the modification time, without an etag). A `.reads`
file has bytes of many files of a root, each with its entry in the listing; its key is a hash of the root. `<digest>` is a
hash of the key and of all bytes. So a file with other bytes, or with the name of another one, does not match its name: it
is removed, and the storage is read.

A file gets its name in one step. So several processes may keep and use files at the same time, and a killed one leaves none
half-written under such a name. Nothing here is locked. An error of the disk means that a file is not kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import LocalStateError
from statekeeper.statestore.storage import Entry
from statekeeper.statestore.store.engine.scratch import free_bytes, make_private, user_folder

_LOG = logging.getLogger(__name__)

FOLDER = "kept-tables"
UNUSED_SECONDS = 7 * 24 * 60 * 60
"""An unused table is removed after this time: its query has ended, or another host maintains it."""
_SWEEP_SECONDS = 60 * 60
_SHARE_OF_SWEEP = 8
"""A process sweeps after it has added this part of the bound, so that it exceeds the bound by no more."""

_STORE = re.compile(r"[0-9a-f]{16}")
_KEPT = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}\.(?:sst|reads|unfinished)")
_READ_BYTES = 1024 * 1024
_FORMAT_OF_READS = 1
_UNFINISHED = ".unfinished"
"""A file of reads that is being written. A killed process leaves it behind; it is removed as a file without a use."""


@dataclass
class _Unswept:
    """`added`: the bytes that this process has kept since its last sweep, at `swept_at`; None before the first one."""

    added: int = 0
    swept_at: float | None = None


_unswept: dict[tuple[int, Path], _Unswept] = {}
_sweeping = threading.Lock()
_refused: set[tuple[int, Path]] = set()


@dataclass(frozen=True)
class _File:
    path: Path
    size_bytes: int
    used_at: float


class KeptTables:
    """The kept tables of all stores below a scratch folder, at most `most_bytes`, and at most half of the space that they
    and the free disk have together."""

    def __init__(self, scratch: Path, most_bytes: int, clock: Clock) -> None:
        self._scratch, self._most_bytes, self._clock = scratch, most_bytes, clock
        self._key = os.getpid(), scratch.absolute()

    def of(self, url: str, store: str) -> KeptStore | None:
        """Return the kept files of the store with this folder in the root `url`, or of the root itself, for "". None if the
        folder of this user cannot be trusted."""
        try:
            folder = user_folder(self._scratch) / FOLDER
            make_private(folder)
        except LocalStateError as error:
            with _sweeping:
                is_told = self._key in _refused
                _refused.add(self._key)
            if not is_told:
                _LOG.warning("nothing is kept on local disk for the next maintenance: %s", error)
            return None
        self._sweep_if_due(folder, 0)
        place = folder / xxhash.xxh3_64_hexdigest(f"{url}\n{store}".encode())
        return KeptStore(
            place,
            url,
            most_bytes=self._most_bytes,
            clock=self._clock,
            added=lambda added: self._sweep_if_due(folder, added),
        )

    def clear(self) -> bool:
        """Remove all kept tables, for a full disk. Returns whether there were any."""
        files = list(_files(self._scratch / f"statekeeper-{os.geteuid()}" / FOLDER))
        for file in files:
            _remove(file.path)
        return bool(files)

    def _sweep_if_due(self, folder: Path, added: int) -> None:
        with _sweeping:
            unswept = _unswept.setdefault(self._key, _Unswept())
            unswept.added += added
            now = self._clock.monotonic_seconds()
            is_old = unswept.swept_at is None or now - unswept.swept_at >= _SWEEP_SECONDS
            if not is_old and unswept.added * _SHARE_OF_SWEEP <= self._most_bytes:
                return
            unswept.added, unswept.swept_at = 0, now
            sweep(folder, self._most_bytes, now_seconds=self._clock.now_seconds())


def kept_tables_of(url: str, scratch: Path, most_bytes: int, clock: Clock) -> KeptTables | None:
    """Return what keeps files of the root `url` below a scratch folder; None if nothing is kept. A copy of a root on a file
    system would be read no faster."""
    return KeptTables(scratch, most_bytes, clock) if most_bytes > 0 and not url.startswith("file:") else None


class KeptStore:
    """The kept files of one store or root. Thread-safe."""

    def __init__(self, folder: Path, url: str, *, most_bytes: int, clock: Clock, added: Callable[[int], None]) -> None:
        self._folder, self._url, self._most_bytes, self._clock, self._added = folder, url, most_bytes, clock, added

    def link(self, table: Entry, target: Path) -> bool:
        """Link the kept copy of a table in storage to the new path `target`. Returns False if there is none.

        *Guarantee*: `target` then has the bytes that were kept for this table. A file with other bytes is removed.
        """
        key = self._key(table)
        if key is None:
            return False
        for kept in self._kept(key):
            try:
                target.hardlink_to(kept)
            except OSError:
                continue  # a sweep has removed it, or the file system has no links
            if _is_whole(target, key, kept, table.size_bytes):
                self._touch(kept)
                return True
            _LOG.warning("%s has changed on the local disk and was removed; the table is fetched from storage", kept)
            target.unlink()
            _remove(kept)
        return False

    def keep(self, tables: Iterable[tuple[Entry, Path]]) -> None:
        """Keep the tables of the newest snapshot of the store: entries in storage with their bytes on the same disk. Tables
        of older snapshots are removed."""
        newest: set[Path] = set()
        added = 0
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for table, path in tables:
                key = self._key(table)
                if key is None or table.size_bytes > self._most_bytes or path.stat().st_size != table.size_bytes:
                    continue
                place = next(iter(self._kept(key)), None)
                if place is None:
                    place = self._folder / f"{key}-{_digest(path, key)}.sst"
                    with contextlib.suppress(FileExistsError):
                        place.hardlink_to(path)
                        added += table.size_bytes
                self._touch(place)
                newest.add(place)
        for file in _files_of(self._folder):
            if file.path not in newest:
                _remove(file.path)
        if added:
            self._added(added)

    def reads(self) -> bytes | None:
        """Return the newest bytes that `keep_reads` has kept; None without any. A file with other bytes is removed."""
        key = self._key_of_reads()
        for kept in sorted(_files_of(self._folder), key=lambda file: -file.used_at):
            if kept.path.suffix == _UNFINISHED:
                continue
            with contextlib.suppress(OSError):
                data = kept.path.read_bytes()
                if kept.path.name == _name_of_reads(key, data):
                    self._touch(kept.path)
                    return data
            _remove(kept.path)
        return None

    def keep_reads(self, data: bytes) -> None:
        """Keep the reads of a root in place of the earlier ones. If the disk is full, the earlier ones stay."""
        if len(data) > self._most_bytes:
            return
        place = self._folder / _name_of_reads(self._key_of_reads(), data)
        unfinished = place.with_suffix(_UNFINISHED)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            unfinished.write_bytes(data)
            unfinished.replace(place)
        except OSError:
            _remove(unfinished)
            return
        self._touch(place)
        for file in _files_of(self._folder):
            if file.path != place:
                _remove(file.path)
        self._added(len(data))

    def _key_of_reads(self) -> str:
        return xxhash.xxh3_128_hexdigest(f"{_FORMAT_OF_READS}\n{self._url}".encode())

    def drop(self) -> None:
        """Remove all kept tables of the store."""
        for file in _files_of(self._folder):
            _remove(file.path)

    def _key(self, table: Entry) -> str | None:
        """Return the key of a listed table; None if the listing does not show whether its bytes were replaced."""
        stamp = table.modified_at_seconds if table.etag is None else table.etag
        if stamp is None:
            return None
        return xxhash.xxh3_128_hexdigest(f"{self._url}\n{table.path}\n{table.size_bytes}\n{stamp!r}".encode())

    def _kept(self, key: str) -> list[Path]:
        return [file.path for file in _files_of(self._folder) if file.path.name.startswith(f"{key}-")]

    def _touch(self, kept: Path) -> None:
        now = self._clock.now_seconds()
        with contextlib.suppress(OSError):
            os.utime(kept, (now, now))


def sweep(folder: Path, most_bytes: int, *, now_seconds: float) -> None:
    """Remove tables that were not used for `UNUSED_SECONDS`, and the least recently used ones above the bound.

    *Danger*: deletes. *Guarantee*: it deletes only links with the names of kept tables. A snapshot that uses one has a link
    of its own.
    """
    files = sorted(_files(folder), key=lambda file: file.used_at)
    left = sum(file.size_bytes for file in files)
    most = min(most_bytes, (left + free_bytes(folder)) // 2)
    for file in files:
        if left > most or now_seconds - file.used_at > UNUSED_SECONDS:
            _remove(file.path)
            left -= file.size_bytes
    for place in _stores(folder):
        with contextlib.suppress(OSError):
            place.rmdir()


def _is_whole(target: Path, key: str, kept: Path, size_bytes: int) -> bool:
    try:
        return target.stat().st_size == size_bytes and kept.name == f"{key}-{_digest(target, key)}.sst"
    except OSError:
        return False


def _digest(path: Path, key: str) -> str:
    # Not mapped: a bad sector is then an error and no signal that ends the process.
    digest = xxhash.xxh3_128(key.encode())
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _name_of_reads(key: str, data: bytes) -> str:
    digest = xxhash.xxh3_128(key.encode())
    digest.update(data)
    return f"{key}-{digest.hexdigest()}.reads"


def _stores(folder: Path) -> list[Path]:
    try:
        return [Path(one.path) for one in os.scandir(folder) if _STORE.fullmatch(one.name)]
    except OSError:
        return []


def _files(folder: Path) -> Iterator[_File]:
    for place in _stores(folder):
        yield from _files_of(place)


def _files_of(place: Path) -> list[_File]:
    found: list[_File] = []
    with contextlib.suppress(OSError):
        for one in os.scandir(place):
            # Race: another process removes the file.
            with contextlib.suppress(OSError):
                if _KEPT.fullmatch(one.name) and one.is_file(follow_symlinks=False):
                    about = one.stat(follow_symlinks=False)
                    found.append(_File(Path(one.path), about.st_size, about.st_mtime))
    return found


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
