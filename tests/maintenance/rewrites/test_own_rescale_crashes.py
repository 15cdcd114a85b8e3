"""A rescale of a state root that dies at a request leaves the old state or the new one, and can be finished or reversed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import HalfSwitched, StatekeeperError
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash, crash_matrix
from tests.support.keyed_roots import KeyedRoot
from tests.support.rescales import abort, rescale
from tests.support.roots import opened
from tests.support.switching import WRITES, after_the_dead

OLD, NEW = 2, 3
ONE_OF = 3
"""CI disturbs one of this number of writes. The slow test disturbs each request."""


def test_after_any_failed_write_the_root_has_the_old_or_the_new_partitions(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    matrix = CrashMatrix(tmp_path)
    writes = [case for case in matrix.cases if case[0].kind in WRITES][::ONE_OF]
    for number, case in enumerate(writes):
        matrix.play(*case, finish=number % 2 == 0)
    record_property("crash_matrix_cases", len(writes))
    print(f"{len(writes)} cases")
    assert len(writes) >= 15


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("finish", [True, False], ids=["finish", "abort"])
def test_after_any_failed_request_the_root_has_the_old_or_the_new_partitions(
    finish: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    matrix = CrashMatrix(tmp_path)
    for case in matrix.cases:
        matrix.play(*case, finish=finish)
    record_property("crash_matrix_cases", len(matrix.cases))
    print(f"{len(matrix.cases)} cases")
    assert len(matrix.cases) >= 200


class CrashMatrix:
    """A rescale that dies at each of its requests, in each way. `cases` are those of an undisturbed one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._played = 0
        self._first = self._empty()
        self._first.grow(2, keys=6)
        undisturbed = self._fresh()
        rehearsal = FaultyStorage(undisturbed.storage)
        rescale(rehearsal, NEW, folder)
        self.cases = list(crash_matrix(rehearsal.trace))

    def play(self, request: Request, fault: Fault, *, finish: bool) -> None:
        """Disturb one request. Then finish the rescale or reverse it; one that had ended stays as it is."""
        root, case = self._fresh(), (request, fault, finish)
        before = _described(root.storage)
        faulty = FaultyStorage(root.storage, {request.number: fault})
        with suppress(SimulatedCrash, StatekeeperError):
            rescale(faulty, NEW, self._folder)
        assert len(faulty.trace) > request.number, case
        root.assert_right()
        if rewrite_journal.open_journal(root.storage) is not None:
            self._require_honest(root, case)
            if finish:
                rescale(root.storage, NEW, self._folder, clock=after_the_dead())
            else:
                abort(root.storage, clock=after_the_dead())
                assert _described(root.storage) == before, case
        partitions = read_binding(root.storage)[0].partitions
        assert partitions in (OLD, NEW), case
        root.assert_right(partitions)
        found = audit.judge(audit.gather(root.storage)).findings
        assert found == (), (case, found)

    def _require_honest(self, root: KeyedRoot, case: object) -> None:
        """Check that no job starts, and that the audit reports only the half-done rescale."""
        with pytest.raises(HalfSwitched, match="rescale to 3 partitions"):
            opened(root.storage, root.wanted(), root.batches)
        found = {finding.kind for finding in audit.judge(audit.gather(root.storage)).findings}
        assert found == {FindingKind.HALF_SWITCHED}, (case, found)

    def _empty(self) -> KeyedRoot:
        self._played += 1
        place = self._folder / f"case-{self._played}"
        (place / "root").mkdir(parents=True)
        return KeyedRoot(open_storage(str(place / "root")), place, partitions=OLD, key_groups=16)

    def _fresh(self) -> KeyedRoot:
        empty = self._empty()
        return self._first.copied_to(empty.storage, empty.folder)


def _described(storage: Storage) -> dict[str, bytes]:
    """Every file of the root but tables, leases and records: also the binding."""
    kept = ("state/", "commits/", "offsets/", "_statekeeper/binding.json")
    return {
        entry.path: storage.read(entry.path)
        for entry in storage.list("")
        if entry.path.startswith(kept) and not entry.path.endswith(".sst")
    }
