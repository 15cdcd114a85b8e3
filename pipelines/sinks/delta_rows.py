"""Writes of a batch to a Delta table by Spark: rows are appended or merged by key, in one commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from statekeeper.statestore.base.errors import WrongResult

_COUNT = "__statekeeper_rows"
_MERGE_CONF = {
    # The operator's output is materialized already. Delta would copy it again.
    "spark.databricks.delta.merge.materializeSource": "none",
    # The operator's job turns it off, and a merge would then have all `spark.sql.shuffle.partitions` tasks.
    "spark.sql.adaptive.enabled": "true",
}


@dataclass(frozen=True, kw_only=True)
class Commit:
    """Identity of a commit: its transaction (Delta's idempotent writes) and its `userMetadata`."""

    application: str
    batch: int
    note: str


def append(
    rows: DataFrame, path: str, commit: Commit, *, partition_by: Sequence[str] | None, adds_columns: bool = False
) -> None:
    """Append rows. Creates the table if there is none; `partition_by` are then its partition columns. `adds_columns`: the
    table gets the columns that it does not have."""
    writer = (
        rows.write.format("delta")
        .mode("append")
        .option("txnAppId", commit.application)
        .option("txnVersion", commit.batch)
        .option("userMetadata", commit.note)
    )
    if adds_columns:
        writer = writer.option("mergeSchema", "true")
    if partition_by is not None:
        writer = writer.partitionBy(*partition_by)
    writer.save(path)


def merge(rows: DataFrame, path: str, commit: Commit, *, on: Sequence[str], adds_columns: bool = False) -> None:
    """Update the rows of the table with the same values in the columns `on`, and insert the others. Null equals null.

    Columns of the table that `rows` does not have keep their values, and are null in a new row. `adds_columns`: as in
    `append`.
    """
    from delta.tables import DeltaTable

    session = rows.sparkSession
    # The builder of a merge has no options. The session is that of this query alone.
    identity = {
        "spark.databricks.delta.write.txnAppId": commit.application,
        "spark.databricks.delta.write.txnVersion": str(commit.batch),
        "spark.databricks.delta.commitInfo.userMetadata": commit.note,
    }
    same_key = " AND ".join(f"table.{_quoted(name)} <=> output.{_quoted(name)}" for name in on)
    values: dict[str, str | Column] = {_quoted(name): f"output.{_quoted(name)}" for name in rows.columns}
    with _conf(session, {**_MERGE_CONF, **identity}):
        merged = DeltaTable.forPath(session, path).alias("table").merge(rows.alias("output"), same_key)
        if adds_columns:
            merged = merged.withSchemaEvolution()
        merged.whenMatchedUpdate(set=values).whenNotMatchedInsert(values=values).execute()


def require_unique(rows: DataFrame, path: str, *, on: Sequence[str], batch: int) -> None:
    """Raise `WrongResult` if two rows have the same values in the columns `on`. Writes nothing.

    Delta itself detects two rows only for a key that the table already has.
    """
    with _conf(rows.sparkSession, _MERGE_CONF):
        counted = rows.groupBy(*[F.col(_quoted(name)) for name in on]).agg(F.count(F.lit(1)).alias(_COUNT))
        found = counted.where(f"{_COUNT} > 1").head()
    if found is not None:
        key = {name: found[number] for number, name in enumerate(on)}
        raise WrongResult(
            f"the output of batch {batch} has {found[_COUNT]} rows with the merge key {key}; the batch was not committed",
            path=path,
            hint="return at most one row for each key in a batch, or remove merge_on",
        )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


@contextmanager
def _conf(session: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    before = {key: session.conf.get(key, None) for key in values}
    for key, value in values.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)
