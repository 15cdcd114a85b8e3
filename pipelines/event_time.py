"""Event time of input rows: the latest one, for the watermark, and the rows that are late."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.operator import StatefulOperator
from pipelines.times import TIMESTAMP, require_timestamp
from statestore.batch_times import BatchTimes
from statestore.errors import SchemaMismatch, WrongInput

_END_OF_WINDOW = "end"


def require_event_time(operator: StatefulOperator, row_columns: pa.Schema) -> None:
    """Raise `SchemaMismatch` if the columns of the event time and of `late_by` are missing or are no times in UTC.

    `late_by` may be a window of Spark's `window` function; its end then counts, as in Spark.
    """
    for option, name in (("event_time", operator.event_time), ("late_by", operator.late_by)):
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
    """Reads the event times of the rows of a task. `latest_ms`: the latest one so far, of late rows, too."""

    def __init__(self, operator: StatefulOperator, times: BatchTimes) -> None:
        assert operator.event_time is not None
        self.latest_ms: int | None = None
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
        latest_ms = int(pc.max(column).cast(pa.int64()).as_py()) // 1000
        self.latest_ms = latest_ms if self.latest_ms is None else max(self.latest_ms, latest_ms)

    def latest_of_keys(self, rows: pa.Table, first_of_key: pa.BooleanArray) -> npt.NDArray[np.int64]:
        """Return the latest event time of each key in us; shape (keys,). `rows` are sorted by key."""
        times: npt.NDArray[np.int64] = rows.column(self._column).combine_chunks().cast(pa.int64()).to_numpy()
        starts = np.flatnonzero(first_of_key.to_numpy(zero_copy_only=False))
        return np.maximum.reduceat(times, starts)
