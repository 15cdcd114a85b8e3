"""Several inputs of an operator as one stream: the rows of all inputs, with the name of their input in a column.

    orders     customer, id, amount     -> customer, id, amount, null, "orders"
    payments   customer, paid           -> customer, null, null, paid, "payments"

The inputs are in the order of their names, so that a job can declare them in any order: Spark identifies the sources of a
checkpoint by their position (OffsetSeq).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from statekeeper.pipelines.operator.declaration import INPUT_COLUMN, StatefulOperator
from statekeeper.pipelines.startup.session import require_classic
from statekeeper.statestore.base.errors import SchemaMismatch, StorageError, UnsupportedEnvironment


def given_streams(stream: DataFrame | None, inputs: Mapping[str, DataFrame] | None) -> Sequence[DataFrame]:
    """Return the streaming DataFrames that `start` got. Raises `UnsupportedEnvironment`, also for Spark Connect."""
    streams = [one for one in (stream, *(inputs or {}).values()) if one is not None]
    if not streams or (stream is not None and inputs is not None):
        raise UnsupportedEnvironment(
            "the query has both a stream and `inputs`" if streams else "the query has no input",
            hint='give one streaming DataFrame, or several: inputs={"orders": ..., "payments": ...}',
        )
    for one in streams:
        require_classic(one.sparkSession)
    if not all(one.isStreaming for one in streams):
        raise UnsupportedEnvironment("the DataFrame is not a stream", hint="read the input with spark.readStream")
    return streams


def require_sources(streams: Sequence[DataFrame]) -> Iterator[str]:
    """Yield the patterns of sources that match no folder yet, which may appear later. Raises `StorageError` for a folder or
    table that does not exist: Spark would wait for its rows without a message."""
    for stream in streams:
        session: Any = stream.sparkSession
        plan: Any = stream._jdf.queryExecution().analyzed()  # noqa: SLF001 - Spark has no call for the sources of a stream
        leaves = plan.collectLeaves()
        for leaf in (leaves.apply(place) for place in range(leaves.size())):
            if leaf.getClass().getSimpleName() != "StreamingRelation":
                continue  # the other sources have no folder
            given = leaf.dataSource().options().get("path")
            if not given.isDefined():
                continue
            path = session._jvm.org.apache.hadoop.fs.Path(given.get())  # noqa: SLF001
            try:
                found = path.getFileSystem(session._jsc.hadoopConfiguration()).globStatus(path)  # noqa: SLF001
            except Py4JError:
                continue  # Spark names the problem of the storage
            if found is None:
                raise StorageError(
                    "the source does not exist; the query was not started",
                    path=given.get(),
                    hint="correct the path of spark.readStream, or create the folder first",
                )
            if not len(found):
                yield given.get()


def columns_of_all(operator: StatefulOperator, inputs: Mapping[str, StructType]) -> StructType:
    """Return the columns of the rows of all inputs: those of the inputs, in order of their names, and the input's name.

    A column that an input lacks is null in its rows. Raises `SchemaMismatch` for an input without a key column or without
    the column of the event time, and for a column with several types.
    """
    if not inputs or not all(isinstance(name, str) and name for name in inputs):
        raise SchemaMismatch(
            f"the names of the inputs are {list(inputs)}",
            hint='name each input: inputs={"orders": ..., "payments": ...}',
        )
    homes: dict[str, str] = {}
    found: dict[str, StructField] = {}
    for name, columns in sorted(inputs.items()):
        _require_columns(operator, name, columns)
        for column in columns:
            home = homes.setdefault(column.name.lower(), name)
            other = found.get(column.name)
            if other is None and home != name:
                raise SchemaMismatch(
                    f"column {column.name} of input {name!r} has another case in input {home!r}",
                    hint="rename one of them",
                )
            found[column.name] = column if other is None else _common(column, other, name, home)
    fields = [
        StructField(
            column.name, column.dataType, column.nullable or any(column.name not in of.names for of in inputs.values())
        )
        for column in found.values()
    ]
    return StructType([*fields, StructField(INPUT_COLUMN, StringType(), False)])


def rows_of_all(inputs: Mapping[str, DataFrame], columns: StructType) -> DataFrame:
    """Return the rows of all inputs with the columns of `columns_of_all`."""
    return reduce(DataFrame.union, (_placed(name, frame, columns) for name, frame in sorted(inputs.items())))


def _placed(name: str, frame: DataFrame, columns: StructType) -> DataFrame:
    # By position: PySpark resolves names without quotes here.
    numbered = frame.toDF(*(f"_{number}" for number in range(len(frame.columns))))
    given = {column: F.col(f"_{number}") for number, column in enumerate(frame.columns)} | {INPUT_COLUMN: F.lit(name)}
    return numbered.select(*(given.get(column.name, F.lit(None).cast(column.dataType)) for column in columns)).toDF(
        *columns.names
    )


def _require_columns(operator: StatefulOperator, name: str, columns: StructType) -> None:
    needed = [*operator.keys, *([] if operator.event_time is None else [operator.event_time])]
    missing = [column for column in needed if column not in columns.names]
    if missing:
        raise SchemaMismatch(
            f"input {name!r} has no columns {missing}", hint=f"each input needs {needed}; it has {columns.names}"
        )
    if len(set(columns.names)) < len(columns.names):
        raise SchemaMismatch(f"input {name!r} has two columns of one name", hint=f"it has {columns.names}")
    if INPUT_COLUMN in map(str.lower, columns.names):
        raise SchemaMismatch(
            f"input {name!r} has a column {INPUT_COLUMN!r}, in which the operator gets the name of the input",
            hint="rename the column",
        )


def _common(column: StructField, other: StructField, name: str, home: str) -> StructField:
    mine, theirs = _all_nullable(column.dataType), _all_nullable(other.dataType)
    if mine != theirs:
        raise SchemaMismatch(
            f"column {column.name} is {theirs.simpleString()} in input {home!r}, but {mine.simpleString()} in {name!r}",
            hint="cast or rename one of them",
        )
    kind = column.dataType if column.dataType == other.dataType else mine
    return StructField(column.name, kind, column.nullable or other.nullable)


def _all_nullable(kind: DataType) -> DataType:
    """Return the type with nullable fields, elements and values at any depth."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _all_nullable(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_all_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_all_nullable(kind.keyType), _all_nullable(kind.valueType))
    return kind
