"""The process in the environment of one Spark. It reads requests and writes answers, one line of JSON each.

    {"do": "run", "done": 3, "batches": 2, ...}  ->  {"outputs": {batch: {row: times}}}
    {"do": "state", ...}                         ->  {"state": {view: {row: times}}}
    {"do": "repartition", "partitions": 3, ...}  ->  {}
    {"do": "views", "batch": 2, ...}             ->  {"views": {view: [row, ...]}}

Each request also has {"operator": ..., "folder": ..., "checkpoint": ..., "confs": {...}}, which identify the query. If
Spark rejects the request, the answer is {"refused": why}. This module imports nothing of Statekeeper: these environments
have none of its dependencies.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support import native

CONFS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # Cheaper than a try at something that will be refused again.
    "spark.task.maxFailures": "1",
    # Many of them on few cores: a Python worker may take long to come up.
    "spark.python.authenticate.socketTimeout": "180",
}


def serve(structure: str) -> None:
    """Answer until the requests end."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # Spark's JVM writes to this file descriptor, too.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("interop")
    # Spark 4.0 takes the header of its snapshots from the conf with which its process began, once and for all.
    for name, value in {**CONFS, native.FORMAT: structure}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    _say(answers, {"version": spark.version})
    for line in sys.stdin:
        try:
            answer = _answer(spark, json.loads(line))
        except (PySparkException, Py4JJavaError) as error:
            answer = {"refused": "\n".join(_causes(error))}
        _say(answers, answer)
    spark.stop()


def _answer(spark: SparkSession, asked: Mapping[str, Any]) -> dict[str, Any]:
    query = native.NativeQuery(spark, Path(asked["folder"]), native.OPERATORS[asked["operator"]], asked["confs"])
    query.checkpoint = Path(asked["checkpoint"])
    if asked["do"] == "run":
        query.batches = asked["done"]
        query.run(asked["batches"])
        return {"outputs": query.outputs}
    if asked["do"] == "repartition":
        query.repartition(asked["partitions"])
        return {}
    if asked["do"] == "state":
        return {"state": native.state(query)}
    return {"views": native.views_as_json(query, batch=asked["batch"])}


def _causes(error: BaseException) -> Iterator[str]:
    """Iterate over the texts of an error and of its causes in Java."""
    yield str(error)
    cause = getattr(error, "cause", None) or getattr(error, "_cause", None)
    while cause is not None:
        yield str(cause)
        cause = getattr(cause, "cause", None) or getattr(cause, "_cause", None)


def _say(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(f"{json.dumps(answer)}\n")
    answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
