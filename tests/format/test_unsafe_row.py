"""Encoded rows are decoded unchanged, and no bytes mislead the decoder.

`tables` and `fields` here are the strategies that the tests against Spark take too.
"""

from __future__ import annotations

import contextlib
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile, SchemaMismatch, UnsupportedType
from statekeeper.statestore.format.unsafe_row import decode_rows, encode_rows, normalise_keys
from tests.support.typed_tables import (
    FLOATS,
    floats_of_bits,
    nested_floats,
    tables,
)

SLOW = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


def one_row(kind: pa.DataType, *row: Any) -> bytes:
    """The bytes of a row with one column."""
    return bytes(encode_rows(pa.table({"c": pa.array(row, kind)}))[0].as_py())


def words(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


@SLOW
@given(tables(), st.binary(max_size=3))
def test_decoding_returns_the_encoded_values(table: pa.Table, head: bytes) -> None:
    rows = encode_rows(table, head=head)
    assert len(rows) == table.num_rows
    rows.validate(full=True)
    back = decode_rows(rows, table.schema, skip=len(head))
    back.validate(full=True)
    assert back.schema.equals(table.schema)
    assert back.equals(table)


@SLOW
@given(tables(), st.data())
def test_slices_and_chunks_have_the_bytes_of_their_rows(table: pa.Table, data: st.DataObject) -> None:
    whole = encode_rows(table).to_pylist()
    first = data.draw(st.integers(0, table.num_rows))
    last = data.draw(st.integers(first, table.num_rows))
    assert encode_rows(table.slice(first, last - first)).to_pylist() == whole[first:last]
    for batch in table.to_batches():
        assert encode_rows(batch.slice(first, last - first)).to_pylist() == whole[first:last]
    chunked = pa.concat_tables([table.slice(first), table.slice(0, first), table.slice(0, 0)])
    assert encode_rows(chunked).to_pylist() == whole[first:] + whole[:first]
    rows = pa.chunked_array([pa.array(whole, pa.large_binary())[first:], pa.array(whole, pa.large_binary())[:first]])
    assert decode_rows(rows, table.schema).equals(chunked)


@SLOW
@given(tables(), st.data())
def test_flipped_bytes_are_rejected_or_decoded_without_reading_other_rows(table: pa.Table, data: st.DataObject) -> None:
    rows = [bytearray(row) for row in encode_rows(table).to_pylist()]
    victims = [i for i, row in enumerate(rows) if row]
    for _ in range(10 if victims else 0):
        i = data.draw(st.sampled_from(victims))
        spoiled = bytearray(rows[i])
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] ^= data.draw(st.integers(1, 255))
        results = [
            _outcome([other, bytes(spoiled), other], table.schema)
            for other in (bytes(rows[0]), b"\xff" * 64, bytes(256))
        ]
        seen = [result for result in results if result is not None]
        assert all(result.equals(seen[0]) for result in seen)


def _outcome(rows: list[bytes], schema: pa.Schema) -> pa.Array | None:
    """Return the decoded middle row; None if it is rejected."""
    try:
        table = decode_rows(pa.array(rows, pa.large_binary()), schema)
    except CorruptFile:
        return None
    table.validate(full=True)
    return encode_rows(table)[1]


MIXED = pa.schema(
    [
        pa.field("text", pa.string()),
        pa.field("flag", pa.bool_(), nullable=False),
        pa.field("wide", pa.decimal128(38, 2)),
        pa.field("narrow", pa.decimal128(9, 2)),
        pa.field("list", pa.list_(pa.struct([("a", pa.int16()), ("b", pa.binary())]))),
        pa.field("map", pa.map_(pa.string(), pa.list_(pa.decimal128(20, 0)))),
        pa.field("none", pa.string()),
    ]
)
MIXED_ROW = {
    "text": "größer als acht",
    "flag": True,
    "wide": Decimal("-12345678901234567890.12"),
    "narrow": Decimal("-1.25"),
    "list": [{"a": -1, "b": b"123456789"}, None, {"a": None, "b": b""}],
    "map": [("k", [Decimal(1), None]), ("kk", [])],
    "none": None,
}


