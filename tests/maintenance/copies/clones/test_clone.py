"""Clones: the rows of their batch, an audit without findings, and a life of their own."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.clones import Way
from statekeeper.statestore.root import binding
from statekeeper.statestore.storage import open_storage
from tests.support import verbs
from tests.support.audits import audited
from tests.support.clones import FEW_KINDS, FULL, KINDS, Roots, cloned, made, own, query_of, without_leases
from tests.support.maintainers import MAINTAINER
from tests.support.rewinds import maintainer, rewound
from tests.support.structures import held
from tests.support.unpacked import unpacked, update_urls

TRANSFORM_WITH_STATE = Path(__file__).parents[3] / "fixtures" / "checkpoints" / "spark-4.2.0-v2-transformWithState.zip"
MOST_BYTES_OF_LEASES = 500
"""Of a lease that is acquired and released."""


# -- the clone ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), KINDS)
@pytest.mark.parametrize("back", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_clone_has_the_rows_of_its_batch_and_an_audit_finds_nothing(
    roots: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool, back: int
) -> None:
    source, destination = roots
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    before = without_leases(source)
    prepared = cloned(source, destination, tmp_path, batch=7 - back, stopped=True)
    assert without_leases(source) == before
    copy = query_of(query, destination, tmp_path / "of clone", 7 - back)
    assert copy.is_right()
    assert audited(destination, scratch=tmp_path / "deep").findings == ()
    heads = catalog.heads(destination)
    assert heads is not None
    assert heads.batch == 7 - back
    copied = {file.path for file in prepared.plan.files}
    assert {entry.path for entry in without_leases(destination)} == copied | {names.CLONED}


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), KINDS)
def test_a_source_and_its_clone_continue_and_are_maintained_independently(
    disks: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    source, destination = disks
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    cloned(source, destination, tmp_path, batch=5, stopped=True)
    copy = query_of(query, destination, tmp_path / "of clone", 5)
    for verb in ("snapshot", "gc", "switch", "gc", "switch", "snapshot"):
        getattr(copy, verb)()
        copy_rows = held(destination, tmp_path / "look")
        assert copy.is_right(), verb
        getattr(query, verb)()
        assert query.is_right(), verb
        assert held(destination, tmp_path / "look again") == copy_rows, verb
        if kind == "own":
            copy.grow(2)
            query.grow(3)
        assert audited(destination).findings == (), verb
        assert audited(source).findings == (), verb


@pytest.mark.parametrize("verb", ["snapshot", "gc", "switch", "repair"])
@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_a_checkpoint_is_cloned_after_each_verb(
    disks: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool, verb: str
) -> None:
    source, destination = disks
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    getattr(query, verb)()
    for name in ("clone", "another"):
        destination = open_storage(str(tmp_path / name))
        newest = catalog.newest_batch(source)
        assert newest is not None
        cloned(source, destination, tmp_path, stopped=True)
        assert query_of(query, destination, tmp_path / f"of {name}", newest).is_right()
        assert audited(destination, scratch=tmp_path / "deep").findings == ()
        query.grow(2)


def test_an_earlier_batch_is_cloned(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    cloned(source, destination, tmp_path, batch=5)
    assert query_of(query, destination, tmp_path / "of clone", 5).is_right()
    assert audited(destination, scratch=tmp_path / "deep").findings == ()


def test_a_clone_of_a_clone_has_the_same_rows(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    cloned(source, destination, tmp_path)
    third = open_storage(str(tmp_path / "third"))
    cloned(destination, third, tmp_path)
    assert query_of(query, third, tmp_path / "of third", 7).is_right()


def test_a_clone_keeps_the_query_id_or_gets_a_new_one(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    before, _ = binding.read_binding(source)
    cloned(source, destination, tmp_path)
    same, _ = binding.read_binding(destination)
    assert same.query_id == before.query_id
    assert same.root_id != before.root_id
    other = open_storage(str(tmp_path / "other"))
    prepared = cloned(source, other, tmp_path, new_query=True)
    new, _ = binding.read_binding(other)
    assert new.query_id not in (before.query_id, "")
    assert new.query_id == prepared.plan.record.query
    assert logs.parse_metadata(other.read(names.QUERY_METADATA), "metadata") == new.root_id


def test_a_clone_of_a_native_query_keeps_its_id_or_gets_a_new_one(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)
    cloned(source, destination, tmp_path)
    assert destination.read(names.QUERY_METADATA) == source.read(names.QUERY_METADATA)
    other = open_storage(str(tmp_path / "other"))
    prepared = cloned(source, other, tmp_path, query_id="0badc0de-0000-4000-8000-00000000000a")
    assert logs.parse_metadata(other.read(names.QUERY_METADATA), "metadata") == prepared.plan.record.query
    assert prepared.plan.record.query == "0badc0de-0000-4000-8000-00000000000a"


def test_only_the_read_entries_of_a_file_source_are_cloned(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    for batch in range(8):
        path = names.offsets(batch)
        log = logs.parse_offsets(source.read(path), path)
        source.replace(
            path,
            logs.encode_offsets(
                logs.OffsetLog(
                    watermark_ms=0, timestamp_ms=0, conf=log.conf, sources=(f'{{"logOffset":{batch}}}', '{"a":1}')
                )
            ),
        )
        source.create(f"{names.SOURCES}/0/{batch}", b"v1\n")
    source.create(f"{names.SOURCES}/1/0", b"of another kind of source")
    cloned(source, destination, tmp_path, batch=5)
    found = [entry.path for entry in destination.list(names.SOURCES)]
    assert found == [*(f"{names.SOURCES}/0/{entry}" for entry in range(6)), f"{names.SOURCES}/1/0"]
    assert query_of(query, destination, tmp_path / "of clone", 5).is_right()
    source.delete([f"{names.SOURCES}/0/5"])
    source.create(f"{names.SOURCES}/0/6.compact", b"v1\n")
    other = open_storage(str(tmp_path / "other"))
    cloned(source, other, tmp_path, batch=5)
    assert other.list(f"{names.SOURCES}/0") != destination.list(f"{names.SOURCES}/0")
    assert [entry.path for entry in other.list(names.SOURCES)] == [entry.path for entry in source.list(names.SOURCES)]


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), KINDS)
@pytest.mark.parametrize("roots", ["disk to disk", "s3 to s3"], indirect=True)
def test_no_byte_of_state_passes_through_the_client_inside_one_service(
    roots: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    source, destination = roots
    made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    prepared = verbs.clone.plan(source, destination, FULL, MAINTAINER, stopped=True)
    leases = source.list(names.LEASES)
    before = [storage.requests.snapshot() for storage in roots]
    verbs.clone.execute(source, destination, prepared, MAINTAINER, scratch=tmp_path)
    of_source, of_clone = (storage.requests.since(old) for storage, old in zip(roots, before, strict=True))
    planned = prepared.plan
    state = [file for file in planned.files if file.path.startswith(names.STATE) and "_metadata" not in file.path]
    assert {file.way for file in state} == {Way.SERVICE}
    # The newest lease is read before the next is acquired; the one read here was released by the snapshot.
    released = sum(entry.size_bytes for entry in leases[-1:])
    assert of_source.bytes_read == planned.size_bytes(Way.STREAM) + released
    record = len(destination.read(names.CLONED))
    written = planned.size_bytes(Way.STREAM, Way.REWRITE) + record
    assert written < of_clone.bytes_written < written + MOST_BYTES_OF_LEASES


@pytest.mark.parametrize("roots", ["disk to s3", "s3 to disk"], indirect=True)
def test_the_plan_shows_the_bytes_between_two_services(roots: Roots, tmp_path: Path) -> None:
    source, destination = roots
    own(source, tmp_path)
    planned = cloned(source, destination, tmp_path).plan
    assert planned.size_bytes(Way.SERVICE) == 0
    assert planned.size_bytes(Way.STREAM, Way.REWRITE) == planned.size_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), KINDS)
def test_the_first_snapshot_of_a_clone_uploads_only_tables_of_rows_since_the_base(
    disks: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    source, destination = disks
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    cloned(source, destination, tmp_path, stopped=True)
    before = {entry.path for entry in destination.list(names.STATE)}
    copy = query_of(query, destination, tmp_path / "of clone", 7)
    copy.snapshot()
    assert copy.is_right()
    new = [entry.path for entry in destination.list(names.STATE) if entry.path not in before]
    zips, tables = ([path for path in new if path.endswith(suffix)] for suffix in (".zip", ".sst"))
    assert len(zips) == len(tables) == len(query.checkpoint.stores)
    for path in zips:
        named = read_snapshot(destination.read(path), path).metadata.named_files
        folder = path.rpartition("/")[0]
        assert any(f"{folder}/SSTs/{table.dfs_name}" in before for table in named), (
            "the new snapshot uses the old table"
        )


def test_no_file_of_a_clone_contains_the_location_of_its_source(disks: Roots, tmp_path: Path) -> None:
    """Except the record of the clone, and the inputs of the query."""
    source, destination = disks
    root = unpacked(TRANSFORM_WITH_STATE, tmp_path / "of spark").rename(tmp_path / "root")
    update_urls(root, tmp_path)
    cloned(source, destination, tmp_path, stopped=True)
    with_source = [
        entry.path
        for entry in destination.list("", hidden=True)
        if f"{tmp_path}/root/".encode() in destination.read(entry.path)
    ]
    assert with_source == []
    with_clone = [entry.path for entry in source.list("") if f"{tmp_path}/root/".encode() in source.read(entry.path)]
    assert with_clone, "the source has absolute paths"


def test_a_repaired_copy_of_a_moved_checkpoint_is_cloned(disks: Roots, tmp_path: Path) -> None:
    """The repair has quarantined the operator's metadata with the former URLs."""
    source, destination = disks
    original = unpacked(TRANSFORM_WITH_STATE, tmp_path / "original")
    shutil.copytree(original, tmp_path / "root")
    by = maintainer()
    prepared = verbs.repair.plan(source, FULL, None)
    assert prepared.plan.actions
    verbs.repair.execute(source, prepared, by, run=by.ids.fresh(), stopped=True)
    assert any("/_metadata/v2/" in entry.path for entry in source.list(names.QUARANTINE))
    cloned(source, destination, tmp_path, stopped=True)
    assert held(destination, tmp_path / "of clone") == held(source, tmp_path / "of source")


