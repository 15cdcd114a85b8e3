"""Casts that keep every value. Arrow's own safe cast drops the time of day of a timestamp and the fields of a struct,
rounds decimals to doubles, turns 1e300 into an infinite float32 and reads texts in lists as numbers.

Source: Arrow's compute.CastOptions; the cases above were tried with Arrow 26.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

_WHOLE_BITS = {16: 11, 32: 24, 64: 53}
"""Width of a float in bits -> the power of two up to which it holds every integer."""


class Lossy(ValueError):
    """Raised for a cast that would change a value. `by_type`: the cast would change every value."""

    def __init__(self, reason: str, *, by_type: bool = False) -> None:
        super().__init__(reason)
        self.by_type = by_type


def lossless(column: pa.ChunkedArray, declared: pa.DataType) -> pa.ChunkedArray:
    """Cast the column to `declared`. Raises `Lossy`, or Arrow's exceptions, if a value would change."""
    if column.type == declared:
        # Arrow's cast of a struct to its own type refuses a null whose fields are declared without nulls.
        return column
    if pa.types.is_dictionary(column.type):
        return lossless(column.cast(column.type.value_type), declared)
    if not _are_kin(column.type, declared):
        raise Lossy(f"{column.type} is not {declared}", by_type=True)
    cast = column.cast(declared)
    _require_kept(column, cast)
    return cast


def first_refused(column: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], object]) -> int:
    """Return the row of a value for which `convert` fails; an index into (rows,)."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            convert(column.slice(low, middle - low))
            low = middle
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            high = middle
    return low


def _are_kin(given: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether values of one type can be values of the other, judged by type only."""
    is_a = pa.types
    if given == declared or is_a.is_null(given):
        return True
    if is_a.is_integer(given):
        return bool(is_a.is_integer(declared) or is_a.is_floating(declared) or is_a.is_decimal(declared))
    if is_a.is_floating(given):
        return bool(is_a.is_integer(declared) or is_a.is_floating(declared))
    if is_a.is_decimal(given):
        # Not a float: most decimal fractions have no exact binary form.
        return bool(is_a.is_integer(declared) or is_a.is_decimal(declared))
    if is_a.is_timestamp(given):
        # With a zone it is an instant, without one a local time; a conversion would have to guess the zone.
        if is_a.is_timestamp(declared):
            return (given.tz is None) == (declared.tz is None)
        return bool(is_a.is_date(declared) and given.tz is None)
    if is_a.is_date(given):
        return bool(is_a.is_date(declared) or (is_a.is_timestamp(declared) and declared.tz is None))
    if is_a.is_map(given) or is_a.is_map(declared):
        return (
            bool(is_a.is_map(given) and is_a.is_map(declared))
            and _are_kin(given.key_type, declared.key_type)
            and _are_kin(given.item_type, declared.item_type)
        )
    if is_a.is_struct(given):
        return (
            bool(is_a.is_struct(declared))
            and sorted(field.name for field in given) == sorted(field.name for field in declared)
            and all(_are_kin(given.field(field.name).type, field.type) for field in declared)
        )
    if _is_list(given):
        return _is_list(declared) and _are_kin(given.value_type, declared.value_type)
    return any(is_kind(given) and is_kind(declared) for is_kind in (_is_text, _is_bytes))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    is_a = pa.types
    return bool(
        is_a.is_binary(kind)
        or is_a.is_large_binary(kind)
        or is_a.is_fixed_size_binary(kind)
        or is_a.is_binary_view(kind)
    )


def _require_kept(given: pa.ChunkedArray, cast: pa.ChunkedArray) -> None:
    """Raise `Lossy` for losses that Arrow's safe cast does not check, at any depth."""
    is_a = pa.types
    if given.type == cast.type or is_a.is_null(given.type):
        return
    if is_a.is_struct(given.type):
        for field in cast.type:
            _require_kept(pc.struct_field(given, field.name), pc.struct_field(cast, field.name))
    elif is_a.is_map(given.type):
        _require_kept(_entries(given), _entries(cast))
    elif _is_list(given.type):
        _require_kept(pc.list_flatten(given), pc.list_flatten(cast))
    elif is_a.is_floating(given.type) or is_a.is_date(cast.type) or is_a.is_date(given.type):
        if is_a.is_floating(given.type) and is_a.is_integer(cast.type):
            most = 2.0 ** _WHOLE_BITS[given.type.bit_width]
            if pc.any(pc.greater_equal(pc.abs(given.cast(pa.float64())), most)).as_py():
                raise Lossy(f"{given.type} is not exact for whole numbers from {most:.0f} on")
        kept = pc.equal(cast.cast(given.type, safe=False), given)
        if is_a.is_floating(given.type):
            kept = pc.or_(kept, pc.is_nan(given))
        if not pc.all(kept, min_count=0).as_py():
            raise Lossy(f"the cast to {cast.type} changes the value")


def _entries(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    return pc.list_flatten(column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