def _mixed() -> bytes:
    return bytes(encode_rows(pa.Table.from_pylist([MIXED_ROW], MIXED))[0].as_py())


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_rejected_or_decoded_as_other_valid_values(step: int) -> None:
    row = _mixed()
    refused = 0
    for i in range(0, 8 * len(row), step):
        spoiled = bytearray(row)
        spoiled[i // 8] ^= 1 << i % 8
        try:
            table = decode_rows(pa.array([bytes(spoiled)], pa.large_binary()), MIXED)
        except CorruptFile:
            refused += 1
            continue
        table.validate(full=True)
        assert decode_rows(encode_rows(table), MIXED).equals(table)
    assert refused > len(row) // step


def test_every_truncation_is_rejected() -> None:
    row = _mixed()
    for length in range(len(row)):
        with pytest.raises(CorruptFile, match="row 0"):
            decode_rows(pa.array([row[:length]], pa.large_binary()), MIXED)


@SLOW
@given(st.binary(max_size=40).map(lambda words: words * 8), st.integers(0, 9))
def test_random_bytes_are_rejected_or_decoded(noise: bytes, skip: int) -> None:
    with contextlib.suppress(CorruptFile):
        decode_rows(pa.array([noise], pa.large_binary()), MIXED, skip=skip).validate(full=True)


def test_an_error_names_row_and_column() -> None:
    rows = [_mixed(), _mixed()]
    at = rows[1].index("größer als acht".encode())
    rows[1] = rows[1][:at] + b"\xff" + rows[1][at + 1 :]
    with pytest.raises(CorruptFile, match="column text of row 1 is corrupt: the string is not UTF-8"):
        decode_rows(pa.chunked_array([pa.array([row], pa.large_binary()) for row in rows]), MIXED)


def test_an_array_that_declares_many_elements_is_rejected_before_allocation() -> None:
    row = bytearray(one_row(pa.list_(pa.bool_()), [True]))
    for count in (2**31 - 1, 2**62, 2**63 - 1, 2**64 - 1, 9):
        row[16:24] = count.to_bytes(8, "little")
        with pytest.raises(CorruptFile, match="more elements than its bytes can contain"):
            decode_rows(pa.array([bytes(row)], pa.large_binary()), pa.schema([("c", pa.list_(pa.bool_()))]))


def test_elements_that_share_bytes_are_rejected() -> None:
    row = bytearray(one_row(pa.list_(pa.string()), ["12345678", "12345678"]))
    row[40:48] = row[32:40]
    with pytest.raises(CorruptFile, match="overlap"):
        decode_rows(pa.array([bytes(row)], pa.large_binary()), pa.schema([("c", pa.list_(pa.string()))]))


def test_columns_that_share_bytes_are_rejected() -> None:
    row = bytearray(encode_rows(pa.table({"a": ["12345678"], "b": ["12345678"]}))[0].as_py())
    row[16:24] = row[8:16]
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    assert decode_rows(pa.array([bytes(row)], pa.large_binary()), schema).num_rows == 1
    with pytest.raises(CorruptFile, match="overlap"):
        decode_rows(pa.array([bytes(row[:-8])], pa.large_binary()), schema)


def test_a_body_in_the_fixed_part_is_rejected() -> None:
    row = bytearray(one_row(pa.string(), "12345678"))
    row[8:16] = (8 << 32 | 8).to_bytes(8, "little")
    with pytest.raises(CorruptFile, match="outside"):
        decode_rows(pa.array([bytes(row)], pa.large_binary()), pa.schema([("c", pa.string())]))


def test_a_wide_decimal_without_bytes_or_with_more_than_sixteen_is_rejected() -> None:
    row = bytearray(one_row(pa.decimal128(38, 0), Decimal(1)))
    for size in (0, 17):
        row[8:16] = (16 << 32 | size).to_bytes(8, "little")
        with pytest.raises(CorruptFile, match="not 1 to 16 bytes"):
            decode_rows(pa.array([bytes(row)], pa.large_binary()), pa.schema([("c", pa.decimal128(38, 0))]))


def test_a_null_row_and_a_null_in_a_column_without_nulls_are_rejected() -> None:
    with pytest.raises(CorruptFile, match="row 1 is corrupt: the row is null"):
        decode_rows(pa.array([_mixed(), None], pa.large_binary()), MIXED)
    with pytest.raises(CorruptFile, match="column c of row 0"):
        decode_rows(
            pa.array([one_row(pa.int8(), None)], pa.large_binary()), pa.schema([pa.field("c", pa.int8(), False)])
        )
    kind = pa.struct([pa.field("a", pa.int8(), nullable=False)])
    with pytest.raises(SchemaMismatch, match=r"c\.a"):
        encode_rows(pa.table({"c": pa.array([{"a": 1}, {"a": None}], kind)}))


def test_negative_numbers_leave_the_rest_of_the_slot_zero() -> None:
    for kind, bits in ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.date32(), 32)):
        assert words(one_row(kind, -1)) == [0, 2**bits - 1]


