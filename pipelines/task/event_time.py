"""Event time of input rows: the latest ones, for the watermark, and the rows that are late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.operator.declaration import INPUT_COLUMN, StatefulOperator
from statekeeper.pipelines.operator.times import TIMESTAMP, require_timestamp
from statekeeper.pipelines.task.reports import PartitionReport
from statekeeper.statestore.base.errors import SchemaMismatch, WrongInput
from statekeeper.statestore.root.times import BatchTimes

_END_OF_WINDOW = "end"
_ONE_STREAM = ""


def require_event_time(operator: StatefulOperator, row_columns: pa.Schema) -> None:
    """Raise `SchemaMismatch` if the columns of the event time, of `late_by` or of `timer_key` are missing, or are no times.

    `late_by` may be a window of Spark's `window` function; its end then counts, as in Spark.
    """
    columns = {"event_time": operator.event_time, "late_by": operator.late_by, "timer_key": operator.timer_key}
    for option, name in columns.items():
        if name is None:
            continue
        if name not in row_columns.names:
            raise SchemaMismatch(
                f"{option}={name!r}: the stream has no such column", hint=f"it has {', '.join(row_columns.names)}"
            )
        kind = row_columns.field(name).type
        if option == "late_by" and pa.types.is_struct(kind) and kind.get_field_index(_END_OF_WINDOW) >= 0:
            kind = kind.field(_END_OF_WINDOW).type
        require_timestamp(kind, f"{option}: column {name!r}")


class EventTime:
    """Reads the event times of the rows of a task. `latest_ms`: input -> the latest one so far, of late rows, too."""

    def __init__(self, operator: StatefulOperator, times: BatchTimes, inputs: Sequence[str] = ()) -> None:
        assert operator.event_time is not None
        self.latest_ms: dict[str, int] = {}
        self._inputs = inputs
        self._column = operator.event_time
        self._late_by = operator.late_by or operator.event_time
        self._late_ms = times.late_watermark_ms

    def late(self, rows: pa.Table) -> pa.ChunkedArray | None:
        """Note the event times of rows. Return which are late, shape (rows,); None if none is. Raises `WrongInput`."""
        if not rows.num_rows:
            return None
        self._note(rows)
        if not self._late_ms:
            return None
        times = rows.column(self._late_by)
        if pa.types.is_struct(times.type):
            times = pc.struct_field(times, _END_OF_WINDOW)
        # A row whose end of the window is unknown is not late.
        late = pc.fill_null(pc.less_equal(times, pa.scalar(self._late_ms * 1000, pa.int64()).cast(TIMESTAMP)), False)
        return late if pc.any(late).as_py() else None

    def _note(self, rows: pa.Table) -> None:
        column = rows.column(self._column)
        if column.null_count:
            raise WrongInput(
                f"column {self._column!r} has the event time of the rows, but it is null in {column.null_count} of "
                f"{len(column)} rows; the batch was not committed",
                hint="drop rows without a time before the operator, for example: "
                f'stream.where("{self._column} IS NOT NULL")',
            )
        for name, times in self._by_input(rows, column):
            latest_ms = int(pc.max(times).cast(pa.int64()).as_py()) // 1000
            self.latest_ms[name] = max(self.latest_ms.get(name, latest_ms), latest_ms)

    def _by_input(self, rows: pa.Table, times: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
        if not self._inputs:
            yield _ONE_STREAM, times
            return
        names = rows.column(INPUT_COLUMN)
        for name in names.unique():
            yield name.as_py(), times.filter(pc.equal(names, name))

    def latest_of_keys(self, rows: pa.Table, first_of_key: pa.BooleanArray) -> npt.NDArray[np.int64]:
        """Return the latest event time of each key in us; shape (keys,). `rows` are sorted by key."""
        times: npt.NDArray[np.int64] = rows.column(self._column).combine_chunks().cast(pa.int64()).to_numpy()
        starts = np.flatnonzero(first_of_key.to_numpy(zero_copy_only=False))
        return np.maximum.reduceat(times, starts)


class EventClock:
    """Moves the watermark of a query. `inputs`: the names of several inputs; empty for one stream."""

    def __init__(self, operator: StatefulOperator, inputs: Sequence[str] = ()) -> None:
        self.inputs = tuple(inputs)
        self._lateness_ms = operator.lateness_ms
        self._latest_ms: dict[str, int] = {}

    def next_watermark_ms(self, times: BatchTimes, reports: Sequence[PartitionReport]) -> int:
        """Return the watermark after a batch: that of the input that is furthest behind.

        It does not move while an input has had no rows since the start of the query, as in Spark (WatermarkTracker with the
        policy `min`): the next rows of this input may be old.
        """
        for report in reports:
            for name, latest_ms in report.times.latest_event_ms.items():
                self._latest_ms[name] = max(self._latest_ms.get(name, latest_ms), latest_ms)
        if len(self._latest_ms) < max(1, len(self.inputs)):
            return times.watermark_ms
        return max(times.watermark_ms, min(self._latest_ms.values()) - self._lateness_ms)
