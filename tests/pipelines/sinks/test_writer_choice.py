"""The writer of a Delta table is chosen for each batch, and the report of the batch says which one and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from statekeeper.pipelines import DeltaSink, NoSink, StatefulOperator, Update, Writer
from statekeeper.pipelines.sinks.delta_files import DeltaFiles
from statekeeper.pipelines.sinks.delta_log import DeltaLog
from statekeeper.pipelines.sinks.delta_writer import WriterChoice, WriterUsed
from statekeeper.statestore.base.errors import UnsupportedEnvironment
from tests.support.streams import Stream, conf
from tests.support.task_files import SIMPLE, attempt, simple, written

pytestmark = pytest.mark.spark

ROWS = pa.schema([("k", pa.string()), ("x", pa.int64())])
TOTAL = pa.schema([("k", pa.string()), ("total", pa.int64())])
BY_TASKS = WriterUsed(Writer.TASKS, "they support the table")


def total(rows: pa.Table, state: pa.Table) -> Update:
    both = pa.concat_tables([rows.rename_columns(["k", "total"]), state])
    result = both.group_by("k").aggregate([("total", "sum")]).rename_columns(["k", "total"])
    return Update(output=result, state=result)


OPERATOR = StatefulOperator(keys=["k"], order_by=["x"], state=TOTAL.remove(0), output=TOTAL, update=total)


def run(stream: Stream, numbers: list[int], sink: DeltaSink) -> WriterUsed:
    stream.append({"k": ["a"] * len(numbers), "x": numbers})
    (report,) = stream.run(OPERATOR, sink=sink)
    assert report.partitions, "the batch was computed"
    return report.writers["output"]


def test_the_writer_follows_a_table_that_changes_between_batches(
    delta_session: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    assert run(stream, [1], DeltaSink(stream.facts)) == BY_TASKS, "a new table"
    assert run(stream, [2], DeltaSink(stream.facts)) == BY_TASKS
    assert "in a second Spark job" not in caplog.text
    delta_session.sql(f"ALTER TABLE delta.`{stream.facts}` ADD CONSTRAINT positive CHECK (total > 0)")
    assert run(stream, [3], DeltaSink(stream.facts)) == WriterUsed(
        Writer.SPARK, "tasks cannot write the files of a table with CHECK constraints"
    )
    assert "batch 2: Spark's writer writes 'output', in a second Spark job: tasks cannot write" in caplog.text
    delta_session.sql(f"ALTER TABLE delta.`{stream.facts}` DROP CONSTRAINT positive")
    assert run(stream, [4], DeltaSink(stream.facts)) == BY_TASKS
    assert sorted(row["total"] for row in stream.output()) == [1, 3, 6, 10]


def test_one_sink_changes_its_writer_and_returns_to_it(delta_session: SparkSession, tmp_path: Path) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    sink = DeltaSink(stream.facts)
    writers = []
    for batch, statement in enumerate(
        [
            f"ALTER TABLE delta.`{stream.facts}` SET TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'true')",
            f"ALTER TABLE delta.`{stream.facts}` UNSET TBLPROPERTIES ('delta.autoOptimize.autoCompact')",
            None,
        ]
    ):
        stream.append({"k": ["a"], "x": [batch]})
        (report,) = stream.run(OPERATOR, sink=sink)
        writers.append(report.writers["output"].writer)
        if statement is not None:
            delta_session.sql(statement)
    assert writers == [Writer.TASKS, Writer.SPARK, Writer.TASKS]
    assert [row["total"] for row in stream.output()] == [0, 1, 3]


def test_a_batch_that_writes_no_table_has_no_writer(delta_session: SparkSession, tmp_path: Path) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    stream.append({"k": ["a"], "x": [1]})
    (report,) = stream.run(OPERATOR, sink=NoSink())
    assert report.writers == {}


@pytest.mark.parametrize("writer", [Writer.TASKS, Writer.SPARK])
def test_a_writer_that_the_sink_names_is_used(delta_session: SparkSession, tmp_path: Path, writer: Writer) -> None:
    stream = Stream(delta_session, tmp_path, ROWS)
    assert run(stream, [1], DeltaSink(stream.facts, writer=writer)) == WriterUsed(writer, "the sink names it")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"spark.databricks.delta.autoCompact.enabled": "true"},
            "autoCompact.enabled: only Spark's writer does auto compaction",
        ),
        ({"spark.databricks.delta.optimizeWrite.enabled": "true"}, "only Spark's writer does optimized writes"),
        (
            {"spark.databricks.delta.properties.defaults.appendOnly": "true"},
            "defaults.appendOnly: only Spark's writer gives it to a new table",
        ),
    ],
)
def test_a_setting_that_only_sparks_writer_follows_chooses_it(
    delta_session: SparkSession, tmp_path: Path, settings: Mapping[str, str], reason: str
) -> None:
    sink = DeltaSink(str(tmp_path / "table"))
    with conf(delta_session, settings):
        sink.require_ready(delta_session, SIMPLE)
    assert sink.used is not None
    assert sink.used.writer is Writer.SPARK
    assert reason in sink.used.reason
    assert sink.plan_files(SIMPLE) is None
    off = DeltaSink(str(tmp_path / "table"))
    with conf(delta_session, {key: "false" for key in settings if "defaults" not in key}):
        off.require_ready(delta_session, SIMPLE)
    assert off.used == BY_TASKS


def choice(path: str, settings: Mapping[str, str], **how: Any) -> WriterChoice:
    """A choice in a session with other static settings than the one of the tests."""
    log = DeltaLog(path, {})
    files = DeltaFiles(path, {}, log=log, partition_by=None)
    made = WriterChoice(path, Writer.AUTO, merges=how.get("merges", False), log=log, files=files)

    made.remember(settings)
    return made


DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


@pytest.mark.parametrize("key", ["spark.delta.logStore.file.impl", "spark.delta.logStore.class"])
def test_a_log_store_that_coordinates_writers_chooses_sparks_writer(tmp_path: Path, key: str) -> None:
    path = str(tmp_path / "table")
    coordinated = choice(path, {**DELTA, key: "io.delta.storage.S3DynamoDBLogStore"})
    assert coordinated.plan(SIMPLE) is None
    assert coordinated.used == WriterUsed(
        Writer.SPARK, "the session commits with io.delta.storage.S3DynamoDBLogStore, which tasks do not use"
    )
    common = choice(path, {**DELTA, key: "io.delta.storage.HDFSLogStore"})
    assert common.plan(SIMPLE) is not None
    assert choice(path, {**DELTA, "spark.delta.logStore.s3a.impl": "other.LogStore"}).plan(SIMPLE) is not None


@pytest.mark.parametrize("version", [3, 4])
def test_tasks_write_a_table_whose_version_allows_features_that_it_does_not_use(
    delta_session: SparkSession, tmp_path: Path, version: int
) -> None:
    sink = DeltaSink(str(tmp_path / "table"))
    needs = f"'delta.minWriterVersion' = '{version}', 'delta.minReaderVersion' = '1'"
    delta_session.sql(
        f"CREATE TABLE delta.`{sink.path}` (key BIGINT, region STRING) USING delta TBLPROPERTIES ({needs})"
    )
    written(sink, simple("a"), 0)
    assert sink.used == BY_TASKS
    assert delta_session.read.format("delta").load(sink.path).count() == 1


def test_a_table_on_s3_is_left_to_spark_unless_the_sink_names_the_tasks() -> None:
    on_s3 = choice("s3a://bucket/table", DELTA)
    assert on_s3.plan(SIMPLE) is None
    assert on_s3.used is not None
    assert on_s3.used.is_fallback
    assert on_s3.used.reason.endswith('no OPTIMIZE, name writer="tasks"')


@pytest.mark.parametrize(
    ("columns", "properties", "reason"),
    [
        ("key BIGINT, region VARCHAR(3)", "", "a limited length (column region)"),
        (
            "key BIGINT, region STRING",
            "TBLPROPERTIES ('delta.compatibility.symlinkFormatManifest.enabled' = 'true')",
            "symlink manifests",
        ),
    ],
)
def test_what_only_sparks_writer_does_for_a_table_chooses_it(
    delta_session: SparkSession, tmp_path: Path, columns: str, properties: str, reason: str
) -> None:
    sink = DeltaSink(str(tmp_path / "table"))
    delta_session.sql(f"CREATE TABLE delta.`{sink.path}` ({columns}) USING delta {properties}")
    sink.require_ready(delta_session, SIMPLE)
    assert sink.used == WriterUsed(Writer.SPARK, f"tasks cannot write the files of a table with {reason}")


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.time64("us")])
def test_types_that_tasks_cannot_write_are_left_to_spark(tmp_path: Path, kind: pa.DataType) -> None:
    made = choice(str(tmp_path / "table"), DELTA)
    assert made.plan(pa.schema([("key", pa.int64()), ("took", kind)])) is None
    assert made.used is not None
    assert "tasks cannot write" in made.used.reason


def test_a_session_without_delta_is_enough_for_tasks_and_the_error_says_why_spark_is_needed(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    assert choice(path, {}).plan(SIMPLE) is not None
    with pytest.raises(
        UnsupportedEnvironment,
        match=r"cannot write Delta tables: spark\.sql\.extensions is not set; Spark's writer is needed because merge_on",
    ):
        choice(path, {}, merges=True).plan(SIMPLE)


def test_a_column_of_another_type_is_left_to_spark(delta_session: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    narrow = pa.schema([("key", pa.int32()), ("region", pa.string())])
    write_deltalake(path, narrow.empty_table())
    sink = DeltaSink(path)
    sink.require_ready(delta_session, SIMPLE)
    assert sink.used == WriterUsed(Writer.SPARK, "column key is long, in the table integer")
    write_deltalake(path, SIMPLE.empty_table(), mode="overwrite", schema_mode="overwrite")
    written(sink, simple("a"), 0)
    assert sink.used == BY_TASKS
    assert sink.held("query", 0) == attempt(0).attempt
