"""The state store provider of a query, which determines the names and the bytes of its state files."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
"""The conf in the offset log. Spark keeps the provider of the first start."""

_PACKAGE = "org.apache.spark.sql.execution.streaming.state."


class Provider(Enum):
    """A state store provider of Spark, by the name of its class. A checkpoint has one."""

    ROCKSDB = "RocksDBStateStoreProvider"
    HDFS_BACKED = "HDFSBackedStateStoreProvider"

    __hash__ = object.__hash__  # that of Enum is written in Python

    @property
    def class_name(self) -> str:
        """The value of the conf."""
        return _PACKAGE + self.value

    @property
    def option(self) -> str:
        """The name on the command line."""
        return "rocksdb" if self is Provider.ROCKSDB else "hdfs"


def provider_of(conf: Mapping[str, str]) -> Provider | None:
    """Return the provider that the confs of an offset log name, or Spark's default, HDFS_BACKED; None for a class of
    another library."""
    name = conf.get(PROVIDER, Provider.HDFS_BACKED.class_name)
    return next((provider for provider in Provider if provider.class_name == name), None)
