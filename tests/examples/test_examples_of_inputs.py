"""The examples with several inputs: on the harness, and on Spark against its own join of two streams."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from examples import enrichment, join_of_streams
from statekeeper.pipelines import OperatorHarness, StatefulQuery

ORDERS = pa.schema([("customer", pa.string()), ("id", pa.int64())])
PAYMENTS = pa.schema([("customer", pa.string()), ("paid", pa.int64())])
CUSTOMERS = pa.schema([("customer", pa.string()), ("at", pa.int64()), ("tier", pa.string())])
TIMED_ORDERS = pa.schema([("customer", pa.string()), ("at", pa.int64()), ("id", pa.int64())])

Batch = Mapping[str, list[dict[str, Any]]]


def pairs_of(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows)


def random_batches(count: int, rows: int) -> list[Batch]:
    chance, numbers = random.Random(20), iter(range(1_000_000))
    customers = [None, *"abcdefgh"]
    return [
        {
            name: [{"customer": chance.choice(customers), column: next(numbers)} for _ in range(chance.randrange(rows))]
            for name, column in join_of_streams.COLUMN.items()
        }
        for _ in range(count)
    ]


def is_pair(order: Mapping[str, Any], payment: Mapping[str, Any]) -> bool:
    return order["customer"] is not None and order["customer"] == payment["customer"]


def test_the_join_returns_each_pair_once_in_the_batch_of_its_later_row() -> None:
    columns = {"orders": ORDERS, "payments": PAYMENTS}
    seen: dict[str, list[dict[str, Any]]] = {"orders": [], "payments": []}
    with OperatorHarness(join_of_streams.OPERATOR, columns=columns, partitions=2) as harness:
        before: list[tuple[Any, ...]] = []
        for batch in random_batches(6, 8):
            output = pairs_of(harness.batch(batch).output.to_pylist())
            for name in seen:
                seen[name] += batch[name]
            of_orders = [(order, payment) for order in seen["orders"] for payment in seen["payments"]]
            expected = [
                (o["customer"], o["id"], p["paid"]) for o, p in of_orders if o["customer"] == p["customer"] is not None
            ]
            assert sorted([*before, *output]) == sorted(expected)
            before = expected


def test_an_order_gets_the_tier_of_its_time_or_the_newest_one_of_earlier_batches() -> None:
    with OperatorHarness(enrichment.OPERATOR, columns={"customers": CUSTOMERS, "orders": TIMED_ORDERS}) as harness:
        first = harness.batch(
            {
                "customers": [{"customer": "a", "at": 2, "tier": "gold"}, {"customer": "a", "at": 4, "tier": "silver"}],
                "orders": [
                    {"customer": key, "at": at, "id": at}
                    for key, at in (("a", 1), ("a", 2), ("a", 3), ("a", 9), ("b", 5))
                ],
            }
        )
        assert [row["tier"] for row in sorted(first.output.to_pylist(), key=lambda row: row["id"])] == [
            None,
            "gold",
            "gold",
            None,
            "silver",
        ]
        second = harness.batch({"orders": [{"customer": "a", "at": 5, "id": 10}]})
        assert second.output.to_pylist() == [{"customer": "a", "id": 10, "tier": "silver"}]
        assert second.state.to_pylist() == [{"customer": "a", "tier": "silver"}]


def append(folder: Path, batch: Batch, columns: Mapping[str, pa.Schema]) -> None:
    for name, rows in batch.items():
        deltalake.write_deltalake(str(folder / name), pa.Table.from_pylist(rows, columns[name]), mode="append")


def finish(query: StatefulQuery) -> None:
    query.streaming_query.processAllAvailable()
    query.stop()


@pytest.mark.spark
@pytest.mark.slow
def test_the_join_is_that_of_spark(delta_session: SparkSession, tmp_path: Path) -> None:
    columns = {"orders": ORDERS, "payments": PAYMENTS}
    batches = random_batches(4, 60)
    append(tmp_path, batches[0], columns)
    streams = {name: delta_session.readStream.format("delta").load(str(tmp_path / name)) for name in columns}
    theirs = streams["orders"].join(streams["payments"], "customer").writeStream.format("delta")
    native = theirs.option("checkpointLocation", str(tmp_path / "native")).start(str(tmp_path / "theirs"))
    for batch in batches[1:]:
        # Restarted each time: the inputs keep their places in the checkpoint.
        finish(join_of_streams.run(delta_session, str(tmp_path)))
        native.processAllAvailable()
        append(tmp_path, batch, columns)
    finish(join_of_streams.run(delta_session, str(tmp_path)))
    native.processAllAvailable()
    native.stop()
    ours, expected = (
        pairs_of(
            deltalake.DeltaTable(str(tmp_path / name)).to_pyarrow_table().select(["customer", "id", "paid"]).to_pylist()
        )
        for name in ("pairs", "theirs")
    )
    assert len(ours) > 100
    assert ours == expected


@pytest.mark.spark
@pytest.mark.slow
def test_the_enrichment_on_spark_is_that_of_the_harness(delta_session: SparkSession, tmp_path: Path) -> None:
    columns = {"customers": CUSTOMERS, "orders": TIMED_ORDERS}
    chance = random.Random(5)
    batches: list[Batch] = [
        {
            "customers": [
                {"customer": chance.choice("abcd"), "at": at, "tier": chance.choice(["gold", "silver", None])}
                for at in chance.sample(range(100), 5)
            ],
            "orders": [
                {"customer": chance.choice(["a", "b", "c", "d", None]), "at": at, "id": number * 100 + at}
                for at in chance.sample(range(100), 40)
            ],
        }
        for number in range(3)
    ]
    expected: list[dict[str, Any]] = []
    with OperatorHarness(enrichment.OPERATOR, columns=columns) as harness:
        for batch in batches:
            append(tmp_path, batch, columns)
            finish(enrichment.run(delta_session, str(tmp_path)))
            expected += harness.batch(batch).output.to_pylist()
    ours = deltalake.DeltaTable(str(tmp_path / "orders_with_tier")).to_pyarrow_table().to_pylist()
    assert sorted(ours, key=repr) == sorted(expected, key=repr)
