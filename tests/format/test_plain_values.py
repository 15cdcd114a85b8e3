"""Columns as JSON values."""

from __future__ import annotations

import datetime as dt
import decimal
import json

import pyarrow as pa
import pytest

from statekeeper.statestore.format.plain_values import plain_rows, unique_names

AT = dt.datetime(2026, 3, 1, 12, 30, 0, 5, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "value", "plain"),
    [
        (pa.int64(), 2**63 - 1, 2**63 - 1),
        (pa.bool_(), True, True),
        (pa.string(), 'a "text"\n', 'a "text"\n'),
        (pa.float64(), 0.1, 0.1),
        (pa.float64(), float("nan"), "NaN"),
        (pa.float32(), float("-inf"), "-Infinity"),
        (pa.float64(), float("inf"), "Infinity"),
        (pa.binary(), b"\0\xff", "AP8="),
        (pa.date32(), dt.date(1969, 12, 31), "1969-12-31"),
        (pa.timestamp("us", tz="UTC"), AT, "2026-03-01T12:30:00.000005Z"),
        (pa.timestamp("us"), AT.replace(tzinfo=None), "2026-03-01T12:30:00.000005"),
        (pa.timestamp("us", tz="UTC"), 253_402_300_800_000_000, "10000-01-01T00:00:00.000000Z"),
        (pa.decimal128(38, 2), decimal.Decimal("-0.10"), "-0.10"),
        (pa.list_(pa.int32()), [1, None], [1, None]),
        (pa.map_(pa.int32(), pa.string()), [(7, "x")], [{"key": 7, "value": "x"}]),
        (pa.struct([("a", pa.list_(pa.date32()))]), {"a": [dt.date(2026, 3, 1)]}, {"a": ["2026-03-01"]}),
        (pa.null(), None, None),
    ],
)
def test_values_of_each_type_have_a_json_form(kind: pa.DataType, value: object, plain: object) -> None:
    table = pa.table({"x": pa.array([None, value, None], kind)})
    found = plain_rows(table)
    assert found == [{"x": None}, {"x": plain}, {"x": None}]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    # Also when the column is a part of a larger one.
    assert plain_rows(table.slice(1, 1)) == [{"x": plain}]


def test_columns_with_the_same_name_keep_their_values() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["sum", "sum", "sum_2"])
    assert plain_rows(table) == [{"sum": 1, "sum_2": 2, "sum_2_2": 3}]
    assert unique_names(["a", "b", "a", "a"]) == ["a", "b", "a_2", "a_3"]


def test_rows_without_columns_are_empty_objects() -> None:
    assert plain_rows(pa.table({"x": pa.array([1, 2])}).select([])) == [{}, {}]
