"""Operators with a `timer_key` on roots that an earlier release created: their timers are in stores of their own."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from statekeeper.pipelines.operator.declaration import TIMER_COLUMN, Frames, StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, Batch
from statekeeper.pipelines.task.partition_group import takes_batch
from statekeeper.pipelines.task.results import as_table
from statekeeper.statestore.format import names
from statekeeper.statestore.root.binding import parse_binding
from statekeeper.statestore.root.times import TIMERS
from statekeeper.statestore.storage import Storage, read_or_none


def as_in_root(operator: StatefulOperator, root: Storage) -> StatefulOperator:
    """Return the operator with the stores that a root has. A root keeps the stores with which it was created.

    Raises `CorruptFile`, `UnknownFormatVersion`, `StorageError`.
    """
    if operator.timer_key is None or operator.frames is not Frames.ARROW:
        return operator
    binding = read_or_none(root, names.BINDING)
    if binding is None or TIMERS not in [store.name for store in parse_binding(binding).stores]:
        return operator
    return with_separate_timers(operator, operator.timer_key)


def with_separate_timers(operator: StatefulOperator, timer_key: str) -> StatefulOperator:
    """Return an operator on Arrow tables that does the same without `timer_key`."""
    on_timer, keys, takes = operator.on_timer, list(operator.keys), takes_batch(operator.update)
    assert on_timer is not None

    def update(rows: pa.Table, state: pa.Table, batch: Batch) -> Update:
        result = operator.update(rows, state, *((batch,) if takes else ()))
        if not isinstance(result, Update):
            return result  # the caller reports it
        timers = []
        key_columns = operator.key_columns(rows.schema)
        if result.state is not None:
            new = as_table(result.state, key_columns, "state")
            timers.append(new.append_column(TIMER_COLUMN, new[timer_key]))
        if result.deleted is not None:
            gone = as_table(result.deleted, key_columns, "deleted")
            timers.append(gone.append_column(TIMER_COLUMN, pa.nulls(gone.num_rows, TIMESTAMP)))
        return replace(result, timers=pa.concat_tables(timers) if timers else None)

    def on_timer_and_delete(due: pa.Table, state: pa.Table, batch: Batch) -> Update:
        result = on_timer(due, state, batch)
        return replace(result, deleted=due.select(keys)) if isinstance(result, Update) else result

    return replace(operator, update=update, on_timer=on_timer_and_delete, timer_key=None)
