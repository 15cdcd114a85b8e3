"""`murmur3` gives the hashes of Spark's `hash(...)`, and the partitions of its shuffle, for each type that Spark hashes.

A table has all types in its columns, so that one Spark job hashes many values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import StructType

from statekeeper.statestore.base.errors import UnsupportedType
from statekeeper.statestore.format.murmur3 import partitions_of, row_hashes
from statekeeper.statestore.format.types import spark_schema_json
from tests.support.typed_tables import INTEGERS, floats_of_bits, nested_floats, values

pytestmark = pytest.mark.spark

KINDS = [*INTEGERS, pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()]
KINDS += [pa.decimal128(p, s) for p, s in ((1, 0), (9, 2), (18, 18), (19, 0), (38, 0), (38, 37))]
ROWS = 100
PARTITIONS = (1, 2, 7, 200)


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table, schema=StructType.fromJson(json.loads(spark_schema_json(table.schema))))


def assert_same_hashes(spark: SparkSession, table: pa.Table) -> int:
    """Compare the hash of each column and of all columns, and the partitions of a shuffle. Return the number of hashes."""
    df = frame(spark, table)
    names = [f"`{name}`" for name in table.column_names]
    hashes = [F.hash(name).alias(f"h{i}") for i, name in enumerate(names)]
    pmods = [F.expr(f"pmod(h, {partitions})").alias(f"p{partitions}") for partitions in PARTITIONS]
    by_spark = df.select(*hashes, F.hash(*names).alias("h")).select("*", *pmods).toArrow()
    ours = {f"h{i}": row_hashes(table.select([i])) for i in range(table.num_columns)}
    ours["h"] = row_hashes(table)
    ours |= {f"p{partitions}": partitions_of(ours["h"], partitions) for partitions in PARTITIONS}
    for name, found in ours.items():
        column = table.schema[int(name[1:])] if name[1:] and name[0] == "h" else "all columns"
        assert found.tolist() == by_spark[name].to_pylist(), column
    return table.num_rows * (table.num_columns + 1)


def columns_of(kind: pa.DataType, drawn: list[Any], seed: int) -> dict[str, pa.Array]:
    """Return the drawn values alone, in a list, in a struct and in a list of structs with lists, with nulls everywhere."""
    some = Random(seed)

    def one(value: Callable[[], Any]) -> Any:
        return None if some.random() < 0.1 else value()

    def several(value: Callable[[], Any]) -> list[Any]:
        return [one(value) for _ in range(some.choice((0, 1, 2, 5, 65)) if some.random() < 0.1 else 3)]

    def plain() -> Any:
        return some.choice(drawn)

    def struct() -> Any:
        return {"x": one(plain), "y": one(lambda: several(plain)), "never": plain()}

    of_struct = pa.struct([("x", kind), ("y", pa.list_(kind)), pa.field("never", kind, nullable=False)])
    made = {
        "plain": (kind, plain),
        "list": (pa.list_(kind), lambda: several(plain)),
        "struct": (of_struct, struct),
        "structs": (pa.list_(of_struct), lambda: several(struct)),
    }
    return {
        f"{name} of {kind}": pa.array([one(value) for _ in range(ROWS)], nested)
        for name, (nested, value) in made.items()
    }


POOLS = st.tuples(*[st.lists(values(pa.field("x", kind, nullable=False)), min_size=9, max_size=9) for kind in KINDS])


@settings(max_examples=2, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(pools=POOLS, seed=st.integers(0, 2**32))
def test_each_type_has_sparks_hash_alone_and_nested(spark: SparkSession, pools: list[list[Any]], seed: int) -> None:
    columns: dict[str, pa.Array] = {}
    for kind, drawn in zip(KINDS, pools, strict=True):
        columns |= columns_of(kind, drawn, seed)
    assert assert_same_hashes(spark, pa.table(columns)) == ROWS * (4 * len(KINDS) + 1)


def test_strings_of_each_length_have_sparks_hash(spark: SparkSession) -> None:
    """Every residue of the length by 4 and by 8, bytes above 127, nulls, and a long string among short ones."""
    noise = np.random.default_rng(3)
    data = [noise.integers(0, 256, n % 67).astype(np.uint8).tobytes() for n in range(5000)]
    texts = ["é", "", None, "日本", "a" * 1001, "🂡x" * 9, *("zäh"[: n % 4] * (n % 9) for n in range(4994))]
    table = pa.table({"binary": pa.array(data), "text": pa.array(texts), "slice": pa.array(["front", *texts])[1:]})
    assert assert_same_hashes(spark, table) == 20_000


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_zeros_and_nans_have_sparks_hash(spark: SparkSession, kind: pa.DataType) -> None:
    special = [0, 2**31, 2**63, 0x7F800000, 0x7F800001, 0x7FC00000, 0xFF800000, 0xFFC12345, 0x7FF0000000000000, 1]
    special += [0x7FF8000000000000, 0x7FF0000000000001, 0xFFF0000000000000, 0xFFF0000000000001, 0xFFFFFFFFFFFFFFFF]
    noise = np.random.default_rng(5).integers(0, 2**63, 2000).tolist()
    assert_same_hashes(spark, nested_floats(floats_of_bits(kind, [None, *special, *noise])))


def test_a_decimal_of_each_number_of_bytes_has_sparks_hash(spark: SparkSession) -> None:
    edges = [sign * (2 ** (8 * n - 1) + step) for n in range(1, 16) for sign in (-1, 1) for step in (-1, 0, 1)]
    wide = pa.array([None, *map(Decimal, edges)], pa.decimal128(38, 0))
    narrow = pa.array([None, *(Decimal(edge % 10**18) for edge in edges)], pa.decimal128(18, 0))
    assert_same_hashes(spark, pa.table({"wide": wide, "narrow": narrow, "slice": pa.concat_arrays([wide, wide])[91:]}))


def test_lists_of_unequal_lengths_have_sparks_hash(spark: SparkSession) -> None:
    lists = [[None if i % 5 == 0 else str(i) for i in range(n % 70)] if n % 11 else None for n in range(500)]
    assert_same_hashes(
        spark, pa.table({"list": lists, "lists": [None if one is None else [one, one] for one in lists]})
    )


def test_more_rows_than_a_block_are_in_the_partitions_of_sparks_shuffle(spark: SparkSession) -> None:
    """The shuffle uses another expression than `hash`, and that is the one that places the state."""
    rows = 100_000
    texts = [f"key {i}" if i % 7 else None for i in range(rows)]
    table = pa.table({"text": texts, "float": np.arange(rows) % 50 * -0.0, "n": np.arange(rows)})
    placed = frame(spark, table).repartition(7, "text", "float").select("n", F.spark_partition_id().alias("p"))
    by_spark = placed.toArrow().sort_by("n")["p"].to_pylist()
    assert partitions_of(row_hashes(table.select(["text", "float"])), 7).tolist() == by_spark
    assert len(set(by_spark)) == 7


def test_intervals_and_voids_have_sparks_hash(spark: SparkSession) -> None:
    numbers = [None, 0, 1, -1, 2**31 - 1, -(2**31)]
    months, days = pa.array(numbers, pa.int32()), pa.array(numbers, pa.int64())
    df = frame(spark, pa.table({"months": months, "us": days}))
    made = df.select(
        F.hash(F.expr("make_ym_interval(0, months)")), F.hash(F.expr("make_dt_interval(0, 0, 0, us / 1000000.0)"))
    )
    void = df.select(F.hash(F.lit(None), "months"), F.hash(F.lit(None)))
    ours = [[row_hashes(pa.table({"x": c})).tolist() for c in (months, days.cast(pa.duration("us")))]]
    nothing = pa.nulls(len(numbers))
    ours.append([row_hashes(pa.table(c)).tolist() for c in ({"v": nothing, "x": months}, {"v": nothing})])
    for spark_s, found in zip((made, void), ours, strict=True):
        assert [column.to_pylist() for column in spark_s.toArrow().columns] == found


def test_maps_have_no_hash(spark: SparkSession) -> None:
    kind = pa.map_(pa.string(), pa.int64())
    table = pa.table({"m": pa.array([[("a", 1)]], kind)})
    for one in (table, pa.table({"m": pa.array([[[("a", 1)]]], pa.list_(kind))})):
        with pytest.raises(AnalysisException, match="HASH_MAP_TYPE"):
            frame(spark, one).select(F.hash("m"))
        with pytest.raises(UnsupportedType, match=r"column m.* which Spark's hash function does not support"):
            row_hashes(one)
