"""Reverses a rewrite, for all kinds: a half-done one, or a completed one whose journal is opened again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Ending, RewriteJournal, RewriteKind
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.rewrites.engine.commit import require_no_attempt
from statekeeper.statestore.maintenance.rewrites.engine.model import ProgressCallback, RewritePhase
from statekeeper.statestore.maintenance.rewrites.engine.snapshots import delete_handed, tables_of
from statekeeper.statestore.maintenance.rewrites.engine.steps import RewriteSteps, Rewriting
from statekeeper.statestore.storage import Storage

_STAYS = "nothing was changed"


def rollback(
    steps: RewriteSteps[Any],
    storage: Storage,
    opened: RewriteJournal,
    progress: ProgressCallback,
    *,
    still_held: Callable[[], None],
    open_sink: Callable[[str], Storage],
) -> None:
    """Restore the state before a half-done rewrite, and delete what it has written. The query is stopped. For `progress`,
    `still_held` and `open_sink`, see `Rewriting`.

    Uploaded tables whose names neither the journal nor the id of the run gives remain as orphans for garbage collection.
    Raises `RefusedAsUnsafe` if the query has continued with the new state; `StorageError`.
    """
    _reverse(steps, Rewriting.of(storage, opened, progress, still_held, open_sink))


def revert(
    steps: RewriteSteps[Any],
    storage: Storage,
    run: str,
    kind: RewriteKind,
    progress: ProgressCallback,
    *,
    still_held: Callable[[], None],
    open_sink: Callable[[str], Storage],
) -> Begun:
    """Restore the state before the completed rewrite of a run. If this is interrupted, the rewrite is half done again.

    Raises `RefusedAsUnsafe` if the rewrite cannot be reversed: see `_require_reversible`; `CorruptFile`, `StorageError`.
    """
    completed = _require_reversible(steps, storage, run, kind)
    work = Rewriting.of(storage, completed, progress, still_held, open_sink)
    journal.reopen(storage, completed.begun)
    _reverse(steps, work)
    return completed.begun


def _reverse(steps: RewriteSteps[Any], work: Rewriting) -> None:
    storage, begun = work.storage, work.begun
    newest = steps.continued_to(work)
    if newest is not None:
        raise _continued(begun, newest)
    work.still_held()
    files = catalog.files(storage)
    steps.restore(work)
    work.still_held()
    # Delete zips before tables, so that no zip names a missing table.
    storage.delete(steps.own_snapshots(work))
    work.still_held()
    tables = {store.table_file(name) for store, of_store in files.items() for name in tables_of(begun.run, of_store)}
    tables |= {store.table_file(name) for store, made in work.made.items() for name in made.tables}
    storage.delete(sorted(tables))
    steps.clean_up_restored(work)
    delete_handed(work)
    journal.end(storage, begun, Ending.ABORTED)
    # A run that lost its lease without noticing may have published a snapshot since: see `make_each`.
    storage.delete(sorted(store.snapshot(one) for store, one in begun.built.items() if one.id is not None))
    work.tell(RewritePhase.TAKEN_BACK)


def _continued(begun: Begun, newest: int) -> RefusedAsUnsafe:
    is_switch = begun.rewrite is RewriteKind.SWITCH
    place = f"in structure {begun.to.value}" if is_switch else "with the new state"
    then = f". After that, run switch with --to {begun.to.other.value} to reverse it" if is_switch else ""
    return RefusedAsUnsafe(
        f"the query has continued {place} and committed batch {newest}; the {begun.rewrite.noun} cannot be reversed",
        path=names.commits(newest),
        hint=f"to complete the {begun.rewrite.noun}, run: {begun.finishing}{then}",
    )


def _require_reversible(steps: RewriteSteps[Any], storage: Storage, run: str, kind: RewriteKind) -> RewriteJournal:
    """Return the journal of a completed rewrite that can be reversed: it is the newest rewrite, the query has not used its
    state since, and the versions before it can be loaded.

    Raises `RefusedAsUnsafe` otherwise, `CorruptFile`, `StorageError`.
    """
    newest = _journal_of(storage, run, kind)
    begun, noun = newest.begun, kind.noun
    steps.require_unused(storage, begun, _STAYS)
    head = begun.batch + 1 if begun.appends_batch else begun.batch
    batch = catalog.newest_batch(storage)
    if batch != head or not steps.is_committed(storage, begun):
        raise RefusedAsUnsafe(
            f"the newest commit is not the commit of the {noun} of batch {head}: the query has committed since; {_STAYS}",
            path=names.commits(head if batch is None else batch),
            hint=f"to return to the batch before the {noun}, run: statekeeper rewind ROOT --to-batch {head - 1}",
        )
    if origin_of(storage) is Origin.OWN:
        require_no_attempt(storage, head + 1, _STAYS)
    for store, problem in steps.problems_of_former(storage, begun):
        raise RefusedAsUnsafe(
            f"the state of batch {begun.batch} before the {noun} can no longer be restored: {problem}; {_STAYS}",
            path=str(store),
            hint=f"restore the file from a backup, or change the state with another {kind.value}",
        )
    return newest


def _journal_of(storage: Storage, run: str, kind: RewriteKind) -> RewriteJournal:
    """Return the journal of this run. Raises `RefusedAsUnsafe` if it is not the newest rewrite, is of another kind, or is
    reversed already; `CorruptFile`, `StorageError`."""
    newest = journal.newest_journal(storage)
    if newest is None or newest.begun.rewrite is not kind or newest.begun.run != run:
        raise RefusedAsUnsafe(
            f"run {run} is not the newest rewrite of this checkpoint, or it is no {kind.noun}; {_STAYS}",
            path=storage.url,
            hint=f"use the id that `statekeeper {kind.value} --apply` printed; only the newest rewrite can be reversed",
        )
    if journal.ending(storage, newest.begun) is Ending.ABORTED:
        raise RefusedAsUnsafe(
            f"the {kind.noun} of run {run} is reversed already; {_STAYS}",
            path=storage.url,
            hint="no action is needed",
        )
    return newest
