"""The rows of one store or column family, encoded as the blueprint declares them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from statekeeper.statestore.base.errors import CorruptFile, SchemaMismatch
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.family_encode import encode_keys, encode_values
from statekeeper.statestore.format.family_rows import DecodedRows, decode_rows_of, family_id
from statekeeper.statestore.format.lossless import lossless
from statekeeper.statestore.format.ragged import Counts
from statekeeper.statestore.format.row_encodings import Rows
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.maintenance.rewrites.evolution import is_all


@dataclass(frozen=True)
class MappedColumn:
    """A value column of the blueprint. `source`: the place of the old column; None if the column is added and has the
    default. Columns are those of `value_columns`."""

    field: pa.Field
    source: int | None
    default: pa.Scalar | None = None


EXPIRY = "ttlExpirationMs"
"""The column of a state variable with a time to live; -1: the row expires only after its next update."""
_VALUE = "value"


def value_columns(layout: Family) -> pa.Schema:
    """Return the value columns of a layout. Those of a state variable with a time to live are in a struct: they are
    returned as columns before the time at which they expire."""
    return _plain_schema(layout.value) if is_timed(layout) else layout.value


def is_timed(layout: Family) -> bool:
    """Return whether these are the rows of a state variable of transformWithState with a time to live."""
    columns = layout.value
    return columns.names == [_VALUE, EXPIRY] and bool(pa.types.is_struct(columns.field(0).type))


def _plain_schema(columns: pa.Schema) -> pa.Schema:
    return pa.schema([*columns.field(0).type, columns.field(1)])


def _plain(values: pa.Table, layout: Family) -> pa.Table:
    if not is_timed(layout):
        return values
    struct = values.column(0).combine_chunks()
    children = struct.flatten() if isinstance(struct, pa.StructArray) else []
    return pa.Table.from_arrays([*children, values.column(1)], schema=_plain_schema(values.schema))


def _timed(values: pa.Table, layout: Family) -> pa.Table:
    if not is_timed(layout):
        return values
    arrays = [column.combine_chunks() for column in values.columns]
    struct = pa.StructArray.from_arrays(arrays[:-1], fields=list(layout.value.field(0).type))
    return pa.Table.from_arrays([struct, arrays[-1]], schema=layout.value)


@dataclass(frozen=True, kw_only=True)
class MigratedRows:
    """The conversion of the rows of one store or column family.

    before, after            the layouts; their keys have the same columns
    conf_before, conf_after  how the rows are encoded
    columns                  the new value columns, in their order
    skip                     the bytes before each key: the id of the family, which stays
    """

    before: Family
    after: Family
    conf_before: StateConf
    conf_after: StateConf
    columns: tuple[MappedColumn, ...]
    skip: int = 0

    @property
    def keeps_keys(self) -> bool:
        """Whether keys keep their bytes."""
        return same_keys(self.before, self.after)

    def converted(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Encode present rows as the blueprint declares them. Raises `CorruptFile` for a row that does not fit the present
        schema, `SchemaMismatch` for a value that does not fit the new one."""
        rows = decode_rows_of(keys, values, self.before, self.conf_before, skip=self.skip)
        new_keys = keys if self.keeps_keys else encode_keys(rows.keys, self.after, self._family_of(keys))
        table = _timed(self._after(_plain(rows.values, self.before)), self.after)
        return new_keys, encode_values(new_keys, table, _counts(rows), self.after, self.conf_after)

    def of_source(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Return present rows with the columns that remain. The digests of these must be equal before and after."""
        rows = decode_rows_of(keys, values, self.before, self.conf_before, skip=self.skip)
        old = _plain(rows.values, self.before)
        columns = [(old.column(one.source), one) for one in self.columns if one.source is not None]
        return self._compared(keys, rows, columns)

    def of_target(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Return new rows as `of_source`. Raises `CorruptFile` for a value that is no default."""
        rows = decode_rows_of(keys, values, self.after, self.conf_after, skip=self.skip)
        columns, new = [], _plain(rows.values, self.after)
        for place, one in enumerate(self.columns):
            found = new.column(place)
            if one.source is not None:
                columns.append((found, one))
            elif not is_all(found, one.default):
                raise CorruptFile(
                    f"the added column {one.field.name} has a value other than its default; nothing was published",
                    hint="reverse the migration with --abort, and report this error",
                )
        return self._compared(keys, rows, columns)

    def _family_of(self, keys: Sequence[bytes]) -> int | None:
        """The id of the family, which stays; None for a store without families."""
        return family_id(keys[0]) if self.skip and keys else None

    def _after(self, values: pa.Table) -> pa.Table:
        arrays = []
        for one in self.columns:
            if one.source is None:
                arrays.append(pa.chunked_array([pa.repeat(_or_null(one), values.num_rows)]))
                continue
            try:
                arrays.append(adapted(values.column(one.source), one.field.type))
            except (pa.ArrowException, ValueError) as error:
                name = values.schema.names[one.source]
                raise SchemaMismatch(
                    f"a value of column {name} does not fit the type {one.field.type}: {error}; nothing was published",
                    hint="keep the type of this column in the changed query",
                ) from error
        # Spark's own rows may have nulls in columns that the schema declares without nulls.
        fields = [one.field.with_nullable(True) for one in self.columns]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _compared(
        self, keys: Sequence[bytes], rows: DecodedRows, columns: Sequence[tuple[pa.ChunkedArray, MappedColumn]]
    ) -> Rows:
        if not self.keeps_keys:
            keys = encode_keys(rows.keys, Family(rows.keys.schema, rows.values.schema), self._family_of(keys))
        arrays, fields = [], []
        for number, (column, one) in enumerate(columns):
            assert one.source is not None
            kind = _common(value_columns(self.before).field(one.source).type, one.field.type)
            arrays.append(adapted(column, kind))
            fields.append(pa.field(str(number), kind))
        if not arrays:
            return keys, [b""] * len(keys)
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        return keys, encode_values(keys, table, _counts(rows), Family(rows.keys.schema, table.schema), OURS)


def same_keys(one: Family, other: Family) -> bool:
    """Return whether equal keys have equal bytes in two layouts with the same key columns."""
    are_rows = one.avro is None and other.avro is None
    return (one.head, one.encoder, one.front) == (other.head, other.encoder, other.front) and are_rows


def fits(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether values of a struct can get the fields of another one: those of both have one type, and the others of
    the new one may be null."""
    if not (pa.types.is_struct(old) and pa.types.is_struct(new)):
        return False
    names = [field.name for field in old]
    if len(set(names)) < len(names) or not {field.name for field in new} & set(names):
        return False
    return all(
        field.nullable if field.name not in names else _same_or_fits(old.field(field.name).type, field.type)
        for field in new
    )


def lost_fields(old: pa.DataType, new: pa.DataType) -> list[str]:
    """Return the fields of a struct that another one lacks, at any depth."""
    if not (pa.types.is_struct(old) and pa.types.is_struct(new)):
        return []
    there, found = {field.name: field.type for field in new}, []
    for field in old:
        if field.name not in there:
            found.append(field.name)
        else:
            found += [f"{field.name}.{name}" for name in lost_fields(field.type, there[field.name])]
    return found


def _same_or_fits(old: pa.DataType, new: pa.DataType) -> bool:
    return bool(old == new) or fits(old, new)


def adapted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast a column without loss. The fields of a struct are matched by name; those that it lacks are null. Raises `Lossy`,
    or Arrow's exceptions, for a value that would change."""
    if column.type == kind:
        return column
    if not (pa.types.is_struct(column.type) and pa.types.is_struct(kind)):
        return lossless(column, kind)
    return pa.chunked_array([_adapted(chunk, kind) for chunk in column.chunks], kind)


def _adapted(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    children = []
    for field in kind:
        place = array.type.get_field_index(field.name)
        if place < 0:
            children.append(pa.nulls(len(array), field.type))
        else:
            child = adapted(pa.chunked_array([array.field(place)]), field.type)
            children.append(child.combine_chunks() if child.num_chunks else pa.nulls(0, field.type))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _common(old: pa.DataType, new: pa.DataType) -> pa.DataType:
    """Return the type of what both types have."""
    if not (pa.types.is_struct(old) and pa.types.is_struct(new)):
        return old
    there = {field.name: field.type for field in new}
    return pa.struct([field.with_type(_common(field.type, there[field.name])) for field in old if field.name in there])


def _counts(rows: DecodedRows) -> Counts | None:
    return rows.counts if rows.are_lists else None


def _or_null(column: MappedColumn) -> pa.Scalar:
    return pa.scalar(None, column.field.type) if column.default is None else column.default
