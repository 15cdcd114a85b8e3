"""Jobs with several outputs on real Spark and Delta: all tables and the state hold the same attempt of each batch."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from statekeeper.pipelines.batch.progress import Outcome
from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.sinks.delta_writer import Writer
from statekeeper.pipelines.sinks.sink import Attempt, DeltaSink, NoSink
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.base.errors import SinkChanged, SinkConflict, WrongResult
from statekeeper.statestore.maintenance.verbs.contract import prepare
from statekeeper.statestore.maintenance.verbs.optimize import Optimize
from statekeeper.statestore.storage import open_storage
from tests.support import verbs
from tests.support.adding_operator import ROWS, rows_of, totals_of
from tests.support.sink_tables import in_days
from tests.support.streams import Stream

STATE = pa.schema([("count", pa.int64()), ("total", pa.int64()), ("stamp", pa.string())])
FACTS = pa.schema([("key", pa.int64()), *STATE])
ALERTS = pa.schema([pa.field("key", pa.int64()), pa.field("stamp", pa.string(), nullable=False)])
BATCHES = [rows_of((1, 10), (2, 20)), rows_of((1, 1), (3, 3)), rows_of((2, 7))]
TOTALS = [{1: 10, 2: 20}, {1: 11, 3: 3}, {2: 27}]
LARGE = 10
"""Keys with a larger total are in the alerts."""


def counting(stamp: Callable[[], str]) -> StatefulOperator:
    """Return an operator that stamps all its results: the stamps show which results are of one attempt."""

    def update(rows: pa.Table, state: pa.Table) -> Update:
        mark = stamp()
        totals = totals_of(rows, state)
        facts = [{"key": key, "count": count, "total": total, "stamp": mark} for key, (count, total) in totals.items()]
        table = pa.Table.from_pylist(facts, FACTS)
        alerts = [row for row in facts if row["total"] > LARGE]
        large = pa.Table.from_pylist(alerts, FACTS).select(ALERTS.names) if alerts else None
        return Update({"facts": table, "alerts": large}, table)

    return StatefulOperator(["key"], ["at"], state=STATE, output={"facts": FACTS, "alerts": ALERTS}, update=update)


DETERMINISTIC = counting(lambda: "always")
RANDOM = counting(lambda: str(uuid.uuid4()))


@dataclass(frozen=True)
class Failing(DeltaSink):
    """Does something before it writes a batch. If the second sink raises, the driver has died between the two."""

    before: Callable[[], object] = field(default=lambda: None)
    batch: int = 1

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        if attempt.batch == self.batch:
            self.before()
        super().write(rows, attempt)

    def commit_files(self, plan: Any, files: Any, attempt: Attempt) -> None:
        if attempt.batch == self.batch:
            self.before()
        super().commit_files(plan, files, attempt)


def die() -> None:
    raise ConnectionError("the driver dies here")


class Job:
    """The job on its stream, with a table for each output."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.alerts = str(stream.folder / "alerts")
        self.fed = 0

    def feed(self, batches: int = 1) -> Job:
        for _ in range(batches):
            self.stream.append(BATCHES[self.fed])
            self.fed += 1
        return self

    def sinks(self, writers: tuple[str, str], failing: str = "", before: Callable[[], object] = die) -> dict[str, Any]:
        paths = {"facts": self.stream.facts, "alerts": self.alerts}
        return {
            name: Failing(path, writer=writer, before=before) if name == failing else DeltaSink(path, writer=writer)
            for (name, path), writer in zip(paths.items(), writers, strict=True)
        }

    def attempts(self, path: str) -> dict[int, str]:
        """Batch -> its attempt, as the table names it. Each batch is one commit."""
        commits = [commit for commit in DeltaTable(path).history() if "userMetadata" in commit]
        notes = [json.loads(commit["userMetadata"])["statekeeper"] for commit in commits]
        assert len({note["batch"] for note in notes}) == len(notes)
        return {note["batch"]: note["attempt"] for note in notes}

    def assert_right(self) -> None:
        """Both tables hold each batch once, of the same attempt, with the same stamps as the state."""
        facts, alerts = (DeltaTable(path).to_pyarrow_table().to_pylist() for path in (self.stream.facts, self.alerts))
        expected = sorted(pair for totals in TOTALS[: self.fed] for pair in totals.items())
        assert sorted((row["key"], row["total"]) for row in facts) == expected
        assert sorted(row["key"] for row in alerts) == [key for key, total in expected if total > LARGE]
        assert {(row["key"], row["stamp"]) for row in alerts} <= {(row["key"], row["stamp"]) for row in facts}
        newest = {row["key"]: row for row in sorted(facts, key=lambda row: row["count"])}
        state = {key: (row["count"], row["total"], row["stamp"]) for key, row in newest.items()}
        assert {key: values for (key,), values in self.stream.state().items()} == state
        assert self.attempts(self.stream.facts) == self.attempts(self.alerts)
        assert self.stream.committed() == list(range(self.fed))


