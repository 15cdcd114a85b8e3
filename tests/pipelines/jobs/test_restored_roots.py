"""Roots, checkpoints and sinks that are of another time than the others: restored, deleted or foreign."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from statekeeper.pipelines.batch.progress import Outcome, Phase
from statekeeper.statestore.base.errors import BatchConflict, ForeignRoot, RootLost, SinkConflict
from statekeeper.statestore.format import batch_log
from tests.support.counting import Job, once

pytestmark = pytest.mark.spark
STRANGER = "00000000-0000-4000-8000-000000000000"


def change_recorded_offsets(job: Job, batch: int) -> None:
    """Change the source offsets in the records of a batch's attempts."""
    for path in (job.root / "_statekeeper" / "pending").glob(f"{batch}-*.json"):
        path.write_text(path.read_text().replace("reservoirVersion", "reservoirVersjon"))
    for path in (job.root / "_statekeeper" / "log").glob(f"{batch + 1}-*"):
        data = path.read_bytes()
        log = batch_log.parse_head(data, path.relative_to(job.root).as_posix())
        members = {place: data[member.start :][: member.length] for place, member in log.members.items()}
        record = json.loads(json.dumps(log.record).replace("reservoirVersion", "reservoirVersjon"))
        path.write_bytes(batch_log.encode(batch + 1, path.stem.partition("-")[2], record, members))


def test_a_checkpoint_that_was_deleted_leaves_a_foreign_root(job: Job, session: SparkSession) -> None:
    job.feed(2).run(session)
    shutil.rmtree(job.checkpoint)
    with pytest.raises(ForeignRoot, match="If the checkpoint of the query was deleted"):
        job.feed(1).run(session)
    assert len(job.output()) == len(job.expected(2))


def test_a_root_that_was_deleted_is_lost(job: Job, session: SparkSession) -> None:
    job.feed(2).run(session)
    shutil.rmtree(job.root)
    with pytest.raises(RootLost, match=r"at batch 2, but the state root is missing.* -> restore the root"):
        job.feed(1).run(session)
    assert not job.root.exists()
    assert len(job.output()) == len(job.expected(2))


def test_a_root_whose_commit_log_was_emptied_is_lost(job: Job, session: SparkSession) -> None:
    job.feed(2).run(session)
    shutil.rmtree(job.root / "commits")
    with pytest.raises(RootLost, match=r"commits/1: batch 2 needs the state of batch 1.* -> restore"):
        job.feed(1).run(session)


def test_a_root_restored_from_an_older_copy_is_lost(job: Job, session: SparkSession) -> None:
    job.feed(2).run(session)
    shutil.copytree(job.root, job.folder / "older")
    job.feed(2).run(session)
    shutil.rmtree(job.root)
    shutil.move(job.folder / "older", job.root)
    with pytest.raises(RootLost, match=r"batch 4 needs the state of batch 3"):
        job.feed(1).run(session)
    assert len(job.output()) == len(job.expected(4))


def test_a_root_restored_with_a_gap_is_lost(job: Job, session: SparkSession) -> None:
    job.feed(3).run(session)
    (job.root / "commits" / "1").unlink()
    for batch in (1, 2):
        (job.checkpoint / "commits" / str(batch)).unlink()
        (job.checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)
    (job.checkpoint / "offsets" / "2").unlink()
    (job.checkpoint / "offsets" / ".2.crc").unlink(missing_ok=True)
    with pytest.raises(RootLost, match=r"batch 1 is not in the commit log, but batch 2 is.* -> restore the commit log"):
        job.run(session)


def test_a_checkpoint_restored_from_an_older_copy_does_not_repeat_committed_batches(
    job: Job, session: SparkSession
) -> None:
    job.feed(1).run(session)
    shutil.copytree(job.checkpoint, job.folder / "older")
    job.feed(2).run(session)
    shutil.rmtree(job.checkpoint)
    shutil.move(job.folder / "older", job.checkpoint)
    reports = job.feed(1).run(session)
    assert [(report.batch, report.outcome) for report in reports] == [
        (1, Outcome.DONE_BEFORE),
        (2, Outcome.DONE_BEFORE),
        (3, Outcome.COMPUTED),
    ]
    job.assert_right(4)


def test_a_batch_with_other_offsets_is_rejected(job: Job, session: SparkSession) -> None:
    job.feed(1).run(session)
    path = job.root / "offsets" / "1"
    path.write_bytes(
        (job.root / "offsets" / "0").read_bytes().replace(b'"reservoirVersion":1', b'"reservoirVersion":9')
    )
    with pytest.raises(BatchConflict, match="offsets/1: batch 1 has other source offsets"):
        job.feed(1).run(session)
    assert len(job.output()) == len(job.expected(1))


def in_sink(job: Job, batch: int, metadata: dict[str, str]) -> None:
    """Write an empty batch of another writer into the sink."""
    properties = CommitProperties(
        custom_metadata=metadata, app_transactions=[Transaction(f"statekeeper-{job.query_id}", batch)]
    )
    table = DeltaTable(str(job.folder / "output"))
    empty = pa.schema(table.schema().to_arrow()).empty_table()
    write_deltalake(table, empty, mode="append", commit_properties=properties)


def test_a_sink_with_the_batch_of_an_unknown_attempt_is_rejected(job: Job, session: SparkSession) -> None:
    job.feed(1).run(session)
    body = f'{{"statekeeper": {{"query_id": "{job.query_id}", "root_id": "r", "batch": 1, "attempt": "{STRANGER}"}}}}'
    in_sink(job, 1, {"userMetadata": body})
    with pytest.raises(
        SinkConflict,
        match=f"from attempt {STRANGER}, but this root has no record of this attempt; .*restore table and state root",
    ):
        job.feed(1).run(session)
    assert job.committed() == 1


def test_a_sink_with_the_batch_but_no_attempt_is_rejected(job: Job, session: SparkSession) -> None:
    job.feed(1).run(session)
    in_sink(job, 1, {})
    with pytest.raises(
        SinkConflict,
        match=r"its log does not name the attempt that wrote batch 1; .* -> .*Compare the table with the state",
    ):
        job.feed(1).run(session)
    assert job.committed() == 1


def test_a_sink_with_an_attempt_of_other_offsets_is_rejected(job: Job, session: SparkSession) -> None:
    job.feed(2)
    with pytest.raises(ZeroDivisionError):
        job.run(session, once(1, Phase.SINK_WRITTEN, lambda: 1 // 0))
    change_recorded_offsets(job, 1)
    with pytest.raises(SinkConflict, match="the record of this attempt has another query id, other source offsets"):
        job.run(session)
    assert job.committed() == 1
