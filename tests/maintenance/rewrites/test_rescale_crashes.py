"""A rescale that dies at a request leaves the old state, the new state, or a checkpoint on which no query starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash
from tests.support.rescales import abort, rescale
from tests.support.rewrite_crashes import CrashMatrix
from tests.support.switching import WRITES, after_the_dead
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
ARCHIVES = {one: FIXTURES / f"spark-4.2.0-{one.value}-aggregation.zip" for one in Structure}
PARTITIONS = 3


@pytest.mark.parametrize("structure", Structure, ids=lambda one: one.value)
def test_after_any_failed_write_the_checkpoint_has_the_old_or_the_new_state(
    structure: Structure, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    matrix = _matrix(structure, tmp_path)
    writes = matrix.slice_for_ci
    for number, case in enumerate(writes):
        matrix.play(*case, finish=number % 2 == 0)
    record_property("crash_matrix_cases", len(writes))
    print(f"{len(writes)} cases")
    assert len(writes) >= 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("structure", Structure, ids=lambda one: one.value)
def test_after_any_failed_request_the_checkpoint_has_the_old_or_the_new_state(
    structure: Structure, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    matrix = _matrix(structure, tmp_path)
    for number, case in enumerate(matrix.cases):
        matrix.play(*case, finish=number % 2 == 0)
    record_property("crash_matrix_cases", len(matrix.cases))
    print(f"{len(matrix.cases)} cases")
    assert len(matrix.cases) >= 300


@pytest.mark.parametrize("part", ["commits/", "ended"])
def test_an_abort_that_dies_leaves_no_new_snapshot_that_a_query_could_load(part: str, tmp_path: Path) -> None:
    """In structure V1, Spark loads snapshots by their number, unless a guard is beside them."""

    def half_done(folder: Path) -> Storage:
        storage = open_storage(str(unpacked(ARCHIVES[Structure.V1], folder)))

        class Dying(FaultyStorage):
            def _fault_of(self, request: Request) -> Fault | None:
                return Fault.BEFORE if request.kind in WRITES and part in request.path else None

        with pytest.raises(SimulatedCrash):
            rescale(Dying(storage), PARTITIONS, tmp_path)
        return storage

    rehearsal = FaultyStorage(half_done(tmp_path / "rehearsal"))
    abort(rehearsal, clock=after_the_dead())
    writes = [request for request in rehearsal.trace if request.kind in WRITES]
    for request in writes:
        storage = half_done(tmp_path / f"case-{request.number}")
        batch = catalog.newest_batch(open_storage(str(unpacked(ARCHIVES[Structure.V1], tmp_path / "before"))))
        assert batch is not None
        with suppress(SimulatedCrash, StatekeeperError):
            abort(FaultyStorage(storage, {request.number: Fault.BEFORE}), clock=after_the_dead())
        published = {
            store for store, of in catalog.files(storage).items() if names.VersionId(batch + 2) in of.snapshots
        }
        guarded = {store for store, of in catalog.files(storage).items() if any(one.id for one in of.snapshots)}
        is_new = storage.stat(names.commits(batch + 1)) is not None
        assert is_new or published <= guarded, request
        abort(storage, clock=after_the_dead())
        assert audit.judge(audit.gather(storage)).findings == (), request
    print(f"{len(writes)} cases")
    assert len(writes) >= 8


def _matrix(structure: Structure, folder: Path) -> CrashMatrix:
    def rewrite(storage: Storage, scratch: Path, *, clock: Clock | None = None) -> object:
        return rescale(storage, PARTITIONS, scratch, clock=clock)

    return CrashMatrix(ARCHIVES[structure], rewrite, folder, guarded=structure is Structure.V1)
