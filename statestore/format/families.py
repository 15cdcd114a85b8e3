"""How the rows of a store's column families are laid out: their schemas, and how a key is encoded.

state/<op>/_stateSchema/<store>/<batch>_<uuid>   UTF "v3", int families, and of each:
    UTF name
    int16 schema id, key schema      int pieces, each as UTF
    int16 schema id, value schema    the same
    key encoder                      the same; {"keyStateEncoderType": ..., "numColsPrefixKey" or "orderingOrdinals": ...}
    schema of a map's keys           the same; it stands in the key schema too

A store without column families has one layout for all its rows: state/<op>/0/_metadata/schema (`operators.parse_schema`),
and the number of prefix columns in the operator's metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from statestore.errors import CorruptFile, UnknownFormatVersion, UnsupportedType
from statestore.format.java_io import Reader
from statestore.format.operators import chunked_text, not_known, require_end
from statestore.format.types import arrow_schema, machine_type
from statestore.format.untrusted import BAD_VALUES, parsed_json

_HINT = "a newer Statekeeper may know it; nothing was written"
_LEAST_FAMILY_BYTES = 22
_SESSION_START = "sessionStartTime"
_SESSION_WINDOW = '"spark.sessionWindow":true'


class KeyEncoder(Enum):
    """How Spark makes a key of its columns, by Spark's name for it. `family_rows` says what the bytes are."""

    WHOLE = "NoPrefixKeyStateEncoderSpec"
    PREFIX = "PrefixKeyScanStateEncoderSpec"
    RANGE = "RangeKeyScanStateEncoderSpec"
    TIME_FIRST = "TimestampAsPrefixKeyStateEncoderSpec"
    TIME_LAST = "TimestampAsPostfixKeyStateEncoderSpec"


@dataclass(frozen=True)
class Family:
    """The layout of rows. `front`: which columns of the key are encoded apart from the others, and before them; with the
    encoders of timestamps it is the last one, wherever its bytes are."""

    key: pa.Schema
    value: pa.Schema
    encoder: KeyEncoder = KeyEncoder.WHOLE
    front: tuple[int, ...] = ()


def undescribed_prefix(key_json: str, value_json: str) -> int:
    """The number of prefix columns of an operator that Spark 3.5 left without metadata, by the JSON of its schemas: only
    session windows have any, all but the time at which the session began, the last one."""
    try:
        names = [field["name"] for field in parsed_json(key_json)["fields"]]
    except BAD_VALUES:
        return 0
    is_of_sessions = names[-1:] == [_SESSION_START] and _SESSION_WINDOW in value_json
    return len(names) - 1 if is_of_sessions else 0


def plain_family(key_json: str, value_json: str, prefix_columns: int, path: str) -> Family:
    """The layout of a store without column families. Raises `UnknownFormatVersion` for a type that this release does not
    know, `CorruptFile`; both name the file `path`."""
    key = _schema(key_json, path)
    if not 0 <= prefix_columns < max(1, len(key)):
        raise CorruptFile(f"{prefix_columns} prefix columns of a key with {len(key)}", path=path)
    encoder = KeyEncoder.PREFIX if prefix_columns else KeyEncoder.WHOLE
    return Family(key, _schema(value_json, path), encoder, tuple(range(prefix_columns)))


def parse_families(data: bytes, path: str) -> dict[str, Family]:
    """The column families of a store by name. Raises `UnknownFormatVersion` for another version of the file than 3, or for
    an encoder or a type that this release does not know; `CorruptFile`."""
    reader = Reader(data, path)
    version = reader.utf("the version")
    if version != "v3":
        raise not_known("state schema", version[:20], "v3", path)
    count = reader.int32("the number of column families")
    if not 0 <= count <= len(data) // _LEAST_FAMILY_BYTES:
        raise CorruptFile(f"{count:,} column families", path=path)
    found: dict[str, Family] = {}
    for _ in range(count):
        name = reader.utf("the name of a column family")
        reader.int16("the id of a key schema")
        key_json = chunked_text(reader)
        reader.int16("the id of a value schema")
        value_json = chunked_text(reader)
        encoder_json = chunked_text(reader)
        chunked_text(reader)
        found[name] = _family(_schema(key_json, path), _schema(value_json, path), encoder_json, path)
    require_end(reader)
    return found


def _schema(text: str, path: str) -> pa.Schema:
    try:
        return arrow_schema(text, void=True)
    except UnsupportedType as error:
        raise UnknownFormatVersion(error.what, path=path, hint=_HINT) from error
    except CorruptFile as error:
        raise CorruptFile(error.what, path=path) from error


def _family(key: pa.Schema, value: pa.Schema, encoder_json: str, path: str) -> Family:
    try:
        spec = parsed_json(encoder_json)
        name = spec["keyStateEncoderType"]
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is no name")
        encoder = next((one for one in KeyEncoder if one.value == name), None)
        front = _front(encoder, spec, len(key))
    except BAD_VALUES as error:
        raise CorruptFile(f"the key encoder is not what it should be: {encoder_json[:80]!r}", path=path) from error
    if encoder is None:
        raise UnknownFormatVersion(f"key encoder {name!r}", path=path, hint=_HINT)
    _require_sortable([key.field(i) for i in front], encoder, path)
    return Family(key, value, encoder, front)


def _front(encoder: KeyEncoder | None, spec: dict[str, Any], columns: int) -> tuple[int, ...]:
    match encoder:
        case KeyEncoder.PREFIX:
            # Not more than one too many: a damaged number is not to become a tuple of billions.
            front = tuple(range(min(int(spec["numColsPrefixKey"]), columns + 1)))
        case KeyEncoder.RANGE:
            front = tuple(int(place) for place in spec["orderingOrdinals"])
        case KeyEncoder.TIME_FIRST | KeyEncoder.TIME_LAST:
            front = (columns - 1,)
        case _:
            return ()
    if not front or len(set(front)) < len(front) or not all(0 <= place < columns for place in front):
        raise ValueError(f"columns {front} of {columns}")
    return front


def _require_sortable(fields: list[pa.Field], encoder: KeyEncoder, path: str) -> None:
    if encoder in (KeyEncoder.WHOLE, KeyEncoder.PREFIX):
        return
    for field in fields:
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        is_time = encoder is KeyEncoder.RANGE or field.type == pa.int64()
        if not is_number or not is_time or machine_type(field.type) is None:
            raise UnknownFormatVersion(
                f"key encoder {encoder.value} over column {field.name} of type {field.type}", path=path, hint=_HINT
            )
