"""The open sessions of keys: one row per session, or one row per key with a list of sessions, as in the state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.operators.merging import merged
from statekeeper.pipelines.operators.partial import Aggregates

START, END, OPEN = "session_start", "session_end", "sessions"


def one_by_one(state: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return a row for each session of the keys."""
    lists = state[OPEN].combine_chunks()
    found = state.select(list(keys)).take(pc.list_parent_indices(lists))
    sessions = pc.list_flatten(lists)
    for field, column in zip(sessions.type, sessions.flatten(), strict=True):
        found = found.append_column(field, column)
    return found


def by_key(sessions: pa.Table, keys: Sequence[str], column: pa.Field) -> pa.Table:
    """Return a row for each key with the list of its sessions; the inverse of `one_by_one`."""
    ordered, first = _grouped(sessions, keys)
    starts = np.append(np.flatnonzero(first), len(first))
    values = ordered.select([field.name for field in column.type.value_type])
    items = pa.StructArray.from_arrays(
        [each.combine_chunks() for each in values.columns], fields=list(column.type.value_type)
    )
    lists = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), items, type=column.type)
    return ordered.select(list(keys)).take(starts[:-1]).append_column(column, lists)


def joined(sessions: pa.Table, keys: Sequence[str], aggregates: Aggregates) -> pa.Table:
    """Merge the sessions of a key that overlap or touch."""
    ordered, first = _grouped(sessions.sort_by(START), keys)
    starts, ends = (ordered[name].combine_chunks().cast(pa.int64()).to_numpy() for name in (START, END))
    order = np.argsort(ends, kind="stable")
    ranks = np.empty(len(ends), np.int64)
    ranks[order] = np.arange(len(ends))
    # The latest end so far of each key: ranks instead of times, so that the number of the key fits before them.
    running = np.maximum.accumulate(np.cumsum(first) * len(ends) + ranks) % max(len(ends), 1)
    latest_before = np.concatenate([starts[:1], ends[order][running][:-1]])
    begins = first | (starts > latest_before)
    bounds = {START: ("min", START), END: ("max", END)}
    numbered = ordered.drop_columns(list(keys)).append_column("number", pa.array(np.cumsum(begins)))
    found = merged([numbered], ["number"], {**bounds, **aggregates}).drop_columns("number")
    key_rows = ordered.select(list(keys)).filter(pa.array(begins))
    return pa.table([*key_rows.columns, *found.columns], names=[*keys, *found.column_names])


def _grouped(rows: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, np.ndarray]:
    """Return the rows by key, otherwise in their order, and which is the first of its key."""
    numbered = rows.select(list(keys)).append_column("row", pa.array(np.arange(rows.num_rows)))
    places = numbered.group_by(list(keys), use_threads=False).aggregate([("row", "list")])["row_list"].combine_chunks()
    of_key = pc.list_parent_indices(places).to_numpy()
    return rows.take(pc.list_flatten(places)), np.diff(of_key, prepend=-1) > 0
