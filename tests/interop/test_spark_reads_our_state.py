"""Spark's own `statestore` source reads the root of a stateful operator."""

from __future__ import annotations

import datetime as dt
import decimal
import sys

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from statekeeper.pipelines import DeltaSink, NoSink
from statekeeper.pipelines.flights import departures as source
from statekeeper.pipelines.flights import job
from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from tests.support import flights_in_pandas
from tests.support.sparks_reader import state_frame
from tests.support.streams import Stream

pytestmark = pytest.mark.spark

# Spark's workers cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_spark_reads_the_state_of_the_flights_row_for_row_after_each_batch(tmp_path, delta_session):
    days = source.days(source.departures())[:3]
    stream = Stream(delta_session, tmp_path, source.SCHEMA)
    for day in days:
        stream.append(day)
    stream.run(job.OPERATOR, partitions=3, sink={job.FACTS: DeltaSink(stream.facts), job.GROUNDED: NoSink()})
    flights = flights_in_pandas.flights()
    for batch in range(3):
        expected = flights_in_pandas.state(flights.head(sum(day.num_rows for day in days[: batch + 1])))
        state = state_frame(delta_session, str(stream.root), batch=batch)
        flights_in_pandas.assert_state_equal(state, expected)
    newest = state_frame(delta_session, str(stream.root))
    assert sorted(newest["partition_id"].unique()) == [0, 1, 2]
    pd.testing.assert_frame_equal(newest, state)
    with pytest.raises(AssertionError):
        flights_in_pandas.assert_state_equal(newest.drop(index=17), expected)


VALUES = pa.schema(
    [
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int16()),
        pa.field("real", pa.float32()),
        pa.field("text", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("instant", pa.timestamp("us", tz="UTC")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("wide", pa.decimal128(30, 5)),
        pa.field("list", pa.list_(pa.int64())),
        pa.field("pair", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])),
    ]
)


def value_of(number):
    """A row of VALUES; each third has nulls in every other column."""
    row = {
        "flag": number % 2 == 0,
        "small": number - 50,
        "real": number / 4,
        "text": "ß" * (number % 11),
        "raw": bytes(range(number % 13)),
        "day": dt.date(1970, 1, 1) + dt.timedelta(days=number * 100 - 3000),
        "instant": dt.datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC) + dt.timedelta(hours=number),
        "price": decimal.Decimal(number * 100 - 5000) / 100,
        "wide": decimal.Decimal(10) ** 20 + decimal.Decimal(number) / 100_000,
        "list": list(range(number % 4)),
        "pair": {"a": number, "b": None if number % 5 == 0 else str(number)},
    }
    return {name: None if number % 3 == 0 and at % 2 else value for at, (name, value) in enumerate(row.items())}


def keep_two_stores(rows, state):
    """Store `values`: the newest row of VALUES of each key; store `counts`: how often it was seen; 7s are forgotten."""
    numbers = rows["number"].unique().sort()
    keys = pa.table({"number": numbers})
    counts = dict(zip(*(state["counts"][name].to_pylist() for name in ("number", "seen")), strict=True))
    values = pa.Table.from_pylist([value_of(number) for number in numbers.to_pylist()], schema=VALUES)
    seen = pa.array([counts.get(number, 0) + 1 for number in numbers.to_pylist()], pa.int64())
    forgotten = pa.table({"number": pa.array([n for n in numbers.to_pylist() if n % 7 == 0], pa.int64())})
    kept = pa.Table.from_arrays([numbers, *values.columns], names=["number", *VALUES.names])
    kept = kept.filter(pa.array([n % 7 != 0 for n in numbers.to_pylist()]))
    return Update(
        keys, state={"values": kept, "counts": keys.append_column("seen", seen)}, deleted={"values": forgotten}
    )


TWO_STORES = StatefulOperator(
    keys=["number"],
    order_by=[],
    state={"values": VALUES, "counts": pa.schema([pa.field("seen", pa.int64(), nullable=False)])},
    output=pa.schema([pa.field("number", pa.int64())]),
    update=keep_two_stores,
)


def test_spark_reads_named_stores_with_values_of_many_types(tmp_path, delta_session):
    stream = Stream(delta_session, tmp_path, pa.schema([pa.field("number", pa.int64())]))
    for numbers in (range(60), range(40, 100)):
        stream.append({"number": list(numbers)})
    stream.run(TWO_STORES)

    values = state_frame(delta_session, str(stream.root), operator=0).set_index("number").drop(columns="partition_id")
    assert sorted(values.index) == [n for n in range(100) if n % 7]
    for number, row in values.iterrows():
        for name, expected in value_of(number).items():
            found = row[name]
            if expected is None:
                assert found is None or pd.isna(found), (number, name, found)
            elif name == "pair":
                assert dict(found) == expected
            elif name == "list":
                assert list(found) == expected
            elif name == "instant":
                assert found == expected
            elif name == "raw":
                assert bytes(found) == expected
            else:
                assert found == expected, (number, name)

    counts = state_frame(delta_session, str(stream.root), operator=1).set_index("number")["seen"].to_dict()
    assert counts == {n: 2 if 40 <= n < 60 else 1 for n in range(100)}
