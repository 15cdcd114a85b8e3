"""Spark's `RocksDB` class without a query: the peer of a Statekeeper store.

Its methods are called through py4j. A call costs 0.1 ms, so calls per key are not timed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from statekeeper.statestore.format.names import VersionId

_TRACKED = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"
_STATE = "org.apache.spark.sql.execution.streaming.state"


class SparkRocksDB:
    """One store in structure V2, without column families. `folder` contains its files.

    The session comes from `pipelines.session`: changelogs are on, other settings are Spark's defaults. `tracked`: whether
    the store counts its keys at each change.
    """

    def __init__(self, session: SparkSession, folder: Path, local_folder: Path, *, tracked: bool = True) -> None:
        jvm: Any = session._jvm
        local_folder.mkdir(parents=True)
        state = getattr(jvm, _STATE)
        sql_conf = session._jsparkSession.sessionState().conf().clone()
        sql_conf.setConfString(_TRACKED, str(tracked).lower())
        no_conf = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})
        self._option = jvm.scala.Option
        self._rocksdb = state.RocksDB(
            f"file://{folder}",
            state.RocksDBConf.apply(state.StateStoreConf(sql_conf, no_conf)),
            jvm.java.io.File(str(local_folder)),
            session._jsc.hadoopConfiguration(),
            "benchmark",
            False,  # column families
            True,  # checkpoint ids
            0,
            self._option.empty(),
            self._option.empty(),
        )

    def load(self, version: VersionId) -> None:
        """Open a version for writing. If it is already open, it is not loaded again."""
        self._rocksdb.load(version.version, self._option.apply(version.id), False, False)

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""
        name = getattr(self._rocksdb, "put$default$3")()
        self._rocksdb.put(key, value, name, False, False, False)

    def commit(self) -> VersionId:
        """Upload the changelog of the next version."""
        result = self._rocksdb.commit(False)
        return VersionId(int(result._1()), str(result._2().stateStoreCkptId().get()))

    def maintain(self) -> None:
        """Upload the snapshot of the last commit, if the commit took one."""
        self._rocksdb.doMaintenance()

    def close(self) -> None:
        """Close the store, and remove its local files."""
        self._rocksdb.close()
