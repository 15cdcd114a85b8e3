"""A Spark application with one query, as a team would write it: it writes nowhere in a drill.

python -m tests.support.started_query FOLDER CHECKPOINT OPERATOR CONFS
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.support import quick_spark
from tests.support.native import OPERATORS, NativeQuery


def main(folder: Path, checkpoint: Path, operator: str, confs: dict[str, str]) -> None:
    from pyspark.sql import SparkSession

    assert os.environ.get("STATEKEEPER_DRILL") == "1", "it would write its output"
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    query = NativeQuery(session, folder, OPERATORS[operator], confs)
    query.checkpoint = checkpoint
    query.run(0)
    session.stop()


if __name__ == "__main__":
    os.environ.setdefault("JDK_JAVA_OPTIONS", quick_spark.java_options())
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
