"""Spark continues with a changed query from a migrated checkpoint: twins, and recomputations of what was added."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.logs import ENCODING
from statekeeper.statestore.format.plain_values import plain_rows
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.types import arrow_schema
from statekeeper.statestore.maintenance.rewrites.migration.initial import EMPTY_LIST, Undecided, initial
from statekeeper.statestore.storage import open_storage
from tests.support.dumped import dumped
from tests.support.migrations import AFTER, BEFORE, Migrated, RecordedQuery, inputs, migrate
from tests.support.native import DEFAULT_PROVIDER, HERE, JOIN_FORMAT, OPERATORS, Operator, state
from tests.support.twins import SHUFFLE_PARTITIONS, clean, forgetful, rescale, statekeeper
from tests.support.variables import variables

pytestmark = pytest.mark.spark

V1, V2 = Structure.V1.conf, Structure.V2.conf
AGGREGATES: Mapping[str, Callable[[], Column]] = {
    "n": lambda: F.count("x"),
    "total": lambda: F.sum("x"),
    "mean": lambda: F.avg("x"),
    "least": lambda: F.min("x"),
    "most": lambda: F.max("x"),
    "distinct": lambda: F.approx_count_distinct("x"),
    "all": lambda: F.sort_array(F.collect_list("x")),
}


def aggregation(*names: str) -> Operator:
    """Aggregates over x by k."""
    return Operator(
        lambda left, _: left.groupBy("k").agg(*(AGGREGATES[name]().alias(name) for name in names)), "update"
    )


def _of_distinct_rows(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.dropDuplicates(["x"]).groupBy("k").agg(F.count("x").alias("n"), F.sum("x").alias("total"))


PLAIN = aggregation("n", "total")
OF_DISTINCT_ROWS = Operator(_of_distinct_rows, "update", views=({"operatorId": "0"},))
"""No value of x occurs twice, so that the deduplication changes nothing."""


def twin_of(spark: SparkSession, folder: Path, operator: Operator, confs: Mapping[str, str]) -> RecordedQuery:
    """A query that ran in this form from the first batch."""
    twin = RecordedQuery(spark, folder / "twin", operator, confs)
    twin.run(BEFORE)
    twin.run(AFTER)
    return twin


def same_columns(found: Migrated, columns: Sequence[str]) -> None:
    """Assert that both queries have the same values in these columns."""
    batches = found.go_on()
    assert batches
    for batch in batches:
        assert found.new.values(batch, columns) == found.old.values(batch, columns)


def recomputed(found: Migrated) -> dict[int, dict[object, list[int]]]:
    """The values of x by key that the changed query has read since the migration, up to each batch."""
    later: dict[object, list[int]] = {}
    by_batch = {}
    for batch in range(BEFORE, BEFORE + AFTER):
        for row in inputs([batch]):
            later.setdefault(row["k"], []).append(row["x"])
        by_batch[batch] = {key: list(xs) for key, xs in later.items()}
    return by_batch


def test_a_query_in_structure_v2_with_more_partitions_continues_like_a_twin(
    spark: SparkSession, tmp_path: Path
) -> None:
    confs = {**V2, SHUFFLE_PARTITIONS: "3"}
    found = migrate(spark, tmp_path, PLAIN, PLAIN, confs=V1, new_confs=confs)
    same_columns(found, ("k", "n", "total"))
    twin = twin_of(spark, tmp_path, PLAIN, confs)
    assert found.new.rows.keys() == {3, 4}
    assert state(found.new) == state(twin)
    clean(open_storage(found.new.root), tmp_path)


def test_a_deduplication_before_an_aggregation_starts_empty_and_the_aggregation_continues(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = migrate(spark, tmp_path, PLAIN, OF_DISTINCT_ROWS, confs=V2)
    assert "operator 1 (dedupe) starts empty" in found.shown
    same_columns(found, ("k", "n", "total"))
    assert state(found.new) == state(twin_of(spark, tmp_path, OF_DISTINCT_ROWS, V2))


def test_a_removed_operator_is_dropped_and_the_other_one_continues(spark: SparkSession, tmp_path: Path) -> None:
    found = migrate(spark, tmp_path, OF_DISTINCT_ROWS, PLAIN, "--allow-dropped-state", confs=V1)
    same_columns(found, ("k", "n", "total"))
    assert state(found.new) == state(twin_of(spark, tmp_path, PLAIN, V1))


def test_added_aggregates_continue_from_their_empty_buffer(spark: SparkSession, tmp_path: Path) -> None:
    every = tuple(AGGREGATES)
    maps = (
        *("--map", "0.count=count", "--map", "0.count_2=none"),
        *("--default", "0.sum_2=0.0", "--default", f"0.buf={EMPTY_LIST}"),
    )
    found = migrate(spark, tmp_path, PLAIN, aggregation(*every), *maps, confs=V1, new_confs=V2)
    same_columns(found, ("k", "n", "total"))
    for batch, later in recomputed(found).items():
        for row in found.new.rows[batch]:
            xs = later[row["k"]]
            assert row["mean"] == statistics.fmean(xs)
            assert (row["least"], row["most"], row["distinct"]) == (min(xs), max(xs), len(set(xs)))
            assert row["all"] == sorted(xs)


def test_a_removed_aggregate_and_swapped_ones_keep_the_values_of_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    swapped = aggregation("most", "total", "n")
    found = migrate(
        spark, tmp_path, aggregation("n", "total", "least", "most"), swapped, "--allow-dropped-state", confs=V2
    )
    same_columns(found, ("k", "n", "total", "most"))
    assert state(found.new) == state(twin_of(spark, tmp_path, swapped, V2))


def test_a_query_that_is_migrated_maintained_rewound_rescaled_and_migrated_back_is_like_a_twin(
    spark: SparkSession, tmp_path: Path
) -> None:
    old, new = aggregation("n", "total"), aggregation("total", "n", "most")
    found = migrate(spark, tmp_path, old, new, confs=V1, new_confs={**V2, SHUFFLE_PARTITIONS: "3"})
    query, scratch = found.new, ("--scratch", str(tmp_path))
    applied = ("--apply", "--confirm-stopped", *scratch)
    query.batches = BEFORE
    query.run(2)  # batches 3 and 4
    statekeeper("gc", query.root, "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")
    query.run(1)  # batch 5
    statekeeper("rewind", query.root, "--to-batch", "4", *applied)
    query.run(0)  # batch 5 again
    rescale(query, 2, tmp_path)  # appends batch 6
    query.confs = {**query.confs, SHUFFLE_PARTITIONS: "2"}
    query.run(1)  # batch 7
    clean(open_storage(query.root), tmp_path)
    back = RecordedQuery(spark, tmp_path / "query", old, V1, "back")
    blueprint = RecordedQuery(spark, tmp_path / "blueprint-of-old", old, V1)
    blueprint.run(1)
    statekeeper("migrate", query.root, blueprint.root, back.root, "--allow-dropped-state", *applied)
    back.batches = query.batches
    back.run(1)  # batch 8
    twin = RecordedQuery(spark, tmp_path / "twin", old, V1)
    twin.run(back.batches)
    assert back.batches == 8
    assert state(back) == state(twin)
    # The rescale has appended a batch without rows, so that later batches have one number more.
    assert back.outputs == {8: twin.outputs[7]}
    assert {batch: query.values(batch, ("k", "n", "total")) for batch in (3, 4, 5)} == {
        batch: twin.values(batch, ("k", "n", "total")) for batch in (3, 4, 5)
    }
    clean(open_storage(back.root), tmp_path)


def test_spark_does_not_start_on_an_unfinished_migration(spark: SparkSession, tmp_path: Path) -> None:
    found = migrate(spark, tmp_path, PLAIN, PLAIN, confs=V2)
    metadata = found.new.checkpoint / names.QUERY_METADATA
    body = metadata.read_bytes()
    metadata.write_bytes(logs.UNFINISHED)
    found.new.batches = found.old.batches
    with pytest.raises(Exception, match=r"(?i)json|token"):
        found.new.run(1)
    assert not (found.new.checkpoint / names.offsets(BEFORE)).exists()
    metadata.write_bytes(body)
    found.new.run(0)
    assert found.new.rows.keys() == {BEFORE}


def test_the_comparison_detects_a_migration_that_loses_a_row(spark: SparkSession, tmp_path: Path) -> None:
    with forgetful(), pytest.raises(AssertionError, match="digest"):
        migrate(spark, tmp_path, OPERATORS["aggregation"], aggregation("total", "n"), confs=V2)


def _of_nothing() -> Operator:
    """Aggregates over rows with only nulls, so that each buffer stays as Spark initializes it."""
    long, double, decimal = (F.lit(None).cast(kind) for kind in ("bigint", "double", "decimal(10,2)"))
    columns = [
        F.count(long),
        F.sum(long),
        F.sum(double),
        F.min(long),
        F.sum(decimal),
        F.avg(decimal),
        F.max(double),
        F.avg(long),
        F.approx_count_distinct(long),
        F.stddev(double),
        F.kurtosis(double),
        F.first(long, ignorenulls=True),
        F.last(double, ignorenulls=True),
        F.collect_list(long),
    ]
    named = [column.alias(f"c{number}") for number, column in enumerate(columns)]
    return Operator(lambda left, _: left.groupBy("k").agg(*named), "update")


def test_an_added_aggregate_starts_with_what_its_buffer_holds_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    query = RecordedQuery(spark, tmp_path, _of_nothing(), V1)
    query.run(1)
    schema = (query.checkpoint / names.state_schema(0)).read_bytes()
    columns = arrow_schema(operators.parse_schema(schema, "schema")[1])
    places = range(len(columns))
    [first, *_] = [row["value"] for row in dumped(query.root)]
    held = dict(zip(places, first.values(), strict=True))
    undecided = {}
    for place in places:
        found = initial(columns, place, places)
        if isinstance(found, Undecided):
            undecided[place] = [value for _, value in found.proposals]
        else:
            one = pa.Table.from_arrays([pa.array([found.as_py()], found.type)], names=["value"])
            assert plain_rows(one) == [{"value": held[place]}], (columns.field(place), place)
    # The average of longs, and the list: the plan asks.
    assert [(columns.field(place).name, held[place]) for place in undecided] == [("sum", 0.0), ("buf", EMPTY_LIST)]
    assert all(str(held[place]) in values for place, values in undecided.items())


@pytest.mark.slow
def test_state_variables_are_added_removed_and_get_a_column(spark: SparkSession, tmp_path: Path) -> None:
    after = variables("seen", wide=True)
    found = migrate(spark, tmp_path, variables("rows"), after, "--allow-dropped-state", confs=V2)
    assert "total: added n = null" in found.shown
    same_columns(found, ("k", "total"))
    for batch, later in recomputed(found).items():
        for row in found.new.rows[batch]:
            assert (row["n"], row["seen"]) == (len(later[row["k"]]), str(sorted(later[row["k"]])))


@pytest.mark.slow
def test_a_state_variable_gets_a_time_to_live_and_loses_it(spark: SparkSession, tmp_path: Path) -> None:
    plain, timed = variables(), variables(ttl_ms=3_600_000)
    never = ("--default", "0.total.ttlExpirationMs=-1")
    found = migrate(spark, tmp_path / "timed", plain, timed, *never, confs=V2)
    same_columns(found, ("k", "total"))
    found = migrate(spark, tmp_path / "plain", timed, plain, "--allow-dropped-state", confs=V2)
    same_columns(found, ("k", "total"))


@pytest.mark.slow
@pytest.mark.parametrize("structure", [V1, V2], ids=["v1", "v2"])
def test_transform_with_state_moves_to_avro_and_back(
    spark: SparkSession, tmp_path: Path, structure: Mapping[str, str]
) -> None:
    every, avro = OPERATORS["transformWithState"], {**structure, ENCODING: "avro"}
    columns = ("k", "total", "seen", "minutes")
    found = migrate(spark, tmp_path / "avro", every, every, confs=structure, new_confs=avro)
    same_columns(found, columns)
    twin = twin_of(spark, tmp_path, every, avro)
    assert state(found.new) == state(twin)
    found = migrate(spark, tmp_path / "back", every, every, confs=avro, new_confs=structure)
    same_columns(found, columns)
    found = migrate(
        spark, tmp_path / "more", variables(), variables("rows", wide=True), confs=structure, new_confs=avro
    )
    same_columns(found, ("k", "total"))


def _sessions(*more: Column) -> Operator:
    def query(left: DataFrame, _: DataFrame) -> DataFrame:
        of_sessions = left.withWatermark("at", "1 minute").groupBy(F.session_window("at", "40 seconds"), "k")
        return of_sessions.agg(F.count("*").alias("n"), *more)

    return Operator(query)


def test_an_aggregate_is_added_to_sessions_of_the_default_provider_which_move_to_rocksdb(
    spark: SparkSession, tmp_path: Path
) -> None:
    after = _sessions(F.max("x").alias("most"))
    found = migrate(spark, tmp_path, _sessions(), after, confs=DEFAULT_PROVIDER, new_confs=V2)
    same_columns(found, ("session_window", "k", "n"))
    later = {row["x"] for row in inputs(range(BEFORE, BEFORE + AFTER))}
    assert {row["most"] for rows in found.new.rows.values() for row in rows} <= {None, *later}


def _join(*payload: str) -> Operator:
    def query(left: DataFrame, right: DataFrame) -> DataFrame:
        ours = left.withWatermark("at", "2 minutes").select("k", F.col("at").alias("a"), F.col("x").alias("l"))
        theirs = right.withWatermark("at", "2 minutes").select(
            F.col("k").alias("rk"), F.col("at").alias("b"), *(F.expr(text) for text in payload)
        )
        soon = F.expr("k = rk and b >= a - interval 1 minute and b <= a + interval 3 minutes")
        return ours.join(theirs, soon, "leftOuter")

    return Operator(query)


@pytest.mark.parametrize("version", ["2", pytest.param("3", marks=pytest.mark.slow)])
def test_the_payload_of_a_join_changes(spark: SparkSession, tmp_path: Path, version: str) -> None:
    before, after = _join("x as r", "x * 3 as gone"), _join("x + 1 as s", "x as r")
    confs = {**V2, JOIN_FORMAT: version}
    found = migrate(spark, tmp_path, before, after, "--allow-dropped-state", confs=confs)
    same_columns(found, ("k", "a", "l", "rk", "b", "r"))
    rows = [row for of_batch in found.new.rows.values() for row in of_batch]
    assert {row["s"] for row in rows if row["r"] is not None} >= {None}
    assert all(row["s"] in (None, row["r"] + 1) for row in rows if row["r"] is not None)


def _widest(integer: str, decimal: str) -> Operator:
    return Operator(
        lambda left, _: left.agg(
            F.max(F.col("x").cast(integer)).alias("most"), F.sum(F.col("x").cast(decimal)).alias("total")
        ),
        "update",
    )


@pytest.mark.slow
def test_the_values_of_an_aggregation_without_keys_are_widened(spark: SparkSession, tmp_path: Path) -> None:
    before, after = _widest("int", "decimal(10,1)"), _widest("bigint", "decimal(12,2)")
    found = migrate(spark, tmp_path, before, after, confs=V1, new_confs=V2)
    same_columns(found, ("most", "total"))
    assert state(found.new) == state(twin_of(spark, tmp_path, after, V2))


@pytest.mark.slow
def test_a_sum_of_short_decimals_is_not_taken_for_one_of_longs(spark: SparkSession, tmp_path: Path) -> None:
    """Spark keeps the sum of decimal(8,1) as a long, without its point."""
    with pytest.raises(AssertionError, match="a sum of decimals without their point"):
        migrate(spark, tmp_path, _widest("int", "decimal(8,1)"), _widest("int", "decimal(12,2)"), confs=V1)


def _of_sources(*sides: str) -> Operator:
    def query(left: DataFrame, right: DataFrame) -> DataFrame:
        frames = {"left": left, "right": right}
        chosen = [frames[side] for side in sides]
        union = chosen[0]
        for frame in chosen[1:]:
            union = union.unionAll(frame)
        return union.groupBy("k").agg(F.count("x").alias("n"), F.sum("x").alias("total"))

    return Operator(query, "update")


@pytest.mark.slow
def test_an_added_source_is_read_from_its_beginning_and_a_removed_one_no_longer(
    spark: SparkSession, tmp_path: Path
) -> None:
    one, both = _of_sources("left"), _of_sources("right", "left")
    maps = ("--map", "source.0=none", "--map", "source.1=0")
    found = migrate(spark, tmp_path / "added", one, both, *maps, confs=V2)
    found.go_on()
    assert totals(found.new) == expected_totals(range(BEFORE + AFTER), range(BEFORE + AFTER))
    found = migrate(spark, tmp_path / "removed", both, one, "--map", "source.0=1", confs=V1)
    found.go_on()
    assert totals(found.new) == expected_totals(range(BEFORE + AFTER), range(BEFORE))


def totals(query: RecordedQuery) -> dict[object, tuple[int, int]]:
    return {row["key"]["k"]: (row["value"]["count"], row["value"]["sum"]) for row in dumped(query.root)}


def expected_totals(left: Sequence[int], right: Sequence[int]) -> dict[object, tuple[int, int]]:
    found: dict[object, tuple[int, int]] = {}
    for side, batches in (("left", left), ("right", right)):
        for row in inputs(batches, side):
            n, total = found.get(row["k"], (0, 0))
            found[row["k"]] = n + 1, total + row["x"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_each_operator_moves_to_structure_v2_and_other_partitions_with_its_state(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    operator, confs = OPERATORS[name], {**V2, SHUFFLE_PARTITIONS: "3"}
    found = migrate(spark, tmp_path, operator, operator, confs=V1, new_confs=confs)
    batches = found.go_on()
    for batch in batches:
        assert found.new.outputs[batch] == found.old.outputs[batch]
    assert state(found.new) == state(twin_of(spark, tmp_path, operator, confs))
    clean(open_storage(found.new.root), tmp_path)
