"""Update function of the flights job: for each flight, facts from the past flights of its aircraft.

What belongs here: arithmetic on Arrow tables. It knows nothing of Spark, of batches or of where state is kept.

Every column is computed for all rows of all aircraft at once. Rows come as runs of equal `tailnum`; a running value
starts, in each run, from the state of that aircraft, and never looks across the border of its run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.flights.departures import ARRIVAL_ORDER

Array = np.ndarray[tuple[int], np.dtype[Any]]

_INSTANT = pa.timestamp("us", tz="UTC")
_MICROS_PER_MINUTE = 60_000_000

KEYS = ("tailnum",)
"""The aircraft. It is null if the aircraft is unknown; such flights have no past."""

ORDER = ARRIVAL_ORDER
"""The order of rows within a key."""

STATE_SCHEMA = pa.schema(
    [
        pa.field("legs", pa.int64(), nullable=False),
        pa.field("dep_delay_sum", pa.float64(), nullable=False),
        pa.field("worst_dep_delay", pa.float64(), nullable=False),
        pa.field("last_departed_at", _INSTANT, nullable=False),
        pa.field("last_arr_delay", pa.float64()),
    ]
)
"""The value columns of the state; a state table has the key column before them.

An aircraft has state from its first flown leg on. The sum is kept, not the mean: delays are whole minutes, so that the
sum is exact in any grouping and a replay in other batches gives the same bits. `last_arr_delay` is null when the last
leg was diverted.
"""

OUTPUT_SCHEMA = pa.schema(
    [
        pa.field("scheduled_at", _INSTANT, nullable=False),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dest", pa.string(), nullable=False),
        pa.field("tailnum", pa.string()),
        pa.field("leg", pa.int64()),
        pa.field("minutes_since_previous_departure", pa.float64()),
        pa.field("mean_dep_delay", pa.float64()),
        pa.field("worst_dep_delay", pa.float64()),
        pa.field("inherited_delay", pa.float64()),
    ]
)
"""One fact per flight, named by (scheduled_at, carrier, flight, origin). Delays in minutes."""

_GIVEN = ("scheduled_at", "carrier", "flight", "origin", "dest", "tailnum")


def update(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The facts of `rows`, in their order, and the new state of the aircraft that flew.

    `rows` has the columns of `departures.SCHEMA`, sorted by `KEYS`, then `ORDER`; nulls may come first or last.
    `state` has the key column and those of `STATE_SCHEMA`, one row for each key of `rows` that has state, in any order.

    A key's rows may come in consecutive pieces: with the state of each piece handed to the next, the facts and the
    last state are those of one call.
    """
    if not rows.num_rows:
        return OUTPUT_SCHEMA.empty_table(), _state_table([], {name: [] for name in STATE_SCHEMA.names})
    tailnum = _one_array(rows["tailnum"]).cast(pa.string())
    runs = _Runs.of(tailnum)
    past = _Past.of(tailnum.take(pa.array(runs.start)), state)

    event = _instants(rows["event_at"])
    dep_delay = _floats(rows["dep_delay"])
    arr_delay = _floats(rows["arr_delay"])
    flown = ~np.isnan(dep_delay)

    legs = runs.running(np.add, flown.astype(np.int64), past.legs)
    total = runs.running(np.add, np.where(flown, dep_delay, 0.0), past.dep_delay_sum)
    worst = runs.running(np.maximum, np.where(flown, dep_delay, -np.inf), past.worst_dep_delay)

    # The flown leg before each row: within the run where there is one, else the one that the state remembers.
    latest = np.maximum.accumulate(np.where(flown, np.arange(len(flown)), -1))
    before = np.concatenate(([-1], latest[:-1]))
    in_run = before >= runs.start[runs.of_row]
    has_previous = in_run | (past.legs > 0)[runs.of_row]
    previous_departure = np.where(in_run, event[before], past.last_departed_at[runs.of_row])
    previous_arr_delay = np.where(in_run, arr_delay[before], past.last_arr_delay[runs.of_row])
    # np.minimum and np.maximum hand NaN on: unknown on either side, or no leg before, makes this unknown.
    inherited = np.minimum(np.maximum(dep_delay, 0.0), np.maximum(previous_arr_delay, 0.0))

    known = tailnum.is_valid().to_numpy(zero_copy_only=False)
    has_flown = known & (legs > 0)
    facts = {
        "leg": pa.array(legs, mask=~known),
        "minutes_since_previous_departure": pa.array(
            (event - previous_departure) / _MICROS_PER_MINUTE, mask=~(known & flown & has_previous)
        ),
        "mean_dep_delay": pa.array(total / np.maximum(legs, 1), mask=~has_flown),
        "worst_dep_delay": pa.array(worst, mask=~has_flown),
        "inherited_delay": pa.array(inherited, mask=~known | np.isnan(inherited)),
    }
    columns = [rows[name].cast(OUTPUT_SCHEMA.field(name).type) for name in _GIVEN]
    output = pa.table([*columns, *(facts[name] for name in OUTPUT_SCHEMA.names[len(_GIVEN) :])], schema=OUTPUT_SCHEMA)

    # Only aircraft that flew: a cancelled flight alone must not make a change that is then uploaded for nothing.
    last = runs.last[known[runs.last] & (legs[runs.last] > past.legs)]
    last_leg = latest[last]
    changed = {
        "legs": legs[last],
        "dep_delay_sum": total[last],
        "worst_dep_delay": worst[last],
        "last_departed_at": pa.array(event[last_leg]).cast(_INSTANT),
        "last_arr_delay": pa.array(arr_delay[last_leg], mask=np.isnan(arr_delay[last_leg])),
    }
    return output, _state_table(tailnum.take(pa.array(last)), changed)


