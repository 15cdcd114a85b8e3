"""What makes Spark quick in tests: short processes with many small queries.

    python -m tests.support.quick_spark

makes an archive of Spark's classes, from which a JVM starts in two thirds of the time, and fetches the packages that a
session of the tests needs. The archive is valid for this environment: with other JAR files, Java ignores it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"

_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Many small queries run in short processes: the optimizing compiler costs more time than it saves."""
_SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


CONF = {
    "spark.sql.shuffle.partitions": "2",
    # Code is generated and compiled for each query: with a few rows, it costs more than half of the time.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # To rename a file on a local disk, Delta and Spark start a process, `readlink`. These start none.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    # Without it, Hive's class is taken. It replaces no file, Spark does not notice, and a repeated batch loses its state.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
}
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing."
BY_FILE_CONTEXT = {CHECKPOINT_FILES: f"{_MANAGERS}FileContextBasedCheckpointFileManager"}
BY_FILE_SYSTEM = {CHECKPOINT_FILES: f"{_MANAGERS}FileSystemBasedCheckpointFileManager"}
"""It is set for the session, not for its context: `as_users_have_it` needs Spark's own default."""


@contextmanager
def as_users_have_it(spark: SparkSession) -> Iterator[None]:
    """Until the block ends, rename files of checkpoints by Spark's default. Only it reads checkpoints on local disk without
    the hidden checksums of Hadoop."""
    before = spark.conf.get(CHECKPOINT_FILES, None)
    spark.conf.unset(CHECKPOINT_FILES)
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(CHECKPOINT_FILES, before)


def java_options() -> str:
    """The value of `JDK_JAVA_OPTIONS`."""
    archive = (f"-XX:SharedArchiveFile={ARCHIVE}", *_SILENT) if ARCHIVE.exists() else ()
    return " ".join((*_QUICK, *archive))


def _run_queries(folder: Path, archive: Path) -> None:
    """Load the classes of the usual tests: tables, a stateful query, Python functions, state that is read."""
    # Imported on demand: the tests of the library run without Spark.
    from statekeeper.pipelines.startup.session import S3A_PACKAGES, spark_session

    conf = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive}", "spark.sql.shuffle.partitions": "2"}
    session = spark_session("jars", master="local[2]", conf=conf, packages=S3A_PACKAGES)
    table, target, checkpoint = (str(folder / name) for name in ("table", "target", "checkpoint"))
    session.range(100).write.format("delta").save(table)
    counts = session.readStream.format("delta").load(table).groupBy("id").count()
    query = counts.writeStream.format("delta").outputMode("complete").option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start(target).awaitTermination()
    rows = session.read.format("statestore").load(checkpoint)
    assert rows.mapInArrow(lambda batches: batches, rows.schema).count() == 100
    gateway = session.sparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    session.stop()
    java.stdin.close()
    java.wait()


def main() -> None:
    os.environ["JDK_JAVA_OPTIONS"] = " ".join((*_QUICK, *_SILENT))
    making = ARCHIVE.with_name(f"{ARCHIVE.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        _run_queries(Path(folder), making)
    making.replace(ARCHIVE)


if __name__ == "__main__":
    main()
