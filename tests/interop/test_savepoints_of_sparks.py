"""Savepoints with rows of native checkpoints: the rows of Spark's `statestore` source, and tables that Spark reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.savepoints import Tables
from statekeeper.statestore.storage import open_storage
from tests.support.dumped import expected, shown
from tests.support.native import HERE, OPERATORS, NativeQuery, views_as_json
from tests.support.savepoints import manifest, rows_of, saved, table
from tests.support.twins import Oracle, savepoint_is_what_spark_shows, take_wrong_snapshots

pytestmark = pytest.mark.spark

MATRIX = [(name, structure) for structure in Structure for name in HERE]
IN_CI = [("sessions", Structure.V2)]
"""The other operators are in the tests of checkpoints that Spark wrote earlier."""
CASES = [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.slow) for case in MATRIX]
BATCHES = 2


def differing(folder: Path, views: dict[str, list[str]]) -> list[str]:
    """The views of Spark's source in which the rows of the tables differ."""
    rows = rows_of(folder)
    return [view for view, found in views.items() if shown(rows, json.loads(view)) != expected(found, json.loads(view))]


@pytest.mark.parametrize(
    ("name", "structure"),
    CASES,
    ids=lambda value: value.value if isinstance(value, Structure) else str(value).replace(" ", "-"),
)
def test_spark_reads_its_own_rows_from_the_tables(
    spark: SparkSession, tmp_path: Path, name: str, structure: Structure
) -> None:
    query = NativeQuery(spark, tmp_path / "query", OPERATORS[name], structure.conf)
    query.run(BATCHES)
    source = open_storage(query.root)
    views = views_as_json(query)
    savepoint_is_what_spark_shows(query, Oracle(dict, lambda: views), tmp_path)
    for tables in Tables:
        to = tmp_path / tables.value
        saved(source, open_storage(str(to)), tmp_path, tables=tables, stopped=True)
        assert differing(to, views) == []
        for described in manifest(to)["tables"]:
            mine = table(to, described["path"])
            by_spark = spark.read.format(tables.value).load(str(to / described["path"]))
            assert by_spark.columns == mine.column_names
            assert by_spark.count() == mine.num_rows == described["rows"]
            keys = sorted(column for column in mine.column_names if column.startswith("key_"))
            found = [row.asDict(recursive=True) for row in by_spark.select("partition", *keys).collect()]
            assert len(found) == mine.num_rows
            texts = [column for column in keys if mine.schema.field(column).type == "string"]
            for column in texts:
                assert sorted(row[column] or "" for row in found) == sorted(
                    value or "" for value in mine[column].to_pylist()
                )
    digest = manifest(tmp_path / Tables.PARQUET.value)["digest"]
    assert manifest(tmp_path / Tables.DELTA.value)["digest"] == digest
    take_wrong_snapshots(query, tmp_path)
    wrong = tmp_path / "wrong"
    saved(source, open_storage(str(wrong)), tmp_path, stopped=True)
    assert differing(wrong, views)
    assert manifest(wrong)["digest"] != digest
