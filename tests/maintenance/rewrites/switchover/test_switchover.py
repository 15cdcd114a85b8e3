"""A checkpoint changes its structure as a whole or not at all, and says why when it does not."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import CorruptFile, RefusedAsUnsafe, RootHeld
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import StoreFile, StorePath, VersionId
from statekeeper.statestore.format.snapshot import Snapshot, encode_snapshot, read_snapshot
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rewrites import engine, switchover
from statekeeper.statestore.maintenance.rewrites.engine import Machine, RewritePhase, Source
from statekeeper.statestore.maintenance.rewrites.switchover import steps
from statekeeper.statestore.maintenance.upkeep import audit, retention
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.storage import Storage, open_storage
from statekeeper.statestore.store.engine.rocks import Database
from tests.support import runs
from tests.support.checkpoints import Checkpoint
from tests.support.faulty_storage import Fault
from tests.support.structures import without_ids
from tests.support.switching import (
    abort,
    contents,
    die_at,
    is_right,
    planned,
    snapshots,
    structure_of,
    switch,
    take_snapshots,
)

_ALL_ROWS = Path(__file__).parents[3] / "fixtures" / "checkpoints" / "spark-4.2.0-v1-aggregation-of-all-rows.zip"


def test_every_store_gets_a_snapshot_at_its_head_in_the_other_structure_with_the_same_rows(
    prepared: dict[Structure, Checkpoint], source: Structure, storage: Storage, tmp_path: Path
) -> None:
    checkpoint = prepared[source].copied_to(storage, tmp_path / "job")
    told = switch(storage, source.other, tmp_path)
    assert structure_of(storage) is source.other
    assert is_right(checkpoint, storage, tmp_path)
    of_head = [version for version in snapshots(storage) if version.version == 6]
    assert len(of_head) == 2
    assert all((version.id is None) == (source is Structure.V2) for version in of_head)
    assert [progress.phase for progress in told][:2] == [RewritePhase.BEGUN, RewritePhase.CLEARED]
    assert told[-1].phase is RewritePhase.ENDED
    assert audit.judge(audit.gather(storage)).findings == ()


def test_after_a_switch_to_v1_no_snapshot_with_an_id_prevents_loads(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V2].copied_to(local, tmp_path / "job")
    before = [store.snapshot(v) for store, files in catalog.files(local).items() for v in files.snapshots]
    switch(local, Structure.V1, tmp_path)
    assert all(version.id is None for version in snapshots(local))
    quarantined = {names.parse_quarantined(entry.path) for entry in local.list(names.QUARANTINE)}
    assert {place[1] for place in quarantined if place} == set(before)


def test_an_existing_snapshot_at_the_head_is_reused_and_only_its_zip_is_uploaded(
    switchable: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = switchable.storage
    switch(storage, source.other, tmp_path)
    tables = {entry.path for entry in storage.list(names.STATE) if entry.path.endswith(".sst")}
    plan = planned(storage, source, tmp_path)
    assert {step.source for step in plan.stores} == {Source.REUSED}
    switch(storage, source, tmp_path)
    assert {entry.path for entry in storage.list(names.STATE) if entry.path.endswith(".sst")} == tables
    assert is_right(switchable, storage, tmp_path)


def test_switchovers_can_be_repeated_in_both_directions(
    switchable: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    storage = switchable.storage
    for number in range(6):
        switch(storage, source.other if number % 2 == 0 else source, tmp_path)
        assert is_right(switchable, storage, tmp_path)
    assert structure_of(storage) is source


def test_an_own_root_is_switched_and_switched_back_with_fresh_digests(local: Storage, tmp_path: Path) -> None:
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


def test_v2_snapshots_for_spark_4_0_have_its_header(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V1].copied_to(local, tmp_path / "job")
    switch(local, Structure.V2, tmp_path, Spark.V4_0)
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


def test_the_spark_release_must_be_given_if_no_sidecar_excludes_4_0(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V1].copied_to(local, tmp_path / "job")
    conf = {key: value for key, value in logs.STATE_CONF.items() if "mergeOperatorVersion" not in key}
    local.replace(
        names.offsets(5),
        logs.encode_offsets(logs.OffsetLog(watermark_ms=0, timestamp_ms=5, conf=conf, sources=('"a source"',))),
    )
    [refusal] = planned(local, Structure.V2, tmp_path).refusals
    assert "add --for-spark" in refusal
    assert not planned(local, Structure.V2, tmp_path, Spark.V4_1).refusals


def test_files_of_the_old_structure_stay_until_the_floor_has_a_base_in_the_new_one(
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
    assert {store.orphan_files for store in audited.stores} == {0}
    take_snapshots(local, tmp_path)
    checkpoint.grow(2)
    assert collect() == set()
    checkpoint.assert_right(tmp_path / "host")


def test_files_of_an_unfinished_batch_are_quarantined(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    checkpoint = prepared[Structure.V1].copied_to(local, tmp_path / "job")
    stray = checkpoint.stores[0].changelog(VersionId(7))
    local.create(stray, b"of the batch that did not end")
    local.create(names.sidecar(stray), b"its sidecar")
    local.create(
        names.offsets(6),
        logs.encode_offsets(
            logs.OffsetLog(watermark_ms=0, timestamp_ms=6, conf=logs.STATE_CONF, sources=('"a source"',))
        ),
    )
    switch(local, Structure.V2, tmp_path)
    assert local.stat(stray) is None
    assert local.stat(names.sidecar(stray)) is None
    assert {names.parse_quarantined(e.path)[1] for e in local.list(names.QUARANTINE)} == {stray, names.sidecar(stray)}
    assert is_right(checkpoint, local, tmp_path)


def test_a_checkpoint_with_findings_is_not_switched(switchable: Checkpoint, source: Structure, tmp_path: Path) -> None:
    storage = switchable.storage
    storage.delete([switchable.stores[1].changelog(version) for version in _changelogs(storage, switchable, 6)])
    before = contents(storage)
    plan = planned(storage, source.other, tmp_path)
    assert any("the audit reports" in refusal for refusal in plan.refusals)
    machine = Machine(scratch=tmp_path, clock=SystemClock(), ids=RandomIds())
    with pytest.raises(RefusedAsUnsafe):
        runs.switch(storage, plan, lambda _: None, run=RandomIds().fresh(), holder="a test", machine=machine)
    assert contents(storage) == before
    assert rewrite_journal.open_journal(storage) is None


def _changelogs(storage: Storage, checkpoint: Checkpoint, number: int) -> list[VersionId]:
    return [v for v in catalog.files(storage)[checkpoint.stores[1]].changelogs if v.version == number]


@pytest.mark.parametrize("field", ["ofALaterSpark", "sinkMetadataMap"])
def test_a_commit_with_unknown_fields_is_not_rewritten(
    switchable: Checkpoint, source: Structure, tmp_path: Path, field: str
) -> None:
    """Sinks are known in commits of version 3 alone."""
    path = names.commits(5)
    head, _, body = switchable.storage.read(path).partition(b"\n")
    later = {**json.loads(body), field: {}}
    switchable.storage.replace(path, head + b"\n" + json.dumps(later).encode())
    [refusal] = planned(switchable.storage, source.other, tmp_path).refusals
    assert "would lose" in refusal


def test_a_checkpoint_with_an_unfinished_offline_repartition_is_not_switched(
    switchable: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    for batch, partitions in ((5, "2"), (6, "4")):
        conf = {**logs.STATE_CONF, logs.SHUFFLE_PARTITIONS: partitions}
        path = names.offsets(batch)
        switchable.storage.replace(
            path,
            logs.encode_offsets(logs.OffsetLog(watermark_ms=0, timestamp_ms=batch, conf=conf, sources=('"a source"',))),
        )
    refusals = planned(switchable.storage, source.other, tmp_path).refusals
    assert "If Spark's offline repartitioning was interrupted, run it again first" in refusals[0]
    assert "If Spark's own repartitioning runs or was interrupted, complete it first" in refusals[1]


def test_without_enough_local_disk_the_switchover_does_not_start(
    switchable: Checkpoint, source: Structure, tmp_path: Path
) -> None:
    gathered = engine.gather(switchable.storage, scratch=tmp_path)
    assert gathered.free_bytes > 0
    full = engine.StoppedQuery(**{**vars(gathered), "free_bytes": 10})
    [refusal] = switchover.plan(full, source.other).refusals
    assert "local disk" in refusal


def test_a_held_lease_blocks_the_switchover(switchable: Checkpoint, source: Structure, tmp_path: Path) -> None:
    storage, run = switchable.storage, RandomIds().fresh()
    before = contents(storage)
    with lease.held(storage, "gc", run=run, holder="another", clock=SystemClock()), pytest.raises(RootHeld):
        switch(storage, source.other, tmp_path)
    assert contents(storage) == before


def test_a_snapshot_with_other_bytes_on_read_back_stops_the_switchover_before_the_commit(
    switchable: Checkpoint, source: Structure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = Database.capture

    def forgetful(database: Database, path: Path) -> None:
        first = next(keys[0] for keys, _ in database.scan())
        database.apply([[(first, None)]], None)
        capture(database, path)

    before = contents(switchable.storage)
    with monkeypatch.context() as patched:
        patched.setattr(Database, "capture", forgetful)
        with pytest.raises(CorruptFile, match="does not contain the state of batch"):
            switch(switchable.storage, source.other, tmp_path)
    assert structure_of(switchable.storage) is source
    abort(switchable.storage)
    assert before.items() <= contents(switchable.storage).items()


def test_a_switchover_started_for_another_spark_is_not_completed_for_this_one(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    prepared[Structure.V1].copied_to(local, tmp_path / "job")
    die_at(local, Structure.V2, tmp_path, lambda request: request.path.endswith("cleared.json"), Fault.AFTER)
    [refusal] = planned(local, Structure.V2, tmp_path, Spark.V4_0).refusals
    assert "Spark 4.0 cannot read" in refusal
    assert not planned(local, Structure.V2, tmp_path, Spark.V4_2).refusals


def test_a_reused_snapshot_is_read_back_under_its_new_name(
    switchable: Checkpoint, source: Structure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = switchable.storage
    take_snapshots(storage, tmp_path, at_head=True)

    def forgetful(snapshot: Snapshot) -> bytes:
        """The options and the manifest are of a database without a table."""
        return encode_snapshot(replace(snapshot, metadata=replace(snapshot.metadata, tables=())))

    with monkeypatch.context() as patched:
        patched.setattr(steps, "encode_snapshot", forgetful)
        patched.setattr(steps, "read_snapshot", lambda body, path: replace(read_snapshot(body, path), digest="another"))
        with pytest.raises(CorruptFile, match="does not contain the state of batch 5"):
            switch(storage, source.other, tmp_path)
    assert structure_of(storage) is source
    abort(storage)
    switch(storage, source.other, tmp_path)
    assert is_right(switchable, storage, tmp_path)


def test_operators_with_one_partition_are_not_switched_to_v2_of_spark_4_0(tmp_path: Path) -> None:
    with zipfile.ZipFile(_ALL_ROWS) as archive:
        archive.extractall(tmp_path)
    storage = open_storage(str(tmp_path / "checkpoint"))
    [refusal] = planned(storage, Structure.V2, tmp_path, Spark.V4_0).refusals
    assert "operator 0 has fewer" in refusal
    assert not planned(storage, Structure.V2, tmp_path, Spark.V4_1).refusals


def test_a_snapshot_at_the_head_with_a_damaged_table_is_rebuilt(
    prepared: dict[Structure, Checkpoint], local: Storage, tmp_path: Path
) -> None:
    checkpoint = prepared[Structure.V1].copied_to(local, tmp_path / "job")
    [store, _] = checkpoint.stores
    take_snapshots(local, tmp_path, at_head=True)
    path = store.snapshot(VersionId(6))
    table = store.table_file(read_snapshot(local.read(path), path).metadata.tables[-1].dfs_name)
    body = local.read(table)
    local.replace(table, body[:30] + bytes(byte ^ 0xFF for byte in body[30:60]) + body[60:])
    told = switch(local, Structure.V2, tmp_path)
    assert any(table in reason for progress in told for reason in progress.skipped_snapshots)
    assert structure_of(local) is Structure.V2
    assert is_right(checkpoint, local, tmp_path)
