"""Adjacent partitions of a task: their rows and state go to the update function together.

A call of Arrow or of the update function takes about as long for ten rows as for a thousand. So the rows of several
partitions are encoded, passed and decoded at once. Only reads and writes of the stores are by partition.
"""

from __future__ import annotations

import difflib
import inspect
import re
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.operator.declaration import (
    LATE_OUTPUT,
    TIMER_COLUMN,
    Frames,
    StatefulOperator,
    TimerFunction,
    Update,
)
from statekeeper.pipelines.operator.frames import to_pandas
from statekeeper.pipelines.operator.times import Batch
from statekeeper.pipelines.task.event_time import EventTime
from statekeeper.pipelines.task.group_stores import GroupStores, Numbers, PlacedKeys, Stores, partition_runs
from statekeeper.pipelines.task.initial_rows import INPUT, InitialRows
from statekeeper.pipelines.task.keyed_state import KeyedState
from statekeeper.pipelines.task.partitioning import GROUP_COLUMN, Partitioning
from statekeeper.pipelines.task.reports import TimeCounts
from statekeeper.pipelines.task.results import as_outputs
from statekeeper.pipelines.task.task_outputs import Tables
from statekeeper.pipelines.task.timers_and_expiry import TimedState, Times, timestamps
from statekeeper.pipelines.task.whole_keys import Piece, WholeKeys
from statekeeper.statestore.base.errors import UnusableFunction, WrongResult
from statekeeper.statestore.format.state_rows import decode_keys, encode_keys
from statekeeper.statestore.format.unsafe_row import normalise_keys
from statekeeper.statestore.root.times import BatchTimes


