"""Batches in which 10,000 keys expire, or as many timers fire, in states of different sizes."""

from __future__ import annotations

import argparse
import datetime as dt
import tempfile
from pathlib import Path
from time import perf_counter

import pyarrow as pa

from benchmarks.measure import Spread, Table, flat, ratio, verdict
from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, Batch, Ttl
from tests.support.timed_query import ROWS, TimedQuery, at

SIZES = (10_000, 1_000_000)
LARGE = (10_000, 1_000_000, 10_000_000)
DUE = 10_000
PARTITIONS = 4
_AT_ONCE = 250_000
_OUTPUT = pa.schema([("key", pa.int64())])
_LATER_MINUTES = 30 * 24 * 60


def run(options: argparse.Namespace) -> list[Table]:
    """Run the benchmark."""
    sizes = LARGE if options.large else SIZES
    operators = {"state that expires": _expiring(), "timers": _firing()}
    return [_compare(what, operator, sizes, options.rounds) for what, operator in operators.items()]


def _compare(what: str, operator: StatefulOperator, sizes: tuple[int, ...], rounds: int) -> Table:
    due: dict[int, list[list[float]]] = {size: [] for size in sizes}
    idle: dict[int, list[list[float]]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory(prefix="statekeeper-benchmark-") as name:
        queries = {size: _Query(Path(name) / str(size), operator, size) for size in sizes}
        for _ in range(rounds):
            for size, query in queries.items():
                before, at_time = query.round()
                idle[size].append([before])
                due[size].append([at_time])
    first = sizes[0]
    return Table(
        title=f"Batch with {DUE:,} keys that are due, {what}, {PARTITIONS} partitions in one task, no input",
        columns=["keys in the state", "ms, keys due", "ms, nothing due"],
        rows=[
            [
                f"{size:,}",
                Spread.of([value * 1000 for value in flat(due[size])]).shown(),
                Spread.of([value * 1000 for value in flat(idle[size])]).shown(1),
            ]
            for size in sizes
        ],
        targets=[
            verdict(f"{size:,} keys to {first:,}, keys due", ratio(due[size], due[first]), at_most=1.3)
            for size in sizes[1:]
        ],
        notes=[
            "The task only, without Spark and without a sink: opening the stores, finding and deleting the keys, commits "
            "to local disk.",
            "The other keys of the state are due after 30 days. Local copies are advanced between the batches.",
            f"{rounds} alternating rounds, each with new keys.",
        ],
    )


class _Query:
    """A query whose state has `size` keys. In each round, `DUE` of them are due."""

    def __init__(self, folder: Path, operator: StatefulOperator, size: int) -> None:
        self._query = TimedQuery(folder, operator, PARTITIONS)
        self._now = 0.0
        for first in range(DUE, size, _AT_ONCE):
            self._put(range(first, min(first + _AT_ONCE, size)), at(_LATER_MINUTES))

    def round(self) -> tuple[float, float]:
        """Put keys that are due two minutes later. Return the seconds of a batch before that time, and of one at it."""
        self._put(range(DUE), at(self._now + 2))
        return self._timed(), self._timed()

    def _put(self, keys: range, time: dt.datetime) -> None:
        rows = {"key": keys, "value": [1] * len(keys), "at": pa.array([time] * len(keys), TIMESTAMP)}
        self._query.batch(pa.table(rows, schema=ROWS), now=self._now)
        self._query.advance_local_copies()

    def _timed(self) -> float:
        self._query.advance_local_copies()
        self._now += 1
        began = perf_counter()
        self._query.batch(now=self._now)
        return perf_counter() - began


def _expiring() -> StatefulOperator:
    """The state of a key expires at the time in its row."""

    def update(rows: pa.Table, state: pa.Table) -> Update:
        del state
        return Update(_OUTPUT.empty_table(), rows.select(["key", "value", "at"]))

    values = pa.schema([("value", pa.int64()), ("at", TIMESTAMP)])
    return StatefulOperator(["key"], [], state=values, output=_OUTPUT, update=update, ttl=Ttl("0s", column="at"))


def _firing() -> StatefulOperator:
    """A timer at the time in the row of a key deletes the state of the key."""

    def update(rows: pa.Table, state: pa.Table) -> Update:
        del state
        return Update(_OUTPUT.empty_table(), rows.select(["key", "value"]), timers=rows.select(["key", "at"]))

    def on_timer(keys: pa.Table, state: pa.Table, batch: Batch) -> Update:
        del state, batch
        return Update(keys.select(["key"]), deleted=keys.select(["key"]))

    return StatefulOperator(
        ["key"],
        [],
        state=pa.schema([("value", pa.int64())]),
        output=_OUTPUT,
        update=update,
        timers="processing",
        on_timer=on_timer,
    )