def test_a_clone_of_a_batch_before_an_added_column_describes_its_rows_without_the_column(
    disks: Roots, tmp_path: Path
) -> None:
    source, destination = disks
    own(source, tmp_path)
    column = '{{"name":"{}","type":"long","nullable":true,"metadata":{{}}}}'
    old, new = (f'{{"type":"struct","fields":[{",".join(map(column.format, names_))}]}}' for names_ in ("n", "nm"))
    bound = binding.parse_binding(source.read(names.BINDING))
    bound = replace(bound, stores=(binding.StoreSchema("counts", old, old),))
    source.replace(names.BINDING, binding.encode_binding(bound))
    # The job adds the column with batch 6.
    source.create(names.later_schema(6), json.dumps({"counts": new}).encode())
    source.replace(names.state_schema(0), operators.encode_schema(old, new))
    cloned(source, destination, tmp_path, batch=5)
    assert destination.list(names.SCHEMAS) == []
    assert destination.read(names.state_schema(0)) == operators.encode_schema(old, old)
    other = open_storage(str(tmp_path / "other"))
    cloned(source, other, tmp_path, batch=6)
    assert other.read(names.state_schema(0)) == operators.encode_schema(old, new)
    rewound(source, 5, tmp_path)
    assert source.read(names.state_schema(0)) == operators.encode_schema(old, old)
