"""The only wrapper of RocksDB, through rocksdict in raw mode. Results are typed, and so are errors (`local_errors`)."""

from __future__ import annotations

import contextlib
import errno
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompactionStyle,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    SstFileWriter,
    UniversalCompactOptions,
)

from statekeeper.statestore.base.errors import (
    LocalDiskFull,
    LocalStateDamaged,
    LocalStateError,
    LocalStateLocked,
    StatekeeperError,
    UnsupportedType,
)
from statekeeper.statestore.checkpoint.lineage import LocalCopy
from statekeeper.statestore.format.limits import MOST_RECORD_BYTES, SizeLimits
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.options_file import string_append_options
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.store.engine.rows_digest import RowsDigest

REBUILT = "no action is needed: the next load rebuilds the local copy from storage"


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Convert errors of rocksdict and of the operating system to `LocalStateError`s about `path`."""
    try:
        yield
    except StatekeeperError:
        raise  # an unreadable changelog during a replay is no error of the database
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LocalDiskFull(
                f"{error}; the store cannot be loaded or written here",
                path=str(path),
                hint=LocalDiskFull.remedy,
            ) from error
        raise LocalStateError(
            f"{error}; the store cannot be loaded or written here",
            path=str(path),
            hint="make this folder on the local disk usable, or give another folder with --scratch",
        ) from error
    except Exception as error:
        if type(error) is not Exception:
            raise  # an error of the caller; rocksdict raises only bare exceptions
        text = str(error)
        if "No space left" in text or "Disk quota" in text:
            raise LocalDiskFull(
                f"{text}; the store cannot be loaded or written here",
                path=str(path),
                hint=LocalDiskFull.remedy,
            ) from error
        if "lock hold by current process" in text or "While lock file" in text:
            raise LocalStateLocked(
                text, path=str(path), hint="wait until the other process closes the database, then try again"
            ) from error
        raise LocalStateDamaged(
            f"the local copy of a store is damaged: {text}", path=str(path), hint=REBUILT
        ) from error


FIRST_RESERVED_KEY = b"\xff\xff\xff\xff"
"""State keys start with a little-endian length or the version byte of a row, so that none sorts after this."""

KeyRange = tuple[bytes, bytes]
"""The first key, inclusive, and the end, exclusive."""


def range_of(prefix: bytes) -> KeyRange:
    """Return the range of all state keys that start with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return prefix, stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else FIRST_RESERVED_KEY


_MARKER_KEY = b"\xff\xff\xff\xff statekeeper: what this copy holds"
SCAN_BATCH_ROWS = 10_000
_SCAN_BATCH_BYTES = 32 * 1024 * 1024
"""A batch of a scan ends at the first of both, so that large keys and values do not fill the memory."""
_BLOOM_BITS_PER_KEY = 10
_KEYS_TO_AN_INDEX_RESTART = 16
_COMPACTION_TRIGGER_FILES = 8
_FEWEST_TABLES_TO_MERGE = 16
_READERS_MEMORY = "rocksdb.estimate-table-readers-mem"
_FORMAT_VERSION = 5
"""The format version of tables that Spark writes. The RocksDB of Spark 3.5 (8.3.2) rejects the newer default."""


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """The memory of one open database.

    block_cache_bytes  its block cache, unless it shares one
    block_bytes        the block size of new tables: small, because a batch reads single keys
    replay_bytes       changes that are written as one table: a larger value gives fewer tables
    has_filters        whether tables get Bloom filters and keep them in memory; a database that is only scanned needs none
    merges             whether RocksDB merges tables in the background, so that a database of any size has about a hundred
    """

    block_cache_bytes: int = 32 * 1024 * 1024
    block_bytes: int = 1024
    replay_bytes: int = 64 * 1024 * 1024
    has_filters: bool = True
    merges: bool = False

    def record_bytes(self, of_root: SizeLimits) -> int:
        """Return the largest record that is read from a changelog: that of the root, or more if a setting gives memory for
        about four copies of it."""
        of_memory = self.replay_bytes // 4
        return max(of_root.record_bytes, of_memory) if of_memory > MOST_RECORD_BYTES else of_root.record_bytes


class BlockCache:
    """A block cache that several databases share.

    Do not share it with a verification: RocksDB finds a block by the unique id of its table, so the blocks of an undamaged
    copy of the table would hide the damage.
    """

    def __init__(self, size_bytes: int) -> None:
        self.cache = Cache(size_bytes)


@dataclass(frozen=True, kw_only=True)
class _Tables:
    count: int
    readers_bytes: int
    at_level_0: int


