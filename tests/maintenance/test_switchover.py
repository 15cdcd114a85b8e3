"""A checkpoint changes its structure as a whole or not at all, and says why when it does not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statestore import catalog
from statestore.cli import main
from statestore.clock import RandomIds, SystemClock
from statestore.engine.rocks import Database
from statestore.errors import CorruptFile, HalfSwitched, LeaseLost, RefusedAsUnsafe, RootHeld, StatekeeperError
from statestore.format import logs, names
from statestore.format.names import StoreFile, StorePath, VersionId
from statestore.format.snapshot import read_snapshot
from statestore.format.sparks import Spark
from statestore.format.structure import Structure
from statestore.maintenance import audit, lease, passes, quiet, retention, runs, snapshot, switchover
from statestore.maintenance.config import Policies
from statestore.maintenance.retention import RetentionPolicy
from statestore.maintenance.switchover import Machine, Phase, Progress, Source, SwitchPlan
from statestore.storage import Kind, Storage, open_storage
from tests.checkpoints import Checkpoint
from tests.faults.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash, crash_matrix
from tests.storage.clocks import SleeplessClock
from tests.structures import as_sparks, held, without_ids

BOTH = tuple(Structure)
WRITES_IN_CI = 3
"""Of the writes one in so many is played in CI; each of them, and each read, among the slow tests."""

_WRITES = (Kind.CREATE, Kind.REPLACE, Kind.DELETE)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[Structure, Checkpoint]:
    """Six versions with a snapshot of the fourth, in both structures, as a query of Spark's leaves them."""
    made = {}
    for structure in BOTH:
        folder = tmp_path_factory.mktemp(structure.value)
        one = Checkpoint(open_storage(str(folder / "root")), folder / "job")
        one.grow(4)
        for action in snapshot.plan(snapshot.gather(one.storage), snapshot.SnapshotPolicy(), take_all=True).take:
            snapshot.execute(one.storage, action, scratch=folder, clock=SystemClock(), ids=RandomIds())
        one.grow(2)
        made[structure] = as_sparks(one)
    without_ids(made[Structure.V1])
    return made


@pytest.fixture(params=BOTH, ids=lambda structure: structure.value)
def source(request: pytest.FixtureRequest) -> Structure:
    """The structure that the checkpoint has."""
    return request.param


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "root"))


@pytest.fixture
def checkpoint(prepared: dict[Structure, Checkpoint], source: Structure, local: Storage, tmp_path: Path) -> Checkpoint:
    return prepared[source].copied_to(local, tmp_path / "job")


def planned(storage: Storage, to: Structure, scratch: Path, spark: Spark | None = None) -> SwitchPlan:
    return switchover.plan(switchover.gather(storage, scratch=scratch), to, spark)


def switch(
    storage: Storage, to: Structure, scratch: Path, *, clock: SystemClock | SleeplessClock | None = None
) -> list[Progress]:
    told: list[Progress] = []
    plan = planned(storage, to, scratch)
    assert not plan.refusals, plan.refusals
    machine = Machine(scratch, clock or SystemClock(), RandomIds(), workers=1)
    runs.switch(storage, plan, told.append, run=RandomIds().fresh(), holder="a test", machine=machine)
    return told


def abort(storage: Storage, *, clock: SystemClock | SleeplessClock | None = None) -> None:
    standing = switchover.standing(storage)
    if standing is not None:
        run = RandomIds().fresh()
        runs.abort_switch(storage, standing, lambda _: None, run=run, holder="a test", clock=clock or SystemClock())


def structure_of(storage: Storage) -> Structure:
    heads = catalog.heads(storage)
    assert heads is not None
    return Structure.V1 if next(iter(heads.heads.values())).id is None else Structure.V2


def contents(storage: Storage) -> dict[str, bytes]:
    """Of every file of the checkpoint."""
    return {e.path: storage.read(e.path) for e in storage.list("") if not e.path.startswith(f"{names.CONTROL}/")}


