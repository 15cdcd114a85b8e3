"""Writes the rows of one store to files of its tables, in bounded memory."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.contents.rows import Contents, Layout, OpenStore, Pairs, opened
from statekeeper.statestore.format import savepoint_names
from statekeeper.statestore.format import savepoint_names as names
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.family_rows import FAMILY_BYTES, DecodedRows
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.ragged import Counts, Ragged
from statekeeper.statestore.format.types import children, spark_schema_json
from statekeeper.statestore.format.unsafe_row import encode_rows
from statekeeper.statestore.maintenance.copies.savepoints.record import Begun, File, Part, StoreRows
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.rocks import translated
from statekeeper.statestore.store.engine.scratch import work_folder

_MOST_DIGESTS = 2**128
_WITH_EXPIRY = "transformWithState"
"""The beginning of the names of operators whose values can expire."""
_EXPIRY = "ttlExpirationMs"
_YEAR_10000_MS = 253_402_300_800_000
"""A later end of a time to live is none: no date shows it."""
_PIECE_BYTES = 16 * 1024 * 1024
_PLACE = [
    pa.field("operator_id", pa.int32()),
    pa.field("operator", pa.string()),
    pa.field("store", pa.string()),
    pa.field("family", pa.string()),
    pa.field("partition", pa.int32()),
]
_ELEMENT = pa.field("element", pa.int32())
_EXPIRES = pa.field("expires_at", pa.timestamp("us", tz="UTC"))
_BYTES = [pa.field("key_bytes", pa.binary()), pa.field("value_bytes", pa.binary())]


@dataclass(frozen=True, kw_only=True)
class Table:
    """The table of one column family of an operator's store, or of a store without families.

    rows      the layout of the rows; None if they cannot be decoded
    problem   the reason why they cannot be decoded
    schema    of the table
    """

    operator: int
    operator_name: str
    store: str
    family: str | None
    rows: Family | None
    problem: str | None
    schema: pa.Schema

    @property
    def folder(self) -> str:
        """The folder of the table's files."""
        return savepoint_names.table(self.operator, self.store, self.family)

    @property
    def columns(self) -> dict[str, str]:
        """The columns with Spark's names: those of the key as key.<name>, those of the value as value.<name>."""
        if self.rows is None:
            return {}
        names = [f"{part}.{name}" for part, of in self._parts() for name in of.names]
        own = [field.name for field in list(self.schema)[len(_PLACE) + 2 :]]
        return dict(zip(own, names, strict=True))

    @property
    def has_expiry(self) -> bool:
        """Whether the values can expire."""
        if self.rows is None or not self.operator_name.startswith(_WITH_EXPIRY):
            return False
        # Spark's encoders append the column: it is the last one of several.
        schema = self.rows.value
        return len(schema) > 1 and (schema.names[-1], schema.types[-1]) == (_EXPIRY, pa.int64())

    def _parts(self) -> Iterable[tuple[str, pa.Schema]]:
        assert self.rows is not None
        return ("key", self.rows.key), ("value", self.rows.value)


def tables_of(operator: int, operator_name: str, store: str, layout: Layout) -> list[Table]:
    """The tables of the families in a layout; none if the layout cannot be read."""
    return [table_of(operator, operator_name, store, family, layout) for family in layout.families]


def table_of(operator: int, operator_name: str, store: str, family: str | None, layout: Layout) -> Table:
    """The table of a family, typed if its rows can be decoded and stored."""
    rows = layout.families.get(family)
    problem = None if layout.unreadable is None else str(layout.unreadable)
    columns = list(_BYTES)
    if rows is not None:
        unstorable = next((name for part in (rows.key, rows.value) for name in _without_columns(part)), None)
        if unstorable is None:
            columns = [*_columns("key", rows.key), *_columns("value", rows.value)]
        else:
            rows = None
            problem = (
                f"Parquet cannot store column {unstorable}, a struct without fields; the rows are written as bytes"
            )
    return Table(
        operator=operator,
        operator_name=operator_name,
        store=store,
        family=family,
        rows=rows,
        problem=problem,
        schema=pa.schema([*_PLACE, _ELEMENT, _EXPIRES, *columns]),
    )