class Database:
    """A local RocksDB with one version of one store.

    Keys and values are bytes. The marker (version, id or digest, lineage, sequence number) is in the same database and is
    written atomically with the changes. Its sequence number reveals later writes. RocksDB compares size and unique id of
    each table with its MANIFEST and verifies each block.
    """

    def __init__(self, rdict: Rdict, path: Path, limits: EngineLimits, *, never_changes: bool = False) -> None:
        self._rdict = rdict
        self._limits = limits
        self._never_changes = never_changes
        self._tables: _Tables | None = None
        self.path = path

    @classmethod
    def create(cls, path: Path, limits: EngineLimits) -> Database:
        """Create an empty database without a marker."""
        with translated(path):
            return cls(Rdict(str(path), _options(limits, create=True)), path, limits)

    @classmethod
    def open_for_writing(cls, path: Path, limits: EngineLimits) -> Database:
        """Open an existing database. Raises `LocalStateLocked`, `LocalStateDamaged`."""
        with translated(path):
            return cls(Rdict(str(path), _options(limits)), path, limits)

    @classmethod
    def open_with_merges(cls, path: Path, limits: EngineLimits, delimiter: bytes) -> Database:
        """Open a database of Spark whose tables may have values with merges that are not applied yet.

        The options are created here: an options file of a checkpoint could send RocksDB to other directories
        (`format.options_file`). Raises as `open_for_writing`.
        """
        with translated(path):
            # Only the options of the column family have the merge operator, not those of the database.
            options, families = _string_append(path.parent, delimiter)
            return cls(Rdict(str(path), _tuned(options, limits), _tuned_families(families, limits)), path, limits)

    @classmethod
    def open_read_only(cls, path: Path, limits: EngineLimits, cache: BlockCache | None = None) -> Database:
        """Open an existing database for reading. Other processes may have it open, too. Without `cache`, it gets its own.

        Race: a compaction in another process unlinks tables. This opens all tables at once, so that they stay readable.
        """
        options = _tuned(Options(raw_mode=True), limits, cache)
        with translated(path):
            # In read-only mode, rocksdict uses table options (filters, cache) only for column families given by name.
            families = {"default": options}
            rdict = Rdict(str(path), options, families, AccessType.read_only())
        return cls(rdict, path, limits, never_changes=True)

    def holds(self) -> LocalCopy | None:
        """Read the version and lineage in the marker; None if there is no marker.

        Raises `LocalStateDamaged`, also if there are writes after the marker: RocksDB numbers each write, and the marker
        has its own number.
        """
        with translated(self.path):
            marker = self._rdict.get(_MARKER_KEY)
            sequence = self._rdict.latest_sequence_number()
        if marker is None:
            return None
        try:
            fields = json.loads(marker)
            if int(fields.get("sequence", -1)) != sequence:
                raise LocalStateDamaged(
                    "was modified after its last load; its content is unknown", path=str(self.path), hint=REBUILT
                )
            version = replace(_version(fields["version"]), digest=fields.get("digest"))
            return LocalCopy(version, tuple(_version(item) for item in fields["lineage"]))
        except BAD_VALUES as error:
            raise LocalStateDamaged(
                "has an invalid marker; its content is unknown", path=str(self.path), hint=REBUILT
            ) from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read the value of each key; None if there is none. Sorted keys are fastest."""
        if not keys:
            return []
        with translated(self.path):
            return cast("list[bytes | None]", self._rdict.get(list(keys)))

    def scan(
        self, prefix: bytes = b"", batch_bytes: int = _SCAN_BATCH_BYTES
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Iterate over the pairs whose key starts with `prefix`, in key order, in batches of keys and values."""
        return self._scanned(range_of(prefix), self._entries, batch_bytes)

    def scan_range(self, keys_in: KeyRange) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Iterate over the pairs with a key in a range, as `scan`. Their blocks are cached, as for a read of keys."""
        return self._scanned(keys_in, self._rdict.iter)

    def _scanned(
        self, keys_in: KeyRange, iterator: Callable[[], RdictIter], batch_bytes: int = _SCAN_BATCH_BYTES
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        start, end = keys_in
        with translated(self.path):
            entries = iterator()
            entries.seek(start)
        keys: list[bytes] = []
        values: list[bytes] = []
        size_bytes = 0
        while entries.valid():
            key = entries.key()
            if key >= end:
                break
            keys.append(key)
            value = entries.value()
            values.append(value)
            size_bytes += len(key) + len(value)
            if len(keys) == SCAN_BATCH_ROWS or size_bytes >= batch_bytes:
                yield keys, values
                keys, values, size_bytes = [], [], 0
            entries.next()
        with translated(self.path):
            entries.status()
        if keys:
            yield keys, values

    def apply(self, windows: Iterable[Iterable[tuple[bytes, bytes | None]]], holds: LocalCopy | None) -> int:
        """Put (value) or delete (None) keys, and write the marker `holds`, if given. Later windows override earlier ones.

        A window is not empty and has unique, ascending keys. Atomic: one edit of the MANIFEST ingests all tables. Returns
        the number of written keys.
        """
        with translated(self.path):
            written = self._ingest(windows, holds)
            # Tables without overlap get no sequence number. The marker's table now overlaps with the old marker and gets
            # one. If the process dies before this, the database counts as damaged and is rebuilt.
            if holds is not None and self._marked_at() != self._rdict.latest_sequence_number():
                self._ingest((), holds)
        return written

    def _ingest(self, windows: Iterable[Iterable[tuple[bytes, bytes | None]]], holds: LocalCopy | None) -> int:
        tables: list[Path] = []
        written = 0
        writer: SstFileWriter | None = None
        try:
            for window in windows:
                if writer is not None:
                    writer.finish()
                writer = self._begin_table(tables)
                written += _write_window(writer, window)
            if holds is not None:
                writer = writer or self._begin_table(tables)
                # Each table that overlaps with older ones gets the next number; the very first table gets none.
                before, is_new = self._rdict.latest_sequence_number(), self._marked_at() is None
                writer[_MARKER_KEY] = _marker(holds, before + len(tables) - (is_new and before == 0))
            if writer is not None:
                writer.finish()
                move = IngestExternalFileOptions()
                move.set_move_files(True)
                self._rdict.ingest_external_file([str(table) for table in tables], move)
        finally:
            for table in tables:
                table.unlink(missing_ok=True)
        return written

    def _marked_at(self) -> int | None:
        """The sequence number in the marker."""
        marker = self._rdict.get(_MARKER_KEY)
        return None if marker is None else int(json.loads(marker)["sequence"])

    def open_tables(self) -> tuple[int, int]:
        """Return the number of tables, and the bytes of memory for their indexes and filters."""
        tables = self._tables_now()
        return tables.count, tables.readers_bytes

    def wants_merge(self) -> bool:
        """Whether the number of tables slows reads."""
        return self._tables_now().at_level_0 >= _COMPACTION_TRIGGER_FILES

    def _tables_now(self) -> _Tables:
        # A store that is open for reading is asked in each batch.
        if self._tables is None or not self._never_changes:
            with translated(self.path):
                self._tables = _Tables(
                    count=len(self._rdict.live_files()),
                    readers_bytes=self._rdict.property_int_value(_READERS_MEMORY) or 0,
                    at_level_0=int(self._rdict.property_value("rocksdb.num-files-at-level0") or 0),
                )
        return self._tables

    def merge_tables(self) -> None:
        """Compact the tables. Content and marker do not change, even if the process dies."""
        with translated(self.path):
            self._rdict.compact_range(None, None)

    def count_keys(self) -> int:
        """Count the keys with a full scan."""
        count = 0
        with translated(self.path):
            entries = self._entries()
            entries.seek_to_first()
            is_at_one, step = entries.valid, entries.next
            while is_at_one():
                count += 1
                step()
            entries.status()
        return count

    def digest(self) -> str:
        """Compute a digest of all keys and values with a full scan. It does not depend on the tables."""
        digest = RowsDigest()
        with translated(self.path):
            entries = self._entries()
            entries.seek_to_first()
            digest.add(_pairs(entries))
            entries.status()
        return str(digest)

    def count_by_beginning(self, size_bytes: int) -> Mapping[bytes, int]:
        """Count the keys by their first `size_bytes` bytes, with a full scan."""
        counts: Counter[bytes] = Counter()
        with translated(self.path):
            entries = self._entries()
            entries.seek_to_first()
            while entries.valid():
                counts[entries.key()[:size_bytes]] += 1
                entries.next()
            entries.status()
        return counts

    def keys_between(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        """Iterate over the keys from `begin` to `end`, exclusive, as of the first `next`."""
        with translated(self.path):
            entries = self._rdict.iter()
            entries.seek(begin)
        while entries.valid() and (key := entries.key()) < end:
            yield key
            entries.next()
        with translated(self.path):
            entries.status()

    def capture(self, path: Path) -> None:
        """Link the current files into a new directory. Tables are not copied (FLIP-428)."""
        with translated(path):
            Checkpoint(self._rdict).create_checkpoint(str(path))

    def _entries(self) -> RdictIter:
        """An iterator for one pass: the blocks that it reads do not replace those in the cache."""
        once = ReadOptions()
        once.fill_cache(False)  # type: ignore[call-arg]  # its stub lacks the argument
        return self._rdict.iter(once)

    def close(self) -> None:
        """Close the database. Safe to call twice."""
        with translated(self.path), contextlib.suppress(DbClosedError):
            self._rdict.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error on closing a damaged database would hide the first error.
        with contextlib.suppress(LocalStateError) if error is not None else contextlib.nullcontext():
            self.close()

    def _begin_table(self, tables: list[Path]) -> SstFileWriter:
        """Start another table to be ingested, and add its path to `tables`."""
        path = self.path / f"ingest-{len(tables)}.tmp"
        # A process that died after the ingestion leaves this file, a hard link to a live table. Opening it for writing
        # would truncate that table.
        path.unlink(missing_ok=True)
        tables.append(path)
        writer = SstFileWriter(_options(self._limits))
        writer.open(str(path))
        return writer


def _pairs(entries: RdictIter) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the pairs from the position of an iterator of rocksdict on."""
    while entries.valid():
        yield entries.key(), entries.value()
        entries.next()


