"""An update function in pandas sees and returns each value as it is, and nothing is cast with a loss."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statekeeper.pipelines.operator.declaration import Frames, Update
from statekeeper.pipelines.operator.frames import to_pandas
from statekeeper.pipelines.task.results import as_table
from statekeeper.statestore.base.errors import WrongResult
from statekeeper.statestore.format.state_rows import encode_values
from tests.support.partition_task import GIVEN, Task
from tests.support.typed_tables import tables

SLOW = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
UTC = dt.UTC
NAN = float("nan")


def there_and_back(table: pa.Table) -> pa.Table:
    return as_table(to_pandas(table), table.schema, "the output")


@SLOW
@given(tables())
def test_a_pandas_function_that_returns_its_input_changes_no_bit_of_any_type(table: pa.Table) -> None:
    back = there_and_back(table)
    back.validate(full=True)
    assert back.schema.equals(table.schema)
    assert encode_values(back).equals(encode_values(table)), "the bytes that the store would hold"


@SLOW
@given(st.lists(st.none() | st.integers(0, 2**64 - 1)), st.lists(st.none() | st.integers(0, 2**32 - 1)))
def test_nan_payloads_signed_zeros_and_nulls_are_preserved(doubles: list[int | None], floats: list[int | None]) -> None:
    for bits, word, kind in ((doubles, pa.uint64(), pa.float64()), (floats, pa.uint32(), pa.float32())):
        column = pa.array(bits, word).view(kind)
        back = there_and_back(pa.table({"real": column})).column("real").combine_chunks()
        assert back.view(word).to_pylist() == bits


FAR = [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1582, 10, 4), None]
WIDE = {
    "whole numbers beside nulls": pa.array([2**53, 2**53 + 1, None, -(2**63), 2**63 - 1], pa.int64()),
    "days outside of nanoseconds": pa.array(FAR, pa.date32()),
    "moments outside of nanoseconds": pa.array([-(2**63), 2**63 - 1, 0, None], pa.timestamp("us", tz="UTC")),
    "times on the wall": pa.array([-(2**63), 2**63 - 1, 0, None], pa.timestamp("us")),
    "decimals of 38 digits": pa.array([Decimal("9" * 38), None, Decimal(-1)], pa.decimal128(38, 0)),
    "bytes": pa.array([b"\0\xff", b"", None]),
    "texts that Python cannot decode": pa.array([b"\xff", b"a", None]).view(pa.string()),
    "structs, lists and maps of them": pa.array(
        [None, {"many": [None, 2**53 + 1], "by": [("k", NAN), ("l", None)]}],
        pa.struct([("many", pa.list_(pa.int64())), ("by", pa.map_(pa.string(), pa.float64()))]),
    ),
    "nothing but nulls": pa.nulls(3, pa.int64()),
    "nothing": pa.array([], pa.timestamp("us", tz="UTC")),
}


@pytest.mark.parametrize("what", WIDE)
def test_values_that_pandas_default_dtypes_change_are_preserved(what):
    table = pa.table({"c": WIDE[what]})
    assert encode_values(there_and_back(table)).equals(encode_values(table))


def test_keys_beyond_the_precision_of_a_double_stay_distinct_beside_a_null(tmp_path):
    task = Task(tmp_path, frames=Frames.PANDAS)
    keys = [2**53, 2**53 + 1, None]
    rows = pa.table({"key": keys, "name": ["a"] * 3, "value": keys}, schema=GIVEN.schema)
    seen = []

    def update(rows: Any, state: Any) -> Update:
        seen.append(state)
        grouped = rows.groupby(["key", "name"], dropna=False, as_index=False).agg(total=("value", "size"))
        return Update(rows.assign(label="x")[["key", "label"]], grouped.assign(tags=None))

    task._update = update
    assert [row["key"] for row in task.run(rows)] == keys
    task.run(rows)
    assert sorted(map(str, seen[1]["key"])) == sorted(["9007199254740992", "9007199254740993", "<NA>"])


STRUCT = pa.struct([("day", pa.date32()), ("n", pa.int32())])
MAP = pa.map_(pa.string(), pa.float32())
NOON = dt.datetime(2013, 3, 10, 12)  # noqa: DTZ001 - a time on the wall
LOSSY: dict[str, tuple[Any, pa.DataType, str]] = {
    "a time of day": (
        pa.array([NOON.replace(hour=0), NOON], pa.timestamp("us")),
        pa.date32(),
        r"is timestamp\[us\], not date32\[day\]: row 1 holds datetime.datetime\(2013, 3, 10, 12, 0\)",
    ),
    "a time of day in objects": (
        pd.Series([FAR[0], NOON]),
        pa.date32(),
        r"must be date32\[day\], but row 1 contains datetime",
    ),
    "a moment for a day": (
        pa.array([NOON], pa.timestamp("us", tz="UTC")),
        pa.date32(),
        r"is timestamp\[us, tz=UTC\], not",
    ),
    "a moment for a time on the wall": (
        pa.array([NOON], pa.timestamp("us", tz="UTC")),
        pa.timestamp("us"),
        "row 0 holds",
    ),
    "a time on the wall for a moment": (pa.array([NOON]), pa.timestamp("us", tz="UTC"), "row 0 holds"),
    "a huge double": (pa.array([1.0, 1e300]), pa.float32(), r"is double, not float: row 1 holds 1e\+300"),
    "a huge double in objects": (pd.Series(["x", 1e300]), pa.float32(), "column 'c'"),
    "digits of a double": (pa.array([0.5, 0.1]), pa.float32(), "row 1 holds 0.1"),
    "a fraction": (pa.array([1.0, 0.5]), pa.int64(), "row 1 holds 0.5"),
    "a NaN for a whole number": (pa.array([1.0, NAN]), pa.int64(), "row 1 holds nan"),
    "a double that may be another whole number": (pa.array([2.0**53]), pa.int64(), "is not exact for whole numbers"),
    "a whole number beyond a double": (pa.array([1, 2**53 + 1]), pa.float64(), "row 1 holds 9007199254740993"),
    "a number too large": (pa.array([1, 2**31]), pa.int32(), "is int64, not int32: row 1 holds 2147483648"),
    "the scale of a decimal": (pa.array([Decimal("1.239")]), pa.decimal128(10, 2), r"row 0 holds Decimal\('1.239'\)"),
    "the digits of a decimal": (pa.array([Decimal(10**9)]), pa.decimal128(9, 0), "row 0 holds"),
    "a decimal for a double": (pa.array([Decimal("0.1")]), pa.float64(), "is decimal128.*, not double: row 0 holds"),
    "a double for a decimal": (pa.array([0.1]), pa.decimal128(10, 2), "is double, not decimal128"),
    "nanoseconds": (pa.array([1_000, 1_500], pa.timestamp("ns")), pa.timestamp("us"), "row 1 holds"),
    "nanoseconds in objects": (
        pd.Series([pd.Timestamp("2020-01-01 00:00:00.123456789")], dtype=object),
        pa.timestamp("us"),
        r"must be timestamp\[us\], but row 0 contains",
    ),
    "text for a number": (pa.array(["7"]), pa.int64(), "is string, not int64: row 0 holds '7'"),
    "text for a number in a list": (pa.array([None, ["7"]]), pa.list_(pa.int64()), r"row 1 holds \['7'\]"),
    "a field of a struct": (pa.array([{"day": None, "n": 1, "more": 2}]), STRUCT, "row 0 holds"),
    "a time of day in a struct": (
        pa.array([{"day": NOON, "n": 1}], pa.struct([("day", pa.timestamp("us")), ("n", pa.int64())])),
        STRUCT,
        "row 0 holds .*12, 0.*does not fit",
    ),
    "a field of a dict": (pd.Series([None, {"n": 1, "more": 2}]), STRUCT, "row 1 contains {'n': 1, 'more': 2}"),
    "a time of day in a dict": (pd.Series([{"n": 1, "day": NOON}]), STRUCT, "must be struct.*, but row 0 contains"),
    "a huge double in a map": (pd.Series([[("a", 1.0)], [("a", 1e300)]]), MAP, "must be map.*, but row 1 contains"),
    "a truth for a number": (pa.array([True]), pa.int64(), "is bool, not int64: row 0 holds True"),
}


def returned(values: Any) -> pd.DataFrame | pa.Table:
    return pd.DataFrame({"c": values}) if isinstance(values, pd.Series) else pa.table({"c": values})


@pytest.mark.parametrize("what", LOSSY)
def test_a_lossy_cast_is_rejected_with_the_column_the_value_and_both_types(what):
    values, kind, said = LOSSY[what]
    with pytest.raises(WrongResult, match=said) as refused:
        as_table(returned(values), pa.schema([("c", kind)]), "the output")
    assert "'c'" in str(refused.value)
    assert str(kind) in str(refused.value)


KEPT: dict[str, tuple[Any, pa.DataType, list[Any]]] = {
    "wider numbers": (pa.array([7, None], pa.int8()), pa.int64(), [7, None]),
    "whole doubles": (pa.array([7.0, None]), pa.int32(), [7, None]),
    "whole numbers": (pa.array([2**53]), pa.float64(), [2.0**53]),
    "doubles that are floats": (pa.array([0.5, None]), pa.float32(), [0.5, None]),
    "midnight": (pa.array([NOON.replace(hour=0)]), pa.date32(), [NOON.date()]),
    "days": (pa.array([NOON.date()]), pa.timestamp("us"), [NOON.replace(hour=0)]),
    "whole microseconds": (
        pa.array([1_000], pa.timestamp("ns")),
        pa.timestamp("us"),
        [dt.datetime(1970, 1, 1, 0, 0, 0, 1)],  # noqa: DTZ001
    ),
    "another zone": (
        pa.array([0], pa.timestamp("s", tz="Asia/Tokyo")),
        pa.timestamp("us", tz="UTC"),
        [dt.datetime(1970, 1, 1, tzinfo=UTC)],
    ),
    "more digits": (pa.array([Decimal("1.5")]), pa.decimal128(38, 4), [Decimal("1.5000")]),
    "missing in NumPy's way": (pd.Series([1.0, NAN]), pa.int64(), [1, None]),
    "decimals as objects": (pd.Series([Decimal("1.5"), None]), pa.decimal128(10, 2), [Decimal("1.50"), None]),
    "days as objects": (pd.Series([NOON.date(), None, pd.NaT]), pa.date32(), [NOON.date(), None, None]),
    "dicts": (pd.Series([{"n": 1}, None]), STRUCT, [{"day": None, "n": 1}, None]),
    "maps as objects": (pd.Series([[("a", 0.5)], None]), MAP, [[("a", 0.5)], None]),
    "arrays in a column": (pd.Series([np.array([1, 2]), None]), pa.list_(pa.int32()), [[1, 2], None]),
    "a category": (pd.Series(["a", None, "a"], dtype="category"), pa.string(), ["a", None, "a"]),
    "numbers in a list": (pa.array([[1, None]]), pa.list_(pa.int32()), [[1, None]]),
}


@pytest.mark.parametrize("what", KEPT)
def test_a_cast_without_loss_passes(what):
    values, kind, wanted = KEPT[what]
    assert as_table(returned(values), pa.schema([("c", kind)]), "the output").column("c").to_pylist() == wanted
