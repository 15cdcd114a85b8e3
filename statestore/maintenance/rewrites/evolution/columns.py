"""The new value columns of a store: each is a present column or has a default. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.base.errors import CorruptFile, SchemaMismatch, StatekeeperError
from statekeeper.statestore.checkpoint.rewrite_journal import SchemaChange
from statekeeper.statestore.format import prefix_columns
from statekeeper.statestore.format.lossless import lossless
from statekeeper.statestore.format.row_encodings import Rows
from statekeeper.statestore.format.state_rows import decode_values, encode_values
from statekeeper.statestore.format.types import arrow_schema, spark_schema_json
from statekeeper.statestore.format.widening import is_wider, wider_types
from statekeeper.statestore.maintenance.rewrites.given_values import typed_texts
from statekeeper.statestore.root.columns import StoreSchema
from statekeeper.statestore.root.new_columns import NewColumn, NewColumns
from statekeeper.statestore.root.times import EXPIRES_AT, TIMERS_DUE, index_of, is_index


@dataclass(frozen=True, kw_only=True)
class AddedColumn:
    """A new column at the end of the value. `type`: Spark's name or JSON; `default`: the value of all present rows."""

    type: Any
    nullable: bool = True
    default: Any = None


@dataclass(frozen=True, kw_only=True)
class Widened:
    """A column whose new type holds all its values. `type`: None keeps it; `nullable`: None keeps the present setting."""

    type: Any = None
    nullable: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ColumnChanges:
    """The changes of the value columns of one store. Only `add` and the new names of `rename` are new names."""

    add: Mapping[str, AddedColumn] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    widen: Mapping[str, Widened] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether no column changes."""
        return not (self.add or self.drop or self.widen or self.rename)


@dataclass(frozen=True, kw_only=True)
class Evolve:
    """The goal of other value columns.

    stores   the changes; the keys are the names of the stores
    options  the options of the command that state this goal
    """

    stores: Mapping[str, ColumnChanges]
    options: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A digest of the changes, by which a later run recognizes them."""
        changes = {name: asdict(one) for name, one in self.stores.items()}
        # The order of added columns is that of the new schema, so it counts.
        return hashlib.sha256(json.dumps(changes, default=repr).encode()).hexdigest()


_NOTHING = "nothing was changed"
_SQL_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long", "real": "float"}
"""Spark's names of types in SQL that differ from those in its JSON."""


def schema_change(columns: NewColumns) -> SchemaChange:
    """Return both schemas in Spark's JSON."""
    return SchemaChange(spark_schema_json(columns.before), spark_schema_json(columns.after))


def evolution_of(store: StoreSchema, changes: ColumnChanges) -> NewColumns:
    """Apply the changes to the value columns of a store.

    Raises `SchemaMismatch` for an unknown column, a key column, two columns of one name, a type that is not wider, and a
    default of another type; `UnsupportedType` for a type that Spark's rows do not support.
    """
    before = arrow_schema(store.value_json)
    keys = arrow_schema(store.key_json).names[prefix_columns.OF_STATE :]
    _require_known(store.name, before, keys, changes)
    columns = [
        NewColumn(_kept(store.name, field, changes), place)
        for place, field in enumerate(before)
        if field.name not in changes.drop
    ]
    for name, added in changes.add.items():
        field = pa.field(name, _type(added.type, f"stores.{store.name}.add.{name}"), added.nullable)
        columns.append(NewColumn(field, None, _default(store.name, field, added)))
    _require_unique(store.name, [column.field.name for column in columns], keys)
    evolution = NewColumns(before, tuple(columns))
    if evolution.after == before:
        raise _wrong(store.name, "the changes give the present columns", "remove this store from the file")
    return evolution


