"""A job with windows on real Spark: its state is sorted by the ends of the windows, and each command leaves it right."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines import LogLayout, StatefulOperator, planned_changes
from statekeeper.pipelines.batch.progress import BatchReport, Outcome, Phase
from statekeeper.pipelines.operator.times import TIMESTAMP
from statekeeper.pipelines.operators import windows, with_windows
from statekeeper.pipelines.startup.older_roots import with_separate_timers
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.storage import open_storage
from tests.support.streams import Seen, Stream
from tests.support.timed_query import at
from tests.support.twins import clean, statekeeper

pytestmark = pytest.mark.spark

ROWS = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("at", TIMESTAMP)])
OPERATOR = windows(ROWS, ["key"], "at", {"n": ("count", None), "total": ("sum", "value")}, allowed_lateness="5m")
BATCHES_OF_A_STEP = 2
CLOSING = 2
"""A batch that closes windows."""


@pytest.fixture
def job(delta_session: SparkSession, tmp_path: Path) -> Stream:
    return Stream(delta_session, tmp_path / "job", ROWS)


@pytest.fixture
def twin(delta_session: SparkSession, tmp_path: Path) -> Stream:
    """The same job, with nothing done to it."""
    return Stream(delta_session, tmp_path / "twin", ROWS)


def fed(streams: list[Stream], step: int) -> None:
    for batch in range(step * BATCHES_OF_A_STEP, (step + 1) * BATCHES_OF_A_STEP):
        random = Random(batch)
        minutes = [max(0, batch * 8 + random.randrange(-12, 8)) for _ in range(40)]
        rows = {
            "key": [random.randrange(6) for _ in minutes],
            "value": [random.randrange(9) for _ in minutes],
            "at": [at(minute) for minute in minutes],
        }
        for stream in streams:
            stream.append(rows)


def run(stream: Stream, operator: StatefulOperator = OPERATOR, seen: Seen | None = None) -> list[BatchReport]:
    return stream.run(operator, rows=with_windows(stream.rows(), "at", "10 minutes"), seen=seen)


def stores_of(stream: Stream) -> list[str]:
    return [store.name for store in read_binding(open_storage(str(stream.root)))[0].stores]


def test_windows_close_once_across_snapshots_deletions_a_rescale_and_a_new_host(
    job: Stream, twin: Stream, tmp_path: Path
) -> None:
    root, scratch = str(job.root), ("--scratch", str(tmp_path / "scratch"))
    for step, partitions in enumerate((5, 3)):
        fed([job, twin], step)
        run(job)
        statekeeper("snapshot", root, "--at-head", *scratch)
        statekeeper("gc", root, "--retain", "1", "--grace", "0s", "--mode", "full", "--apply", *scratch)
        statekeeper("rescale", root, "--partitions", str(partitions), "--apply", "--confirm-stopped", *scratch)
        shutil.rmtree(job.folder / "local")
    fed([job, twin], 2)
    run(job)
    run(twin)
    assert job.output() == twin.output() != []
    assert job.state() == twin.state() != {}
    assert stores_of(job) == ["default"]
    clean(open_storage(root), tmp_path / "scratch")


@pytest.mark.parametrize("log", [LogLayout.BATCH, pytest.param(LogLayout.STORES, marks=pytest.mark.slow)])
def test_windows_close_once_when_the_batch_that_closes_them_crashes_in_each_phase(
    job: Stream, twin: Stream, log: LogLayout
) -> None:
    job.log = log
    for step in range(2):
        fed([job, twin], step)
    assert run(twin)[CLOSING].fired_timers > 0
    left = [Phase.OFFSETS_WRITTEN, Phase.COMPUTED, Phase.PENDING_WRITTEN, Phase.SINK_WRITTEN]

    def crash(batch: int, phase: Phase) -> None:
        if batch == CLOSING and left and phase is left[0]:
            left.pop(0)
            raise ConnectionError("the driver dies here")

    for _ in range(len(left)):
        with pytest.raises(ConnectionError):
            run(job, seen=Seen(crash))
    report, *_ = run(job)
    assert left == []
    assert report.outcome is Outcome.TAKEN_FROM_SINK
    assert report.batch == CLOSING
    assert job.output() == twin.output() != []
    assert job.state() == twin.state() != {}


def test_a_root_of_an_earlier_release_keeps_its_stores_of_timers(job: Stream, twin: Stream) -> None:
    fed([job, twin], 0)
    run(job, with_separate_timers(OPERATOR, "window_end"))
    assert planned_changes(OPERATOR, str(job.root)) == ()
    fed([job, twin], 1)
    run(job)
    run(twin)
    assert stores_of(job) == ["default", "timers", "timers_due"]
    assert job.output() == twin.output() != []
    assert {key[1:]: values for key, values in twin.state().items()} == job.state() != {}


def test_a_row_of_a_window_is_not_upserted_and_its_columns_can_change(job: Stream, tmp_path: Path) -> None:
    fed([job], 0)
    run(job)
    row = {"due_at": ["2026-01-01T00:10:00.000Z"], "key": [1], "window_start": [at(0)], "window_end": [at(10)]}
    pq.write_table(pa.table({**row, "n": [1], "total": [1]}), tmp_path / "rows.parquet")
    upsert = ("edit", str(job.root), "--operator", "0", "--upsert", str(tmp_path / "rows.parquet"))
    said = " ".join(statekeeper(*upsert, exit_code=RefusedAsUnsafe.exit_code).split())
    assert "store default have keys that start with their time" in said
    (tmp_path / "changes.toml").write_text("[stores.default]\nrename = { total = 'sum' }\n")
    statekeeper("evolve", str(job.root), "--schema", str(tmp_path / "changes.toml"), "--apply", "--confirm-stopped")
    [store] = read_binding(open_storage(str(job.root)))[0].stores
    assert '"sum"' in store.value_json
