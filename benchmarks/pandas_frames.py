"""One call of an update function in pandas: Statekeeper's dtypes, pandas' default dtypes (lossy) and only ArrowDtype.

A call has the maximum number of rows that an operator passes. The time includes the conversions in both directions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks.measure import Spread, Table, flat, ratio
from statekeeper.pipelines.operator.frames import to_pandas
from statekeeper.pipelines.task.results import as_table

ROWS = 65_536
KEYS = 20_000
OURS = "nullable dtypes, otherwise ArrowDtype (Statekeeper)"
DTYPES: Mapping[str, Callable[[pa.Table], Any]] = {
    OURS: to_pandas,
    "ArrowDtype only": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas' defaults (lossy)": lambda table: table.to_pandas(),
}

Update = Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]


def highest(rows: pd.DataFrame, state: pd.DataFrame) -> pd.DataFrame:
    """Compute the update of the README's operator."""
    merged = rows.merge(state, on="key", how="left").fillna({"readings": 0, "highest": float("-inf")})
    merged["readings"] += merged.groupby("key", dropna=False).cumcount() + 1
    merged["highest"] = merged[["highest", "value"]].max(axis=1).groupby(merged["key"], dropna=False).cummax()
    return merged.drop_duplicates("key", keep="last")


def last_of_group(column: str) -> Update:
    """Return an update that selects the newest row of a key with `groupby`: slow."""
    return lambda rows, state: rows.groupby("key", as_index=False, dropna=False)[[column]].last()


def last_by_duplicates(column: str) -> Update:
    """Return an update that selects the newest row of a key with `drop_duplicates`: fast."""
    return lambda rows, state: rows[["key", column]].drop_duplicates("key", keep="last")


UPDATES: Mapping[str, Update] = {
    "the README's operator": highest,
    'groupby("key").last() of a string': last_of_group("name"),
    'groupby("key").last() of a date': last_of_group("day"),
    'drop_duplicates("key", keep="last") of a date': last_by_duplicates("day"),
}


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    rows, state = _given()
    lines = []
    for function, update in UPDATES.items():
        rounds = {name: _rounds(to_frame, update, rows, state, options.rounds) for name, to_frame in DTYPES.items()}
        lines += [
            [function, name, Spread.of(flat(taken)).shown(0), ratio(taken, rounds[OURS]).shown(2)]
            for name, taken in rounds.items()
        ]
    title = f"A call of {ROWS:,} rows of {KEYS:,} keys"
    return [Table(title=title, columns=["function", "dtypes", "ms per call", "ratio to Statekeeper's"], rows=lines)]


def _given() -> tuple[pa.Table, pa.Table]:
    random = np.random.default_rng(7)
    numbers = np.sort(random.integers(0, KEYS, ROWS))
    rows = pa.table(
        {
            "key": pa.array([f"sensor {number}" for number in numbers]),
            "value": random.random(ROWS),
            "name": pa.array([f"name {number}" for number in random.integers(0, 1000, ROWS)]),
            "day": pa.array(random.integers(0, 20_000, ROWS), pa.int32()).cast(pa.date32()),
        }
    )
    keys = pa.array([f"sensor {number}" for number in range(0, KEYS, 2)])
    counts = pa.array(range(len(keys)), pa.int64())
    return rows, pa.table({"key": keys, "readings": counts, "highest": random.random(len(keys))})


def _rounds(
    to_frame: Callable[[pa.Table], Any], update: Update, rows: pa.Table, state: pa.Table, rounds: int
) -> list[list[float]]:
    taken = []
    for _ in range(rounds + 1):
        began = perf_counter()
        found = update(to_frame(rows), to_frame(state))
        declared = pa.schema([_declared(rows, state, name) for name in found.columns])
        as_table(found, declared, "the output")
        taken.append([(perf_counter() - began) * 1000])
    return taken[1:]


def _declared(rows: pa.Table, state: pa.Table, name: str) -> pa.Field:
    return (rows if name in rows.column_names else state).schema.field(name)
