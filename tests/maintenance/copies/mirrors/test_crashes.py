"""Each request of a mirror with each fault: the mirror opens, and a later run completes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import ObjectMissing, StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.clones import CopyFile
from statekeeper.statestore.storage import Kind, Storage, open_storage
from tests.support import verbs
from tests.support.audits import audited
from tests.support.clones import FEW_KINDS, FULL, KINDS, Roots, cloned, made, own, query_of
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash, crash_matrix
from tests.support.maintained_query import Query, maintained_query
from tests.support.maintainers import MAINTAINER
from tests.support.mirrors import mirrored, require_right
from tests.support.rewinds import rewound

_LOGS = (names.OFFSETS, names.COMMITS)

V1 = pytest.param("native", Structure.V1, False, id="native v1", marks=pytest.mark.slow)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), [KINDS[1], V1])
@pytest.mark.parametrize(
    ("roots", "share"),
    [
        ("disk to disk", 6),
        pytest.param("s3 to s3", 48, marks=pytest.mark.slow),
        *(pytest.param(roots, 1, marks=pytest.mark.slow) for roots in ("disk to disk", "s3 to s3")),
    ],
    indirect=["roots"],
)
def test_a_mirror_opens_after_a_crash_at_any_request_and_a_run_completes_it(
    roots: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool, share: int
) -> None:
    source, destination = roots
    query = maintained_query(source, tmp_path, structure, Origin(kind), batches=3, in_batch_logs=in_batch_logs)
    is_v1 = structure is Structure.V1
    mirrored(source, destination, tmp_path)
    query.grow(2)
    query.snapshot()
    query.grow(1)
    query.gc()
    begun = {entry.path: destination.read(entry.path) for entry in destination.list("")}
    traced = FaultyStorage(destination)
    mirrored(source, traced, tmp_path)
    matrix = crash_matrix(traced.trace)
    assert len(matrix) > 40
    deletions = jumps = 0
    # Outside of the slow tests, one of `share` faults, and one of a deletion. Faults of one request are adjacent.
    cases = list(enumerate(matrix))
    deleting = [case for case in cases if _deletes_a_commit(case[1][0])]
    for number, (request, fault) in dict((*cases[::share], *deleting[:1])).items():
        _reset(destination, begun)
        with pytest.raises((SimulatedCrash, StatekeeperError)):
            mirrored(source, FaultyStorage(destination, {request.number: fault}), tmp_path)
        _release(source)
        _release(destination)
        newest = catalog.newest_batch(destination)
        assert newest is not None
        assert query_of(query, destination, tmp_path / f"half {number}", newest).is_right(), (request, fault)
        # Spark repeats a batch with offsets and without a commit, but only the next one.
        jumped = catalog.newest_begun(destination) > newest + 1
        if jumped or request.path.startswith((names.OFFSETS, names.COMMITS)):
            _require_right_clone(destination, query, newest, tmp_path / f"clone {number}")
            jumps += jumped
        mirrored(source, destination, tmp_path)
        assert query_of(query, destination, tmp_path / f"whole {number}", 3 if is_v1 else 5).is_right(), (
            request,
            fault,
        )
        assert audited(destination).findings == (), (request, fault)
        deletions += _deletes_a_commit(request)
    assert deletions
    assert share > 1 or bool(jumps) == is_v1


def _require_right_clone(mirror: Storage, query: Query, newest: int, folder: Path) -> None:
    """Require that Spark can start from a clone of a mirror which a crash stopped."""
    other = open_storage(str(folder / "root"))
    cloned(mirror, other, folder, batch=newest, stopped=True)
    assert catalog.newest_begun(other) == newest
    assert newest == 0 or other.stat(names.offsets(newest - 1)) is not None
    assert query_of(query, other, folder, newest).is_right()


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW_KINDS)
def test_a_mirror_that_jumps_over_deleted_batches_can_be_cloned_after_each_log(
    disks: Roots, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    """And rewound, so that Spark starts from the mirror itself."""
    source, destination = disks
    query = made(source, tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    mirrored(source, destination, tmp_path, stopped=True)
    query.grow(6)
    query.snapshot()
    query.grow(2)
    query.gc()
    assert source.stat(names.commits(8)) is None
    begun = {entry.path: destination.read(entry.path) for entry in destination.list("")}
    traced = FaultyStorage(destination)
    mirrored(source, traced, tmp_path, stopped=True)
    logs = [one for one in traced.trace if one.kind is Kind.CREATE and one.path.startswith(_LOGS)]
    first = next(one for one in logs if one.path.startswith(names.COMMITS))
    batch = names.parse_batch(first.path)
    assert batch is not None
    assert destination.stat(names.offsets(batch - 1)) is not None
    for request in logs:
        _reset(destination, begun)
        with pytest.raises(SimulatedCrash):
            mirrored(source, FaultyStorage(destination, {request.number: Fault.AFTER}), tmp_path, stopped=True)
        _release(source)
        _release(destination)
        newest = catalog.newest_batch(destination)
        assert newest is not None
        _require_right_clone(destination, query, newest, tmp_path / f"clone {request.number}")
        if request.number < first.number:
            assert newest == 7
            rewound(destination, newest, tmp_path, keep_query_id=True)
            assert catalog.newest_begun(destination) == newest
            assert audited(destination).findings == ()
        else:
            assert destination.stat(names.offsets(newest - 1)) is not None
        mirrored(source, destination, tmp_path, stopped=True)
        assert require_right(query, destination, tmp_path / f"whole {request.number}") == 15


def test_a_jump_to_the_only_batch_of_the_source_copies_the_offsets_before_it(disks: Roots, tmp_path: Path) -> None:
    source, destination = disks
    query = made(source, tmp_path, "native", Structure.V2, in_batch_logs=False)
    mirrored(source, destination, tmp_path)
    query.grow(3)
    query.snapshot()
    source.delete([names.commits(batch) for batch in range(10)])
    source.delete([names.offsets(batch) for batch in range(9)])
    mirrored(source, destination, tmp_path)
    assert [entry.path for entry in destination.list(names.OFFSETS)] == [names.offsets(10), names.offsets(9)]
    assert require_right(query, destination, tmp_path / "of mirror") == 10


def test_an_offset_that_the_source_deletes_during_a_run_leaves_the_logs_of_the_mirror_unchanged(
    disks: Roots, tmp_path: Path
) -> None:
    source, destination = disks
    query = own(source, tmp_path)
    mirrored(source, destination, tmp_path)
    query.grow(3)
    logs = destination.list(names.OFFSETS), destination.list(names.COMMITS)
    prepared = verbs.mirror.plan(source, destination, FULL, MAINTAINER)

    def delete(_: CopyFile) -> None:
        source.delete([names.commits(10)])

    with pytest.raises(ObjectMissing):
        verbs.mirror.execute(source, destination, prepared, MAINTAINER, scratch=tmp_path, copied=delete)
    assert (destination.list(names.OFFSETS), destination.list(names.COMMITS)) == logs


def _reset(storage: Storage, files: dict[str, bytes]) -> None:
    storage.delete([entry.path for entry in storage.list("", hidden=True)])
    for path, body in files.items():
        storage.create(path, body)


def _release(storage: Storage) -> None:
    storage.delete([entry.path for entry in storage.list(names.LEASES)])


def _deletes_a_commit(request: Request) -> bool:
    return request.kind is Kind.DELETE and request.path.startswith(names.COMMITS)
