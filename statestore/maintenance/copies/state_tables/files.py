"""The files of a table of state: its log, its data files, its deletion vectors. Each access is a request of the storage.

*Guarantee*: the table changes only by the creation of one commit, which succeeds for exactly one of several writers. Files
that no commit names are garbage, which VACUUM deletes.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import AlreadyExists, CorruptFile, ObjectMissing, RefusedAsUnsafe
from statekeeper.statestore.contents.delta_logs import deleted_positions
from statekeeper.statestore.format import delta_log
from statekeeper.statestore.format.deletion_vectors import Positions, encode_file
from statekeeper.statestore.format.delta_log import DataFile, DeltaTable
from statekeeper.statestore.maintenance.copies.state_tables.columns import KEY, VALUE, Hashes, partition_text
from statekeeper.statestore.storage import OpenedObject, Storage, read_or_none
from statekeeper.statestore.store.engine.rocks import translated

FILE_ROWS = 1_000_000
FILE_BYTES = 256 * 1024 * 1024
"""A data file ends at the first row group beyond one of both."""
_GROUP_ROWS = 256_000
_GROUP_BYTES = 32 * 1024 * 1024
"""Rows in memory of all files that are being written."""
CHECKPOINT_COMMITS = 20
"""A checkpoint of the log is written after so many commits: as many are read in addition to it."""
LOG_MS = 30 * 24 * 3600 * 1000
"""Commits that are older and before a checkpoint are deleted: the default retention of Delta."""
_CHANGE_TYPE = "_change_type"
_STATS_TEXT = 32
"""Characters of the longest text in the statistics of a column."""
_IDENTITY = pa.schema([pa.field(KEY, pa.binary(16), nullable=False), pa.field(VALUE, pa.int64(), nullable=False)])
_OWN = re.compile(rf"(?:{delta_log.CHANGE_DATA}/cdc|part|deletion_vector)[-_][0-9a-f-]{{36}}\.(?:parquet|bin)")


def is_own(path: str) -> bool:
    """Return whether a file of a table has a name that this module gives."""
    return _OWN.fullmatch(path) is not None


# -- the log -----------------------------------------------------------------------------------------------------------


def read_table(storage: Storage) -> DeltaTable | None:
    """Read the newest version of a table from the newest checkpoint on; None if there is none.

    Requests: one for the pointer, one for the checkpoint, one for each later commit, and one that finds no next one.
    Raises `CorruptFile`, `UnknownFormatVersion`.
    """
    table = _from_checkpoint(storage) or DeltaTable()
    while (data := read_or_none(storage, path := delta_log.commit_path(table.version + 1))) is not None:
        table = table.after(delta_log.parse_commit(data, path), path)
    return None if table.version < 0 else table


def _from_checkpoint(storage: Storage) -> DeltaTable | None:
    pointer = read_or_none(storage, delta_log.LAST_CHECKPOINT)
    version = None if pointer is None else delta_log.parse_last_checkpoint(pointer)
    if version is None:
        return None
    data = read_or_none(storage, delta_log.checkpoint_path(version))
    return None if data is None else delta_log.parse_checkpoint(data, version)


_ONE_WRITER = "a table of state has one writer: stop the other program, and run this command again"


def commit(
    storage: Storage, table: DeltaTable, actions: Sequence[Mapping[str, Any]], *, hint: str = _ONE_WRITER
) -> DeltaTable:
    """Commit the next version of a table. Raises `RefusedAsUnsafe` with the hint if another program has committed it
    meanwhile."""
    path = delta_log.commit_path(table.version + 1)
    try:
        storage.create(path, delta_log.encode_commit(actions))
    except AlreadyExists as error:
        raise RefusedAsUnsafe(
            f"another program has committed version {table.version + 1} of the table; this commit was not written",
            path=f"{storage.url}/{path}",
            hint=hint,
        ) from error
    return table.after(actions, path)


def write_checkpoint(storage: Storage, table: DeltaTable, now_ms: int) -> None:
    """Write a checkpoint of the log if enough commits follow the newest one, and delete old commits before it."""
    if table.version - max(0, table.last_checkpoint) < CHECKPOINT_COMMITS:
        return
    data, pointer = delta_log.encode_checkpoint(table, now_ms)
    storage.replace(delta_log.checkpoint_path(table.version), data)
    storage.replace(delta_log.LAST_CHECKPOINT, pointer)
    old = [
        entry.path
        for entry in storage.list(delta_log.LOG)
        if (version := delta_log.parse_log_file(entry.path)) is not None
        and version < table.version
        and entry.modified_at_seconds is not None
        and now_ms - entry.modified_at_seconds * 1000 > LOG_MS
    ]
    storage.delete(old)


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identities:
    """The keys and values of consecutive rows of a data file, as hashes. `first`: the position of the first row."""

    first: int
    keys: Hashes
    values: Hashes


def opened(storage: Storage, file: DataFile) -> pq.ParquetFile:
    """Open a data file. Raises `ObjectMissing`, `CorruptFile`."""
    try:
        return pq.ParquetFile(pa.PythonFile(OpenedObject(storage, file.path, file.size_bytes), mode="r"))
    except ObjectMissing as error:
        raise _missing(file) from error
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from error


def has_identities(found: pq.ParquetFile) -> bool:
    """Return whether the data file has the hashes of its rows."""
    return {KEY, VALUE} <= set(found.schema_arrow.names)


def identities(storage: Storage, file: DataFile) -> Iterator[Identities]:
    """Read the hashes of the rows of a data file, one row group at a time. Raises as `opened`, and `CorruptFile`."""
    found, first = opened(storage, file), 0
    if not has_identities(found):
        raise _foreign(file)
    try:
        for number in range(found.num_row_groups):
            rows = found.read_row_group(number, columns=[KEY, VALUE])
            keys = _fixed(rows[KEY], "<u8").reshape(-1, 2)
            values = _fixed(rows[VALUE], "<u8")
            yield Identities(first, keys, values)
            first += rows.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from error


def rows_at(
    storage: Storage, file: DataFile, positions: Positions | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read rows of a data file in the columns of the table, in order. Only their row groups are read. `positions`: None for
    all rows."""
    yield from _rows_at(storage, file, positions, schema, with_identities=False)


