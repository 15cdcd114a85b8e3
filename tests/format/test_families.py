"""The schemas of column families, and keys and values in Spark's layout."""

from __future__ import annotations

import base64
import datetime as dt
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format.families import Family, KeyEncoder, parse_families, plain_family, undescribed_prefix
from statekeeper.statestore.format.family_rows import decode_keys, decode_rows_of, family_id
from statekeeper.statestore.format.java_io import utf
from statekeeper.statestore.format.plain_values import grouped, plain_rows
from statekeeper.statestore.format.row_checksum import checksum
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.format.unsafe_row import encode_rows
from tests.support.damage import flips, prefixes, value_or_error
from tests.support.dumped import expected, shown

WRITTEN = sorted((Path(__file__).parents[1] / "fixtures" / "families").glob("spark-*.json"))
LIKE_SPARK = StateConf(merge_delimiter=b",", row_checksums=True)


def fixture(path: Path) -> tuple[dict[str, Family], dict[int, str], list[tuple[bytes, bytes]], dict[str, list[str]]]:
    body = json.loads(path.read_text())
    rows = [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in body["rows"]]
    families = parse_families(base64.b64decode(body["schemas"]), "schema")
    return families, {number: name for name, number in body["families"].items()}, rows, body["shown"]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_rows_that_spark_wrote_are_decoded_as_its_reader_shows_them(path: Path) -> None:
    families, names, rows, by_spark = fixture(path)
    decoded: list[dict[str, Any]] = []
    for key, value in rows:
        name = names[family_id(key)]
        found = decode_rows_of([key], [value], families[name], LIKE_SPARK, skip=2)
        [of_key] = plain_rows(found.keys)
        [values] = grouped(plain_rows(found.values), found.counts)
        decoded += [{"store": "state/0/0", "family": name, "key": of_key, "value": value} for value in values]
    assert any(by_spark.values())
    for view, found in by_spark.items():
        assert shown(decoded, json.loads(view)) == expected(found, json.loads(view)), view
    # Spark's reader does not show it for a join: the timestamp in the key is that of the row.
    for row in decoded:
        if row["family"] == "left-keyWithTsToValues":
            at = dt.datetime.fromisoformat(row["value"]["a"])
            assert row["key"]["__event_time"] == (at - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(
                microseconds=1
            )


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_each_flipped_byte_of_a_row_with_a_checksum_is_detected(path: Path) -> None:
    families, names, rows, _ = fixture(path)
    assert len({family_id(key) for key, _ in rows}) >= 2
    for key, value in rows:
        family = families[names[family_id(key)]]
        for damaged in flips(value):
            with pytest.raises(CorruptFile):
                decode_rows_of([key], [damaged], family, LIKE_SPARK, skip=2)
        for damaged in flips(key[2:]):
            with pytest.raises(CorruptFile):
                decode_rows_of([key[:2] + damaged], [value], family, LIKE_SPARK, skip=2)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_damaged_key_gives_a_typed_error_or_another_key(path: Path) -> None:
    families, names, rows, _ = fixture(path)
    for key in {family_id(key): key for key, _ in rows}.values():
        family = families[names[family_id(key)]]
        for damaged in (*flips(key[2:]), *prefixes(key[2:])):
            try:
                decode_keys([damaged], family)
            except CorruptFile:
                continue


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_damage_to_a_schema_file_gives_typed_errors_or_schemas(path: Path) -> None:
    data = base64.b64decode(json.loads(path.read_text())["schemas"])
    for damaged in prefixes(data):
        with pytest.raises(CorruptFile, match="schema"):
            parse_families(damaged, "schema")
    for damaged in flips(data):
        value_or_error(lambda data: parse_families(data, "schema"), damaged, names="schema")


# -- schema files ------------------------------------------------------------------------------------------------------

ONE_LONG = '{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}'


def schema_file(encoder: str, *, key: str = ONE_LONG, value: str = ONE_LONG, version: str = "v3") -> bytes:
    def piece(text: str) -> bytes:
        return struct.pack(">i", 1) + utf(text)

    body = utf("total") + b"\0\0" + piece(key) + b"\0\0" + piece(value) + piece(encoder) + piece("{}")
    return utf(version) + struct.pack(">i", 1) + body


def test_an_unknown_version_encoder_or_type_is_rejected_with_its_name() -> None:
    whole = '{"keyStateEncoderType":"NoPrefixKeyStateEncoderSpec"}'
    assert parse_families(schema_file(whole), "f")["total"].encoder is KeyEncoder.WHOLE
    with pytest.raises(UnknownFormatVersion, match=r"^f: has state schema version 'v4'"):
        parse_families(schema_file(whole, version="v4"), "f")
    with pytest.raises(UnknownFormatVersion, match=r"^f: has key encoder 'ZOrder'"):
        parse_families(schema_file('{"keyStateEncoderType":"ZOrder"}'), "f")
    with pytest.raises(UnknownFormatVersion, match=r"^f: column n has Spark's type variant"):
        parse_families(schema_file(whole, value=ONE_LONG.replace("long", "variant")), "f")
    ranged = '{"keyStateEncoderType":"RangeKeyScanStateEncoderSpec","orderingOrdinals":[0]}'
    for kind in ("boolean", "string", "date"):
        with pytest.raises(UnknownFormatVersion, match=r"^f: has key encoder Range\w+ for column n of type"):
            parse_families(schema_file(ranged, key=ONE_LONG.replace("long", kind)), "f")
    timed = '{"keyStateEncoderType":"TimestampAsPrefixKeyStateEncoderSpec"}'
    with pytest.raises(
        UnknownFormatVersion, match=r"^f: has key encoder TimestampAsPrefix\w+ for column n of type int32"
    ):
        parse_families(schema_file(timed, key=ONE_LONG.replace("long", "integer")), "f")


@pytest.mark.parametrize(
    "encoder",
    [
        "",
        "{}",
        "[]",
        '{"keyStateEncoderType":7}',
        '{"keyStateEncoderType":"PrefixKeyScanStateEncoderSpec"}',
        '{"keyStateEncoderType":"PrefixKeyScanStateEncoderSpec","numColsPrefixKey":2}',
        '{"keyStateEncoderType":"RangeKeyScanStateEncoderSpec","orderingOrdinals":[]}',
        '{"keyStateEncoderType":"RangeKeyScanStateEncoderSpec","orderingOrdinals":[0,0]}',
        '{"keyStateEncoderType":"RangeKeyScanStateEncoderSpec","orderingOrdinals":[-1]}',
    ],
)
def test_an_invalid_encoder_is_rejected(encoder: str) -> None:
    with pytest.raises(CorruptFile, match="has an invalid key encoder"):
        parse_families(schema_file(encoder), "f")


def test_prefix_columns_must_be_fewer_than_the_key_has() -> None:
    assert plain_family(ONE_LONG, ONE_LONG, 0, "f").front == ()
    for count in (-1, 1, 2):
        with pytest.raises(CorruptFile, match=f"key with 1 columns, .* declares {count} prefix columns"):
            plain_family(ONE_LONG, ONE_LONG, count, "f")


# -- keys --------------------------------------------------------------------------------------------------------------

KEY = pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.float64()), ("d", pa.int16())])
VALUE = pa.schema([("v", pa.int64())])
KEYS = st.lists(
    st.tuples(
        st.none() | st.text(max_size=20),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.floats(allow_nan=False),
        st.none() | st.integers(-(2**15), 2**15 - 1),
    ),
    min_size=1,
    max_size=20,
)


