"""Writes the rows of one store to files of its tables, in bounded memory."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from statekeeper.statestore.clock import Clock, Ids
from statekeeper.statestore.contents import Contents, Layout, OpenStore, Pairs, opened
from statekeeper.statestore.engine.local_errors import translated
from statekeeper.statestore.engine.scratch import work_folder
from statekeeper.statestore.errors import CorruptFile
from statekeeper.statestore.format import savepoint_names as names
from statekeeper.statestore.format.family_rows import FAMILY_BYTES
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.savepoints.columns import (
    Table,
    digest_of,
    digest_sum,
    raw_rows,
    table_of,
    typed_rows,
)
from statekeeper.statestore.maintenance.savepoints.record import File, Part, StoreRows
from statekeeper.statestore.storage import Storage

_GROUP_BYTES = 32 * 1024 * 1024
_GROUP_ROWS = 100_000
"""A row group ends with the first of both. The rows of one group of each worker are in memory."""
FILE_BYTES = 256 * 1024 * 1024
"""A file of a table ends at the first row group beyond this size."""


def write_store(
    contents: Contents,
    store: StorePath,
    layout: Layout,
    operator_name: str,
    destination: Storage,
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    wrote: Callable[[int], None],
) -> StoreRows:
    """Write the rows of a store; call `wrote` with the number of rows of each piece.

    Raises as `opened`, `OpenStore.decoded` and `Storage.create`; `CorruptFile` for rows that Arrow cannot convert;
    `LocalDiskFull`.
    """
    with (
        _typed_errors(store),
        opened(contents, store, layout, scratch=scratch, clock=clock, ids=ids) as rows,
        work_folder(scratch, "savepoint") as folder,
    ):

        def writer_of(family: str | None) -> _PartWriter:
            table = table_of(store.operator, operator_name, store.store, family, layout)
            return _PartWriter(table, store.partition, destination, Path(folder))

        return StoreRows(store, tuple(_parts(rows, store.partition, writer_of, wrote)))


def _parts(
    rows: OpenStore, partition: int, writer_of: Callable[[str | None], _PartWriter], wrote: Callable[[int], None]
) -> Iterator[Part]:
    """Write the rows of each family; yield its part."""
    for family, pieces in itertools.groupby(rows.pairs(), key=lambda pairs: pairs.family):
        writer = writer_of(family)
        for pairs in pieces:
            writer.state_bytes += sum(map(len, pairs.keys)) + sum(map(len, pairs.values))
            for batch in _batches(writer.table, partition, rows, pairs):
                writer.add(batch)
                wrote(batch.num_rows)
        yield writer.finish()


@contextlib.contextmanager
def _typed_errors(store: StorePath) -> Iterator[None]:
    """Convert errors of Arrow to a `CorruptFile` of the store. Too little memory stays a `MemoryError`."""
    try:
        yield
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise CorruptFile(
            f"its rows cannot be written as a table: {error}",
            path=str(store),
            hint="to find damaged files, run: statekeeper audit ROOT --deep; to keep the state as it is, make a savepoint "
            "of the files: statekeeper savepoint ROOT DESTINATION --label LABEL",
        ) from error


def write_empty(table: Table, destination: Storage, scratch: Path) -> File:
    """Write a file without rows, which tells the columns of a table without rows."""
    with work_folder(scratch, "savepoint") as folder:
        path = folder / "empty.parquet"
        with translated(scratch):
            pq.write_table(table.schema.empty_table(), path)
        name = names.empty_part(table.folder)
        size = path.stat().st_size
        destination.create(name, path)
    return File(path=name, rows=0, bytes=size)


def _batches(table: Table, partition: int, rows: OpenStore, pairs: Pairs) -> Iterator[pa.RecordBatch]:
    if table.rows is not None:
        yield from typed_rows(table, partition, rows.decoded(pairs))
        return
    skip = 0 if pairs.family is None else FAMILY_BYTES
    yield raw_rows(table, partition, [key[skip:] for key in pairs.keys], list(pairs.values))


class _PartWriter:
    """Writes the rows of one store in one table, to one file after another."""

    def __init__(self, table: Table, partition: int, destination: Storage, folder: Path) -> None:
        self.table = table
        self.state_bytes = 0
        self._partition = partition
        self._destination = destination
        self._path = folder / "part.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._group: list[pa.RecordBatch] = []
        self._rows_in_file = 0
        self._digest = 0
        self._files: list[File] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self._digest = digest_sum((self._digest, digest_of(batch)))
        self._group.append(batch)
        rows = sum(one.num_rows for one in self._group)
        if rows >= _GROUP_ROWS or sum(one.nbytes for one in self._group) >= _GROUP_BYTES:
            self._end_group()
            if self._path.stat().st_size >= FILE_BYTES:
                self._end_file()

    def finish(self) -> Part:
        """Write the rest, and return the files and counts."""
        self._end_group()
        self._end_file()
        return Part(
            table=self.table.folder,
            family=self.table.family,
            rows=sum(file.rows for file in self._files),
            digest=f"{self._digest:032x}",
            files=tuple(self._files),
            state_bytes=self.state_bytes,
        )

    def _end_group(self) -> None:
        if not self._group:
            return
        group = pa.Table.from_batches(self._group)
        with translated(self._path):
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._path, self.table.schema, compression="zstd")
            self._writer.write_table(group, row_group_size=max(1, group.num_rows))
        self._rows_in_file += group.num_rows
        self._group = []

    def _end_file(self) -> None:
        if self._writer is None:
            return
        with translated(self._path):
            self._writer.close()
        name = names.part(self.table.folder, self._partition, len(self._files))
        self._files.append(File(path=name, rows=self._rows_in_file, bytes=self._path.stat().st_size))
        self._destination.create(name, self._path)
        self._path.unlink()
        self._writer, self._rows_in_file = None, 0