def _rows_at(
    storage: Storage, file: DataFile, positions: Positions | None, schema: pa.Schema, *, with_identities: bool
) -> Iterator[pa.RecordBatch]:
    """Read rows; `positions`: None for all."""
    found, first = opened(storage, file), 0
    names = [one.name for one in schema if one.name not in file.values]
    wanted = pa.schema([*schema, *(_IDENTITY if with_identities else ())])
    try:
        for number in range(found.num_row_groups):
            count = found.metadata.row_group(number).num_rows
            inside = None
            if positions is not None:
                begin, end = np.searchsorted(positions, [first, first + count])
                inside = positions[begin:end] - first
            first += count
            if inside is not None and not len(inside):
                continue
            rows = found.read_row_group(number, columns=[*names, *(_IDENTITY.names if with_identities else ())])
            if inside is not None:
                rows = rows.take(pa.array(inside))
            columns = [_column(rows, one, file) for one in wanted]
            yield from pa.Table.from_arrays(columns, schema=wanted).combine_chunks().to_batches()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from error


def live_rows(storage: Storage, file: DataFile, schema: pa.Schema, without: Positions) -> Iterator[pa.RecordBatch]:
    """Read the rows of a data file that belong to the table, with their hashes. `without`: more positions to leave out."""
    left = np.union1d(deleted_positions(storage, file), without)
    kept = None
    if len(left):
        # Not the number in the log: a file of another program may have none.
        rows = np.arange(opened(storage, file).metadata.num_rows, dtype=np.int64)
        kept = np.setdiff1d(rows, left, assume_unique=True)
    yield from _rows_at(storage, file, kept, schema, with_identities=True)


def require_all(merged: int, chosen: Sequence[DataFile], url: str) -> None:
    """Raise `CorruptFile` if a merge has not as many rows as its files have in the log."""
    expected = sum(file.live_rows for file in chosen)
    if merged != expected:
        raise CorruptFile(
            f"a merge of {len(chosen):,} files has {merged:,} rows, but the log has {expected:,}; nothing was committed",
            path=f"{url}/{chosen[0].path}",
            hint="compare the numbers of rows in the log of the table with its files, the first of which is named here; "
            "restore a changed file, or choose another location",
        )


def _column(rows: pa.Table, one: pa.Field, file: DataFile) -> pa.ChunkedArray:
    if one.name in file.values:
        text = pa.array([file.values[one.name]], pa.string()).cast(one.type)
        return pa.chunked_array([text.take(pa.array(np.zeros(rows.num_rows, np.int64)))])
    return rows[one.name].cast(one.type) if one.name in rows.schema.names else pa.nulls(rows.num_rows, one.type)


def _fixed(column: pa.ChunkedArray, kind: str) -> npt.NDArray[Any]:
    pieces = [np.frombuffer(chunk.buffers()[1], kind) for chunk in column.chunks if len(chunk)]
    width = (column.type.byte_width if pa.types.is_fixed_size_binary(column.type) else 8) // 8
    cut = [
        piece[chunk.offset * width : (chunk.offset + len(chunk)) * width]
        for piece, chunk in zip(pieces, (one for one in column.chunks if len(one)), strict=True)
    ]
    return np.concatenate(cut) if cut else np.zeros(0, kind)


