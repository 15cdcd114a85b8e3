"""Makes a checkpoint what it was before a switchover that is half done."""

from __future__ import annotations

from collections.abc import Callable

from statestore import catalog
from statestore import switch_journal as journal
from statestore.errors import RefusedAsUnsafe
from statestore.format import names
from statestore.format.structure import Structure
from statestore.maintenance.switchover.commit import has_gone_on
from statestore.maintenance.switchover.moves import put_back
from statestore.maintenance.switchover.steps import Progress, ProgressCallback, SwitchPhase
from statestore.storage import Storage, read_or_none
from statestore.switch_journal import Ending, OpenJournal


def roll_back(
    storage: Storage, standing: OpenJournal, told: ProgressCallback, *, still_held: Callable[[], None]
) -> None:
    """Make the checkpoint what it was before the switchover began. The query is stopped; `still_held` as in `execute`.

    What was sent and never came to be noted stays as orphans, for gc. Where the query has gone on in the old structure,
    that stands: only what was made is taken away. Raises `RefusedAsUnsafe` when it has gone on in the new one;
    `StorageError`.
    """
    begun = standing.begun
    path = names.commits(begun.batch)
    # A query that has gone on may have purged it.
    now = read_or_none(storage, path)
    is_rewritten = now is not None and now.decode() != begun.commit
    if has_gone_on(storage, begun):
        newest = catalog.newest_batch(storage)
        raise RefusedAsUnsafe(
            f"the query has gone on in structure {begun.to.value} to batch {newest}",
            path=names.commits(newest or 0),
            hint=f"--apply finishes the switchover; --to {begun.to.other.value} leads back afterwards",
        )
    quarantined = names.quarantine(begun.run, "")
    away = {entry.path.removeprefix(quarantined) for entry in storage.list(quarantined.rstrip("/"))}
    mine = {store.snapshot(version) for store, version in begun.stores.items()}
    of_mine = away & (mine | set(map(names.sidecar, mine)))
    put_back(storage, begun.run, away - of_mine, still_held)
    still_held()
    if is_rewritten:
        storage.replace(path, begun.commit.encode())
    # Zip before tables: what a snapshot names is there as long as it is. Only from here on each name is this one's.
    if standing.is_cleared:
        still_held()
        storage.delete(sorted(mine))
    put_back(storage, begun.run, of_mine, still_held)
    still_held()
    storage.delete(store.table_file(table) for store, made in standing.made.items() for table in made.tables)
    journal.end(storage, begun, Ending.ABORTED)
    # Who carries it out and has lost the lease without knowing may have published one since: see `_require_open`.
    if begun.to is Structure.V2:
        storage.delete(sorted(mine))
    told(Progress(SwitchPhase.TAKEN_BACK))
