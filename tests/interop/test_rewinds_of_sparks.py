"""Spark continues after a rewind as if the later batches had never run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.native import HERE, ONLY_CHANGELOGS, OPERATORS, NativeQuery, configured, state
from tests.support.twins import clean, statekeeper, take_wrong_snapshots

pytestmark = pytest.mark.spark

MATRIX = [(name, structure) for structure in Structure for name in HERE]
IN_CI = [("aggregation", Structure.V2)]
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]
BACK = 3


def _shown(value: object) -> str:
    return value.value if isinstance(value, Structure) else str(value).replace(" ", "-")


def rewound(query: NativeQuery, batch: int) -> None:
    options = ("--to-batch", str(batch), "--apply", "--confirm-stopped", "--scratch", str(query.folder))
    statekeeper("rewind", query.root, *options)
    query.outputs = {done: rows for done, rows in query.outputs.items() if done <= batch}


@pytest.mark.parametrize(("name", "structure"), CASES, ids=_shown)
def test_spark_writes_the_same_batches_again_after_a_rewind(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, structure: Structure
) -> None:
    folder = tmp_path_factory.mktemp("rewound")
    query = NativeQuery(spark, folder / "query", OPERATORS[name], structure.conf)
    query.run(6)
    outputs, end = dict(query.outputs), state(query)
    newest = catalog.newest_batch(open_storage(query.root))
    assert newest is not None
    rewound(query, newest - BACK)
    clean(open_storage(query.root), folder)
    # The input of the later batches is still there.
    query.run(0)
    assert query.outputs == outputs
    assert state(query) == end
    query.run(1)
    clean(open_storage(query.root), folder)


def test_the_comparison_detects_a_rewound_query_that_lacks_a_key(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("wrong")
    query = NativeQuery(spark, folder / "query", OPERATORS["aggregation"], Structure.V2.conf)
    query.run(6)
    end = state(query)
    rewound(query, 2)
    take_wrong_snapshots(query, folder)
    query.run(0)
    assert state(query) != end


@pytest.mark.slow
@pytest.mark.parametrize("structure", list(Structure), ids=_shown)
def test_a_delta_table_has_each_row_once_after_a_rewind_and_a_restore(
    spark: SparkSession, tmp_path: Path, structure: Structure
) -> None:
    query = _Deduplicated(spark, tmp_path, structure)
    query.run()
    query.rewind_and_restore()
    query.run()
    assert query.rows() == list(range(6))


@pytest.mark.slow
@pytest.mark.parametrize("structure", list(Structure), ids=_shown)
def test_a_query_with_its_former_id_loses_rows_or_fails(
    spark: SparkSession, tmp_path: Path, structure: Structure
) -> None:
    """Delta skips the batches that it wrote before the restore. In structure V2, Spark then fails: no task has run."""
    query = _Deduplicated(spark, tmp_path, structure)
    query.run()
    query.rewind_and_restore("--keep-query-id")
    if structure is Structure.V2:
        with pytest.raises(StreamingQueryException, match="CheckpointInfo length: 0"):
            query.run()
    else:
        query.run()
    assert len(query.rows()) == 3


class _Deduplicated:
    """A query with the default state store over six files of one row, a file each batch, into a Delta table."""

    def __init__(self, spark: SparkSession, folder: Path, structure: Structure) -> None:
        self.spark, self.structure = spark, structure
        self.source, self.table, self.checkpoint = folder / "source", folder / "table of rows", folder / "checkpoint"
        self.source.mkdir()
        for number in range(6):
            (self.source / f"{number}.json").write_text(f'{{"number":{number}}}\n')

    def run(self) -> None:
        with configured(self.spark, {**ONLY_CHANGELOGS, **self.structure.conf}):
            rows = self.spark.readStream.schema("number long").option("maxFilesPerTrigger", 1).json(str(self.source))
            writer = rows.dropDuplicates(["number"]).writeStream.format("delta")
            query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
            query.start(str(self.table)).awaitTermination()

    def rewind_and_restore(self, *options: str) -> None:
        """Rewind to batch 2, and execute the statement that the command shows."""
        to = ("--to-batch", "2", "--sink", str(self.table), "--apply", "--confirm-stopped")
        shown = statekeeper("rewind", str(self.checkpoint), *to, *options)
        command = f"RESTORE TABLE delta.`{self.table}` TO VERSION AS OF 2"
        assert command in shown
        self.spark.sql(command)

    def rows(self) -> list[int]:
        return sorted(row.number for row in self.spark.read.format("delta").load(str(self.table)).collect())
