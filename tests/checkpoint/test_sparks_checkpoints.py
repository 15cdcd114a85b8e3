"""Whole checkpoints that Spark wrote, in every form: audited, dumped and snapshotted without starting Spark.

The dumps are compared with the rows that Spark's reader showed when Spark wrote the checkpoints.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.maintenance.upkeep import audit, retention
from statekeeper.statestore.maintenance.upkeep import snapshot as snapshots
from statekeeper.statestore.storage import Storage
from tests.support import runs
from tests.support.dumped import dumped
from tests.support.switching import structure_of, switch
from tests.support.written import Written, is_clean_and_as_spark_shows, written_checkpoints

FIXTURES = written_checkpoints("v")
FEWEST = 20


@pytest.fixture(params=FIXTURES, ids=lambda path: path.stem.removeprefix("spark-"))
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    return Written.unpacked(request.param, tmp_path)


def test_all_of_them_are_there() -> None:
    assert len(FIXTURES) >= FEWEST


def test_the_audit_is_clean_and_the_dump_equals_sparks_rows(written: Written, tmp_path: Path) -> None:
    is_clean_and_as_spark_shows(written, tmp_path)


def test_a_snapshot_at_the_head_alone_contains_all_rows(written: Written, tmp_path: Path) -> None:
    storage = written.storage
    gathered = snapshots.gather(storage, at_head=True)
    planned = snapshots.plan(gathered, snapshots.SnapshotPolicy(), take_all=True)
    at_head = {one.store for one in planned.leave if one.reason is snapshots.SkipReason.AT_HEAD}
    assert at_head | {action.store for action in planned.take} == {fact.store for fact in gathered.stores}
    for action in planned.take:
        snapshots.execute(storage, action, scratch=tmp_path / "scratch", clock=SystemClock(), ids=RandomIds())
    assert audit.judge(audit.gather(storage, scratch=tmp_path / "scratch")).findings == ()
    policy = retention.RetentionPolicy(versions=1, grace_seconds=0)
    plan = retention.plan(retention.gather(storage, policy, clock=SystemClock()), policy)
    assert plan.findings == ()
    assert plan.floor == plan.head
    storage.delete([verdict.path for verdict in plan.deletions])
    storage.delete([entry.path for entry in storage.list("state") if entry.path.endswith(".changelog")])
    assert written.differing(dumped(written.checkpoint)) == []


def test_a_switch_to_the_other_structure_and_back_keeps_all_rows(written: Written, tmp_path: Path) -> None:
    storage = written.storage
    here, before = structure_of(storage), dumped(written.checkpoint)
    for to in (here.other, here):
        switch(storage, to, tmp_path / "scratch")
        assert structure_of(storage) is to
        assert dumped(written.checkpoint) == before


def test_retention_of_all_its_versions_deletes_nothing(written: Written) -> None:
    policy = retention.RetentionPolicy(versions=100, grace_seconds=0)
    plan = retention.plan(retention.gather(written.storage, policy, clock=SystemClock()), policy)
    assert (plan.findings, plan.floor, plan.deletions) == ((), 1, [])


def test_sparks_snapshot_is_read_in_full_before_its_fallback_is_deleted(written: Written) -> None:
    """The intact ones are read; with a flipped byte in the newest of one store nothing is deleted."""
    policy = retention.RetentionPolicy(versions=1, grace_seconds=0)

    def collected(storage: Storage) -> list[retention.Deleted]:
        gathered = retention.gather(storage, policy, clock=SystemClock())
        plan = retention.plan(gathered, policy, stopped=True)
        return list(runs.delete(storage, gathered, plan, holder="a test", clock=SystemClock(), ids=RandomIds()))

    storage = written.storage
    reads = retention.plan(retention.gather(storage, policy, clock=SystemClock()), policy, stopped=True).reads
    if not reads:
        pytest.skip("no snapshot replaces anything in this checkpoint")
    tables = [entry for read in reads for entry in read.files if entry.path.endswith(".sst")]
    bad = written.checkpoint / max(tables, key=lambda entry: entry.size_bytes).path
    whole = bad.read_bytes()
    bad.write_bytes(whole[:5] + bytes([whole[5] ^ 0x20]) + whole[6:])
    steps = collected(storage)
    assert retention.DeletionOutcome.DAMAGED in {step.outcome for step in steps}
    assert sum(step.files for step in steps) == 0
    bad.write_bytes(whole)
    steps = collected(storage)
    assert {step.outcome for step in steps} == {retention.DeletionOutcome.READ, retention.DeletionOutcome.DONE}
    assert written.differing(dumped(written.checkpoint)) == []
