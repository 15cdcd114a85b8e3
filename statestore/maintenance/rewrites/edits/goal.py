"""The goal of an edit, as a person states it: rows to delete and rows to upsert, not yet compared with the state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Rows to change in the state of one operator.

    texts    a value for each column of the keys to delete, as a person types it; a key is deleted if all columns match
    keys     a table of keys to delete, by some or all of their columns
    upserts  a table of rows to insert or to replace: all columns of the key and of the value
    options  the options of the command that state this goal
    """

    operator: int
    texts: Mapping[str, str] = field(default_factory=dict)
    keys: pa.Table | None = None
    upserts: pa.Table | None = None
    options: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A digest of the goal with the contents of its tables."""
        found = hashlib.sha256(repr((self.operator, sorted(self.texts.items()))).encode())
        for table in (self.keys, self.upserts):
            found.update(b"|")
            for piece in _encoded(table):
                found.update(piece)
        return found.hexdigest()


def _encoded(table: pa.Table | None) -> Iterator[bytes]:
    if table is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table.combine_chunks())
        yield sink.getvalue().to_pybytes()
