"""Start of a Spark session for the pipelines: Java 17 or 21, Delta, RocksDB, this interpreter in the workers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from delta import configure_spark_with_delta_pip
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from statekeeper.statestore.base.errors import UnsupportedEnvironment
from statekeeper.statestore.format.provider import PROVIDER, Provider

_GET_JAVA = (
    "Spark needs Java 17 or 21: apt-get install openjdk-17-jre-headless, brew install openjdk@17, or adoptium.net"
)
_JAVA_VERSIONS = (17, 21)
_NO_JARS = (
    "unless they are in ~/.ivy2.5.2, Spark fetches them from Maven Central: connect this machine to the internet for the "
    "first start, or name your own repository with spark.jars.ivySettings"
)

S3A_PACKAGES = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    "software.amazon.awssdk:s3:2.35.4",
    "software.amazon.awssdk:s3-transfer-manager:2.35.4",
)
"""Hadoop's S3 connector in the release of Spark 4.2's Hadoop, with the needed parts of Amazon's SDK: 15 MB instead of the
690 MB of the bundle."""

_LEFT_OUT = (
    "software.amazon.awssdk:bundle",
    "org.wildfly.openssl:wildfly-openssl",
    # Spark contains netty, and its own version is found first.
    "io.netty:*",
)

_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Spark detects an interrupted Python function by a regular expression that recurses once per character.
    "spark.driver.extraJavaOptions": "-Xss16m",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Tables are small: Delta's default of 50 tasks to read a table's state costs more than the state.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.jars.excludes": ",".join(_LEFT_OUT),
    # Spark's state reader needs these settings; a checkpoint does not contain them.
    PROVIDER: Provider.ROCKSDB.class_name,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}


def require_java() -> None:
    """Raise `UnsupportedEnvironment`, with instructions to install Java, unless Java 17 or 21 is found."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or shutil.which(java) is None:
        where = f"JAVA_HOME is {home}, but this folder has no bin/java" if home else "there is no java on the PATH"
        raise UnsupportedEnvironment(where, hint=_GET_JAVA)
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    except OSError as error:
        raise UnsupportedEnvironment(f"{java} cannot be run: {error.strerror}", hint=_GET_JAVA) from error
    # Java 8 and earlier report 1.x.
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    if found is None or int(found[1]) not in _JAVA_VERSIONS:
        version = found[1] if found else "unknown"
        raise UnsupportedEnvironment(f"{java} has version {version}, which Spark does not support", hint=_GET_JAVA)


def require_classic(session: SparkSession) -> None:
    """Raise `UnsupportedEnvironment` for Spark Connect: the protocol needs accumulators and the driver's session."""
    if not hasattr(session, "_jsparkSession"):
        raise UnsupportedEnvironment(
            "the session is a Spark Connect session, which is not supported",
            hint="run the job with classic Spark: SparkSession.builder.master(...)",
        )


def spark_session(
    name: str, *, master: str = "local[*]", conf: Mapping[str, str] | None = None, packages: Sequence[str] = ()
) -> SparkSession:
    """Start a session with Delta and with `packages` (`S3A_PACKAGES` for tables and checkpoints on `s3a://`). `conf`
    overrides the defaults. Raises `UnsupportedEnvironment`, also if Spark's JVM ends while it starts."""
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**_CONF, **(conf or {})}.items():
        builder = builder.config(key, value)
    try:
        return configure_spark_with_delta_pip(builder, list(packages)).getOrCreate()
    except PySparkRuntimeError as error:
        raise UnsupportedEnvironment(f"Spark did not start: {error}", hint="read the output of Spark's JVM") from error


def without_jars(log: str) -> UnsupportedEnvironment | None:
    """Return the error of a start without the jars of its packages; None if the output of the JVM has another cause."""
    if not any(said in log for said in ("unresolved dependency", "download failed")):
        return None
    return UnsupportedEnvironment("Spark did not start: it could not fetch Delta's jars", hint=_NO_JARS)
