"""Where the tasks of a batch put their outputs. Each output goes to one of two places:

* back to Spark, as rows. The last row of each task is a marker, which names the attempt also for a task without output.
  The report goes through an accumulator, see `report_channel`. Rows of several outputs are in one column for each.
* to data files of its sink. If all outputs go to files, the report is the only row that the task returns: Spark keeps one
  result per task.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.sinks.data_files import DataFile, DroppedRows, OutputFiles, TaskFiles
from statekeeper.pipelines.task.reports import Reported
from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.format.state_rows import encode_values
from statekeeper.statestore.store.engine.rows_digest import RowsDigest

TAG_COLUMN = "__statekeeper_tag"
MARKER_COLUMN = "__statekeeper_marker"

_REPORT = pa.schema([pa.field("report", pa.binary())])
_ROWS = 65_536

Tables = Mapping[str, pa.Table]
"""Output -> its rows."""


class Reporter(Protocol):
    """Receives the reports of tasks."""

    def add(self, report: Reported) -> None:
        """Send the report of a task whose partitions are committed, or cannot be."""


@dataclass(frozen=True, kw_only=True)
class TaskOutputs:
    """The outputs of a batch; sent to the workers.

    files      output -> where its data files go
    rows       output -> its columns, for outputs that go back to Spark
    digested   outputs whose rows are counted and digested, see `RowsDigest`
    reporter   takes the reports of tasks; None if no output goes back to Spark
    """

    files: Mapping[str, OutputFiles] = field(default_factory=dict)
    rows: Mapping[str, pa.Schema] = field(default_factory=dict)
    digested: frozenset[str] = frozenset()
    reporter: Reporter | None = None

    def result_schema(self) -> pa.Schema:
        """Return the columns that a task returns: its pickled report, or the columns of the only output in rows, or a
        struct for each of several. They are nullable because of the marker. Then the columns of tag and marker."""
        if self.reporter is None:
            return _REPORT
        return pa.schema([*self._columns(), pa.field(TAG_COLUMN, pa.int64()), pa.field(MARKER_COLUMN, pa.bool_())])

    def open(self, task: int, tag: int, ids: Ids) -> OpenOutputs:
        """Return the outputs of one task. `tag`: of its rows, see `reports.tag_of`."""
        return OpenOutputs(self, task, tag, ids)

    def send(self, report: Reported, tag: int) -> Iterator[pa.RecordBatch]:
        """Send the report of a task, and return its last row."""
        if self.reporter is None:
            yield pa.record_batch([pa.array([pickle.dumps(report)], pa.binary())], schema=_REPORT)
            return
        self.reporter.add(report)
        columns = self._columns()
        marker = pa.table([pa.nulls(1, column.type) for column in columns], schema=pa.schema(columns))
        yield from self.tagged(marker, tag, marker=True)

    def tagged(self, rows: pa.Table, tag: int, *, marker: bool = False) -> Iterator[pa.RecordBatch]:
        """Return rows with the columns of tag and marker."""
        count = rows.num_rows
        added = pa.array(np.full(count, tag, dtype=np.int64)), pa.array(np.full(count, marker))
        tagged = pa.Table.from_arrays([*rows.columns, *added], schema=self.result_schema())
        yield from tagged.combine_chunks().to_batches(max_chunksize=_ROWS)

    def as_columns(self, name: str, rows: pa.Table) -> pa.Table:
        """Return rows of one output in the columns of all outputs that go back to Spark."""
        if len(self.rows) == 1:
            return rows
        fields = self._columns()
        given = rows.cast(pa.schema(list(pa.schema(fields).field(name).type))).to_struct_array()
        columns = [given if field.name == name else pa.nulls(rows.num_rows, field.type) for field in fields]
        return pa.table(columns, schema=pa.schema(fields))

    def rows_in(self, returned: pa.Table, name: str) -> pa.Table:
        """Return the rows of one output among those that a task returned."""
        rows = returned.filter(pc.invert(returned[MARKER_COLUMN]))
        if len(self.rows) > 1:
            given = rows[name]
            rows = pa.Table.from_struct_array(given.filter(given.is_valid()))
        return rows.select(self.rows[name].names).cast(self.rows[name])

    def _columns(self) -> list[pa.Field]:
        nullable = {name: [one.with_nullable(True) for one in columns] for name, columns in self.rows.items()}
        if len(nullable) == 1:
            return next(iter(nullable.values()))
        return [pa.field(name, pa.struct(columns)) for name, columns in nullable.items()]


class OpenOutputs:
    """Writes the outputs of one task. Use it as a context: an error deletes the files."""

    def __init__(self, outputs: TaskOutputs, task: int, tag: int, ids: Ids) -> None:
        self.digests = {name: RowsDigest() for name in outputs.digested}
        self._outputs = outputs
        self._tag = tag
        self._stack = contextlib.ExitStack()
        self._files: dict[str, TaskFiles | DroppedRows] = {}
        for name, files in outputs.files.items():
            self._files[name] = files.open(task, ids)
            self._stack.enter_context(self._files[name])

    def write(self, tables: Tables) -> Iterator[pa.RecordBatch]:
        """Write rows to files, and return those that go back to Spark."""
        for name, rows in tables.items():
            if name in self.digests:
                self.digests[name].add((b"", value) for value in encode_values(rows).to_pylist())
            if name in self._files:
                self._files[name].write(rows)
            elif name in self._outputs.rows:
                yield from self._outputs.tagged(self._outputs.as_columns(name, rows), self._tag)

    def complete(self) -> Mapping[str, tuple[DataFile, ...]]:
        """Close all files and return them."""
        return {name: files.complete() for name, files in self._files.items()}

    def __enter__(self) -> OpenOutputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)
