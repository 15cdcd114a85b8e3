"""Puts the snapshots of an edit in place of the head, and restores the head, in structure V1.

Spark's V1 provider finds a version by its number, so several files must be replaced. Until the last one is replaced, no
query may start. The new snapshots prevent it: at first they have a name with an id, at which Spark's V1 load fails.

    <N+1>_<id>.zip     the new snapshot, verified               then in quarantine
    <N+1>.zip          the old snapshot, if there is one        then in quarantine; the new snapshot takes its name
    <N+1>.changelog    the changes of batch N                   then in quarantine, so that no load replays it instead
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from statekeeper.statestore.base.errors import ObjectMissing
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.rewrite_journal import Begun
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine.commit import (
    again,
    move_to_quarantine,
    quarantined,
    restore_quarantined,
)
from statekeeper.statestore.maintenance.rewrites.engine.commit import has_gone_on as has_gone_on_in_v2
from statekeeper.statestore.storage import Storage, read_or_none

StillHeld = Callable[[], None]


def strays(files: Mapping[StorePath, StoreFiles], stores: Collection[StorePath], head: int) -> tuple[str, ...]:
    """Return the files of versions after the head, in structure V1: of attempts at a batch that is not committed.

    Failure sequence without their quarantine: batch N+1 runs, a store uploads its snapshot of version N+2, and the batch
    fails on the poison key; the edit removes the key; batch N+1 runs again and writes changelogs of version N+2; a restart
    loads version N+2 from the old snapshot, which has the poison key. After an undo, it is the other way round.
    """
    found = []
    for store in stores:
        of_store = files.get(store) or StoreFiles()
        others = {entry.path for entry in of_store.others}
        paths = [store.changelog(v) for v in of_store.changelogs if v.id is None and v.version > head]
        paths += [store.snapshot(v) for v in of_store.snapshots if v.id is None and v.version > head]
        found += paths + [names.sidecar(path) for path in paths if names.sidecar(path) in others]
    return tuple(sorted(found))


def put_in_place(storage: Storage, begun: Begun, away: tuple[str, ...], still_held: StillHeld) -> None:
    """Move the files `away`, and replace the head of each changed store. Idempotent.

    Raises `ObjectMissing`, `RefusedAsUnsafe`, `StorageError`.
    """
    restore_guards(storage, begun, still_held)
    _move(storage, begun, away, still_held)
    for store in begun.built:
        still_held()
        _replace_head(storage, begun, store)


def restore_heads(storage: Storage, begun: Begun, still_held: StillHeld) -> None:
    """Restore the head of each changed store. Idempotent. The guards stay, and the files of attempts at the next batch are
    in quarantine. Raises `StorageError`."""
    restore_guards(storage, begun, still_held)
    away = strays(catalog.files(storage), begun.stores.keys(), begun.batch + 1)
    _move(storage, begun, away, still_held)
    for store in begun.built:
        still_held()
        path = _head(begun, store)
        new, present = read_or_none(storage, guard_path(begun, store)), read_or_none(storage, path)
        if present is not None and present == new:
            storage.delete([path])
    restore_quarantined(storage, begun.run, _quarantined(storage, begun, _old_files), still_held)


def restore_guards(storage: Storage, begun: Begun, still_held: StillHeld) -> None:
    """Move the guards back from quarantine: a completed edit is reversed."""
    guards = _quarantined(storage, begun, lambda one, store: (guard_path(one, store),))
    restore_quarantined(storage, begun.run, guards, still_held)


def remove_guards(storage: Storage, begun: Begun, still_held: StillHeld) -> None:
    """Move the guards to quarantine. From the last one on, a query can start."""
    for store in begun.built:
        still_held()
        move_to_quarantine(storage, begun.run, guard_path(begun, store))


def has_gone_on(storage: Storage, begun: Begun) -> bool:
    """Return whether the query has committed a batch on the edited state."""
    if begun.to is Structure.V2:
        return has_gone_on_in_v2(storage, begun)
    newest = catalog.newest_batch(storage)
    if newest is None or newest <= begun.batch:
        return False
    guarded = [storage.stat(guard_path(begun, store)) for store in begun.built]
    return not any(guarded) and any(storage.stat(_head(begun, store)) for store in begun.built)


def _move(storage: Storage, begun: Begun, paths: tuple[str, ...], still_held: StillHeld) -> None:
    for path in paths:
        still_held()
        move_to_quarantine(storage, begun.run, path)


def _replace_head(storage: Storage, begun: Begun, store: StorePath) -> None:
    path, guard = _head(begun, store), guard_path(begun, store)
    new = read_or_none(storage, guard)
    if new is None:
        raise ObjectMissing("was made for this edit and is missing", path=guard, hint=again(begun))
    if read_or_none(storage, path) != new:
        move_to_quarantine(storage, begun.run, path)
        storage.create(path, new, like=guard)
    for old in _old_files(begun, store)[1:]:
        move_to_quarantine(storage, begun.run, old)


def _head(begun: Begun, store: StorePath) -> str:
    return store.snapshot(VersionId(begun.batch + 1))


def guard_path(begun: Begun, store: StorePath) -> str:
    """Return the path of the new snapshot that prevents a start of the query."""
    return store.snapshot(begun.built[store])


def _old_files(begun: Begun, store: StorePath) -> tuple[str, ...]:
    """Return the paths of the head: the snapshot first."""
    head, changelog = _head(begun, store), store.changelog(VersionId(begun.batch + 1))
    return head, names.sidecar(head), changelog, names.sidecar(changelog)


def _quarantined(storage: Storage, begun: Begun, of: Callable[[Begun, StorePath], tuple[str, ...]]) -> list[str]:
    there = quarantined(storage, begun)
    return [path for store in begun.built for path in of(begun, store) if path in there]
