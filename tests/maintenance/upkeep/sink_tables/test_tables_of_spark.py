"""Spark reads the rows of its own types, with its own deletion vectors, after a merge of their files as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.roots import QUERY
from tests.support.sink_tables import optimized, planned, written

pytestmark = pytest.mark.spark

VALUES: dict[str, str] = {
    "long": "id",
    "decimal": "cast(id as decimal(9, 2)) / 7",
    "large": "cast(id as decimal(38, 10)) * 1000000007",
    "day": "date_add(date'1500-01-01', cast(id as int))",
    "at": "timestamp_seconds(id * 100000000 - 60000000000)",
    "local": "cast(timestamp_seconds(id * 1000) as timestamp_ntz)",
    "text": "if(id % 3 = 0, null, concat('text ', id))",
    "bytes": "cast(cast(id as string) as binary)",
    "double": "if(id % 5 = 0, double('NaN'), id / 3)",
    "yes": "id % 2 = 0",
    "list": "array(id, null, id + 1)",
    "map": "map('a', id)",
    "struct": "struct(id as x, array(struct(id as y)) as z)",
}


@pytest.mark.parametrize("vectors", [pytest.param(False, marks=pytest.mark.slow), True])
def test_spark_reads_the_rows_of_each_type_after_a_merge_as_before(
    tmp_path: Path, delta_session: SparkSession, vectors: bool
) -> None:
    made = written(tmp_path, 0)
    table = f"delta.`{made.url}`"
    columns = [f"{expression} as `{name}`" for name, expression in VALUES.items()]
    for batch in range(2):
        if vectors and batch == 1:
            delta_session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        rows = delta_session.range(batch * 200, batch * 200 + 200, numPartitions=2).selectExpr(*columns)
        writer = rows.write.format("delta").mode("append").option("txnAppId", QUERY).option("txnVersion", batch)
        writer.save(made.url)
        made.root.grow(1, keys=2)
    if vectors:
        delta_session.sql(f"DELETE FROM {table} WHERE long % 7 = 3")

    def found() -> list[str]:
        return sorted(map(repr, delta_session.read.format("delta").load(made.url).collect()))

    before = found()
    [merge] = optimized(made, tmp_path / "scratch", stopped=True).committed
    assert (merge.files, merge.made) == (4, 1)
    assert found() == before
    # Delta answers this query from the statistics in its log.
    of_log = delta_session.sql(f"SELECT count(*), min(long), max(long), min(day), max(day) FROM {table}")
    of_rows = "count(*), min(long + 0), max(long + 0), min(date_add(day, 0)), max(date_add(day, 0))"
    assert of_log.collect() == delta_session.sql(f"SELECT {of_rows} FROM {table}").collect()
    assert delta_session.sql(f"SELECT * FROM {table} WHERE long = 378").count() == 1
    assert planned(made, tmp_path / "scratch").may_start is False
