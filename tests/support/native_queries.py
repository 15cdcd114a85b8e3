"""Helpers for checkpoints that a native Spark query wrote."""

from __future__ import annotations

import shutil
import zipfile
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.format.structure import Structure
from tests.support.native import NativeQuery, views
from tests.support.twins import switch


def held(query: NativeQuery) -> Counter[tuple[str, int, int]]:
    """Return the rows that Spark's reader shows."""
    [view] = views(query).values()
    return Counter((row.key[0], row.value[0], row.value[1]) for row in view)


def switched(query: NativeQuery, to: Structure, scratch: Path) -> None:
    """Switch the checkpoint to the other structure, and configure the query for it."""
    switch(query, to, scratch)
    query.confs |= to.conf


STATE = "org.apache.spark.sql.execution.streaming.state"


LOG = b"what Spark copies, and RocksDB does not look at"


def archive_a_log(spark: SparkSession, store: Path, version: int, scratch: Path) -> None:
    """Have Spark write the snapshot of that version again, with an archived log beside the database."""
    path = store / f"{version}.zip"
    metadata = read_snapshot(path.read_bytes(), path.name).metadata
    captured = scratch / "captured"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(captured)
    (captured / "metadata").unlink()
    for table in metadata.tables:
        shutil.copyfile(store / "SSTs" / table.dfs_name, captured / table.local_name)
    (captured / "archive").mkdir()
    (captured / "archive" / "000003.log").write_bytes(LOG)
    for name in (path.name, f".{path.name}.crc"):
        (store / name).unlink()

    jvm = spark._jvm
    of_state = getattr(jvm, STATE)
    nothing = jvm.scala.Option.empty()
    conf = of_state.StateStoreConf(spark._jsparkSession.sessionState().conf(), jvm.PythonUtils.toScalaMap({}))
    temp = jvm.java.io.File(str(scratch / "temp"))
    manager = of_state.RocksDBFileManager(
        str(store), temp, spark._jsparkSession.sessionState().newHadoopConf(), "lz4", "", conf, False, nothing
    )
    here = jvm.java.io.File(str(captured))
    named = of_state.RocksDBFileMapping().createSnapshotFileMapping(manager, here, version)._2()
    manager.saveCheckpointToDfs(here, version, metadata.key_count, 0, named, nothing, nothing, nothing, True)
