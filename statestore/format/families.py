"""The layout of the rows in a store's column families: their schemas and key encoders.

state/<op>/_stateSchema/<store>/<batch>_<uuid>   UTF "v3", int number of families, then for each:
    UTF name
    int16 schema id, key schema      int number of pieces, each as UTF
    int16 schema id, value schema    the same
    key encoder                      the same; {"keyStateEncoderType": ..., "numColsPrefixKey" or "orderingOrdinals": ...}
    schema of a map's keys           the same; also part of the key schema

A store without column families has one layout for all rows: state/<op>/0/_metadata/schema (`operators.parse_schema`),
and the number of prefix columns in the operator's metadata.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion, UnsupportedType
from statekeeper.statestore.format.java_io import Reader
from statekeeper.statestore.format.operators import UnknownColumnType, chunked_text, not_known, require_end
from statekeeper.statestore.format.types import arrow_schema, machine_type
from statekeeper.statestore.format.untrusted import BAD_VALUES, parsed_json

_HINT = "nothing was written; upgrade Statekeeper"
_LEAST_FAMILY_BYTES = 22
_SESSION_START = "sessionStartTime"
_DELAY = "spark.watermarkDelayMs"
_SESSION_WINDOW = '"spark.sessionWindow":true'


class KeyEncoder(Enum):
    """The way Spark encodes the columns of a key, by Spark's name. `family_rows` describes the bytes."""

    WHOLE = "NoPrefixKeyStateEncoderSpec"
    PREFIX = "PrefixKeyScanStateEncoderSpec"
    RANGE = "RangeKeyScanStateEncoderSpec"
    TIME_FIRST = "TimestampAsPrefixKeyStateEncoderSpec"
    TIME_LAST = "TimestampAsPostfixKeyStateEncoderSpec"


class RowHead(Enum):
    """What precedes each row of a key or value."""

    VERSION = "version byte"
    NOTHING = "nothing"
    """With Spark's default provider."""


@dataclass(frozen=True)
class AvroIds:
    """The ids of the schemas of keys and values, which precede each row in Avro."""

    key: int
    value: int


@dataclass(frozen=True)
class Family:
    """The layout of rows.

    `front`: the key columns that are encoded separately and before the others. For the timestamp encoders it is the
    last column, wherever its bytes are. `avro`: None for rows that are encoded as UnsafeRow.
    """

    key: pa.Schema
    value: pa.Schema
    encoder: KeyEncoder = KeyEncoder.WHOLE
    front: tuple[int, ...] = ()
    _: KW_ONLY
    head: RowHead = RowHead.VERSION
    avro: AvroIds | None = None


@dataclass(frozen=True, kw_only=True)
class FamilyText:
    """A column family as its schema file has it: Spark's JSON of its keys, values and key encoder, and the ids of both."""

    name: str
    ids: AvroIds
    key_json: str
    value_json: str
    encoder_json: str


def undescribed_prefix(key_json: str, value_json: str) -> int:
    """Return the number of prefix columns of an operator without metadata (Spark 3.5), from the JSON of its schemas.
    Only session windows have prefix columns: all but the last one, the start time of the session."""
    try:
        names = [field["name"] for field in parsed_json(key_json)["fields"]]
    except BAD_VALUES:
        return 0
    is_of_sessions = names[-1:] == [_SESSION_START] and _SESSION_WINDOW in value_json
    return len(names) - 1 if is_of_sessions else 0


def plain_family(key_json: str, value_json: str, prefix_columns: int, path: str) -> Family:
    """Return the layout of a store without column families. Raises `UnknownColumnType`, and `CorruptFile`;
    both name the file `path`."""
    key = _schema(key_json, path)
    if not 0 <= prefix_columns < max(1, len(key)):
        raise CorruptFile(
            f"has a key with {len(key)} columns, but the operator's metadata declares {prefix_columns} prefix columns",
            path=path,
        )
    encoder = KeyEncoder.PREFIX if prefix_columns else KeyEncoder.WHOLE
    return Family(key, _schema(value_json, path), encoder, tuple(range(prefix_columns)))


