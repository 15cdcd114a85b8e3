"""Spark on an HDFS, by Hadoop's own client, and Statekeeper on the same folder, by WebHDFS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.storage import open_storage
from tests.support.hdfs_server import MiniHdfs
from tests.support.native import Operator
from tests.support.remote_queries import ElsewhereQuery


class HdfsQuery(ElsewhereQuery):
    """A query whose checkpoint is on HDFS, in its own folder. Its input is on local disk."""

    def __init__(
        self, spark: SparkSession, folder: Path, operator: Operator, confs: Mapping[str, str], *, server: MiniHdfs
    ) -> None:
        super().__init__(spark, folder, operator, confs)
        self._place = f"/jobs/{RandomIds().fresh()}"
        self.checkpoint = f"hdfs://127.0.0.1:{server.rpc_port}{self._place}/checkpoint"
        self._root = f"webhdfs://127.0.0.1:{server.port}{self._place}/checkpoint"
        self._jvm = spark._jvm
        self._conf = spark._jsc.hadoopConfiguration()
        # The server has one datanode.
        self._conf.set("dfs.replication", "1")
        self._files = self._path(self.checkpoint).getFileSystem(self._conf)

    @property
    def root(self) -> str:
        return self._root

    @property
    def urls(self) -> tuple[str]:
        return (self._root,)

    def forget(self, *paths: str) -> None:
        for path in paths:
            assert self._files.delete(self._path(f"{self.checkpoint}/{path}"), False), path

    def files(self) -> set[str]:
        """Return the paths of all files, hidden ones included."""
        return {entry.path for entry in open_storage(self.root).list("", hidden=True)}

    def _path(self, url: str) -> object:
        return self._jvm.org.apache.hadoop.fs.Path(url)

    def _keep(self, name: str) -> None:
        self._copy(self.checkpoint, f"{self._place}/{name}")

    def _take_back(self, name: str) -> None:
        self._files.delete(self._path(self.checkpoint), True)
        self._copy(f"{self._place}/{name}", self.checkpoint)

    def _copy(self, source: str, target: str) -> None:
        copy = self._jvm.org.apache.hadoop.fs.FileUtil.copy
        assert copy(self._files, self._path(source), self._files, self._path(target), False, self._conf)
