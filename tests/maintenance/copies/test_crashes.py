"""Each request of a clone with each fault: a later run completes the clone."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore import catalog
from statestore.errors import (
    StatekeeperError,
)
from statestore.format import names
from statestore.format.structure import Structure
from statestore.origin import Origin
from statestore.storage import Kind, Storage
from tests.support.audits import audited
from tests.support.clones import KINDS, Roots, cloned, query_of
from tests.support.faulty_storage import FaultyStorage, SimulatedCrash, crash_matrix
from tests.support.maintained_query import maintained_query

# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "structure", "in_batch_logs"),
    [KINDS[2], pytest.param("native", Structure.V1, False, id="native v1", marks=pytest.mark.slow)],
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
        _release(destination)
        if catalog.newest_batch(destination) == 3:
            assert query_of(query, destination, tmp_path / f"half {number}", 3).is_right()
        _clone(source, destination, tmp_path)
        assert query_of(query, destination, tmp_path / f"whole {number}", 3).is_right(), (request, fault)
        assert audited(destination).findings == (), (request, fault)


def _clone(source: Storage, destination: Storage, scratch: Path) -> None:
    cloned(source, destination, scratch, stopped=True)


def _empty(storage: Storage) -> None:
    storage.delete([entry.path for entry in storage.list("", hidden=True)])


def _release(storage: Storage) -> None:
    storage.delete([entry.path for entry in storage.list(names.LEASES)])


def test_the_newest_commit_is_copied_last(disks: Roots, tmp_path: Path) -> None:
    """By number: as text, 9 comes after 10."""
    source, destination = disks
    query = maintained_query(source, tmp_path, Structure.V2, Origin.OWN, batches=12)
    assert query.is_right()
    traced = FaultyStorage(destination)
    cloned(source, traced, tmp_path, batch=10)
    written = [request.path for request in traced.trace if request.kind is Kind.CREATE]
    of_checkpoint = [path for path in written if not path.startswith(names.CONTROL)]
    assert of_checkpoint[-1] == names.commits(10)
    assert of_checkpoint.index(names.commits(9)) < of_checkpoint.index(names.commits(10))
    assert names.offsets(10) in of_checkpoint[: of_checkpoint.index(names.commits(9))]
