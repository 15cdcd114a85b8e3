"""Reverses an edit: a half-done one, or a completed one whose journal was opened again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Ending, OpenJournal, RewriteKind
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import quarantine
from statekeeper.statestore.maintenance.rewrites.edits.own_rows import require_no_attempt
from statekeeper.statestore.maintenance.rewrites.edits.place import guard_path, has_gone_on, take_back
from statekeeper.statestore.maintenance.rewrites.switchover import Progress, ProgressCallback, SwitchPhase
from statekeeper.statestore.maintenance.rewrites.switchover.commit import new_commit
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.storage import Storage, read_or_none


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


_STAYS = "nothing was changed"


def require_reversible(storage: Storage, run: str, rewrite: RewriteKind = RewriteKind.EDIT) -> OpenJournal:
    """Return the journal of a completed rewrite of this kind that can be reversed: it is the newest rewrite, the query has
    not committed since, and all files of the old versions exist. `rewrite`: an edit or a schema evolution.

    Raises `RefusedAsUnsafe` otherwise, `CorruptFile`, `StorageError`.
    """
    noun = rewrite.noun
    newest = journal_of(storage, run, rewrite)
    begun = newest.begun
    batch = catalog.newest_batch(storage)
    commit = read_or_none(storage, names.commits(begun.batch))
    edited = new_commit(begun) if begun.to is Structure.V2 else begun.commit.encode()
    if batch != begun.batch or commit != edited:
        raise RefusedAsUnsafe(
            f"the newest commit is not the commit of the {noun} of batch {begun.batch}: the query has committed "
            f"since; {_STAYS}",
            path=names.commits(begun.batch if batch is None else batch),
            hint=f"to return to the batch before the {noun}, run: statekeeper rewind ROOT --to-batch {begun.batch - 1}",
        )
    if origin_of(storage) is Origin.OWN:
        require_no_attempt(storage, batch + 1, _STAYS)
    if rewrite is RewriteKind.EVOLVE and storage.stat(later := names.later_schema(begun.batch + 1)) is not None:
        raise RefusedAsUnsafe(
            f"the job has started batch {begun.batch + 1} with one more column since; {_STAYS}",
            path=later,
            hint="start the job until it commits this batch, then change the columns with another evolve",
        )
    _require_old_versions(storage, begun)
    return newest


def journal_of(storage: Storage, run: str, rewrite: RewriteKind) -> OpenJournal:
    """Return the journal of this run. Raises `RefusedAsUnsafe` if it is not the newest rewrite, is of another kind, or is
    reversed already; `CorruptFile`, `StorageError`."""
    newest = journal.newest_journal(storage)
    if newest is None or newest.begun.rewrite is not rewrite or newest.begun.run != run:
        raise RefusedAsUnsafe(
            f"run {run} is not the newest rewrite of this checkpoint, or it is no {rewrite.noun}; {_STAYS}",
            path=storage.url,
            hint=f"use the id that `statekeeper {rewrite.value} --apply` printed; only the newest rewrite can be reversed",
        )
    if journal.ending(storage, newest.begun) is Ending.ABORTED:
        raise RefusedAsUnsafe(
            f"the {rewrite.noun} of run {run} is reversed already; {_STAYS}",
            path=storage.url,
            hint="no action is needed",
        )
    return newest


def _require_old_versions(storage: Storage, begun: Begun) -> None:
    files = catalog.files(storage)
    folder = names.quarantine(begun.run, "")
    entries = quarantine.files(storage, folder.rstrip("/"))
    moved = catalog.by_store(replace(entry, path=entry.path.removeprefix(folder)) for entry in entries)
    for store, head in old_heads(begun).items():
        present = files.of(store)
        if begun.to is Structure.V2:
            problem = snapshot.facts_of(storage, store, head, present).problem
        else:
            problem = _problem_in_v1(storage, begun, store, present, moved.of(store))
        if problem is not None:
            raise RefusedAsUnsafe(
                f"version {head.version} before the {begun.rewrite.noun} can no longer be restored: {problem}; {_STAYS}",
                path=str(store),
                hint=f"restore the file from a backup, or change the state with another {begun.rewrite.value}",
            )


def _problem_in_v1(
    storage: Storage, begun: Begun, store: StorePath, present: StoreFiles, moved: StoreFiles
) -> str | None:
    head = VersionId(begun.batch + 1)
    guard, path = names.quarantine(begun.run, guard_path(begun, store)), store.snapshot(head)
    if begun.built[store] not in moved.snapshots:
        return f"{guard} is missing"
    if read_or_none(storage, path) != storage.read(guard):
        return f"{path} was replaced after the edit"
    if head in moved.snapshots:
        return _lacks(storage, names.quarantine(begun.run, path), store, present)
    snapshots = {version: entry for version, entry in present.snapshots.items() if version != head}
    before = replace(present, snapshots=snapshots, changelogs={**present.changelogs, **moved.changelogs})
    return snapshot.facts_of(storage, store, head, before).problem


def _lacks(storage: Storage, path: str, store: StorePath, present: StoreFiles) -> str | None:
    """Return the problem of a quarantined snapshot whose tables are not all present."""
    gone = [
        t.dfs_name for t in read_snapshot(storage.read(path), path).metadata.tables if t.dfs_name not in present.tables
    ]
    return f"{store.table_file(gone[0])} is missing" if gone else None


def old_heads(begun: Begun) -> dict[StorePath, VersionId]:
    """Return the versions before the edit of the changed stores."""
    ids = logs.parse_commit(begun.commit.encode(), names.commits(begun.batch)).ids
    places: Counter[tuple[int, int]] = Counter()
    found = {}
    for store in begun.stores:
        place = places[store.operator, store.partition]
        places[store.operator, store.partition] += 1
        if store in begun.built:
            known = None if ids is None else ids[store.operator][store.partition][place]
            found[store] = VersionId(begun.batch + 1, known)
    return found