def snapshots(storage: Storage) -> list[VersionId]:
    return [version for files in catalog.files(storage).values() for version in files.snapshots]


def is_right(checkpoint: Checkpoint, storage: Storage, scratch: Path) -> bool:
    return held(storage, scratch) == dict(zip(checkpoint.stores, checkpoint.states[-1], strict=True))


def test_every_store_gets_a_snapshot_at_its_head_in_the_other_structure_and_holds_what_it_did(
    prepared: dict[Structure, Checkpoint], source: Structure, storage: Storage, tmp_path: Path
) -> None:
    checkpoint = prepared[source].copied_to(storage, tmp_path / "job")
    told = switch(storage, source.other, tmp_path)
    assert structure_of(storage) is source.other
    assert is_right(checkpoint, storage, tmp_path)
    of_head = [version for version in snapshots(storage) if version.version == 6]
    assert len(of_head) == 2
    assert all((version.id is None) == (source is Structure.V2) for version in of_head)
    assert [progress.phase for progress in told][:2] == [Phase.BEGUN, Phase.CLEARED]
    assert told[-1].phase is Phase.ENDED
    assert audit.judge(audit.gather(storage)).findings == ()


def test_structure_v1_is_left_no_snapshot_with_an_id_which_it_could_not_load_beside(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V2].copied_to(local, tmp_path / "job")
    before = [store.snapshot(v) for store, files in catalog.files(local).items() for v in files.snapshots]
    switch(local, Structure.V1, tmp_path)
    assert all(version.id is None for version in snapshots(local))
    aside = {names.parse_aside(entry.path) for entry in local.list(names.ASIDE)}
    assert {place[1] for place in aside if place} == set(before)


