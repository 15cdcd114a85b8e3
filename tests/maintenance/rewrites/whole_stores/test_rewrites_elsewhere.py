"""Rewrites whose work on stores is done by tasks elsewhere: they hand the rows to each other through the root's storage."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.format import names
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine import Progress, RewritePhase
from statekeeper.statestore.maintenance.rewrites.whole_stores import Convert, Goal
from statekeeper.statestore.maintenance.upkeep.retention import Rule
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.migrate import Migrate
from statekeeper.statestore.storage import TEMP_FOLDER, Storage, open_storage
from tests.support.apart import elsewhere
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash
from tests.support.keyed_roots import KeyedRoot
from tests.support.loads import load, savepoint
from tests.support.maintainers import MAINTAINER
from tests.support.placed_rows import placed_rows
from tests.support.rescales import abort, all_rows, rescale
from tests.support.retention import planned, rules
from tests.support.s3_server import S3Server
from tests.support.switching import WRITES, after_the_dead
from tests.support.twins import clean
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[3] / "fixtures" / "checkpoints"
AGGREGATION = FIXTURES / "spark-4.2.0-v2-aggregation.zip"


def left_behind(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list(TEMP_FOLDER)]


@pytest.mark.parametrize(
    ("archive", "goal"),
    [
        ("v2-aggregation", 5),
        ("v1-join-4-checksums-and-commas", 3),
        ("v2-transformWithState", 3),
        ("hdfs-sessions-snappy", Convert(Provider.ROCKSDB, Structure.V2)),
        ("v1-windows-lzf", Convert(Provider.HDFS_BACKED)),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_tasks_elsewhere_write_the_same_rows(archive: str, goal: int | Goal, tmp_path: Path) -> None:
    checkpoint = unpacked(FIXTURES / f"spark-4.2.0-{archive}.zip", tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)
    cluster = elsewhere()
    rescale(storage, goal, tmp_path, cluster=cluster)
    assert {"SortEach", "BuildEach", "ReadBackEach"} == set(cluster.ran)
    assert all_rows(checkpoint) == before
    if isinstance(goal, int):
        assert +placed_rows(checkpoint, tmp_path / "placed").elsewhere == {}
    clean(storage, tmp_path)
    assert left_behind(storage) == []


def test_tasks_elsewhere_rescale_a_state_root_and_its_job_continues(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    root = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path)
    root.grow(3)
    rescale(root.storage, 5, tmp_path, cluster=elsewhere())
    root.assert_right(5)
    root.grow(1)
    root.assert_right(5)
    clean(root.storage, tmp_path)


def test_tasks_elsewhere_load_a_savepoint(tmp_path: Path) -> None:
    source = unpacked(FIXTURES / "spark-4.2.0-v2-transformWithState.zip", tmp_path / "source")
    of = savepoint(open_storage(str(source)), tmp_path / "savepoint")
    checkpoint = unpacked(FIXTURES / "spark-4.2.0-v2-transformWithState.zip", tmp_path / "target")
    storage, cluster, shown = open_storage(str(checkpoint)), elsewhere(), list[Progress]()
    rescale(storage, 3, tmp_path)
    load(storage, of, tmp_path, cluster=cluster, progress=shown.append)
    assert {"VerifyEach", "SortEachPart", "BuildEach", "ReadBackEach"} == set(cluster.ran)
    assert all_rows(checkpoint) == all_rows(source)
    assert +placed_rows(checkpoint, tmp_path / "placed").elsewhere == {}
    clean(storage, tmp_path)
    assert left_behind(storage) == []
    rows = sum(all_rows(source).values())
    for phase in (RewritePhase.VERIFIED, RewritePhase.READ):
        assert [(one.done, one.of) for one in shown if one.phase is phase][-1] == (rows, rows)


def test_tasks_elsewhere_load_a_savepoint_into_a_state_root(tmp_path: Path) -> None:
    source = KeyedRoot(open_storage(str(tmp_path / "source")), tmp_path / "a", partitions=4, key_groups=64)
    source.grow(2)
    of = savepoint(source.storage, tmp_path / "savepoint")
    root = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path / "b", partitions=3, key_groups=50)
    root.grow(1)
    load(root.storage, of, tmp_path, cluster=elsewhere())
    root.rows = dict(source.rows)
    root.assert_right(3)
    clean(root.storage, tmp_path)


@pytest.mark.parametrize(
    ("old", "blueprint"),
    [("v1-aggregation", "v2-aggregation"), ("v1-transformWithState-checksums-and-commas", "v2-transformWithState")],
)
def test_tasks_elsewhere_migrate_a_query(old: str, blueprint: str, tmp_path: Path) -> None:
    before = unpacked(FIXTURES / f"spark-4.2.0-{old}.zip", tmp_path / "old")
    wanted = unpacked(FIXTURES / f"spark-4.2.0-{blueprint}.zip", tmp_path / "blueprint")
    new, cluster = tmp_path / "new", elsewhere()
    verb = Migrate(blueprint=str(wanted), destination=str(new), partitions=3)
    run = Run(storage=open_storage(str(before)), by=MAINTAINER, scratch=tmp_path, stopped=True, cluster=cluster)
    done = perform(prepare(verb, run))
    assert done.is_done
    assert {"SortEach", "BuildEach", "ReadBackEach"} == set(cluster.ran)
    assert all_rows(new) == all_rows(before)
    clean(open_storage(str(new)), tmp_path)
    assert left_behind(open_storage(str(new))) == []


def test_tasks_elsewhere_rescale_a_checkpoint_in_a_bucket(s3_server: S3Server, tmp_path: Path) -> None:
    url = f"s3://{s3_server.make_bucket()}/root"
    root = KeyedRoot(open_storage(url, options=s3_server.options), tmp_path, partitions=2)
    root.grow(2)
    rescale(root.storage, 3, tmp_path, cluster=elsewhere())
    root.assert_right(3)
    clean(root.storage, tmp_path)
    assert left_behind(root.storage) == []


@pytest.mark.parametrize("goal", [3, Convert(Provider.HDFS_BACKED)], ids=["rescale", "convert"])
def test_two_attempts_at_each_task_at_once_write_the_same_rows_and_leave_nothing_behind(
    goal: int | Goal, tmp_path: Path
) -> None:
    checkpoint = unpacked(FIXTURES / "spark-4.2.0-v1-aggregation.zip", tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)
    rescale(storage, goal, tmp_path, cluster=elsewhere(twice=True))
    assert all_rows(checkpoint) == before
    clean(storage, tmp_path)
    assert left_behind(storage) == []
    assert unnamed_tables(storage) == set()


def unnamed_tables(storage: Storage) -> set[str]:
    """The tables of the newest rewrite that no snapshot of it names."""
    newest = rewrite_journal.newest_journal(storage)
    assert newest is not None
    run = f"-{newest.begun.run}.sst"
    named = {
        table.dfs_name
        for store, version in newest.begun.stores.items()
        if store.provider is Provider.ROCKSDB and storage.stat(store.snapshot(version)) is not None
        for table in read_snapshot(storage.read(store.snapshot(version)), "").metadata.tables
    }
    return {name for entry in storage.list("state") if (name := entry.path.rpartition("/")[2]).endswith(run)} - named


@pytest.mark.parametrize("dies_at", ["made-0-0", "made-0-4"], ids=["one store is noted", "all stores are noted"])
@pytest.mark.parametrize("is_here", [False, True], ids=["elsewhere", "here"])
def test_the_next_run_deletes_the_tables_of_other_attempts_that_a_killed_one_has_left(
    is_here: bool, dies_at: str, tmp_path: Path
) -> None:
    checkpoint = unpacked(AGGREGATION, tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.AFTER if request.kind in WRITES and dies_at in request.path else None

    with pytest.raises(SimulatedCrash):
        rescale(Dying(storage), 5, tmp_path, cluster=elsewhere(sends=False, workers=1, twice=True))
    assert unnamed_tables(storage) != set()
    rescale(storage, 5, tmp_path, clock=after_the_dead(), cluster=None if is_here else elsewhere())
    assert unnamed_tables(storage) == set()
    assert all_rows(checkpoint) == before
    clean(storage, tmp_path)


def zips(storage: Storage) -> list[str]:
    return [entry.path for entry in storage.list("state") if entry.path.endswith(".zip")]


@pytest.mark.parametrize("archive", ["v1-aggregation", "v2-aggregation"])
@pytest.mark.parametrize("is_rolled_back", [False, True], ids=["completed", "rolled back"])
def test_attempts_that_stall_until_the_rewrite_has_ended_give_no_snapshot_its_name(
    is_rolled_back: bool, archive: str, tmp_path: Path
) -> None:
    """In structure V1, the query would load a snapshot by its number, whatever rewrite it is of."""
    checkpoint = unpacked(FIXTURES / f"spark-4.2.0-{archive}.zip", tmp_path)
    storage, before, handed = open_storage(str(checkpoint)), all_rows(checkpoint), dict[str, bytes]()

    def look(task: str) -> None:
        if task == "ReadBackEach":
            handed.update({path: storage.read(path) for path in left_behind(storage)})
            if is_rolled_back:
                raise RuntimeError("this process is lost")

    cluster = elsewhere(before=look)
    if is_rolled_back:
        with pytest.raises(RuntimeError, match="is lost"):
            rescale(storage, 5, tmp_path, cluster=cluster)
        abort(storage)
    else:
        rescale(storage, 5, tmp_path, cluster=cluster)
    named = zips(storage)
    for path, body in handed.items():
        storage.create(path, body)  # the attempts have read it before they stalled
    for attempt in cluster.late:
        with suppress(ObjectMissing):
            attempt()
    assert len(left_behind(storage)) > len(handed) > 0
    assert zips(storage) == named
    assert all_rows(checkpoint) == before
    rescale(storage, 3, tmp_path)
    assert all_rows(checkpoint) == before


@pytest.mark.parametrize(
    ("dies_at", "again"),
    [
        ("source-1", {"SortEach", "BuildEach", "ReadBackEach"}),
        ("target-2", {"BuildEach", "ReadBackEach"}),
        ("made-0-1", {"ReadBackEach"}),
    ],
)
def test_the_next_run_uses_what_the_tasks_of_a_killed_one_have_finished(
    dies_at: str, again: set[str], tmp_path: Path
) -> None:
    checkpoint = unpacked(AGGREGATION, tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.BEFORE if request.kind in WRITES and dies_at in request.path else None

    with pytest.raises(SimulatedCrash):
        rescale(Dying(storage), 5, tmp_path, cluster=elsewhere(sends=False, workers=1))
    assert left_behind(storage) != []
    cluster = elsewhere()
    rescale(storage, 5, tmp_path, clock=after_the_dead(), cluster=cluster)
    assert set(cluster.ran) == again
    assert len(cluster.ran) < 2 + 5 + 5
    assert all_rows(checkpoint) == before
    clean(storage, tmp_path)
    assert left_behind(storage) == []


def test_a_run_on_this_machine_completes_one_elsewhere_and_the_reverse(tmp_path: Path) -> None:
    for number, (first, second) in enumerate([(elsewhere(sends=False, workers=1), None), (None, elsewhere())]):
        checkpoint = unpacked(AGGREGATION, tmp_path / str(number))
        storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)

        class Dying(FaultyStorage):
            def _fault_of(self, request: Request) -> Fault | None:
                return Fault.AFTER if request.kind in WRITES and "made-0-2" in request.path else None

        with pytest.raises(SimulatedCrash):
            rescale(Dying(storage), 5, tmp_path, cluster=first)
        rescale(storage, 5, tmp_path, clock=after_the_dead(), cluster=second)
        assert all_rows(checkpoint) == before
        clean(storage, tmp_path)
        assert left_behind(storage) == []


def without_a_row(storage: Storage, path: str) -> bytes:
    """The runs of a source, without the first row of the first run."""
    body = storage.read(path)
    with pa.ipc.open_stream(body) as stream:
        batches, schema = list(stream), stream.schema
    size, sink = len(body), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for number, batch in enumerate(batches):
            writer.write_batch(batch.slice(1) if number == 0 else batch)
    made = bytes(sink.getvalue().to_pybytes())
    assert len(made) <= size
    return made + bytes(size - len(made))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without_a_row, "the rewritten rows of store default differ from the rows that were read"),
        (lambda storage, path: storage.read(path)[:-1], "is damaged: it ends after"),
        (lambda storage, path: b"x" * len(storage.read(path)), "is damaged: it cannot be read as sorted rows"),
    ],
    ids=["one row lost", "torn", "overwritten"],
)
def test_rows_that_are_lost_on_the_way_stop_the_rewrite_before_anything_is_published(
    change: Callable[[Storage, str], bytes], problem: str, tmp_path: Path
) -> None:
    checkpoint = unpacked(AGGREGATION, tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)
    named = zips(storage)

    def lose(task: str) -> None:
        if task == "BuildEach":
            rows = next(path for path in left_behind(storage) if path.endswith(".rows"))
            storage.replace(rows, change(storage, rows))

    with pytest.raises(CorruptFile, match=problem):
        rescale(storage, 1, tmp_path, cluster=elsewhere(before=lose))
    assert zips(storage) == named
    assert all_rows(checkpoint) == before
    assert left_behind(storage) == []
    rescale(storage, 1, tmp_path, cluster=elsewhere())
    assert all_rows(checkpoint) == before
    clean(storage, tmp_path)


@pytest.mark.parametrize(("age", "rule"), [(23 * 3600, Rule.YOUNG), (25 * 3600, Rule.LEFTOVER)])
def test_gc_deletes_what_a_task_wrote_after_the_end_of_its_rewrite(age: int, rule: Rule, tmp_path: Path) -> None:
    checkpoint = unpacked(AGGREGATION, tmp_path)
    storage = open_storage(str(checkpoint))
    path = f"{names.handed_over('a run', 0)}/{names.handed('target', 3, 'an attempt', 'snapshot')}"
    storage.create(path, b"late")
    written = SystemClock().now_seconds() - age
    os.utime(checkpoint / path, (written, written))
    storage.replace(f"{names.PENDING}/now", b"")
    assert rules(planned(storage))[path] is rule


def test_the_files_of_a_conversion_have_the_mode_of_those_of_the_query(tmp_path: Path) -> None:
    checkpoint = unpacked(FIXTURES / "spark-4.2.0-v1-aggregation.zip", tmp_path)
    for path in checkpoint.rglob("*"):
        if path.is_file():
            path.chmod(0o640)
    storage = open_storage(str(checkpoint))
    storage.create(f"{TEMP_FOLDER}/unfinished", b"")
    (checkpoint / TEMP_FOLDER / "unfinished").chmod(0o600)
    rescale(storage, Convert(Provider.HDFS_BACKED), tmp_path, cluster=elsewhere())
    assert {path.stat().st_mode & 0o777 for path in checkpoint.glob("state/0/*/*.snapshot")} == {0o640}


def test_the_scratch_of_a_rewrite_is_where_no_listing_of_the_checkpoint_sees_it() -> None:
    assert names.handed_over("a run").startswith(f"{TEMP_FOLDER}/")
