"""A query with `transformWithStateInPandas` that uses timers and times to live, and does not depend on the time of day.

In every batch, a key sets a timer that is due in the next batch, and values that have expired by then. Another timer and
other values are far from their time. Spark's workers import this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from tests.support.native import Operator

SOON_MS, HOUR_MS = 1, 3_600_000
FAR_MS = 4_000_000_000_000


class _Times(StatefulProcessor):
    """Each row shows the values that are left of earlier batches, and each timer the values at its time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "total bigint")
        self._values = {ms: handle.getValueState(f"value{ms}", "x bigint", ms) for ms in (SOON_MS, HOUR_MS)}
        self._lists = {ms: handle.getListState(f"list{ms}", "x bigint", ms) for ms in (SOON_MS, HOUR_MS)}
        self._maps = {ms: handle.getMapState(f"map{ms}", "m bigint", "x bigint", ms) for ms in (SOON_MS, HOUR_MS)}

    def handleInputRows(  # noqa: N802 - Spark's name
        self, key: Any, frames: Iterator[pd.DataFrame], timer_values: Any
    ) -> Iterator[pd.DataFrame]:
        left = self._left()
        total = self._total.get()[0] if self._total.exists() else 0
        for frame in frames:
            total += int(frame["x"].sum())
        self._total.update((total,))
        for ms in (SOON_MS, HOUR_MS):
            self._values[ms].update((total,))
            self._lists[ms].appendValue((total,))
            self._maps[ms].updateValue((total % 3,), (total,))
        far = list(self._handle.listTimers())
        self._handle.registerTimer(timer_values.getCurrentProcessingTimeInMs() + SOON_MS)
        self._handle.registerTimer(FAR_MS)
        yield self._row(key, "rows", f"{total} {left} far timer: {FAR_MS in far}")

    def handleExpiredTimer(self, key: Any, **_: Any) -> Iterator[pd.DataFrame]:  # noqa: N802 - Spark's name
        yield self._row(key, "timer", str(self._total.get()[0]))

    def _left(self) -> str:
        found = []
        for ms in (SOON_MS, HOUR_MS):
            value = self._values[ms].get()
            of_list = [x for (x,) in self._lists[ms].get()]
            of_map = sorted((m, x) for (m,), (x,) in self._maps[ms].iterator())
            found.append(f"{ms}: {value and value[0]} {of_list} {of_map}")
        return "; ".join(found)

    def _row(self, key: Any, kind: str, shown: str) -> pd.DataFrame:
        return pd.DataFrame({"k": [key[0]], "kind": [kind], "shown": [shown]})

    def close(self) -> None:
        pass


def _timed(left: DataFrame, _: DataFrame) -> DataFrame:
    columns = "k string, kind string, shown string"
    return left.groupBy("k").transformWithStateInPandas(_Times(), columns, "update", "ProcessingTime")


OPERATOR = Operator(_timed, "update", {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}, since="4.0")