@pytest.fixture
def job(delta_session, tmp_path):
    return Job(Stream(delta_session, tmp_path, ROWS))


pytestmark = pytest.mark.spark
ROWS_ROWS, FILES_FILES = ("spark", "spark"), ("tasks", "tasks")
ROWS_FILES, FILES_ROWS = ("spark", "tasks"), ("tasks", "spark")
SECOND = {ROWS_ROWS: "facts", FILES_FILES: "facts", ROWS_FILES: "alerts", FILES_ROWS: "facts"}
"""Writers of facts and alerts -> the output that is written second."""


@pytest.mark.parametrize(
    "writers",
    [ROWS_ROWS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (FILES_FILES, ROWS_FILES, FILES_ROWS))],
)
def test_a_driver_that_dies_between_two_sinks_is_completed_with_the_same_attempt(job, writers):
    # Only rows that are computed again need a deterministic function.
    operator = DETERMINISTIC if writers == ROWS_ROWS else RANDOM
    with pytest.raises(ConnectionError):
        job.feed(2).stream.run(operator, sink=job.sinks(writers, SECOND[writers]))
    assert job.stream.committed() == [0]
    [report] = job.stream.run(operator, sink=job.sinks(writers))
    assert report.outcome is Outcome.TAKEN_FROM_SINK
    assert "got attempt" in report.notes[0]
    job.assert_right()
    if writers != ROWS_ROWS:
        job.feed().stream.run(operator, sink=job.sinks(writers))
        job.assert_right()


@pytest.mark.parametrize("writers", [ROWS_ROWS, pytest.param(FILES_FILES, marks=pytest.mark.slow)])
def test_a_release_that_chooses_its_writers_completes_the_batch_of_one_that_named_them(job, writers):
    with pytest.raises(ConnectionError):
        job.feed(2).stream.run(DETERMINISTIC, sink=job.sinks(writers, "facts"))
    chosen = ("auto", "auto")
    [report] = job.stream.run(DETERMINISTIC, sink=job.sinks(chosen))
    assert report.outcome is Outcome.TAKEN_FROM_SINK
    assert report.writers == {}, "no batch was computed for these tables"
    [report] = job.feed().stream.run(DETERMINISTIC, sink=job.sinks(chosen))
    assert {used.writer for used in report.writers.values()} == {Writer.TASKS}
    job.assert_right()


