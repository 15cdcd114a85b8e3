"""The encoder writes the same bytes as Spark, and Spark decodes them to the same values.

Spark makes its rows from the same Arrow table through UnsafeProjection, the code that fills its state stores.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statekeeper.statestore.format.types import arrow_schema, spark_schema_json
from statekeeper.statestore.format.unsafe_row import decode_rows, encode_rows, normalise_keys
from tests.support.typed_tables import INTEGERS, fields, floats_of_bits, nested_floats, tables, types, values

pytestmark = pytest.mark.spark

# Spark compiles code for each new schema: few examples with many rows, and no time spent on making a failure smaller.
AGAINST_SPARK = settings(
    max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    schema = StructType.fromJson(json.loads(spark_schema_json(table.schema)))
    return spark.createDataFrame(table, schema=schema)


def rows_of(df: DataFrame) -> list[bytes]:
    """The bytes of the UnsafeRows that the plan of `df` puts out."""
    rows = df._jdf.queryExecution().executedPlan().executeCollect()
    assert all(row.getClass().getSimpleName() == "UnsafeRow" for row in rows)
    return [bytes(row.getBytes()) for row in rows]


def read_by_spark(spark: SparkSession, rows: pa.LargeBinaryArray, schema: pa.Schema) -> pa.Table:
    """Decode rows with Spark."""
    jvm = spark._jvm
    catalyst = jvm.org.apache.spark.sql.catalyst
    found = jvm.java.util.ArrayList()
    for data in rows.to_pylist():
        row = catalyst.expressions.UnsafeRow(len(schema))
        row.pointTo(bytearray(data), len(data))
        found.add(row)
    struct = jvm.org.apache.spark.sql.types.DataType.fromJson(spark_schema_json(schema))
    attributes = catalyst.types.DataTypeUtils.toAttributes(struct)
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    plan = catalyst.plans.logical.LocalRelation(attributes, to_seq(found), False, none)
    jdf = jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    # toArrow would cast, and refuses a null struct that has a field without nulls.
    return pa.Table.from_batches(DataFrame(jdf, spark)._collect_as_arrow(), schema)


def assert_same_both_ways(spark: SparkSession, table: pa.Table) -> None:
    ours = encode_rows(table)
    theirs = rows_of(frame(spark, table))
    assert [row.hex(" ", 8) for row in ours.to_pylist()] == [row.hex(" ", 8) for row in theirs]
    decoded = decode_rows(pa.array(theirs, pa.large_binary()), table.schema)
    assert decoded.equals(table)
    seen = read_by_spark(spark, ours, table.schema)
    assert seen.equals(table)


def column_tables(kind: pa.DataType, rows: int = 25) -> st.SearchStrategy[pa.Table]:
    """Tables with the type alone, nested in each way, and before a text column, whose offset would show a wrong length."""
    plain = [pa.field("plain", kind), pa.field("text", pa.string()), pa.field("never_null", kind, nullable=False)]
    nested = [
        pa.field("list", pa.list_(pa.field("element", kind))),
        pa.field("full_list", pa.list_(pa.field("element", kind, nullable=False))),
        pa.field("struct", pa.struct([("x", kind), ("y", pa.list_(kind))])),
        pa.field("map", pa.map_(pa.string(), kind)),
    ]
    schema = pa.schema(plain + nested)
    row = st.tuples(*[values(field) for field in schema])
    return st.lists(row, min_size=rows, max_size=rows).map(
        lambda drawn: pa.Table.from_arrays(
            [pa.array(column, field.type) for column, field in zip(zip(*drawn, strict=True), schema, strict=True)],
            schema=schema,
        )
    )


KINDS = [*INTEGERS, pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()]
KINDS += [pa.decimal128(p, s) for p, s in ((1, 0), (9, 2), (18, 18), (19, 0), (38, 0), (38, 37))]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_each_type_has_the_same_bytes_both_ways(spark: SparkSession, kind: pa.DataType) -> None:
    @settings(AGAINST_SPARK, max_examples=4)
    @given(column_tables(kind))
    def run(table: pa.Table) -> None:
        assert_same_both_ways(spark, table)

    run()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_each_type_is_a_map_key(spark: SparkSession, kind: pa.DataType) -> None:
    field = pa.field("m", pa.map_(kind, kind))

    @settings(AGAINST_SPARK, max_examples=4)
    @given(st.lists(values(field), min_size=25, max_size=25))
    def run(drawn: list[Any]) -> None:
        assert_same_both_ways(spark, pa.Table.from_arrays([pa.array(drawn, field.type)], schema=pa.schema([field])))

    run()


@AGAINST_SPARK
@given(table=tables(max_rows=30))
def test_nested_rows_have_the_same_bytes_both_ways(spark: SparkSession, table: pa.Table) -> None:
    assert_same_both_ways(spark, table)


def test_rows_of_seventy_columns_have_the_same_bytes_both_ways(spark: SparkSession) -> None:
    columns = {f"c{i}": [i, None if i % 3 else -i] for i in range(65)}
    texts = {f"t{i}": ["x" * i, None if i % 2 else ""] for i in range(5)}
    assert_same_both_ways(spark, pa.table(columns | texts))


def test_arrays_at_the_boundaries_of_null_words_have_the_same_bytes_both_ways(spark: SparkSession) -> None:
    lists = [[None if i % 5 == 0 else i % 100 for i in range(n)] for n in (0, 1, 63, 64, 65, 127, 128, 129)]
    kinds = (pa.int8(), pa.int16(), pa.int64(), pa.decimal128(38, 0))
    columns = {str(kind): pa.array(lists, pa.list_(kind)) for kind in kinds}
    texts = pa.array([[None if n is None else "x" * n for n in row] for row in lists])
    assert_same_both_ways(spark, pa.table(columns | {"text": texts, "nested": pa.array([[row] for row in lists])}))


def test_a_decimal_at_each_number_of_bytes_has_the_same_bytes_both_ways(spark: SparkSession) -> None:
    edges = [sign * (2 ** (8 * n - 1) + step) for n in range(1, 16) for sign in (-1, 1) for step in (-1, 0, 1)]
    numbers = [Decimal(number) for number in edges] + [None]
    column = pa.array(numbers, pa.decimal128(38, 0))
    assert_same_both_ways(
        spark, pa.table({"c": column, "list": pa.array([[n, n] for n in numbers], pa.list_(column.type))})
    )


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_normalised_keys_have_the_bytes_that_spark_groups_by(spark: SparkSession, kind: pa.DataType) -> None:
    special = [0, 2**31, 2**63, 0x7F800000, 0x7F800001, 0x7FC00000, 0xFFC12345, 0x7FF0000000000000, 0x7FF8000000000000]
    special += [0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF, 1]
    noise = np.random.default_rng(5).integers(0, 2**63, 200).tolist()
    table = nested_floats(floats_of_bits(kind, [None, *special, *noise]))
    spark_normalises = frame(spark, table).groupBy("plain", "struct", "list", "text").count()
    grouped = set(rows_of(spark_normalises.drop("count")))
    assert set(encode_rows(normalise_keys(table)).to_pylist()) == grouped


def test_encoding_does_not_normalise_floating_point_bits(spark: SparkSession) -> None:
    bits = [2**63, 0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF]
    table = nested_floats(floats_of_bits(pa.float64(), bits))
    assert encode_rows(table).to_pylist() == rows_of(frame(spark, table))


@settings(AGAINST_SPARK, max_examples=60)
@given(names=st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=4, unique=True), data=st.data())
def test_the_schema_equals_sparks_schema(spark: SparkSession, names: list[str], data: st.DataObject) -> None:
    schema = pa.schema([data.draw(fields(types(), name)) for name in names])
    text = spark_schema_json(schema)
    assert spark._jvm.org.apache.spark.sql.types.DataType.fromJson(text).json() == text
    assert arrow_schema(text).equals(schema)
