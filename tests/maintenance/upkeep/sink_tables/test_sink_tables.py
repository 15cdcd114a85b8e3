"""The table of a query keeps each version that a rewind or a reader needs, and its small files become few."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import Field
from deltalake.schema import PrimitiveType

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import NotACheckpoint, RefusedAsUnsafe, UnsupportedTable
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.maintenance.records import useless_merges
from statekeeper.statestore.maintenance.rollback import rewind
from statekeeper.statestore.maintenance.upkeep import sink_tables
from statekeeper.statestore.maintenance.upkeep.sink_tables import Optimized, Outcome
from statekeeper.statestore.maintenance.verbs.contract import Prepared, perform, prepare
from statekeeper.statestore.maintenance.verbs.optimize import Optimize
from statekeeper.statestore.storage import open_storage
from tests.support import verbs
from tests.support.checkpoints import copy_files
from tests.support.roots import OTHER_QUERY, QUERY
from tests.support.s3_server import S3Server
from tests.support.sink_tables import DAY, FILES, WrittenRoot, in_days, optimized, planned, rows_of_batch, written
from tests.support.unpacked import unpacked

NATIVE = Path(__file__).parents[3] / "fixtures" / "checkpoints" / "spark-4.2.0-v2-aggregation.zip"


@pytest.fixture
def made(tmp_path: Path) -> WrittenRoot:
    return written(tmp_path, 6)


def test_small_files_become_one_in_a_commit_that_changes_no_row(made: WrittenRoot, tmp_path: Path) -> None:
    rows, version = made.rows(), made.opened().version()
    done = optimized(made, tmp_path / "scratch")
    assert (done.merges[0].files, done.merges[0].made, done.merges[0].version) == (6 * FILES, 1, version + 1)
    assert made.rows() == rows
    assert made.opened().version() == version + 1
    assert len(made.opened().file_uris()) == 1
    commit = [
        json.loads(line) for line in (tmp_path / f"table/_delta_log/{version + 1:020}.json").read_text().splitlines()
    ]
    files = [one.get("add") or one["remove"] for one in commit if "commitInfo" not in one]
    assert len(files) == 6 * FILES + 1
    assert not any(file["dataChange"] for file in files)
    assert not any("txn" in one for one in commit)
    assert not planned(made, tmp_path / "scratch").may_start
    # A rewind reverts it, which takes no row away.
    assert rewind.delta_position(made.table, {QUERY}, 3).others == ()


def test_an_unneeded_file_is_deleted_and_each_retained_batch_can_be_restored(made: WrittenRoot, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    made.retain(3, scratch)
    optimized(made, scratch)
    made.grow(2)
    optimized(made, scratch)
    made.assert_all_retained_batches_can_be_restored()
    # All batches but the newest one were before the first merge.
    assert planned(made, scratch, by=in_days(30)).plan.plan.deletions == []
    made.grow(6)
    made.retain(3, scratch)
    before = made.data_files()
    done = optimized(made, scratch, by=in_days(30))
    assert sum(one.files for one in done.removals) == len(before - made.data_files()) == 8 * FILES + 1
    made.assert_all_retained_batches_can_be_restored()
    # What is left is needed: the next run deletes nothing, and without one of the files a version is lost.
    assert planned(made, scratch, by=in_days(30)).plan.plan.deletions == []


def test_the_check_of_the_retained_batches_detects_a_deletion_below_the_oldest_one(
    made: WrittenRoot, tmp_path: Path
) -> None:
    """The negative control: VACUUM of Delta without regard to the root."""
    optimized(made, tmp_path / "scratch")
    made.grow(1)
    made.opened().vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(Exception, match=r"(?i)not found|no such file|object at location|failed to open"):
        made.assert_all_retained_batches_can_be_restored()


def test_without_the_bound_of_the_rewind_a_retained_batch_is_lost(
    made: WrittenRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of our own deletion: a plan that keeps only the newest version."""
    optimized(made, tmp_path / "scratch")
    made.grow(1)
    monkeypatch.setattr(import_module(f"{sink_tables.__name__}.plan"), "_kept_from", lambda facts: facts.version)
    optimized(made, tmp_path / "scratch", by=in_days(30))
    with pytest.raises(Exception, match=r"(?i)not found|no such file|object at location|failed to open"):
        made.assert_all_retained_batches_can_be_restored()