@pytest.mark.slow
@pytest.mark.parametrize("log", [LogLayout.BATCH, pytest.param(LogLayout.STORES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("writers", [ROWS_ROWS, FILES_FILES])
def test_a_job_that_dies_before_its_first_sink_computes_a_new_attempt(job, writers, log):
    job.stream.log = log
    with pytest.raises(ConnectionError):
        job.feed(2).stream.run(RANDOM, sink=job.sinks(writers, "alerts"))
    [report] = job.stream.run(RANDOM, sink=job.sinks(writers))
    assert report.outcome is Outcome.COMPUTED
    job.assert_right()


@pytest.mark.slow
def test_rows_of_a_function_that_is_not_deterministic_are_not_mixed_and_can_be_given_up(job):
    with pytest.raises(ConnectionError):
        job.feed(2).stream.run(RANDOM, sink=job.sinks(ROWS_ROWS, "facts"))
    with pytest.raises(SinkConflict, match="output 'facts' of batch 1 was computed again, and its rows are not those"):
        job.stream.run(RANDOM, sink=job.sinks(ROWS_ROWS))
    assert set(job.attempts(job.stream.facts)) == {0}
    job.stream.run(RANDOM, sink={**job.sinks(ROWS_ROWS), "facts": NoSink()})
    assert job.stream.committed() == [0, 1]
    job.feed()
    with pytest.raises(SinkChanged, match="continue_at_batch=2"):
        job.stream.run(RANDOM, sink=job.sinks(ROWS_ROWS))
    accepting = {**job.sinks(ROWS_ROWS), "facts": DeltaSink(job.stream.facts, continue_at_batch=2)}
    job.stream.run(RANDOM, sink=accepting)
    assert set(job.attempts(job.stream.facts)) == {0, 2}
    assert job.stream.committed() == [0, 1, 2]


@pytest.mark.slow
def test_rows_that_are_lost_between_two_sinks_are_computed_again_by_the_same_driver(job, delta_session):
    def lose_blocks():
        if not lost:
            lost.append(True)
            for rdd in delta_session.sparkContext._jsc.getPersistentRDDs().values():
                rdd.unpersist(True)

    lost: list[bool] = []
    reports = job.feed(2).stream.run(DETERMINISTIC, sink=job.sinks(ROWS_ROWS, "facts", lose_blocks))
    assert [report.outcome for report in reports] == [Outcome.COMPUTED] * 2
    assert "got attempt" in reports[1].notes[0]
    job.assert_right()


@pytest.mark.slow
def test_data_files_that_were_vacuumed_stop_the_query(job):
    with pytest.raises(ConnectionError):
        job.feed(2).stream.run(RANDOM, sink=job.sinks(FILES_FILES, "facts"))
    table = DeltaTable(job.stream.facts)
    assert table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    with pytest.raises(SinkConflict, match=r"data files of output 'facts' .* do not exist any more"):
        job.stream.run(RANDOM, sink=job.sinks(FILES_FILES))
    assert job.stream.committed() == [0]


@pytest.mark.slow
def test_data_files_of_an_interrupted_batch_survive_optimize_and_complete_it_weeks_later(job, tmp_path):
    with pytest.raises(ConnectionError):
        job.feed(2).stream.run(RANDOM, sink=job.sinks(FILES_FILES, "facts"))
    table = open_storage(job.stream.facts)
    names_of_files = {entry.path for entry in table.list("") if entry.path.endswith(".parquet")}
    run = verbs.a_run(open_storage(str(job.stream.root)), by=in_days(90), scratch=tmp_path / "scratch", other=table)
    prepared = prepare(Optimize(destination=job.stream.facts), run)
    assert prepared.report().record["rules"]["interrupted"]["files"] > 0
    assert not prepared.may_start
    assert {entry.path for entry in table.list("") if entry.path.endswith(".parquet")} == names_of_files
    job.stream.run(RANDOM, sink=job.sinks(FILES_FILES))
    job.assert_right()


@pytest.mark.slow
def test_an_output_can_be_dropped_merged_or_extended(job):
    facts = DeltaSink(job.stream.facts, merge_on=["key"], add_columns=True, partition_by=["count"])
    job.feed(3).stream.run(RANDOM, sink={"facts": facts, "alerts": NoSink()})
    rows = DeltaTable(job.stream.facts).to_pyarrow_table().to_pylist()
    assert {(row["key"],): (row["count"], row["total"], row["stamp"]) for row in rows} == job.stream.state()
    assert len(rows) == 3


@pytest.mark.slow
def test_two_rows_of_a_merge_key_stop_the_batch_before_the_first_sink_is_written(job):
    def twice(rows, state):
        update = DETERMINISTIC.update(rows, state)
        facts = update.output["facts"]
        return replace(update, output={**update.output, "facts": pa.concat_tables([facts, facts])})

    sinks = {**job.sinks(ROWS_ROWS), "facts": DeltaSink(job.stream.facts, merge_on=["key"])}
    with pytest.raises(WrongResult, match="the output of batch 0 has 2 rows with the merge key"):
        job.feed().stream.run(replace(DETERMINISTIC, update=twice), sink=sinks)
    assert not any(DeltaTable.is_deltatable(path) for path in (job.stream.facts, job.alerts))
    job.stream.run(DETERMINISTIC, sink=sinks)
    job.assert_right()


@pytest.mark.slow
def test_a_job_with_one_output_gets_a_second_one(job):
    def only_facts(rows, state):
        update = RANDOM.update(rows, state)
        return replace(update, output=update.output["facts"])

    job.feed().stream.run(replace(RANDOM, output=FACTS, update=only_facts), sink=DeltaSink(job.stream.facts))
    job.feed()
    with pytest.raises(SinkChanged, match=r"alerts: there is no Delta table.*continue_at_batch=1"):
        job.stream.run(RANDOM, sink=job.sinks(FILES_FILES))
    accepting = {**job.sinks(FILES_FILES), "alerts": DeltaSink(job.alerts, continue_at_batch=1)}
    job.stream.run(RANDOM, sink=accepting)
    job.feed().stream.run(RANDOM, sink=job.sinks(FILES_FILES))
    assert sorted(job.attempts(job.stream.facts)) == [0, 1, 2]
    assert sorted(job.attempts(job.alerts)) == [1, 2]
    assert sorted(row["key"] for row in DeltaTable(job.alerts).to_pyarrow_table().to_pylist()) == [1, 2]
