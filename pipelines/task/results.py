"""Conversion of an update function's result to a table with the declared columns.

Values are never rounded, cut or reinterpreted: the conversion is lossless or raises `WrongResult`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.operator.declaration import StatefulOperator
from statekeeper.statestore.base.errors import WrongResult
from statekeeper.statestore.format.lossless import Lossy, first_refused, lossless

_REFUSALS = (pa.ArrowException, ValueError, TypeError, AttributeError, KeyError, OverflowError)
_LONGEST_EXAMPLE = 80


def as_table(given: Any, schema: pa.Schema, what: str) -> pa.Table:
    """Convert an Arrow table or a pandas frame to the columns of `schema`; `what` is its name in errors.

    NaN in a column of a NumPy or object dtype means null, as it does in pandas. Raises `WrongResult`.
    """
    names = _column_names(given, schema, what)
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise WrongResult(f"{what} lacks the columns {missing}", hint=f"it has {names}")
    columns = []
    for field in schema:
        if names.count(field.name) > 1:
            raise _wrong(
                schema,
                f"{what} does not match its schema: column {field.name!r} exists {names.count(field.name)} times",
            )
        columns.append(_column(given, field, schema, what))
    for column, field in zip(columns, schema, strict=True):
        place = null_in(column, field, field.name)
        if place is not None:
            raise WrongResult(
                f"{what}: column {place!r} contains nulls, but is declared without nulls", hint="declare it nullable"
            )
    try:
        return pa.Table.from_arrays(columns, schema=schema)
    except pa.ArrowException as error:
        raise _wrong(schema, f"{what} does not match its schema: {error}") from error


def as_outputs(given: Any, operator: StatefulOperator) -> Mapping[str, pa.Table]:
    """Convert the outputs of an update function: output -> its rows. Raises `WrongResult` for an output that is unknown or
    missing; None is an output without rows."""
    outputs = operator.outputs
    if operator.has_one_output:
        return {name: as_table(given, columns, "the output") for name, columns in outputs.items()}
    if not isinstance(given, Mapping):
        raise WrongResult(
            f"the output is a {type(given).__name__}",
            hint="an operator with several outputs must return a dict from output name to table",
        )
    unknown = sorted(set(map(str, given)) - set(outputs))
    missing = sorted(set(outputs) - set(given))
    if unknown or missing:
        problem = f"outputs that are not declared: {', '.join(unknown)}" if unknown else f"no output {missing[0]!r}"
        raise WrongResult(
            f"the function returned {problem}",
            hint=f"return a table, or None for no rows, for each output of the operator: {', '.join(outputs)}",
        )
    return {
        name: as_table(given[name], columns, f"output {name!r}") if given[name] is not None else columns.empty_table()
        for name, columns in outputs.items()
    }


def _column_names(given: Any, schema: pa.Schema, what: str) -> list[str]:
    if isinstance(given, pa.Table):
        return list(given.column_names)
    if _is_frame(given):
        return list(given.columns)
    raise _wrong(
        schema, f"{what} does not match its schema: it is a {type(given).__name__}, not a table or a DataFrame"
    )


def _is_frame(given: Any) -> bool:
    import pandas as pd

    return isinstance(given, pd.DataFrame)


def _wrong(schema: pa.Schema, text: str, also: str = "") -> WrongResult:
    declared = ", ".join(f"{field.name}: {field.type}" for field in schema)
    return WrongResult(" ".join(text.split()), hint=f"return the declared columns: {declared}{also}")


def _column(given: Any, field: pa.Field, schema: pa.Schema, what: str) -> pa.ChunkedArray:
    values = given[field.name]
    try:
        if isinstance(given, pa.Table):
            column = values
        elif values.dtype == object and not _infers_exactly(values):
            return pa.chunked_array([_from_objects(values, field.type)])
        else:
            column = _chunked(pa.array(values, from_pandas=True))
    except _Refused as error:
        text = f"{what}: column {field.name!r} must be {field.type}, but row {error.row} contains {error.example}"
        raise _wrong(schema, f"{text}: {error}") from error
    except _REFUSALS as error:
        raise _wrong(schema, f"{what} does not match its schema: column {field.name!r}: {error}") from error
    try:
        return lossless(column, field.type)
    except _REFUSALS as error:
        text = f"{what}: column {field.name!r} is {column.type}, not {field.type}"
        by_type = isinstance(error, Lossy) and error.by_type
        row = _first_value(column) if by_type else first_refused(column, lambda part: lossless(part, field.type))
        if row is not None:
            text += f": row {row} holds {_shown(column[row])}"
        if not by_type:
            text += f", which does not fit ({error})"
        raise _wrong(schema, text, "; if the loss is intended, cast the column in the update function") from error


def _chunked(array: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _first_value(column: pa.ChunkedArray) -> int | None:
    place = pc.index(column.is_valid(), True).as_py()
    return None if place < 0 else int(place)


def _shown(scalar: pa.Scalar) -> str:
    try:
        return _cut(repr(scalar.as_py()))
    except (ValueError, OverflowError):
        # Python supports no dates after the year 9999.
        return _cut(str(scalar))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_EXAMPLE else f"{text[:_LONGEST_EXAMPLE]}..."


class _Refused(ValueError):
    """Raised for an object that a column cannot hold."""

    def __init__(self, reason: str, row: int, example: str) -> None:
        super().__init__(reason)
        self.row = row
        self.example = example


def _infers_exactly(values: Any) -> bool:
    """Return whether the type that Arrow infers for a column of objects holds each of them exactly.

    False for times and nested values: Arrow reads a datetime beside a date as a date, cuts nanoseconds, and infers no maps.
    """
    try:
        kind = pa.array(values, from_pandas=True).type
    except _REFUSALS:
        return False
    return not (pa.types.is_temporal(kind) or pa.types.is_nested(kind))


def _from_objects(values: Any, declared: pa.DataType) -> pa.Array:
    """Convert Python objects to an Arrow array and compare each object with its converted value."""

    def convert(column: Any) -> pa.Array:
        return pa.array(column, declared, from_pandas=True)

    try:
        array = convert(values)
    except _REFUSALS as error:
        row = first_refused(_Sliced(values), lambda part: convert(part.values))
        raise _Refused(str(error), row, _cut(repr(values.iloc[row]))) from error
    for row, (given, kept) in enumerate(zip(values, array.to_pylist(), strict=True)):
        if not is_same(given, kept, declared):
            raise _Refused(f"it would become {_cut(repr(kept))}", row, _cut(repr(given)))
    return array


class _Sliced:
    """A pandas series with the `slice` method of Arrow columns, for `first_refused`."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, length: int) -> _Sliced:
        return _Sliced(self.values.iloc[start : start + length])


