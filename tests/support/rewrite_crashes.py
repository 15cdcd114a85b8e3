"""A rewrite of a checkpoint that dies at each of its requests, and is then finished or reversed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Protocol

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import HalfSwitched, StatekeeperError
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash, crash_matrix
from tests.support.rescales import abort, all_rows
from tests.support.switching import WRITES, after_the_dead, contents
from tests.support.twins import statekeeper
from tests.support.unpacked import unpacked


class Rewriting(Protocol):
    """Plans and executes the rewrite."""

    def __call__(self, storage: Storage, scratch: Path, *, clock: Clock | None = None) -> object: ...


class CrashMatrix:
    """The rewrite of an archived checkpoint. `cases` are the requests of an undisturbed one, each in each way to die.

    `guarded`: the query could load a part of the new snapshots before both logs are written, unless guards are beside them.
    """

    def __init__(self, archive: Path, rewrite: Rewriting, folder: Path, *, guarded: bool) -> None:
        self._archive = archive
        self._rewrite = rewrite
        self._folder = folder
        self._guarded = guarded
        self._played = 0
        undisturbed = self._fresh()
        self._rows = all_rows(_path(undisturbed))
        self._batch = catalog.newest_batch(undisturbed)
        rehearsal = FaultyStorage(undisturbed)
        rewrite(rehearsal, folder)
        self.cases = list(crash_matrix(rehearsal.trace))

    @property
    def slice_for_ci(self) -> list[tuple[Request, Fault]]:
        """The cases of writes to the logs and at the end, and a third of those of the other writes."""
        writes = [case for case in self.cases if case[0].kind in WRITES]
        ends = [case for case in writes if case[0].path.startswith((names.COMMITS, names.OFFSETS)) or _is_end(case[0])]
        return [case for number, case in enumerate(writes) if number % 3 == 0 or case in ends]

    def play(self, request: Request, fault: Fault, *, finish: bool) -> None:
        """Disturb one request. Then finish the rewrite or reverse it; one that had ended stays as it is."""
        storage, case = self._fresh(), (request, fault, finish)
        before = contents(storage)
        faulty = FaultyStorage(storage, {request.number: fault})
        with suppress(SimulatedCrash, StatekeeperError):
            self._rewrite(faulty, self._folder)
        assert len(faulty.trace) > request.number, case
        self._require_old_or_new(storage, case)
        ended = rewrite_journal.open_journal(storage) is None and catalog.newest_batch(storage) != self._batch
        if not ended and finish:
            self._rewrite(storage, self._folder, clock=after_the_dead())
        elif not ended:
            abort(storage, clock=after_the_dead())
        assert rewrite_journal.open_journal(storage) is None, case
        assert all_rows(_path(storage)) == self._rows, case
        found = audit.judge(audit.gather(storage)).findings
        assert found == (), (case, found)
        left = contents(storage)
        assert before.items() <= left.items(), case
        if not ended and not finish:
            assert [path for path in left.keys() - before.keys() if not path.endswith(".sst")] == [], case

    def _require_old_or_new(self, storage: Storage, case: object) -> None:
        """Check that the head loads, and that Spark's V1 provider cannot start on a part of the new snapshots."""
        batch = (self._batch or 0) + 1
        if storage.stat(names.commits(batch)) and not storage.stat(names.offsets(batch)):
            # The commit alone does not tell the confs of its batch.
            statekeeper("dump", _path(storage), exit_code=HalfSwitched.exit_code)
        else:
            assert all_rows(_path(storage)) == self._rows, case
        new = names.snapshot(names.VersionId((self._batch or 0) + 2))
        published = [path for path in contents(storage) if path.endswith(f"/{new}")]
        has_both_logs = storage.stat(names.offsets((self._batch or 0) + 1)) is not None
        if self._guarded and published and not has_both_logs:
            stores = {store.folder for store, of in catalog.files(storage).items() if any(v.id for v in of.snapshots)}
            assert {path.rpartition("/")[0] for path in published} <= stores, case

    def _fresh(self) -> Storage:
        self._played += 1
        return open_storage(str(unpacked(self._archive, self._folder / f"case-{self._played}")))


def _is_end(request: Request) -> bool:
    return request.path.endswith(("/ended", "/begun"))


def _path(storage: Storage) -> str:
    return storage.url.removeprefix("file://")
