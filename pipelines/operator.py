"""A stateful operator as its user declares it: keys, order, state, output, and one vectorised function.

What belongs here: the declaration and the checks of it. How a batch runs is `driver`'s and `task`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

from statestore.binding import StoreSchema
from statestore.errors import SchemaMismatch
from statestore.format.names import DEFAULT_STORE
from statestore.format.state_rows import key_schema
from statestore.format.types import check_supported, spark_schema_json


class Frames(Enum):
    """What the update function is given and returns."""

    ARROW = "pyarrow.Table"
    PANDAS = "pandas.DataFrame"


@dataclass(frozen=True)
class Update:
    """What an update function returns.

    output    one table of the output schema's columns, any number of rows
    state     key columns and value columns of the keys whose state is new; a key at most once
    deleted   key columns of the keys whose state goes

    With several named stores, `state` and `deleted` are mappings from the store's name.
    """

    output: Any
    state: Any = None
    deleted: Any = None


UpdateFunction = Callable[[Any, Any], Update]
"""`update(rows, state) -> Update`. `rows`: all rows of this batch of a number of whole keys, sorted by key, then by the
order columns. `state`: key and value columns of those of these keys that have state (a mapping by name with several
stores). It must give the same for the same input: an attempt that runs again has to compute the same."""


@dataclass(frozen=True)
class Pieces:
    """How many rows the update function gets at once. A key is never cut, but for `split_hot_keys`.

    `split_hot_keys`: a key with more than `hot_key_rows` rows or `hot_key_bytes` in a batch may be given in pieces, in
    order, the state after one piece being the input of the next; without it such a key is refused as `HotKey`.
    """

    rows: int = 65_536
    size_bytes: int = 32 * 1024 * 1024
    hot_key_rows: int = 500_000
    hot_key_bytes: int = 64 * 1024 * 1024
    split_hot_keys: bool = False


@dataclass(frozen=True)
class StatefulOperator:
    """Keeps state by key over the batches of a streaming query.

    keys       names of the key columns; null is a key like any other
    order_by   names of the columns by which the rows of a key are sorted
    state      value columns of the state; or, by name, those of several stores
    output     columns of the output
    update     see `UpdateFunction`

    Raises `UnsupportedType` for a column that Spark's row encoding cannot hold, `SchemaMismatch` for names that clash.
    """

    keys: Sequence[str]
    order_by: Sequence[str]
    state: pa.Schema | Mapping[str, pa.Schema]
    output: pa.Schema
    update: UpdateFunction
    frames: Frames = Frames.ARROW
    pieces: Pieces = field(default_factory=Pieces)

    def __post_init__(self) -> None:
        if not self.keys:
            raise SchemaMismatch("an operator without key columns", hint="name at least one")
        for name, values in self.stores.items():
            check_supported(values)
            clash = set(self.keys) & set(values.names)
            if clash:
                raise SchemaMismatch(f"store {name!r}: {sorted(clash)} are keys and value columns at once")
        check_supported(self.output)

    @property
    def stores(self) -> Mapping[str, pa.Schema]:
        """Value columns by the name of the store, in the order of their operator ids."""
        return {DEFAULT_STORE: self.state} if self.has_one_store else dict(self.state)

    @property
    def has_one_store(self) -> bool:
        """Whether `state` is a single schema, so that the update function sees tables and not mappings of them."""
        return isinstance(self.state, pa.Schema)

    def key_columns(self, row_columns: pa.Schema) -> pa.Schema:
        """The key columns of the state, from the columns of the input.

        Null is a key like any other, and a source may turn nullable later: they always are nullable.
        """
        return pa.schema([row_columns.field(name).with_nullable(True) for name in self.keys])

    def store_schemas(self, row_columns: pa.Schema) -> tuple[StoreSchema, ...]:
        """The stores as a root is bound to them. Raises `UnsupportedType` for a key column."""
        key_columns = self.key_columns(row_columns)
        check_supported(key_columns, key=True)
        key_json = spark_schema_json(key_schema(key_columns))
        return tuple(StoreSchema(name, key_json, spark_schema_json(values)) for name, values in self.stores.items())
