"""Strategies for Arrow types, values and tables that the state format supports."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64, pa.date32(): 32}


INTEGERS |= {pa.timestamp("us", tz="UTC"): 64, pa.timestamp("us"): 64}


def atomic_types() -> st.SearchStrategy[pa.DataType]:
    precise = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)))
    plain = [*INTEGERS, pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()]
    return st.sampled_from(plain) | precise


def fields(kinds: st.SearchStrategy[pa.DataType], name: str) -> st.SearchStrategy[pa.Field]:
    return st.builds(lambda kind, nullable: pa.field(name, kind, nullable=nullable), kinds, st.booleans())


def _nest(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    structs = st.integers(1, 3).flatmap(lambda n: st.tuples(*[fields(kinds, f"f{i}") for i in range(n)]))
    return (
        fields(kinds, "element").map(pa.list_)
        | structs.map(pa.struct)
        | st.builds(pa.map_, atomic_types(), fields(kinds, "value"))
    )


def types() -> st.SearchStrategy[pa.DataType]:
    return st.recursive(atomic_types(), _nest, max_leaves=5)


def values(field: pa.Field) -> st.SearchStrategy[Any]:
    present = _present(field.type)
    return st.none() | present if field.nullable else present


def _present(kind: pa.DataType) -> st.SearchStrategy[Any]:
    is_a = pa.types
    if kind in INTEGERS:
        most = 2 ** (INTEGERS[kind] - 1)
        return st.sampled_from([-most, -1, 0, 1, most - 1]) | st.integers(-most, most - 1)
    if is_a.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if is_a.is_decimal(kind):
        most = 10**kind.precision - 1
        unscaled = st.sampled_from([-most, -1, 0, most]) | st.integers(-most, most)
        # Decimal's own context would round to 28 digits.
        digits = unscaled.map(lambda n: (int(n < 0), tuple(map(int, str(abs(n)))), -kind.scale))
        return digits.map(Decimal)
    if is_a.is_struct(kind):
        return st.fixed_dictionaries({field.name: values(field) for field in kind})
    if is_a.is_map(kind):
        entries = st.lists(st.tuples(_present(kind.key_type), values(kind.item_field)), max_size=3)
        return entries.map(lambda pairs: list({repr(pair[0]): pair for pair in pairs}.values()))
    if is_a.is_list(kind):
        # On both sides of the first word of null bits.
        some = st.lists(values(kind.value_field), min_size=1, max_size=2)
        long = st.builds(lambda cycle, length: (cycle * 65)[:length], some, st.integers(63, 65))
        return st.lists(values(kind.value_field), max_size=4) | long
    if is_a.is_boolean(kind):
        return st.booleans()
    is_text = is_a.is_string(kind) or is_a.is_large_string(kind)
    return st.text(st.characters(codec="utf-8"), max_size=20) if is_text else st.binary(max_size=20)


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 8) -> pa.Table:
    count = draw(st.integers(1, 4))
    schema = pa.schema([draw(fields(types(), f"c{i}")) for i in range(count)])
    length = draw(st.integers(0, max_rows))
    columns = [pa.array(draw(st.lists(values(f), min_size=length, max_size=length)), f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


FLOATS = {pa.float32(): np.uint32, pa.float64(): np.uint64}


def floats_of_bits(kind: pa.DataType, bits: list[int | None]) -> pa.Array:
    """Floating-point numbers of exactly these bits, NaN payloads included."""
    unsigned = FLOATS[kind]
    plain = np.array([(b or 0) & int(np.iinfo(unsigned).max) for b in bits], unsigned).view(kind.to_pandas_dtype())
    mask = np.array([b is None for b in bits], bool)
    bitmap = pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(kind, len(bits), [bitmap, pa.py_buffer(plain)])


def nested_floats(floats: pa.Array) -> pa.Table:
    """The same numbers as a column, in a struct, in a list and beside a text."""
    offsets = pa.array(np.arange(len(floats) + 1, dtype=np.int32))
    return pa.table(
        {
            "plain": floats,
            "struct": pa.StructArray.from_arrays([floats, pa.array([1] * len(floats), pa.int8())], ["x", "y"]),
            "list": pa.ListArray.from_arrays(offsets, floats),
            "text": pa.array(["same"] * len(floats), pa.string()),
        }
    )
