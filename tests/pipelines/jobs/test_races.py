"""Races between attempts, twins, zombies and drivers, and roots of another time line.

Each test forces its race. No row may be lost or duplicated, and a rejected writer gets a typed error with the next step.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from statekeeper.pipelines.batch.driver import BatchDriver
from statekeeper.pipelines.batch.progress import Outcome, Phase
from statekeeper.pipelines.sinks.sink import AtLeastOnceSink
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.pipelines.task.reports import TaskReport
from statekeeper.statestore.base.errors import BaseIdMismatch, BatchConflict, ForeignBlock, PartitionMissing
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.store.engine.scratch import user_folder
from tests.support import tasks
from tests.support.counting import (
    INPUT,
    MERGING,
    ONE_JOB,
    TWO_OUTPUTS,
    V1,
    V2,
    Job,
    Watching,
    conf,
    in_a_process,
    once,
    rows_of,
    variant,
)
from tests.support.spark_clusters import two_hosts

pytestmark = pytest.mark.spark

STRANGER = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(
    params=[V2, *(pytest.param(name, marks=pytest.mark.slow) for name in (V1, ONE_JOB, MERGING, TWO_OUTPUTS))]
)
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return variant(tmp_path, request.param)


SLOW_MERGING, SLOW_TWO = (pytest.param(name, marks=pytest.mark.slow) for name in (MERGING, TWO_OUTPUTS))

ONLY_ROWS = pytest.mark.parametrize(
    "job", [V2, pytest.param(V1, marks=pytest.mark.slow), SLOW_MERGING, SLOW_TWO], indirect=True
)
"""Only an output that Spark holds as rows has blocks."""

ONLY_V2 = pytest.mark.parametrize("job", [V2, ONE_JOB, SLOW_MERGING, SLOW_TWO], indirect=True)
"""The job stamps its state with a new value each time. In structure V1, the changelogs of a second driver replace those of
the first driver, and a load then rejects the committed versions."""


def changelogs(job: Job, version: int) -> list[Path]:
    found = (job.root / "state" / "0").glob("*/*.changelog")
    return [path for path in found if re.fullmatch(rf"{version}(_[^.]*)?\.changelog", path.name)]


def assert_attempts(job: Job, version: int, changelogs_in_v2: int) -> None:
    """Assert the number of attempts. In structure V1 an attempt replaces the files of another. With batch logs an attempt
    that was not chosen leaves no file."""
    if job.log is LogLayout.BATCH:
        return
    expected = job.partitions if job.structure is Structure.V1 else changelogs_in_v2
    assert len(changelogs(job, version)) == expected


def left_by(job: Job, batch: int) -> list[str]:
    """Return the changelogs and batch logs of the attempts of a batch."""
    logs = (job.root / "_statekeeper" / "log").glob(f"{batch + 1}-*")
    return sorted(path.name for path in (*changelogs(job, batch + 1), *logs))


def lose_blocks(session: SparkSession) -> None:
    """Lose the materialized blocks, as after the death of all executors."""
    for rdd in session.sparkContext._jsc.getPersistentRDDs().values():
        rdd.unpersist(True)


# -- attempts of tasks -------------------------------------------------------------------------------------------------


def test_an_attempt_that_fails_after_its_commit_is_repeated_and_one_version_is_selected(
    job: Job, session: SparkSession
) -> None:
    job.driver = tasks.FailsAfterCommit
    job.feed(3).run(session)
    assert_attempts(job, 2, 3)  # one of batch 1 was to commit in vain
    job.assert_right(3, session)


def test_a_report_with_a_wrong_base_fails_the_batch(job: Job, session: SparkSession) -> None:
    class BuildsElsewhere(BatchDriver):
        def _checked(self, reports: Sequence[TaskReport], *rest: object) -> list[TaskReport]:
            [partition, *others] = reports[0].partitions
            store = replace(partition.stores[0], base=VersionId(7, STRANGER))
            first = replace(reports[0], partitions=(replace(partition, stores=(store,)), *others))
            return super()._checked([first, *reports[1:]], *rest)

    job.driver = BuildsElsewhere
    with pytest.raises(BaseIdMismatch, match=r"started from version 7 \("):
        job.feed(1).run(session)
    job.driver = BatchDriver
    job.run(session)
    job.assert_right(1)


def test_a_partition_that_reports_no_commit_fails_the_batch(job: Job, session: SparkSession) -> None:
    class Deaf(BatchDriver):
        def _checked(self, reports: Sequence[TaskReport], *rest: object) -> list[TaskReport]:
            return super()._checked(reports[1:], *rest)

    job.driver = Deaf
    with pytest.raises(PartitionMissing, match="1 of 2 partitions"):
        job.feed(1).run(session)
    job.driver = BatchDriver
    job.run(session)
    job.assert_right(1)


def test_a_zombie_that_commits_after_its_successor_is_ignored(job: Job, session: SparkSession) -> None:
    job.feed(2).run(session)
    zombies = [job.store(1, partition, job.folder / "local-of-a-zombie") for partition in range(job.partitions)]
    job.feed(1).run(session)
    for zombie in zombies:
        keys, _ = zip(*zombie.scan(), strict=True)
        zombie.delete(pa.array(keys, pa.large_binary()))
        zombie.commit()
    assert_attempts(job, 3, 2 * job.partitions)
    job.assert_right(3, session)
    job.feed(2).run(session)
    job.assert_right(5, session)


@pytest.mark.slow
def test_a_zombie_on_a_workers_own_host_is_ignored_too(job: Job, session: SparkSession) -> None:
    job.feed(2).run(session)
    (of_root,) = (path for path in user_folder(job.folder / "local").iterdir() if path.is_dir())
    zombies = [job.store(1, partition, of_root / f"0-{partition}") for partition in range(job.partitions)]
    job.feed(1).run(session)
    for zombie in zombies:
        keys, _ = zip(*zombie.scan(), strict=True)
        zombie.delete(pa.array(keys, pa.large_binary()))
        zombie.commit()
    job.feed(1).run(session)
    job.assert_right(4, session)


# -- speculation -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_of_two_speculative_twins_is_in_state_and_output(job: Job, tmp_path: Path) -> None:
    # In structure V1, twins write the same file. With other changes, the slower one makes its version unloadable.
    job.is_alike = job.structure is Structure.V1
    job.feed(4)
    speculation = conf(
        speculation="true",
        speculation_efficiency_enabled="false",
        speculation_multiplier="1.01",
        speculation_quantile="0.1",
        speculation_interval="50ms",
        executor_memory="1g",
        executor_cores="2",
    )
    with two_hosts(tmp_path, 7177) as master:
        options = ["--master", master, "--driver", "HasTwins", "--read-twice", "--local-folder", "local", *speculation]
        reports, warnings = in_a_process(job, *options)
    twins = [len(list(job.folder.glob(f"root.twins/{batch}/committed-*"))) for batch in range(4)]
    again = sum(report.attempts - 1 for report in reports)
    print(f"twins that committed, by batch: {twins}; batches computed anew for a foreign block: {again}")
    assert sum(count == 2 for count in twins) >= 2, twins
    if job.log is LogLayout.STORES and job.structure is Structure.V2:
        for batch, count in enumerate(twins):
            assert len(list((job.root / "state" / "0" / "0").glob(f"{batch + 1}_*.changelog"))) >= count
    assert len(warnings) == again
    job.assert_right(4)


# -- the materialised output -------------------------------------------------------------------------------------------


@ONLY_ROWS
def test_a_block_lost_before_the_sink_causes_a_new_attempt_in_the_same_call(job: Job, session: SparkSession) -> None:
    observer = once(1, Phase.SINK_WRITING, lambda: lose_blocks(session))
    reports = job.feed(3).run(session, observer)
    assert [report.attempts for report in reports] == [1, 2, 1]
    assert_attempts(job, 2, 2 * job.partitions)
    assert "the batch is computed again" in job.warnings[0]
    job.assert_right(3, session)


@ONLY_ROWS
def test_rows_of_an_unselected_attempt_cause_a_new_attempt(job: Job, session: SparkSession) -> None:
    job.driver = tasks.choosing_others(1)
    reports = job.feed(2).run(session)
    assert [report.attempts for report in reports] == [2, 1]
    job.assert_right(2, session)


@ONLY_ROWS
def test_three_attempts_with_foreign_rows_fail_the_batch_and_a_restart_runs_it(job: Job, session: SparkSession) -> None:
    job.driver = tasks.choosing_others(3)
    with pytest.raises(
        ForeignBlock, match=r"the driver failed 3 times to read the output .* -> .*runs the batch again"
    ):
        job.feed(2).run(session)
    assert_attempts(job, 1, 3 * job.partitions)
    assert not DeltaTable.is_deltatable(str(job.folder / "output"))
    job.driver = BatchDriver
    job.run(session)
    job.assert_right(2)


# -- drivers -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # The kill test in CI kills a driver there, too.
def test_a_driver_killed_between_sink_and_commit_log_adopts_the_ids_of_the_attempt_in_the_sink(
    job: Job, session: SparkSession
) -> None:
    job.feed(4)
    in_a_process(job, "--kill-at", "2", "SINK_WRITTEN", code=-signal.SIGKILL)
    assert job.committed() == 2
    computed = left_by(job, 2)
    assert computed
    first, *later = job.run(session)
    assert (first.batch, first.outcome, first.attempts, first.partitions) == (2, Outcome.TAKEN_FROM_SINK, 0, ())
    assert [report.outcome for report in later] == [Outcome.COMPUTED]
    assert left_by(job, 2) == computed, "batch 2 was computed again"
    for pending in (job.root / "_statekeeper" / "pending").glob("2-*.json"):
        assert set(job.ids(2)) == set(pd.read_json(pending, typ="series")["ids"]["0"])
    job.assert_right(4, session)


@dataclass
class TwoDrivers:
    """Two drivers that run the same batch of the same query over one root, side by side."""

    job: Job
    session: SparkSession
    batch: int

    def race(self, *meet_at: Phase) -> list[BaseException | Outcome]:
        """Run both drivers, and return their results. The first waits at its phase until the second enters its own."""
        meeting = threading.Barrier(2)
        for batch in range(self.batch):
            self._run(batch, Watching())
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda phase: self._raced(phase, meeting), meet_at))

    def _raced(self, meet_at: Phase, meeting: threading.Barrier) -> BaseException | Outcome:
        try:
            return self._run(self.batch, Watching(lambda _, phase: meeting.wait(120) if phase is meet_at else None))
        except Exception as error:
            return error

    def _run(self, batch: int, observer: Watching) -> Outcome:
        # Spark gives each query a session of its own.
        rows = self.session.newSession().createDataFrame(rows_of(batch), "key long, number long")
        self.job.run_one(self.job.batch_driver(INPUT, observer), rows, batch, query_id=STRANGER)
        return observer.reports[-1].outcome


@pytest.mark.parametrize(
    ("batch", "first", "second"),
    [
        pytest.param(0, Phase.SINK_WRITING, Phase.SINK_WRITING, id="both make the table"),
        pytest.param(1, Phase.SINK_WRITING, Phase.SINK_WRITING, id="both append at once"),
        pytest.param(1, Phase.SINK_WRITTEN, Phase.SINK_WRITING, id="the second write is skipped"),
        pytest.param(1, Phase.COMMITTED, Phase.SINK_WRITING, id="the second comes when all is done"),
    ],
)
@ONLY_V2
def test_one_of_two_drivers_writes_the_sink_and_the_other_adopts_its_ids_with_a_warning(
    job: Job, session: SparkSession, batch: int, first: Phase, second: Phase
) -> None:
    ended = TwoDrivers(job, session, batch).race(first, second)
    assert ended == [Outcome.COMPUTED] * 2, ended
    (warning,) = job.warnings
    assert "another driver's attempt" in warning
    assert "two drivers run this query, stop one" in warning
    job.assert_right(batch + 1)


@ONLY_V2
def test_two_drivers_that_create_the_root_at_once_use_the_same_one(job: Job, session: SparkSession) -> None:
    ended = TwoDrivers(job, session, 0).race(Phase.STARTED, Phase.STARTED)
    assert set(ended) <= set(Outcome), ended
    job.assert_right(1)


@pytest.mark.parametrize("job", [V2, ONE_JOB], indirect=True)
def test_one_of_two_drivers_with_an_at_least_once_sink_is_rejected(job: Job, session: SparkSession) -> None:
    written: list[pd.DataFrame] = []
    job.sink = AtLeastOnceSink(lambda rows, _: written.append(rows.toPandas()))
    ended = TwoDrivers(job, session, 0).race(Phase.SINK_WRITTEN, Phase.SINK_WRITTEN)
    assert ended.count(Outcome.COMPUTED) == 1
    (refused,) = (error for error in ended if isinstance(error, BaseException))
    assert isinstance(refused, BatchConflict)
    assert "stop one of the two drivers" in str(refused)
    stamps = set(job.state()["stamp"])
    assert any(stamps <= set(rows["stamp"]) for rows in written)
