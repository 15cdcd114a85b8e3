"""The changes of types that keep every value: those of Delta's type widening. Pure.

    byte, short, int   ->  a wider integer, double, decimal with at least 10 digits before the point
    long               ->  decimal with at least 20 digits before the point
    float              ->  double
    decimal            ->  decimal with as many or more digits, before and after the point
    date               ->  timestamp_ntz

Not long to double: a double holds integers only up to 2^53. Source: Delta's protocol, Type Widening; TypeWidening.scala.
"""

from __future__ import annotations

import pyarrow as pa

_DIGITS = {8: 10, 16: 10, 32: 10, 64: 20}
"""Width of an integer in bits -> the digits before the point of a decimal that holds it, as Delta requires."""


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether the new type holds every value of the old one."""
    is_a = pa.types
    if is_a.is_signed_integer(old):
        if is_a.is_signed_integer(new):
            return bool(new.bit_width > old.bit_width)
        if is_a.is_decimal128(new):
            return bool(new.precision - new.scale >= _DIGITS[old.bit_width])
        return bool(is_a.is_float64(new) and old.bit_width < 64)
    if is_a.is_float32(old):
        return bool(is_a.is_float64(new))
    if is_a.is_decimal128(old) and is_a.is_decimal128(new):
        digits = new.precision - new.scale - (old.precision - old.scale)
        return bool(old != new and new.scale >= old.scale and digits >= 0)
    return bool(is_a.is_date32(old) and new == pa.timestamp("us"))


def wider_types(old: pa.DataType) -> str:
    """Return the types to which a column can be widened, for messages."""
    is_a = pa.types
    if is_a.is_signed_integer(old):
        integers = [
            f"{name}, " for bits, name in ((16, "short"), (32, "integer"), (64, "long")) if bits > old.bit_width
        ]
        double = "double, " if old.bit_width < 64 else ""
        return f"{''.join(integers)}{double}decimal with {_DIGITS[old.bit_width]} digits before the point"
    if is_a.is_float32(old):
        return "double"
    if is_a.is_decimal128(old):
        return "decimal with as many or more digits before and after the point"
    return "timestamp_ntz" if is_a.is_date32(old) else "none"
