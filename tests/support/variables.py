"""A stateful processor whose state variables a test chooses, so that it changes from query to query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.support.native import Operator

_CONFS = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}


class Variables(StatefulProcessor):
    """Sums x in `total`, whose second column counts rows if it is `wide`; `rows` counts rows, `seen` lists x."""

    def __init__(self, names: tuple[str, ...], *, wide: bool, ttl_ms: int | None) -> None:
        self._names = names
        self._wide = wide
        self._ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        columns = "total bigint, n bigint" if self._wide else "total bigint"
        self._total = handle.getValueState("total", columns, self._ttl_ms)
        if "rows" in self._names:
            self._rows = handle.getValueState("rows", "rows bigint")
        if "seen" in self._names:
            self._seen = handle.getListState("seen", "x bigint")

    def handleInputRows(  # noqa: N802 - Spark's name
        self, key: Any, frames: Iterator[pd.DataFrame], timer_values: Any
    ) -> Iterator[pd.DataFrame]:
        found = [int(x) for frame in frames for x in frame["x"].tolist()]
        before = self._total.get()
        total = (before[0] if before else 0) + sum(found)
        n = (before[1] if before and self._wide and before[1] is not None else 0) + len(found)
        self._total.update((total, n) if self._wide else (total,))
        rows = None
        if "rows" in self._names:
            counted = self._rows.get()
            rows = (counted[0] if counted else 0) + len(found)
            self._rows.update((rows,))
        seen: list[int] = []
        if "seen" in self._names:
            for x in found:
                self._seen.appendValue((x,))
            seen = sorted(x for (x,) in self._seen.get())
        yield pd.DataFrame({"k": [key[0]], "total": [total], "n": [n], "rows": [rows], "seen": [str(seen)]})

    def close(self) -> None:
        pass


def variables(*names: str, wide: bool = False, ttl_ms: int | None = None) -> Operator:
    """A query with `total` and these state variables."""

    def query(left: DataFrame, _: DataFrame) -> DataFrame:
        return left.groupBy("k").transformWithStateInPandas(
            Variables(names, wide=wide, ttl_ms=ttl_ms),
            "k string, total bigint, n bigint, rows bigint, seen string",
            "update",
            "None" if ttl_ms is None else "ProcessingTime",
        )

    views = tuple({"stateVarName": name} for name in ("total", *names))
    return Operator(query, "update", _CONFS, views, "4.0")
