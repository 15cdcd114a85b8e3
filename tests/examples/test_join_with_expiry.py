"""The join whose state expires: on the harness against all pairs, and on Spark against its own join within a time."""

from __future__ import annotations

import datetime as dt
import random
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from examples.join_with_expiry import COLUMN, HOUR, INSTANT, OPERATOR
from statekeeper.pipelines import DeltaSink, OperatorHarness, start
from tests.support.streams import Seen, conf

COLUMNS = {
    name: pa.schema([("order", pa.string()), ("at", INSTANT), (column, pa.int64())]) for name, column in COLUMN.items()
}
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
Row = dict[str, Any]
Batches = list[Mapping[str, list[Row]]]


def batches_of(count: int, rows: int, most_minutes_late: int, keys: Sequence[str | None]) -> Batches:
    """Batch N has the times of N half hours, and up to so many minutes earlier."""
    chance, numbers = random.Random(47), iter(range(1_000_000))

    def row(batch: int, column: str) -> Row:
        minute = 30 * batch - chance.randrange(most_minutes_late)
        return {"order": chance.choice(keys), "at": START + dt.timedelta(minutes=minute), column: next(numbers)}

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
    batches = batches_of(12, 6, most_minutes_late=10, keys=[None, *"abcdefghij"])
    before: list[tuple[Any, ...]] = []
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
    # Spark drops rows with a null key before it looks at their event times.
    batches = batches_of(7, 45, most_minutes_late=90, keys=string.ascii_letters)
    for batch in [{name: [] for name in COLUMN}, *batches]:
        for name, rows in batch.items():
            table = pa.Table.from_pylist(rows, COLUMNS[name])
            deltalake.write_deltalake(str(tmp_path / name), table, mode="append")

    def stream(name: str) -> DataFrame:
        """One file is one batch."""
        reader = delta_session.readStream.format("delta").option("startingVersion", 1).option("maxFilesPerTrigger", 1)
        return reader.load(str(tmp_path / name))

    orders, payments = (stream(name).withWatermark("at", "10 minutes") for name in COLUMN)
    payments = payments.withColumnsRenamed({"at": "at_paid", "order": "paid_order"})
    condition = "order = paid_order AND at_paid BETWEEN at - INTERVAL 1 HOUR AND at + INTERVAL 1 HOUR"
    theirs = orders.join(payments, F.expr(condition)).drop("paid_order").writeStream.format("delta")
    theirs = theirs.option("checkpointLocation", str(tmp_path / "native")).trigger(availableNow=True)
    # A batch without rows would move the watermark for late rows.
    with conf(delta_session, {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}):
        native = theirs.start(str(tmp_path / "theirs"))
    native.awaitTermination()
    of_operators = [operator for progress in native.recentProgress for operator in progress["stateOperators"]]
    seen = Seen()
    start(
        OPERATOR,
        inputs={name: stream(name) for name in COLUMN},
        root=str(tmp_path / "state"),
        checkpoint=str(tmp_path / "checkpoint"),
        sink=DeltaSink(str(tmp_path / "pairs")),
        partitions=2,
        trigger={"availableNow": True},
        observer=seen,
    ).await_termination()
    mine, expected = (
        sorted(
            tuple(row[name] for name in OPERATOR.output.names)
            for row in deltalake.DeltaTable(str(tmp_path / table)).to_pyarrow_table().to_pylist()
        )
        for table in ("pairs", "theirs")
    )
    assert mine == expected
    late = sum(report.late_rows for report in seen.batches)
    assert late == sum(operator["numRowsDroppedByWatermark"] for operator in of_operators) > 0
    assert sum(report.expired_rows for report in seen.batches) > 0
    assert 50 < len(mine) < len(pairs_of(batches)), "late rows have no pairs"
