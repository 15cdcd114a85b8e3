"""Native queries that write files with Spark's file sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.statestore.format.structure import Structure
from tests.support.native import OPERATORS, SCHEMA, NativeQuery, configured
from tests.support.twins import SHUFFLE_PARTITIONS

CONFS = {
    SHUFFLE_PARTITIONS: "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


class FileQuery(NativeQuery):
    """A query that writes Parquet files with Spark's file sink, in folders, so that a batch without rows writes no file."""

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def run(self, batches: int) -> None:
        self.add_input(batches)
        with configured(self.spark, self.confs):
            left = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{self.folder}/left")
            query = (
                self.operator.query(left, left)
                .withColumn("part", F.col("most") % 2)
                .writeStream.format("parquet")
                .partitionBy("part")
                .option("path", str(self.output))
                .option("checkpointLocation", str(self.checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

    def rows(self) -> Counter[str]:
        return Counter(map(str, self.spark.read.parquet(str(self.output)).collect()))


def file_query(
    spark: SparkSession, folder: Path, structure: Structure, confs: Mapping[str, str] | None = None
) -> FileQuery:
    return FileQuery(spark, folder, OPERATORS["windows"], {**structure.conf, **CONFS, **(confs or {})})
