"""Adjacent partitions of a task: their rows and state go to the update function together.

A call of Arrow or of the update function takes about as long for ten rows as for a thousand. So the rows of several
partitions are encoded, passed and decoded at once. Only reads and writes of the stores are by partition.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.frames import to_pandas
from pipelines.initial_rows import INPUT, InitialRows
from pipelines.operator import Frames, StatefulOperator, Update
from pipelines.partitioning import GROUP_COLUMN
from pipelines.results import as_table
from pipelines.whole_keys import Piece, whole_keys
from statestore.errors import WrongResult
from statestore.format.state_rows import bare_keys, decode_values, encode_bare_keys, encode_keys, encode_values
from statestore.store import StateStore

Stores = Mapping[str, StateStore]
"""The stores of a partition, by name."""


@dataclass(frozen=True)
class _Span:
    """Rows `start` to `end`, exclusive, of one partition."""

    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


class PartitionGroup:
    """Processes the rows of adjacent partitions, whose stores are open.

    stores         partition -> its stores; all partitions of the group, in order
    partitions_of  converts key groups to partitions; shape (rows,) to (rows,)
    initial        initial rows among the rows of batch 0; None without
    """

    def __init__(
        self,
        operator: StatefulOperator,
        row_columns: pa.Schema,
        stores: Mapping[int, Stores],
        partitions_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]],
        *,
        initial: InitialRows | None = None,
    ) -> None:
        self.rows_in = dict.fromkeys(stores, 0)
        self._operator = operator
        self._row_columns = pa.schema([*row_columns, pa.field(GROUP_COLUMN, pa.int32())])
        self._key_columns = operator.key_columns(row_columns)
        self._stores = stores
        self._partitions_of = partitions_of
        self._initial = initial
        self._uncommitted = list(stores)

    def process_all(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.Table]:
        """Process the rows, sorted by key group, and return the output piece by piece.

        Commit the stores of a partition when its last rows are processed. So the changes of one piece are in memory, and
        not those of the group.
        """
        if self._initial is None:
            yield from self._process_input(batches)
        else:
            for kind, rows in self._initial.by_kind(batches):
                if kind == INPUT:
                    yield from self._process_input(rows)
                else:
                    self._put_initial(kind, rows)
        self._commit_until(None)

    def _process_input(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.Table]:
        tables = (self._named(batch) for batch in batches)
        for piece in whole_keys(
            tables, self._encode_keys, self._operator.pieces, key_columns=list(self._operator.keys)
        ):
            spans = self._spans(piece.rows.column(GROUP_COLUMN))
            self._commit_until(spans[0].partition)
            for span in spans:
                self.rows_in[span.partition] += span.rows
            yield self._process(piece)

    def _put_initial(self, kind: int, batches: Iterator[pa.RecordBatch]) -> None:
        assert self._initial is not None
        for rows in batches:
            for span in self._spans(rows.column(len(self._row_columns) - 1)):
                self._commit_until(span.partition)
                part = rows.slice(span.start, span.rows)
                self._initial.put(kind, part, span.partition, self._stores[span.partition])

    def _commit_until(self, partition: int | None) -> None:
        """Commit the partitions before this one, which get no more rows; None: all."""
        while self._uncommitted and (partition is None or self._uncommitted[0] < partition):
            for store in self._stores[self._uncommitted.pop(0)].values():
                store.commit()

    def _named(self, batch: pa.RecordBatch) -> pa.Table:
        # Spark passes timestamps in the session's time zone; the state holds UTC.
        return pa.Table.from_batches([batch]).rename_columns(self._row_columns.names).cast(self._row_columns)

    def _encode_keys(self, rows: pa.Table) -> pa.LargeBinaryArray:
        groups = rows.column(GROUP_COLUMN).to_numpy()
        return encode_keys(groups, rows.select(list(self._operator.keys)).cast(self._key_columns))

    def _spans(self, groups: pa.Array | pa.ChunkedArray) -> list[_Span]:
        """Cut rows that are sorted by key group at the partitions."""
        return _runs(self._partitions_of(groups.to_numpy().astype(np.int64)))

    def _process(self, piece: Piece) -> pa.Table:
        first = piece.first_of_key()
        keys = piece.keys.filter(first)
        spans = self._spans(piece.rows.column(GROUP_COLUMN).filter(first))
        rows = piece.rows.drop_columns([GROUP_COLUMN])
        key_rows = rows.select(list(self._operator.keys)).filter(first)
        update = self._call(rows, {name: self._state_of(keys, spans, key_rows, name) for name in self._operator.stores})
        for name in self._operator.stores:
            self._apply(name, keys, spans, update)
        return as_table(update.output, self._operator.output, "the output")

    def _state_of(self, keys: pa.LargeBinaryArray, spans: list[_Span], key_rows: pa.Table, name: str) -> pa.Table:
        found = [self._stores[span.partition][name].get(keys.slice(span.start, span.rows)) for span in spans]
        values = pa.concat_arrays(found)
        present = values.is_valid()
        decoded = decode_values(values.filter(present), self._operator.stores[name])
        state = key_rows.filter(present)
        for column, field in zip(decoded.columns, decoded.schema, strict=True):
            state = state.append_column(field, column)
        return state

    def _call(self, rows: pa.Table, state: Mapping[str, pa.Table]) -> Update:
        given: Any = next(iter(state.values())) if self._operator.has_one_store else state
        if self._operator.frames is Frames.PANDAS:
            rows = to_pandas(rows)
            given = to_pandas(given) if self._operator.has_one_store else {n: to_pandas(t) for n, t in given.items()}
        update = self._operator.update(rows, given)
        if not isinstance(update, Update):
            raise WrongResult(f"the update function returned {type(update).__name__}", hint="return an Update")
        return update

    def _apply(self, name: str, keys: pa.LargeBinaryArray, spans: list[_Span], update: Update) -> None:
        values_schema = self._operator.stores[name]
        new = self._part_of(update.state, name, pa.schema([*self._key_columns, *values_schema]), "state")
        gone = self._part_of(update.deleted, name, self._key_columns, "deleted")
        new_keys = keys.slice(0, 0)
        if new is not None and new.num_rows:
            places = self._places(keys, new, name)
            new_keys = keys if places is None else keys.take(places)
            self._put(name, new_keys, encode_values(new.select(values_schema.names)), spans, places)
        if gone is not None and gone.num_rows:
            places = self._places(keys, gone, name)
            gone_keys = keys if places is None else keys.take(places)
            if pc.any(pc.is_in(gone_keys, value_set=new_keys)).as_py():
                raise WrongResult(
                    f"store {name!r}: the function returned new state of a key and deleted the same key",
                    hint="for each key, return either new state or a deletion",
                )
            self._put(name, gone_keys, pa.nulls(len(gone_keys), pa.large_binary()), spans, places)

    def _put(
        self,
        name: str,
        keys: pa.LargeBinaryArray,
        values: pa.LargeBinaryArray,
        spans: list[_Span],
        places: pa.Int32Array | None,
    ) -> None:
        """Write values to the stores of their partitions. `places`: the index of each key among those of `spans`; None if
        they are the same keys."""
        if places is not None:
            partitions = np.repeat([span.partition for span in spans], [span.rows for span in spans])[places.to_numpy()]
            order = np.argsort(partitions, kind="stable")
            keys, values, spans = keys.take(order), values.take(order), _runs(partitions[order])
        for span in spans:
            store = self._stores[span.partition][name]
            store.put(keys.slice(span.start, span.rows), values.slice(span.start, span.rows))

    def _part_of(self, part: Any, name: str, schema: pa.Schema, what: str) -> pa.Table | None:
        if part is not None and not self._operator.has_one_store:
            if not isinstance(part, Mapping):
                raise WrongResult(
                    f"{what} is a {type(part).__name__}",
                    hint="an operator with several stores must return a dict from store name to table",
                )
            unknown = set(part) - set(self._operator.stores)
            if unknown:
                raise WrongResult(
                    f"the function returned {what} of stores that are not declared: {', '.join(map(str, sorted(unknown)))}",
                    hint=f"use the store names of the operator: {', '.join(self._operator.stores)}",
                )
            part = part.get(name)
        return None if part is None else as_table(part, schema, f"{what} of store {name!r}")

    def _places(self, keys: pa.LargeBinaryArray, named: pa.Table, name: str) -> pa.Int32Array | None:
        """Return the index in `keys` of each row of `named`; None if they are the same keys in the same order.

        Raises `WrongResult` for an unknown or a repeated key.
        """
        known = bare_keys(keys)
        asked = encode_bare_keys(named.select(list(self._operator.keys)))
        if asked.equals(known):
            return None
        places = pc.index_in(asked, value_set=known)
        if places.null_count:
            stranger = named.filter(places.is_null()).slice(0, 1).select(list(self._operator.keys)).to_pylist()[0]
            raise WrongResult(
                f"store {name!r}: the function returned state of a key that is not in the rows: {stranger}",
                hint="return state of the keys that were given, with their key columns unchanged",
            )
        if len(places.unique()) != len(places):
            raise WrongResult(
                f"store {name!r}: the function returned one key twice", hint="return each key at most once"
            )
        return places


def _runs(partitions: npt.NDArray[np.int64]) -> list[_Span]:
    """Cut ascending partitions into runs of equal ones; shape (rows,)."""
    cuts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
    return [_Span(int(partitions[start]), start, end) for start, end in itertools.pairwise(cuts) if end > start]
