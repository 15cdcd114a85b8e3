"""Write `checkpoints.zip`, which contains the bucket of the pages. `python -m tests.docs.write_checkpoints`

    orders/    a native query: checkpoint and input
    orders-2/  the same query after its first batch, with another number of partitions
    clicks/    the same query with Spark's default provider
    alerts/    a native query with Spark's file sink: checkpoint and output
    job/       a job on `pipelines`: state root, checkpoint and Delta table

Spark wrote all files. They have the form that they would have in a bucket: Hadoop's hidden sidecars are missing, and the
logs of sources and sinks name the bucket.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.pipelines import DeltaSink, Frames, StatefulOperator, Update, start
from statekeeper.pipelines.startup.session import spark_session
from tests.docs.followed import ARCHIVE
from tests.support.native import DEFAULT_PROVIDER, FORMAT, ONLY_CHANGELOGS

BUCKET = "s3a://prod"
BATCHES = 12
_ROWS = pa.schema([("customer", pa.string()), ("amount", pa.int64())])
_PARTITIONS = "spark.sql.shuffle.partitions"
_NATIVE = {**ONLY_CHANGELOGS, FORMAT: "1", _PARTITIONS: "2"}
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def rows(batch: int) -> pa.Table:
    """The orders of a batch: of customers with earlier orders, and of new ones."""
    customers = [4700 + (7 * batch + 3 * order) % (6 + batch) for order in range(8)]
    found = [{"customer": f"C-{one}", "amount": 10 * batch + n} for n, one in enumerate(customers)]
    return pa.Table.from_pylist(found, schema=_ROWS)


def totals(orders: DataFrame) -> DataFrame:
    return orders.groupBy("customer").agg(F.count("*").alias("orders"), F.sum("amount").alias("total"))


def run_native(
    spark: SparkSession, folder: Path, batches: int, confs: Mapping[str, str], *, in_files: bool = False
) -> None:
    """Run a query for so many batches, each with one file."""
    for name, value in confs.items():
        spark.conf.set(name, value)
    source = folder / "input"
    source.mkdir(parents=True)
    for batch in range(batches):
        pq.write_table(rows(batch), source / f"{batch:05}.parquet")
    orders = (
        spark.readStream.schema("customer string, amount bigint").option("maxFilesPerTrigger", 1).parquet(str(source))
    )
    output = orders.dropDuplicates(["customer"]) if in_files else totals(orders)
    writer = output.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    query = (
        writer.format("parquet").start(str(folder / "output"))
        if in_files
        else writer.format("noop").outputMode("update").start()
    )
    query.awaitTermination()


def update(rows, state):  # type: ignore[no-untyped-def]
    merged = rows.merge(state, on="customer", how="left").fillna({"orders": 0, "total": 0})
    merged["orders"] += merged.groupby("customer").cumcount() + 1
    merged["total"] += merged.groupby("customer")["amount"].cumsum()
    newest = merged.drop_duplicates("customer", keep="last")
    return Update(output=newest, state=newest)


def run_job(spark: SparkSession, folder: Path) -> None:
    state = pa.schema([("orders", pa.int64()), ("total", pa.int64())])
    operator = StatefulOperator(
        keys=["customer"],
        order_by=["amount"],
        state=state,
        output=pa.schema([("customer", pa.string()), *state]),
        update=update,
        frames=Frames.PANDAS,
    )
    source = str(folder / "input")
    for batch in range(BATCHES):
        write_deltalake(source, rows(batch), mode="append")
    query = start(
        operator,
        spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(source),
        root=str(folder / "state"),
        checkpoint=str(folder / "checkpoint"),
        sink=DeltaSink(str(folder / "table")),
        partitions=4,
        trigger={"availableNow": True},
    )
    query.await_termination()


def main() -> None:
    spark = spark_session("bucket", master="local[2]")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_native(spark, folder / "orders", BATCHES, _NATIVE)
        run_native(spark, folder / "orders-2", 1, {**_NATIVE, _PARTITIONS: "4"})
        run_native(spark, folder / "clicks", BATCHES, {**_NATIVE, **DEFAULT_PROVIDER})
        run_native(spark, folder / "alerts", BATCHES, _NATIVE, in_files=True)
        run_job(spark, folder / "job")
        shutil.rmtree(folder / "orders-2" / "input")
        with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.rglob("*")):
                if file.is_file() and not file.name.startswith("."):
                    data = file.read_bytes()
                    if {"sources", "_spark_metadata", "_delta_log"} & set(file.parts):
                        data = data.replace(f"file://{folder}".encode(), BUCKET.encode())
                    assert name.encode() not in data, f"{file} names the folder in which it was written"
                    archive.writestr(
                        zipfile.ZipInfo(str(file.relative_to(folder)), _NO_TIME), data, zipfile.ZIP_DEFLATED
                    )
    print(f"{ARCHIVE.name}: {ARCHIVE.stat().st_size:,} bytes")
    spark.stop()


if __name__ == "__main__":
    main()
