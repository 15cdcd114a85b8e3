"""The operators in the README and in the page on operators run with the described result."""

from __future__ import annotations

import re
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.streams import conf

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[3]
README = REPOSITORY / "README.md"
PAGE = REPOSITORY / "docs" / "how-to" / "your-own-operator.md"


def _readings(*rows: tuple[str | None, int, float]) -> pa.Table:
    sensor, second, value = zip(*rows, strict=True)
    at = pa.array([s * 1_000_000 for s in second], pa.timestamp("us", tz="UTC"))
    return pa.table({"sensor": list(sensor), "at": at, "value": list(value)})


def _example(page: Path) -> str:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    return next(block for block in blocks if "StatefulOperator(" in block and "start(" in block)


def test_the_operator_of_the_readme_runs_unchanged(delta_session: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "readings")
    deltalake.write_deltalake(source, _readings(("a", 1, 5.0), ("b", 2, 1.0), ("a", 3, 4.0), (None, 6, 2.0)))
    readings = delta_session.readStream.format("delta").load(source)
    names: dict[str, object] = {"readings": readings}
    names |= {name: str(tmp_path / name) for name in ("root", "checkpoint", "table")}
    exec(_example(README), names)
    query = names["query"]
    query.streaming_query.processAllAvailable()
    deltalake.write_deltalake(source, _readings(("a", 4, 3.0), ("b", 5, 7.0)), mode="append")
    query.streaming_query.processAllAvailable()
    query.stop()
    highs = deltalake.DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert sorted((row["sensor"] or "none", row["highest"]) for row in highs) == [
        ("a", 5.0),
        ("a", 5.0),
        ("b", 1.0),
        ("b", 7.0),
        ("none", 2.0),
    ]


def test_the_operator_of_its_page_runs_unchanged(delta_session: SparkSession, tmp_path: Path) -> None:
    example = _example(PAGE)
    readings = str(tmp_path / "readings")
    deltalake.write_deltalake(readings, _readings(("a", 1, 5.0), ("b", 2, 1.0), ("a", 3, 4.0), (None, 6, 2.0)))
    names: dict[str, object] = {"spark": delta_session, "folder": str(tmp_path)}
    # Spark's default, which the session of the how-to has: more than there are key groups.
    with conf(delta_session, {"spark.sql.shuffle.partitions": "200"}):
        exec(example, names)
    query = names["query"]
    query.streaming_query.processAllAvailable()
    deltalake.write_deltalake(readings, _readings(("a", 4, 9.0), ("c", 5, 0.0), (None, 7, 1.0)), mode="append")
    query.streaming_query.processAllAvailable()
    query.stop()
    highs = deltalake.DeltaTable(str(tmp_path / "highs")).to_pyarrow_table().to_pylist()
    assert sorted((row["sensor"] or "none", row["at"].second, row["readings"], row["highest"]) for row in highs) == [
        ("a", 1, 1, 5.0),
        ("a", 3, 2, 5.0),
        ("a", 4, 3, 9.0),
        ("b", 2, 1, 1.0),
        ("c", 5, 1, 0.0),
        ("none", 6, 1, 2.0),
        ("none", 7, 2, 2.0),
    ]
