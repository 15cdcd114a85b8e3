"""The command that starts Spark in tests: the `spark-submit` of this environment, with a small cluster on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.on_a_cluster import SETTINGS

SUBMIT = str(Path(sys.executable).with_name("spark-submit"))
_QUICK = {**SETTINGS, "spark.driver.memory": "512m", "spark.pyspark.python": sys.executable}


def submit(master: str = "local[2]", **settings: str) -> list[str]:
    """The words of `[spark]`."""
    pairs = {**_QUICK, **settings}
    return [SUBMIT, "--master", master, *(word for one in pairs.items() for word in ("--conf", "=".join(one)))]


def spark_table(master: str = "local[2]", **settings: str) -> str:
    """The table `[spark]` of a configuration."""
    return f"\n[spark]\nsubmit = {json.dumps(submit(master, **settings))}\n"