def test_a_null_decimal_of_38_digits_keeps_its_sixteen_bytes() -> None:
    assert words(one_row(pa.decimal128(38, 0), None)) == [1, 16 << 32, 0, 0]
    assert words(one_row(pa.decimal128(18, 0), None)) == [1, 0]


def test_a_decimal_of_19_digits_takes_the_fewest_bytes_that_contain_its_sign() -> None:
    for number, packed in ((0, b"\0"), (127, b"\x7f"), (128, b"\0\x80"), (-128, b"\x80"), (-129, b"\xff\x7f")):
        row = one_row(pa.decimal128(19, 0), Decimal(number))
        assert row[8:] == (16 << 32 | len(packed)).to_bytes(8, "little") + packed.ljust(16, b"\0")


def test_a_decimal_of_38_digits_in_an_array_takes_only_the_words_it_needs() -> None:
    row = one_row(pa.list_(pa.decimal128(38, 0)), [Decimal(1), None, Decimal(2**64)])
    array = [3, 0b10, 40 << 32 | 1, 0, 48 << 32 | 9]
    assert words(row)[2:] == [*array, 1, 1, 0]


def test_the_slot_of_a_null_body_is_zero() -> None:
    for kind in (
        pa.string(),
        pa.binary(),
        pa.list_(pa.int8()),
        pa.map_(pa.int8(), pa.int8()),
        pa.struct([("x", pa.int8())]),
    ):
        assert words(one_row(kind, None)) == [1, 0]
        assert words(one_row(pa.list_(kind), [None]))[2:] == [1, 1, 0]


def test_a_decimal_with_more_digits_than_declared_is_rejected() -> None:
    for digits in (5, 18, 19, 37):
        for number in (10**digits, -(10**digits)):
            raw = pa.py_buffer(number.to_bytes(16, "little", signed=True))
            array = pa.Array.from_buffers(pa.decimal128(digits, 0), 1, [None, raw])
            with pytest.raises(SchemaMismatch, match="digits"):
                encode_rows(pa.table({"c": array}))
            wider = encode_rows(pa.table({"c": array.view(pa.decimal128(18 if digits < 18 else 38, 0))}))
            if digits != 18:
                with pytest.raises(CorruptFile, match=f"more than {digits} digits"):
                    decode_rows(wider, pa.schema([("c", array.type)]))


def test_the_head_precedes_each_row() -> None:
    table = pa.table({"c": pa.array([1, 2], pa.int64())})
    bare = encode_rows(table).to_pylist()
    groups = np.array([[0, 7], [1, 9]], np.uint8)
    assert encode_rows(table, head=groups).to_pylist() == [b"\0\x07" + bare[0], b"\1\x09" + bare[1]]
    assert encode_rows(table, head=b"\0").to_pylist() == [b"\0" + row for row in bare]
    with pytest.raises(ValueError, match="shape"):
        encode_rows(table, head=groups[:1])


def test_empty_tables_and_tables_without_columns_are_encoded() -> None:
    assert len(encode_rows(MIXED.empty_table())) == 0
    assert decode_rows(pa.array([], pa.large_binary()), MIXED).equals(MIXED.empty_table())
    assert decode_rows(pa.chunked_array([], pa.large_binary()), MIXED).equals(MIXED.empty_table())
    none = pa.Table.from_batches([pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))])
    assert encode_rows(none, head=b"\0").to_pylist() == [b"\0", b"\0"]
    assert decode_rows(encode_rows(none), none.schema).num_rows == 2


