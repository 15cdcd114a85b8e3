"""The types that state may have, and Spark's schema JSON."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from statekeeper.statestore.base.errors import CorruptFile, UnsupportedType
from statekeeper.statestore.format.types import arrow_schema, check_supported, spark_schema_json

ALL = pa.schema(
    [
        pa.field("byte", pa.int8(), nullable=False),
        pa.field("short", pa.int16()),
        pa.field("integer", pa.int32()),
        pa.field("long", pa.int64()),
        pa.field("float", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("boolean", pa.bool_()),
        pa.field("string", pa.string()),
        pa.field("binary", pa.binary()),
        pa.field("date", pa.date32()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_ntz", pa.timestamp("us")),
        pa.field("decimal(38,18)", pa.decimal128(38, 18)),
        pa.field("struct", pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.string())])),
        pa.field("list", pa.list_(pa.field("element", pa.int16(), nullable=False))),
        pa.field(
            "map", pa.map_(pa.string(), pa.field("value", pa.list_(pa.field("element", pa.date32())), nullable=False))
        ),
    ]
)


def test_each_type_has_sparks_name() -> None:
    described = json.loads(spark_schema_json(ALL))["fields"]
    for field in described[:13]:
        assert field["type"] == field["name"]
    assert [field["nullable"] for field in described] == [False] + [True] * 15
    assert described[14]["type"] == {"type": "array", "elementType": "short", "containsNull": False}


def test_a_schema_is_parsed_back_from_its_json() -> None:
    back = arrow_schema(spark_schema_json(ALL))
    assert back.equals(ALL)
    assert not back.field("list").type.value_field.nullable
    assert not back.field("map").type.item_field.nullable
    assert arrow_schema(spark_schema_json(pa.schema([]))).equals(pa.schema([]))


def test_the_json_is_compact_and_without_escapes_that_spark_does_not_write() -> None:
    schema = pa.schema([pa.field('ä"\\u001f\x1f\n', pa.int64(), metadata={"arrow": "only"})])
    assert spark_schema_json(schema) == (
        '{"type":"struct","fields":[{"name":"ä\\"\\\\u001f\\u001F\\n","type":"long","nullable":true,"metadata":{}}]}'
    )


def test_large_strings_are_strings_to_spark() -> None:
    schema = pa.schema([("s", pa.large_string()), ("b", pa.large_binary())])
    assert arrow_schema(spark_schema_json(schema)) == pa.schema([("s", pa.string()), ("b", pa.binary())])


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        (pa.uint8(), "int16"),
        (pa.uint32(), "int64"),
        (pa.uint64(), "decimal128"),
        (pa.float16(), "float32"),
        (pa.time64("us"), "int64"),
        (pa.duration("us"), "int64"),
        (pa.month_day_nano_interval(), "int64"),
        (pa.timestamp("ns"), "timestamp[us"),
        (pa.timestamp("us", tz="Europe/Berlin"), "tz=UTC"),
        (pa.date64(), "date32"),
        (pa.dictionary(pa.int32(), pa.string()), "use string"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), "use int64"),
        (pa.decimal256(40, 0), "decimal128"),
        (pa.decimal128(10, -2), "scale"),
        (pa.decimal128(2, 3), "scale"),
        (pa.binary(4), "use binary"),
        (pa.string_view(), "string"),
        (pa.large_list(pa.int8()), "use list"),
        (pa.list_(pa.int8(), 3), "use list"),
        (pa.null(), "meant to have"),
        (pa.dense_union([pa.field("a", pa.int8())]), "a type that Spark has"),
    ],
    ids=str,
)
def test_a_type_that_spark_lacks_is_rejected_with_a_replacement(kind: pa.DataType, instead: str) -> None:
    nested = pa.struct([("inner", pa.list_(kind))])
    for field, path in ((pa.field("c", kind), "column c "), (pa.field("c", nested), "column c.inner.element ")):
        with pytest.raises(UnsupportedType) as refused:
            check_supported(pa.schema([pa.field("good", pa.int8()), field]))
        assert path in str(refused.value)
        assert str(kind) in str(refused.value)
        assert instead in str(refused.value)
        with pytest.raises(UnsupportedType):
            spark_schema_json(pa.schema([field]))


def test_maps_are_values_but_not_keys() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    for schema, path in ((pa.schema([("m", kind)]), "m "), (pa.schema([("s", pa.struct([("m", kind)]))]), r"s\.m ")):
        check_supported(schema)
        with pytest.raises(UnsupportedType, match=path):
            check_supported(schema, key=True)
    check_supported(pa.schema([field for field in ALL if field.name != "map"]), key=True)
    with pytest.raises(UnsupportedType, match=r"m\.key"):
        check_supported(pa.schema([("m", pa.map_(pa.uint8(), pa.int8()))]))
    with pytest.raises(UnsupportedType, match=r"m\.value"):
        check_supported(pa.schema([("m", pa.map_(pa.int8(), pa.uint8()))]))


def test_void_columns_are_accepted_only_for_state_of_sparks_operators() -> None:
    text = _field_json("void")
    assert arrow_schema(text, void=True) == pa.schema([("c", pa.null())])
    check_supported(pa.schema([("c", pa.null())]), void=True)
    with pytest.raises(UnsupportedType):
        arrow_schema(_field_json({"type": "array", "elementType": "void", "containsNull": True}), void=True)


def _field_json(kind: object) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": "c", "type": kind, "nullable": True, "metadata": {}}]})


@pytest.mark.parametrize(
    "kind",
    [
        "variant",
        "void",
        "interval day to second",
        "char(3)",
        "decimal(39,0)",
        "decimal(3,4)",
        "decimal(0,0)",
        {"type": "udt"},
    ],
    ids=str,
)
def test_a_spark_type_without_a_counterpart_is_rejected_with_its_name(kind: object) -> None:
    with pytest.raises(UnsupportedType, match="column c has Spark's type"):
        arrow_schema(_field_json(kind))


def test_a_string_with_a_collation_is_rejected() -> None:
    text = _field_json("string").replace('"metadata": {}', '"metadata": {"__COLLATIONS": {"c": "icu.UNICODE_CI"}}')
    with pytest.raises(UnsupportedType, match="collation"):
        arrow_schema(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"long"',
        "{}",
        '{"type":"struct"}',
        '{"type":"struct","fields":[1]}',
        '{"type":"struct","fields":{"a":1}}',
        '{"type":"struct","fields":[{"name":1,"type":"long","nullable":true,"metadata":{}}]}',
        '{"type":"struct","fields":[{"name":"a","type":7,"nullable":true,"metadata":{}}]}',
        '{"type":"struct","fields":[{"name":"a","type":"long","nullable":"yes","metadata":{}}]}',
        '{"type":"struct","fields":[{"name":"a","type":{"type":"array"},"nullable":true,"metadata":{}}]}',
        '{"type":"struct","fields":[{"name":"a","type":{"type":[]},"nullable":true,"metadata":{}}]}',
        '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":null}]}',
        '{"type":"struct","fields":' + "[" * 5000,
        _field_json("long")[:-1],
    ],
    ids=lambda text: text[-60:],
)
def test_an_invalid_schema_is_rejected(text: str) -> None:
    with pytest.raises(CorruptFile):
        arrow_schema(text)


def test_a_schema_with_too_many_levels_is_rejected() -> None:
    deep: object = "long"
    for _ in range(400):
        deep = {"type": "array", "elementType": deep, "containsNull": True}
    text = _field_json(deep)
    hostile = text.replace(
        '"long"', '{"type":"array","containsNull":true,"elementType":' * 5000 + '"long"' + "}" * 5000
    )
    # Since Python 3.12, its JSON decoder reads more levels than a schema may have.
    with pytest.raises((CorruptFile, UnsupportedType)):
        arrow_schema(hostile)
