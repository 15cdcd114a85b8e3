"""The Arrow types that state may have, their Spark names, and Spark's schema JSON in both directions.

This module defines names and widths of types. `unsafe_row` defines how values are laid out in a row. Source: Spark's
DataType.json (StructType, ArrayType, MapType) and UnsafeRow.isMutable.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa

from statekeeper.statestore.base.errors import CorruptFile, UnsupportedType
from statekeeper.statestore.format.untrusted import parsed_json

LONG_DIGITS = 18
"""Decimals of up to this many digits are stored as one 64-bit integer (Decimal.MAX_LONG_DIGITS)."""

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TIMESTAMP_NTZ = pa.timestamp("us")

# Arrow type, Spark's name, the machine type of its values. Types that Spark lacks, such as float16, are missing.
_ATOMIC: list[tuple[pa.DataType, str, type[np.generic] | None]] = [
    (pa.int8(), "byte", np.int8),
    (pa.int16(), "short", np.int16),
    (pa.int32(), "integer", np.int32),
    (pa.int64(), "long", np.int64),
    (pa.float32(), "float", np.float32),
    (pa.float64(), "double", np.float64),
    (pa.bool_(), "boolean", np.uint8),
    (pa.string(), "string", None),
    (pa.large_string(), "string", None),
    (pa.binary(), "binary", None),
    (pa.large_binary(), "binary", None),
    (pa.date32(), "date", np.int32),
    (_TIMESTAMP, "timestamp", np.int64),
    (_TIMESTAMP_NTZ, "timestamp_ntz", np.int64),
]
_NAMES = {arrow: name for arrow, name, _ in _ATOMIC}
_MACHINE = {arrow: np.dtype(machine) for arrow, _, machine in _ATOMIC if machine is not None}
# The first of two entries wins: string, not large_string.
_ARROW = {name: arrow for arrow, name, _ in reversed(_ATOMIC)}

MOST_LEVELS = 100
"""Maximum nesting of types. Decoding uses several Python stack frames per level."""

_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")


def check_supported(schema: pa.Schema, *, key: bool = False, void: bool = False) -> None:
    """Raise `UnsupportedType` for the first column, at any depth, that Spark's rows cannot contain.

    `key` also rejects maps: two equal maps may have their entries in different order, so that their bytes differ.
    `void` also accepts columns that are null in every row, which Spark's own operators have.
    """
    for field in schema:
        if not (void and pa.types.is_null(field.type)):
            _check(field.type, field.name, key)


def machine_type(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the little-endian number that Spark stores for a fixed-width type (bool: one byte); None for other types.

    Decimals of up to 18 digits are int64, as Spark stores them.
    """
    if pa.types.is_decimal128(kind):
        return np.dtype(np.int64) if kind.precision <= LONG_DIGITS else None
    return _MACHINE.get(kind)


