"""Operator metadata and schema files: encoded and decoded, Spark's own files, and damaged files."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format.java_io import utf
from statekeeper.statestore.format.operators import (
    OperatorMetadata,
    StoreInfo,
    encode_operator,
    encode_schema,
    parse_operator,
    parse_schema,
)
from tests.support.damage import flips, prefixes, value_or_error

OPERATOR = OperatorMetadata(0, "stateStoreSave", (StoreInfo(name="default", prefix_columns=0, partitions=2),))
BY_SPARK = (
    b'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"stateStoreSave"},'
    b'"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":2}]}'
)
store_names = st.from_regex(r"[A-Za-z0-9$][A-Za-z0-9$_-]*", fullmatch=True)
stores = st.builds(StoreInfo, name=store_names, prefix_columns=st.integers(0, 3), partitions=st.integers(1, 1000))


@given(
    st.builds(
        OperatorMetadata,
        st.integers(0, 99),
        st.text(max_size=10),
        st.lists(stores, min_size=1, max_size=3, unique_by=lambda store: store.name).map(tuple),
    )
)
def test_an_operator_is_read_as_it_was_written(operator: OperatorMetadata) -> None:
    assert parse_operator(encode_operator(operator), "metadata") == operator


@pytest.mark.parametrize(
    "store",
    [
        StoreInfo(name="../../..", prefix_columns=0, partitions=1),
        StoreInfo(name="a/b", prefix_columns=0, partitions=1),
        StoreInfo(name="", prefix_columns=0, partitions=1),
        StoreInfo(name="default", prefix_columns=0, partitions=0),
        StoreInfo(name="default", prefix_columns=0, partitions=2_000_000_000),
    ],
)
def test_an_impossible_store_name_is_rejected_and_never_becomes_a_path(store: StoreInfo) -> None:
    with pytest.raises(CorruptFile, match=r"metadata: has the impossible store .* partitions"):
        parse_operator(encode_operator(OperatorMetadata(0, "stateStoreSave", (store,))), "metadata")


def test_encoded_bytes_equal_sparks_bytes() -> None:
    assert encode_operator(OPERATOR) == BY_SPARK
    assert parse_operator(BY_SPARK, "metadata") == OPERATOR


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"operatorInfo":{"operatorId":1e999,"operatorName":""},"stateStoreInfo":[]}',
        '{"operatorInfo":null,"stateStoreInfo":[]}',
    ],
)
def test_invalid_metadata_is_rejected(body: str) -> None:
    with pytest.raises(CorruptFile, match="metadata"):
        parse_operator(f"v1\n{body}".encode(), "metadata")


def test_a_later_version_is_rejected_with_its_name() -> None:
    with pytest.raises(UnknownFormatVersion, match="v3"):
        parse_operator(b"v3\n{}", "metadata")
    with pytest.raises(UnknownFormatVersion, match="v3"):
        parse_schema(utf("v3") + struct.pack(">i", 0), "schema")


def test_metadata_of_an_operator_with_column_families_is_read_as_spark_writes_it() -> None:
    store = '{"storeName":"default","numColsPrefixKey":0,"numPartitions":2,"stateSchemaFilePaths":["file:/x/0_a"]}'
    head = '{"operatorInfo":{"operatorId":3,"operatorName":"symmetricHashJoin"},"stateStoreInfo":['
    data = f'v2\n{head}{store}],"operatorPropertiesJson":"{{}}"}}'.encode()
    found = parse_operator(data, "metadata")
    assert found == OperatorMetadata(
        3,
        "symmetricHashJoin",
        (
            StoreInfo(
                name="default", prefix_columns=0, partitions=2, schema_files=("0_a",), schema_uris=("file:/x/0_a",)
            ),
        ),
    )
    for escape in ("..", "0_a%2f..", "", "0_"):
        with pytest.raises(CorruptFile, match="impossible schema files"):
            parse_operator(data.replace(b"/0_a", b"/" + escape.encode()), "metadata")


@given(st.text(max_size=200), st.text(max_size=200))
def test_a_schema_is_read_as_it_was_written(key: str, value: str) -> None:
    assert parse_schema(encode_schema(key, value), "schema") == (key, value)


@pytest.mark.parametrize("letter", ["a", "\u20ac", "\U0001f600"])
def test_a_schema_longer_than_a_piece_is_read_as_it_was_written(letter: str) -> None:
    text = letter * 50_000
    assert parse_schema(encode_schema(text, "{}"), "schema") == (text, "{}")


def test_each_truncation_is_detected_and_each_flipped_byte_gives_a_typed_error_or_a_schema() -> None:
    data = encode_schema('{"type":"struct"}', '{"fields":[]}')
    for damaged in prefixes(data):
        with pytest.raises(CorruptFile, match="schema"):
            parse_schema(damaged, "schema")
    for damaged in flips(data):
        value_or_error(lambda data: parse_schema(data, "schema"), damaged, names="schema")
    for damaged in (*flips(BY_SPARK), *prefixes(BY_SPARK)):
        value_or_error(lambda data: parse_operator(data, "metadata"), damaged, names="metadata")


@pytest.mark.parametrize("count", [-1, 2**31 - 1])
def test_an_impossible_number_of_pieces_is_rejected(count: int) -> None:
    with pytest.raises(CorruptFile, match="pieces"):
        parse_schema(utf("v2") + struct.pack(">i", count), "schema")
