"""Initial rows of the state: checked on the driver, and routed to the tasks of batch 0 together with its input.

A row of the routed DataFrame is either an input row or an initial row:

    columns of the input | key group | number of the store | value columns of each store
    an input row           x           null                   null
    an initial row         keys only   x                      those of its store

Within a key group, initial rows are before input rows. `initial_rows` writes them into the stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from statekeeper.pipelines.operator.declaration import StatefulOperator
from statekeeper.pipelines.task.initial_rows import InitialColumns, require_times
from statekeeper.statestore.base.errors import SchemaMismatch

InitialFrames = DataFrame | Mapping[str, DataFrame]
"""Key and value columns of the first state; with several named stores a mapping: name -> DataFrame."""

Initial = InitialFrames | Callable[[], InitialFrames]
"""Initial rows, or a function that returns them. The function is called only while batch 0 is not committed."""


class InitialState:
    """The initial rows of a job, which `start` declares."""

    def __init__(self, operator: StatefulOperator, row_columns: pa.Schema, given: Initial) -> None:
        self._operator = operator
        self._row_columns = row_columns
        self._given = given

    @cached_property
    def frames(self) -> Mapping[str, DataFrame]:
        """Name of the store -> key and value columns, in the declared order. Raises `SchemaMismatch`."""
        given = self._given() if callable(self._given) else self._given
        stores = self._operator.stores
        if isinstance(given, DataFrame):
            if not self._operator.has_one_store:
                raise SchemaMismatch(
                    f"initial is one DataFrame, but the operator has the stores {list(stores)}; the query was not started",
                    hint="give a dict from store name to DataFrame; a store without an entry starts empty",
                )
            given = dict.fromkeys(stores, given)
        if not isinstance(given, Mapping) or not all(isinstance(frame, DataFrame) for frame in given.values()):
            raise SchemaMismatch(
                f"initial is a {type(given).__name__}; the query was not started",
                hint="give a DataFrame, a dict from store name to DataFrame, or a function that returns one of them",
            )
        unknown = sorted(set(given) - set(stores))
        if unknown or not given:
            raise SchemaMismatch(
                f"initial has rows of stores that are not declared: {unknown}; the query was not started"
                if unknown
                else "initial is an empty dict; the query was not started",
                hint=f"the stores of the operator are: {', '.join(stores)}",
            )
        require_times(self._operator, given)
        keys = self._operator.key_columns(self._row_columns)
        return {
            name: _declared_columns(given[name], pa.schema([*keys, *values]), name)
            for name, values in stores.items()
            if name in given
        }

    @property
    def columns(self) -> InitialColumns:
        """Return the layout of the routed rows, for tasks."""
        return InitialColumns(tuple(self.frames))

    def added_to(self, rows: DataFrame) -> DataFrame:
        """Append the initial rows to input rows, whose columns are `_0`, `_1`, ... without the key group."""
        at = len(self._row_columns) + 1
        store_column = f"_{at}"
        at += 1
        for number, (name, frame) in enumerate(self.frames.items()):
            values = self._operator.stores[name].names
            places = [self._row_columns.get_field_index(key) for key in self._operator.keys]
            places += range(at, at + len(values))
            at += len(values)
            placed = frame.toDF(*(f"_{place}" for place in places)).withColumn(store_column, F.lit(number))
            rows = rows.unionByName(placed, allowMissingColumns=True)
        return rows

    @property
    def added_columns(self) -> list[str]:
        """The columns of the routed rows after the key group: the number of the store, and the values."""
        values = sum(len(self._operator.stores[name]) for name in self.frames)
        first = len(self._row_columns) + 1
        return [f"_{place}" for place in range(first, first + 1 + values)]


def _declared_columns(frame: DataFrame, declared: pa.Schema, store: str) -> DataFrame:
    """Return the columns in the declared order. Raises `SchemaMismatch`."""
    if frame.isStreaming:
        raise SchemaMismatch(
            f"initial of store {store!r} is a stream; the query was not started", hint="read the rows with spark.read"
        )
    counts = Counter(frame.columns)
    twice = sorted(name for name, count in counts.items() if count > 1)
    missing = [name for name in declared.names if name not in counts]
    unknown = [name for name in counts if name not in declared.names]
    hint = f"select exactly the key and value columns: {', '.join(declared.names)}"
    for names, problem in (
        (twice, "has duplicate columns"),
        (missing, "lacks the columns"),
        (unknown, "has other columns"),
    ):
        if names:
            raise SchemaMismatch(f"initial of store {store!r} {problem} {names}; the query was not started", hint=hint)
    given = {field.name: field.dataType for field in frame.schema}
    for field in declared:
        wanted = from_arrow_type(field.type)
        if _plain(given[field.name]) != _plain(wanted):
            raise SchemaMismatch(
                f"initial of store {store!r}: column {field.name} is {given[field.name].simpleString()}, but the operator "
                f"has {wanted.simpleString()}; the query was not started",
                hint=f"cast the column to {wanted.simpleString()}",
            )
    numbered = frame.toDF(*(f"_{place}" for place in range(len(frame.columns))))
    return numbered.select(*(f"_{frame.columns.index(name)}" for name in declared.names))


def _plain(kind: DataType) -> str:
    # Without nullability, which the tasks check by value.
    return kind.simpleString()
