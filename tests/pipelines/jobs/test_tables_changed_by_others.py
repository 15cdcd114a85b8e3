"""Others maintain and write the tables of a job between its batches: its sink, and the table that it reads.

VACUUM, OPTIMIZE and the like change files, not rows. Rows that others add to the sink are not the job's. After each change,
the job continues, and its rows are there once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from statekeeper.statestore.storage import open_storage
from tests.support.counting import INPUT, MERGING, ONE_JOB, TWO_OUTPUTS, V2, Job, rows_of, variant
from tests.support.twins import clean

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

FOREIGN = -1
"""The key and the number of the rows of others."""

Change = Callable[[SparkSession, str], object]


def sql(statement: str) -> Change:
    return lambda session, table: session.sql(statement.format(f"delta.`{table}`")).collect()


def vacuum(session: SparkSession, table: str) -> None:
    """Delete all files that the newest version does not need, however young they are."""
    DeltaTable(table).vacuum(0, enforce_retention_duration=False, dry_run=False)


def compact(session: SparkSession, table: str) -> None:
    DeltaTable(table).optimize.compact()


def append(session: SparkSession, table: str) -> None:
    columns = pa.schema(DeltaTable(table).schema().to_arrow())
    row = {"key": FOREIGN, "number": FOREIGN, "count": 1, "total": 1, "stamp": "of others"}
    write_deltalake(table, pa.Table.from_pylist([row], schema=columns), mode="append")


def clean_up_the_log(session: SparkSession, table: str) -> None:
    """A checkpoint, and then no commit before it: as for a job that starts again after a month."""
    DeltaTable(table).create_checkpoint()
    for path in Path(table, "_delta_log").glob("*.json"):
        os.utime(path, (1, 1))
    DeltaTable(table).cleanup_metadata()


OF_SINK: tuple[Change, ...] = (
    *(compact, vacuum, sql("OPTIMIZE {} ZORDER BY (number)"), vacuum, append),
    *(sql(f"UPDATE {{}} SET count = 5 WHERE key = {FOREIGN}"), sql(f"DELETE FROM {{}} WHERE key = {FOREIGN}"), vacuum),
    *(sql("ALTER TABLE {} ADD COLUMNS (note STRING)"), sql("COMMENT ON TABLE {} IS 'checked'"), append),
    *(clean_up_the_log, compact),
)
OF_SOURCE: tuple[Change, ...] = (compact, sql("OPTIMIZE {} ZORDER BY (number)"), vacuum)


class CountedJob(Job):
    """Its input has versions that are no batches."""

    batches = 0

    @property
    def fed(self) -> int:
        return self.batches

    def feed(self, batches: int, rows: Callable[[int], pd.DataFrame] = rows_of) -> Job:
        for _ in range(batches):
            table = pa.Table.from_pandas(rows(self.batches), schema=INPUT, preserve_index=False)
            write_deltalake(str(self.input), table, mode="append")
            self.batches += 1
        return self

    def output(self, table: str = "output") -> pd.DataFrame:
        rows = super().output(table)
        return rows[rows["key"] != FOREIGN].drop(columns="note", errors="ignore").reset_index(drop=True)


@pytest.fixture(params=[V2, ONE_JOB, MERGING, TWO_OUTPUTS])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    made = variant(tmp_path, request.param)
    return CountedJob(
        tmp_path, writer=made.writer, log=made.log, merges=made.merges, has_two_outputs=made.has_two_outputs
    )


def test_a_job_continues_after_each_change_of_its_sinks_by_others(job: Job, delta_session: SparkSession) -> None:
    job.feed(2).run(delta_session)
    for change in OF_SINK:
        for table in ("output", "again") if job.has_two_outputs else ("output",):
            change(delta_session, str(job.folder / table))
        job.feed(1).run(delta_session)
        job.assert_right(job.fed)
    job.assert_right(job.fed, delta_session)
    clean(open_storage(str(job.root)), job.folder / "scratch")


def test_a_job_reads_each_row_once_whatever_maintains_its_input(job: Job, delta_session: SparkSession) -> None:
    job.feed(2).run(delta_session)
    for change in OF_SOURCE:
        job.feed(1)
        change(delta_session, str(job.input))
        job.feed(1).run(delta_session)
        job.assert_right(job.fed)