class PartitionGroup:
    """Processes the rows of adjacent partitions, whose stores are open.

    stores        partition -> its stores; all partitions of the group, in order
    partitioning  of the keys to partitions
    times         of the batch
    inputs        the names of the inputs, if the rows have the column of their input
    initial       initial rows among the rows of batch 0; None without
    """

    def __init__(
        self,
        operator: StatefulOperator,
        row_columns: pa.Schema,
        stores: Mapping[int, Stores],
        *,
        partitioning: Partitioning,
        times: BatchTimes,
        inputs: Sequence[str] = (),
        initial: InitialRows | None = None,
    ) -> None:
        self.rows_in = dict.fromkeys(stores, 0)
        self.late_rows = dict.fromkeys(stores, 0)
        self._operator = operator
        self._row_columns = pa.schema([*row_columns, pa.field(GROUP_COLUMN, pa.int32())])
        self._key_columns = operator.key_columns(row_columns)
        self._stores = GroupStores(stores)
        self._partitioning = partitioning
        self._state = KeyedState(
            operator, self._key_columns, self._stores, key_groups_of=partitioning.groups_of, times=times
        )
        self._event_time = None if operator.event_time is None else EventTime(operator, times, inputs)
        self._batch = Batch.of(times)
        self._takes_batch = takes_batch(operator.update)
        self._initial = initial
        self._unfinished = list(stores)

    def time_counts(self, partition: int) -> TimeCounts:
        """Count late rows, timers and expired rows of a partition, after `process_all`."""
        return TimeCounts(
            late_rows=self.late_rows[partition],
            fired_timers=self._state.fired(partition),
            expired_rows=sum(expiry.deleted[partition] for expiry in self._state.expiries.values()),
            latest_event_ms={} if self._event_time is None else self._event_time.latest_ms,
        )

    def process_all(self, batches: Iterator[pa.RecordBatch]) -> Generator[Tables]:
        """Process the rows, sorted by key group, and return the outputs piece by piece.

        Commit the stores of a partition when its last rows are processed and its timers have fired. So the changes of one
        piece are in memory, and not those of the group.
        """
        if self._initial is None:
            yield from self._process_input(batches)
        else:
            for kind, rows in self._initial.by_kind(batches):
                if kind != INPUT:
                    yield from self._put_initial(kind, rows)
                elif not self._initial.has_duplicates:
                    yield from self._process_input(rows)
                if self._initial.has_enough_examples:
                    break
            self._initial.require_unique()
        yield from self._finish_until(None)

    def _process_input(self, batches: Iterator[pa.RecordBatch]) -> Generator[Tables]:
        whole_keys = WholeKeys(self._encode_keys, self._operator.pieces, key_columns=list(self._operator.keys))
        for batch in batches:
            rows = self._named(batch)
            late = None if self._event_time is None else self._event_time.late(rows)
            if late is not None:
                yield {LATE_OUTPUT: self._counted(rows.filter(late))}
                rows = rows.filter(pc.invert(late))
            for piece in whole_keys.push(self._with_normal_keys(rows)):
                yield from self._process(piece)
        for piece in whole_keys.rest():
            yield from self._process(piece)

    def _with_normal_keys(self, rows: pa.Table) -> pa.Table:
        """Zeros of both signs are one key, and so are all NaNs. A function that groups by key must see one value."""
        keys = list(self._operator.keys)
        normal = normalise_keys(rows.select(keys))
        for key in keys:
            rows = rows.set_column(rows.schema.get_field_index(key), rows.schema.field(key), normal[key])
        return rows

    def _counted(self, late: pa.Table) -> pa.Table:
        """Count late rows. They are dropped unless the query has a sink for them."""
        for partition, part in partition_runs(self._partitions(late)):
            self.late_rows[partition] += part.stop - part.start
        return late.drop_columns([GROUP_COLUMN])

    def _put_initial(self, kind: int, batches: Iterator[pa.RecordBatch]) -> Generator[Tables]:
        assert self._initial is not None
        group = len(self._row_columns) - 1
        for rows in batches:
            for partition, part in partition_runs(self._partitions_of(rows.column(group))):
                if not self._initial.has_duplicates:
                    yield from self._finish_until(partition)
                self._initial.put(kind, rows[part], partition, self._state)

    def _finish_until(self, partition: int | None) -> Generator[Tables]:
        """Finish and commit the partitions before this one, which get no more rows; None: all."""
        while self._unfinished and (partition is None or self._unfinished[0] < partition):
            number = self._unfinished.pop(0)
            yield from self._fire_timers(number)
            for expiry in self._state.expiries.values():
                expiry.delete_expired(number)
            self._stores.commit(number)

    def _named(self, batch: pa.RecordBatch) -> pa.Table:
        # Spark passes timestamps in the session's time zone; the state holds UTC.
        return pa.Table.from_batches([batch]).rename_columns(self._row_columns.names).cast(self._row_columns)

    def _encode_keys(self, rows: pa.Table) -> pa.LargeBinaryArray:
        groups = rows.column(GROUP_COLUMN).to_numpy()
        return encode_keys(groups, rows.select(list(self._operator.keys)).cast(self._key_columns))

    def _partitions(self, rows: pa.Table) -> Numbers:
        return self._partitions_of(rows.column(GROUP_COLUMN))

    def _partitions_of(self, groups: pa.Array | pa.ChunkedArray) -> Numbers:
        return self._partitioning.of_key_groups(groups.to_numpy().astype(np.int64))

    def _process(self, piece: Piece) -> Generator[Tables]:
        partitions = self._partitions(piece.rows)
        yield from self._finish_until(int(partitions[0]))
        for partition, part in partition_runs(partitions):
            self.rows_in[partition] += part.stop - part.start
        first = piece.first_of_key()
        keys = PlacedKeys(piece.keys.filter(first), partitions[first.to_numpy(zero_copy_only=False)])
        rows = piece.rows.drop_columns([GROUP_COLUMN])
        key_rows = rows.select(list(self._operator.keys)).filter(first)
        latest_us = None if self._event_time is None else self._event_time.latest_of_keys(rows, first)
        further = (self._batch,) if self._takes_batch else ()
        yield self._call(self._operator.update, rows, keys, key_rows, further, latest_us=latest_us)

    def _fire_timers(self, partition: int) -> Generator[Tables]:
        timers, timed, function = self._state.timers, self._state.timed, self._operator.on_timer
        if timed is not None and function is not None:
            yield from self._end(timed, function, partition)
        if timers is None or function is None:
            return
        for keys, fired in timers.take_due(partition, self._operator.pieces.rows):
            key_rows = decode_keys(keys.keys, self._key_columns)
            given = key_rows.append_column(TIMER_COLUMN, timestamps(fired))
            yield self._call(function, given, keys, key_rows, (self._batch,), fired=fired)

    def _end(self, timed: TimedState, function: TimerFunction, partition: int) -> Generator[Tables]:
        """Pass the state that is due to the function. It is already deleted."""
        for key_rows, state in timed.take_due(partition, self._operator.pieces.rows):
            given = key_rows.append_column(TIMER_COLUMN, key_rows.column(self._operator.timer_key))
            with _existing_columns({"rows": given, "state": state}):
                update = function(self._frame(given), self._frame(state), self._batch)
            if not isinstance(update, Update):
                raise WrongResult(f"`on_timer` returned {type(update).__name__}", hint="return an Update")
            for what, part in (("state", update.state), ("deletions", update.deleted), ("timers", update.timers)):
                if part is not None and len(part):
                    raise WrongResult(
                        f"`on_timer` returned {what} of {len(part)} keys, but the state of a key ends with its timer",
                        hint="return only output, or omit `timer_key`",
                    )
            yield as_outputs(update.output, self._operator)

    def _call(
        self,
        function: Callable[..., Update],
        rows: pa.Table,
        keys: PlacedKeys,
        key_rows: pa.Table,
        further: tuple[Batch, ...],
        **times: Times | None,
    ) -> Tables:
        """Call a function with rows and the state of their keys, write its changes, and return its outputs."""
        read = self._state.read(keys, key_rows)
        with _existing_columns({"rows": rows, **self._titles(read.tables)}):
            update = function(self._frame(rows), self._frames(read.tables), *further)
        if not isinstance(update, Update):
            raise WrongResult(f"the update function returned {type(update).__name__}", hint="return an Update")
        self._state.apply(update, keys, read, **times)
        return as_outputs(update.output, self._operator)

    def _frames(self, state: Mapping[str, pa.Table]) -> Any:
        if self._operator.has_one_store:
            return self._frame(next(iter(state.values())))
        return {name: self._frame(table) for name, table in state.items()}

    def _titles(self, state: Mapping[str, pa.Table]) -> Mapping[str, pa.Table]:
        """The state by its name in an error."""
        return {"state" if self._operator.has_one_store else f"state[{name!r}]": table for name, table in state.items()}

    def _frame(self, table: pa.Table) -> Any:
        return to_pandas(table) if self._operator.frames is Frames.PANDAS else table


