"""The stores of an operator as they are in a root: the declared ones, and those of timers and expiries.

<store>             key columns -> the declared columns; with a TTL `expires_at` before them; with a `timer_key` its time
                    before the key columns
timers              key columns -> fires_at
timers_due          due_at, key columns -> batch: the index of `timers` by time, see `due_index`
<store>_expiries    due_at, key columns -> batch: the index of `expires_at`
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from statekeeper.pipelines.operator.declaration import StatefulOperator
from statekeeper.pipelines.operator.times import TIMESTAMP
from statekeeper.statestore.base.errors import SchemaMismatch
from statekeeper.statestore.format import due_keys, prefix_columns, state_rows
from statekeeper.statestore.format.types import check_supported, spark_schema_json
from statekeeper.statestore.root.columns import StoreSchema
from statekeeper.statestore.root.times import EXPIRES_AT, FIRES_AT, TIMERS, TIMERS_DUE, expiries

TIMER_VALUES = pa.schema([pa.field(FIRES_AT, TIMESTAMP, nullable=False)])


@dataclass(frozen=True)
class StoredStore:
    """A store of a root. `values`: its value columns. `is_by_time`: its keys start with a time, see `due_keys`."""

    name: str
    values: pa.Schema
    is_by_time: bool = False


def stored(operator: StatefulOperator) -> tuple[StoredStore, ...]:
    """Return the stores in the order of the operator ids. The declared ones are first."""
    return tuple(_stored(operator))


def _stored(operator: StatefulOperator) -> Iterator[StoredStore]:
    for name, values in operator.stores.items():
        yield StoredStore(name, stored_values(operator, name, values), is_by_time=operator.timer_key is not None)
    if operator.timers is not None and operator.timer_key is None:
        yield StoredStore(TIMERS, TIMER_VALUES)
        yield StoredStore(TIMERS_DUE, due_keys.VALUES, is_by_time=True)
    for name in operator.ttls:
        yield StoredStore(expiries(name), due_keys.VALUES, is_by_time=True)


def stored_values(operator: StatefulOperator, store: str, values: pa.Schema) -> pa.Schema:
    """Return the value columns of a declared store as they are stored. The expiry is first: the declaration can grow."""
    return pa.schema([pa.field(EXPIRES_AT, TIMESTAMP), *values]) if store in operator.ttls else values


def require_free_stores(operator: StatefulOperator) -> None:
    """Raise `SchemaMismatch` for a declared store or column with the name of one that the operator adds."""
    names = [store.name for store in stored(operator)]
    added = set(names[len(operator.stores) :])
    if clash := sorted(added & set(operator.stores)):
        raise SchemaMismatch(f"the stores {clash} have names that the operator uses itself", hint="rename them")
    for name in operator.ttls:
        if EXPIRES_AT in operator.stores[name].names:
            raise SchemaMismatch(
                f"store {name!r} has a column {EXPIRES_AT!r}, a name that the operator uses for the TTL",
                hint="rename the column",
            )


def store_schemas(operator: StatefulOperator, row_columns: pa.Schema) -> tuple[StoreSchema, ...]:
    """Return the schemas to which a root is bound. Raises `UnsupportedType` for a key column."""
    key_columns = operator.key_columns(row_columns)
    check_supported(key_columns, key=True)
    of_state = spark_schema_json(state_rows.key_schema(key_columns)), prefix_columns.OF_STATE
    by_time = spark_schema_json(due_keys.due_key_schema(key_columns)), prefix_columns.OF_DUE_KEYS
    schemas = []
    for store in stored(operator):
        key_json, prefix = by_time if store.is_by_time else of_state
        schemas.append(StoreSchema(store.name, key_json, spark_schema_json(store.values), prefix))
    return tuple(schemas)