def test_the_table_of_a_native_query_is_found_by_its_id(tmp_path: Path) -> None:
    checkpoint = open_storage(str(unpacked(NATIVE, tmp_path / "checkpoint")))
    query = logs.parse_metadata(checkpoint.read("metadata"), "metadata")
    made = written(tmp_path, 0)
    for batch in range(2):
        made.write(batch, application=query)
    native = replace(made, root=replace(made.root, storage=checkpoint))
    found = planned(native, tmp_path / "scratch")
    assert (found.plan.gathered.query_ids, found.plan.gathered.held) == ({query}, 1)
    assert (found.plan.plan.merged_files, [one.code for one in found.refusals]) == (2 * FILES, ["refused_as_unsafe"])
    assert "--mode full" in str(found.refusals[0])


def test_a_file_stays_for_readers_after_no_rewind_needs_it(made: WrittenRoot, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    optimized(made, scratch)
    made.grow(2)
    made.retain(1, scratch)
    version = made.opened().version()
    assert planned(made, scratch, by=in_days(6)).plan.plan.deletions == []
    shown = planned(made, scratch, by=in_days(6)).report().record["rules"]
    assert shown["readers"]["files"] == 6 * FILES
    assert planned(made, scratch, by=in_days(6), keep_readers_seconds=5 * DAY).plan.plan.merged_files >= 0
    assert len(planned(made, scratch, by=in_days(6), keep_readers_seconds=5 * DAY).plan.plan.deletions) == 6 * FILES
    made.opened().alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 2 weeks"})
    for days, expected in ((13, 0), (15, 6 * FILES)):
        assert len(planned(made, scratch, by=in_days(days)).plan.plan.deletions) == expected
    assert made.opened().version() == version + 1


def test_a_file_that_no_version_names_stays_while_a_batch_may_commit_it(made: WrittenRoot, tmp_path: Path) -> None:
    scratch, table = tmp_path / "scratch", tmp_path / "table"
    left = {
        "part-00000-6a1a5e1c-3c6c-4d6c-9a54-0a1b2c3d4e5f.snappy.parquet": True,
        "deletion_vector_6a1a5e1c-3c6c-4d6c-9a54-0a1b2c3d4e5f.bin": True,
        "_change_data/cdc-00000-6a1a5e1c.parquet": True,
        "notes.parquet": False,
        "other/part-00000-6a1a5e1c.parquet": False,
        "batch=1/part-00000-6a1a5e1c.parquet": False,
        "_checkpoints/0": False,
    }
    for name in left:
        (table / name).parent.mkdir(exist_ok=True)
        (table / name).write_bytes(b"rows")
    # Another table in a folder of this one.
    nested = written(table / "nested", 1)
    for days in (0, 6):
        assert planned(made, scratch, by=in_days(days)).plan.plan.deletions == []
    assert planned(made, scratch, by=in_days(0.9), keep_readers_seconds=0.0).plan.plan.deletions == []
    deleted = planned(made, scratch, by=in_days(8)).plan.plan.deletions
    assert {one.path for one in deleted} == {name for name, is_of_table in left.items() if is_of_table}
    optimized(made, scratch, by=in_days(8))
    assert nested.rows() == rows_of_batch(0)
    assert {name for name in left if (table / name).exists()} == {name for name, one in left.items() if not one}


def test_the_files_of_an_interrupted_batch_stay_until_the_query_restarts(made: WrittenRoot, tmp_path: Path) -> None:
    """They are weeks old, and no version of the table names them: only the record of the attempt in the root does."""
    recorded, lost = (f"part-00000-{RandomIds().fresh()}.snappy.parquet" for _ in range(2))
    for name in (recorded, lost):
        (tmp_path / "table" / name).write_bytes(b"rows")
    files = [
        {"path": recorded, "size_bytes": 4, "modified_at_milliseconds": 0, "partition_values": {}, "statistics": ""}
    ]
    record = {"outputs": {"output": {"columns": "", "files": files}}}
    made.root.storage.create(names.pending(made.newest + 1, RandomIds().fresh()), json.dumps(record).encode())
    prepared = planned(made, tmp_path / "scratch", by=in_days(90))
    assert [one.path for one in prepared.plan.plan.deletions] == [lost]
    assert prepared.report().record["rules"]["interrupted"]["files"] == 1


def test_a_file_that_a_restore_adds_again_after_the_plan_is_not_deleted(made: WrittenRoot, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    optimized(made, scratch)
    made.grow(1)
    made.retain(1, scratch)
    prepared = planned(made, scratch, by=in_days(30), no_compact=True)
    assert len(prepared.plan.plan.deletions) == 6 * FILES
    made.opened().restore(6)
    done = executed(made, prepared, scratch)
    assert [(one.files, len(one.spared)) for one in done.removals] == [(0, 6 * FILES)]
    assert made.rows() == [row for batch in range(6) for row in rows_of_batch(batch)]


def test_batches_that_are_committed_during_a_merge_stay_and_the_merge_follows_them(
    made: WrittenRoot, tmp_path: Path
) -> None:
    prepared = planned(made, tmp_path / "scratch")
    made.grow(2)
    version = made.opened().version()
    done = executed(made, prepared, tmp_path / "scratch")
    assert [one.version for one in done.committed] == [version + 1]
    assert made.rows() == [row for batch in range(8) for row in rows_of_batch(batch)]
    assert len(made.opened().file_uris()) == 1 + 2 * FILES
    made.assert_all_retained_batches_can_be_restored()


@pytest.mark.parametrize("what", ["rows", "columns"])
def test_a_merge_is_dropped_if_another_program_has_changed_its_files_or_the_table(
    made: WrittenRoot, tmp_path: Path, what: str
) -> None:
    prepared = planned(made, tmp_path / "scratch")
    if what == "rows":
        made.opened().delete("batch = 1")
    else:
        made.opened().alter.add_columns(Field("note", PrimitiveType("string"), nullable=True))
    rows, files = made.rows(), made.data_files()
    done = executed(made, prepared, tmp_path / "scratch")
    assert [one.outcome for one in done.merges] == [Outcome.CHANGED if what == "rows" else Outcome.OTHER_TABLE]
    assert (made.rows(), made.data_files()) == (rows, files)
    assert optimized(made, tmp_path / "scratch").committed, "the next run merges what is there now"
    assert made.rows() == rows


def executed(made: WrittenRoot, prepared: Prepared[Any, Any, Optimized], scratch: Path) -> Optimized:
    """Execute a plan although the table has changed since."""
    return sink_tables.execute(
        prepared.plan.gathered,
        made.table,
        prepared.plan.plan,
        file_bytes=1 << 20,
        scratch=scratch,
        clock=SystemClock(),
        ids=RandomIds(),
    )


def test_each_partition_is_merged_by_itself(tmp_path: Path) -> None:
    made = written(tmp_path, 3, partition_by=("batch",))
    assert planned(made, tmp_path / "scratch").plan.plan.bins == (), "three files of a partition are too few"
    half = WrittenRoot(made.root, open_storage(str(tmp_path / "halves")), partition_by=("half",))
    for batch in range(3):
        half.write(batch)
    rows = half.rows()
    done = optimized(half, tmp_path / "scratch")
    assert [(one.bins, one.made) for one in done.committed] == [(2, 2)]
    assert half.rows() == rows
    assert {row["half"] for row in rows} == {"even", "odd"}
    assert half.opened().to_pyarrow_table(filters=[("half", "=", "odd")]).num_rows == len(rows) / 2


def test_a_table_is_cleaned_from_its_checkpoint_after_delta_has_deleted_old_commits(
    made: WrittenRoot, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    optimized(made, scratch)
    made.opened().create_checkpoint()
    made.grow(3)
    for path in (tmp_path / "table/_delta_log").glob("*.json"):
        if int(path.stem) <= 6:
            path.unlink()
    prepared = planned(made, scratch, by=in_days(30))
    [finding] = [one for one in prepared.plan.plan.findings if "no longer has the version of batch 0" in one]
    assert "delta.logRetentionDuration" in finding
    # Only the versions that can still be read keep their files.
    assert len(prepared.plan.plan.deletions) == 6 * FILES - 0
    optimized(made, scratch, by=in_days(30))
    assert made.rows(7) == [row for batch in range(6) for row in rows_of_batch(batch)]
    made.retain(2, scratch)
    assert not [one for one in planned(made, scratch).plan.plan.findings if "no longer has" in one]
    made.assert_all_retained_batches_can_be_restored()


def test_the_retention_of_the_log_must_be_longer_than_the_age_of_the_oldest_batch(
    made: WrittenRoot, tmp_path: Path
) -> None:
    found = {days: planned(made, tmp_path / "scratch", by=in_days(days)).plan.plan.findings for days in (1, 6, 27)}
    assert [len(one) for one in found.values()] == [0, 1, 2]
    assert "SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 13 days')" in found[6][0]
    assert "SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 55 days')" in found[27][0]


def test_the_table_of_another_query_or_of_two_jobs_is_refused(made: WrittenRoot, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    other = WrittenRoot(made.root, made.table, query=OTHER_QUERY)
    other.write(0)
    with pytest.raises(RefusedAsUnsafe, match=f"--retired-query {OTHER_QUERY}"):
        optimized(made, scratch)
    assert planned(made, scratch, no_vacuum=True).may_start
    assert optimized(made, scratch, retired_queries=(OTHER_QUERY,)).committed
    foreign = WrittenRoot(made.root, open_storage(str(tmp_path / "foreign")), query=OTHER_QUERY)
    foreign.write(0)
    with pytest.raises(RefusedAsUnsafe, match="has no batch of the query"):
        optimized(foreign, scratch)
    with pytest.raises(NotACheckpoint, match="is no Delta table"):
        planned(WrittenRoot(made.root, open_storage(str(tmp_path / "nothing"))), scratch)


def test_a_table_of_two_native_queries_is_refused_with_a_command_that_names_both_others(tmp_path: Path) -> None:
    checkpoint = open_storage(str(unpacked(NATIVE, tmp_path / "checkpoint")))
    query = logs.parse_metadata(checkpoint.read("metadata"), "metadata")
    made = written(tmp_path, 0)
    third = "33333333-0000-4000-8000-000000000000"
    for number, application in enumerate((query, OTHER_QUERY, third)):
        made.write(number, application=application)
    native = replace(made, root=replace(made.root, storage=checkpoint))
    [refusal] = planned(native, tmp_path / "scratch").plan.plan.refusals
    assert isinstance(refusal, RefusedAsUnsafe)
    command = str(refusal).partition("run: ")[2].split()
    assert command[:2] == ["statekeeper", "optimize"]
    assert command[-4:] == ["--retired-query", OTHER_QUERY, "--retired-query", third]
    retired = {"retired_queries": (OTHER_QUERY, third)}
    assert planned(native, tmp_path / "scratch", **retired).plan.plan.refusals == ()
    with pytest.raises(RefusedAsUnsafe, match="unknown query"):
        rewind.delta_position(made.table, {query}, 0)


FEATURES = {
    "delta.columnMapping.mode": ("name", "column mapping", True),
    "delta.enableRowTracking": ("true", "row tracking", True),
    "delta.universalFormat.enabledFormats": ("iceberg", "metadata in the format of iceberg", False),
}


@pytest.mark.parametrize("name", FEATURES)
def test_a_table_with_a_feature_that_only_spark_can_keep_is_refused(
    made: WrittenRoot, tmp_path: Path, name: str
) -> None:
    value, text, can_delete = FEATURES[name]
    add_property(made, name, value)
    with pytest.raises(UnsupportedTable, match=text):
        optimized(made, tmp_path / "scratch")
    assert (planned(made, tmp_path / "scratch", no_compact=True).refusals == ()) is can_delete


def add_property(made: WrittenRoot, name: str, value: str) -> None:
    """Commit a property that `deltalake` does not support."""
    log = Path(made.url, "_delta_log")
    first = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    [metadata] = [one["metaData"] for one in first if "metaData" in one]
    metadata["configuration"] = {**metadata["configuration"], name: value}
    (log / f"{made.opened().version() + 1:020}.json").write_text(json.dumps({"metaData": metadata}) + "\n")


def test_files_that_spark_writes_to_s3_are_merged_only_while_the_query_is_stopped(
    made: WrittenRoot, tmp_path: Path, s3_server: S3Server
) -> None:
    bucket = open_storage(f"s3://{s3_server.make_bucket()}/table", options=s3_server.options)
    copy_files(made.table, bucket)
    newest = f"_delta_log/{made.opened().version():020}.json"
    of_spark = bucket.read(newest).replace(b"delta-rs:py-", b"Apache-Spark/4.2.0 Delta-Lake/")
    bucket.replace(newest, of_spark)
    in_bucket = WrittenRoot(made.root, bucket)
    running = planned(in_bucket, tmp_path / "scratch")
    assert (running.plan.plan.bins, running.may_start) == ((), False)
    assert "Spark writes the table on S3" in running.plan.plan.notes[0]
    stopped = planned(in_bucket, tmp_path / "scratch", stopped=True)
    assert (len(stopped.plan.plan.bins), stopped.plan.plan.needs_stopped) == (1, True)


@pytest.mark.parametrize("operation", ["OPTIMIZE", "RESTORE"])
def test_an_older_commit_of_spark_counts_unless_it_was_a_statement_of_a_person(
    made: WrittenRoot, tmp_path: Path, operation: str
) -> None:
    log = tmp_path / "table/_delta_log"
    info = {"commitInfo": {"operation": operation, "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.2.0"}}
    (log / f"{made.opened().version() + 1:020}.json").write_text(json.dumps(info) + "\n")
    made.grow(1)
    found = planned(made, tmp_path / "scratch").plan.plan
    assert (found.bins == ()) is (operation == "OPTIMIZE")
    assert [*found.notes] == [] or "local disk" in found.notes[0]


def test_the_change_data_feed_of_a_readable_version_stays(made: WrittenRoot, tmp_path: Path) -> None:
    scratch, table = tmp_path / "scratch", tmp_path / "table"
    (table / "_change_data").mkdir()
    feeds = ["_change_data/cdc-1.parquet", "_change_data/cdc-2.parquet"]
    for name in feeds:
        (table / name).write_bytes(b"rows")
    version = made.opened().version()
    for number, name in enumerate(feeds):
        cdc = {"cdc": {"path": name, "partitionValues": {}, "size": 4, "dataChange": False}}
        actions = [{"commitInfo": {"operation": "DELETE", "engineInfo": "delta-rs:py-1"}}, cdc]
        (table / f"_delta_log/{version + 1 + number:020}.json").write_text("\n".join(map(json.dumps, actions)) + "\n")
        if number == 0:
            made.root.grow(1, keys=2)
            made.write(made.newest)
            version += 1
    made.opened().create_checkpoint()
    assert planned(made, scratch, by=in_days(30)).plan.plan.deletions == []
    made.grow(2)
    made.retain(1, scratch)
    kept = planned(made, scratch, by=in_days(0.5)).plan.plan
    assert [one.path for one in kept.deletions if one.path in feeds] == []
    deleted = [one.path for one in planned(made, scratch, by=in_days(30)).plan.plan.deletions]
    assert deleted == feeds


def test_a_table_with_deletion_vectors_elsewhere_is_refused_with_a_way_out(made: WrittenRoot, tmp_path: Path) -> None:
    vector = {
        "storageType": "p",
        "pathOrInlineDv": "s3://other/deletion_vector.bin",
        "sizeInBytes": 1,
        "cardinality": 1,
    }
    add = {"path": "part-1.parquet", "size": 1, "modificationTime": 0, "partitionValues": {}, "deletionVector": vector}
    newest = tmp_path / f"table/_delta_log/{made.opened().version() + 1:020}.json"
    newest.write_text(json.dumps({"add": add}) + "\n")
    with pytest.raises(UnsupportedTable, match="OPTIMIZE and VACUUM in Spark"):
        planned(made, tmp_path / "scratch")


def test_a_table_that_was_made_again_is_left_alone(made: WrittenRoot, tmp_path: Path) -> None:
    scratch, log = tmp_path / "scratch", tmp_path / "table/_delta_log"
    optimized(made, scratch)
    made.grow(2)
    made.retain(1, scratch)
    prepared = planned(made, scratch, by=in_days(30))
    assert prepared.plan.plan.bins
    assert prepared.plan.plan.deletions
    files = made.data_files()
    for path in log.iterdir():
        path.unlink()
    again = {path.name for path in log.iterdir()}
    (log / f"{0:020}.json").write_text(json.dumps({"metaData": {"id": "another table"}}) + "\n")
    done = executed(made, prepared, scratch)
    assert [one.outcome for one in done.merges] == [Outcome.REPLACED]
    assert {one.files for one in done.removals} == {0}
    assert {path.name for path in log.iterdir()} - again == {f"{0:020}.json"}
    assert made.data_files() == files


def test_a_merge_that_the_second_plan_needs_a_stopped_query_for_is_left_out(made: WrittenRoot, tmp_path: Path) -> None:
    """The first plan deleted no file, so it did not require a stopped query."""
    small = written(tmp_path / "small", 1)
    prepared = planned(small, tmp_path / "scratch", stopped=True)
    small.grow(1)
    newest = Path(small.url, f"_delta_log/{small.opened().version():020}.json")
    newest.write_text(newest.read_text().replace("delta-rs:py-", "Apache-Spark/4.2.0 Delta-Lake/"))
    assert (prepared.plan.plan.bins, planned(small, tmp_path / "scratch", stopped=True).plan.plan.bins != ()) == (
        (),
        True,
    )
    version = small.opened().version()
    # The plan has work, as when it deletes files.
    left = tmp_path / f"small/table/part-00000-{RandomIds().fresh()}.snappy.parquet"
    left.write_bytes(b"rows")
    verb_run = verbs.a_run(small.root.storage, by=in_days(30), scratch=tmp_path, stopped=True, other=small.table)
    first = prepare(Optimize(destination=small.table.url, no_compact=True), verb_run)
    made_first = replace(first, verb=Optimize(destination=small.table.url))
    assert perform(made_first).made is not None
    assert (small.opened().version(), left.exists()) == (version, False)


def test_a_merge_after_which_there_are_not_fewer_files_is_dropped_and_not_planned_again(tmp_path: Path) -> None:
    made = written(tmp_path, 0)
    for batch in range(4):
        made.write(batch)
    made.root.grow(4, keys=2)
    log = tmp_path / "table/_delta_log"
    columns = (pa.table({"batch": [1]}), pa.table({"number": [1]}))
    for path in log.glob("*.json"):
        adds = [json.loads(line) for line in path.read_text().splitlines()]
        for number, one in enumerate([one["add"] for one in adds if "add" in one]):
            file = tmp_path / "table" / one["path"]
            pq.write_table(columns[(int(path.stem) + number) % 2], file)
            one["size"] = file.stat().st_size
            one["modificationTime"] = int(path.stem) * 10 + number
        path.write_text("".join(json.dumps(one) + "\n" for one in adds))
    before = made.data_files()
    version = made.opened().version()
    done = optimized(made, tmp_path / "scratch")
    assert ([one.outcome for one in done.merges], done.conflicts) == ([Outcome.USELESS], ())
    assert (made.opened().version(), made.data_files()) == (version, before)
    again = planned(made, tmp_path / "scratch")
    assert (again.plan.plan.bins, again.plan.plan.small_files, again.verb.has_work(again.plan)) == (
        (),
        len(before),
        False,
    )
    assert f"{len(before)} small files in 1 merge stay" in again.report().lines[0]
    for record in (b"", b"{"):
        made.root.storage.replace(names.USELESS_MERGES, record)
        assert planned(made, tmp_path / "scratch").plan.plan.merged_files == len(before), (
            "a damaged record costs a merge"
        )
    optimized(made, tmp_path / "scratch")
    made.write(4)
    assert [one.outcome for one in optimized(made, tmp_path / "scratch").merges] == [Outcome.COMMITTED]
    assert useless_merges.read(made.root.storage, made.table.url) == frozenset(), "the files are gone"


def test_a_table_in_a_bucket_is_merged_and_cleaned(made: WrittenRoot, tmp_path: Path, s3_server: S3Server) -> None:
    optimized(made, tmp_path / "scratch")
    made.grow(1)
    made.retain(1, tmp_path / "scratch")
    bucket = open_storage(f"s3://{s3_server.make_bucket()}/table", options=s3_server.options)
    copy_files(made.table, bucket)
    done = optimized(WrittenRoot(made.root, bucket), tmp_path / "scratch", by=in_days(30))
    assert [(one.files, one.made) for one in done.committed] == [(1 + FILES, 1)]
    assert sum(one.files for one in done.removals) == 6 * FILES
    after = WrittenRoot(made.root, open_storage(str(tmp_path / "after")))
    copy_files(bucket, after.table)
    after.assert_all_retained_batches_can_be_restored()
    assert len(after.data_files()) == 1 + FILES + 1
