"""A Delta table that was deleted, replaced or rolled back is detected before the next batch, on real Delta."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from statekeeper.pipelines.batch.progress import Outcome, Phase
from statekeeper.pipelines.sinks.sink import Attempt, DeltaSink
from statekeeper.statestore.base.errors import SinkChanged, UnsafeSink
from statekeeper.statestore.root.attempts import SinkPosition
from tests.support.adding_operator import ROWS, adding, rows_of
from tests.support.streams import Seen, Stream

QUERY = "5e9d3a52-5f5d-4b51-8d6e-0d6a5c1f7f00"
NO_TABLE = SinkPosition("", -1)
RETENTION = "delta.setTransactionRetentionDuration"


def write(table: Path, batch: int) -> None:
    """Write a batch into the table as Spark does."""
    attempt = Attempt(QUERY, "root", batch, f"attempt {batch}")
    properties = CommitProperties(
        {"userMetadata": json.dumps({"statekeeper": vars(attempt)})},
        app_transactions=[Transaction(f"statekeeper-{QUERY}", batch)],
    )
    write_deltalake(str(table), pa.table({"batch": [batch]}), mode="append", commit_properties=properties)


@pytest.fixture
def table(tmp_path):
    table = tmp_path / "table"
    write(table, 0)
    write(table, 1)
    return table


def position(table: Path) -> SinkPosition:
    found = DeltaTable(str(table))
    return SinkPosition(str(found.metadata().id), found.version())


def sql(statement: str) -> Callable[[SparkSession, Path], None]:
    return lambda session, table: session.sql(statement.format(table=f"delta.`{table}`")).collect() and None


def deleted(session: SparkSession, table: Path) -> None:
    shutil.rmtree(table)


def copied_from_an_older_backup(session: SparkSession, table: Path) -> None:
    (table / "_delta_log" / "00000000000000000001.json").unlink()


def made_anew(session: SparkSession, table: Path) -> None:
    shutil.rmtree(table)
    write(table, 1)


def restored(session: SparkSession, table: Path) -> None:
    DeltaTable(str(table)).restore(0)


CHANGES = {
    "deleted": (deleted, "there is no Delta table: it was deleted or moved"),
    "older": (copied_from_an_older_backup, "the table contains no batch of this query after 0"),
    "new": (made_anew, "the table was replaced: its id is .* instead of"),
    "restored": (restored, "RESTORE in version 2 replaced rows"),
    "replaced": (
        sql("CREATE OR REPLACE TABLE {table} USING delta AS SELECT 7L AS batch"),
        "the table was replaced: its id is .* instead of",
    ),
    "overwritten": (sql("INSERT OVERWRITE {table} VALUES (7)"), "WRITE in version 2 replaced rows"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_table_without_rows_of_earlier_batches_stops_the_query_until_it_is_accepted(delta_session, table, what):
    change, said = CHANGES[what]
    before = position(table)
    assert DeltaSink(str(table)).look(QUERY, 2, before).position == before
    change(delta_session, table)
    with pytest.raises(SinkChanged, match=said) as changed:
        DeltaSink(str(table)).look(QUERY, 2, before)
    assert "continue_at_batch=2" in str(changed.value)
    accepting = DeltaSink(str(table), continue_at_batch=2)
    look = accepting.look(QUERY, 2, before)
    assert look.held is None
    write(table, 2)
    assert accepting.look(QUERY, 3, look.position).held is None, "what was accepted is no change for the next batch"


def test_changes_by_the_owner_of_a_table_are_no_replacement(delta_session, table):
    before = position(table)
    sql("DELETE FROM {table} WHERE batch = 0")(delta_session, table)
    write_deltalake(str(table), pa.table({"batch": [9]}), mode="append")
    write_deltalake(str(table), pa.table({"batch": [9]}), mode="overwrite", predicate="batch = 9")
    DeltaTable(str(table)).optimize.compact()
    look = DeltaSink(str(table)).look(QUERY, 2, before)
    assert look.held is None
    assert look.position.version > before.version


def test_a_root_of_an_earlier_release_has_no_recorded_table_version(table):
    assert DeltaSink(str(table)).look(QUERY, 1, None).held == "attempt 1"
    assert DeltaSink(str(table)).look(QUERY, 2, None).held is None
    with pytest.raises(SinkChanged, match="no batch of this query after 1"):
        DeltaSink(str(table)).look(QUERY, 3, None)


def test_a_table_with_transaction_retention_is_rejected(table):
    DeltaTable(str(table)).alter.set_table_properties({RETENTION: "interval 1 hours"})
    with pytest.raises(UnsafeSink, match=r"interval 1 hours: it loses the record .*UNSET TBLPROPERTIES"):
        DeltaSink(str(table)).look(QUERY, 2, position(table))


@pytest.mark.spark
def test_a_sink_changed_between_two_runs_of_a_query_is_detected(delta_session, tmp_path):
    def die(batch: int, phase: Phase) -> None:
        if (batch, phase) == (1, Phase.SINK_WRITTEN):
            raise ConnectionError("the driver dies here")

    stream = Stream(delta_session, tmp_path, ROWS)
    stream.append(rows_of((1, 10)))
    stream.append(rows_of((1, 1)))
    with pytest.raises(ConnectionError):
        stream.run(adding(), seen=Seen(die))
    # Delta's RESTORE takes rows back and keeps the transactions: the table says that it holds batch 1.
    sql("RESTORE TABLE {table} TO VERSION AS OF 0")(delta_session, Path(stream.facts))
    with pytest.raises(SinkChanged, match="RESTORE in version 2 replaced rows"):
        stream.run(adding())
    assert stream.committed() == [0]
    reports = stream.run(adding(), sink=DeltaSink(stream.facts, continue_at_batch=1))
    assert [report.outcome for report in reports] == [Outcome.TAKEN_FROM_SINK]
    stream.append(rows_of((1, 5)))
    stream.run(adding())
    assert stream.state() == {(1,): (3, 16)}


@pytest.mark.spark
def test_a_batch_is_not_written_twice_into_a_table_with_transaction_retention(delta_session, tmp_path):
    stream = Stream(delta_session, tmp_path, ROWS)
    stream.append(rows_of((1, 10)))
    DeltaTable.create(stream.facts, adding().output, configuration={RETENTION: "interval 0 seconds"})
    with pytest.raises(UnsafeSink, match=RETENTION):
        stream.run(adding())
    assert (stream.committed(), stream.output()) == ([], [])
