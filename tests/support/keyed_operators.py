"""Stateful operators with keys of several columns and types, and with each kind of state variable, for `NativeQuery`.

`native.OPERATORS` has every operator, always with the same key: one text without nulls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.support.native import JOIN_FORMAT, Operator

_HOUR_MS = 3_600_000
_AGGREGATION_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
_V4 = {JOIN_FORMAT: "4", "spark.sql.streaming.join.stateFormatV4.enabled": "true"}
# With processing-time timers, Spark would never stop running batches without data.
_ONLY_DATA = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}


def _typed(frame: DataFrame) -> DataFrame:
    """Add columns of many types, with nulls, negative zeros and texts beyond ASCII."""
    return frame.withColumns(
        {
            "text": F.expr("if(x % 5 = 0, null, concat('schlüssel ', x % 9))"),
            "wide": F.expr("cast(x % 7 - 3 as decimal(25, 4)) * 1000000000000000"),
            "narrow": F.expr("cast(x % 7 as decimal(9, 2))"),
            "number": F.expr("case x % 4 when 0 then -0.0D when 1 then 0.0D when 2 then double('NaN') end"),
            "pair": F.expr("if(x % 11 = 0, null, struct(k, cast(x % 2 as tinyint) as odd))"),
            "list": F.expr("array(k, null, cast(x % 3 as string))"),
            "flag": F.expr("x % 2 = 0"),
            "bytes": F.expr("cast(k as binary)"),
            "day": F.expr("date_add(to_date(at), cast(x % 3 as int))"),
            "n": F.expr("cast(x % 5 as int)"),
        }
    )


def _by_struct_decimal_text(left: DataFrame, _: DataFrame) -> DataFrame:
    return _typed(left).groupBy("pair", "wide", "text", "narrow").count()


def _by_double_list_day(left: DataFrame, _: DataFrame) -> DataFrame:
    return _typed(left).groupBy("number", "list", "day").count()


def _by_expression(left: DataFrame, _: DataFrame) -> DataFrame:
    return _typed(left).groupBy((F.col("x") % 4).alias("rest"), F.lower("k"), F.window("at", "1 minute")).count()


def _distinct(left: DataFrame, _: DataFrame) -> DataFrame:
    return _typed(left).dropDuplicates(["bytes", "flag", "number", "text"])


def _distinct_for_a_while(left: DataFrame, _: DataFrame) -> DataFrame:
    return _typed(left).withWatermark("at", "3 minutes").dropDuplicatesWithinWatermark(["text", "day", "wide"])


def _sessions(left: DataFrame, _: DataFrame) -> DataFrame:
    typed = _typed(left).withWatermark("at", "5 minutes")
    return typed.groupBy("n", F.session_window("at", "40 seconds"), "text").count()


def _sums(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    total = (state.get[0] if state.exists else 0) + sum(int(frame["x"].sum()) for frame in frames)
    state.update((total,))
    yield pd.DataFrame({"total": [total]})


def _apply_in_pandas(left: DataFrame, _: DataFrame) -> DataFrame:
    grouped = _typed(left).groupBy("n", "text")
    return grouped.applyInPandasWithState(_sums, "total bigint", "total bigint", "update", GroupStateTimeout.NoTimeout)


def _join(left: DataFrame, right: DataFrame) -> DataFrame:
    ours = _typed(left).withWatermark("at", "5 minutes").selectExpr("text", "n", "at as a", "x as l")
    theirs = _typed(right).withWatermark("at", "5 minutes").selectExpr("text as t", "n as m", "at as b", "x as r")
    same = (F.col("n") == F.col("m").cast("bigint")) & (F.col("text") == F.col("t"))
    return ours.join(theirs, same & F.expr("b between a - interval 1 minute and a + interval 3 minutes"), "leftOuter")


class _Expiring(StatefulProcessor):
    """A value, a list and a map with a time to live, those without, and a timer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        lives = {"brief": _HOUR_MS, "lasting": None}
        self._values = [handle.getValueState(f"{name}_value", "x bigint", ttl) for name, ttl in lives.items()]
        self._lists = [handle.getListState(f"{name}_list", "x bigint", ttl) for name, ttl in lives.items()]
        self._maps = [handle.getMapState(f"{name}_map", "u string", "x bigint", ttl) for name, ttl in lives.items()]

    def _put(self, x: int, timer_values: Any) -> None:
        for value, several, by_user_key in zip(self._values, self._lists, self._maps, strict=True):
            value.update((x,))
            several.appendValue((x,))
            by_user_key.updateValue((f"user {x % 4}",), (x,))
        if not list(self._handle.listTimers()):
            self._handle.registerTimer(4_000_000_000_000)

    def handleInputRows(  # noqa: N802 - Spark's name
        self, key: Any, frames: Iterator[pd.DataFrame], timer_values: Any
    ) -> Iterator[pd.DataFrame]:
        for frame in frames:
            for x in frame["x"].tolist():
                self._put(int(x), timer_values)
        yield pd.DataFrame({"n": [int(key[0])]})

    def close(self) -> None:
        pass


class _Lasting(_Expiring):
    """The same in event time, which allows no time to live, with rows instead of pandas."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._values = [handle.getValueState("value", "x bigint")]
        self._lists = [handle.getListState("list", "x bigint")]
        self._maps = [handle.getMapState("map", "u string", "x bigint")]

    def handleInputRows(self, key: Any, rows: Iterator[Row], timer_values: Any) -> Iterator[Row]:  # noqa: N802
        for row in rows:
            self._put(row["x"], timer_values)
        yield Row(n=key[0])


def _expiring(left: DataFrame, _: DataFrame) -> DataFrame:
    grouped = _typed(left).groupBy("n", "text")
    return grouped.transformWithStateInPandas(_Expiring(), "n int", "update", "ProcessingTime")


def _lasting(left: DataFrame, _: DataFrame) -> DataFrame:
    grouped = _typed(left).withWatermark("at", "5 minutes").groupBy("narrow", "text")
    return grouped.transformWithState(_Lasting(), "n decimal(9, 2)", "update", "EventTime")


KEYED: Mapping[str, Operator] = {
    "aggregation by struct, decimals and text": Operator(_by_struct_decimal_text, "update"),
    "aggregation 1 by double, list and day": Operator(_by_double_list_day, "update", {_AGGREGATION_FORMAT: "1"}),
    "aggregation by expressions": Operator(_by_expression, "update"),
    "dropDuplicates": Operator(_distinct),
    "dropDuplicatesWithinWatermark": Operator(_distinct_for_a_while),
    "sessions": Operator(_sessions),
    "applyInPandasWithState": Operator(_apply_in_pandas, "update"),
    "join 2": Operator(_join, confs={JOIN_FORMAT: "2"}),
    "join 3": Operator(_join, confs={JOIN_FORMAT: "3"}),
    "join 4": Operator(_join, confs=_V4),
    "transformWithStateInPandas": Operator(_expiring, "update", _ONLY_DATA),
    "transformWithState": Operator(_lasting, "update", _ONLY_DATA),
}
