"""`optimize` maintains the table of a real job, also while the job runs. A rewind and a RESTORE then still reach each
retained batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.statestore.maintenance.upkeep.sink_tables import Optimized
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.optimize import Optimize
from statekeeper.statestore.storage import open_storage
from tests.support import verbs
from tests.support.counting import MERGING, ONE_JOB, V2, Job, once, variant
from tests.support.sink_tables import in_days
from tests.support.twins import clean, statekeeper

pytestmark = pytest.mark.spark


def optimized(job: Job, *, days: float = 0, stopped: bool = False) -> Optimized:
    table = open_storage(str(job.folder / "output"))
    run = verbs.a_run(
        open_storage(str(job.root)), by=in_days(days), scratch=job.folder / "scratch", other=table, stopped=stopped
    )
    done = perform(prepare(Optimize(destination=table.url), run)).made
    assert done is not None
    return done


def rewound(root: object, batch: int, *options: str) -> dict[str, Any]:
    to = ("--to-batch", str(batch), *options, "--apply", "--confirm-stopped", "--output", "json")
    shown = statekeeper("rewind", str(root), *to)
    return dict(json.loads(shown[shown.index("{") :]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ONE_JOB, V2])
def test_after_optimize_a_job_is_rewound_to_its_oldest_retained_batch_and_continues_exactly_once(
    tmp_path: Path, delta_session: SparkSession, kind: str
) -> None:
    job = variant(tmp_path, kind)
    job.feed(4).run(delta_session)
    # Spark writes the table of one of the jobs.
    assert optimized(job, stopped=True).committed
    # The sink accepts the version of the merge.
    job.feed(3).run(delta_session)
    job.assert_right(7)
    gc = ("gc", str(job.root), "--retain", "3", "--grace", "0s", "--apply")
    statekeeper("snapshot", str(job.root), "--at-head", "--confirm-stopped")
    statekeeper(*gc)
    done = optimized(job, days=30, stopped=True)
    assert sum(one.files for one in done.removals) > 0
    job.assert_right(7, delta_session)
    oldest = min(int(path.name) for path in (job.root / "commits").iterdir() if path.name.isdecimal())
    assert oldest > 0
    table = str(job.folder / "output")
    of_root = rewound(job.root, oldest, "--sink", table)
    rewound(job.checkpoint, oldest, "--query-id", of_root["query_id"])
    delta_session.sql(of_root["sink"]["command"])
    assert job.output()["number"].tolist() == job.expected(oldest + 1)["number"].tolist()
    job.sink = DeltaSink(table, continue_at_batch=oldest + 1, writer=job.writer)
    job.run(delta_session)
    job.assert_right(7)
    job.sink = None
    # The former query, and the batches before the rewind, are known.
    assert optimized(job, days=60, stopped=True).committed
    job.feed(1).run(delta_session)
    job.assert_right(8)
    clean(open_storage(str(job.root)), job.folder / "scratch")


@pytest.mark.parametrize("phase", [Phase.COMPUTED, pytest.param(Phase.SINK_WRITING, marks=pytest.mark.slow)])
def test_a_merge_in_the_middle_of_a_batch_does_not_disturb_it(
    tmp_path: Path, delta_session: SparkSession, phase: Phase
) -> None:
    job = variant(tmp_path, ONE_JOB)
    job.feed(4).run(delta_session)
    found: list[Optimized] = []
    job.feed(2).run(delta_session, once(4, phase, lambda: found.append(optimized(job))))
    assert found[0].committed
    job.assert_right(6)


@pytest.mark.slow
def test_a_job_that_merges_rows_is_only_compacted_while_it_is_stopped(
    tmp_path: Path, delta_session: SparkSession
) -> None:
    job = variant(tmp_path, MERGING)
    job.feed(5).run(delta_session)
    run = verbs.a_run(open_storage(str(job.root)), scratch=tmp_path, other=open_storage(str(tmp_path / "output")))
    prepared = prepare(Optimize(destination=str(tmp_path / "output")), run)
    assert prepared.plan.plan.bins == ()
    assert "MERGE" in prepared.plan.plan.notes[0]
    assert optimized(job, stopped=True).committed
    job.feed(1).run(delta_session)
    job.assert_right(6)


@pytest.mark.slow
def test_a_streaming_reader_of_the_table_gets_each_row_once_across_a_merge(
    tmp_path: Path, delta_session: SparkSession
) -> None:
    job = variant(tmp_path, ONE_JOB)
    job.feed(4).run(delta_session)

    def read() -> list[int]:
        stream = delta_session.readStream.format("delta").load(str(job.folder / "output"))
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "reader"))
        writer.option("path", str(tmp_path / "read")).trigger(availableNow=True).start().awaitTermination()
        return sorted(pd.read_parquet(tmp_path / "read")["number"])

    assert read() == job.output()["number"].tolist()
    assert optimized(job).committed
    job.feed(1).run(delta_session)
    assert read() == job.output()["number"].tolist()
