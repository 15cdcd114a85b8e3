"""Reverses a half-done rewrite of state."""

from __future__ import annotations

from collections.abc import Callable

from statekeeper.statestore import catalog
from statekeeper.statestore import switch_journal as journal
from statekeeper.statestore.errors import RefusedAsUnsafe
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.rewrites import file_sink
from statekeeper.statestore.maintenance.rewrites.commit import continued_to, is_committed, withdraw
from statekeeper.statestore.maintenance.rewrites.execute import guard, guards
from statekeeper.statestore.maintenance.rewrites.rocksdb_snapshots import tables_of
from statekeeper.statestore.maintenance.switchover import Progress, ProgressCallback, SwitchPhase
from statekeeper.statestore.storage import Storage, at_once
from statekeeper.statestore.switch_journal import Ending, OpenJournal


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
