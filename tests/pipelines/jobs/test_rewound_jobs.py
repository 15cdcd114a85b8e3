"""A Python job after a rewind of its checkpoint and its state root, with a Delta sink."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines.sinks.sink import DeltaSink
from statekeeper.statestore.base.errors import ForeignRoot, RootLost, SinkChanged
from tests.support.counting import Job
from tests.support.twins import statekeeper

pytestmark = pytest.mark.spark
BATCHES, TARGET = 5, 1


def rewound(root: object, *options: str) -> dict[str, Any]:
    to = ("--to-batch", str(TARGET), *options, "--apply", "--confirm-stopped", "--output", "json")
    shown = statekeeper("rewind", str(root), *to)
    return dict(json.loads(shown[shown.index("{") :]))


@pytest.mark.slow
def test_a_rewound_job_writes_each_row_once_after_a_restore_of_its_table(job: Job, session: SparkSession) -> None:
    job.feed(BATCHES).run(session)
    table = str(job.folder / "output")
    of_root = rewound(job.root, "--sink", table)
    assert (of_root["sink"]["newest_batch"], of_root["query_id"] != of_root["former_query_id"]) == (BATCHES - 1, True)
    # Only one of both folders is rewound: the job does not start.
    with pytest.raises((RootLost, ForeignRoot)):
        job.feed(1).run(session)
    rewound(job.checkpoint, "--query-id", of_root["query_id"])
    session.sql(of_root["sink"]["command"])
    with pytest.raises(SinkChanged, match=f"continue_at_batch={TARGET + 1}"):
        job.run(session)
    job.sink = DeltaSink(table, continue_at_batch=TARGET + 1, writer=job.writer)
    job.run(session)
    job.assert_right(BATCHES + 1)
    job.sink = None
    job.feed(1).run(session)
    job.assert_right(BATCHES + 2)


@pytest.mark.slow
def test_a_rewound_job_continues_after_the_undo_of_both_rewinds(job: Job, session: SparkSession) -> None:
    job.feed(BATCHES).run(session)
    of_root = rewound(job.root)
    of_checkpoint = rewound(job.checkpoint, "--query-id", of_root["query_id"])
    statekeeper("rewind", str(job.root), "--undo", of_root["run"], "--confirm-stopped")
    statekeeper("rewind", str(job.checkpoint), "--undo", of_checkpoint["run"], "--confirm-stopped")
    job.feed(1).run(session)
    job.assert_right(BATCHES + 1)