_LIBRARIES = ("pyarrow", "pandas")
_MISSING_COLUMN = (
    re.compile(r'Field "(?P<name>.+)" does not exist in schema'),
    re.compile(r"FieldRef\.Name\((?P<name>.+?)\)(?: |$)"),
    re.compile(r"Column '(?P<name>.+)' not found"),
    re.compile(r"Column (?P<name>.+) does not exist in schema"),
    re.compile(r"object has no attribute '(?P<name>.+)'"),
    re.compile(r"^\W*(?:None of \[Index\(\[)?'(?P<name>[^']+)'"),
)
"""What Arrow and pandas say of a column that a table does not have."""


@contextmanager
def _existing_columns(tables: Mapping[str, pa.Table]) -> Iterator[None]:
    """Raise `UnusableFunction` if a function reads a column that none of its tables has: usually a misspelt one."""
    try:
        yield
    except (KeyError, pa.ArrowInvalid, AttributeError) as error:
        frames = list(traceback.walk_tb(error.__traceback__))
        of_user = [(frame, line) for frame, line in frames if not _module(frame).startswith(_LIBRARIES)]
        name = next((found["name"] for one in _MISSING_COLUMN if (found := one.search(str(error)))), None)
        columns = list(dict.fromkeys(column for table in tables.values() for column in table.column_names))
        if name is None or name in columns or frames[-1] == of_user[-1]:
            raise
        frame, line = of_user[-1]
        near = difflib.get_close_matches(name, columns, 1)
        have = "; ".join(f"{title}: {', '.join(table.column_names)}" for title, table in tables.items())
        raise UnusableFunction(
            f"the function reads column {name!r}, which neither its rows nor its state have "
            f"({Path(frame.f_code.co_filename).name}, line {line}); the batch was not committed",
            hint=f"did you mean {near[0]!r}? It gets {have}" if near else f"it gets {have}",
        ) from error


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def takes_batch(update: Callable[..., Any]) -> bool:
    """Return whether an update function takes a third argument."""
    try:
        inspect.signature(update).bind(None, None, None)
    except (TypeError, ValueError):
        return False  # functions written in C can lack a signature
    return True