def _missing(file: DataFile) -> ObjectMissing:
    return ObjectMissing(
        "is missing, but the log of the table names it",
        path=file.path,
        hint="restore the file, or delete the table and publish the state again",
    )


def _unreadable(file: DataFile, error: Exception) -> CorruptFile:
    return CorruptFile(
        f"cannot be read as a data file of the table: {str(error).splitlines()[0] if str(error) else error!r}",
        path=file.path,
        hint="restore the file, or delete the table and publish the state again",
    )


def _foreign(file: DataFile) -> CorruptFile:
    return CorruptFile(
        "is a data file of another program: it has no hashes of its keys",
        path=file.path,
        hint="to load the table again, run: statekeeper publish ROOT TABLE --reload",
    )


# -- writing -----------------------------------------------------------------------------------------------------------


class FilesWriter:
    """Writes rows to data files, or to files of the change data feed, one set of files for each value of the partition
    columns. `finish` returns them. At most `_GROUP_BYTES` of rows are in memory.

    The rows have the columns of the table and, unless it `is_plain`, the hashes, or in a feed the type of the change.
    """

    def __init__(
        self,
        storage: Storage,
        schema: pa.Schema,
        partition_by: Sequence[str],
        folder: Path,
        *,
        clock: Clock,
        ids: Ids,
        is_feed: bool = False,
        is_plain: bool = False,
    ) -> None:
        self.rows = 0
        self.files: list[DataFile] = []
        self._storage, self._folder, self._clock, self._ids = storage, folder, clock, ids
        self._partition_by = list(partition_by)
        self._is_feed = is_feed
        extra: Iterable[pa.Field] = [pa.field(_CHANGE_TYPE, pa.string())] if is_feed else _IDENTITY
        if is_plain:
            extra = ()
        self._stored = pa.schema([one for one in (*schema, *extra) if one.name not in self._partition_by])
        self._plain = [one.name for one in self._stored if one.name not in _IDENTITY.names]
        self._waiting: dict[tuple[str | None, ...], list[pa.RecordBatch]] = {}
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self.rows += rows.num_rows
        for values, some in self._split(rows):
            self._waiting.setdefault(values, []).append(some.select(self._stored.names))
        waiting = [one for of_values in self._waiting.values() for one in of_values]
        if sum(one.num_rows for one in waiting) >= _GROUP_ROWS or sum(one.nbytes for one in waiting) >= _GROUP_BYTES:
            self._write_groups()

    def finish(self) -> list[DataFile]:
        """Write the rest, and return the files."""
        self._write_groups()
        for values in list(self._open):
            self._end(values)
        return self.files

    def _split(self, rows: pa.RecordBatch) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        if not rows.num_rows:
            return
        if not self._partition_by:
            yield (), rows
            return
        texts = [list(map(partition_text, rows.column(name).to_pylist())) for name in self._partition_by]
        of_rows = list(zip(*texts, strict=True))
        numbers = {values: number for number, values in enumerate(dict.fromkeys(of_rows))}
        codes = np.fromiter((numbers[values] for values in of_rows), np.int64, len(of_rows))
        for values, number in numbers.items():
            yield values, rows.filter(pa.array(codes == number))

    def _write_groups(self) -> None:
        for values, some in self._waiting.items():
            group = pa.Table.from_batches(some, self._stored)
            with translated(self._folder):
                if values not in self._open:
                    path = self._folder / f"{self._ids.fresh()}.parquet"
                    self._open[values] = _OpenFile(path, self._writer(path))
                one = self._open[values]
                one.writer.write_table(group, row_group_size=max(1, group.num_rows))
                one.rows += group.num_rows
                is_full = one.rows >= FILE_ROWS or one.path.stat().st_size >= FILE_BYTES
            if is_full:
                self._end(values)
        self._waiting = {}

    def _writer(self, path: Path) -> pq.ParquetWriter:
        # The hashes are random: neither a dictionary nor a codec makes them smaller.
        return pq.ParquetWriter(
            path,
            self._stored,
            compression={name: "NONE" if name in _IDENTITY.names else "ZSTD" for name in _leaves(self._stored)},
            use_dictionary=[name for name in _leaves(self._stored) if name not in _IDENTITY.names],
            write_statistics=[name for name in _leaves(self._stored) if name not in _IDENTITY.names],
        )

    def _end(self, values: tuple[str | None, ...]) -> None:
        one = self._open.pop(values)
        with translated(self._folder):
            one.writer.close()
            stats = {} if self._is_feed else statistics(pq.read_metadata(one.path), self._plain)
        folder = f"{delta_log.CHANGE_DATA}/cdc" if self._is_feed else "part"
        name = f"{folder}-{self._ids.fresh()}.parquet"
        self._storage.create(name, one.path)
        self.files.append(
            DataFile(
                path=name,
                size_bytes=one.path.stat().st_size,
                rows=one.rows,
                modified_ms=int(self._clock.now_seconds() * 1000),
                values=dict(zip(self._partition_by, values, strict=True)),
                stats=stats,
            )
        )
        one.path.unlink()


