"""Merges data files of a Delta table: their rows are copied without a change, in order."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, UnsupportedTable
from statekeeper.statestore.contents.delta_logs import deleted_positions
from statekeeper.statestore.format.delta_log import DataFile, LoggedFile
from statekeeper.statestore.format.delta_statistics import FileStatistics
from statekeeper.statestore.maintenance.upkeep.sink_tables.model import MergeBin
from statekeeper.statestore.storage import OpenedObject, Storage, at_once
from statekeeper.statestore.store.engine.rocks import translated

_GROUP_BYTES = 64 * 1024 * 1024
"""Rows in memory, which become a row group."""
_WHOLE_BYTES = 8 * 1024 * 1024
"""A file up to this size is read in one request."""
_AT_ONCE = 8
_KEPT_METADATA = b"org.apache.spark.version"
"""By it, Spark knows that the file has dates of the Gregorian calendar."""
_LEGACY_METADATA = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_INT96 = "INT96"


def merged(storage: Storage, one: MergeBin, folder: Path, *, file_bytes: int, clock: Clock, ids: Ids) -> list[DataFile]:
    """Write files with the rows of a bin; they are not committed. Files with other columns than the one before begin a new
    file. Raises `CorruptFile`, `ObjectMissing`, `UnsupportedTable`, `StorageError`."""
    writer = _Writer(storage, one, folder, file_bytes=file_bytes, clock=clock, ids=ids)
    for rows in _rows(storage, one.files):
        writer.add(rows)
    return writer.finish()


def _rows(storage: Storage, files: Sequence[LoggedFile]) -> Iterator[pa.Table]:
    """Read the rows that belong to the table, one row group at a time."""
    for first in range(0, len(files), _AT_ONCE):
        some = [one.file for one in files[first : first + _AT_ONCE]]
        small: dict[str, bytes] = {}

        def read(file: DataFile, small: dict[str, bytes] = small) -> None:
            if file.size_bytes <= _WHOLE_BYTES:
                with _readable(storage, file):
                    small[file.path] = storage.read(file.path)

        at_once(read, some)
        for file in some:
            yield from _rows_of(storage, file, small.get(file.path))


def _rows_of(storage: Storage, file: DataFile, data: bytes | None) -> Iterator[pa.Table]:
    source = io.BytesIO(data) if data is not None else OpenedObject(storage, file.path, file.size_bytes)
    with _readable(storage, file):
        found = pq.ParquetFile(pa.PythonFile(source, mode="r"), coerce_int96_timestamp_unit="us")
        schema = _stored(found, storage, file)
        deleted, position = deleted_positions(storage, file), 0
    for number in range(found.num_row_groups):
        with _readable(storage, file):
            rows = found.read_row_group(number).cast(schema)
        first, last = np.searchsorted(deleted, [position, position + rows.num_rows])
        position += rows.num_rows
        if last > first:
            left = np.delete(np.arange(rows.num_rows), deleted[first:last] - (position - rows.num_rows))
            rows = rows.take(pa.array(left))
        yield rows


def _stored(found: pq.ParquetFile, storage: Storage, file: DataFile) -> pa.Schema:
    """The schema of the merged file. Raises `UnsupportedTable` for values that cannot be copied as they are."""
    schema = found.schema_arrow
    metadata = schema.metadata or {}
    nanoseconds = {
        found.schema.column(number).path
        for number in range(len(found.schema))
        if found.schema.column(number).physical_type == _INT96
    }
    if any(key in metadata for key in _LEGACY_METADATA) or not nanoseconds <= set(schema.names):
        raise UnsupportedTable(
            "has times in a former format of Spark, so that only Spark can merge it; this merge was not committed",
            path=f"{storage.url}/{file.path}",
            hint="to only delete unneeded files, add --no-compact, or set compact = false in statekeeper.toml. To merge "
            "small files, run OPTIMIZE in Spark",
        )
    # Spark's INT96 is a time in UTC, which Parquet does not say.
    columns = [one.with_type(pa.timestamp("us", tz="UTC")) if one.name in nanoseconds else one for one in schema]
    kept = {_KEPT_METADATA: metadata[_KEPT_METADATA]} if _KEPT_METADATA in metadata else None
    return pa.schema(columns, metadata=kept)


class _Writer:
    def __init__(
        self, storage: Storage, one: MergeBin, folder: Path, *, file_bytes: int, clock: Clock, ids: Ids
    ) -> None:
        self._storage, self._bin, self._folder = storage, one, folder
        self._file_bytes, self._clock, self._ids = file_bytes, clock, ids
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._open: _OpenFile | None = None
        self._made: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        if self._waiting and not rows.schema.equals(self._waiting[0].schema, check_metadata=True):
            self._write_group()
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _GROUP_BYTES:
            self._write_group()

    def finish(self) -> list[DataFile]:
        self._write_group()
        self._end()
        return self._made

    def _write_group(self) -> None:
        if not self._waiting:
            return
        group = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if self._open is not None and not group.schema.equals(self._open.schema, check_metadata=True):
            self._end()
        with translated(self._folder):
            if self._open is None:
                path = self._folder / f"{self._ids.fresh()}.parquet"
                writer = pq.ParquetWriter(path, group.schema, compression="ZSTD", store_decimal_as_integer=True)
                self._open = _OpenFile(
                    path=path, schema=group.schema, writer=writer, statistics=FileStatistics(group.schema)
                )
            one = self._open
            one.writer.write_table(group, row_group_size=max(1, group.num_rows))
            one.statistics.add(group)
            one.rows += group.num_rows
            is_full = one.path.stat().st_size >= self._file_bytes
        if is_full:
            self._end()

    def _end(self) -> None:
        one, self._open = self._open, None
        if one is None:
            return
        with translated(self._folder):
            one.writer.close()
        if one.rows:
            # Named as Spark names its files, so that every VACUUM knows them.
            name = f"part-{len(self._made):05}-{self._ids.fresh()}-c000.zstd.parquet"
            self._storage.create(name, one.path)
            self._made.append(
                DataFile(
                    path=name,
                    size_bytes=one.path.stat().st_size,
                    rows=one.rows,
                    modified_ms=int(self._clock.now_seconds() * 1000),
                    values=dict(self._bin.values),
                    stats=one.statistics.as_json(),
                )
            )
        one.path.unlink()


@dataclass(kw_only=True)
class _OpenFile:
    path: Path
    schema: pa.Schema
    writer: pq.ParquetWriter
    statistics: FileStatistics
    rows: int = 0


@contextmanager
def _readable(storage: Storage, file: DataFile) -> Iterator[None]:
    """Translate the errors of a file that cannot be read."""
    path = f"{storage.url}/{file.path}"
    hint = "restore the file from a backup, or restore the table in Spark to a version without it"
    try:
        yield
    except ObjectMissing as error:
        raise ObjectMissing("is missing, but the log of the table names it", path=path, hint=hint) from error
    except (pa.ArrowException, OSError) as error:
        text = str(error).splitlines()[0] if str(error) else repr(error)
        raise CorruptFile(f"cannot be read as a data file of the table: {text}", path=path, hint=hint) from error
