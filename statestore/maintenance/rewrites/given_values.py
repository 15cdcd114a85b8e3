"""Values that a person gives, converted to the types of the state's columns without loss. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import pyarrow as pa

from statekeeper.statestore.base.errors import SchemaMismatch
from statekeeper.statestore.format.lossless import Lossy, first_refused, lossless

_NOTHING = "nothing was changed"
_FAILURES = (pa.ArrowException, ValueError, TypeError, OverflowError)


def typed_texts(texts: Mapping[str, str], schema: pa.Schema, what: str) -> pa.Table:
    """Return a table of one row. Raises `SchemaMismatch` for an unknown column and for a text that is no value of it."""
    _require_known(list(texts), schema, what)
    arrays = []
    for name, text in texts.items():
        kind = schema.field(name).type
        try:
            arrays.append(_parsed([text], kind))
        except _FAILURES as error:
            raise SchemaMismatch(
                f"{text!r} is not a value of column {name} of {what}, whose type is {kind}; {_NOTHING}",
                hint="write the value as `statekeeper dump ROOT` shows it",
            ) from error
    return pa.table(arrays, schema=pa.schema([schema.field(name) for name in texts]))


def typed_columns(table: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """Return the columns of `table` with the types of `schema`, in its order; texts are parsed.

    Raises `SchemaMismatch` for an unknown column, and with row and column for a value that would change or that is null
    in a column without nulls.
    """
    _require_known(table.schema.names, schema, what)
    fields = [field for field in schema if field.name in table.schema.names]
    columns = [_typed(table.column(field.name), field) for field in fields]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _require_known(given: Sequence[str], schema: pa.Schema, what: str) -> None:
    for name in given:
        if name not in schema.names:
            known = ", ".join(schema.names) or "none"
            raise SchemaMismatch(
                f"{what} has no column {name}; its columns are: {known}; {_NOTHING}",
                hint="to see the columns, run: statekeeper dump ROOT",
            )
        if list(given).count(name) > 1:
            raise SchemaMismatch(f"column {name} is given twice; {_NOTHING}", hint="give each column once")


def _typed(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    def convert(piece: pa.ChunkedArray) -> pa.ChunkedArray:
        is_text = pa.types.is_string(piece.type) or pa.types.is_large_string(piece.type)
        if is_text and not pa.types.is_string(field.type):
            return pa.chunked_array([_parsed(piece.to_pylist(), field.type)], field.type)
        return lossless(piece, field.type)

    try:
        converted = convert(column)
    except _FAILURES as error:
        by_type = isinstance(error, Lossy) and error.by_type
        row = 0 if by_type else first_refused(column, convert)
        value = column[row].as_py() if len(column) else None
        raise SchemaMismatch(
            f"row {row}, column {field.name}: {value!r} ({column.type}) is not a value of the type {field.type}; "
            f"{_NOTHING}",
            hint="convert the column of the table to this type",
        ) from error
    if not field.nullable and converted.null_count:
        row = converted.is_null().to_pylist().index(True)
        raise SchemaMismatch(
            f"row {row}, column {field.name}: the value is null, but the state declares it without nulls; {_NOTHING}",
            hint="remove the row from the table, or give a value",
        )
    return converted


def _parsed(texts: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        found = [None if text is None else base64.b64decode(text, validate=True) for text in texts]
        return pa.array(found, kind)
    if pa.types.is_floating(kind):
        return pa.array([None if text is None else float(text) for text in texts], kind)
    return pa.array(texts, pa.string()).cast(kind)
