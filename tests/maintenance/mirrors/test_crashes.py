"""Each request of a mirror with each fault: the mirror opens, and a later run completes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore import catalog
from statestore.errors import StatekeeperError
from statestore.format import names
from statestore.format.structure import Structure
from statestore.origin import Origin
from statestore.storage import Kind, Storage, open_storage
from tests.support.audits import audited
from tests.support.clones import KINDS, Roots, cloned, query_of
from tests.support.faulty_storage import FaultyStorage, SimulatedCrash, crash_matrix
from tests.support.maintained_query import Query, maintained_query
from tests.support.mirrors import mirrored

V1 = pytest.param("native", Structure.V1, False, id="native v1", marks=pytest.mark.slow)


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), [KINDS[1], V1])
@pytest.mark.parametrize("share", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("roots", ["disk to disk", pytest.param("s3 to s3", marks=pytest.mark.slow)], indirect=True)
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
    # Outside of the slow tests, one of `share` faults. Faults of one request are adjacent.
    for number, (request, fault) in list(enumerate(matrix))[::share]:
        _reset(destination, begun)
        with pytest.raises((SimulatedCrash, StatekeeperError)):
            mirrored(source, FaultyStorage(destination, {request.number: fault}), tmp_path)
        _release(source)
        _release(destination)
        newest = catalog.newest_batch(destination)
        assert newest is not None
        assert query_of(query, destination, tmp_path / f"half {number}", newest).is_right(), (request, fault)
        # Spark repeats a batch with offsets and without a commit, but only the next one.
        if catalog.newest_begun(destination) > newest + 1:
            _require_right_clone(source, destination, query, newest, tmp_path / f"clone {number}")
            jumps += 1
        mirrored(source, destination, tmp_path)
        assert query_of(query, destination, tmp_path / f"whole {number}", 3 if is_v1 else 5).is_right(), (
            request,
            fault,
        )
        assert audited(destination).findings == (), (request, fault)
        deletions += request.kind is Kind.DELETE and request.path.startswith(names.COMMITS)
    assert deletions
    assert bool(jumps) == (is_v1 and share == 1)


def _require_right_clone(source: Storage, mirror: Storage, query: Query, newest: int, folder: Path) -> None:
    """Require that a clone continues from a mirror which a crash stopped in a jump over batches that the source deleted."""
    assert source.stat(names.commits(newest + 1)) is None, "the mirror skipped a batch that the source has"
    other = open_storage(str(folder / "root"))
    cloned(mirror, other, folder, batch=newest, stopped=True)
    assert catalog.newest_begun(other) == newest
    assert query_of(query, other, folder, newest).is_right()


def _reset(storage: Storage, files: dict[str, bytes]) -> None:
    storage.delete([entry.path for entry in storage.list("", hidden=True)])
    for path, body in files.items():
        storage.create(path, body)


def _release(storage: Storage) -> None:
    storage.delete([entry.path for entry in storage.list(names.LEASES)])