def children(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct, the element of a list, or the key and value of a map; empty for other types."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind):
        return [kind.value_field]
    return list(kind) if pa.types.is_struct(kind) else []


def spark_schema_json(schema: pa.Schema) -> str:
    """Return the schema exactly as Spark's StructType.json writes it. Arrow's own field metadata is omitted.

    Raises `UnsupportedType`.
    """
    check_supported(schema)
    plain = json.dumps(_struct_json(list(schema)), ensure_ascii=False, separators=(",", ":"))
    # Jackson writes the hex digits of control characters in upper case, Python in lower case.
    return re.sub(r"\\(u[0-9a-f]{4}|.)", lambda m: "\\u" + m[1][1:].upper() if len(m[1]) > 1 else m[0], plain)


def arrow_schema(json_text: str, *, void: bool = False) -> pa.Schema:
    """Return the Arrow schema of Spark's StructType JSON. `void` as in `check_supported`.

    Raises `CorruptFile` for other text, and `UnsupportedType` for an unsupported type or a string with a collation:
    equal strings would have unequal bytes.
    """
    try:
        root = parsed_json(json_text)
        if not isinstance(root, dict) or root.get("type") != "struct":
            raise CorruptFile("the schema is not a struct in Spark's JSON")
        return pa.schema(_fields(root, "", 0, void=void))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"the schema is not JSON: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"the schema is not valid JSON of Spark's form: {error!r}") from error


def _check(kind: pa.DataType, path: str, key: bool, level: int = 0) -> None:
    _require_level(path, level)
    if pa.types.is_decimal128(kind):
        if not 0 <= kind.scale <= kind.precision:
            raise _unsupported(path, kind, "a scale between 0 and the precision")
    elif pa.types.is_map(kind):
        if key:
            raise _unsupported(path, kind, "a list of structs in a fixed order; keys cannot hold maps")
        _check(kind.key_type, f"{path}.key", key, level + 1)
        _check(kind.item_type, f"{path}.value", key, level + 1)
    elif pa.types.is_list(kind):
        _check(kind.value_type, f"{path}.element", key, level + 1)
    elif pa.types.is_struct(kind):
        for field in kind:
            _check(field.type, f"{path}.{field.name}", key, level + 1)
    elif kind not in _NAMES:
        raise _unsupported(path, kind, _instead(kind))


def _require_level(path: str, level: int) -> None:
    if level > MOST_LEVELS:
        raise UnsupportedType(
            f"column {path[:80]} has more than {MOST_LEVELS} levels of nesting", hint="keep it in a string column"
        )


def _unsupported(path: str, kind: pa.DataType, instead: str) -> UnsupportedType:
    return UnsupportedType(
        f"column {path} has the type {kind}, which Spark's rows do not support", hint=f"use {instead}"
    )


def _instead(kind: pa.DataType) -> str:
    is_a = pa.types
    if is_a.is_unsigned_integer(kind):
        wider = {8: "int16", 16: "int32", 32: "int64"}
        return wider.get(kind.bit_width, "int64, or decimal128(20, 0) if it is not enough")
    choices = [
        (is_a.is_timestamp, "timestamp[us, tz=UTC], or timestamp[us] for a time without zone"),
        (is_a.is_date64, "date32"),
        (is_a.is_time, "int64 with the unit in the column's name"),
        (is_a.is_duration, "int64 with the unit in the column's name"),
        (is_a.is_interval, "int64 with the unit in the column's name"),
        (is_a.is_float16, "float32"),
        (is_a.is_decimal, "decimal128 of up to 38 digits"),
        (is_a.is_null, "the type that the column is meant to have"),
        (is_a.is_fixed_size_binary, "binary"),
        (is_a.is_large_list, "list"),
        (is_a.is_fixed_size_list, "list"),
    ]
    for test, instead in choices:
        if test(kind):
            return instead
    if is_a.is_dictionary(kind) or is_a.is_run_end_encoded(kind):
        return str(kind.value_type)
    return "string or binary" if "view" in str(kind) else "a type that Spark has"


def _struct_json(fields: list[pa.Field]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": field.name, "type": _type_json(field.type), "nullable": field.nullable, "metadata": {}}
            for field in fields
        ],
    }


def _type_json(kind: pa.DataType) -> str | dict[str, Any]:
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type_json(kind.key_type),
            "valueType": _type_json(kind.item_type),
            "valueContainsNull": kind.item_field.nullable,
        }
    if pa.types.is_list(kind):
        element = kind.value_field
        return {"type": "array", "elementType": _type_json(element.type), "containsNull": element.nullable}
    if pa.types.is_struct(kind):
        return _struct_json(list(kind))
    return _NAMES[kind]


def _fields(struct: dict[str, Any], path: str, level: int, *, void: bool = False) -> list[pa.Field]:
    fields = []
    for field in struct["fields"]:
        name = field["name"]
        where = f"{path}.{name}" if path else name
        if "__COLLATIONS" in field.get("metadata", {}):
            raise UnsupportedType(
                f"column {where} is a string with a collation, which is not supported",
                hint="use a string without collation",
            )
        kind = pa.null() if void and field["type"] == "void" else _arrow_type(field["type"], where, level)
        fields.append(pa.field(name, kind, nullable=_flag(field["nullable"])))
    return fields


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not a boolean")
    return value


def _arrow_type(kind: str | dict[str, Any], path: str, level: int) -> pa.DataType:
    _require_level(path, level)
    if isinstance(kind, str):
        if kind in _ARROW:
            return _ARROW[kind]
        digits = _DECIMAL.fullmatch(kind)
        if digits and 0 < int(digits[1]) <= 38 and int(digits[2]) <= int(digits[1]):
            return pa.decimal128(int(digits[1]), int(digits[2]))
    elif kind["type"] == "struct":
        return pa.struct(_fields(kind, path, level + 1))
    elif kind["type"] == "array":
        element = _arrow_type(kind["elementType"], f"{path}.element", level + 1)
        return pa.list_(pa.field("element", element, nullable=_flag(kind["containsNull"])))
    elif kind["type"] == "map":
        value = _arrow_type(kind["valueType"], f"{path}.value", level + 1)
        value_field = pa.field("value", value, nullable=_flag(kind["valueContainsNull"]))
        return pa.map_(_arrow_type(kind["keyType"], f"{path}.key", level + 1), value_field)
    elif not isinstance(kind["type"], str):
        raise TypeError(f"{kind['type']!r} is not the name of a type")
    raise UnsupportedType(
        f"column {path} has Spark's type {kind if isinstance(kind, str) else kind['type']}, which is not supported",
        hint="keep it in a string or binary column",
    )
