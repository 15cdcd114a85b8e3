"""Data files that tasks write below a table and the driver commits later (files first, commit second).

A file that is not committed is invisible: it is of an attempt that failed or lost. The table's own VACUUM deletes it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Meta

from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.base.errors import StorageError, WrongResult
from statekeeper.statestore.format import json_records
from statekeeper.statestore.format.delta_statistics import FileStatistics
from statekeeper.statestore.format.json_records import Count

_FileName = Annotated[str, Meta(pattern=r"\Apart-[0-9]{5,}-[0-9a-f-]{36}\.snappy\.parquet\Z")]
_OPEN_FILES = 64
"""Open files of a task. With more values of the partition columns, a value can have several files per task and batch."""


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A Parquet file that is complete, and not yet part of the table.

    path              relative to the table
    partition_values  name of the partition column -> value as Delta writes it; None for null
    statistics        Delta's statistics, as JSON
    """

    path: _FileName
    size_bytes: Count
    modified_at_milliseconds: Count
    partition_values: Mapping[str, str | None]
    statistics: str

    def as_json(self) -> dict[str, Any]:
        """Return the file as JSON."""
        return {**vars(self), "partition_values": dict(self.partition_values)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> DataFile:
        """Parse the JSON of a file. Raises `ValueError`, also for a path outside of the table."""
        return json_records.converted(cls, body)


@dataclass(frozen=True, kw_only=True)
class TableFiles:
    """Where and how the tasks of a batch write data files; sent to the workers.

    columns        the output's columns with the types of the table
    partition_by   names of the partition columns, which the files do not contain
    options        options of `deltalake` for the table's storage; they can hold credentials
    """

    path: str
    columns: pa.Schema
    partition_by: Sequence[str]
    options: Mapping[str, str] = field(repr=False)

    def open(self, partition: int, ids: Ids) -> TaskFiles:
        """Return a writer for the output of one partition."""
        return TaskFiles(self, partition, ids)

    def missing(self, files: Sequence[DataFile]) -> list[str]:
        """Return the paths of files that do not exist."""
        import pyarrow.fs

        found = table_files(self.path, self.options).get_file_info([file.path for file in files])
        return [file.path for file, info in zip(files, found, strict=True) if info.type is pyarrow.fs.FileType.NotFound]


@dataclass(frozen=True)
class NoFiles:
    """The tasks of a batch drop their output; sent to the workers in place of `TableFiles`."""

    def open(self, partition: int, ids: Ids) -> DroppedRows:
        """Return a writer that drops the output of one partition."""
        del partition, ids
        return DroppedRows()

    def missing(self, files: Sequence[DataFile]) -> list[str]:
        """Return no paths."""
        del files
        return []


OutputFiles = TableFiles | NoFiles
"""How the tasks of a batch write their output, if it does not go through Spark."""


class DroppedRows:
    """Drops the output of one partition."""

    def write(self, rows: pa.Table) -> None:
        """Drop rows."""

    def complete(self) -> tuple[DataFile, ...]:
        """Return no files."""
        return ()

    def __enter__(self) -> DroppedRows:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class TaskFiles:
    """Writes the output of one partition. Use it as a context: an error deletes the files."""

    def __init__(self, table: TableFiles, partition: int, ids: Ids) -> None:
        self._table = table
        self._partition = partition
        self._ids = ids
        self._in_files = pa.schema([column for column in table.columns if column.name not in table.partition_by])
        self._open: OrderedDict[tuple[str | None, ...], _OpenFile] = OrderedDict()
        self._paths: list[str] = []
        self._complete: list[DataFile] = []
        self._system: Any = None

    def write(self, rows: pa.Table) -> None:
        """Append rows to the files of their partition values. Raises `WrongResult` for a partition value that Delta
        cannot store, `StorageError` if the storage of the table rejects a file."""
        if rows.num_rows == 0:
            return
        rows = rows.rename_columns(self._table.columns.names).cast(self._table.columns)
        for values, part in _by_value(rows, self._table.partition_by):
            with self._typed_errors():
                self._file(values).write(part.select(self._in_files.names))

    def complete(self) -> tuple[DataFile, ...]:
        """Close all files and return them. Raises `StorageError`."""
        with self._typed_errors():
            while self._open:
                self._close_oldest()
        return tuple(self._complete)

    @contextlib.contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"a task cannot write a data file: {str(error).splitlines()[0]}",
                path=self._table.path,
                hint="tasks write this table themselves: give them access with DeltaSink(..., storage_options={...}), "
                'or let Spark write it with DeltaSink(..., writer="spark")',
            ) from error

    def __enter__(self) -> TaskFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._delete_all()

    def _file(self, values: tuple[str | None, ...]) -> _OpenFile:
        if values not in self._open:
            if len(self._open) == _OPEN_FILES:
                self._close_oldest()
            path = f"part-{self._partition:05}-{self._ids.fresh()}.snappy.parquet"
            self._paths.append(path)
            stream = self._files().open_output_stream(path)
            self._open[values] = _OpenFile(path, stream, self._in_files)
        self._open.move_to_end(values)
        return self._open[values]

    def _close_oldest(self) -> None:
        values, file = self._open.popitem(last=False)
        self._complete.append(file.complete(dict(zip(self._table.partition_by, values, strict=True))))

    def _files(self) -> Any:
        if self._system is None:
            self._system = table_files(self._table.path, self._table.options)
        return self._system

    def _delete_all(self) -> None:
        # VACUUM deletes what is left here.
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.abandon()
        for path in self._paths:
            with contextlib.suppress(Exception):
                self._files().delete_file(path)


