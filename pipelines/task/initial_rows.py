"""Work of a task of batch 0: writes the initial rows into the stores of their partitions."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.operator.declaration import StatefulOperator
from statekeeper.pipelines.operator.times import TimeKind
from statekeeper.pipelines.task.group_stores import PlacedKeys
from statekeeper.pipelines.task.keyed_state import KeyedState
from statekeeper.pipelines.task.results import null_in
from statekeeper.statestore.base.errors import SchemaMismatch, WrongInitial
from statekeeper.statestore.format.state_rows import encode_keys, encode_values
from statekeeper.statestore.store.engine.rows_digest import RowsDigest

_MOST_EXAMPLES = 3
"""Keys that an error about keys with several rows names."""

INPUT = -1
"""The kind of an input row. The kind of an initial row is the number of its store."""


def require_times(operator: StatefulOperator, stores: Container[str]) -> None:
    """Raise `SchemaMismatch` for initial rows without the times that their state needs: of a timer, or of a TTL that counts
    from an event time."""
    if not operator.accepts_initial:
        raise SchemaMismatch(
            "the operator accepts no initial rows: only a timer ends its windows or sessions, and initial rows have no "
            "timers; the query was not started",
            hint="start without `initial`, and let the stream contain the rows of the windows or sessions that are open",
        )
    for name, ttl in operator.ttls.items():
        if name in stores and ttl.kind is TimeKind.EVENT and ttl.column is None:
            raise SchemaMismatch(
                f"initial has rows of store {name!r}, whose TTL counts from the event time of the last write; these rows "
                "have no event time, and the query was not started",
                hint="let the TTL count from a column of the state: Ttl(..., column=...)",
            )


@dataclass(frozen=True)
class InitialColumns:
    """Names of the stores with initial rows, in the order of their value columns; sent to the workers."""

    stores: tuple[str, ...]


class InitialRows:
    """Splits routed rows by kind, and encodes the initial ones. `digests`: partition -> its initial rows so far."""

    def __init__(self, operator: StatefulOperator, row_columns: pa.Schema, columns: InitialColumns) -> None:
        self.digests: dict[int, RowsDigest] = {}
        self._operator = operator
        self._row_columns = row_columns
        self._columns = columns
        self._last: dict[str, bytes] = {}
        self._twice: dict[str, list[str]] = {}

    def by_kind(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        """Group rows by kind; consume a group before the next. Input rows have only their own columns and the key group."""
        for kind, group in itertools.groupby(self._slices(batches), key=operator.itemgetter(0)):
            yield kind, (rows for _, rows in group)

    def _slices(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        own = len(self._row_columns) + 1
        for batch in batches:
            kinds = batch.column(own).fill_null(INPUT).to_numpy()
            cuts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
            for start, end in itertools.pairwise(cuts):
                if end > start:
                    rows, kind = batch.slice(start, end - start), int(kinds[start])
                    yield kind, rows.select(range(own)) if kind == INPUT else rows

    def put(self, kind: int, rows: pa.RecordBatch, partition: int, state: KeyedState) -> None:
        """Write the rows of one kind and partition, sorted by key, into their store, unless a key has several rows.
        Raises `WrongInitial` for nulls."""
        name = self._columns.stores[kind]
        values_at = len(self._row_columns) + 2
        values_at += sum(len(self._operator.stores[before]) for before in self._columns.stores[:kind])
        keys = self._operator.key_columns(self._row_columns)
        places = [self._row_columns.get_field_index(key) for key in self._operator.keys]
        key_rows = _cast([rows.column(place) for place in places], keys)
        schema = self._operator.stores[name]
        given = [rows.column(values_at + place) for place in range(len(schema))]
        for key in keys.names:
            if key_rows.column(key).null_count:
                raise WrongInitial(
                    f"initial rows of store {name!r}: key column {key!r} contains nulls; the batch was not committed",
                    hint="remove the rows with a null key from `initial`, and start the job again",
                )
        for column, field in zip(given, schema, strict=True):
            place = null_in(pa.chunked_array([column]), field, field.name)
            if place is not None:
                raise WrongInitial(
                    f"initial rows of store {name!r}: column {place!r} contains nulls, but is declared without nulls; the "
                    "batch was not committed",
                    hint="correct these rows of `initial`, and start the job again",
                )
        groups = rows.column(len(self._row_columns)).to_numpy()
        encoded = encode_keys(groups, key_rows)
        self._look_for_duplicates(name, encoded, key_rows)
        if self._twice:
            return
        value_rows = _cast(given, schema)
        state.put_new(name, PlacedKeys.of_partition(encoded, partition), value_rows)
        # The digest is of the given rows: the time of their expiry is not part of them.
        values = encode_values(value_rows)
        prefix = bytes([kind])
        pairs = zip(encoded.to_pylist(), values.to_pylist(), strict=True)
        digest = self.digests.setdefault(partition, RowsDigest())
        digest.add((prefix + key, value) for key, value in pairs)

    def require_unique(self) -> None:
        """Raise `WrongInitial` if a key had several rows so far."""
        for name, examples in self._twice.items():
            raise WrongInitial(
                f"initial rows of store {name!r} contain two rows of one key: {', '.join(examples)}; the batch was not "
                "committed",
                hint="give each key once in `initial`, and start the job again",
            )

    @property
    def has_duplicates(self) -> bool:
        """Whether a key had several rows. From then on, `put` writes nothing and looks for more examples."""
        return bool(self._twice)

    @property
    def has_enough_examples(self) -> bool:
        """Whether the error can name all the keys that it names."""
        return any(len(examples) == _MOST_EXAMPLES for examples in self._twice.values())

    def _look_for_duplicates(self, name: str, keys: pa.LargeBinaryArray, key_rows: pa.Table) -> None:
        """Equal keys are adjacent, because the rows are sorted by key."""
        begins_again = pa.array([self._last.get(name) == keys[0].as_py()])
        same = pa.concat_arrays([begins_again, pc.equal(keys[1:], keys[:-1])])
        self._last[name] = keys[-1].as_py()
        for key in keys.filter(same).unique():
            shown = str(_shown(key_rows, keys.index(key).as_py()))
            examples = self._twice.setdefault(name, [])
            if shown not in examples and len(examples) < _MOST_EXAMPLES:
                examples.append(shown)


def _cast(columns: list[pa.Array], schema: pa.Schema) -> pa.Table:
    # Spark passes timestamps in the session's time zone; the state holds UTC.
    cast = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(cast, schema=schema)


def _shown(rows: pa.Table, row: int) -> dict[str, Any]:
    shown: dict[str, Any] = rows.slice(row, 1).to_pylist()[0]
    return shown
