"""The join whose state expires: on the harness against all pairs, and on Spark against its own join within a time."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from examples import join_with_expiry
from examples.join_with_expiry import COLUMN, HOUR, INSTANT, OPERATOR
from pipelines import OperatorHarness
from tests.support.streams import conf

COLUMNS = {
    name: pa.schema([("order", pa.string()), ("at", INSTANT), (column, pa.int64())]) for name, column in COLUMN.items()
}
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
Row = dict[str, Any]
Batches = list[Mapping[str, list[Row]]]


def batches_of(count: int, rows: int, most_minutes_late: int) -> Batches:
    """Batch N has the times of N half hours, and up to so many minutes earlier."""
    chance, numbers = random.Random(47), iter(range(1_000_000))

    def row(batch: int, column: str) -> Row:
        minute = 30 * batch - chance.randrange(most_minutes_late)
        order = chance.choice([None, *"abcdefghij"])
        return {"order": order, "at": START + dt.timedelta(minutes=minute), column: next(numbers)}

    return [
        {name: [row(batch, column) for _ in range(rows)] for name, column in COLUMN.items()} for batch in range(count)
    ]


def pairs_of(batches: Batches) -> list[tuple[Any, ...]]:
    orders, payments = ([row for batch in batches for row in batch[name]] for name in COLUMN)
    return sorted(
        (one["order"], one["at"], one["amount"], other["at"], other["paid"])
        for one in orders
        for other in payments
        if one["order"] == other["order"] is not None and abs(one["at"] - other["at"]) <= HOUR
    )


def test_the_join_returns_each_pair_within_an_hour_once_and_forgets_the_other_rows() -> None:
    batches, before = batches_of(12, 6, most_minutes_late=10), list[tuple[Any, ...]]()
    with OperatorHarness(OPERATOR, columns=COLUMNS, partitions=2) as harness:
        for number, batch in enumerate(batches):
            result = harness.batch(batch)
            before = sorted([*before, *(tuple(row.values()) for row in result.output.to_pylist())])
            assert before == pairs_of(batches[: number + 1])
        watermark = result.batch.watermark
        for name in COLUMN:
            times = {row["order"]: row["last_at"] for row in result.state[name].to_pylist()}
            newest: dict[str | None, dt.datetime] = {}
            for row in (row for batch in batches for row in batch[name]):
                newest[row["order"]] = max(row["at"], newest.get(row["order"], row["at"]))
            assert times == {order: at for order, at in newest.items() if at + HOUR > watermark}
            assert len(times) < len(newest), "some orders were forgotten"


@pytest.mark.spark
@pytest.mark.slow
def test_the_join_on_late_rows_is_that_of_spark(delta_session: SparkSession, tmp_path: Path) -> None:
    batches = batches_of(8, 30, most_minutes_late=90)

    def append(batch: Mapping[str, list[Row]]) -> None:
        for name, rows in batch.items():
            deltalake.write_deltalake(str(tmp_path / name), pa.Table.from_pylist(rows, COLUMNS[name]), mode="append")

    append(batches[0])

    def stream(name: str) -> DataFrame:
        return delta_session.readStream.format("delta").load(str(tmp_path / name)).withWatermark("at", "10 minutes")

    orders = stream("orders")
    payments = stream("payments").withColumnsRenamed({"at": "at_paid", "order": "paid_order"})
    condition = "order = paid_order AND at_paid BETWEEN at - INTERVAL 1 HOUR AND at + INTERVAL 1 HOUR"
    theirs = orders.join(payments, F.expr(condition)).drop("paid_order").writeStream.format("delta")
    theirs = theirs.option("checkpointLocation", str(tmp_path / "native")).trigger(availableNow=True)
    dropped = 0
    for batch in batches[1:]:
        # Both are started again each time, so that the rows of both tables are in one batch.
        append(batch)
        ours = join_with_expiry.run(delta_session, str(tmp_path))
        ours.streaming_query.processAllAvailable()
        ours.stop()
        # A batch without rows would move the watermark for late rows.
        with conf(delta_session, {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}):
            native = theirs.start(str(tmp_path / "theirs"))
        native.awaitTermination()
        of_operators = [operator for progress in native.recentProgress for operator in progress["stateOperators"]]
        dropped += sum(operator["numRowsDroppedByWatermark"] for operator in of_operators)
    mine, expected = (
        sorted(
            tuple(row[name] for name in OPERATOR.output.names)
            for row in deltalake.DeltaTable(str(tmp_path / table)).to_pyarrow_table().to_pylist()
        )
        for table in ("pairs", "theirs")
    )
    assert mine == expected
    assert dropped > 0
    assert 100 < len(mine) < len(pairs_of(batches)), "late rows have no pairs"