def _require_known(store: str, before: pa.Schema, keys: list[str], changes: ColumnChanges) -> None:
    named: Mapping[str, tuple[str, ...]] = {
        "drop": changes.drop,
        "widen": tuple(changes.widen),
        "rename": tuple(changes.rename),
    }
    for action, names in named.items():
        for name in names:
            if name in keys:
                raise _wrong(
                    store,
                    f"{action} names the key column {name}, but key columns cannot change: each row is in the partition of "
                    "its key",
                    "for other keys, start a new root; to keep the state, pass it to the new job as `initial`",
                )
            if name not in before.names:
                known = ", ".join(before.names) or "none"
                raise _wrong(
                    store,
                    f"{action} names the unknown column {name}; the value columns are: {known}",
                    "correct the name",
                )
    for name in changes.drop:
        if name in changes.widen or name in changes.rename:
            raise _wrong(store, f"column {name} is dropped and also changed", "remove one of the two entries")


def require_untimed(stores: Sequence[StoreSchema], name: str, changes: ColumnChanges) -> None:
    """Raise `SchemaMismatch` for a change of a time that the job writes itself: a timer, an expiry, or an index of them."""
    index = index_of(stores, name)
    named = {*changes.drop, *changes.widen, *changes.rename}
    if index is not None and is_index(index) and (index in (name, TIMERS_DUE) or EXPIRES_AT in named):
        raise _wrong(
            name,
            "its times belong to the timers or the TTL of the operator",
            "change only columns that the operator declares",
        )


def _kept(store: str, field: pa.Field, changes: ColumnChanges) -> pa.Field:
    widened = changes.widen.get(field.name, Widened(nullable=field.nullable))
    kind, nullable = field.type, field.nullable if widened.nullable is None else widened.nullable
    if widened.type is not None:
        kind = _type(widened.type, f"stores.{store}.widen.{field.name}")
        if not is_wider(field.type, kind):
            raise _wrong(
                store,
                f"column {field.name} has the type {_name(field.type)}, which {_name(kind)} does not widen without loss",
                f"widen it to one of: {wider_types(field.type)}",
            )
    if field.nullable and not nullable:
        raise _wrong(
            store, f"column {field.name} may contain nulls, so it cannot become not null", "omit nullable = false"
        )
    return pa.field(changes.rename.get(field.name, field.name), kind, nullable)


def _require_unique(store: str, names: list[str], keys: list[str]) -> None:
    if not names:
        raise _wrong(store, "no value column remains", "keep or add a column")
    for name in names:
        if name in keys:
            raise _wrong(store, f"a value column would have the name of the key column {name}", "choose another name")
        if names.count(name) > 1:
            raise _wrong(store, f"two value columns would have the name {name}", "choose another name")


def _type(given: Any, where: str) -> pa.DataType:
    """Parse Spark's name of a type or its JSON."""
    name = _SQL_NAMES.get(given.lower(), given.lower()) if isinstance(given, str) else given
    column: Any = {"name": where, "type": name, "nullable": True, "metadata": {}}
    try:
        return arrow_schema(json.dumps({"type": "struct", "fields": [column]})).field(0).type
    except (StatekeeperError, TypeError, ValueError) as error:
        raise SchemaMismatch(
            f"{where}: {given!r} is not a type that state can have; {_NOTHING}",
            hint="use Spark's name of a type, for example long, double, string, timestamp or decimal(10,2)",
        ) from error


def _name(kind: pa.DataType) -> str:
    column = json.loads(spark_schema_json(pa.schema([pa.field("", kind)])))["fields"][0]["type"]
    return column if isinstance(column, str) else json.dumps(column)


def _default(store: str, field: pa.Field, added: AddedColumn) -> pa.Scalar:
    """Return the default as a value of the column's type."""
    value = added.default
    if value is None:
        if not field.nullable:
            raise _wrong(
                store,
                f"the added column {field.name} is not null, but has no default",
                "add a default, or nullable = true",
            )
        return pa.scalar(None, field.type)
    if not any(_fits(value, field.type)):
        raise _wrong(
            store,
            f"the default {value!r} of the added column {field.name} is not a value of the type {_name(field.type)}",
            "correct the default; a column of a nested type can only have the default null",
        )
    try:
        if isinstance(value, str) and not pa.types.is_string(field.type):
            return typed_texts({field.name: value}, pa.schema([field]), f"store {store}").column(0)[0]
        scalar = pa.scalar(str(value) if pa.types.is_decimal(field.type) else value)
        return scalar.cast(field.type)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise _wrong(
            store,
            f"the default {value!r} of the added column {field.name} does not fit the type {_name(field.type)}: {error}",
            "correct the default",
        ) from error


