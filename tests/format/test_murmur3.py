"""Hashes and partitions, against numbers of Spark 4.2.0. `tests/interop/test_murmur3_against_spark.py` runs Spark."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statekeeper.statestore.base.errors import UnsupportedType
from statekeeper.statestore.format.murmur3 import partitions_of, row_hashes
from tests.support.typed_tables import floats_of_bits

STRUCT = pa.struct([("a", pa.string()), ("b", pa.int64())])
BY_SPARK: list[tuple[pa.DataType, Any, int]] = [
    (pa.bool_(), True, -559580957),
    (pa.int8(), 1, -559580957),
    (pa.int16(), -2, -1160545675),
    (pa.int32(), 3, -1823081949),
    (pa.int64(), -4, -1952150274),
    (pa.float32(), 1.5, -221251528),
    (pa.float64(), -0.0, -1670924195),
    (pa.float64(), float("nan"), -1281358385),
    (pa.string(), "", 142593372),
    (pa.large_string(), "abcd", -396302900),
    (pa.string(), "grüße", -1448632288),
    (pa.binary(), b"\x00\xff\x80", -2052482636),
    (pa.decimal128(4, 2), Decimal("12.34"), -1028144669),
    (pa.decimal128(22, 2), Decimal("12345678901234567890.12"), -2030013727),
    (pa.date32(), dt.date(2026, 3, 1), 358330129),
    (pa.timestamp("us"), 1_772_323_200_000_000, -54984767),
    (pa.list_(pa.int32()), [1, None, 3], 1066699649),
    (STRUCT, {"a": "x", "b": 2}, 309380670),
    (pa.null(), None, 42),
]


@pytest.mark.parametrize(("kind", "value", "expected"), BY_SPARK, ids=lambda one: str(one)[:20])
def test_each_type_has_sparks_hash_and_a_null_leaves_the_seed(kind: pa.DataType, value: Any, expected: int) -> None:
    values = pa.array([None, value, None, value], kind)
    assert row_hashes(pa.table({"x": values})).tolist() == [42, expected, 42, expected]
    assert row_hashes(pa.table({"x": values[1:3]})).tolist() == [expected, 42]
    assert row_hashes(pa.table({"x": values[:0]})).tolist() == []


@pytest.mark.parametrize(
    ("kind", "bits", "expected"),
    [
        (pa.float32(), [0x7F800001, 0xFFC12345, 0x7FC00000], -349261430),
        (pa.float64(), [2**64 - 1, 0x7FF << 52 | 1], -1281358385),
    ],
    ids=["float", "double"],
)
def test_every_nan_has_one_hash(kind: pa.DataType, bits: list[int | None], expected: int) -> None:
    assert set(row_hashes(pa.table({"x": floats_of_bits(kind, bits)})).tolist()) == {expected}


def test_columns_are_hashed_in_order() -> None:
    columns = pa.table({"t": ["a", "a"], "n": pa.array([1, 2], pa.int32()), "v": pa.nulls(2)})
    assert row_hashes(columns)[0] == 532252686
    assert row_hashes(columns.select(["n", "t"]))[0] != 532252686


def test_a_partition_is_never_negative() -> None:
    hashes = np.array([-7, -6, -1, 0, 5, 2**31 - 1, -(2**31)], np.int32)
    assert partitions_of(hashes, 7).tolist() == [hash_ % 7 for hash_ in hashes.tolist()]
    assert partitions_of(hashes, 1).tolist() == [0] * 7
    with pytest.raises(ValueError, match="0 partitions"):
        partitions_of(hashes, 0)


@pytest.mark.parametrize(
    "kind", [pa.map_(pa.string(), pa.int64()), pa.uint32(), pa.duration("s"), pa.float16()], ids=str
)
def test_a_type_without_a_hash_is_rejected_at_any_depth(kind: pa.DataType) -> None:
    for nested in (kind, pa.list_(kind), pa.struct([("a", pa.list_(kind))])):
        with pytest.raises(UnsupportedType, match=r"column x.* which Spark's hash function does not support"):
            row_hashes(pa.table({"x": pa.nulls(1, nested)}))