def _write_window(writer: SstFileWriter, window: Iterable[tuple[bytes, bytes | None]]) -> int:
    """Write the keys of a window to a table. Return their number."""
    count, key = 0, b""
    for key, value in window:
        count += 1
        if value is None:
            del writer[key]
        else:
            writer[key] = value
    if key >= FIRST_RESERVED_KEY:
        raise UnsupportedType(
            f"key {key[:40]!r} starts with the reserved bytes ff ff ff ff; the version cannot be loaded",
            hint="encode keys as Spark does: no encoded row starts with these bytes",
        )
    return count


def _string_append(scratch: Path, delimiter: bytes) -> tuple[Options, dict[str, Options]]:
    """Options with Spark's merge operator. rocksdict has no setter for it, so it is read from a generated options file."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix="options-") as name:
        (Path(name) / "OPTIONS-000001").write_text(string_append_options(delimiter))
        return Options.load_latest(name)


def _tuned_families(families: Mapping[str, Options], limits: EngineLimits) -> dict[str, Options]:
    return {name: _tuned(options, limits) for name, options in families.items()}


def _options(limits: EngineLimits, *, create: bool = False) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    return _tuned(options, limits)


def _tuned(options: Options, limits: EngineLimits, cache: BlockCache | None = None) -> Options:
    options.set_compression_type(DBCompressionType.lz4())
    if limits.merges:
        _merge_in_background(options)
    else:
        # Compaction takes seconds. `merge_tables` does it between batches.
        options.set_disable_auto_compactions(True)
    # A table that another process unlinks stays readable through its open file descriptor.
    options.set_max_open_files(-1)
    # RocksDB would start sixteen threads at each opening, which take longer than the few tables of a store.
    options.set_max_file_opening_threads(1)
    options.set_keep_log_file_num(2)
    tables = BlockBasedOptions()
    tables.set_format_version(_FORMAT_VERSION)
    # A batch reads single keys across the state, and decompresses a block for each.
    tables.set_block_size(limits.block_bytes)
    # Each opening reads the index of these many small blocks. Keys in it share prefixes, up to this interval.
    tables.set_index_block_restart_interval(_KEYS_TO_AN_INDEX_RESTART)
    if limits.has_filters:
        tables.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
    tables.set_block_cache((cache or BlockCache(limits.block_cache_bytes)).cache)
    options.set_block_based_table_factory(tables)
    return options


def _merge_in_background(options: Options) -> None:
    """Merge tables of about the same size, so that each row is written again once for a few thousand tables."""
    options.set_compaction_style(DBCompactionStyle.universal())
    merges = UniversalCompactOptions()
    merges.min_merge_width = _FEWEST_TABLES_TO_MERGE
    # Otherwise, many new tables beside a small old one would merge everything.
    merges.max_size_amplification_percent = 2**31 - 1
    options.set_universal_compaction_options(merges)
    options.set_level_zero_file_num_compaction_trigger(2 * _FEWEST_TABLES_TO_MERGE)
    # The default is 2 MiB for each merged table.
    options.set_compaction_readahead_size(64 * 1024)


def _marker(holds: LocalCopy, sequence: int) -> bytes:
    lineage = [str(item) for item in holds.lineage]
    fields: dict[str, Any] = {"version": str(holds.version), "lineage": lineage, "sequence": sequence}
    if holds.version.digest is not None:
        fields["digest"] = holds.version.digest
    return json.dumps(fields).encode()


def _version(text: str) -> VersionId:
    number, _, checkpoint_id = text.partition("_")
    return VersionId(int(number), checkpoint_id or None)
