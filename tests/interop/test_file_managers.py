"""Spark of the tests replaces a file of a checkpoint as Spark of users does.

In structure V1, a repeated batch writes state files whose names exist. If they are not replaced, Spark does not notice, and
its state is not that of its output.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.native import configured
from tests.support.quick_spark import BY_FILE_CONTEXT, BY_FILE_SYSTEM

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("files", [BY_FILE_CONTEXT, BY_FILE_SYSTEM], ids=["by-context", "by-file-system"])
def test_a_file_that_exists_is_replaced(spark: SparkSession, tmp_path: Path, files: dict[str, str]) -> None:
    jvm = spark._jvm
    assert jvm is not None
    path = tmp_path / "5.changelog"
    with configured(spark, files):
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        of_path = jvm.org.apache.hadoop.fs.Path(path.as_uri())
        manager = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create(of_path, conf)
        for content in (b"first attempt", b"second"):
            stream = manager.createAtomic(of_path, True)
            stream.write(content)
            stream.close()
            assert path.read_bytes() == content
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name, f".{path.name}.crc"}
