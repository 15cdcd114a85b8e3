"""The two structures of a checkpoint: what the versions of its stores are called."""

from __future__ import annotations

from enum import Enum

FORMAT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"


class Structure(Enum):
    """V1 names a version by its number; V2 by an id as well, which the commit log says (SPARK-49374).

    The newest commit decides what a checkpoint is; Spark's own confs do not (from 4.3 on), or must fit (before).
    """

    V1 = "v1"
    V2 = "v2"

    @property
    def conf(self) -> dict[str, str]:
        """What a query of Spark's has to be started with."""
        return {FORMAT_VERSION: self.value.removeprefix("v")}

    @property
    def other(self) -> Structure:
        """The one that it is not."""
        return Structure.V1 if self is Structure.V2 else Structure.V2
