"""The outputs of an attempt at a batch, as its record lists them: what a later run needs to complete the missing sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_OUTPUT = "output"
"""The name of the only output of a job that does not name its outputs."""


@dataclass(frozen=True)
class SinkPosition:
    """A table and its newest version before a batch."""

    table: str
    version: int


@dataclass(frozen=True, kw_only=True)
class OutputRecord:
    """One output of an attempt.

    columns   Spark's JSON of its columns
    sink      the position of its sink before the attempt; None if the sink has no history
    rows      number and digest of its rows; None if it has data files or is dropped
    files     its data files, which tasks have written; None if its rows went through Spark or are dropped
    """

    columns: str
    sink: SinkPosition | None = None
    rows: str | None = None
    files: tuple[Mapping[str, Any], ...] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of the record."""
        body: dict[str, Any] = {"columns": self.columns}
        if self.sink is not None:
            body["sink"] = position_json(self.sink)
        if self.rows is not None:
            body["rows"] = self.rows
        if self.files is not None:
            body["files"] = [dict(file) for file in self.files]
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> OutputRecord:
        """Parse the JSON of a record. Raises the errors of `BAD_VALUES`."""
        files = body.get("files")
        return cls(
            columns=str(body["columns"]),
            sink=parsed_position(body.get("sink")),
            rows=None if body.get("rows") is None else str(body["rows"]),
            files=None if files is None else tuple(dict(file) for file in files),
        )


def position_json(position: SinkPosition) -> dict[str, Any]:
    """Return the JSON of a position."""
    return {"table": position.table, "version": position.version}


def parsed_position(body: Mapping[str, Any] | None) -> SinkPosition | None:
    """Parse the JSON of a position; None if there is none. Raises the errors of `BAD_VALUES`."""
    return SinkPosition(str(body["table"]), int(body["version"])) if body else None
