"""A stream without rows that starts a batch at each tick, so that timers fire and state expires without input."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from statekeeper.pipelines.operator.times import milliseconds
from statekeeper.statestore.base.errors import SchemaMismatch

_FORMAT = "statekeeper_ticks"
_SCHEMA = "schema"
_SECONDS = "seconds"
_TICK = "tick"


def with_ticks(stream: DataFrame, tick: str | dt.timedelta) -> DataFrame:
    """Return the stream with a further source, which has no rows and a new offset at each tick.

    Raises `SchemaMismatch` for a duration that is not positive.
    """
    seconds = milliseconds(tick, "`tick`") / 1000
    if seconds <= 0:
        raise SchemaMismatch(f"`tick` is {tick!r}", hint='use a positive duration, such as "10s"')
    session = stream.sparkSession
    session.dataSource.register(_Ticks)
    ticks = session.readStream.format(_FORMAT).option(_SECONDS, str(seconds)).option(_SCHEMA, stream.schema.json())
    return stream.union(ticks.load())


class _Ticks(DataSource):
    """Spark's interface of a source. Spark calls it in a Python process beside the driver."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.options[_SCHEMA]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        del schema
        return _Reader(float(self.options[_SECONDS]))


class _Reader(DataSourceStreamReader):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return self.latestOffset()

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        return {_TICK: int(time.time() / self._seconds)}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        del start, end
        return []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        del partition
        return iter(())
