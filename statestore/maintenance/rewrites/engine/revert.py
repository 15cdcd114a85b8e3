"""Reverses a half-done rewrite of state."""

from __future__ import annotations

from collections.abc import Callable

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Ending, OpenJournal, RewriteKind
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.rewrites.edits.own_rows import require_no_attempt
from statekeeper.statestore.maintenance.rewrites.edits.revert import journal_of, old_heads
from statekeeper.statestore.maintenance.rewrites.engine import file_sink
from statekeeper.statestore.maintenance.rewrites.engine.commit import continued_to, is_committed, withdraw
from statekeeper.statestore.maintenance.rewrites.engine.execute import guard, guards
from statekeeper.statestore.maintenance.rewrites.engine.snapshots import tables_of
from statekeeper.statestore.maintenance.rewrites.switchover import Progress, ProgressCallback, SwitchPhase
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.storage import Storage, at_once


def roll_back(
    storage: Storage,
    opened: OpenJournal,
    progress: ProgressCallback,
    *,
    still_held: Callable[[], None],
    sink: Storage | None = None,
) -> None:
    """Delete what a half-done rewrite has written. The query is stopped; for the other arguments, see `execute`.

    Raises `RefusedAsUnsafe` if the query committed a batch after the rewrite; `StorageError`.
    """
    begun = opened.begun
    newest = continued_to(storage, begun)
    if newest is not None:
        raise RefusedAsUnsafe(
            f"the query has committed batch {newest} since; the {begun.rewrite.value} cannot be reversed",
            path=names.commits(newest),
            hint=f"to finish the {begun.rewrite.value}, run: {begun.finishing}",
        )
    still_held()
    files = catalog.files(storage)
    guarded = guards(storage, begun)
    # Failure sequence: the run had deleted its guards; the commit is withdrawn; this run dies; the query starts, runs the
    # batch, and then loads the new snapshots, which lack its rows.
    at_once(lambda path: guard(storage, path), guarded)
    if begun.file_sink is not None and is_committed(storage, begun):
        assert sink is not None
        # Before the batch: a query that found the entry alone would run the batch, and the sink would drop its rows.
        file_sink.withdraw(sink, begun)
    withdraw(storage, begun)
    still_held()
    # Delete zips before tables, so that no zip names a missing table.
    storage.delete(sorted(store.snapshot(version) for store, version in begun.built.items()))
    still_held()
    storage.delete(store.table_file(name) for store, of_store in files.items() for name in tables_of(begun, of_store))
    # The guards last: until then, no query loads a part of the new snapshots.
    storage.delete(guarded)
    journal.end(storage, begun, Ending.ABORTED)
    progress(Progress(phase=SwitchPhase.TAKEN_BACK))


_STAYS = "nothing was changed"


def require_reversible(storage: Storage, run: str) -> OpenJournal:
    """Return the journal of a completed load that can be reversed: it is the newest rewrite, the query has not begun a
    batch since, and the versions before it can be loaded. Raises `RefusedAsUnsafe` otherwise, `CorruptFile`,
    `StorageError`."""
    newest = journal_of(storage, run, RewriteKind.LOAD)
    begun = newest.begun
    is_own = origin_of(storage) is Origin.OWN
    head = begun.batch if is_own else begun.batch + 1
    batch, started = catalog.newest_batch(storage), catalog.newest_begun(storage)
    if batch != head or started > head or not is_committed(storage, begun):
        raise RefusedAsUnsafe(
            f"the query has begun batch {max(started, batch or 0)} since the load; {_STAYS}",
            path=names.offsets(started),
            hint=f"to return to the state before the load, run: statekeeper rewind ROOT --to-batch {begun.batch}"
            if not is_own
            else "to replace the rows, load another savepoint",
        )
    if is_own:
        require_no_attempt(storage, head + 1, _STAYS)
    _require_old_versions(storage, begun)
    return newest


def _require_old_versions(storage: Storage, begun: Begun) -> None:
    files = catalog.files(storage)
    for store, head in old_heads(begun).items():
        problem = snapshot.facts_of(storage, store, head, files.of(store)).problem
        if problem is not None:
            raise RefusedAsUnsafe(
                f"version {head.version} before the load can no longer be restored: {problem}; {_STAYS}",
                path=str(store),
                hint="restore the file from a backup, or load another savepoint",
            )
