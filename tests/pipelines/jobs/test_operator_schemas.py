"""Columns, types and declarations of a stateful operator: accepted, changed and rejected, on real Spark."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import StringType, StructType

from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.pipelines.startup.query import start
from statekeeper.statestore.base.errors import SchemaMismatch, UnsupportedEnvironment, UnsupportedType
from tests.support.adding_operator import OUTPUT, STATE, add_up, adding, rows_of, totals_of, totals_table
from tests.support.streams import Seen, Stream

# Spark's workers need not find this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.spark
def test_a_changed_schema_is_rejected_with_the_difference(stream):
    stream.append(rows_of((1, 10)))
    stream.run(adding())
    stream.append(rows_of((1, 5)))
    real = pa.schema([("count", pa.int64()), ("total", pa.float64())])
    two = {"default": STATE, "more": STATE}
    key_of_text = stream.rows().withColumn("key", F.col("key").cast("string"))
    text_key = pa.schema([("key", pa.string()), *list(OUTPUT)[1:]])
    not_null_at_the_end = pa.schema([*STATE, pa.field("most", pa.int64(), nullable=False)])
    for changed, rows, difference in [
        (adding(state=real), None, "the root has the value column total: long, but the job declares total: double"),
        (
            adding(state=pa.schema([STATE.field(0)])),
            None,
            "the root has the value column total: long, which the job does not declare",
        ),
        (adding(state=not_null_at_the_end), None, "declares most: long not null, which the root does not have"),
        (adding(state=two), None, r"the root has the stores \['default'\], but the job declares \['default', 'more'\]"),
        (
            adding(output=text_key),
            key_of_text,
            r"key column 1: the root has key: long, but the job declares key: string",
        ),
    ]:
        with pytest.raises(SchemaMismatch, match=difference):
            stream.run(changed, rows=rows)
    assert stream.committed() == [0]
    stream.run(adding())
    assert stream.state() == {(1,): (2, 15)}


GROWN = pa.schema([*STATE, ("most", pa.int64()), ("words", pa.list_(pa.string()))])


def add_up_with_most(rows: pa.Table, state: pa.Table) -> Update:
    totals = totals_of(rows, state)
    most = {row["key"]: row["most"] for row in state.to_pylist()}
    for row in rows.to_pylist():
        most[row["key"]] = max(row["value"], most.get(row["key"]) or row["value"])
    table = totals_table(totals)
    new = table.append_column("most", pa.array([most[key] for key in totals], pa.int64()))
    new = new.append_column("words", pa.array([["new"]] * len(totals), pa.list_(pa.string())))
    return Update(table, new)


@pytest.mark.spark
@pytest.mark.slow
def test_columns_added_at_the_end_are_in_all_rows_of_one_version_even_if_the_batch_is_repeated(stream):
    def die(batch: int, phase: Phase) -> None:
        if (batch, phase) == (2, Phase.PENDING_WRITTEN):
            raise ConnectionError("the driver dies here")

    stream.append(rows_of((1, 10), (2, 20), (3, 30), (None, 40)))
    stream.append(rows_of((3, 3)))
    stream.run(adding())
    older = {(1,): (1, 10), (2,): (1, 20), (3,): (2, 33), (None,): (1, 40)}
    stream.append(rows_of((1, 1)))
    with pytest.raises(ConnectionError):
        stream.run(adding(add_up_with_most, state=GROWN), seen=Seen(die))
    assert stream.state() == older, "Spark reads the rows of the last commit by the schema that they have"
    stream.run(adding(add_up_with_most, state=GROWN))
    newer = {(1,): (2, 11, 1, ["new"]), **{key: (*row, None, None) for key, row in older.items() if key != (1,)}}
    assert stream.state() == newer
    # The schema file is one for all batches: Spark's reader sees older batches through it, as it does after its own
    # schema changes. The columns that were there then are right.
    stream.append(rows_of((2, 2)))
    stream.run(adding(add_up_with_most, state=GROWN))
    assert stream.state(batch=2) == newer
    assert stream.state() == {**newer, (2,): (2, 22, 2, ["new"])}
    stream.append(rows_of((2, 2)))
    with pytest.raises(SchemaMismatch, match="had before batch 2, which changed them"):
        stream.run(adding())


@pytest.mark.spark
def test_column_names_with_dots_and_quotes_can_be_keys(delta_session, tmp_path):
    schema = pa.schema([("a.b", pa.int64()), ("at`s", pa.int64()), ("value", pa.int64())])

    def add(rows: pa.Table, state: pa.Table) -> Update:
        totals = totals_of(rows.rename_columns(["key", "at", "value"]), state.rename_columns(["key", "count", "total"]))
        table = totals_table(totals).rename_columns(["a.b", "count", "total"])
        return Update(table, table)

    stream = Stream(
        delta_session, tmp_path, pa.schema([("plain", pa.int64()), ("at", pa.int64()), ("value", pa.int64())])
    )
    stream.append({"plain": [1, 1, 2], "at": [1, 2, 3], "value": [5, 6, 7]})
    output = pa.schema([("a.b", pa.int64()), ("count", pa.int64()), ("total", pa.int64())])
    rows = stream.rows().withColumnsRenamed({"plain": "a.b", "at": "at`s"})
    facts = tmp_path / "rows"

    class Kept:
        supports_exactly_once = False

        def held(self, query_id: str, batch: int) -> None:
            return None

        def write(self, rows: Any, attempt: Any) -> None:
            facts.write_text(repr(sorted(map(tuple, rows.collect()))))

    stream.run(StatefulOperator(["a.b"], ["at`s"], state=STATE, output=output, update=add), rows=rows, sink=Kept())
    assert facts.read_text() == "[(1, 2, 11), (2, 1, 7)]"
    assert stream.state() == {(1,): (2, 11), (2,): (1, 7)}
    assert schema.names == rows.columns


def unsupported(session: Any, folder: Any, column: str, *, key: str = "key", **operator: Any) -> str:
    stream = session.readStream.format("rate").load().selectExpr("value AS key", "value AS at", column)
    with pytest.raises(UnsupportedType) as refused:
        start(
            StatefulOperator([key], ["at"], state=STATE, output=OUTPUT, update=add_up),
            stream,
            root=str(folder / "root"),
            checkpoint=str(folder / "checkpoint"),
            sink=DeltaSink(str(folder / "facts")),
        )
    assert not list(folder.iterdir()), "nothing was written"
    return str(refused.value)


@pytest.mark.spark
def test_input_columns_of_unsupported_types_are_rejected_before_the_first_batch(delta_session, tmp_path):
    assert "column pause has Spark's type interval" in unsupported(
        delta_session, tmp_path, "make_interval(0, 1) AS pause"
    )
    assert "use a list of structs" in unsupported(delta_session, tmp_path, "map('a', 1) AS tags", key="tags")
    assert "key column name has a collation" in unsupported(
        delta_session, tmp_path, "collate('a', 'UTF8_LCASE') AS name", key="name"
    )
    assert "key column shape holds variant" in unsupported(
        delta_session, tmp_path, "parse_json('1') AS shape", key="shape"
    )
    assert "column pause has the type duration" in unsupported(
        delta_session, tmp_path, "INTERVAL '1' DAY AS pause", key="pause"
    )


@pytest.mark.spark
def test_duplicate_column_names_are_rejected_and_names_that_differ_by_case_are_accepted(stream):
    stream.append(rows_of((1, 10), (1, 5)))
    with pytest.raises(SchemaMismatch, match="two columns of one name -> it has"):
        stream.start(adding(), rows=stream.rows().selectExpr("key", "at", "value", "at AS value"))
    [report] = stream.run(adding(), rows=stream.rows().selectExpr("key", "at", "value", "-value AS VALUE"))
    assert sum(partition.rows_in for partition in report.partitions) == 2
    assert stream.state() == {(1,): (2, 15)}


@pytest.mark.spark
def test_a_column_missing_in_the_stream_is_named(delta_session, tmp_path, stream):
    with pytest.raises(SchemaMismatch, match=r"the stream has no columns \['zone'\] .*it has \['key', 'at', 'value'\]"):
        stream.start(adding(order_by=["zone"]))


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        (pa.uint32(), "int64"),
        (pa.timestamp("ns"), "timestamp[us, tz=UTC]"),
        (pa.list_(pa.float16()), "float32"),
        (pa.struct([("deep", pa.duration("s"))]), "int64 with the unit"),
        (pa.decimal256(60, 2), "decimal128"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
    ],
)
@pytest.mark.parametrize("part", ["state", "output"])
def test_a_declaration_with_an_unsupported_type_is_rejected_with_its_column(part, kind, instead):
    with pytest.raises(UnsupportedType, match="column odd") as refused:
        adding(
            **{
                part: pa.schema([("key", pa.int64()), ("odd", kind)])
                if part == "output"
                else pa.schema([("odd", kind)])
            }
        )
    assert instead in str(refused.value)


def test_a_contradictory_declaration_is_rejected():
    with pytest.raises(SchemaMismatch, match="has no key columns"):
        adding(keys=[])
    with pytest.raises(SchemaMismatch, match=r"\['key'\] are both key and value columns"):
        adding(state=OUTPUT)


def test_a_spark_connect_session_is_rejected_before_any_request():
    # A Connect session lacks these attributes. Its own package would need a server.
    stream: Any = SimpleNamespace(sparkSession=SimpleNamespace(), schema=StructType().add("key", StringType()))
    with pytest.raises(
        UnsupportedEnvironment, match=r"Spark Connect session, which is not supported -> run the job with classic Spark"
    ):
        start(adding(), stream, root="/nowhere", checkpoint="/nowhere", sink=DeltaSink("/nowhere"))
