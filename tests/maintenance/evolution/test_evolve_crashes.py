"""A schema evolution that dies at a request leaves the old columns or the new ones, and can be finished or reversed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import HalfSwitched, StatekeeperError
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.evolved_roots import (
    NEW,
    OLD,
    PLAIN,
    by_key,
    commit,
    declared,
    evolve,
    goal,
    new_rows,
    old_rows,
    plain_rows,
    rows_of,
    undo,
)
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash, crash_matrix
from tests.support.rescales import abort
from tests.support.roots import opened
from tests.support.s3_server import S3Server
from tests.support.switching import WRITES, after_the_dead
from tests.support.twins import clean

ROWS = old_rows(*[f"key {n}" for n in range(6)])
BEFORE, AFTER = by_key(ROWS), by_key(new_rows(ROWS))
ONE_OF = 7
"""CI disturbs one of this number of writes. The slow tests disturb each request."""


def test_after_any_failed_write_the_root_has_the_old_or_the_new_columns(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    matrix = CrashMatrix(tmp_path)
    writes = [case for case in matrix.cases if case[0].kind in WRITES][::ONE_OF]
    for number, case in enumerate(writes):
        matrix.play(*case, finish=number % 2 == 0)
    record_property("crash_matrix_cases", len(writes))
    assert len(writes) >= 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("finish", [True, False], ids=["finish", "abort"])
def test_after_any_failed_request_the_root_has_the_old_or_the_new_columns(
    finish: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    matrix = CrashMatrix(tmp_path)
    for case in matrix.cases:
        matrix.play(*case, finish=finish)
    record_property("crash_matrix_cases", len(matrix.cases))
    assert len(matrix.cases) >= 150


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_after_any_failed_request_of_an_undo_the_root_has_the_new_or_the_old_columns(tmp_path: Path) -> None:
    matrix = CrashMatrix(tmp_path, of_undo=True)
    for case in matrix.cases:
        matrix.play(*case, finish=False)
    assert len(matrix.cases) >= 30


class CrashMatrix:
    """A schema evolution, or its undo, that dies at each of its requests, in each way."""

    def __init__(self, folder: Path, *, of_undo: bool = False) -> None:
        self._folder, self._played, self._of_undo, self._run = folder, 0, of_undo, ""
        self._first = folder / "first"
        self._first.mkdir()
        storage = open_storage(str(self._first))
        commit(storage, folder / "host", 0, ROWS, plain_rows("a"))
        self._described = _described(storage)
        if of_undo:
            self._run = evolve(storage, goal(), folder)
        rehearsal = FaultyStorage(self._fresh())
        self._act(rehearsal)
        self.cases = list(crash_matrix(rehearsal.trace))

    def play(self, request: Request, fault: Fault, *, finish: bool) -> None:
        """Disturb one request. Then finish the evolution or reverse it; one that had ended stays as it is."""
        storage, case = self._fresh(), (request, fault, finish)
        faulty = FaultyStorage(storage, {request.number: fault})
        with suppress(SimulatedCrash, StatekeeperError):
            self._act(faulty)
        assert len(faulty.trace) > request.number, case
        is_open = rewrite_journal.open_journal(storage) is not None
        if is_open:
            for values in (OLD, NEW):
                with pytest.raises(HalfSwitched, match="schema evolution of 2 stores"):
                    opened(storage, declared(values, PLAIN), 1)
            found = {finding.kind for finding in audit.judge(audit.gather(storage)).findings}
            assert found == {FindingKind.HALF_SWITCHED}, (case, found)
            if finish:
                evolve(storage, goal(), self._folder, clock=after_the_dead())
            else:
                abort(storage, clock=after_the_dead())
                assert _described(storage) == self._described, case
        rows = rows_of(storage, 0, self._folder)
        assert rows in ([AFTER if finish else BEFORE] if is_open else [BEFORE, AFTER]), case
        opened(storage, declared(NEW if rows == AFTER else OLD, PLAIN), 1)
        found_after = audit.judge(audit.gather(storage)).findings
        assert found_after == (), (case, found_after)

    def _act(self, storage: Storage) -> None:
        if self._of_undo:
            undo(storage, self._run)
        else:
            evolve(storage, goal(), self._folder)

    def _fresh(self) -> Storage:
        self._played += 1
        return open_storage(str(shutil.copytree(self._first, self._folder / f"case-{self._played}")))


def _described(storage: Storage) -> dict[str, bytes]:
    """Every file of the root but tables, leases and records."""
    kept = ("state/", "commits/", "offsets/", names.BINDING, names.SCHEMAS)
    return {
        entry.path: storage.read(entry.path)
        for entry in storage.list("")
        if entry.path.startswith(kept) and not entry.path.endswith(".sst")
    }


class DiesAtCommit(FaultyStorage):
    """Dies when the newest commit is rewritten."""

    def _fault_of(self, request: Request) -> Fault | None:
        return Fault.AFTER if request.path == names.commits(0) and request.kind in WRITES else None


@pytest.mark.parametrize(
    "finish", [pytest.param(True, id="finish"), pytest.param(False, id="abort", marks=pytest.mark.slow)]
)
def test_a_schema_evolution_in_a_bucket_that_dies_after_its_commit_is_finished_or_reversed(
    finish: bool, s3_server: S3Server, tmp_path: Path
) -> None:
    storage = open_storage(f"s3://{s3_server.make_bucket()}/root", options=s3_server.options)
    commit(storage, tmp_path / "host", 0, ROWS, plain_rows("a"))
    with pytest.raises(SimulatedCrash):
        evolve(DiesAtCommit(storage), goal(), tmp_path)
    with pytest.raises(HalfSwitched):
        rows_of(storage, 0, tmp_path)
    if finish:
        evolve(storage, goal(), tmp_path, clock=after_the_dead())
    else:
        abort(storage, clock=after_the_dead())
    assert rows_of(storage, 0, tmp_path) == (AFTER if finish else BEFORE)
    commit(storage, tmp_path / "host", 1, new_rows(ROWS) if finish else ROWS, plain_rows("a"))
    clean(storage, tmp_path)
