"""A harness gives the function the rows that Spark gives it, and returns the output and the state of a query."""

from __future__ import annotations

import datetime as dt
import math
import random
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.testing.harness import OperatorHarness
from tests.support.streams import Stream

# Spark's workers need not find this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

INNER = pa.struct([("real", pa.float32()), ("list", pa.list_(pa.string()))])
KEYS = pa.schema([("text", pa.string()), ("real", pa.float64()), ("inner", INNER)])
ORDER = pa.schema(
    [
        ("flag", pa.bool_()),
        ("money", pa.decimal128(20, 2)),
        ("data", pa.binary()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("items", pa.list_(pa.float64())),
        ("id", pa.int64()),
    ]
)
ROWS = pa.schema([*KEYS, *ORDER])
COUNT = pa.schema([("rows", pa.int64())])
OUTPUT = pa.schema([("id", pa.int64()), ("place", pa.int64()), ("known", pa.int64())])
VALUES: dict[str, list[Any]] = {
    "text": [None, "", "a", "ä", "\uffff", "😀"],
    "real": [None, math.nan, -0.0, 0.0, -math.inf, 1.5],
    "inner": [None, {"real": None, "list": None}, {"real": -0.0, "list": []}, {"real": 0.0, "list": [None, "x"]}],
    "flag": [None, True, False],
    "money": [None, Decimal("-1.50"), Decimal("999999999999999999.99")],
    "data": [None, b"", b"\x7f", b"\x80"],
    "day": [None, dt.date(1, 1, 1), dt.date(2026, 1, 1)],
    "moment": [None, dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
    "items": [None, [], [None], [math.nan], [1.0], [1.0, -math.inf]],
}


def update(rows: pa.Table, state: pa.Table) -> Update:
    """Return the place of each row in the call. The state counts the rows of each key."""
    names = KEYS.names
    count = {repr([row[name] for name in names]).replace("-0.0", "0.0"): row["rows"] for row in state.to_pylist()}
    known, of_key = [], {}
    for row in rows.to_pylist():
        key = repr([row[name] for name in names]).replace("-0.0", "0.0")
        known.append(count.get(key, 0))
        first, seen = of_key.get(key, (row, count.get(key, 0)))
        of_key[key] = first, seen + 1
    new = pa.Table.from_pylist([{**row, "rows": seen} for row, seen in of_key.values()], pa.schema([*KEYS, *COUNT]))
    places = pa.array(range(rows.num_rows), pa.int64())
    return Update(pa.table([rows["id"], places, pa.array(known, pa.int64())], schema=OUTPUT), new)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 5])
def test_order_output_and_state_are_those_of_a_query(
    delta_session: SparkSession, tmp_path: Path, partitions: int
) -> None:
    chance = random.Random(partitions)
    batches = [
        [{"id": batch * 1000 + n, **{name: chance.choice(of) for name, of in VALUES.items()}} for n in range(300)]
        for batch in range(3)
    ]
    operator = StatefulOperator(KEYS.names, ORDER.names, state=COUNT, output=OUTPUT, update=update)
    stream = Stream(delta_session, tmp_path, ROWS)
    with OperatorHarness(operator, columns=ROWS, partitions=partitions, key_groups=8) as harness:
        output: list[dict[str, Any]] = []
        for rows in batches:
            stream.append(pa.Table.from_pylist(rows, ROWS))
            result = harness.batch(rows)
            output += result.output.to_pylist()
    stream.run(operator, partitions=partitions, tasks=1)
    assert stream.output() == sorted(output, key=repr)
    ours = sorted((repr(tuple(row.values())[:3]), row["rows"]) for row in result.state.to_pylist())
    theirs = sorted((repr((k[0], k[1], k[2] and k[2].asDict())), v[0]) for k, v in stream.state_rows())
    assert ours == theirs
