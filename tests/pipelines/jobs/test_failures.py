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


KILLED = """
import os, signal, sys
import pyarrow as pa
from statekeeper.pipelines import NoSink, StatefulOperator, Update, spark_session, start
from statekeeper.statestore.base.errors import SparkDied

folder, = sys.argv[1:]
spark = spark_session("killed", master="local[2]")
rate = spark.readStream.format("rate").load().selectExpr("value AS key", "value AS at")
operator = StatefulOperator(
    keys=["key"],
    order_by=["at"],
    state=pa.schema([("n", pa.int64())]),
    output=pa.schema([("key", pa.int64())]),
    update=lambda rows, state: Update(None),
)
query = start(
    operator, rate, root=f"{folder}/state", checkpoint=f"{folder}/checkpoint", sink=NoSink(), partitions=1
)
os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
try:
    query.await_termination()
except SparkDied as error:
    print(error.code, error)
    os._exit(error.exit_code)  # PySpark would wait for its JVM
"""


@pytest.mark.spark
def test_a_job_whose_jvm_is_killed_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith(
        "spark_died Spark's JVM ended while the query was running -> read the end of Spark's log"
    )


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
