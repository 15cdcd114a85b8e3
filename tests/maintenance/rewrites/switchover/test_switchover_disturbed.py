"""A switchover that crashes, or runs concurrently with a query, another run or a user."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import HalfSwitched, LeaseLost, RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rewrites import engine
from statekeeper.statestore.maintenance.rewrites.engine import Machine
from statekeeper.statestore.maintenance.rewrites.kinds import STEPS
from statekeeper.statestore.maintenance.upkeep import audit, retention, snapshot
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import runs, verbs
from tests.support.checkpoints import Checkpoint
from tests.support.clocks import SleeplessClock
from tests.support.faulty_storage import Fault
from tests.support.switching import (
    abort,
    after_the_dead,
    contents,
    die_at,
    gone_on,
    is_right,
    planned,
    silent,
    structure_of,
    switch,
)


def test_a_query_that_commits_during_its_switchover_keeps_its_structure(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path, source: Structure
) -> None:
    prepared[source].copied_to(local, tmp_path / "job")
    commit = names.commits(5)
    before = local.read(commit)

    class Running:
        """A query that was said to be stopped commits at the worst of all moments."""

        def __getattr__(self, name: str) -> object:
            return getattr(local, name)

        def replace(self, path: str, data: bytes, **whose: str) -> None:
            local.replace(path, data, **whose)
            if path == commit and local.stat(names.commits(6)) is None:
                local.create(names.commits(6), before)

    with pytest.raises(RefusedAsUnsafe, match="the query is running"):
        switch(Running(), source.other, tmp_path)
    assert local.read(commit) == before
    abort(local)
    assert structure_of(local) is source


def test_an_incomplete_switchover_blocks_other_verbs(switchable: Checkpoint, source: Structure, tmp_path: Path) -> None:
    storage = switchable.storage
    die_at(storage, source.other, tmp_path, lambda request: request.path == names.commits(5), Fault.BEFORE)
    assert rewrite_journal.open_journal(storage) is not None
    later = SleeplessClock(SystemClock().now_seconds() + lease.LIFE_SECONDS)
    policy = RetentionPolicy(versions=1, grace_seconds=0)
    gathered = retention.gather(storage, policy, clock=later)
    deletions = retention.plan(gathered, policy, stopped=True)
    with pytest.raises(HalfSwitched, match="--abort"):
        list(runs.delete(storage, gathered, deletions, holder="a test", clock=later, ids=RandomIds()))
    found = audit.judge(audit.gather(storage))
    assert audit.FindingKind.HALF_SWITCHED in {finding.kind for finding in found.findings}


def test_an_incomplete_switchover_blocks_one_in_the_other_direction(
    switchable: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    die_at(switchable.storage, source.other, tmp_path, lambda request: request.path == names.commits(5), Fault.BEFORE)
    [refusal] = planned(switchable.storage, source, tmp_path).refusals
    assert "is half done" in refusal


def test_a_switchover_before_its_commit_is_aborted_after_the_query_purged_the_starting_commit(
    switchable: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = switchable.storage
    die_at(storage, source.other, tmp_path, lambda request: request.path.endswith("cleared.json"), Fault.BEFORE)
    gone_on(storage)
    assert "--abort" in planned(storage, source.other, tmp_path).refusals[0]
    abort(storage, clock=after_the_dead())
    assert rewrite_journal.open_journal(storage) is None
    assert catalog.newest_batch(storage) == 6


def test_a_switchover_after_its_commit_is_completed_after_the_query_purged_that_commit(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V1].copied_to(local, tmp_path / "job")
    die_at(local, Structure.V2, tmp_path, lambda request: request.path.endswith("ended.json"), Fault.BEFORE)
    gone_on(local)
    journal = rewrite_journal.open_journal(local)
    assert journal is not None
    with pytest.raises(RefusedAsUnsafe, match="the query has continued in structure v2"):
        abort(local, clock=after_the_dead())
    later = SleeplessClock(SystemClock().now_seconds() + 2 * lease.LIFE_SECONDS)
    switch(local, Structure.V2, tmp_path, clock=later)
    assert rewrite_journal.open_journal(local) is None


def test_audit_findings_do_not_block_a_switchover_that_can_no_longer_be_aborted(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V1].copied_to(local, tmp_path / "job")
    die_at(local, Structure.V2, tmp_path, lambda request: request.path.endswith("ended.json"), Fault.BEFORE)
    gone_on(local, purges=[])
    local.delete([names.state_schema(0)])
    with pytest.raises(
        RefusedAsUnsafe, match="the query has continued, but the checkpoint is damaged: state/0/0/_meta"
    ):
        switch(local, Structure.V2, tmp_path, clock=after_the_dead())
    assert rewrite_journal.open_journal(local) is None


def test_a_query_that_committed_during_its_switchover_keeps_its_structure_after_a_crash(
    switchable: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = switchable.storage
    before = storage.read(names.commits(5))
    die_at(storage, source.other, tmp_path, lambda request: request.path == names.commits(5), Fault.AFTER)
    storage.create(names.commits(6), before)
    abort(storage, clock=after_the_dead())
    assert storage.read(names.commits(5)) == before
    assert rewrite_journal.open_journal(storage) is None


def test_a_query_that_starts_a_batch_during_its_switchover_keeps_its_structure(
    switchable: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    local, commit = switchable.storage, names.commits(5)
    before = local.read(commit)

    class Running:
        """Its batch is computed for long: it commits when all is done."""

        def __getattr__(self, name: str) -> object:
            return getattr(local, name)

        def replace(self, path: str, data: bytes, **whose: str) -> None:
            local.replace(path, data, **whose)
            if path == commit:
                local.create(names.offsets(6), local.read(names.offsets(5)))

    with pytest.raises(RefusedAsUnsafe, match="the query is running"):
        switch(Running(), source.other, tmp_path)
    assert local.read(commit) == before
    abort(local)
    assert is_right(switchable, local, tmp_path)


def test_an_own_root_with_a_started_batch_is_switched_after_confirmation(local: Storage, tmp_path: Path) -> None:
    checkpoint = Checkpoint(local, tmp_path / "job")
    checkpoint.grow(2)
    local.create(names.offsets(2), local.read(names.offsets(1)))
    before = contents(local)
    clock = SleeplessClock(SystemClock().now_seconds())
    by = Maintainer("a test", clock, RandomIds())

    def run(*, stopped: bool) -> None:
        scratch, told = tmp_path / "scratch", RandomIds().fresh()
        prepared = verbs.switch.plan(local, Policies(), Structure.V1, None, scratch=scratch)
        verbs.switch.execute(local, prepared, by, silent, run=told, stopped=stopped, scratch=scratch)

    with pytest.raises(RefusedAsUnsafe, match="does not show whether it is idle or stopped"):
        run(stopped=False)
    assert contents(local) == before
    run(stopped=True)
    assert structure_of(local) is Structure.V1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_snapshot_published_after_the_abort_is_deleted(
    switchable: Checkpoint, source: Structure, tmp_path: Path, moment: str
) -> None:
    local = switchable.storage
    before = contents(local)

    class Slow:
        """Takes so long for a snapshot that a user breaks its lease and aborts the switchover."""

        is_broken = False

        def __getattr__(self, name: str) -> object:
            return getattr(local, name)

        def create(self, path: str, data: bytes | Path, **whose: str) -> object:
            is_time = path.endswith(".zip") and path.startswith("state/0/1/") and not self.is_broken
            self.is_broken = self.is_broken or is_time
            if is_time and moment == "before":
                abort(local, clock=after_the_dead())
            found = local.create(path, data, **whose)
            if is_time and moment == "after":
                abort(local, clock=after_the_dead())
            return found

    with pytest.raises(RefusedAsUnsafe, match="was rolled back"):
        switch(Slow(), source.other, tmp_path)
    left = contents(local)
    assert before.items() <= left.items()
    assert audit.judge(audit.gather(local)).findings == ()
    switch(local, source.other, tmp_path, clock=after_the_dead())
    assert is_right(switchable, local, tmp_path)


def test_a_plan_from_before_another_switchover_is_not_executed(
    switchable: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = switchable.storage
    stale = planned(storage, source.other, tmp_path)
    switch(storage, source.other, tmp_path)
    before = contents(storage)
    machine = Machine(scratch=tmp_path, clock=SystemClock(), ids=RandomIds())
    with pytest.raises(RefusedAsUnsafe, match="changed after the plan was made"):
        runs.switch(storage, stale, silent, run=RandomIds().fresh(), holder="a test", machine=machine)
    assert rewrite_journal.open_journal(storage) is None
    assert contents(storage) == before


def test_a_switchover_that_another_run_completed_is_not_aborted(
    switchable: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = switchable.storage
    die_at(storage, source.other, tmp_path, lambda request: request.path.endswith("cleared.json"), Fault.BEFORE)
    clock, journal = after_the_dead(), rewrite_journal.open_journal(storage)
    assert journal is not None
    switch(storage, source.other, tmp_path, clock=clock)
    with pytest.raises(RefusedAsUnsafe, match=r"has ended the switchover to structure v. in the meantime"):
        runs.abort(storage, journal, silent, run=RandomIds().fresh(), holder="a test", clock=clock)
    assert structure_of(storage) is source.other
    assert is_right(switchable, storage, tmp_path)


def test_a_planned_snapshot_with_an_id_is_not_written_into_v1(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V2].copied_to(local, tmp_path / "job")
    take = snapshot.plan(snapshot.gather(local), snapshot.SnapshotPolicy(), take_all=True)
    switch(local, Structure.V1, tmp_path)
    before = contents(local)
    with pytest.raises(RefusedAsUnsafe, match="was switched to structure V1"):
        runs.take_snapshots(
            local, take, lambda *_: None, scratch=tmp_path, holder="a test", clock=SystemClock(), ids=RandomIds()
        )
    assert contents(local) == before


def test_a_file_that_the_query_wrote_again_stays_without_the_former_sidecar(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    checkpoint = prepared[Structure.V1].copied_to(local, tmp_path / "job")
    written_again, left = [store.changelog(VersionId(7)) for store in checkpoint.stores]
    local.create(names.offsets(6), local.read(names.offsets(5)))
    for path in (written_again, left):
        local.create(path, b"of the batch that did not end")
        local.create(names.sidecar(path), b"its sidecar")
    before = contents(local)
    die_at(local, Structure.V2, tmp_path, lambda request: request.path == names.commits(5), Fault.BEFORE)
    local.create(written_again, b"of the batch when it ran again")
    abort(local, clock=after_the_dead())
    assert local.stat(names.sidecar(written_again)) is None
    assert local.read(written_again) == b"of the batch when it ran again"
    same = before.keys() - {written_again, names.sidecar(written_again)}
    now = contents(local)
    assert {path: now.get(path) for path in same} == {path: before[path] for path in same}


def test_a_run_that_lost_its_lease_aborts_no_switchover(
    switchable: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = switchable.storage
    die_at(storage, source.other, tmp_path, lambda request: request.path.endswith("ended.json"), Fault.BEFORE)
    journal = rewrite_journal.open_journal(storage)
    assert journal is not None
    before = contents(storage)

    def lost() -> None:
        raise LeaseLost("the lease is lost")

    with pytest.raises(LeaseLost):
        engine.rollback(STEPS[RewriteKind.SWITCH], storage, journal, silent, still_held=lost, open_sink=open_storage)
    assert contents(storage) == before