def row(columns: dict[str, Any], schema: pa.Schema) -> bytes:
    """A version and a row."""
    [found] = encode_rows(pa.Table.from_pylist([columns], schema), head=b"\0").to_pylist()
    return bytes(found)


def in_two(columns: dict[str, Any], front: bytes, names: tuple[str, ...]) -> bytes:
    others = [field for field in KEY if field.name not in names]
    behind = row({field.name: columns[field.name] for field in others}, pa.schema(others)) if others else b""
    return struct.pack("<i", len(front)) + front + behind


def sorting(value: float | None, letter: str) -> bytes:
    if value is None:
        return bytes([2]) + bytes(struct.calcsize(letter))
    packed = struct.pack(f">{letter}", value)
    is_negative = packed[0] >= 128
    if is_negative and letter == "d":
        packed = bytes(255 - byte for byte in packed)
    return bytes([0 if is_negative else 1]) + packed


@given(KEYS, st.integers(1, 3))
def test_keys_with_a_prefix_are_decoded(keys: list[tuple[Any, ...]], count: int) -> None:
    rows = [dict(zip(KEY.names, key, strict=True)) for key in keys]
    front = pa.schema(list(KEY)[:count])
    encoded = [in_two(one, row({name: one[name] for name in front.names}, front), tuple(front.names)) for one in rows]
    family = Family(KEY, VALUE, KeyEncoder.PREFIX, tuple(range(count)))
    assert decode_keys(encoded, family).to_pylist() == rows
    assert decode_keys([b"\7\0" + one for one in encoded], family, skip=2).to_pylist() == rows


