"""Decides whether a completed load can be reversed."""

from __future__ import annotations

from statekeeper.statestore import catalog
from statekeeper.statestore.errors import RefusedAsUnsafe
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance import snapshot
from statekeeper.statestore.maintenance.edits.own_rows import require_no_attempt
from statekeeper.statestore.maintenance.edits.undo import journal_of, old_heads
from statekeeper.statestore.maintenance.rewrites.commit import is_committed
from statekeeper.statestore.origin import Origin, origin_of
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.switch_journal import Begun, OpenJournal, RewriteKind

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