def is_same(given: Any, kept: Any, kind: pa.DataType) -> bool:
    is_a = pa.types
    if kept is None:
        return _is_missing(given)
    if is_a.is_map(kind):
        pairs = list(given.items() if isinstance(given, Mapping) else given)
        return len(pairs) == len(kept) and all(
            is_same(a[0], b[0], kind.key_type) and is_same(a[1], b[1], kind.item_type)
            for a, b in zip(pairs, kept, strict=True)
        )
    if is_a.is_struct(kind):
        return (
            isinstance(given, Mapping)
            and set(given) <= set(kept)
            and all(is_same(given.get(field.name), kept[field.name], field.type) for field in kind)
        )
    if is_a.is_list(kind):
        return len(given) == len(kept) and all(is_same(a, b, kind.value_type) for a, b in zip(given, kept, strict=True))
    return _is_same_value(given, kept, kind)


def _is_missing(given: Any) -> bool:
    import pandas as pd

    is_plural = isinstance(given, Mapping | Sequence) or hasattr(given, "__len__")
    return not is_plural and bool(pd.isna(given))


def _is_same_value(given: Any, kept: Any, kind: pa.DataType) -> bool:
    import pandas as pd

    if pa.types.is_temporal(kind):
        is_a_day = isinstance(kept, dt.date) and not isinstance(kept, dt.datetime)
        return bool(pd.Timestamp(given) == pd.Timestamp(kept)) and (
            not is_a_day or getattr(given, "tzinfo", None) is None
        )
    if kept != kept:  # NaN
        return bool(given != given)
    return isinstance(given, bool) == isinstance(kept, bool) and bool(given == kept)


def null_in(column: pa.ChunkedArray, field: pa.Field, path: str) -> str | None:
    """Return the path of a non-nullable field that holds a null, at any depth."""
    if column.null_count and not field.nullable:
        return path
    if pa.types.is_struct(field.type):
        present = column.drop_null()
        parts = [(pc.struct_field(present, [n]), child, child.name) for n, child in enumerate(field.type)]
    elif pa.types.is_list(field.type):
        parts = [(pc.list_flatten(column), field.type.value_field, "element")]
    elif pa.types.is_map(field.type):
        entries = pc.list_flatten(column.cast(pa.list_(pa.struct([field.type.key_field, field.type.item_field]))))
        parts = [(pc.struct_field(entries, [1]), field.type.item_field, "value")]
    else:
        return None
    found = (null_in(part, child, f"{path}.{name}") for part, child, name in parts)
    return next((place for place in found if place is not None), None)
