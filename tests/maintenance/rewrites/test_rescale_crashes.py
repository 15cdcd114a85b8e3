"""A rescale that dies at a request leaves the old state, the new state, or a checkpoint on which no query starts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from statestore import catalog, switch_journal
from statestore.errors import StatekeeperError
from statestore.format import names
from statestore.format.structure import Structure
from statestore.maintenance import audit
from statestore.storage import Storage, open_storage
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash, crash_matrix
from tests.support.rescales import abort, all_rows, rescale
from tests.support.switching import WRITES, after_the_dead, contents
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
ARCHIVES = {one: FIXTURES / f"spark-4.2.0-{one.value}-aggregation.zip" for one in Structure}
PARTITIONS = 3
ONE_OF = 3
"""CI disturbs one of this number of writes. The slow tests disturb each request."""


@pytest.mark.parametrize("structure", Structure, ids=lambda one: one.value)
def test_after_any_failed_write_the_checkpoint_has_the_old_or_the_new_state(
    structure: Structure, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    matrix = CrashMatrix(structure, tmp_path)
    writes = [case for case in matrix.cases if case[0].kind in WRITES][::ONE_OF]
    for number, case in enumerate(writes):
        matrix.play(*case, finish=number % 2 == 0)
    record_property("crash_matrix_cases", len(writes))
    print(f"{len(writes)} cases")
    assert len(writes) >= 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("structure", Structure, ids=lambda one: one.value)
def test_after_any_failed_request_the_checkpoint_has_the_old_or_the_new_state(
    structure: Structure, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    matrix = CrashMatrix(structure, tmp_path)
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


class CrashMatrix:
    """A rescale that dies at each of its requests, in each way. `cases` are those of an undisturbed one."""

    def __init__(self, structure: Structure, folder: Path) -> None:
        self._structure = structure
        self._folder = folder
        self._played = 0
        undisturbed = self._fresh()
        self._rows = all_rows(_path(undisturbed))
        self._batch = catalog.newest_batch(undisturbed)
        rehearsal = FaultyStorage(undisturbed)
        rescale(rehearsal, PARTITIONS, folder)
        self.cases = list(crash_matrix(rehearsal.trace))

    def play(self, request: Request, fault: Fault, *, finish: bool) -> None:
        """Disturb one request. Then finish the rescale or reverse it; one that had ended stays as it is."""
        storage, case = self._fresh(), (request, fault, finish)
        before = contents(storage)
        faulty = FaultyStorage(storage, {request.number: fault})
        with suppress(SimulatedCrash, StatekeeperError):
            rescale(faulty, PARTITIONS, self._folder)
        assert len(faulty.trace) > request.number, case
        self._require_old_or_new(storage, case)
        ended = switch_journal.open_journal(storage) is None and catalog.newest_batch(storage) != self._batch
        if not ended and finish:
            rescale(storage, PARTITIONS, self._folder, clock=after_the_dead())
        elif not ended:
            abort(storage, clock=after_the_dead())
        assert switch_journal.open_journal(storage) is None, case
        assert all_rows(_path(storage)) == self._rows, case
        found = audit.judge(audit.gather(storage)).findings
        assert found == (), (case, found)
        left = contents(storage)
        assert before.items() <= left.items(), case
        if not ended and not finish:
            assert [path for path in left.keys() - before.keys() if not path.endswith(".sst")] == [], case

    def _require_old_or_new(self, storage: Storage, case: object) -> None:
        """Check that the head loads, and that Spark's V1 provider cannot start on a part of the new snapshots."""
        assert all_rows(_path(storage)) == self._rows, case
        new = names.snapshot(names.VersionId((self._batch or 0) + 2))
        published = [path for path in contents(storage) if path.endswith(f"/{new}")]
        has_both_logs = storage.stat(names.offsets((self._batch or 0) + 1)) is not None
        if self._structure is Structure.V1 and published and not has_both_logs:
            stores = {store.folder for store, of in catalog.files(storage).items() if any(v.id for v in of.snapshots)}
            assert {path.rpartition("/")[0] for path in published} <= stores, case

    def _fresh(self) -> Storage:
        self._played += 1
        return open_storage(str(unpacked(ARCHIVES[self._structure], self._folder / f"case-{self._played}")))


def _path(storage: Storage) -> str:
    return storage.url.removeprefix("file://")
