"""The rows of a store, converted to the value columns that a change makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from statekeeper.statestore.base.errors import SchemaMismatch
from statekeeper.statestore.format.lossless import lossless


@dataclass(frozen=True)
class NewColumn:
    """A value column afterwards. `source`: the place of the present column; None if it is new and has the default."""

    field: pa.Field
    source: int | None
    default: pa.Scalar | None = None


@dataclass(frozen=True)
class NewColumns:
    """The value columns of one store before and after."""

    before: pa.Schema
    columns: tuple[NewColumn, ...]

    @classmethod
    def of(cls, before: pa.Schema, after: pa.Schema, sources: Sequence[int | None]) -> NewColumns:
        """Return the change to `after`. sources: one for each new column; an added column has nulls."""
        fields = zip(after, sources, strict=True)
        nulls = {field.name: pa.scalar(None, field.type) for field in after}
        return cls(before, tuple(NewColumn(field, source, nulls[field.name]) for field, source in fields))

    @property
    def after(self) -> pa.Schema:
        """The new value columns."""
        return pa.schema([column.field for column in self.columns])

    def table(self, values: pa.Table) -> pa.Table:
        """Return decoded values with the new columns. Raises `SchemaMismatch` for a value that does not fit."""
        return pa.Table.from_arrays([_column(values, column) for column in self.columns], schema=self.after)


def _column(values: pa.Table, column: NewColumn) -> pa.ChunkedArray:
    if column.source is None:
        return pa.chunked_array([pa.repeat(column.default, values.num_rows)])
    try:
        return lossless(values.column(column.source), column.field.type)
    except (pa.ArrowException, ValueError) as error:
        raise SchemaMismatch(
            f"a value of column {values.schema.names[column.source]} does not fit the type {column.field.type}: {error}; "
            f"the present rows are unchanged",
            hint="keep the type of this column. If an evolution is half done, reverse it with --abort",
        ) from error