def _fits(value: Any, kind: pa.DataType) -> Iterator[bool]:
    """Yield whether the value, as TOML or JSON has it, can be one of the type; a text stands for a type that they lack."""
    is_a = pa.types
    is_number = isinstance(value, int) and not isinstance(value, bool)
    yield isinstance(value, bool) and is_a.is_boolean(kind)
    yield is_number and bool(is_a.is_integer(kind) or is_a.is_floating(kind) or is_a.is_decimal(kind))
    yield (
        isinstance(value, float) and bool(is_a.is_floating(kind)) and math.isfinite(pa.scalar(value).cast(kind).as_py())
    )
    yield isinstance(value, datetime) and is_a.is_timestamp(kind) and (value.tzinfo is None) == (kind.tz is None)
    yield isinstance(value, date) and not isinstance(value, datetime) and bool(is_a.is_date(kind))
    has_texts = [is_a.is_string, is_a.is_binary, is_a.is_decimal, is_a.is_date, is_a.is_timestamp]
    yield isinstance(value, str) and any(test(kind) for test in has_texts)


def _wrong(store: str, what: str, hint: str) -> SchemaMismatch:
    return SchemaMismatch(f"store {store}: {what}; {_NOTHING}", hint=hint)


@dataclass(frozen=True)
class EvolvedRows:
    """Encodes the values of one store with its new columns. Keys keep their bytes."""

    columns: NewColumns

    def table(self, values: pa.Table) -> pa.Table:
        """Return decoded values with the new columns."""
        return self.columns.table(values)

    def converted(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Encode present rows with the new columns. Raises `CorruptFile` for a row that does not fit the present schema."""
        return keys, _encoded(self.table(_decoded(values, self.columns.before)))

    def of_source(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Return present rows with the columns that remain. The digests of these must be equal before and after."""
        return keys, _encoded(_decoded(values, self.columns.before).select([place for _, place in self._kept]))

    def of_target(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Return new rows as `of_source`, with the present types. Raises `CorruptFile` for a value that is no default."""
        table, before = _decoded(values, self.columns.after), self.columns.before
        for place, column in enumerate(self.columns.columns):
            if column.source is None and not is_all(table.column(place), column.default):
                raise CorruptFile(
                    f"the added column {column.field.name} has a value other than its default; nothing was published",
                    hint="reverse the evolution with --abort, and report this error",
                )
        kept = self._kept
        arrays = [lossless(table.column(place), before.field(source).type) for place, source in kept]
        fields = [before.field(source) for _, source in kept]
        return keys, _encoded(pa.Table.from_arrays(arrays, schema=pa.schema(fields)))

    @property
    def _kept(self) -> list[tuple[int, int]]:
        """The places of the remaining columns, afterwards and now."""
        columns = enumerate(self.columns.columns)
        return [(place, column.source) for place, column in columns if column.source is not None]


def is_all(found: pa.ChunkedArray, default: pa.Scalar | None) -> bool:
    """Return whether each value of an added column is its default."""
    if default is None or not default.is_valid:
        return bool(found.null_count == len(found))
    return bool(pc.all(pc.equal(found, default), min_count=0).as_py()) and not found.null_count


def _decoded(values: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    return decode_values(pa.array(values, pa.large_binary()), schema)


def _encoded(columns: pa.Table) -> list[bytes]:
    """Encode rows. Without columns, there is nothing to encode, and nothing to compare."""
    return [bytes(row) for row in encode_values(columns).to_pylist()]
