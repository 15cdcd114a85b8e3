"""An edit, or its undo, that dies at a request leaves the old state, the edited state, or a checkpoint on which no query
starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import ObjectMissing, StatekeeperError
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.checkpoint.rewrite_journal import Ending
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.edits import Edit
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.edits import apply, planned, rows, undo
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash, crash_matrix
from tests.support.rescales import abort
from tests.support.switching import WRITES, after_the_dead, contents
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
ARCHIVES = {
    "v1": FIXTURES / "spark-4.2.0-v1-aggregation.zip",
    "v1-zips": FIXTURES / "spark-4.2.0-v1-a-zip-for-each-version.zip",
    "v2": FIXTURES / "spark-4.2.0-v2-aggregation.zip",
}
KEYS = ("key 3", "key 1")
"""Keys of different partitions, so that two stores are edited."""
ONE_OF = 3
"""CI disturbs one of this number of writes. The slow tests disturb each request."""


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize("of_undo", [False, True], ids=["edit", "undo"])
def test_after_any_failed_write_the_checkpoint_has_the_old_or_the_edited_state(
    name: str, of_undo: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    matrix = CrashMatrix(name, tmp_path, of_undo=of_undo)
    writes = [case for case in matrix.cases if case[0].kind in WRITES][::ONE_OF]
    for number, case in enumerate(writes):
        matrix.play(*case, finish=number % 2 == 0)
    record_property("crash_matrix_cases", len(writes))
    print(f"{len(writes)} cases")
    assert len(writes) >= 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize("of_undo", [False, True], ids=["edit", "undo"])
def test_after_any_failed_request_the_checkpoint_has_the_old_or_the_edited_state(
    name: str, of_undo: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    matrix = CrashMatrix(name, tmp_path, of_undo=of_undo)
    for number, case in enumerate(matrix.cases):
        matrix.play(*case, finish=number % 2 == 0)
    record_property("crash_matrix_cases", len(matrix.cases))
    print(f"{len(matrix.cases)} cases")
    assert len(matrix.cases) >= 100


class CrashMatrix:
    """An edit or its undo that dies at each of its requests, in each way. `cases` are those of an undisturbed one."""

    def __init__(self, name: str, folder: Path, *, of_undo: bool) -> None:
        self._archive, self._folder, self._of_undo, self._played = ARCHIVES[name], folder, of_undo, 0
        storage = self._fresh()
        self._structure = Structure.V2 if name == "v2" else Structure.V1
        self._old = rows(_path(storage))
        self._goal = Edit(operator=0, keys=pa.table({"k": list(KEYS)}), options=("--operator", "0"))
        run = self._edit(storage)
        self._edited = rows(_path(storage))
        assert len(self._old) - len(self._edited) == 2
        if of_undo:
            rehearsal = FaultyStorage(storage)
            undo(rehearsal, run)
        else:
            rehearsal = FaultyStorage(self._fresh())
            self._edit(rehearsal)
        self.cases = list(crash_matrix(rehearsal.trace))

    def play(self, request: Request, fault: Fault, *, finish: bool) -> None:
        """Disturb one request. Then finish the edit or reverse it; one that had ended stays as it is."""
        storage, case = self._fresh(), (request, fault, finish)
        before = contents(storage)
        run = self._edit(storage) if self._of_undo else ""
        faulty = FaultyStorage(storage, {request.number: fault})
        with suppress(SimulatedCrash, StatekeeperError):
            undo(faulty, run) if self._of_undo else self._edit(faulty)
        assert len(faulty.trace) > request.number, case
        self._require_one_state_or_no_start(storage, case)
        is_open = rewrite_journal.open_journal(storage) is not None
        if is_open and not finish:
            abort(storage, clock=after_the_dead())
        elif finish and (is_open or not self._of_undo):
            self._finish(storage, case)
        assert rewrite_journal.open_journal(storage) is None, case
        newest = rewrite_journal.newest_journal(storage)
        is_edited = newest is not None and rewrite_journal.ending(storage, newest.begun) is Ending.SWITCHED
        assert is_edited or not finish or self._of_undo, case
        assert rows(_path(storage)) == (self._edited if is_edited else self._old), case
        found = audit.judge(audit.gather(storage)).findings
        assert found == (), (case, found)
        if not is_edited:
            left = contents(storage)
            assert before.items() <= left.items(), case
            assert [path for path in left.keys() - before.keys() if not path.endswith(".sst")] == [], case

    def _require_one_state_or_no_start(self, storage: Storage, case: object) -> None:
        """Check that Spark loads the old rows of all stores or the edited rows of all, or that its V1 provider cannot
        start: a new snapshot has an id in its name."""
        files = catalog.files(storage)
        if self._structure is Structure.V1 and any(one.id for of in files.values() for one in of.snapshots):
            return
        assert rows(_path(storage)) in (self._old, self._edited), case

    def _finish(self, storage: Storage, case: object) -> None:
        """Finish the edit, unless it has ended: then its plan has nothing to do. An undo that has deleted new snapshots can
        only be completed: the error names --abort."""
        if rewrite_journal.open_journal(storage) is None and planned(storage, self._goal, self._folder).is_there:
            assert rows(_path(storage)) == self._edited, case
            return
        missing: ObjectMissing | None = None
        try:
            self._edit(storage, clock=after_the_dead())
        except ObjectMissing as error:
            missing = error
        if missing is not None:
            assert self._of_undo, case
            assert "statekeeper edit ROOT --abort --confirm-stopped" in (missing.hint or ""), case
            abort(storage, clock=after_the_dead())

    def _edit(self, storage: Storage, *, clock: Clock | None = None) -> str:
        return apply(storage, self._goal, self._folder, clock=clock)

    def _fresh(self) -> Storage:
        self._played += 1
        return open_storage(str(unpacked(self._archive, self._folder / f"case-{self._played}")))


def _path(storage: Storage) -> str:
    return storage.url.removeprefix("file://")
