"""Tables of the state of jobs: rows, feed, choices of columns, corrections and refusals."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from statekeeper.statestore.base.errors import (
    DestinationNotEmpty,
    RefusedAsUnsafe,
    RootHeld,
    UnknownFormatVersion,
    VersionNotLoadable,
)
from statekeeper.statestore.format import names
from statekeeper.statestore.format.delta_log import DataFile, DeltaTable
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.state_tables import Way, files
from statekeeper.statestore.maintenance.copies.state_tables.execute import compactable
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.storage import open_storage
from tests.support import clones
from tests.support.keyed_roots import KeyedRoot
from tests.support.maintainers import MAINTAINER
from tests.support.rescales import rescale
from tests.support.roots import OTHER_QUERY
from tests.support.s3_server import S3Server
from tests.support.state_tables import as_lines, feed_of, opened, planned, published, replayed, rows_of

KINDS = {
    "v2": (Structure.V2, False),
    "v2 in batch logs": (Structure.V2, True),
    "v1": (Structure.V1, False),
}


@pytest.fixture(params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> KeyedRoot:
    structure, in_batch_logs = KINDS[request.param]
    return grown(tmp_path, structure=structure, in_batch_logs=in_batch_logs)


def grown(folder: Path, batches: int = 2, **how: object) -> KeyedRoot:
    """A job root with two operators, in few partitions."""
    root = KeyedRoot(open_storage(str(folder / "root")), folder / "hosts", partitions=2, **how)  # type: ignore[arg-type]
    root.grow(batches)
    return root


def expected(root: KeyedRoot, operator: int = 0) -> list[str]:
    """The rows that the table of an operator must have."""
    rows = [{"key": key, "value": value} for (one, key), value in root.rows.items() if one == operator]
    return as_lines(rows)


@pytest.mark.parametrize("plain_files", [False, True])
def test_a_table_shows_each_published_batch_and_its_feed_the_changes(
    root: KeyedRoot, tmp_path: Path, plain_files: bool
) -> None:
    table = open_storage(str(tmp_path / "table"))
    how = {"operator": 0, "plain_files": plain_files}
    assert published(root.storage, table, tmp_path / "scratch", **how).way is Way.LOAD
    for batches in (1, 2, 1, 3, 1, 1, 1, 1, 1, 1):
        root.grow(batches, keys=5)
        made = published(root.storage, table, tmp_path / "scratch")
        assert made.way is Way.CHANGES
        assert (made.batch, made.rows) == (root.batches - 1, len(rows_of(table)))
        assert as_lines(rows_of(table)) == expected(root)
    # Small files were merged, which changes no row.
    assert len(opened(table).file_uris()) < 10
    assert replayed(table, ("batch", "committed_at")) == expected(root)
    assert {row["batch"] for row in rows_of(table)} == {1, *range(2, root.batches)}
    prepared = planned(root.storage, table, tmp_path / "scratch")
    assert (prepared.plan.plan.way, prepared.may_start) == (Way.NOTHING, False)


def test_a_reader_of_the_log_knows_the_batch_by_the_transaction_of_the_query(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    for _ in range(2):
        published(root.storage, table, tmp_path / "scratch", operator=0)
        application = f"statekeeper-state-{root.wanted().query_id}"
        assert opened(table).transaction_version(application) == root.batches - 1
        root.grow(1)


def test_two_tables_of_one_root_are_independent(tmp_path: Path) -> None:
    root = grown(tmp_path)
    tables = [open_storage(str(tmp_path / f"table-{operator}")) for operator in range(2)]
    published(root.storage, tables[0], tmp_path / "scratch", operator=0)
    root.grow(2)
    for operator, table in enumerate(tables):
        published(root.storage, table, tmp_path / "scratch", operator=operator)
        assert as_lines(rows_of(table)) == expected(root, operator)


def test_a_deleted_table_is_loaded_again(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    published(root.storage, table, tmp_path / "scratch", operator=1)
    shutil.rmtree(tmp_path / "table")
    assert published(root.storage, table, tmp_path / "scratch", operator=1).way is Way.LOAD
    assert as_lines(rows_of(table)) == expected(root, 1)


def test_a_rescale_changes_no_row_of_the_table(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    published(root.storage, table, tmp_path / "scratch", operator=0)
    rescale(root.storage, 4, tmp_path / "scratch")
    root = dataclasses.replace(root, partitions=4)
    made = published(root.storage, table, tmp_path / "scratch", stopped=True)
    assert made.way is Way.COMPARISON
    assert (made.inserted, made.updated, made.deleted) == (0, 0, 0)
    assert as_lines(rows_of(table)) == expected(root)


def test_a_rewound_root_corrects_the_table(tmp_path: Path) -> None:
    """The root goes back to a copy of an earlier batch, and executes other batches after it."""
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    earlier = root.copied_to(open_storage(str(tmp_path / "earlier")), tmp_path / "other-hosts")
    root.grow(2)
    published(root.storage, table, tmp_path / "scratch", operator=0)
    made = published(earlier.storage, table, tmp_path / "scratch")
    assert made.way is Way.COMPARISON
    assert as_lines(rows_of(table)) == expected(earlier)
    # Both histories have the batch that the table shows now.
    for one, way in ((earlier, Way.CHANGES), (root, Way.COMPARISON), (earlier, Way.COMPARISON)):
        one.grow(1, keys=7)
        one.grow(3, keys=3)
        assert published(one.storage, table, tmp_path / "scratch").way is way
        assert as_lines(rows_of(table)) == expected(one)
    assert replayed(table, ("batch", "committed_at")) == expected(earlier)


def test_batches_whose_changelogs_were_deleted_are_published_by_a_comparison(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    published(root.storage, table, tmp_path / "scratch", operator=0)
    root.grow(3)
    root.storage.delete([names.commits(1)])
    prepared = planned(root.storage, table, tmp_path / "scratch")
    assert prepared.plan.plan.way is Way.COMPARISON
    assert prepared.plan.plan.reason == "batch 1, which the table shows, is no longer in the commit log"
    published(root.storage, table, tmp_path / "scratch")
    assert as_lines(rows_of(table)) == expected(root)


def test_columns_are_chosen_renamed_and_filtered_and_rows_leave_with_their_condition(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    how = {"operator": 0, "rename": {"key": "name", "value.value": "count"}, "where": ("count >= 3", "name != counter")}
    published(root.storage, table, tmp_path / "scratch", **how)

    def matching() -> list[str]:
        return as_lines(
            [
                {"name": key, "count": value}
                for (operator, key), value in root.rows.items()
                if operator == 0 and value >= 3 and key != "counter"
            ]
        )

    assert as_lines(rows_of(table)) == matching()
    changed = [
        {"key 0 5": 1, "key 0 6": 50, "key 0 1": 9, "key 0 2": 2},
        {"key 0 7": None},
        {"new": 3, "key 0 8": None},
    ]
    for changes in changed:
        root.batch(changes, {})
        published(root.storage, table, tmp_path / "scratch")
        assert as_lines(rows_of(table)) == matching()
    assert replayed(table, ("batch", "committed_at"), ("name",)) == matching()
    only = open_storage(str(tmp_path / "only"))
    published(root.storage, only, tmp_path / "scratch", operator=0, columns=("value",), partition_by=("value",))
    assert set(rows_of(only)[0]) == {"value", "batch", "committed_at"}
    assert sorted(row["value"] for row in rows_of(only)) == sorted(
        value for (operator, _), value in root.rows.items() if operator == 0
    )


def test_a_partitioned_table_moves_rows_between_its_partitions(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    for plain_files in (False, True):
        table = open_storage(str(tmp_path / f"table-{plain_files}"))
        published(
            root.storage, table, tmp_path / "scratch", operator=0, partition_by=("value",), plain_files=plain_files
        )
        root.batch({f"key 0 {n}": (n + 1) % 40 for n in range(1, 40)}, {})
        published(root.storage, table, tmp_path / "scratch")
        assert as_lines(rows_of(table)) == expected(root)
        assert set(opened(table).metadata().partition_columns) == {"value"}


def test_the_feed_has_former_rows_if_they_are_asked_for(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    published(root.storage, table, tmp_path / "scratch", operator=0)
    root.batch({"key 0 1": 77, "key 0 2": None, "fresh": 1}, {})
    published(root.storage, table, tmp_path / "scratch", before_images=True)
    assert sorted((row["_change_type"], row["key"], row["value"]) for row in feed_of(table, 1)) == [
        ("delete", "key 0 2", 2),
        ("insert", "fresh", 1),
        ("update_postimage", "key 0 1", 77),
        ("update_preimage", "key 0 1", 1),
    ]
    root.batch({"key 0 3": None}, {})
    published(root.storage, table, tmp_path / "scratch")
    assert [(row["_change_type"], row["key"], row["value"], row["batch"]) for row in feed_of(table, 2)] == [
        ("delete", "key 0 3", None, 3)
    ]


def test_a_value_that_is_written_again_unchanged_is_not_published_again(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    published(root.storage, table, tmp_path / "scratch", operator=0)
    root.batch({"key 0 1": 1, "key 0 2": 3}, {})
    made = published(root.storage, table, tmp_path / "scratch")
    assert (made.inserted, made.updated, made.deleted, made.records) == (0, 1, 0, 2)
    assert [row["key"] for row in feed_of(table, made.version)] == ["key 0 2"]


def test_the_log_gets_checkpoints_from_which_it_is_read(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    for _ in range(25):
        published(root.storage, table, tmp_path / "scratch", operator=0)
        root.batch({"counter": root.batches}, {})
    checkpoints = [entry.path for entry in table.list("_delta_log") if entry.path.endswith(".checkpoint.parquet")]
    assert checkpoints
    table.delete([f"_delta_log/{version:020}.json" for version in range(20)])
    made = published(root.storage, table, tmp_path / "scratch")
    assert made.way is Way.CHANGES
    assert as_lines(rows_of(table)) == expected(root)
    assert opened(table).transaction_version(f"statekeeper-state-{root.wanted().query_id}") == root.batches - 1


def test_rows_that_another_program_deletes_come_back(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    published(root.storage, table, tmp_path / "scratch", operator=0, plain_files=True)
    path = tmp_path / "table" / "_delta_log" / f"{1:020}.json"
    [file] = opened(table).file_uris()
    path.write_text(
        '{"commitInfo": {"operation": "DELETE"}}\n'
        f'{{"remove": {{"path": "{Path(file).name}", "dataChange": true, "deletionTimestamp": 1}}}}\n'
    )
    assert rows_of(table) == []
    prepared = planned(root.storage, table, tmp_path / "scratch")
    assert prepared.plan.plan.way is Way.COMPARISON
    assert prepared.plan.plan.reason == "another program has changed the table: DELETE in version 1"
    assert published(root.storage, table, tmp_path / "scratch").inserted == len(expected(root))
    assert as_lines(rows_of(table)) == expected(root)


def test_a_table_that_another_program_rewrote_is_loaded_again(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    published(root.storage, table, tmp_path / "scratch", operator=0, plain_files=True)
    for _ in range(3):
        root.grow(1)
        published(root.storage, table, tmp_path / "scratch")
    foreign = tmp_path / "table" / "part-00000-of-another.parquet"
    [first, *_] = opened(table).file_uris()
    foreign.write_bytes(Path(first.removeprefix("file://")).read_bytes())
    added = {
        "path": foreign.name,
        "partitionValues": {},
        "size": foreign.stat().st_size,
        "modificationTime": 1,
        "dataChange": False,
        "stats": json.dumps({"numRecords": 1}),
    }
    version = opened(table).version() + 1
    (tmp_path / "table" / "_delta_log" / f"{version:020}.json").write_text(json.dumps({"add": added}) + "\n")
    assert planned(root.storage, table, tmp_path / "scratch").plan.plan.way is Way.RELOAD
    published(root.storage, table, tmp_path / "scratch")
    assert as_lines(rows_of(table)) == expected(root)


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_several_operators_are_a_refusal_that_lists_the_options(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    with pytest.raises(RefusedAsUnsafe, match="has 2 kinds of rows") as refused:
        published(root.storage, table, tmp_path / "scratch")
    assert "--operator 0" in str(refused.value.hint)
    assert table.list("") == []


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"columns": ("nothing",)}, "the column nothing does not exist"),
        ({"rename": {"nothing": "x"}}, "the column nothing does not exist"),
        ({"partition_by": ("nothing",)}, "the partition column nothing does not exist"),
        ({"where": ("value",)}, "'value' is not a condition"),
        ({"where": ("other = 1",)}, "names the column other"),
        ({"where": ("value = many",)}, "'many' is not a value of the column value"),
        ({"operator": 7}, "does not have these rows"),
        ({"operator": 0, "family": "total"}, "does not have these rows"),
    ],
)
def test_a_wrong_choice_is_refused_before_anything_is_written(
    tmp_path: Path, how: dict[str, object], problem: str
) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    with pytest.raises(RefusedAsUnsafe, match=problem):
        published(root.storage, table, tmp_path / "scratch", **{"operator": 0, **how})
    assert table.list("") == []


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"operator": 1}, r"other operator \(0\)"),
        ({"columns": ("key",)}, "other columns"),
        ({"rename": {"value": "count"}}, "other columns"),
        ({"partition_by": ("key",)}, r"other partition columns \(none\)"),
        ({"where": ("value > 1",)}, r"other conditions \(none\)"),
    ],
)
def test_other_options_than_those_of_the_table_are_refused_and_a_reload_takes_them(
    tmp_path: Path, how: dict[str, object], problem: str
) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    published(root.storage, table, tmp_path / "scratch", operator=0)
    root.grow(1)
    with pytest.raises(RefusedAsUnsafe, match=problem):
        published(root.storage, table, tmp_path / "scratch", **how)
    made = published(root.storage, table, tmp_path / "scratch", reload=True, **how)
    assert (made.way, made.rows) == (Way.RELOAD, len(rows_of(table)))
    root.grow(1)
    assert published(root.storage, table, tmp_path / "scratch").way is Way.CHANGES


def test_a_table_with_deletion_vectors_does_not_become_a_plain_one(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    published(root.storage, table, tmp_path / "scratch", operator=0)
    with pytest.raises(RefusedAsUnsafe, match="which a reload does not remove"):
        published(root.storage, table, tmp_path / "scratch", reload=True, plain_files=True)


def test_a_table_with_a_feature_that_publish_does_not_write_is_refused(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    published(root.storage, table, tmp_path / "scratch", operator=0)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors", "rowTracking"]}
    body = json.dumps({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})
    newest = max(entry.path for entry in table.list("_delta_log") if entry.path.endswith(".json"))
    version = int(newest.rpartition("/")[2].partition(".")[0]) + 1
    table.create(f"_delta_log/{version:020}.json", body.encode())
    root.grow(1)
    with pytest.raises(RefusedAsUnsafe, match="has the features rowTracking"):
        published(root.storage, table, tmp_path / "scratch")


def test_files_that_are_full_by_their_bytes_are_not_compacted_again() -> None:
    full = [a_file(str(number), size_bytes=files.FILE_BYTES, rows=files.FILE_ROWS // 16) for number in range(20)]
    small = [
        a_file(f"small {number}", size_bytes=files.FILE_BYTES // 100, rows=files.FILE_ROWS // 16) for number in range(8)
    ]
    table = DeltaTable(files={file.path: file for file in (*full, *small)})
    assert compactable(table) == small


def a_file(name: str, *, size_bytes: int, rows: int) -> DataFile:
    return DataFile(path=name, size_bytes=size_bytes, rows=rows, modified_ms=1)


def test_a_location_that_is_not_a_table_of_the_query_is_refused(tmp_path: Path) -> None:
    root = grown(tmp_path)
    other = open_storage(str(tmp_path / "other"))
    other.create("notes.txt", b"mine")
    with pytest.raises(DestinationNotEmpty, match=r"it contains notes\.txt"):
        published(root.storage, other, tmp_path / "scratch", operator=0)
    with pytest.raises(DestinationNotEmpty, match="overlaps with the root"):
        published(root.storage, open_storage(str(tmp_path / "root" / "table")), tmp_path / "scratch", operator=0)
    write_deltalake(str(tmp_path / "theirs"), pa.table({"x": [1]}))
    with pytest.raises(DestinationNotEmpty, match="is a Delta table of another program"):
        published(root.storage, open_storage(str(tmp_path / "theirs")), tmp_path / "scratch", operator=0)


def test_a_table_follows_a_query_to_another_id_or_another_location_but_not_to_both(tmp_path: Path) -> None:
    """A rewind gives a query another id, and after a failover its checkpoint is at another location."""
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    published(root.storage, table, tmp_path / "scratch", operator=0)
    moved = root.copied_to(open_storage(str(tmp_path / "moved")), tmp_path / "other-hosts")
    moved.grow(1)
    assert published(moved.storage, table, tmp_path / "scratch").way is Way.CHANGES
    for storage in (moved.storage, root.storage):
        bound = json.loads(storage.read(names.BINDING))
        storage.replace(names.BINDING, json.dumps({**bound, "query": OTHER_QUERY}).encode())
    with pytest.raises(DestinationNotEmpty, match="but the root belongs to the query"):
        published(root.storage, table, tmp_path / "scratch")
    moved.storage.delete([names.commits(2)])
    assert published(moved.storage, table, tmp_path / "scratch").way is Way.COMPARISON
    assert len(rows_of(table)) == len(expected(root))


def test_a_table_in_a_bucket_is_published_exactly_once(tmp_path: Path, s3_server: S3Server) -> None:
    root = grown(tmp_path)
    url = f"s3://{s3_server.make_bucket()}/table"
    table = open_storage(url, options=s3_server.options)
    for way in (Way.LOAD, Way.CHANGES, Way.CHANGES):
        assert published(root.storage, table, tmp_path / "scratch", operator=0).way is way
        root.grow(1)
    copied = open_storage(str(tmp_path / "copied"))
    for entry in table.list(""):
        copied.create(entry.path, table.read(entry.path))
    made = published(root.storage, table, tmp_path / "scratch")
    assert made.batch == root.batches - 1
    assert published(root.storage, copied, tmp_path / "scratch").rows == made.rows
    assert as_lines(rows_of(copied)) == expected(root)


def test_rows_that_cannot_be_decoded_are_refused(tmp_path: Path) -> None:
    """The schema of the root has a type of a later Spark."""
    source, table = open_storage(str(tmp_path / "root")), open_storage(str(tmp_path / "table"))
    clones.made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)
    with pytest.raises(UnknownFormatVersion, match="of a later Spark"):
        published(source, table, tmp_path / "scratch")
    assert table.list("") == []


def test_a_version_that_does_not_load_is_refused_and_its_changelogs_are_published(tmp_path: Path) -> None:
    """The first load needs all changelogs, and a later run only the new ones."""
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    other = open_storage(str(tmp_path / "other"))
    published(root.storage, table, tmp_path / "scratch", operator=0)
    root.grow(1)
    root.storage.delete([entry.path for entry in root.storage.list("state/0/1") if "/1_" in entry.path])
    with pytest.raises(VersionNotLoadable, match="state/0/1 cannot be loaded"):
        published(root.storage, other, tmp_path / "scratch", operator=0)
    assert other.list("") == []
    assert published(root.storage, table, tmp_path / "scratch").way is Way.CHANGES
    assert as_lines(rows_of(table)) == expected(root)


def test_a_table_has_one_writer(tmp_path: Path) -> None:
    root, table = grown(tmp_path), open_storage(str(tmp_path / "table"))
    with lease.held(table, "publish", run="another", holder="another", clock=MAINTAINER.clock), pytest.raises(RootHeld):
        published(root.storage, table, tmp_path / "scratch", operator=0)
    published(root.storage, table, tmp_path / "scratch", operator=0)


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path) -> Iterator[None]:
    yield
    # Each run deletes its own folders.
    assert list((tmp_path / "scratch").glob("*")) == [] if (tmp_path / "scratch").exists() else True
