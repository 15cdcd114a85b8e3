"""Rolls back a half-done switchover."""

from __future__ import annotations

from collections.abc import Callable

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.rewrite_journal import Ending, OpenJournal
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.switchover.commit import has_gone_on, put_back
from statekeeper.statestore.maintenance.rewrites.switchover.model import Progress, ProgressCallback, SwitchPhase
from statekeeper.statestore.storage import Storage, read_or_none


def roll_back(
    storage: Storage, opened: OpenJournal, progress: ProgressCallback, *, still_held: Callable[[], None]
) -> None:
    """Restore the state before the switchover. The query is stopped; for `progress` and `still_held`, see `execute`.

    Uploaded tables that are not in the journal remain as orphans for garbage collection. If the query continued in the old
    structure, its new batches are kept and only the files of the switchover are removed. Raises `RefusedAsUnsafe` if the
    query continued in the new structure; `StorageError`.
    """
    begun = opened.begun
    path = names.commits(begun.batch)
    # A query that continued may have purged the commit.
    now = read_or_none(storage, path)
    is_rewritten = now is not None and now.decode() != begun.commit
    if has_gone_on(storage, begun):
        newest = catalog.newest_batch(storage)
        raise RefusedAsUnsafe(
            f"the query has continued in structure {begun.to.value} and committed batch {newest}, so the switchover "
            "cannot be rolled back",
            path=names.commits(newest or 0),
            hint=f"complete the switchover: statekeeper switch ROOT --to {begun.to.value} --apply --confirm-stopped. "
            f"After that, run switch with --to {begun.to.other.value} to reverse it",
        )
    quarantined = names.quarantine(begun.run, "")
    away = {entry.path.removeprefix(quarantined) for entry in storage.list(quarantined.rstrip("/"))}
    mine = {store.snapshot(version) for store, version in begun.stores.items()}
    of_mine = away & (mine | set(map(names.sidecar, mine)))
    put_back(storage, begun.run, away - of_mine, still_held)
    still_held()
    if is_rewritten:
        storage.replace(path, begun.commit.encode())
    # Delete zips before tables, so that no zip names a missing table. Before the journal is cleared, a file with one of
    # these names may belong to the query.
    if opened.is_cleared:
        still_held()
        storage.delete(sorted(mine))
    put_back(storage, begun.run, of_mine, still_held)
    still_held()
    storage.delete(store.table_file(table) for store, made in opened.made.items() for table in made.tables)
    journal.end(storage, begun, Ending.ABORTED)
    # A run that lost its lease without noticing may have published a snapshot since: see `_require_open`.
    if begun.to is Structure.V2:
        storage.delete(sorted(mine))
    progress(Progress(phase=SwitchPhase.TAKEN_BACK))
