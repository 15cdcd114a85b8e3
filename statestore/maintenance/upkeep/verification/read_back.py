"""Read snapshots in full, on local disk: verify every block of every SST file, then open the snapshot with RocksDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from statekeeper.statestore.base.errors import CorruptFile, LocalStateDamaged, StatekeeperError, UnknownFormatVersion
from statekeeper.statestore.checkpoint.sidecars import pieces, readable
from statekeeper.statestore.contents.chain import ReadFault
from statekeeper.statestore.format import names
from statekeeper.statestore.format import table as tables
from statekeeper.statestore.format.checksum import first_misfit
from statekeeper.statestore.format.compression import Readable
from statekeeper.statestore.format.snapshot import SnapshotMetadata, TableFile, read_snapshot
from statekeeper.statestore.format.state_conf import OURS
from statekeeper.statestore.format.table import NotVerified
from statekeeper.statestore.maintenance.executors import Executor, Place
from statekeeper.statestore.maintenance.upkeep.verification.plan import SnapshotRead
from statekeeper.statestore.maintenance.upkeep.verification.record import FileRead, stamp
from statekeeper.statestore.storage import Entry, RequestCounts, Storage, at_once, read_or_none
from statekeeper.statestore.store.engine.rocks import EngineLimits, translated
from statekeeper.statestore.store.engine.scratch import work_folder
from statekeeper.statestore.store.loading.base import SnapshotUnusable, blamed_file, open_base

_TAIL_BYTES = 64 * 1024
"""Contains the footer and the metaindex of every SST file, and most meta blocks."""

_LIMITS = EngineLimits(block_cache_bytes=8 * 1024 * 1024)


@dataclass(frozen=True)
class ReadBack:
    """The result of a read: one entry of the record for each file."""

    read: SnapshotRead
    files: tuple[FileRead, ...]

    @property
    def damaged(self) -> FileRead | None:
        """The first corrupt file; None if the snapshot is intact."""
        return next((one for one in self.files if one.fault is not None), None)


def read_all(
    storage: Storage,
    reads: Sequence[SnapshotRead],
    ended: Callable[[SnapshotRead, ReadBack | StatekeeperError], None],
    *,
    executor: Executor,
) -> RequestCounts:
    """Read snapshots. The scratch folder of each place has a copy of each snapshot that it reads. Returns the requests.

    *Guarantee*: nothing is written below the root. A storage or local disk error is the outcome of its read; see
    `Executor.map`.
    """
    before = storage.requests.snapshot()
    executor.map(ReadEach(storage), reads, ended)
    return storage.requests.since(before)


@dataclass(frozen=True)
class ReadEach:
    """The task of a read."""

    storage: Storage

    @property
    def storages(self) -> Sequence[Storage]:
        return (self.storage,)

    def __call__(self, read: SnapshotRead, place: Place) -> ReadBack:
        with work_folder(place.scratch, "verify") as folder:
            return _Reader(self.storage, read, folder, place.clock.now_seconds()).run()


class _Reader:
    """One read. `folder`: empty, on local disk."""

    def __init__(self, storage: Storage, read: SnapshotRead, folder: Path, now_seconds: float) -> None:
        self._storage = storage
        self._read = read
        self._folder = folder
        self._now_seconds = now_seconds
        self._unknown_encoding = False

    def run(self) -> ReadBack:
        zipped, *unread = self._read.files
        try:
            body = self._storage.read(zipped.path)
            snapshot = read_snapshot(body, zipped.path)
        except CorruptFile as error:
            return ReadBack(self._read, (self._faulty(zipped, error.what, is_noticed=True),))
        by_path = {self._read.store.table_file(one.dfs_name): one for one in snapshot.metadata.tables}
        found: list[FileRead] = []
        at_once(lambda entry: found.append(self._table(entry, by_path[entry.path])), unread)
        found.sort(key=lambda one: one.path)
        # Spark verifies Hadoop's checksums for V1 zips only.
        refused = self._refused_by_hadoop(zipped.path, body) if self._read.version.id is None else None
        if refused is not None:
            found.append(self._faulty(zipped, refused, is_noticed=True))
        if any(one.fault for one in found):
            return ReadBack(self._read, tuple(found))
        for entry in self._read.known:
            self._known_table(entry, by_path[entry.path])
        opened = self._open(zipped, body, snapshot.metadata)
        return ReadBack(self._read, (opened, *(one for one in found if one.path != opened.path)))

    def _table(self, entry: Entry, table: TableFile) -> FileRead:
        """Download an SST file and verify the checksums of all blocks."""
        target = self._folder / table.dfs_name
        if entry.size_bytes != table.size_bytes:
            what = f"has {entry.size_bytes:,} bytes, but its snapshot expects {table.size_bytes:,}"
            return self._faulty(entry, what, is_noticed=True)
        self._storage.download(entry.path, target)
        content = readable(target)
        try:
            tables.require_whole(content, entry.path)
        except CorruptFile as error:
            return self._faulty(entry, error.what, is_noticed=False)
        except NotVerified:
            self._unknown_encoding = True
        refused = self._refused_by_hadoop(entry.path, content)
        if refused is not None:
            return self._faulty(entry, refused, is_noticed=True)
        return self._intact(entry, xxhash.xxh3_128_hexdigest(content))

    def _refused_by_hadoop(self, path: str, content: Readable) -> str | None:
        """Return why Spark rejects a local file by its hidden Hadoop checksum; None if it accepts the file."""
        if self._read.conf == OURS or not self._storage.url.startswith("file:"):
            return None
        beside = names.hidden_checksum(path)
        hidden = read_or_none(self._storage, beside)
        misfit = None if hidden is None else first_misfit(hidden, pieces(content))
        return None if misfit is None else f"does not match {beside} from byte {misfit:,} on: Spark rejects the file"

    def _known_table(self, entry: Entry, table: TableFile) -> None:
        """Download only the part of an SST file on record that RocksDB reads to open it, into a file of its size."""
        target = self._folder / table.dfs_name
        begin = max(0, entry.size_bytes - _TAIL_BYTES)
        if begin and not self._unknown_encoding:
            end = self._storage.read_range(entry.path, begin, entry.size_bytes - begin)
            try:
                metas = tables.metas_begin(end, entry.size_bytes, entry.path)
            except (CorruptFile, NotVerified):
                self._unknown_encoding = True
            else:
                if metas < begin:
                    end = self._storage.read_range(entry.path, metas, begin - metas) + end
                with translated(target), target.open("wb") as file:
                    file.seek(entry.size_bytes - len(end))
                    file.write(end)
                return
        self._storage.download(entry.path, target)

    def _open(self, zipped: Entry, body: bytes, metadata: SnapshotMetadata) -> FileRead:
        """Open the snapshot as a load does. RocksDB verifies that the SST files match the MANIFEST."""
        if self._unknown_encoding:
            # Only a scan verifies the checksums of an SST file with an unknown encoding.
            for entry in self._read.known:
                name = entry.path.rpartition("/")[2]
                (self._folder / name).unlink(missing_ok=True)
                self._storage.download(entry.path, self._folder / name)
        at_hand = {one.dfs_name: self._folder / one.dfs_name for one in metadata.tables}
        store, version, conf = self._read.store, self._read.version, self._read.conf
        try:
            base = open_base(self._storage, store, version, self._folder / "db", _LIMITS, conf, at_hand=at_hand)
            with base.database as database:
                if self._unknown_encoding:
                    database.count_keys()
        except SnapshotUnusable as error:
            return self._blamed(zipped, metadata, error.__cause__ or error, is_noticed=True)
        except LocalStateDamaged as error:
            return self._blamed(zipped, metadata, error, is_noticed=False)
        except UnknownFormatVersion as error:
            return self._blamed(zipped, metadata, error, is_noticed=True)
        return self._intact(zipped, xxhash.xxh3_128_hexdigest(body))

    def _blamed(self, zipped: Entry, metadata: SnapshotMetadata, error: BaseException, *, is_noticed: bool) -> FileRead:
        """Return the file that a RocksDB error names: an SST file by its local name, else the zip."""
        what = error.what if isinstance(error, StatekeeperError) else str(error)
        what = what.replace(f"{self._folder}/", "")
        by_path = {entry.path: entry for entry in (*self._read.files, *self._read.known)}
        path = blamed_file(what, self._read.store, self._read.version, metadata.tables)
        is_raw = isinstance(error, LocalStateDamaged)
        problem = f"is corrupt and cannot be read by RocksDB ({what})" if is_raw else f"cannot be restored: {what}"
        return self._faulty(by_path.get(path, zipped), problem, is_noticed=is_noticed)

    def _intact(self, entry: Entry, digest: str) -> FileRead:
        return FileRead(
            path=entry.path,
            size_bytes=entry.size_bytes,
            stamp=stamp(entry),
            read_at_seconds=self._now_seconds,
            digest=digest,
        )

    def _faulty(self, entry: Entry, text: str, *, is_noticed: bool) -> FileRead:
        fault = ReadFault(text, is_noticed)
        return FileRead(
            path=entry.path,
            size_bytes=entry.size_bytes,
            stamp=stamp(entry),
            read_at_seconds=self._now_seconds,
            digest="",
            fault=fault,
        )
