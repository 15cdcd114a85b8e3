"""The rows of a store with the new value columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.statestore.errors import CorruptFile
from statekeeper.statestore.format.lossless import lossless
from statekeeper.statestore.format.row_encodings import Rows
from statekeeper.statestore.format.state_rows import decode_values, encode_values
from statekeeper.statestore.new_columns import NewColumns


@dataclass(frozen=True)
class EvolvedRows:
    """Encodes the values of one store with its new columns. Keys keep their bytes."""

    columns: NewColumns

    def table(self, values: pa.Table) -> pa.Table:
        """Return decoded values with the new columns."""
        return self.columns.table(values)

    def converted(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Encode present rows with the new columns. Raises `CorruptFile` for a row that does not fit the present schema."""
        return keys, _encoded(self.table(_decoded(values, self.columns.before)))

    def of_source(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Return present rows with the columns that remain. The digests of these must be equal before and after."""
        return keys, _encoded(_decoded(values, self.columns.before).select([place for _, place in self._kept]))

    def of_target(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Return new rows as `of_source`, with the present types. Raises `CorruptFile` for a value that is no default."""
        table, before = _decoded(values, self.columns.after), self.columns.before
        for place, column in enumerate(self.columns.columns):
            if column.source is None and not _is_all(table.column(place), column.default):
                raise CorruptFile(
                    f"the added column {column.field.name} has a value other than its default; nothing was published",
                    hint="reverse the evolution with --abort, and report this error",
                )
        kept = self._kept
        arrays = [lossless(table.column(place), before.field(source).type) for place, source in kept]
        fields = [before.field(source) for _, source in kept]
        return keys, _encoded(pa.Table.from_arrays(arrays, schema=pa.schema(fields)))

    @property
    def _kept(self) -> list[tuple[int, int]]:
        """The places of the remaining columns, afterwards and now."""
        columns = enumerate(self.columns.columns)
        return [(place, column.source) for place, column in columns if column.source is not None]


def _is_all(found: pa.ChunkedArray, default: pa.Scalar | None) -> bool:
    if default is None or not default.is_valid:
        return bool(found.null_count == len(found))
    return bool(pc.all(pc.equal(found, default), min_count=0).as_py()) and not found.null_count


def _decoded(values: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    return decode_values(pa.array(values, pa.large_binary()), schema)


def _encoded(columns: pa.Table) -> list[bytes]:
    """Encode rows. Without columns, there is nothing to encode, and nothing to compare."""
    return [bytes(row) for row in encode_values(columns).to_pylist()]
