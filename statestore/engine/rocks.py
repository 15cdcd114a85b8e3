"""RocksDB through rocksdict in raw mode, wrapped once: what comes out of here is typed, errors too.

rocksdict raises bare `Exception` for everything; `translated` is the one place that reads its texts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
)

from statestore.errors import (
    LocalDiskFull,
    LocalStateDamaged,
    LocalStateError,
    LocalStateLocked,
    StatekeeperError,
    UnsupportedType,
)
from statestore.format.changelog import MOST_RECORD_BYTES
from statestore.format.names import VersionId
from statestore.format.rocksdb_options import string_append_options
from statestore.format.untrusted import BAD_VALUES
from statestore.lineage import LocalCopy

_MARKER_KEY = b"\xff\xff\xff\xff statekeeper: what this copy holds"
FIRST_RESERVED_KEY = b"\xff\xff\xff\xff"
"""State keys begin with a little-endian length or a row's version byte, so none sorts behind this."""

_SCAN_BATCH_ROWS = 10_000
_BLOOM_BITS_PER_KEY = 10
_KEYS_TO_AN_INDEX_RESTART = 16
_COMPACTION_TRIGGER_FILES = 8
_DIGEST_BYTES = 16
_REBUILT = "it is rebuilt from storage"
_FORMAT_VERSION = 5
"""Of tables, as Spark writes them: the RocksDB of Spark 3.5 (8.3.2) refuses what RocksDB writes unless it is told."""