@given(KEYS, st.permutations([("b", "q"), ("c", "d"), ("d", "h")]), st.integers(1, 3))
def test_keys_in_numeric_order_are_decoded(
    keys: list[tuple[Any, ...]], order: list[tuple[str, str]], count: int
) -> None:
    rows = [dict(zip(KEY.names, key, strict=True)) for key in keys]
    order = order[:count]
    names = tuple(name for name, _ in order)
    as_bytes = pa.schema([(name, pa.binary()) for name in names])
    encoded = [in_two(one, row({n: sorting(one[n], x) for n, x in order}, as_bytes), names) for one in rows]
    family = Family(KEY, VALUE, KeyEncoder.RANGE, tuple(KEY.names.index(name) for name in names))
    found = decode_keys(encoded, family).to_pylist()
    assert found == rows
    assert [np.signbit(one["c"] or 0.0) for one in found] == [np.signbit(one["c"] or 0.0) for one in rows]


def test_a_range_key_with_only_ordering_columns_has_no_second_row() -> None:
    key = pa.schema([("b", pa.int64())])
    family = Family(key, VALUE, KeyEncoder.RANGE, (0,))
    front = row({"b": sorting(-3, "q")}, pa.schema([("b", pa.binary())]))
    encoded = struct.pack("<i", len(front)) + front
    assert decode_keys([encoded], family).to_pylist() == [{"b": -3}]
    with pytest.raises(CorruptFile, match="extra bytes at its end"):
        decode_keys([encoded + b"\0"], family)


@given(st.lists(st.tuples(st.text(max_size=20), st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_keys_with_a_timestamp_at_either_end_are_decoded(keys: list[tuple[str, int]]) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    rows = [{"k": k, "at": at} for k, at in keys]
    others = [row({"k": k}, pa.schema([("k", pa.string())])) for k, _ in keys]
    times = [struct.pack(">Q", at + 2**63) for _, at in keys]
    first, last = (Family(schema, VALUE, kind, (1,)) for kind in (KeyEncoder.TIME_FIRST, KeyEncoder.TIME_LAST))
    assert decode_keys([t + o for t, o in zip(times, others, strict=True)], first).to_pylist() == rows
    assert decode_keys([o + t for t, o in zip(times, others, strict=True)], last).to_pylist() == rows


# -- values ------------------------------------------------------------------------------------------------------------

ONE_KEY = pa.schema([("k", pa.int64())])
FAMILY = Family(ONE_KEY, VALUE)
LISTS = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6), min_size=1, max_size=6)


def element(value: int) -> bytes:
    encoded = row({"v": value}, VALUE)
    return struct.pack("<i", len(encoded)) + encoded


def proved(key: bytes, value: bytes) -> bytes:
    return struct.pack("<I", checksum(key, value)) + struct.pack("<i", len(value)) + value


@given(LISTS, st.sampled_from([b"", b","]), st.booleans())
def test_lists_are_distinguished_from_values_and_split(
    lists: list[list[int]], delimiter: bytes, checksums: bool
) -> None:
    keys = [row({"k": number}, ONE_KEY) for number in range(len(lists))]
    made = [[element(one) for one in of_key] for of_key in lists]
    if checksums:
        made = [[proved(key, one) for one in of_key] for key, of_key in zip(keys, made, strict=True)]
    values = [delimiter.join(of_key) for of_key in made]
    found = decode_rows_of(keys, values, FAMILY, StateConf(merge_delimiter=delimiter, row_checksums=checksums))
    assert found.are_lists
    assert [[one["v"] for one in of_key] for of_key in grouped(plain_rows(found.values), found.counts)] == lists
    other = b"" if delimiter else b","
    if any(len(of_key) > 1 for of_key in lists):
        with pytest.raises(CorruptFile):
            decode_rows_of(keys, values, FAMILY, StateConf(merge_delimiter=other, row_checksums=checksums))


@pytest.mark.parametrize("checksums", [False, True])
def test_single_values_are_not_lists(checksums: bool) -> None:
    keys = [row({"k": number}, ONE_KEY) for number in range(3)]
    values = [row({"v": number}, VALUE) for number in range(3)]
    if checksums:
        values = [proved(key, value) for key, value in zip(keys, values, strict=True)]
    found = decode_rows_of(keys, values, FAMILY, StateConf(row_checksums=checksums))
    assert not found.are_lists
    assert found.values.to_pylist() == [{"v": 0}, {"v": 1}, {"v": 2}]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (b"", "a value is empty"),
        (element(1)[:-1], "beyond the end of the value"),
        (b"\xff\xff\xff\xff" + bytes(17), "beyond the end of the value"),
        (element(1) + b",", "a value ends with a delimiter"),
        (element(1) + b"x" + element(2), "the delimiter .* is missing"),
        (b"\0" * 12, "not a multiple of 8"),
    ],
)
def test_invalid_values_are_rejected(value: bytes, what: str) -> None:
    with pytest.raises(CorruptFile, match=what):
        decode_rows_of([row({"k": 1}, ONE_KEY)], [value], FAMILY, StateConf(merge_delimiter=b","))