@dataclass
class _OpenFile:
    path: Path
    writer: pq.ParquetWriter
    rows: int = 0


def _leaves(schema: pa.Schema) -> list[str]:
    """The names of columns as Parquet has them."""
    return list(_paths(schema))


def _paths(fields: Iterable[pa.Field], before: str = "") -> Iterator[str]:
    for one in fields:
        path = f"{before}{one.name}"
        kind = one.type
        if pa.types.is_struct(kind):
            yield from _paths(kind, f"{path}.")
        elif pa.types.is_map(kind):
            yield from _paths(
                [kind.key_field.with_name("key"), kind.item_field.with_name("value")], f"{path}.key_value."
            )
        elif pa.types.is_list(kind):
            yield from _paths([kind.value_field.with_name("element")], f"{path}.list.")
        else:
            yield path


def statistics(found: pq.FileMetaData, names: Sequence[str]) -> dict[str, Any]:
    """Return the least and the largest value of columns of a data file, and their numbers of nulls, as the log has them.

    Only of numbers, texts and dates: readers skip files by them. A column without statistics is left out.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for place in range(found.num_columns):
        name = found.schema.column(place).path
        parts = [found.row_group(number).column(place).statistics for number in range(found.num_row_groups)]
        if name not in names or any(one is None or one.null_count is None for one in parts):
            continue
        nulls[name] = sum(one.null_count for one in parts)
        bounds = [one for one in parts if one.has_min_max]
        filled = [one for one in parts if one.null_count < one.num_values + one.null_count]
        if not filled or len(bounds) < len(filled):
            continue
        low, high = _bound(min(one.min for one in bounds)), _bound(max(one.max for one in bounds))
        if low is not None and high is not None:
            least[name], most[name] = low, high
    return {"minValues": least, "maxValues": most, "nullCount": nulls}


def _bound(value: object) -> Any:
    """Return a bound for the log; None for a type whose form in the log is not simple."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) <= _STATS_TEXT:
        return value
    return None


@dataclass(kw_only=True)
class Removals:
    """Rows that leave the table, by the path of their data file."""

    positions: dict[str, list[Positions]] = field(default_factory=dict)

    def add(self, path: str, positions: Positions) -> None:
        """Add positions of rows of a file."""
        if len(positions):
            self.positions.setdefault(path, []).append(positions)

    def of(self, path: str) -> Positions:
        """Return the positions in a file, sorted."""
        found = self.positions.get(path)
        return np.zeros(0, np.int64) if found is None else np.unique(np.concatenate(found))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(len(one) for of_file in self.positions.values() for one in of_file)


def with_vectors(storage: Storage, files: Sequence[tuple[DataFile, Positions]], ids: Ids) -> list[DataFile]:
    """Write the deletion vectors of data files, all into one file, and return the data files with them."""
    if not files:
        return []
    whole = [np.union1d(deleted_positions(storage, file), positions) for file, positions in files]
    data, descriptors = encode_file(whole, uuid.UUID(ids.fresh()))
    storage.create(descriptors[0].path, data)
    return [replace(file, vector=one) for (file, _), one in zip(files, descriptors, strict=True)]


def feed_action(file: DataFile) -> dict[str, Any]:
    """Encode the action that adds a file of the change data feed."""
    action = {"path": file.path, "partitionValues": dict(file.values), "size": file.size_bytes, "dataChange": False}
    return {"cdc": action}


def feed_rows(rows: pa.RecordBatch, kinds: pa.Array) -> pa.RecordBatch:
    """Append the type of change to rows."""
    fields = [*rows.schema, pa.field(_CHANGE_TYPE, pa.string())]
    return pa.RecordBatch.from_arrays([*rows.columns, kinds], schema=pa.schema(fields))


def with_identities(rows: pa.RecordBatch, keys: Hashes, values: Hashes) -> pa.RecordBatch:
    """Append the hashes of keys and values to rows."""
    columns = [
        pa.Array.from_buffers(pa.binary(16), len(keys), [None, pa.py_buffer(np.ascontiguousarray(keys))]),
        pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]),
    ]
    return pa.RecordBatch.from_arrays([*rows.columns, *columns], schema=pa.schema([*rows.schema, *_IDENTITY]))