@dataclass(frozen=True)
class _Runs:
    """Runs of equal keys: where each starts and ends, and for each row its run and its place in it."""

    start: Array
    last: Array
    of_row: Array
    place: Array

    @classmethod
    def of(cls, keys: pa.Array) -> _Runs:
        codes = keys.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
        first = np.concatenate(([True], codes[1:] != codes[:-1]))
        start = np.flatnonzero(first)
        of_row = np.cumsum(first) - 1
        last = np.concatenate((start[1:], [len(codes)])) - 1
        return cls(start, last, of_row, np.arange(len(codes)) - start[of_row])

    def running(self, combine: np.ufunc, values: Array, seeds: Array) -> Array:
        """`combine` over each run up to and with each row, begun with the run's seed.

        After the pass with distance d a row holds the combination of the 2d rows that end with it, so a run of n rows
        takes log2(n) passes. One accumulation over everything, less what came before the run, would be a pass, but
        then the rounding (or an infinity) of one key gets into the values of the next; for a maximum it cannot be done.
        """
        result = values.copy()
        result[self.start] = combine(result[self.start], seeds)
        longest = int(self.place.max()) + 1
        distance = 1
        while distance < longest:
            inside = self.place[distance:] >= distance
            combine(result[distance:], result[:-distance], out=result[distance:], where=inside)
            distance *= 2
        return result


@dataclass(frozen=True, kw_only=True)
class _Past:
    """The state of each run's key; where there is none, what a running value starts from."""

    legs: Array
    dep_delay_sum: Array
    worst_dep_delay: Array
    last_departed_at: Array
    last_arr_delay: Array

    @classmethod
    def of(cls, keys: pa.Array, state: pa.Table) -> _Past:
        at = pc.index_in(keys, value_set=_one_array(state["tailnum"]).cast(pa.string()), skip_nulls=True)
        found = at.is_valid().to_numpy(zero_copy_only=False)
        taken = state.take(at.drop_null())

        def seeds(values: Array, otherwise: float) -> Array:
            result = np.full(len(found), otherwise, dtype=values.dtype)
            result[found] = values
            return result

        return cls(
            legs=seeds(taken["legs"].to_numpy(), 0),
            dep_delay_sum=seeds(_floats(taken["dep_delay_sum"]), 0.0),
            worst_dep_delay=seeds(_floats(taken["worst_dep_delay"]), -np.inf),
            last_departed_at=seeds(_instants(taken["last_departed_at"]), 0),
            last_arr_delay=seeds(_floats(taken["last_arr_delay"]), np.nan),
        )


def _state_table(tailnum: Any, values: dict[str, Any]) -> pa.Table:
    schema = pa.schema([pa.field("tailnum", pa.string(), nullable=False), *STATE_SCHEMA])
    return pa.table({"tailnum": tailnum, **values}, schema=schema)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _floats(column: pa.ChunkedArray) -> Array:
    """As float64, null as NaN."""
    result: Array = column.cast(pa.float64()).to_numpy()
    return result


def _instants(column: pa.ChunkedArray) -> Array:
    """As microseconds since the epoch."""
    result: Array = column.cast(_INSTANT).cast(pa.int64()).to_numpy()
    return result