class _OpenFile:
    def __init__(self, path: str, stream: Any, columns: pa.Schema) -> None:
        self._path = path
        self._stream = stream
        self._writer = pq.ParquetWriter(stream, columns, compression="snappy")
        self._statistics = FileStatistics(columns)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self._statistics.add(rows)

    def complete(self, partition_values: Mapping[str, str | None]) -> DataFile:
        self._writer.close()
        size_bytes = self._stream.tell()
        self._stream.close()
        return DataFile(
            path=self._path,
            size_bytes=size_bytes,
            modified_at_milliseconds=int(time.time() * 1000),
            partition_values=partition_values,
            statistics=json.dumps(self._statistics.as_json()),
        )

    def abandon(self) -> None:
        self._writer.close()
        self._stream.close()


def table_files(path: str, options: Mapping[str, str]) -> Any:
    """Return the files of a table as a pyarrow file system. Creates the folder of a table on local disk."""
    import pyarrow.fs
    from deltalake.fs import DeltaStorageHandler

    local = path.removeprefix("file://") if path.startswith("file:///") else path
    if "://" not in local:
        Path(local).mkdir(parents=True, exist_ok=True)
    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(path, dict(options) or None))


def _by_value(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    """Split rows by the values of the partition columns, as Delta writes these values."""
    if not columns:
        yield (), rows
        return
    texts = [_as_text(rows, column) for column in columns]
    keyed = pa.table(dict(zip(map(str, range(len(texts))), texts, strict=True)))
    numbered = keyed.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    groups = numbered.group_by([str(number) for number in range(len(texts))], use_threads=False)
    for group in groups.aggregate([("row", "list")]).to_pylist():
        yield tuple(group[str(number)] for number in range(len(texts))), rows.take(group["row_list"])


def _as_text(rows: pa.Table, column: str) -> pa.ChunkedArray:
    """Return a partition column as Delta's strings. Delta has no empty string there: it is null, as in Spark."""
    values = rows.column(column)
    texts = values.cast(pa.string())
    texts = pc.if_else(pc.equal(texts, ""), None, texts)
    if texts.null_count and not rows.schema.field(column).nullable:
        raise WrongResult(
            f"partition column {column!r} of the output contains an empty string, but the column is declared without nulls",
            hint="Delta stores an empty partition value as null: return another value",
        )
    return texts