@dataclass(frozen=True)
class EngineLimits:
    """Memory for one open database. `block_cache_bytes` is this process's share of the host's budget, `block_bytes` what
    the blocks of tables that are written here hold: small ones for the single reads of a batch. `replay_bytes` is for
    the changes that are gathered to be written as one table: the more, the fewer tables and keys that are in several."""

    block_cache_bytes: int = 32 * 1024 * 1024
    block_bytes: int = 1024
    replay_bytes: int = 64 * 1024 * 1024

    @property
    def record_bytes(self) -> int:
        """The largest record of a changelog that is read: about four copies of it are in memory while it is applied."""
        return max(MOST_RECORD_BYTES, self.replay_bytes // 4)


class Database:
    """One local RocksDB that holds one version of one store, and says which.

    Keys and values are bytes. The marker (version, id or digest, lineage, sequence number) lies in the same database and is
    written together with the changes that it speaks of, so that data and marker cannot part. Its sequence number shows
    later writes. RocksDB itself compares size and unique id of each table with its MANIFEST and verifies each block.
    """

    def __init__(self, rdict: Rdict, path: Path, limits: EngineLimits) -> None:
        self._rdict = rdict
        self._limits = limits
        self.path = path

    @classmethod
    def create(cls, path: Path, limits: EngineLimits) -> Database:
        """A new, empty database; it has no marker yet."""
        with translated(path):
            return cls(Rdict(str(path), _options(limits, create=True)), path, limits)

    @classmethod
    def open_for_writing(cls, path: Path, limits: EngineLimits) -> Database:
        """An existing database. Raises `LocalStateLocked`, `LocalStateDamaged`."""
        with translated(path):
            return cls(Rdict(str(path), _options(limits)), path, limits)

    @classmethod
    def open_with_merges(cls, path: Path, limits: EngineLimits, delimiter: bytes) -> Database:
        """An existing database of Spark's whose tables may hold what was appended to values and not merged yet.

        Its options are made here: an options file of a checkpoint could send RocksDB to other directories
        (`format.rocksdb_options`). Raises as `open_for_writing`.
        """
        with translated(path):
            # What opens is the options of the column family; those of the database carry no operator.
            options, families = _string_append(path.parent, delimiter)
            return cls(Rdict(str(path), _tuned(options, limits), _tuned_families(families, limits)), path, limits)

    @classmethod
    def open_read_only(cls, path: Path, limits: EngineLimits) -> Database:
        """An existing database, beside whoever else has it open.

        All of its tables are opened at once, so that a compaction in another process, which unlinks them, is not felt.
        """
        options = _options(limits)
        with translated(path):
            # For reading rocksdict takes the table options (filters, cache) of column families it is told of by name only.
            families = {"default": options}
            return cls(Rdict(str(path), options, families, AccessType.read_only()), path, limits)

    def holds(self) -> LocalCopy | None:
        """Which version this is; None when no load ever ended here.

        Raises `LocalStateDamaged`, also when anything was written since the marker: RocksDB numbers each write, and the
        marker holds the number of its own.
        """
        with translated(self.path):
            marker = self._rdict.get(_MARKER_KEY)
            sequence = self._rdict.latest_sequence_number()
        if marker is None:
            return None
        try:
            fields = json.loads(marker)
            if int(fields.get("sequence", -1)) != sequence:
                raise LocalStateDamaged("was written to by another program", path=str(self.path), hint=_REBUILT)
            version = replace(_version(fields["version"]), digest=fields.get("digest"))
            return LocalCopy(version, tuple(_version(item) for item in fields["lineage"]))
        except BAD_VALUES as error:
            raise LocalStateDamaged("the marker is not what it should be", path=str(self.path)) from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none. Fastest with sorted keys."""
        if not keys:
            return []
        with translated(self.path):
            return cast("list[bytes | None]", self._rdict.get(list(keys)))

    def scan(self, prefix: bytes = b"") -> Iterator[tuple[list[bytes], list[bytes]]]:
        """All pairs whose key begins with `prefix`, in key order, as batches of keys and values."""
        end = _after(prefix) or FIRST_RESERVED_KEY
        with translated(self.path):
            entries = self._rdict.iter()
            entries.seek(prefix)
        keys: list[bytes] = []
        values: list[bytes] = []
        while entries.valid():
            key = entries.key()
            if key >= end:
                break
            keys.append(key)
            values.append(entries.value())
            if len(keys) == _SCAN_BATCH_ROWS:
                yield keys, values
                keys, values = [], []
            entries.next()
        with translated(self.path):
            entries.status()
        if keys:
            yield keys, values

    def apply(self, windows: Iterable[Iterable[tuple[bytes, bytes | None]]], holds: LocalCopy | None) -> int:
        """Put (value) or delete (None) keys, later windows over earlier ones, and mark what is held then; None: no mark.

        Within a window keys ascend, each stands there once, and there is one at least. All or nothing: the tables are
        ingested by one edit of the MANIFEST. Returns the number of keys written.
        """
        with translated(self.path):
            written = self._ingest(windows, holds)
            # Tables that overlap with nothing get no number of their own. Now the marker's table does: the old marker is
            # below it. Until then the database counts as damaged, and is rebuilt if the process dies here.
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
                # Each table that overlaps with what is below it gets the next number; the first of all gets none.
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
        """The sequence number that the marker holds."""
        marker = self._rdict.get(_MARKER_KEY)
        return None if marker is None else int(json.loads(marker)["sequence"])

    def wants_merge(self) -> bool:
        """Whether so many tables have gathered that reads suffer."""
        with translated(self.path):
            return int(self._rdict.property_value("rocksdb.num-files-at-level0") or 0) >= _COMPACTION_TRIGGER_FILES

    def merge_tables(self) -> None:
        """Merge the tables that have gathered. Contents and marker stay, also when the process dies in between."""
        with translated(self.path):
            self._rdict.compact_range(None, None)

    def count_keys(self) -> int:
        """How many keys it holds, by going over all of them."""
        count = 0
        with translated(self.path):
            entries = self._rdict.iter()
            entries.seek_to_first()
            is_at_one, step = entries.valid, entries.next
            while is_at_one():
                count += 1
                step()
            entries.status()
        return count

    def digest(self) -> str:
        """A text that differs when keys or values do, however they lie in tables; by going over all of them."""
        total = count = 0
        with translated(self.path):
            entries = self._rdict.iter()
            entries.seek_to_first()
            while entries.valid():
                key = entries.key()
                pair = len(key).to_bytes(4, "big") + key + entries.value()
                total += int.from_bytes(blake2b(pair, digest_size=_DIGEST_BYTES).digest(), "big")
                count += 1
                entries.next()
            entries.status()
        return f"{count}:{total % 2 ** (8 * _DIGEST_BYTES):0{2 * _DIGEST_BYTES}x}"

    def count_by_beginning(self, size_bytes: int) -> Mapping[bytes, int]:
        """How many keys begin with each of the beginnings of that size, by going over all of them."""
        counts: Counter[bytes] = Counter()
        with translated(self.path):
            entries = self._rdict.iter()
            entries.seek_to_first()
            while entries.valid():
                counts[entries.key()[:size_bytes]] += 1
                entries.next()
            entries.status()
        return counts

    def keys_between(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        """The keys from `begin` on, up to `end`, exclusive, as they were when the first one was asked for."""
        with translated(self.path):
            entries = self._rdict.iter()
            entries.seek(begin)
        while entries.valid() and (key := entries.key()) < end:
            yield key
            entries.next()
        with translated(self.path):
            entries.status()

    def capture(self, path: Path) -> None:
        """Hold on to the files of what it is now, in a new directory; tables are linked, not copied (FLIP-428)."""
        with translated(path):
            Checkpoint(self._rdict).create_checkpoint(str(path))

    def close(self) -> None:
        """Close it. Safe to call twice."""
        with translated(self.path):
            self._rdict.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What a damaged database says when it is closed is less than what was wrong with it before.
        with contextlib.suppress(LocalStateError) if error is not None else contextlib.nullcontext():
            self.close()

    def _begin_table(self, tables: list[Path]) -> SstFileWriter:
        """One more table to be ingested, added to the others."""
        path = self.path / f"ingest-{len(tables)}.tmp"
        # A process that died after the ingestion left its file here: the same inode as a live table, which opening it
        # for writing would cut to nothing.
        path.unlink(missing_ok=True)
        tables.append(path)
        writer = SstFileWriter(_options(self._limits))
        writer.open(str(path))
        return writer


def _write_window(writer: SstFileWriter, window: Iterable[tuple[bytes, bytes | None]]) -> int:
    """Write the keys of a window to a table, and count them."""
    count, key = 0, b""
    for key, value in window:
        count += 1
        if value is None:
            del writer[key]
        else:
            writer[key] = value
    if key >= FIRST_RESERVED_KEY:
        raise UnsupportedType(f"a key that begins with ff ff ff ff: {key[:40]!r}", hint="no row begins so")
    return count


def _string_append(scratch: Path, delimiter: bytes) -> tuple[Options, dict[str, Options]]:
    """Options with Spark's merge operator. rocksdict has no setter for it, but reads it from a file: one of our own."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix="options-") as name:
        (Path(name) / "OPTIONS-000001").write_text(string_append_options(delimiter))
        return Options.load_latest(name)


def _tuned_families(families: Mapping[str, Options], limits: EngineLimits) -> dict[str, Options]:
    return {name: _tuned(options, limits) for name, options in families.items()}


def _options(limits: EngineLimits, *, create: bool = False) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    return _tuned(options, limits)


def _tuned(options: Options, limits: EngineLimits) -> Options:
    options.set_compression_type(DBCompressionType.lz4())
    # Compaction costs whole seconds and belongs off the batch's path: `merge_tables` does it.
    options.set_disable_auto_compactions(True)
    # A table that another process unlinks stays readable through the descriptor that is open.
    options.set_max_open_files(-1)
    options.set_keep_log_file_num(2)
    tables = BlockBasedOptions()
    tables.set_format_version(_FORMAT_VERSION)
    # A batch reads single keys from all over the state, each from a block that it has to unpack.
    tables.set_block_size(limits.block_bytes)
    # The index of so many blocks is read at each opening: neighbouring keys share their beginnings in it.
    tables.set_index_block_restart_interval(_KEYS_TO_AN_INDEX_RESTART)
    tables.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
    tables.set_block_cache(Cache(limits.block_cache_bytes))
    options.set_block_based_table_factory(tables)
    return options


def _marker(holds: LocalCopy, sequence: int) -> bytes:
    lineage = [str(item) for item in holds.lineage]
    fields: dict[str, Any] = {"version": str(holds.version), "lineage": lineage, "sequence": sequence}
    if holds.version.digest is not None:
        fields["digest"] = holds.version.digest
    return json.dumps(fields).encode()


def _version(text: str) -> VersionId:
    number, _, checkpoint_id = text.partition("_")
    return VersionId(int(number), checkpoint_id or None)


def _after(prefix: bytes) -> bytes | None:
    """The first key behind all that begin with `prefix`; None when there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    try:
        yield
    except StatekeeperError:
        raise  # a changelog that cannot be read while it is applied says nothing about the database
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LocalDiskFull(str(error), path=str(path), hint="free space on the local disk") from error
        raise LocalStateError(str(error), path=str(path)) from error
    except Exception as error:
        if type(error) is not Exception:
            raise  # a mistake of the caller's; RocksDB's own errors are bare
        text = str(error)
        if "No space left" in text or "Disk quota" in text:
            raise LocalDiskFull(text, path=str(path), hint="free space on the local disk") from error
        if "lock hold by current process" in text or "While lock file" in text:
            raise LocalStateLocked(text, path=str(path), hint="wait for the other process") from error
        raise LocalStateDamaged(text, path=str(path), hint=_REBUILT) from error
