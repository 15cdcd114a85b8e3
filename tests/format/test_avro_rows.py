"""Rows in Avro: bytes of the specification, a round trip of all types, and damaged bytes. Spark reads them in `interop`."""

from __future__ import annotations

import contextlib
import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile, UnsupportedType
from statekeeper.statestore.format.avro_rows import decode_records, encode_records, require_supported

INNER = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("flag", pa.bool_()),
        pa.field("byte", pa.int8()),
        pa.field("long", pa.int64()),
        pa.field("float", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("date", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("short", pa.decimal128(8, 2)),
        pa.field("wide", pa.decimal128(38, 10)),
        pa.field("struct", INNER),
        pa.field("list", pa.list_(pa.field("element", pa.int32()))),
        pa.field("structs", pa.list_(pa.field("element", INNER))),
        pa.field("map", pa.map_(pa.string(), pa.field("value", pa.int64()))),
        pa.field("nothing", pa.null()),
    ]
)
ROW = {
    "flag": True,
    "byte": -128,
    "long": -(2**63),
    "float": 0.5,
    "double": -1e300,
    "text": "größe",
    "bytes": b"\0\xff",
    "date": dt.date(1969, 12, 31),
    "at": dt.datetime(2026, 3, 1, 1, 2, 3, 4, dt.UTC),
    "short": Decimal("-123456.78"),
    "wide": Decimal("9" * 28 + "." + "9" * 10),
    "struct": {"a": None, "b": "x"},
    "list": [1, -2, 3],
    "structs": [{"a": 1, "b": None}, None],
    "map": [("k", 7), ("l", -7)],
    "nothing": None,
}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int64(), None, "00"),
        (pa.int64(), 0, "0200"),
        (pa.int64(), -1, "0201"),
        (pa.int64(), 64, "028001"),
        (pa.int64(), -(2**63), "02ffffffffffffffffff01"),
        (pa.string(), "foo", "0206666f6f"),
        (pa.float64(), 1.0, "02000000000000f03f"),
        (pa.bool_(), True, "0201"),
        (pa.decimal128(8, 2), Decimal("-0.01"), "02ffffffff"),
        (INNER, {"a": 1, "b": None}, "02020200"),
        (INNER, None, "00"),
        (pa.list_(pa.int64()), [3, 27], "0204063600"),
        (pa.list_(pa.int64()), [], "0200"),
        (pa.list_(pa.int64()), None, "00"),
    ],
)
def test_a_value_has_the_bytes_of_the_specification(kind: pa.DataType, value: object, expected: str) -> None:
    assert encode_records(pa.table({"value": pa.array([value], kind)})) == [bytes.fromhex(expected)]


def test_all_types_come_back() -> None:
    table = pa.Table.from_pylist([ROW, dict.fromkeys(ROW), ROW], SCHEMA)
    assert decode_records(encode_records(table), SCHEMA).equals(table)
    assert decode_records(encode_records(table.slice(1)), SCHEMA).equals(table.slice(1))


@pytest.mark.parametrize("kind", [pa.map_(pa.int64(), pa.int64()), pa.list_(pa.map_(pa.int64(), pa.int64()))])
def test_a_type_that_avro_lacks_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedType, match="Avro"):
        require_supported(pa.schema([pa.field("value", kind)]))


def test_a_null_in_a_list_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="nulls"):
        encode_records(pa.table({"value": pa.array([[1, None]], pa.list_(pa.int64()))}))


@given(st.binary(max_size=80))
def test_damaged_bytes_are_rejected_or_decoded(row: bytes) -> None:
    with contextlib.suppress(CorruptFile):
        decode_records([row], SCHEMA)


def test_a_row_with_more_bytes_than_columns_is_rejected() -> None:
    [row] = encode_records(pa.Table.from_pylist([ROW], SCHEMA))
    for damaged in (row + b"\0", row[:-1]):
        with pytest.raises(CorruptFile, match="Avro"):
            decode_records([damaged], SCHEMA)
