"""Each request of a rewind, and of its undo, with each fault: the checkpoint loads, and a later run completes the work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Kind, Storage
from tests.support.audits import audited
from tests.support.clones import KINDS
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash, crash_matrix
from tests.support.maintained_query import Query, maintained_query
from tests.support.repairs import contents
from tests.support.rewinds import rewound, undone
from tests.support.structures import held

NewRoot = Callable[[str], Storage]
NEWEST, TARGET = 4, 2
FEW = [
    kind if number == 2 else pytest.param(*kind.values, id=kind.id, marks=pytest.mark.slow)
    for number, kind in enumerate(KINDS)
]


@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), FEW)
def test_a_crash_at_any_request_leaves_a_checkpoint_that_loads_and_can_be_rewound_or_undone(
    new_root: NewRoot, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    query = _made(new_root("root"), tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    rows = {batch: query.checkpoint.states[batch + 1] for batch in range(TARGET, NEWEST + 1)}
    before = contents(query.storage)
    traced = FaultyStorage(_copy(query.storage, new_root("traced")))
    run = rewound(traced, TARGET, tmp_path)
    target = {path: body for path, body in contents(traced).items() if path != names.BINDING}
    matrix = _writes(traced)
    assert len(matrix) > 30
    met = set()
    for number, (request, fault) in enumerate(matrix):
        root = _copy(query.storage, new_root(f"root {number}"))
        with _dies(request):
            rewound(FaultyStorage(root, {request.number: fault}), TARGET, tmp_path)
        _release(root)
        newest = catalog.newest_batch(root)
        assert newest is not None
        met.add(newest)
        assert _states(root, tmp_path) == rows[newest], (request, fault)
        runs = [parsed[0] for entry in root.list(names.QUARANTINE) if (parsed := names.parse_quarantined(entry.path))]
        if runs and number % 2:
            undone(root, runs[0])
            assert contents(root) == before, (request, fault)
        else:
            rewound(root, TARGET, tmp_path, keep_query_id=kind == "native")
            now = {path: body for path, body in contents(root).items() if path != names.BINDING}
            assert now == target or kind == "native", (request, fault)
            assert _states(root, tmp_path) == rows[TARGET]
            assert audited(root).findings == (), (request, fault)
    assert met == {NEWEST, 3, TARGET}
    assert run


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "structure", "in_batch_logs"), KINDS)
def test_a_crash_at_any_request_of_the_undo_leaves_a_checkpoint_that_loads_and_another_run_completes_it(
    new_root: NewRoot, tmp_path: Path, kind: str, structure: Structure, in_batch_logs: bool
) -> None:
    query = _made(new_root("root"), tmp_path, kind, structure, in_batch_logs=in_batch_logs)
    rows = {batch: query.checkpoint.states[batch + 1] for batch in range(TARGET, NEWEST + 1)}
    before = contents(query.storage)
    run = rewound(query.storage, TARGET, tmp_path)
    traced = FaultyStorage(_copy(query.storage, new_root("traced")))
    undone(traced, run)
    for number, (request, fault) in enumerate(_writes(traced)):
        root = _copy(query.storage, new_root(f"root {number}"))
        with _dies(request):
            undone(FaultyStorage(root, {request.number: fault}), run)
        _release(root)
        newest = catalog.newest_batch(root)
        assert newest is not None
        assert _states(root, tmp_path) == rows[newest], (request, fault)
        if root.list(names.QUARANTINE):
            undone(root, run)
        assert contents(root) == before, (request, fault)


def _writes(traced: FaultyStorage) -> list[tuple[Request, Fault]]:
    """Only writes: a crash at a read leaves the state after the write before it."""
    writes = (Kind.CREATE, Kind.REPLACE, Kind.DELETE)
    return crash_matrix([request for request in traced.trace if request.kind in writes])


def _dies(request: Request) -> AbstractContextManager[object]:
    """A lost reply to the release of the lease is no error."""
    if request.path.startswith(names.LEASES):
        return suppress(SimulatedCrash, StatekeeperError)
    return pytest.raises((SimulatedCrash, StatekeeperError))


def _made(root: Storage, folder: Path, kind: str, structure: Structure, *, in_batch_logs: bool) -> Query:
    query = maintained_query(root, folder, structure, Origin(kind), batches=3, in_batch_logs=in_batch_logs)
    query.snapshot()
    query.grow(2)
    return query


def _copy(storage: Storage, copied: Storage) -> Storage:
    for entry in storage.list("", hidden=True):
        copied.create(entry.path, storage.read(entry.path))
    return copied


def _states(root: Storage, folder: Path) -> list[object]:
    return [rows for _, rows in sorted(held(root, folder / "look").items(), key=lambda item: item[0].partition)]


def _release(storage: Storage) -> None:
    storage.delete([entry.path for entry in storage.list(names.LEASES)])
