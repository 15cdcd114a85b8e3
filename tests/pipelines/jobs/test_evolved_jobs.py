"""A Python job whose state root gets other value columns: it continues with them and with the totals of all batches."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines import DeltaSink, Host, StatefulOperator, Update, start
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.base.errors import SchemaMismatch
from tests.support.twins import statekeeper

pytestmark = [pytest.mark.spark, pytest.mark.slow]
OLD = pa.schema([pa.field("n", pa.int32(), nullable=False), ("note", pa.string())])
NEW = pa.schema(
    [
        pa.field("count", pa.int64(), nullable=False),
        pa.field("currency", pa.string(), nullable=False),
        ("rate", pa.float64()),
    ]
)
OUTPUT = pa.schema([("k", pa.string()), ("count", pa.int64())])
CHANGES = """
[stores.default]
drop = ["note"]
rename = { n = "count" }
widen = { n = "long" }
[stores.default.add.currency]
type = "string"
nullable = false
default = "EUR"
[stores.default.add.rate]
type = "double"
"""
APPLY = ("--apply", "--confirm-stopped")


def update_of(values: pa.Schema, rest: dict[str, object]) -> StatefulOperator:
    """Return the operator that counts the rows of each key in the first column of its state."""
    name = values.names[0]

    def update(rows: pd.DataFrame, state: pd.DataFrame) -> Update:
        before = state.set_index("k")[name].astype("int64")
        counts = rows.groupby("k").size().add(before, fill_value=0).astype("int64")
        counts = counts[counts.index.isin(rows["k"])].rename(name).reset_index()
        return Update(output=counts.rename(columns={name: "count"}), state=counts.assign(**rest))

    return StatefulOperator(
        keys=["k"],
        order_by=["x"],
        state=values,
        output=OUTPUT,
        update=lambda rows, state: _in_pandas(update, rows, state),
    )


def _in_pandas(update: object, rows: pa.Table, state: pa.Table) -> Update:
    assert callable(update)
    found: Update = update(rows.to_pandas(), state.to_pandas())
    return found


OLD_JOB, NEW_JOB = update_of(OLD, {"note": "old"}), update_of(NEW, {"currency": "USD", "rate": 1.5})


@pytest.mark.parametrize("log", LogLayout, ids=lambda one: one.value)
def test_a_job_continues_with_the_new_columns_and_the_totals_of_all_batches(
    log: LogLayout, delta_session: SparkSession, tmp_path: Path
) -> None:
    def run(operator: StatefulOperator, *keys: str) -> None:
        rows = pa.table({"k": list(keys), "x": list(range(len(keys)))})
        deltalake.write_deltalake(tmp_path / "source", rows, mode="append")
        start(
            operator,
            delta_session.readStream.format("delta").load(str(tmp_path / "source")),
            root=str(tmp_path / "root"),
            checkpoint=str(tmp_path / "checkpoint"),
            sink=DeltaSink(str(tmp_path / "sink")),
            partitions=2,
            log=log.value,
            host=Host(str(tmp_path / "host")),
            trigger={"availableNow": True},
        ).await_termination()

    root, file = str(tmp_path / "root"), tmp_path / "changes.toml"
    file.write_text(CHANGES)
    run(OLD_JOB, "a", "a", "b", "c")
    statekeeper("evolve", root, "--schema", str(file), *APPLY, "--scratch", str(tmp_path / "scratch"))
    with pytest.raises(SchemaMismatch, match="the columns that the root had before batch 0, which changed them"):
        run(OLD_JOB)
    run(NEW_JOB, "a", "b", "d")
    if log is LogLayout.BATCH:
        statekeeper("unpack", root)
    rows = delta_session.read.format("statestore").load(root).selectExpr("key.k", "value.*").collect()
    assert sorted(tuple(row) for row in rows) == [
        ("a", 3, "USD", 1.5),
        ("b", 2, "USD", 1.5),
        ("c", 1, "EUR", None),
        ("d", 1, "USD", 1.5),
    ]
    output = deltalake.DeltaTable(tmp_path / "sink").to_pandas().groupby("k")["count"].max()
    assert output.to_dict() == {"a": 3, "b": 2, "c": 1, "d": 1}
    statekeeper("audit", root, "--deep", "--scratch", str(tmp_path / "scratch"))
