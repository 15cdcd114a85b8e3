"""Garbage collections of the workers of a job."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from tests.support.adding_operator import ROWS, rows_of
from tests.support.streams import Stream

# Spark's workers need not find this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.spark
def test_a_worker_of_spark_leaves_out_its_modules_after_its_first_task(delta_session, tmp_path):
    stream = Stream(delta_session, tmp_path, ROWS)
    for _ in range(3):
        stream.append(rows_of((1, 10)))

    def frozen(rows: pa.Table, state: pa.Table) -> Update:
        import gc

        table = pa.table({"key": rows["key"], "frozen": pa.array([gc.get_freeze_count()] * len(rows), pa.int64())})
        return Update(table, table)

    column = pa.schema([("frozen", pa.int64())])
    stream.run(
        StatefulOperator(["key"], [], state=column, output=pa.schema([ROWS.field("key"), *column]), update=frozen)
    )
    counts = [row["frozen"] for row in stream.output()]
    assert len(counts) == 3
    assert max(counts) > 30_000
