"""Writes the newest commit anew: the point from which the checkpoint is of the other structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from statestore import catalog
from statestore import switch_journal as journal
from statestore.errors import ObjectMissing, RefusedAsUnsafe
from statestore.format import logs, names
from statestore.format.names import VersionId
from statestore.format.structure import Structure
from statestore.storage import Storage, read_or_none
from statestore.switch_journal import Begun, Ending


def rewrite_commit(storage: Storage, begun: Begun, newest_begun: int) -> None:
    """The point from which the checkpoint is of the new structure. `newest_begun`: of the offset log, as planned."""
    path = names.commits(begun.batch)
    before = read_or_none(storage, path)
    after = _new_commit(begun)
    if before == after or has_gone_on(storage, begun):
        return
    if before is None or before.decode() != begun.commit:
        raise RefusedAsUnsafe(
            "is not what it was when the switchover began", path=path, hint="--abort, and run it again"
        )
    _require_snapshots(storage, begun)
    _require_newest(storage, begun, newest_begun)
    storage.replace(path, after)
    try:
        _require_newest(storage, begun, newest_begun)
        if journal.ending(storage, begun) is Ending.ABORTED:
            raise taken_back(begun)
    except RefusedAsUnsafe:
        # Losing schedule: a query that was said to be stopped commits the next batch in between, in the old structure, or
        # has begun one and will.
        storage.replace(path, before)
        raise


def _require_snapshots(storage: Storage, begun: Begun) -> None:
    """Some may have been made long ago, before an interruption."""
    files = catalog.files(storage)
    for store, version in begun.stores.items():
        if store not in files or version not in files[store].snapshots:
            path = store.snapshot(version)
            raise ObjectMissing(
                "was made for this switchover, and is gone", path=path, hint="--abort, and run it again"
            )


def _require_newest(storage: Storage, begun: Begun, newest_begun: int) -> None:
    newest = catalog.newest_batch(storage)
    if newest == begun.batch and (newest_now := catalog.newest_begun(storage)) > newest_begun:
        raise RefusedAsUnsafe(
            "is begun since the switchover was planned: the query runs",
            path=names.offsets(newest_now),
            hint="stop the query, --abort the switchover, and begin anew",
        )
    if newest != begun.batch:
        raise RefusedAsUnsafe(
            f"is committed since the switchover of batch {begun.batch} began: the query runs",
            path=names.commits(newest or 0),
            hint="stop the query, --abort the switchover, and begin anew",
        )


def _new_commit(begun: Begun) -> bytes:
    old = logs.parse_commit(begun.commit.encode(), names.commits(begun.batch))
    if begun.to is Structure.V2:
        return logs.encode_commit(replace(old, ids=_by_operator(begun, lambda name: name.id), digests=None))
    return logs.encode_commit(replace(old, ids=None, digests=_by_operator(begun, lambda name: name.digest) or None))


def _by_operator(begun: Begun, of: Callable[[VersionId], str | None]) -> logs.ByStore:
    """The ids, or the digests, as a commit has them."""
    found: dict[int, dict[int, list[str]]] = {}
    for store, name in begun.stores.items():
        if (text := of(name)) is not None:
            found.setdefault(store.operator, {}).setdefault(store.partition, []).append(text)
    return {
        operator: tuple(tuple(partitions[number]) for number in sorted(partitions))
        for operator, partitions in found.items()
    }


def has_gone_on(storage: Storage, begun: Begun) -> bool:
    """Whether the query has committed batches in the new structure since its commit was written anew."""
    newest = catalog.newest_batch(storage)
    return newest is not None and newest > begun.batch and catalog.structure_at(storage, newest) is begun.to


def taken_back(begun: Begun) -> RefusedAsUnsafe:
    return RefusedAsUnsafe(
        "the switchover was taken back while it was carried out",
        path=names.switchover(begun.number, "ended"),
        hint="the checkpoint is what it was; run this again to switch it",
    )
