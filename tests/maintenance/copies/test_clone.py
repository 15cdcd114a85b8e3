"""Clones: the rows of their batch, an audit without findings, and a life of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statestore import binding, catalog
from statestore.errors import (
    CorruptFile,
    DestinationNotEmpty,
    NotACheckpoint,
    RefusedAsUnsafe,
    RootHeld,
    SourceChanged,
    StatekeeperError,
    VersionNotLoadable,
)
from statestore.format import logs, names
from statestore.format.structure import Structure
from statestore.maintenance import copies, lease, passes
from statestore.maintenance.copies import CopyFile, Way
from statestore.origin import Origin
from statestore.storage import Entry, Storage, open_storage
from tests.support.audits import audited
from tests.support.clones import cloned, query_of
from tests.support.faulty_storage import FaultyStorage, SimulatedCrash, crash_matrix
from tests.support.maintained_query import Query, maintained_query
from tests.support.maintainers import MAINTAINER
from tests.support.s3_server import S3Server
from tests.support.structures import held
from tests.support.switching import structure_of

KINDS = [
    pytest.param("own", Structure.V1, False, id="own v1"),
    pytest.param("own", Structure.V2, False, id="own v2"),
    pytest.param("own", Structure.V2, True, id="own v2 in batch logs"),
    pytest.param("native", Structure.V1, False, id="native v1"),
    pytest.param("native", Structure.V2, False, id="native v2"),
]
Roots = tuple[Storage, Storage]


@pytest.fixture(params=["disk to disk", "s3 to s3", "disk to s3", "s3 to disk"])
def roots(request: pytest.FixtureRequest, tmp_path: Path) -> Roots:
    """An empty source and an empty destination."""
    kinds = str(request.param).split(" to ")

    def opened(kind: str, name: str) -> Storage:
        if kind == "disk":
            return open_storage(str(tmp_path / name))
        server: S3Server = request.getfixturevalue("s3_server")
        return open_storage(f"s3://{server.make_bucket()}/{name}", options=server.options)

    return opened(kinds[0], "root"), opened(kinds[1], "clone")


@pytest.fixture
def disks(tmp_path: Path) -> Roots:
    return open_storage(str(tmp_path / "root")), open_storage(str(tmp_path / "clone"))


def made(storage: Storage, folder: Path, kind: str, structure: Structure, *, in_batch_logs: bool) -> Query:
    """Eight batches with a snapshot after the fifth."""
    query = maintained_query(storage, folder, structure, Origin(kind), batches=5, in_batch_logs=in_batch_logs)
    query.snapshot()
    query.grow(3)
    return query


def own(storage: Storage, folder: Path) -> Query:
    return made(storage, folder, "own", Structure.V2, in_batch_logs=False)


# -- the clone ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), KINDS)
@pytest.mark.parametrize("back", [0, 2])
def test_a_clone_has_the_rows_of_its_batch_and_an_audit_finds_nothing(
    roots: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool, back: int
) -> None:
    source, destination = roots
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    before = _without_leases(source)
    prepared = cloned(source, destination, tmp_path, batch=7 - back, stopped=True)
    assert _without_leases(source) == before
    copy = query_of(query, destination, tmp_path / "of clone", 7 - back)
    assert copy.is_right()
    assert audited(destination, scratch=tmp_path / "deep").findings == ()
    heads = catalog.heads(destination)
    assert heads is not None
    assert heads.batch == 7 - back
    copied = {file.path for file in prepared.plan.files}
    assert {entry.path for entry in destination.list("")} == copied | {names.CLONED}


def _without_leases(storage: Storage) -> list[Entry]:
    return [entry for entry in storage.list("") if not entry.path.startswith(names.LEASES)]


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
@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), KINDS)
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
    prepared = passes.clone.plan(source, destination, MAINTAINER, stopped=True)
    leases = source.list(names.LEASES)
    before = [storage.requests.snapshot() for storage in roots]
    passes.clone.execute(source, destination, prepared, MAINTAINER, scratch=tmp_path)
    of_source, of_clone = (storage.requests.since(old) for storage, old in zip(roots, before, strict=True))
    planned = prepared.plan
    state = [file for file in planned.files if file.path.startswith(names.STATE) and "_metadata" not in file.path]
    assert {file.way for file in state} == {Way.SERVICE}
    # The newest lease is read before the next is acquired; the one read here was released by the snapshot.
    released = sum(entry.size_bytes for entry in leases[-1:])
    assert of_source.bytes_read == planned.size_bytes(Way.STREAM) + released
    record = len(destination.read(names.CLONED))
    assert of_clone.bytes_written == planned.size_bytes(Way.STREAM, Way.REWRITE) + record


@pytest.mark.parametrize("roots", ["disk to s3", "s3 to disk"], indirect=True)
def test_the_plan_shows_the_bytes_between_two_services(roots: Roots, tmp_path: Path) -> None:
    source, destination = roots
    own(source, tmp_path)
    planned = cloned(source, destination, tmp_path).plan
    assert planned.size_bytes(Way.SERVICE) == 0
    assert planned.size_bytes(Way.STREAM, Way.REWRITE) == planned.size_bytes()


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "structure", "in_batch_logs"),
    [KINDS[2], pytest.param("native", Structure.V1, False, id="native v1")],
)
@pytest.mark.parametrize("roots", ["disk to disk", pytest.param("s3 to s3", marks=pytest.mark.slow)], indirect=True)
def test_a_run_after_a_crash_at_any_request_completes_the_clone(
    roots: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    source, destination = roots
    query = maintained_query(source, tmp_path, structure, Origin(kind), batches=3, in_batch_logs=in_batch_logs)
    query.snapshot()
    query.grow(1)
    traced = FaultyStorage(destination)
    _clone(source, traced, tmp_path)
    matrix = crash_matrix(traced.trace)
    assert len(matrix) > 60
    for number, (request, fault) in enumerate(matrix):
        _empty(destination)
        with pytest.raises((SimulatedCrash, StatekeeperError)):
            _clone(source, FaultyStorage(destination, {request.number: fault}), tmp_path)
        _release(source)
        if catalog.newest_batch(destination) == 3:
            assert query_of(query, destination, tmp_path / f"half {number}", 3).is_right()
        _clone(source, destination, tmp_path)
        assert query_of(query, destination, tmp_path / f"whole {number}", 3).is_right(), (request, fault)
        assert audited(destination).findings == (), (request, fault)


def _clone(source: Storage, destination: Storage, scratch: Path) -> None:
    cloned(source, destination, scratch, stopped=True)


def _empty(storage: Storage) -> None:
    storage.delete([entry.path for entry in storage.list("", hidden=True)])


def _release(source: Storage) -> None:
    source.delete([entry.path for entry in source.list(names.LEASES)])


# -- bad input ---------------------------------------------------------------------------------------------------------


def _with_a_file(source: Storage, destination: Storage, scratch: Path) -> None:
    del source, scratch
    destination.create("notes.txt", b"of somebody")


def _with_another_clone(source: Storage, destination: Storage, scratch: Path) -> None:
    cloned(source, destination, scratch, batch=6)


def _with_a_clone_that_ran(source: Storage, destination: Storage, scratch: Path) -> None:
    cloned(source, destination, scratch)
    destination.create(names.offsets(8), b"v1\n{}")


def _with_a_damaged_record(source: Storage, destination: Storage, scratch: Path) -> None:
    del source, scratch
    destination.create(names.CLONED, b'{"format": 7}')


def _with_a_lost_changelog(source: Storage, destination: Storage, scratch: Path) -> None:
    del destination, scratch
    heads = catalog.heads(source)
    assert heads is not None
    store, head = next(iter(heads.heads.items()))
    source.delete([store.changelog(head)])


def _with_another_maintainer(source: Storage, destination: Storage, scratch: Path) -> None:
    del destination, scratch
    lease.acquire(source, "gc", run=MAINTAINER.ids.fresh(), holder="another", clock=MAINTAINER.clock)


def _half_switched(source: Storage, destination: Storage, scratch: Path) -> None:
    del destination, scratch
    source.create(names.switchover(1, "begun"), b"{}")


BAD: list[tuple[Callable[[Storage, Storage, Path], None], type[StatekeeperError]]] = [
    (_with_a_file, DestinationNotEmpty),
    (_with_another_clone, DestinationNotEmpty),
    (_with_a_clone_that_ran, DestinationNotEmpty),
    (_with_a_damaged_record, CorruptFile),
    (_with_a_lost_changelog, VersionNotLoadable),
    (_with_another_maintainer, RootHeld),
    (_half_switched, StatekeeperError),
]


@pytest.mark.parametrize(("spoil", "error"), BAD, ids=[spoil.__name__.strip("_") for spoil, _ in BAD])
def test_a_clone_that_cannot_be_made_writes_nothing(
    disks: Roots, tmp_path: Path, spoil: Callable[[Storage, Storage, Path], None], error: type[StatekeeperError]
) -> None:
    source, destination = disks
    own(source, tmp_path)
    spoil(source, destination, tmp_path)
    before = destination.list("", hidden=True)
    with pytest.raises(error) as raised:
        cloned(source, destination, tmp_path)
    assert raised.value.path
    assert raised.value.hint
    assert destination.list("", hidden=True) == before


def test_a_batch_that_is_not_retained_is_named_with_those_that_are(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    own(source, tmp_path)
    with pytest.raises(VersionNotLoadable) as raised:
        cloned(source, destination, tmp_path, batch=17)
    assert "batches 0 to 7" in str(raised.value)


def test_a_full_disk_is_noticed_before_a_file_is_written(disks: Roots, tmp_path: Path, s3_server: S3Server) -> None:
    source = open_storage(f"s3://{s3_server.make_bucket()}/root", options=s3_server.options)
    destination = disks[1]
    own(source, tmp_path)
    gathered = copies.gather(source, destination)
    place = gathered.destination_place
    full = replace(gathered, destination_place=replace(place, location=replace(place.location, free=1_000)))
    (refusal,) = copies.plan(full, query_id=None, root_id=MAINTAINER.ids.fresh()).refusals
    assert "1,000 bytes of free space" in str(refusal)
    assert copies.plan(gathered, query_id=None, root_id=MAINTAINER.ids.fresh()).refusals == ()


def test_an_empty_folder_is_no_source(disks: Roots, tmp_path: Path) -> None:
    with pytest.raises(NotACheckpoint):
        cloned(*disks, tmp_path)


@pytest.mark.parametrize(("source", "destination"), [("root", "root/clone"), ("a/root", "a"), ("root", "root")])
def test_a_destination_inside_the_source_or_around_it_is_rejected(
    tmp_path: Path, source: str, destination: str
) -> None:
    storage = open_storage(str(tmp_path / source))
    own(storage, tmp_path)
    with pytest.raises(RefusedAsUnsafe, match="inside"):
        cloned(storage, open_storage(str(tmp_path / destination)), tmp_path)


def test_the_newest_batches_of_a_running_query_in_structure_v1_are_not_cloned(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V1, in_batch_logs=False)
    with pytest.raises(RefusedAsUnsafe, match="may still replace"):
        cloned(source, destination, tmp_path, batch=7)
    assert cloned(source, destination, tmp_path).plan.record.batch == 5
    assert query_of(query, destination, tmp_path / "of clone", 5).is_right()


def test_a_changelog_that_is_replaced_during_the_copy_stops_it(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V1, in_batch_logs=False)
    prepared = passes.clone.plan(source, destination, MAINTAINER, stopped=True)
    replaced: list[str] = []

    def replace_one(file: CopyFile) -> None:
        if not replaced and file.path.endswith(".changelog"):
            replaced.append(file.path)
            source.replace(file.path, source.read(file.path))

    with pytest.raises(SourceChanged, match="changed since"):
        passes.clone.execute(source, destination, prepared, MAINTAINER, scratch=tmp_path, copied=replace_one)
    assert catalog.newest_batch(destination) is None
    cloned(source, destination, tmp_path, stopped=True)
    assert query_of(query, destination, tmp_path / "of clone", 7).is_right()
    assert structure_of(destination) is Structure.V1
