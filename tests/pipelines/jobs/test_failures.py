"""A job that fails with a typed error shows the error once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
JOB = """
import logging, sys, time
import deltalake
import pyarrow as pa
from statekeeper.pipelines import DeltaSink, StatefulOperator, Update, spark_session, start

folder, how = sys.argv[1:]
if how == "debug":
    logging.basicConfig(level=logging.DEBUG)
numbers = list(range(200))
deltalake.write_deltalake(f"{folder}/rows", pa.table({"key": numbers, "at": numbers}))
operator = StatefulOperator(
    keys=["key"],
    order_by=["at"],
    state=pa.schema([("n", pa.int64())]),
    output=pa.schema([("key", pa.int64()), ("at", pa.int64())]),
    update=lambda rows, state: Update(rows.rename_columns(["key", "when"])),
)
spark = spark_session("fails", master="local[4,2]")
query = start(
    operator,
    spark.readStream.format("delta").load(f"{folder}/rows"),
    root=f"{folder}/state",
    checkpoint=f"{folder}/checkpoint",
    sink=DeltaSink(f"{folder}/sink"),
    partitions=8,
    trigger={"availableNow": True},
)
if how == "forgotten":
    while query.streaming_query.isActive:
        time.sleep(0.1)
else:
    query.await_termination()
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(("how", "tracebacks"), [("awaited", 1), ("forgotten", 0), ("debug", None)])
def test_a_job_that_fails_with_a_typed_error_shows_it_once(tmp_path, how, tracebacks):
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path), how],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = done.stdout + done.stderr
    error = "the output lacks the columns ['at'] -> it has ['key', 'when']"
    if tracebacks is None:
        assert "StreamingQueryException" in said, "the whole story is there at level DEBUG"
        return
    assert said.count(error) == 1, said
    assert said.count("Traceback") == tracebacks, said
    assert "\tat " not in said, said
    assert not list((tmp_path / "state").glob("commits/*"))
