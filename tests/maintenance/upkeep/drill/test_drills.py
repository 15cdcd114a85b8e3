"""Drills of checkpoints of each kind: what is restored, with what it is compared, what is recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import RefusedAsUnsafe, RootHeld
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.contents.rows import contents_at, layout, opened
from statekeeper.statestore.format import names, savepoint_names
from statekeeper.statestore.format.hdfs_backed import HdfsBackedWriter
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import drills, history, lease
from statekeeper.statestore.maintenance.records.history import DrilledStore
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.upkeep.drill import Against, Verdict
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import perform
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import edits, mirrors, planted
from tests.support.checkpoints import Checkpoint
from tests.support.clocks import SleeplessClock
from tests.support.drills import by_store, drilled, planned
from tests.support.faulty_storage import Fault, FaultyStorage, Request
from tests.support.maintainers import MAINTAINER
from tests.support.switching import switch, take_snapshots
from tests.support.unpacked import unpacked
from tests.support.written import written_checkpoints

WRITTEN = [*written_checkpoints("v"), *written_checkpoints("hdfs")]
IN_CI = (
    "v1-aggregation.",
    "v1-join-4",
    "v2-transformWithState.",
    "v1-two-operators",
    "hdfs-join-2",
    "v2-repartitioned",
)


def fixture_of(name: str, folder: Path) -> Path:
    [archive] = [path for path in WRITTEN if name in path.name]
    return unpacked(archive, folder)


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(path, id=path.stem.removeprefix("spark-"), marks=[] if some else [pytest.mark.slow])
        for path in WRITTEN
        for some in [any(name in path.name for name in IN_CI)]
    ],
)
def test_each_store_that_spark_wrote_restores_and_the_second_drill_has_the_same_rows(
    archive: Path, tmp_path: Path
) -> None:
    storage = open_storage(str(unpacked(archive, tmp_path / "query")))
    first = drilled(storage, tmp_path / "scratch", sample=100)
    heads = catalog.heads(storage)
    assert heads is not None
    assert by_store(first).keys() == heads.heads.keys()
    assert (first.findings, first.failed) == ([], {})
    assert all(one.digest and one.seconds > 0 for one in first.drilled)
    second = drilled(storage, tmp_path / "scratch", sample=100)
    assert (second.findings, second.failed) == ([], {})
    for one in second.drilled:
        [last] = [comparison for comparison in one.comparisons if comparison.against is Against.LAST_DRILL]
        assert last.is_equal
        # A store without another load is compared with nothing, and equal rows of an unproved drill prove nothing.
        was_proved = by_store(first)[one.action.store].is_proved
        assert one.verdict is (Verdict.SAME if was_proved else Verdict.NOT_COMPARED)


def grown(storage: Storage, folder: Path, structure: Structure) -> Checkpoint:
    """A job root with two snapshots of each store."""
    made = Checkpoint(storage, folder / "hosts", structure=structure)
    for _ in range(2):
        made.grow(2)
        take_snapshots(storage, folder / "scratch")
    made.grow(1)
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("made")
    return grown(open_storage(str(folder / "root")), folder, Structure.V2)


@pytest.fixture
def root(made: Checkpoint, tmp_path: Path) -> Checkpoint:
    return made.copied_to(open_storage(str(tmp_path / "root")), tmp_path / "hosts")


def test_a_root_on_disk_and_in_a_bucket_is_compared_with_the_replay_since_an_older_snapshot(
    storage: Storage, structure: Structure, tmp_path: Path
) -> None:
    root = grown(storage, tmp_path, structure)
    found = drilled(root.storage, tmp_path / "scratch")
    assert found.is_green
    for one, state in zip(found.drilled, reversed(root.states[-1]), strict=True):
        assert one.rows == len(state)
        [comparison] = one.comparisons
        assert comparison.what == "the replay of 3 changelogs since the snapshot of batch 1"
    assert not any((tmp_path / "scratch").glob("drill-*")), "the scratch folders are deleted"


def test_changelogs_in_batch_logs_are_replayed(tmp_path: Path) -> None:
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "hosts", in_batch_logs=True)
    made.grow(3)
    take_snapshots(made.storage, tmp_path / "scratch")
    made.grow(1)
    found = drilled(made.storage, tmp_path / "scratch")
    assert {one.explained for one in found.drilled} == {"equal to the replay of 4 changelogs since the empty state"}
    planted.in_snapshot(made.storage, made.stores[0], made.versions[3][0], lambda rows: {**rows, b"k": b"v"}, tmp_path)
    assert [one.action.store for one in drilled(made.storage, tmp_path / "scratch").findings] == [made.stores[0]]


def test_a_mirror_is_drilled_like_its_source(tmp_path: Path) -> None:
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "hosts")
    made.grow(3)
    take_snapshots(made.storage, tmp_path / "scratch")
    made.grow(1)
    mirror = open_storage(str(tmp_path / "mirror"))
    mirrors.mirrored(made.storage, mirror, tmp_path / "scratch")
    source, copy = (drilled(one, tmp_path / "scratch") for one in (made.storage, mirror))
    assert [one.digest for one in source.drilled] == [one.digest for one in copy.drilled]
    assert not copy.findings


# -- native checkpoints: column families, the default provider, structure V1 --------------------------------------------


def test_a_row_in_another_column_family_is_found(tmp_path: Path) -> None:
    checkpoint = fixture_of("v2-transformWithState.", tmp_path / "query")
    storage = open_storage(str(checkpoint))
    assert not drilled(storage, tmp_path / "scratch", sample=100, mode=Mode.OBSERVE).findings
    take_snapshots(storage, tmp_path / "scratch")
    gathered = snapshot.gather(storage, at_head=True)
    store, head = max((one.store, one.head) for one in gathered.stores)

    def swapped(rows: dict[bytes, bytes]) -> dict[bytes, bytes]:
        first, *_, last = sorted(rows)
        assert first[:2] != last[:2]
        return {**{key: value for key, value in rows.items() if key != first}, last[:2] + first[2:]: rows[first]}

    planted.in_snapshot(storage, store, head, swapped, tmp_path, gathered.conf)
    found = by_store(drilled(storage, tmp_path / "scratch", sample=100))
    assert [one for one, result in found.items() if result.verdict is Verdict.DIFFERS] == [store]
    differences = found[store].comparisons[0].differences
    assert differences is not None
    assert (differences.missing, differences.added, differences.changed) == (1, 1, 0)


def test_a_wrong_row_in_a_snapshot_of_the_default_provider_is_found(tmp_path: Path) -> None:
    checkpoint = fixture_of("hdfs-aggregation.", tmp_path / "query")
    storage = open_storage(str(checkpoint))
    contents = contents_at(storage)
    assert contents is not None
    store, head = max(contents.stores.items())
    how = {"scratch": tmp_path / "scratch", "clock": MAINTAINER.clock, "ids": MAINTAINER.ids}
    with opened(contents, store, layout(contents, store), **how) as rows:  # type: ignore[arg-type]
        [pairs] = rows.pairs()
    values = [*pairs.values[:-1], pairs.values[0]]
    for written, verdict in ((pairs.values, Verdict.SAME), (values, Verdict.DIFFERS)):
        with (checkpoint / store.snapshot(head)).open("wb") as sink:
            writer = HdfsBackedWriter(sink)
            writer.append(pairs.keys, written)
            writer.finish()
        found = by_store(drilled(storage, tmp_path / "scratch", sample=100, mode=Mode.OBSERVE))
        assert found[store].verdict is verdict, found[store].explained
    # A schema that does not decode the rows hides no difference, and no other comparison.
    schema = checkpoint / names.state_schema(store.operator)
    for damage in (lambda: schema.write_bytes(b"?"), schema.unlink):
        damage()
        how_with_spark = {"sample": 100, "mode": Mode.OBSERVE, "against_spark": True}
        all_found = drilled(storage, tmp_path / "scratch", **how_with_spark)
        assert not all_found.failed
        assert by_store(all_found)[store].explained.endswith(": other rows")
        others = [one for one in all_found.drilled if one.action.store != store]
        assert all("Statekeeper does not decode its rows" in one.explained for one in others)


def test_the_newest_snapshot_of_a_running_query_in_structure_v1_is_restored(tmp_path: Path) -> None:
    storage = open_storage(str(fixture_of("v1-aggregation.", tmp_path / "query")))
    heads = catalog.heads(storage)
    assert heads is not None
    running = drilled(storage, tmp_path / "scratch", sample=100, stopped=False, mode=Mode.OBSERVE)
    assert {one.action.version.version for one in running.drilled} == {heads.batch + 1 - 2}
    take_snapshots(storage, tmp_path / "scratch", at_head=True)
    at_head = drilled(storage, tmp_path / "scratch", sample=100, stopped=False, mode=Mode.OBSERVE)
    assert {one.action.version.version for one in at_head.drilled} == {heads.batch + 1}
    assert at_head.is_green


@pytest.mark.parametrize("kind", ["v1-aggregation.", "v2-aggregation."])
def test_an_edit_is_no_difference(kind: str, tmp_path: Path) -> None:
    """It replaces the rows of a version that the last drill restored."""
    storage = open_storage(str(fixture_of(kind, tmp_path / "query")))
    take_snapshots(storage, tmp_path / "scratch", at_head=True)
    assert drilled(storage, tmp_path / "scratch", sample=100).is_green
    edits.apply(storage, edits.goal(k="key 3"), tmp_path / "scratch")
    after = drilled(storage, tmp_path / "scratch", sample=100)
    assert (after.findings, after.failed) == ([], {})
    assert Verdict.NOT_COMPARED in {one.verdict for one in after.drilled}
    again = by_store(drilled(storage, tmp_path / "scratch", sample=100))
    assert {one.digest for one in again.values()} == {one.digest for one in after.drilled}
    for one in after.drilled:
        assert again[one.action.store].verdict is one.verdict, "equal rows of a drill that proved none prove none"


@pytest.mark.parametrize("runs_again", [True, False])
def test_in_structure_v1_a_batch_that_ran_again_is_no_difference_and_a_replaced_file_is_one(
    runs_again: bool, tmp_path: Path
) -> None:
    """Both versions have one number. Only the offsets of the batch tell that it ran again after a rollback."""
    storage = open_storage(str(fixture_of("v1-aggregation.", tmp_path / "query")))
    gathered = snapshot.gather(storage, at_head=True)
    assert not drilled(storage, tmp_path / "scratch", sample=100).findings
    one = next(fact for fact in gathered.stores if fact.load is not None and fact.load.replay)
    planted.in_changelog(storage, one.store, one.head, lambda records: dict(list(records.items())[1:]), gathered.conf)
    if runs_again:
        offsets = names.offsets(one.head.version - 1)
        body = storage.read(offsets)
        storage.replace(offsets, body.replace(b'"batchTimestampMs":', b'"batchTimestampMs":1'))
        assert storage.read(offsets) != body
    found = drilled(storage, tmp_path / "scratch", sample=100)
    assert [result.action.store for result in found.findings] == ([] if runs_again else [one.store])


@pytest.mark.parametrize("kind", ["v1-aggregation.", "v2-aggregation."])
def test_a_switch_to_the_other_structure_is_no_difference(kind: str, tmp_path: Path) -> None:
    storage = open_storage(str(fixture_of(kind, tmp_path / "query")))
    for to in (Structure.V2, Structure.V1, Structure.V2):
        assert not drilled(storage, tmp_path / "scratch", sample=100).findings
        switch(storage, to, tmp_path / "scratch") if kind[:2] != to.value else None
        assert not drilled(storage, tmp_path / "scratch", sample=100).findings
        kind = to.value


# -- stores that do not restore, or not from their newest snapshot ------------------------------------------------------


def test_a_store_without_a_changelog_does_not_restore(root: Checkpoint, tmp_path: Path) -> None:
    root.storage.delete([root.stores[1].changelog(root.versions[-1][1])])
    found = by_store(drilled(root.storage, tmp_path / "scratch"))
    assert found[root.stores[0]].verdict is Verdict.SAME
    assert found[root.stores[1]].verdict is Verdict.LOST
    assert root.stores[1].changelog(root.versions[-1][1]) in found[root.stores[1]].explained


def test_a_torn_snapshot_is_a_finding_although_an_older_base_restores_the_store(
    root: Checkpoint, tmp_path: Path
) -> None:
    path = root.stores[0].snapshot(root.versions[4][0])
    root.storage.replace(path, root.storage.read(path)[:100])
    found = by_store(drilled(root.storage, tmp_path / "scratch"))[root.stores[0]]
    assert found.verdict is Verdict.OLDER_BASE
    assert (path in found.explained, found.base.version, found.rows) == (True, 2, len(root.states[-1][0]))


def test_a_store_whose_rows_cannot_be_compared_is_not_green(tmp_path: Path) -> None:
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "hosts")
    made.grow(2)
    take_snapshots(made.storage, tmp_path / "scratch")
    for store, *versions in zip(made.stores, *made.versions[1:], strict=True):
        made.storage.delete([store.changelog(version) for version in versions])
    found = drilled(made.storage, tmp_path / "scratch")
    assert {one.verdict for one in found.drilled} == {Verdict.NOT_COMPARED}
    assert not found.is_green
    assert all("no changelog of that batch" in one.explained for one in found.drilled)
    second = drilled(made.storage, tmp_path / "scratch")
    assert {one.verdict for one in second.drilled} == {Verdict.NOT_COMPARED}, "the rows of the first are not proved"
    assert all("unchanged since the last drill, of batch 1" in one.explained for one in second.drilled)
    # As soon as another load is there, the rows are proved; then equal rows of the last drill prove as much.
    made.grow(1)
    take_snapshots(made.storage, tmp_path / "scratch")
    assert drilled(made.storage, tmp_path / "scratch").is_green
    gone = [store.snapshot(version) for store, version in zip(made.stores, made.versions[2], strict=True)]
    made.storage.delete(gone)
    last = drilled(made.storage, tmp_path / "scratch")
    assert {one.explained for one in last.drilled} == {"equal to the last drill, of batch 2"}
    assert last.is_green


def test_an_earlier_version_that_is_unchanged_proves_nothing_about_a_newer_snapshot(tmp_path: Path) -> None:
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "hosts")
    made.grow(2)
    take_snapshots(made.storage, tmp_path / "scratch")
    assert drilled(made.storage, tmp_path / "scratch").is_green
    made.grow(1)
    continued = drilled(made.storage, tmp_path / "scratch", mode=Mode.OBSERVE)
    assert continued.is_green
    for store, *versions in zip(made.stores, *made.versions[1:3], strict=True):
        made.storage.delete([store.changelog(version) for version in versions])
    only_last = drilled(made.storage, tmp_path / "scratch", mode=Mode.OBSERVE)
    assert {one.explained for one in only_last.drilled} == {"equal to the last drill, of batch 1"}
    assert only_last.is_green, "the same snapshot, and a changelog since"
    take_snapshots(made.storage, tmp_path / "scratch")
    store, version = made.stores[0], made.versions[3][0]
    for one, newest in zip(made.stores, made.versions[3], strict=True):
        made.storage.delete([one.changelog(newest)])
    planted.in_snapshot(made.storage, store, version, lambda rows: {**rows, b"k": b"v"}, tmp_path)
    found = drilled(made.storage, tmp_path / "scratch", mode=Mode.OBSERVE)
    assert {one.verdict for one in found.drilled} == {Verdict.NOT_COMPARED}, "the present snapshot was not compared"
    assert all("batch 1 is unchanged since the last drill" in one.explained for one in found.drilled)


class NoThirdRead(FaultyStorage):
    """Its reads of a file fail from the third one on, as those of a store that is down."""

    path = ""

    def _fault_of(self, request: Request) -> Fault | None:
        reads = sum(one.path == self.path for one in self.trace)
        return Fault.LOST_REPLY if request.path == self.path and reads > 2 else None


def test_an_error_of_a_later_comparison_hides_no_difference(root: Checkpoint, tmp_path: Path) -> None:
    assert drilled(root.storage, tmp_path / "scratch").is_green
    store, path = root.stores[0], root.stores[0].changelog(root.versions[5][0])
    root.grow(1)
    storage = NoThirdRead(root.storage)
    storage.path = path  # both loads and that of the last drill's version replay it
    failed = drilled(storage, tmp_path / "scratch", mode=Mode.OBSERVE, stores=("0/0",))
    assert [one.what for one in failed.failed.values()] == ["timed out"], "without a difference, it was not examined"
    planted.in_snapshot(root.storage, store, root.versions[4][0], lambda rows: {**rows, b"k": b"v"}, tmp_path)
    storage = NoThirdRead(root.storage)
    storage.path = path
    found = drilled(storage, tmp_path / "scratch", mode=Mode.OBSERVE, stores=("0/0",))
    assert [one.verdict for one in found.findings] == [Verdict.DIFFERS]
    assert [one.is_equal for one in found.drilled[0].comparisons] == [False, None]


def test_an_interrupted_drill_records_the_stores_that_it_restored(root: Checkpoint, tmp_path: Path) -> None:
    def interrupt(step: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform(planned(root.storage, tmp_path / "scratch"), interrupt)
    [store] = drills.read(root.storage)
    [other] = [one.store for one in planned(root.storage, tmp_path / "scratch", sample=1).plan.plan.drill]
    assert other != store, "the next drill continues with the others"


def test_a_long_drill_records_its_results_each_minute(root: Checkpoint, tmp_path: Path) -> None:
    clock, on_record = SleeplessClock(SystemClock().now_seconds()), list[int]()

    def told(step: object) -> None:
        on_record.append(len(drills.read(root.storage)))
        clock.sleep(61)

    perform(planned(root.storage, tmp_path / "scratch", by=replace(MAINTAINER, clock=clock)), told)
    assert on_record == [0, 2]


def test_a_forged_record_names_no_other_path(root: Checkpoint, tmp_path: Path) -> None:
    assert drilled(root.storage, tmp_path / "scratch").is_green
    forged = root.storage.read(names.DRILLS).replace(b'"mark":"', b'"mark":"../../')
    root.storage.replace(names.DRILLS, forged)
    assert drills.read(root.storage) == {}


def test_a_store_whose_files_are_deleted_meanwhile_is_restored_at_the_new_head(tmp_path: Path) -> None:
    """Spark deletes the files of old versions while its query runs."""
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "hosts")
    made.grow(2)
    prepared = planned(made.storage, tmp_path / "scratch")
    made.grow(2)
    take_snapshots(made.storage, tmp_path / "scratch")
    for store, *versions in zip(made.stores, *made.versions[1:-1], strict=True):
        made.storage.delete([store.changelog(version) for version in versions])
    found = perform(prepared).made
    assert found is not None
    assert {one.action.version.version for one in found.drilled} == {4}
    assert not found.findings


# -- what is written ----------------------------------------------------------------------------------------------------


def test_only_the_record_and_the_history_are_written_and_the_batches_are_held(root: Checkpoint, tmp_path: Path) -> None:
    before = {entry.path: entry for entry in root.storage.list("")}
    held: list[str] = []
    prepared = planned(root.storage, tmp_path / "scratch")
    done = perform(prepared, lambda step: held.extend(one.path for one in root.storage.list(savepoint_names.HOLDS)))
    assert done.made is not None
    assert done.made.is_green
    assert held
    after = {entry.path: entry for entry in root.storage.list("")}
    assert {path: after[path] for path in before} == before
    added = after.keys() - before.keys()
    assert names.DRILLS in added
    assert {path.rpartition("/")[0] for path in added - {names.DRILLS}} == {names.HISTORY}
    lines = history.newest_outcome(root.storage, "drill")
    assert [line.store for line in lines if isinstance(line, DrilledStore)] == [
        one.action.store for one in done.made.drilled
    ]


def test_in_mode_observe_nothing_is_written(root: Checkpoint, tmp_path: Path) -> None:
    before = {entry.path: entry for entry in root.storage.list("")}
    done = perform(planned(root.storage, tmp_path / "scratch", mode=Mode.OBSERVE))
    assert done.made is not None
    assert done.made.is_green
    assert {entry.path: entry for entry in root.storage.list("")} == before
    assert any("nothing is recorded" in line for line in done.report().done)


def test_a_drill_waits_for_a_run_that_deletes_files(root: Checkpoint, tmp_path: Path) -> None:
    with lease.held(root.storage, "gc", run="another", holder="another", clock=MAINTAINER.clock):
        prepared = planned(root.storage, tmp_path / "scratch")
        assert [type(one) for one in prepared.refusals] == [RootHeld]


def test_a_store_that_does_not_exist_is_refused(root: Checkpoint, tmp_path: Path) -> None:
    prepared = planned(root.storage, tmp_path / "scratch", stores=("0/0,0/9",))
    with pytest.raises(RefusedAsUnsafe, match="no store '0/9'"):
        perform(prepared)


def test_only_the_requested_stores_are_restored(root: Checkpoint, tmp_path: Path) -> None:
    for given in (("0/1",), ("state/0/1",), ("0/1,0/1",)):
        assert by_store(drilled(root.storage, tmp_path / "scratch", stores=given)).keys() == {StorePath(0, 1)}


def test_a_damaged_record_counts_as_none(root: Checkpoint, tmp_path: Path) -> None:
    assert drilled(root.storage, tmp_path / "scratch").is_green
    root.storage.replace(names.DRILLS, b"{")
    assert drills.read(root.storage) == {}
    again = drilled(root.storage, tmp_path / "scratch")
    assert {one.against for result in again.drilled for one in result.comparisons} == {Against.REPLAY}
    assert drills.read(root.storage).keys() == set(root.stores)


# -- predictions ----------------------------------------------------------------------------------------------------------


def test_later_predictions_use_what_a_drill_measured(root: Checkpoint, tmp_path: Path) -> None:
    before = snapshot.gather(root.storage, at_head=True)
    assert drilled(root.storage, tmp_path / "scratch").is_green
    measured = {"base_seconds": 2.0, "replay_seconds": 0.5}
    slow = {store: structs.replace(one, **measured) for store, one in drills.read(root.storage).items()}
    drills.add(root.storage, slow, root.stores)
    root.grow(1)
    after = snapshot.gather(root.storage, at_head=True).corrected_by(drills.read(root.storage))
    assert all(before.restore_seconds(fact) < 0.1 for fact in before.stores)
    # A snapshot takes 2 s, and each of the two changelogs half a second.
    assert [after.restore_seconds(fact) for fact in after.stores] == [pytest.approx(3.0)] * 2
    assert drilled(root.storage, tmp_path / "scratch").drilled[0].action.facts.predicted_seconds == pytest.approx(3.0)