def test_lists_mixed_with_values_and_two_values_of_a_key_are_rejected() -> None:
    keys = [row({"k": number}, ONE_KEY) for number in range(2)]
    with pytest.raises(CorruptFile, match="both lists and single values"):
        decode_rows_of(keys, [element(1), row({"v": 1}, VALUE)], FAMILY, StateConf())
    twice = proved(keys[0], row({"v": 1}, VALUE)) * 2
    with pytest.raises(CorruptFile, match="a key has several values"):
        decode_rows_of(keys[:1], [twice], FAMILY, StateConf(row_checksums=True))


def test_void_columns_are_null_and_other_values_in_them_are_rejected() -> None:
    void = '{"type":"struct","fields":[{"name":"__dummy__","type":"void","nullable":true,"metadata":{}}]}'
    family = plain_family(spark_schema_json(ONE_KEY), void, 0, "f")
    key = row({"k": 1}, ONE_KEY)
    assert decode_rows_of([key], [b"\0\1" + bytes(15)], family, StateConf()).values.to_pylist() == [{"__dummy__": None}]
    with pytest.raises(CorruptFile, match="the value is not null, but the column has Spark's type void"):
        decode_rows_of([key], [b"\0" + bytes(16)], family, StateConf())


SESSION_KEYS = (  # as Spark 3.5.9 writes it
    '{"type":"struct","fields":[{"name":"k","type":"string","nullable":true,"metadata":{}},'
    '{"name":"sessionStartTime","type":"timestamp","nullable":false,"metadata":{}}]}'
)
SESSIONS = (
    '{"type":"struct","fields":[{"name":"session_window","type":{"type":"struct","fields":[{"name":"start","type":'
    '"timestamp","nullable":true,"metadata":{}},{"name":"end","type":"timestamp","nullable":true,"metadata":{}}]},'
    '"nullable":false,"metadata":{"spark.watermarkDelayMs":60000,"spark.sessionWindow":true}},{"name":"k","type":'
    '"string","nullable":true,"metadata":{}},{"name":"count","type":"long","nullable":false,"metadata":{}}]}'
)
COUNTS = '{"type":"struct","fields":[{"name":"count","type":"long","nullable":false,"metadata":{}}]}'


def test_the_prefix_of_session_windows_is_found_without_metadata_of_spark_3_5() -> None:
    assert undescribed_prefix(SESSION_KEYS, SESSIONS) == 1
    assert plain_family(SESSION_KEYS, SESSIONS, 1, "schema").encoder is KeyEncoder.PREFIX


def test_a_column_named_like_the_start_of_a_session_is_no_session_window() -> None:
    assert undescribed_prefix(SESSION_KEYS, COUNTS) == 0
