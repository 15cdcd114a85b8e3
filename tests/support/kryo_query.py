"""A native query in Java whose state is an object that Kryo serializes: Statekeeper and Spark's reader show its bytes."""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from tests.support.native import SCHEMA, NativeQuery, Operator, configured

SOURCE = Path(__file__).parent / "KryoQuery.java"
OPERATOR = Operator(lambda left, _: left, "update")


def load_class(spark: SparkSession) -> None:
    """Compile the query and add it to a session."""
    jars = Path(pyspark.__file__).parent / "jars"
    folder = Path(tempfile.mkdtemp(prefix="kryo-query-"))
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(folder), str(SOURCE)], check=True, capture_output=True)
    jar = folder / "kryo-query.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for path in folder.glob("*.class"):
            archive.write(path, path.name)
    spark.sql(f"ADD JAR '{jar}'")


class KryoQuery(NativeQuery):
    """Call `load_class` first."""

    def run(self, batches: int) -> None:
        self.add_input(batches)
        with configured(self.spark, self.confs):
            java = self.spark._jvm.KryoQuery
            folder = str(self.folder / "left")
            java.start(self.spark._jsparkSession, folder, SCHEMA, str(self.checkpoint)).awaitTermination()
            for line in java.take():
                batch, _, row = line.partition("\t")
                self.outputs.setdefault(int(batch), Counter())[row] += 1
