"""The two structures of a checkpoint, V1 and V2."""

from __future__ import annotations

from enum import Enum

FORMAT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"


class Structure(Enum):
    """V1 identifies a version by its number; V2 also by an id in the commit log (SPARK-49374).

    The newest commit determines the structure of a checkpoint. Spark's conf must match it before 4.3, and is ignored
    from 4.3 on.
    """

    V1 = "v1"
    V2 = "v2"

    @property
    def conf(self) -> dict[str, str]:
        """The conf with which a Spark query must be started."""
        return {FORMAT_VERSION: self.value.removeprefix("v")}

    @property
    def other(self) -> Structure:
        """The other structure."""
        return Structure.V1 if self is Structure.V2 else Structure.V2