def test_a_table_of_many_columns_has_as_many_words_of_null_bits_as_it_needs() -> None:
    for count in (63, 64, 65, 130):
        table = pa.table({f"c{i}": pa.array([i, None if i % 3 else i], pa.int16()) for i in range(count)})
        rows = encode_rows(table)
        assert len(rows[0].as_py()) == 8 * ((count + 63) // 64 + count)
        assert decode_rows(rows, table.schema).equals(table)


def test_bytes_under_nulls_are_not_written() -> None:
    under = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\1"), pa.py_buffer(np.array([5, 6]))])
    assert words(encode_rows(pa.table({"c": under}))[1].as_py()) == [1, 0]
    lists = pa.Array.from_buffers(
        pa.list_(pa.int64()),
        3,
        [pa.py_buffer(b"\5"), pa.py_buffer(np.array([0, 1, 3, 4], np.int32))],
        children=[pa.array([1, 2, 3, 4])],
    )
    assert lists.to_pylist() == [[1], None, [4]]
    plain = encode_rows(pa.table({"c": pa.array(lists.to_pylist(), lists.type)}))
    assert encode_rows(pa.table({"c": lists})).equals(plain)


def test_large_strings_have_the_bytes_of_strings() -> None:
    for small, large in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())):
        array = pa.array([b"a", None, b"", b"123456789"], pa.binary()).cast(small)
        rows = encode_rows(pa.table({"c": array.cast(large)}))
        assert rows.equals(encode_rows(pa.table({"c": array})))
        assert decode_rows(rows, pa.schema([("c", large)]))["c"].to_pylist() == array.to_pylist()


def test_a_type_that_spark_lacks_is_rejected_in_both_directions() -> None:
    with pytest.raises(UnsupportedType):
        encode_rows(pa.table({"c": pa.array([1], pa.uint8())}))
    with pytest.raises(UnsupportedType):
        decode_rows(pa.array([], pa.large_binary()), pa.schema([("c", pa.uint8())]))


@SLOW
@given(
    st.sampled_from(list(FLOATS)),
    st.lists(st.none() | st.integers(0, 2**64 - 1) | st.sampled_from([2**63, 2**31]), max_size=9),
)
def test_floating_point_bits_survive_and_normalised_equal_keys_have_equal_bytes(
    kind: pa.DataType, bits: list[int | None]
) -> None:
    floats = floats_of_bits(kind, bits)
    table = nested_floats(floats)
    assert encode_rows(decode_rows(encode_rows(table), table.schema)).equals(encode_rows(table))
    normal = normalise_keys(table)
    assert normal.schema.equals(table.schema)
    assert normalise_keys(normal.slice(1)).to_pylist().__repr__() == normal.slice(1).to_pylist().__repr__()
    by_value: dict[str, set[bytes]] = {}
    for value, row in zip(floats.to_pylist(), encode_rows(normal).to_pylist(), strict=True):
        key = "nan" if value != value else repr(None if value is None else value + 0.0)
        by_value.setdefault(key, set()).add(row)
    assert all(len(rows) == 1 for rows in by_value.values())
    assert len({row for rows in by_value.values() for row in rows}) == len(by_value)


def test_normalised_numbers_are_those_of_java() -> None:
    table = nested_floats(floats_of_bits(pa.float64(), [2**63, 2**64 - 1, 0x7FF0000000000001, 0x7FF0000000000000]))
    rows = encode_rows(normalise_keys(table).select(["plain"])).to_pylist()
    assert [words(row)[1] for row in rows] == [0, 0x7FF8000000000000, 0x7FF8000000000000, 0x7FF0000000000000]
    table = nested_floats(floats_of_bits(pa.float32(), [2**31, 2**32 - 1]))
    rows = encode_rows(normalise_keys(table).select(["plain"])).to_pylist()
    assert [words(row)[1] for row in rows] == [0, 0x7FC00000]


def test_normalising_leaves_the_rest_as_it_is() -> None:
    table = pa.Table.from_pylist([MIXED_ROW], MIXED)
    assert normalise_keys(table).equals(table)
    assert normalise_keys(MIXED.empty_table()).equals(MIXED.empty_table())