def hdfs_backed_family(key_json: str, value_json: str, path: str) -> Family:
    """Return the layout of a store of Spark's default provider, which encodes all columns of a key as one row. Raises as
    `plain_family`."""
    return replace(plain_family(key_json, value_json, 0, path), head=RowHead.NOTHING)


def parse_families(data: bytes, path: str, *, is_avro: bool = False) -> dict[str, Family]:
    """Parse the column families of a store, by name. `is_avro`: their rows are encoded as Avro.

    Raises `UnknownFormatVersion` for a file version other than 3 or an unknown encoder; `UnknownColumnType`; `CorruptFile`.
    """
    found = {}
    for text in family_texts(data, path):
        family = _family(_schema(text.key_json, path), _schema(text.value_json, path), text.encoder_json, path)
        found[text.name] = replace(family, avro=text.ids) if is_avro else family
    return found


def family_texts(data: bytes, path: str) -> list[FamilyText]:
    """Parse the same file without its types. Raises `UnknownFormatVersion` for another version, and `CorruptFile`."""
    reader = Reader(data, path)
    version = reader.utf("the version")
    if version != "v3":
        raise not_known("state schema", version[:20], "v3", path)
    count = reader.int32("the number of column families")
    if not 0 <= count <= len(data) // _LEAST_FAMILY_BYTES:
        raise CorruptFile(f"declares {count:,} column families, more than it can contain", path=path)
    found: list[FamilyText] = []
    for _ in range(count):
        name = reader.utf("the name of a column family")
        key_id = reader.int16("the id of a key schema")
        key_json = chunked_text(reader)
        value_id = reader.int16("the id of a value schema")
        value_json, encoder_json = chunked_text(reader), chunked_text(reader)
        ids = AvroIds(key_id, value_id)
        found.append(
            FamilyText(name=name, ids=ids, key_json=key_json, value_json=value_json, encoder_json=encoder_json)
        )
        chunked_text(reader)
    require_end(reader)
    return found


def watermark_columns(schema_json: str) -> dict[str, int]:
    """Return the delay of the watermark in milliseconds of each column that has one, from Spark's JSON of a struct."""
    try:
        fields = parsed_json(schema_json)["fields"]
        return {str(one["name"]): int(one["metadata"][_DELAY]) for one in fields if _DELAY in one.get("metadata", {})}
    except BAD_VALUES:
        return {}


def _schema(text: str, path: str) -> pa.Schema:
    try:
        return arrow_schema(text, void=True)
    except UnsupportedType as error:
        raise UnknownColumnType(error.what, path=path, hint=_HINT) from error
    except CorruptFile as error:
        raise CorruptFile(error.what, path=path) from error


def _family(key: pa.Schema, value: pa.Schema, encoder_json: str, path: str) -> Family:
    try:
        spec = parsed_json(encoder_json)
        name = spec["keyStateEncoderType"]
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is not a name")
        encoder = next((one for one in KeyEncoder if one.value == name), None)
        front = _front(encoder, spec, len(key))
    except BAD_VALUES as error:
        raise CorruptFile(f"has an invalid key encoder: {encoder_json[:80]!r}", path=path) from error
    if encoder is None:
        raise UnknownFormatVersion(
            f"has key encoder {name!r}, which is not supported; the state cannot be decoded", path=path, hint=_HINT
        )
    _require_sortable([key.field(i) for i in front], encoder, path)
    return Family(key, value, encoder, front)


def _front(encoder: KeyEncoder | None, spec: dict[str, Any], columns: int) -> tuple[int, ...]:
    match encoder:
        case KeyEncoder.PREFIX:
            # Bounded, because a damaged number must not become a tuple of billions.
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
            raise UnknownColumnType(
                f"has key encoder {encoder.value} for column {field.name} of type {field.type}: this combination is not "
                "supported; the state cannot be decoded",
                path=path,
                hint=_HINT,
            )
