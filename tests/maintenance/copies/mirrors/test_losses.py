"""Mirrors of a source that lost, damaged or replaced files: the mirror keeps its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import CorruptFile, MirrorDiverged, MirrorStarted, RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import mirrors
from statekeeper.statestore.maintenance.copies.mirrors import Reason
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import verbs
from tests.support.clones import FEW_KINDS, FULL, KINDS, Roots, cloned, made, made_anew, own, query_of
from tests.support.file_sources import read_file, read_files
from tests.support.maintained_query import maintained_query
from tests.support.mirrors import mirrored, require_right
from tests.support.rewinds import maintainer, rewound, undone


def changelog_of(storage: Storage, batch: int) -> str:
    store, head = next(iter(catalog.heads_at(storage, batch).heads.items()))
    return store.changelog(head)


def files(storage: Storage) -> set[str]:
    """The paths of the files that Spark or a Python job reads."""
    paths = {entry.path for entry in storage.list("")}
    return {path for path in paths if not path.startswith(names.CONTROL) or path.startswith(names.BATCH_LOGS)}


# -- damaged files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["own", "native"])
def test_a_truncated_changelog_of_the_source_does_not_replace_the_copy(disks: Roots, tmp_path: Path, kind: str) -> None:
    source, destination = disks
    query = made_anew(source, tmp_path, kind, Structure.V2, in_batch_logs=False)
    mirrored(source, destination, tmp_path)
    path = changelog_of(source, 6)
    body = source.read(path)
    source.replace(path, body[:-20])
    query.grow(1)
    with pytest.raises(
        RefusedAsUnsafe, match=f"has {len(body) - 20} bytes in the source and {len(body)} in the mirror"
    ):
        mirrored(source, destination, tmp_path)
    assert destination.read(path) == body
    assert require_right(query_of(query, destination, tmp_path / "model", 7), destination, tmp_path / "of mirror") == 7


def test_metadata_that_cannot_be_parsed_does_not_replace_the_copy(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)
    mirrored(source, destination, tmp_path)
    path = names.state_schema(0)
    body = destination.read(path)
    source.replace(path, body[: len(body) // 2])
    query.grow(1)
    with pytest.raises(CorruptFile, match="the mirror keeps its copy"):
        mirrored(source, destination, tmp_path)
    assert destination.read(path) == body


def test_a_repair_of_a_snapshot_in_the_source_is_mirrored(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)

    def repaired(spark: Spark) -> int:
        by = maintainer()
        prepared = verbs.repair.plan(source, FULL, spark)
        verbs.repair.execute(source, prepared, by, run=by.ids.fresh(), stopped=True)
        return len(prepared.plan.actions)

    def headers(storage: Storage) -> list[str | None]:
        zips = [entry.path for entry in storage.list(names.STATE) if entry.path.endswith(".zip")]
        return [read_snapshot(storage.read(path), path).metadata.header for path in zips]

    assert repaired(Spark.V4_0)
    mirrored(source, destination, tmp_path)
    before = headers(destination)
    assert repaired(Spark.V4_2)
    mirrored(source, destination, tmp_path)
    assert headers(destination) == headers(source) != before
    query.grow(1)
    again, _ = mirrored(source, destination, tmp_path)
    assert again.plan.rewritten == frozenset()
    assert require_right(query, destination, tmp_path / "of mirror") == 8


# -- lost files --------------------------------------------------------------------------------------------------------


def test_a_file_that_the_mirror_needs_is_kept_although_the_source_lost_it(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    query.grow(1)
    query.snapshot()
    query.grow(1)
    mirrored(source, destination, tmp_path)
    first = mirrors.read(destination)
    heads = catalog.heads_at(source, 7)
    lost = [store.changelog(head) for store, head in heads.heads.items()]
    source.delete(lost)
    query.grow(1)
    _, cleanup = mirrored(source, destination, tmp_path)
    assert cleanup.obsolete == ()
    assert cleanup.kept == {Reason.NEEDED: len(lost)}
    now = mirrors.read(destination)
    assert first is not None
    assert now is not None
    assert now.first == first.first
    for batch in range(first.first, 11):
        copy = open_storage(str(tmp_path / f"copy {batch}"))
        cloned(destination, copy, tmp_path, batch=batch)
        assert query_of(query, copy, tmp_path / f"of copy {batch}", batch).is_right()


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_metadata_and_source_entries_that_the_source_lost_stay_in_the_mirror(
    disks: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    source, destination = disks
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    read_files(source, "0")
    source.create(f"{names.SOURCES}/1/0", b"of another kind of source")
    mirrored(source, destination, tmp_path, stopped=True)
    lost = [names.state_schema(0), f"{names.SOURCES}/0/3", f"{names.SOURCES}/1/0"]
    source.delete(lost)
    query.grow(1)
    mirrored(source, destination, tmp_path, stopped=True)
    assert all(destination.stat(path) for path in lost)


def test_source_entries_that_spark_has_merged_are_deleted_from_the_mirror(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    read_files(source, "clicks")
    mirrored(source, destination, tmp_path)
    source.create(f"{names.SOURCES}/clicks/9.compact", b"v1\n")
    source.delete([f"{names.SOURCES}/clicks/{entry}" for entry in range(8)])
    _, cleanup = mirrored(source, destination, tmp_path)
    assert cleanup.obsolete == (), "batch 7 still needs its entries"
    assert destination.stat(f"{names.SOURCES}/clicks/9.compact") is None, "the mirror has the entries of batch 7"
    query.grow(4)
    for batch in range(8, 12):
        read_file(source, batch, "clicks")
    source.delete([f"{names.SOURCES}/clicks/{entry}" for entry in (8, 9)])
    mirrored(source, destination, tmp_path)
    found = [entry.path.rpartition("/")[2] for entry in destination.list(names.SOURCES)]
    assert found == ["10", "11", "9.compact"]


def test_only_superseded_metadata_of_an_operator_is_deleted_from_the_mirror(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)
    folder, old = names.operator_metadata_by_batch(0), names.operator_metadata(0)
    body = source.read(old).replace(b"v1", b"v2", 1)
    source.delete([old])
    for batch in (0, 2, 6):
        source.create(f"{folder}/{batch}", body)
    mirrored(source, destination, tmp_path)
    record = mirrors.read(destination)
    assert record is not None
    assert 2 <= record.first < 6
    source.delete([f"{folder}/0", f"{folder}/2"])
    query.grow(1)
    mirrored(source, destination, tmp_path)
    assert [entry.path for entry in destination.list(folder)] == [f"{folder}/2", f"{folder}/6"]


@pytest.mark.parametrize("structure", Structure)
def test_tables_that_only_a_snapshot_of_the_mirror_names_are_kept(
    disks: Roots, tmp_path: Path, structure: Structure
) -> None:
    """A snapshot by maintenance of the mirror names tables of an older one. The next one of the source does not, as
    after a compaction."""
    source, destination = disks
    query = made(source, tmp_path, "native", structure, in_batch_logs=False)
    mirrored(source, destination, tmp_path, stopped=True)
    query_of(query, destination, tmp_path / "job of mirror", 7).snapshot()
    old = [entry.path for entry in source.list(names.STATE) if entry.path.endswith(".sst")]
    of_another = open_storage(str(tmp_path / "without snapshots"))
    skipped = (names.commits(7), names.offsets(7), names.CONTROL)
    for entry in source.list(""):
        if not entry.path.startswith(skipped) and not entry.path.endswith((".sst", ".zip")):
            of_another.create(entry.path, source.read(entry.path))
    query_of(query, of_another, tmp_path / "job without snapshots", 6).snapshot()
    for entry in of_another.list(names.STATE):
        if source.stat(entry.path) is None:
            source.create(entry.path, of_another.read(entry.path))
    query.grow(2)
    mirrored(source, destination, tmp_path, stopped=True)
    query.gc()
    source.delete(old)
    _, cleanup = mirrored(source, destination, tmp_path, stopped=True)
    assert Reason.NEEDED in cleanup.kept
    assert all(destination.stat(path) for path in old)
    assert require_right(query, destination, tmp_path / "of mirror") == 9


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), [KINDS[0], *FEW_KINDS[1:]])
def test_a_run_after_retention_of_the_mirror_copies_nothing_again(
    disks: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    source, destination = disks
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    query.grow(4)
    mirrored(source, destination, tmp_path, stopped=True)
    query_of(query, destination, tmp_path / "job of mirror", 11).snapshot()
    query.grow(4)
    mirrored(source, destination, tmp_path, stopped=True)
    before = files(destination)
    query_of(query, destination, tmp_path / "another job of mirror", 15).gc()
    left = files(destination)
    assert len(before - left) > 10
    mirrored(source, destination, tmp_path, stopped=True)
    assert files(destination) == left
    query.grow(1)
    mirrored(source, destination, tmp_path, stopped=True)
    assert require_right(query, destination, tmp_path / "of mirror") == 16


# -- other histories ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_query_id", [True, False])
@pytest.mark.parametrize("kind", ["own", "native"])
def test_a_mirror_that_was_rewound_is_not_overwritten_after_the_source_purged_its_batch(
    disks: Roots, tmp_path: Path, kind: str, keep_query_id: bool
) -> None:
    source, destination = disks
    query = made(source, tmp_path, kind, Structure.V2, in_batch_logs=False)
    mirrored(source, destination, tmp_path)
    rewound(destination, 5, tmp_path, keep_query_id=keep_query_id)
    if kind == "own":
        query_of(query, destination, tmp_path / "failed over", 5).grow(1)
    query.grow(8)
    query.snapshot()
    query.gc()
    assert source.stat(names.commits(7)) is None
    before = destination.list("", hidden=True)
    with pytest.raises(MirrorDiverged if keep_query_id else MirrorStarted):
        mirrored(source, destination, tmp_path)
    assert destination.list("", hidden=True) == before


@pytest.mark.parametrize("structure", Structure)
def test_a_switch_of_the_source_between_two_runs_is_detected(
    disks: Roots, tmp_path: Path, structure: Structure
) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", structure, in_batch_logs=False)
    mirrored(source, destination, tmp_path, batch=5)
    query.switch()
    query.grow(3)
    with pytest.raises(MirrorDiverged, match=f"was switched to {structure.other.name}"):
        mirrored(source, destination, tmp_path)
    assert query_of(query, destination, tmp_path / "of mirror", 5).is_right()


@pytest.mark.parametrize("structure", Structure)
def test_a_source_whose_rewind_was_undone_is_mirrored(disks: Roots, tmp_path: Path, structure: Structure) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", structure, in_batch_logs=False)
    mirrored(source, destination, tmp_path, stopped=True)
    undone(source, rewound(source, 4, tmp_path))
    mirrored(source, destination, tmp_path, stopped=True)
    query.grow(1)
    mirrored(source, destination, tmp_path, stopped=True)
    assert require_right(query, destination, tmp_path / "of mirror") == 8


@pytest.mark.parametrize("batches", [1, 2])
def test_a_mirror_of_a_new_query_in_structure_v1_waits_for_its_third_batch(
    disks: Roots, tmp_path: Path, batches: int
) -> None:
    source, destination = disks
    query = maintained_query(source, tmp_path, Structure.V1, Origin.NATIVE, batches=batches)
    prepared, _ = mirrored(source, destination, tmp_path)
    assert prepared.is_waiting
    assert prepared.plan.left.batches == batches
    assert destination.list("") == []
    with pytest.raises(RefusedAsUnsafe, match="batch 2 is committed") as raised:
        cloned(source, destination, tmp_path)
    assert "clone batch" not in str(raised.value.hint)
    query.grow(3 - batches)
    prepared, _ = mirrored(source, destination, tmp_path)
    assert not prepared.is_waiting
    assert require_right(query_of(query, destination, tmp_path / "model", 0), destination, tmp_path / "of mirror") == 0
