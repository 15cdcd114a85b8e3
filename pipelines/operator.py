"""Declaration of a stateful operator: keys, order, state, output, and one vectorized function.

`driver` and `task` run its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

from statestore.binding import StoreSchema
from statestore.errors import SchemaMismatch
from statestore.format.names import DEFAULT_STORE
from statestore.format.state_rows import key_schema
from statestore.format.types import check_supported, spark_schema_json


class Frames(Enum):
    """Type of the tables that the update function receives and returns."""

    ARROW = "pyarrow.Table"
    PANDAS = "pandas.DataFrame"


@dataclass(frozen=True)
class Update:
    """Result of an update function.

    output    one table with the columns of the output schema; any number of rows
    state     key columns and value columns of the keys with new state; each key at most once
    deleted   key columns of the keys whose state is deleted

    With several named stores, `state` and `deleted` are mappings: name of the store -> table.
    """

    output: Any
    state: Any = None
    deleted: Any = None


UpdateFunction = Callable[[Any, Any], Update]
"""`update(rows, state) -> Update`. `rows`: all rows of the batch for some whole keys, sorted by key, then by the order
columns. `state`: key and value columns of these keys, without keys that have no state (a mapping by name with several
stores). The function must be deterministic: another attempt of the batch must compute the same result."""


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Limits the rows of one call of the update function. A call holds whole keys, unless `split_hot_keys` is set.

    A key is hot if a batch has more than `hot_key_rows` rows or `hot_key_bytes` of it. `split_hot_keys` passes its rows in
    several calls, in order; each call gets the state of the previous one. Otherwise the batch fails with `HotKey`.
    """

    rows: int = 65_536
    size_bytes: int = 32 * 1024 * 1024
    hot_key_rows: int = 500_000
    hot_key_bytes: int = 64 * 1024 * 1024
    split_hot_keys: bool = False


@dataclass(frozen=True)
class StatefulOperator:
    """Keeps state by key over the batches of a streaming query.

    keys       names of the key columns; null is a valid key
    order_by   names of the columns that sort the rows of a key
    state      value columns of the state; for several stores a mapping: name -> value columns
    output     columns of the output
    update     see `UpdateFunction`

    Raises `UnsupportedType` for a column that Spark's row encoding cannot hold, `SchemaMismatch` for duplicate names.
    """

    keys: Sequence[str]
    order_by: Sequence[str]
    _: KW_ONLY
    state: pa.Schema | Mapping[str, pa.Schema]
    output: pa.Schema
    update: UpdateFunction
    frames: Frames = Frames.ARROW
    pieces: Pieces = field(default_factory=Pieces)

    def __post_init__(self) -> None:
        if not self.keys:
            raise SchemaMismatch("the operator has no key columns", hint="name at least one key column")
        for name, values in self.stores.items():
            check_supported(values)
            clash = set(self.keys) & set(values.names)
            if clash:
                raise SchemaMismatch(f"store {name!r}: {sorted(clash)} are both key and value columns")
        check_supported(self.output)

    @property
    def stores(self) -> Mapping[str, pa.Schema]:
        """Return name of the store -> value columns, in the order of the operator ids."""
        return {DEFAULT_STORE: self.state} if self.has_one_store else dict(self.state)

    @property
    def has_one_store(self) -> bool:
        """Return whether `state` is a single schema, so that the update function gets tables instead of mappings."""
        return isinstance(self.state, pa.Schema)

    def key_columns(self, row_columns: pa.Schema) -> pa.Schema:
        """Return the key columns of the state. They are always nullable, because the source may become nullable later."""
        return pa.schema([row_columns.field(name).with_nullable(True) for name in self.keys])

    def store_schemas(self, row_columns: pa.Schema) -> tuple[StoreSchema, ...]:
        """Return the schemas to which a root is bound. Raises `UnsupportedType` for a key column."""
        key_columns = self.key_columns(row_columns)
        check_supported(key_columns, key=True)
        key_json = spark_schema_json(key_schema(key_columns))
        return tuple(StoreSchema(name, key_json, spark_schema_json(values)) for name, values in self.stores.items())