def typed_rows(table: Table, partition: int, decoded: DecodedRows) -> Iterator[pa.RecordBatch]:
    """Convert decoded rows to rows of a typed table, one for each element of a list.

    Each element repeats the columns of its key, so that a long list of a large key is yielded in pieces of bounded size.
    """
    if not decoded.are_lists:
        yield _typed(table, partition, decoded.keys, decoded.values, pa.nulls(decoded.values.num_rows, _ELEMENT.type))
        return
    key_of_row = np.repeat(np.arange(len(decoded.counts)), decoded.counts)
    firsts = np.cumsum(decoded.counts) - decoded.counts
    for begin, end in _pieces(decoded, key_of_row):
        of_key = key_of_row[begin:end]
        element = _indexes(np.arange(begin, end) - firsts[of_key]).cast(pa.int32())
        values = decoded.values.slice(begin, end - begin)
        yield _typed(table, partition, decoded.keys.take(_indexes(of_key)), values, element)


def _pieces(decoded: DecodedRows, key_of_row: Counts) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of each piece: at least one row, at most about `_PIECE_BYTES` of keys and values."""
    keys, rows = decoded.keys, decoded.values.num_rows
    of_value = decoded.values.nbytes / max(1, rows)
    if rows * (keys.nbytes + of_value) <= _PIECE_BYTES:
        yield 0, rows
        return
    of_key = np.fromiter((keys.slice(i, 1).nbytes for i in range(keys.num_rows)), np.int64, keys.num_rows)
    until = np.cumsum(of_key[key_of_row] + of_value)
    begin = 0
    while begin < rows:
        before = until[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(until, before + _PIECE_BYTES, side="right")))
        yield begin, end
        begin = end


def _typed(table: Table, partition: int, keys: pa.Table, values: pa.Table, element: pa.Array) -> pa.RecordBatch:
    columns = [_whole(column) for of in (keys, values) for column in of.columns]
    fields = list(table.schema)[len(_PLACE) + 2 :]
    stored = [_retyped(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return _batch(table, partition, [element, _expiry(table, values), *stored], values.num_rows)


def typed_keys(table: Table, partition: int, keys: pa.Table) -> pa.RecordBatch:
    """Convert decoded keys to rows of a typed table whose values are null."""
    fields = list(table.schema)[len(_PLACE) :]
    of_keys = [
        _retyped(_whole(column), field.type)
        for column, field in zip(keys.columns, fields[2 : 2 + keys.num_columns], strict=True)
    ]
    nulls = [pa.nulls(keys.num_rows, field.type) for field in (*fields[:2], *fields[2 + keys.num_columns :])]
    return _batch(table, partition, [*nulls[:2], *of_keys, *nulls[2:]], keys.num_rows)


def state_rows(table: Table, rows: pa.RecordBatch) -> tuple[pa.Table, pa.Table]:
    """Convert rows of a typed table back to the columns of their keys and of their values."""
    assert table.rows is not None
    columns = rows.columns[len(_PLACE) + 2 :]
    keys, values = columns[: len(table.rows.key)], columns[len(table.rows.key) :]
    return _of_schema(keys, table.rows.key, rows.num_rows), _of_schema(values, table.rows.value, rows.num_rows)


def _of_schema(columns: list[pa.Array], schema: pa.Schema, count: int) -> pa.Table:
    retyped = [_retyped(column, field.type) for column, field in zip(columns, schema, strict=True)]
    # A batch from a struct keeps its number of rows if it has no columns.
    struct = pa.Array.from_buffers(pa.struct(list(schema)), count, [None], children=retyped)
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(struct)], schema)


def raw_rows(table: Table, partition: int, keys: list[bytes], values: list[bytes]) -> pa.RecordBatch:
    """Convert pairs to rows of a table of bytes."""
    nulls = [pa.nulls(len(keys), field.type) for field in (_ELEMENT, _EXPIRES)]
    return _batch(table, partition, [*nulls, pa.array(keys, pa.binary()), pa.array(values, pa.binary())], len(keys))


def digest_of(rows: pa.RecordBatch) -> int:
    """Compute the digest of rows: the sum of the hashes of all rows modulo 2**128, so that their order does not matter.

    The hash of a row is XXH3 (128 bits) of the UnsafeRow of its columns `element`, `key_…` and `value_…`. Its place is not
    part of it.
    """
    names = [name for name in rows.schema.names if name == "element" or name.startswith(("key_", "value_"))]
    encoded = Ragged.from_arrow(encode_rows(rows.select(names)))
    data, edges = memoryview(encoded.data.data), encoded.offsets.tolist()
    hashed = xxhash.xxh3_128_intdigest
    return sum(hashed(data[edges[i] : edges[i + 1]]) for i in range(len(encoded))) % _MOST_DIGESTS


def digest_sum(digests: Iterable[int]) -> int:
    """Compute the digest of the rows of all these digests."""
    return sum(digests) % _MOST_DIGESTS


# -- names and types ---------------------------------------------------------------------------------------------------


def _columns(part: str, schema: pa.Schema) -> list[pa.Field]:
    names = clean_names([f"{part}_{name}" for name in schema.names])
    return [pa.field(name, _stored_type(field.type)) for name, field in zip(names, schema, strict=True)]


def clean_names(names: Iterable[str]) -> list[str]:
    """Return the names without special characters, unique also without regard to case."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"\W", "_", name) or "_"
        unique, number = plain, 1
        while unique.lower() in found:
            number += 1
            unique = f"{plain}_{number}"
        found[unique.lower()] = unique
    return list(found.values())


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.bool_()
    if pa.types.is_struct(kind):
        fields = list(kind)
        names = clean_names([field.name for field in fields])
        return pa.struct([pa.field(name, _stored_type(field.type)) for name, field in zip(names, fields, strict=True)])
    if pa.types.is_map(kind):
        return pa.map_(_stored_type(kind.key_type), pa.field("value", _stored_type(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _stored_type(kind.value_type)))
    return kind


def _without_columns(fields: Iterable[pa.Field]) -> Iterable[str]:
    for field in fields:
        if pa.types.is_struct(field.type) and not field.type.num_fields:
            yield field.name
        yield from _without_columns(children(field.type))


# -- arrays ------------------------------------------------------------------------------------------------------------


def _retyped(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values as another type, which differs in names and in columns of type void."""
    if array.type == kind:
        return array
    if pa.types.is_null(array.type) or pa.types.is_null(kind):
        return pa.nulls(len(array), kind)
    array = array if not array.offset else array.take(_indexes(np.arange(len(array))))
    buffers = array.buffers()
    if pa.types.is_struct(kind):
        fields = [_retyped(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), buffers[:1], children=fields)
    if pa.types.is_map(kind):
        entries = [_retyped(array.keys, kind.key_type), _retyped(array.items, kind.item_type)]
        pairs = pa.Array.from_buffers(
            pa.struct([kind.key_field, kind.item_field]), len(entries[0]), [None], children=entries
        )
        return pa.Array.from_buffers(kind, len(array), buffers[:2], children=[pairs])
    return pa.Array.from_buffers(kind, len(array), buffers[:2], children=[_retyped(array.values, kind.value_type)])


def _expiry(table: Table, values: pa.Table) -> pa.Array:
    count = values.num_rows
    if not table.has_expiry:
        return pa.nulls(count, _EXPIRES.type)
    milliseconds = _whole(values.columns[-1])
    is_date = pc.and_(pc.greater_equal(milliseconds, 0), pc.less(milliseconds, _YEAR_10000_MS))
    known = pc.if_else(is_date, milliseconds, pa.nulls(count, pa.int64()))
    return known.cast(pa.timestamp("ms", tz="UTC")).cast(_EXPIRES.type)


def _batch(table: Table, partition: int, columns: list[pa.Array], count: int) -> pa.RecordBatch:
    place = (table.operator, table.operator_name, table.store, table.family, partition)
    constant = [
        pa.nulls(count, field.type) if value is None else pa.repeat(pa.scalar(value, field.type), count)
        for field, value in zip(_PLACE, place, strict=True)
    ]
    return pa.RecordBatch.from_arrays([*constant, *columns], schema=table.schema)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def _indexes(numbers: Counts) -> pa.Array:
    return pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers, np.int64))]
    )


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


_LOCAL_TIME = "timestampNtz"


def encode_commit(folder: str, schema: pa.Schema, files: Iterable[File], begun: Begun) -> bytes:
    """Encode the commit of a new table with these files. The same savepoint gives the same bytes."""
    has_local_times = any(map(_has_local_times, schema))
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if has_local_times:
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": [_LOCAL_TIME],
            "writerFeatures": [_LOCAL_TIME],
        }
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": begun.begun_at_ms, "operation": "WRITE", "operationParameters": {}}},
        {"protocol": protocol},
        {
            "metaData": {
                "id": str(uuid.uuid5(uuid.UUID(begun.run), folder)),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": spark_schema_json(schema),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": begun.begun_at_ms,
            }
        },
        *(
            {
                "add": {
                    "path": file.path.rpartition("/")[2],
                    "partitionValues": {},
                    "size": file.bytes,
                    "modificationTime": begun.begun_at_ms,
                    "dataChange": True,
                    "stats": json.dumps({"numRecords": file.rows}),
                }
            }
            for file in files
        ),
    ]
    return "".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions).encode()


def _has_local_times(field: pa.Field) -> bool:
    is_local = pa.types.is_timestamp(field.type) and field.type.tz is None
    return is_local or any(map(_has_local_times, children(field.type)))