def test_a_snapshot_that_stands_at_the_head_is_used_as_it_is_and_nothing_is_sent_but_its_zip(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    switch(storage, source.other, tmp_path)
    tables = {entry.path for entry in storage.list(names.STATE) if entry.path.endswith(".sst")}
    plan = planned(storage, source, tmp_path)
    assert {step.source for step in plan.stores} == {Source.REUSED}
    switch(storage, source, tmp_path)
    assert {entry.path for entry in storage.list(names.STATE) if entry.path.endswith(".sst")} == tables
    assert is_right(checkpoint, storage, tmp_path)


def test_it_goes_there_and_back_as_often_as_one_likes(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    for number in range(6):
        switch(storage, source.other if number % 2 == 0 else source, tmp_path)
        assert is_right(checkpoint, storage, tmp_path)
    assert structure_of(storage) is source


def test_a_root_of_our_own_goes_there_and_back_by_fresh_digests(local: Storage, tmp_path: Path) -> None:
    checkpoint = Checkpoint(local, tmp_path / "job")
    checkpoint.grow(3)
    seen = set()
    for to in (Structure.V1, Structure.V2, Structure.V1, Structure.V2):
        switch(local, to, tmp_path)
        assert is_right(checkpoint, local, tmp_path)
        assert audit.judge(audit.gather(local)).findings == ()
        heads = catalog.heads(local)
        assert heads is not None
        seen |= {version.digest if to is Structure.V1 else version.id for version in heads.heads.values()}
    assert len(seen) == 8
    assert None not in seen


def test_in_structure_v2_of_spark_4_0_snapshots_have_the_header_that_it_reads(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V1].copied_to(local, tmp_path / "job")
    plan = planned(local, Structure.V2, tmp_path, Spark.V4_0)
    machine = Machine(tmp_path, SystemClock(), RandomIds())
    runs.switch(local, plan, lambda _: None, run=RandomIds().fresh(), holder="a test", machine=machine)
    with_ids = [
        store.snapshot(v) for store, files in catalog.files(local).items() for v in files.snapshots if v.id is not None
    ]
    assert {read_snapshot(local.read(path), path).metadata.header for path in with_ids} == {"v2"}
    switch(local, Structure.V1, tmp_path)
    assert {
        read_snapshot(local.read(store.snapshot(v)), "").metadata.header
        for store, files in catalog.files(local).items()
        for v in files.snapshots
    } == {"v1"}


def test_a_query_that_began_before_4_2_and_left_no_sidecar_may_be_of_4_0_and_has_to_be_told(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V1].copied_to(local, tmp_path / "job")
    conf = {key: value for key, value in logs.STATE_CONF.items() if "mergeOperatorVersion" not in key}
    local.replace(names.offsets(5), logs.encode_offsets(logs.OffsetLog(0, 5, conf, ('"a source"',))))
    [refusal] = planned(local, Structure.V2, tmp_path).refusals
    assert "say --for-spark" in refusal
    assert not planned(local, Structure.V2, tmp_path, Spark.V4_1).refusals


def test_what_leads_back_stays_until_a_second_snapshot_of_the_new_structure_is_what_the_floor_is_restored_from(
    local: Storage, tmp_path: Path
) -> None:
    policy = RetentionPolicy(versions=2, grace_seconds=0)

    def collect() -> set[str]:
        gathered = retention.gather(local, policy, clock=SystemClock())
        deletions = retention.plan(gathered, policy)
        list(runs.delete(local, gathered, deletions, holder="a test", clock=SystemClock(), ids=RandomIds()))
        return {e.path for e in local.list(names.STATE) if (place := names.parse_store_path(e.path)) and is_v1(place)}

    def is_v1(place: tuple[StorePath, StoreFile]) -> bool:
        return place[1].version.id is None

    def take_snapshots() -> None:
        for action in snapshot.plan(snapshot.gather(local), snapshot.SnapshotPolicy(), take_all=True).take:
            snapshot.execute(local, action, scratch=tmp_path, clock=SystemClock(), ids=RandomIds())

    checkpoint = Checkpoint(local, tmp_path / "job")
    checkpoint.grow(4)
    without_ids(checkpoint)
    binding = local.read(names.BINDING)
    local.delete([names.BINDING])
    switch(local, Structure.V2, tmp_path)
    local.create(names.BINDING, binding)
    heads = catalog.heads(local)
    assert heads is not None
    checkpoint.versions[-1] = [heads.heads[store] for store in checkpoint.stores]
    before = {path for path in contents(local) if (place := names.parse_store_path(path)) and is_v1(place)}
    assert len(before) == 8
    checkpoint.grow(4)
    assert collect() == before, "only the switchover's own snapshots stand between the query and nothing"
    audited = audit.judge(audit.gather(local), audit.AuditPolicy(retained_versions=2))
    assert {(store.garbage_files, store.orphan_files) for store in audited.stores} == {(0, 0)}
    take_snapshots()
    checkpoint.grow(2)
    assert collect() == set()
    checkpoint.assert_right(tmp_path / "host")


# -- reasons not to go -------------------------------------------------------------------------------------------------


def test_what_a_batch_left_that_did_not_end_is_put_aside(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    checkpoint = prepared[Structure.V1].copied_to(local, tmp_path / "job")
    stray = checkpoint.stores[0].changelog(VersionId(7))
    local.create(stray, b"of the batch that did not end")
    local.create(names.sidecar(stray), b"its sidecar")
    local.create(names.offsets(6), logs.encode_offsets(logs.OffsetLog(0, 6, logs.STATE_CONF, ('"a source"',))))
    switch(local, Structure.V2, tmp_path)
    assert local.stat(stray) is None
    assert local.stat(names.sidecar(stray)) is None
    assert {names.parse_aside(e.path)[1] for e in local.list(names.ASIDE)} == {stray, names.sidecar(stray)}
    assert is_right(checkpoint, local, tmp_path)


def test_a_checkpoint_that_the_audit_finds_fault_with_is_not_switched(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    storage.delete([checkpoint.stores[1].changelog(version) for version in _changelogs(storage, checkpoint, 6)])
    before = contents(storage)
    plan = planned(storage, source.other, tmp_path)
    assert any("the audit is not clean" in refusal for refusal in plan.refusals)
    machine = Machine(tmp_path, SystemClock(), RandomIds())
    with pytest.raises(RefusedAsUnsafe):
        runs.switch(storage, plan, lambda _: None, run=RandomIds().fresh(), holder="a test", machine=machine)
    assert contents(storage) == before
    assert switchover.standing(storage) is None


def _changelogs(storage: Storage, checkpoint: Checkpoint, number: int) -> list[VersionId]:
    return [v for v in catalog.files(storage)[checkpoint.stores[1]].changelogs if v.version == number]


def test_a_commit_that_holds_something_unknown_is_not_written_anew(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    path = names.commits(5)
    head, _, body = checkpoint.storage.read(path).partition(b"\n")
    later = {**json.loads(body), "sinkMetadataMap": {}}
    checkpoint.storage.replace(path, head + b"\n" + json.dumps(later).encode())
    [refusal] = planned(checkpoint.storage, source.other, tmp_path).refusals
    assert "would lose" in refusal


def test_an_offline_repartition_that_has_not_ended_is_left_alone(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    for batch, partitions in ((5, "2"), (6, "4")):
        conf = {**logs.STATE_CONF, logs.SHUFFLE_PARTITIONS: partitions}
        path = names.offsets(batch)
        checkpoint.storage.replace(path, logs.encode_offsets(logs.OffsetLog(0, batch, conf, ('"a source"',))))
    [refusal] = planned(checkpoint.storage, source.other, tmp_path).refusals
    assert "offline repartition" in refusal


def test_without_the_disk_that_it_may_need_it_does_not_begin(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    gathered = switchover.gather(checkpoint.storage, scratch=tmp_path)
    assert gathered.free_bytes > 0
    full = switchover.Gathered(**{**vars(gathered), "free_bytes": 10})
    [refusal] = switchover.plan(full, source.other).refusals
    assert "local disk" in refusal


def test_a_maintainer_at_work_is_not_disturbed(checkpoint: Checkpoint, source: Structure, tmp_path: Path) -> None:
    storage, run = checkpoint.storage, RandomIds().fresh()
    before = contents(storage)
    with lease.held(storage, "gc", run=run, holder="another", clock=SystemClock()), pytest.raises(RootHeld):
        switch(storage, source.other, tmp_path)
    assert contents(storage) == before


def test_a_query_that_commits_while_it_is_switched_keeps_its_structure(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path, source: Structure
) -> None:
    prepared[source].copied_to(local, tmp_path / "job")
    commit = names.commits(5)
    before = local.read(commit)

    class Running:
        """A query that was said to be stopped commits at the worst of all moments."""

        def __getattr__(self, name: str) -> object:
            return getattr(local, name)

        def replace(self, path: str, data: bytes) -> None:
            local.replace(path, data)
            if path == commit and local.stat(names.commits(6)) is None:
                local.create(names.commits(6), before)

    with pytest.raises(RefusedAsUnsafe, match="the query runs"):
        switch(Running(), source.other, tmp_path)
    assert local.read(commit) == before
    abort(local)
    assert structure_of(local) is source


def test_a_snapshot_that_is_not_read_back_as_it_was_written_stops_it_before_the_commit(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = Database.capture

    def forgetful(database: Database, path: Path) -> None:
        first = next(keys[0] for keys, _ in database.scan())
        database.apply([[(first, None)]], None)
        capture(database, path)

    before = contents(checkpoint.storage)
    with monkeypatch.context() as patched:
        patched.setattr(Database, "capture", forgetful)
        with pytest.raises(CorruptFile, match="does not hold what version"):
            switch(checkpoint.storage, source.other, tmp_path)
    assert structure_of(checkpoint.storage) is source
    abort(checkpoint.storage)
    assert before.items() <= contents(checkpoint.storage).items()


def test_while_it_is_half_done_nothing_else_writes(checkpoint: Checkpoint, source: Structure, tmp_path: Path) -> None:
    storage = checkpoint.storage
    _crash(storage, source.other, tmp_path, lambda request: request.path == names.commits(5), Fault.BEFORE)
    assert switchover.standing(storage) is not None
    later = SleeplessClock(SystemClock().now_seconds() + lease.LIFE_SECONDS)
    policy = RetentionPolicy(versions=1, grace_seconds=0)
    gathered = retention.gather(storage, policy, clock=later)
    deletions = retention.plan(gathered, policy, stopped=True)
    with pytest.raises(HalfSwitched, match="--abort"):
        list(runs.delete(storage, gathered, deletions, holder="a test", clock=later, ids=RandomIds()))
    found = audit.judge(audit.gather(storage))
    assert audit.What.HALF_SWITCHED in {finding.what for finding in found.findings}


def test_one_that_is_half_done_in_one_direction_does_not_begin_the_other(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    _crash(checkpoint.storage, source.other, tmp_path, lambda request: request.path == names.commits(5), Fault.BEFORE)
    [refusal] = planned(checkpoint.storage, source, tmp_path).refusals
    assert "is half done" in refusal


def _crash(storage: Storage, to: Structure, scratch: Path, where, fault: Fault) -> None:  # type: ignore[no-untyped-def]
    """Die at the first write for which `where` holds."""

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return fault if request.kind in _WRITES and where(request) else None

    with pytest.raises(SimulatedCrash):
        switch(Dying(storage), to, scratch)


# -- two at once, and a query that goes on -----------------------------------------------------------------------------


def _gone_on(storage: Storage, *, purges: Iterable[int] = range(6)) -> None:
    """The query has committed a batch more, in the structure that it found, and purged these."""
    for store, head in catalog.heads_at(storage, 5).heads.items():
        place = store.snapshot if head in catalog.files(storage)[store].snapshots else store.changelog
        storage.create(place(VersionId(7, head.id)), storage.read(place(head)))
    storage.create(names.offsets(6), storage.read(names.offsets(5)))
    storage.create(names.commits(6), storage.read(names.commits(5)))
    storage.delete(map(names.commits, purges))


def _after_the_dead() -> SleeplessClock:
    """When a dead run's lease counts no more."""
    return SleeplessClock(SystemClock().now_seconds() + lease.LIFE_SECONDS)


def test_one_that_hardly_began_is_taken_back_when_the_query_has_purged_the_commit_that_it_started_from(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    _crash(storage, source.other, tmp_path, lambda request: request.path.endswith("cleared.json"), Fault.BEFORE)
    _gone_on(storage)
    assert "--abort" in planned(storage, source.other, tmp_path).refusals[0]
    abort(storage, clock=_after_the_dead())
    assert switchover.standing(storage) is None
    assert catalog.newest_batch(storage) == 6


def test_one_that_lacked_but_its_last_word_is_finished_when_the_query_has_purged_the_commit_that_it_wrote(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V1].copied_to(local, tmp_path / "job")
    _crash(local, Structure.V2, tmp_path, lambda request: request.path.endswith("ended.json"), Fault.BEFORE)
    _gone_on(local)
    standing = switchover.standing(local)
    assert standing is not None
    with pytest.raises(RefusedAsUnsafe, match="has gone on in structure v2"):
        abort(local, clock=_after_the_dead())
    later = SleeplessClock(SystemClock().now_seconds() + 2 * lease.LIFE_SECONDS)
    switch(local, Structure.V2, tmp_path, clock=later)
    assert switchover.standing(local) is None


def test_what_the_audit_finds_keeps_nobody_half_switched_who_cannot_go_back_any_more(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V1].copied_to(local, tmp_path / "job")
    _crash(local, Structure.V2, tmp_path, lambda request: request.path.endswith("ended.json"), Fault.BEFORE)
    _gone_on(local, purges=[4])
    with pytest.raises(RefusedAsUnsafe, match="has gone on, the switchover is ended, and the audit finds: commits/4"):
        switch(local, Structure.V2, tmp_path, clock=_after_the_dead())
    assert switchover.standing(local) is None


def test_a_query_that_committed_while_it_was_switched_is_given_its_structure_back_after_a_crash_too(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    before = storage.read(names.commits(5))
    _crash(storage, source.other, tmp_path, lambda request: request.path == names.commits(5), Fault.AFTER)
    storage.create(names.commits(6), before)
    abort(storage, clock=_after_the_dead())
    assert storage.read(names.commits(5)) == before
    assert switchover.standing(storage) is None


def test_a_query_that_begins_a_batch_while_it_is_switched_keeps_its_structure(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    local, commit = checkpoint.storage, names.commits(5)
    before = local.read(commit)

    class Running:
        """Its batch is computed for long: it commits when all is done."""

        def __getattr__(self, name: str) -> object:
            return getattr(local, name)

        def replace(self, path: str, data: bytes) -> None:
            local.replace(path, data)
            if path == commit:
                local.create(names.offsets(6), local.read(names.offsets(5)))

    with pytest.raises(RefusedAsUnsafe, match="the query runs"):
        switch(Running(), source.other, tmp_path)
    assert local.read(commit) == before
    abort(local)
    assert is_right(checkpoint, local, tmp_path)


def test_a_root_of_our_own_in_which_a_batch_is_begun_takes_a_persons_word(local: Storage, tmp_path: Path) -> None:
    checkpoint = Checkpoint(local, tmp_path / "job")
    checkpoint.grow(2)
    local.create(names.offsets(2), local.read(names.offsets(1)))
    before = contents(local)
    clock = SleeplessClock(SystemClock().now_seconds())
    machine = Machine(tmp_path / "scratch", clock, RandomIds())

    def run(*, stopped: bool) -> None:
        told = RandomIds().fresh()
        passes.switch(
            local, Policies(), Structure.V1, None, _silent, stopped=stopped, run=told, holder="a test", machine=machine
        )

    with pytest.raises(RefusedAsUnsafe, match="only while the query is stopped"):
        run(stopped=False)
    assert contents(local) == before
    run(stopped=True)
    assert structure_of(local) is Structure.V1


def _silent(_: Progress) -> None:
    pass


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_snapshot_that_is_published_when_the_switchover_was_taken_back_meanwhile_goes_again(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path, moment: str
) -> None:
    local = checkpoint.storage
    before = contents(local)

    class Slow:
        """Makes a snapshot for so long that a person breaks its lease and takes the switchover back."""

        is_broken = False

        def __getattr__(self, name: str) -> object:
            return getattr(local, name)

        def create(self, path: str, data: bytes | Path) -> object:
            is_time = path.endswith(".zip") and path.startswith("state/0/1/") and not self.is_broken
            self.is_broken = self.is_broken or is_time
            if is_time and moment == "before":
                abort(local, clock=_after_the_dead())
            found = local.create(path, data)
            if is_time and moment == "after":
                abort(local, clock=_after_the_dead())
            return found

    with pytest.raises(RefusedAsUnsafe, match="was taken back"):
        switch(Slow(), source.other, tmp_path)
    left = contents(local)
    assert before.items() <= left.items()
    assert audit.judge(audit.gather(local)).findings == ()
    switch(local, source.other, tmp_path, clock=_after_the_dead())
    assert is_right(checkpoint, local, tmp_path)


def test_what_was_planned_before_another_switched_it_is_not_begun(
    checkpoint: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = checkpoint.storage
    stale = planned(storage, source.other, tmp_path)
    switch(storage, source.other, tmp_path)
    before = contents(storage)
    machine = Machine(tmp_path, SystemClock(), RandomIds())
    with pytest.raises(RefusedAsUnsafe, match="when this was planned"):
        runs.switch(storage, stale, _silent, run=RandomIds().fresh(), holder="a test", machine=machine)
    assert switchover.standing(storage) is None
    assert contents(storage) == before


def test_what_another_has_finished_is_not_taken_back(checkpoint: Checkpoint, source: Structure, tmp_path: Path) -> None:
    storage = checkpoint.storage
    _crash(storage, source.other, tmp_path, lambda request: request.path.endswith("cleared.json"), Fault.BEFORE)
    clock, standing = _after_the_dead(), switchover.standing(storage)
    assert standing is not None
    switch(storage, source.other, tmp_path, clock=clock)
    with pytest.raises(RefusedAsUnsafe, match="has ended meanwhile"):
        runs.abort_switch(storage, standing, _silent, run=RandomIds().fresh(), holder="a test", clock=clock)
    assert structure_of(storage) is source.other
    assert is_right(checkpoint, storage, tmp_path)


def test_no_snapshot_with_an_id_that_was_planned_before_is_put_into_structure_v1(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V2].copied_to(local, tmp_path / "job")
    take = snapshot.plan(snapshot.gather(local), snapshot.SnapshotPolicy(), take_all=True).take
    switch(local, Structure.V1, tmp_path)
    before = contents(local)
    with pytest.raises(RefusedAsUnsafe, match="was switched to structure V1"):
        runs.take_snapshots(
            local, take, lambda *_: None, scratch=tmp_path, holder="a test", clock=SystemClock(), ids=RandomIds()
        )
    assert contents(local) == before


def test_who_has_lost_the_lease_takes_nothing_back(checkpoint: Checkpoint, source: Structure, tmp_path: Path) -> None:
    storage = checkpoint.storage
    _crash(storage, source.other, tmp_path, lambda request: request.path.endswith("ended.json"), Fault.BEFORE)
    standing = switchover.standing(storage)
    assert standing is not None
    before = contents(storage)

    def lost() -> None:
        raise LeaseLost("another maintainer took over")

    with pytest.raises(LeaseLost):
        switchover.take_back(storage, standing, _silent, still_held=lost)
    assert contents(storage) == before


def test_one_that_was_begun_for_another_spark_is_not_finished_for_this_one(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V1].copied_to(local, tmp_path / "job")
    _crash(local, Structure.V2, tmp_path, lambda request: request.path.endswith("cleared.json"), Fault.AFTER)
    [refusal] = planned(local, Structure.V2, tmp_path, Spark.V4_0).refusals
    assert "Spark 4.0 does not read" in refusal
    assert not planned(local, Structure.V2, tmp_path, Spark.V4_2).refusals


def test_a_damaged_table_of_the_snapshot_at_the_head_is_told_by_the_snapshots_name(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    [store, _] = prepared[Structure.V1].copied_to(local, tmp_path / "job").stores
    for action in snapshot.plan(snapshot.gather(local, at_head=True), snapshot.SnapshotPolicy(), take_all=True).take:
        snapshot.execute(local, action, scratch=tmp_path, clock=SystemClock(), ids=RandomIds())
    path = store.snapshot(VersionId(6))
    table = store.table_file(read_snapshot(local.read(path), path).metadata.tables[-1].dfs_name)
    body = local.read(table)
    local.replace(table, body[:30] + bytes(byte ^ 0xFF for byte in body[30:60]) + body[60:])
    with pytest.raises(CorruptFile, match=path) as refused:
        switch(local, Structure.V2, tmp_path)
    assert "--abort" in str(refused.value)
    abort(local)
    assert structure_of(local) is Structure.V1


# -- crashes -----------------------------------------------------------------------------------------------------------


def test_whatever_write_fails_it_is_of_one_structure_or_refused_and_is_finished_or_taken_back(
    prepared: dict[Structure, Checkpoint], source: Structure, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    cases = play(prepared[source], source, tmp_path, one_in=WRITES_IN_CI)
    record_property("crash_matrix_cases", cases)
    assert cases >= 18


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_same_for_every_request(
    prepared: dict[Structure, Checkpoint], source: Structure, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    cases = play(prepared[source], source, tmp_path, one_in=1)
    record_property("crash_matrix_cases", cases)
    assert cases >= 300


def copies(checkpoint: Checkpoint, folder: Path) -> Iterator[Storage]:
    number = 0
    while True:
        yield checkpoint.copied_to(open_storage(str(folder / f"case-{number}")), folder).storage
        number += 1


def play(checkpoint: Checkpoint, source: Structure, folder: Path, *, one_in: int) -> int:
    """One case in so many, finished and taken back in turn. How many there were."""
    roots = copies(checkpoint, folder)
    undisturbed = next(roots)
    before = contents(undisturbed)
    rehearsal = FaultyStorage(undisturbed)
    switch(rehearsal, source.other, folder)
    cases = [case for case in crash_matrix(rehearsal.trace) if one_in == 1 or case[0].kind in _WRITES][::one_in]
    for number, (request, fault) in enumerate(cases):
        storage = next(roots)
        faulty = FaultyStorage(storage, {request.number: fault})
        with suppress(SimulatedCrash, StatekeeperError, AssertionError):
            switch(faulty, source.other, folder)
        now = structure_of(storage)
        assert is_right(checkpoint, storage, folder), (request, fault)
        if now is Structure.V2:
            _require_whole_v2(storage, checkpoint)
        # The dead run's lease is waited for.
        clock = SleeplessClock(SystemClock().now_seconds() + lease.LIFE_SECONDS)
        has_ended = switchover.standing(storage) is None and now is source.other
        if number % 2 or has_ended:
            if not has_ended:
                switch(storage, source.other, folder, clock=clock)
            assert structure_of(storage) is source.other, (request, fault)
            assert is_right(checkpoint, storage, folder), (request, fault)
            assert audit.judge(audit.gather(storage)).findings == (), (request, fault)
        else:
            abort(storage, clock=clock)
            left = contents(storage)
            orphans = {path for path in left.keys() - before.keys() if path.endswith(".sst")}
            assert left.keys() - orphans == before.keys(), (request, fault)
            assert all(left[path] == body for path, body in before.items()), (request, fault)
        assert switchover.standing(storage) is None
    return len(cases)


def _require_whole_v2(storage: Storage, checkpoint: Checkpoint) -> None:
    """Spark goes by the ids in the commit: each names what there is."""
    heads = catalog.heads(storage)
    assert heads is not None
    files = catalog.files(storage)
    for store in checkpoint.stores:
        head = heads.heads[store]
        assert head in files[store].snapshots or head in files[store].changelogs


# -- the verb ----------------------------------------------------------------------------------------------------------


def statekeeper(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["switch", *arguments])


def test_a_person_sees_the_plan_says_that_the_query_is_stopped_and_reads_which_conf_comes_next(
    prepared: dict[Structure, Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet.require_stopped, "__kwdefaults__", {"seconds": 0.1})
    root = str(tmp_path / "root")
    checkpoint = prepared[Structure.V1].copied_to(open_storage(root), tmp_path)
    before = contents(checkpoint.storage)
    shown = statekeeper(root, "--to", "v2")
    assert shown.exit_code == 0, shown.output
    assert "checkpointFormatVersion=2" in shown.output
    assert "2 stores" in shown.output
    assert statekeeper(root, "--to", "v2", "--apply").exit_code == 13
    assert contents(checkpoint.storage) == before
    done = statekeeper(root, "--to", "v2", "--apply", "--i-stopped-it", "--output", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["switched"] is True
    assert structure_of(checkpoint.storage) is Structure.V2
    assert "nothing is to be done" in statekeeper(root, "--to", "v2").output
    assert statekeeper(root, "--abort", "--i-stopped-it").exit_code == 13
    assert is_right(checkpoint, checkpoint.storage, tmp_path)


def test_where_a_mode_is_configured_that_forbids_it_nothing_is_switched(
    prepared: dict[Structure, Checkpoint], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    checkpoint = prepared[Structure.V1].copied_to(open_storage(str(root)), tmp_path)
    before = contents(checkpoint.storage)
    configured = tmp_path / "statekeeper.toml"
    configured.write_text(f'[roots.query]\nurl = "{root}"\nmode = "snapshots"\n')
    done = CliRunner().invoke(
        main, ["--config", str(configured), "switch", "query", "--to", "v2", "--apply", "--i-stopped-it"]
    )
    assert done.exit_code == 13
    assert "mode snapshots is configured" in done.output
    assert contents(checkpoint.storage) == before
