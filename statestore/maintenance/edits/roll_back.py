"""Reverses an edit: a half-done one, or a completed one whose journal was opened again."""

from __future__ import annotations

from collections.abc import Callable

from statekeeper.statestore import catalog
from statekeeper.statestore import switch_journal as journal
from statekeeper.statestore.errors import RefusedAsUnsafe
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.edits.place import has_gone_on, take_back
from statekeeper.statestore.maintenance.switchover import Progress, ProgressCallback, SwitchPhase
from statekeeper.statestore.storage import Storage, read_or_none
from statekeeper.statestore.switch_journal import Ending, OpenJournal


def roll_back(
    storage: Storage, opened: OpenJournal, progress: ProgressCallback, *, still_held: Callable[[], None]
) -> None:
    """Restore the state before the edit. The query is stopped; for `progress` and `still_held`, see `execute`.

    Raises `RefusedAsUnsafe` if the query has committed a batch on the edited state; `StorageError`.
    """
    begun = opened.begun
    if opened.is_cleared and has_gone_on(storage, begun):
        newest = catalog.newest_batch(storage)
        raise RefusedAsUnsafe(
            f"the query has committed batch {newest} on the edited state, so the edit cannot be reversed",
            path=names.commits(newest or 0),
            hint=f"to record that the edit is complete, run: {begun.finishing}",
        )
    still_held()
    if begun.to is Structure.V2:
        path = names.commits(begun.batch)
        now = read_or_none(storage, path)
        if now is not None and now != begun.commit.encode():
            storage.replace(path, begun.commit.encode())
    elif opened.is_cleared:
        take_back(storage, begun, still_held)
    still_held()
    # Delete zips before tables, so that no zip names a missing table. In structure V1 they are the guards.
    new = sorted(store.snapshot(version) for store, version in begun.built.items())
    storage.delete(new)
    still_held()
    storage.delete(store.table_file(table) for store, made in opened.made.items() for table in made.tables)
    journal.end(storage, begun, Ending.ABORTED)
    # A run that lost its lease without noticing may have published a snapshot since.
    storage.delete(new)
    progress(Progress(phase=SwitchPhase.TAKEN_BACK))
