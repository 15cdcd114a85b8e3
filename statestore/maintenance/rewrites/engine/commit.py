"""The newest commit before and after a rewrite, what must hold when it is rewritten, and the moves to quarantine.

From the moment when the newest commit is rewritten, the checkpoint has the other structure, partitions or rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from statekeeper.statestore.base.errors import AlreadyExists, ObjectMissing, RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Ending, RewriteKind
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records.quarantine import require_deleted
from statekeeper.statestore.root import attempts
from statekeeper.statestore.storage import Storage, read_or_none


def again(begun: Begun) -> str:
    """Return the hint to roll back and start again."""
    return f"roll back: {begun.reversing}; then run this command again"


def changed(begun: Begun) -> str:
    """Return what the rewrite changes."""
    return "structure" if begun.rewrite is RewriteKind.SWITCH else "state"


def rewrite_commit(storage: Storage, begun: Begun, newest_begun: int) -> None:
    """Rewrite the newest commit to name the new snapshots, once. `newest_begun`: the newest batch of the offset log when
    planned.

    Raises `RefusedAsUnsafe`, `ObjectMissing`, `StorageError`.
    """
    path = names.commits(begun.batch)
    before = read_or_none(storage, path)
    after = new_commit(begun)
    if before == after or has_gone_on(storage, begun):
        return
    if before is None or before.decode() != begun.commit:
        raise RefusedAsUnsafe(
            f"changed after the {begun.described} started; the checkpoint keeps its old state",
            path=path,
            hint=again(begun),
        )
    require_snapshots(storage, begun)
    require_newest(storage, begun, newest_begun)
    storage.replace(path, after)
    try:
        require_newest(storage, begun, newest_begun)
        if journal.ending(storage, begun) is Ending.ABORTED:
            raise rolled_back(begun)
    except RefusedAsUnsafe:
        # Race: a query that was confirmed as stopped starts or commits the next batch in between, in the old structure.
        storage.replace(path, before)
        raise


def restore_commit(storage: Storage, begun: Begun) -> None:
    """Make the newest commit what it was before. A query that continued may have purged it."""
    path = names.commits(begun.batch)
    now = read_or_none(storage, path)
    if now is not None and now != begun.commit.encode():
        storage.replace(path, begun.commit.encode())


def is_rewritten(storage: Storage, begun: Begun) -> bool:
    """Return whether the newest commit names the new snapshots. One request."""
    return read_or_none(storage, names.commits(begun.batch)) == new_commit(begun)


def require_snapshots(storage: Storage, begun: Begun) -> None:
    """Require that all new snapshots still exist. Some may be old, if the rewrite was interrupted."""
    files = catalog.files(storage, provider=begun.provider)
    for store, version in begun.built.items():
        if version not in files.of(store).snapshots:
            path = store.snapshot(version)
            raise ObjectMissing(
                f"was written for this {begun.described} and is missing; the checkpoint keeps its old state",
                path=path,
                hint=again(begun),
            )


def require_newest(storage: Storage, begun: Begun, newest_begun: int) -> None:
    """Require that the query did not start or commit a batch since the plan. Raises `RefusedAsUnsafe`."""
    newest = catalog.newest_batch(storage)
    if newest == begun.batch and (newest_now := catalog.newest_begun(storage)) > newest_begun:
        raise RefusedAsUnsafe(
            f"batch {newest_now} started after the plan of the {begun.described} was made: the query is running",
            path=names.offsets(newest_now),
            hint=f"stop the query, then {again(begun)}",
        )
    if newest != begun.batch:
        raise RefusedAsUnsafe(
            f"batch {newest} was committed while the {begun.described} was incomplete: the query is running",
            path=names.commits(newest or 0),
            hint=f"stop the query, then {again(begun)}",
        )


def new_commit(begun: Begun) -> bytes:
    """Return the newest commit with the names of the new snapshots, and the watermark of a load."""
    old = logs.parse_commit(begun.commit.encode(), names.commits(begun.batch))
    if begun.watermark_ms is not None:
        old = replace(old, next_watermark_ms=begun.watermark_ms)
    if begun.to is Structure.V2:
        return logs.encode_commit(replace(old, ids=_by_operator(begun, lambda name: name.id), digests=None))
    return logs.encode_commit(replace(old, ids=None, digests=_by_operator(begun, lambda name: name.digest) or None))


def _by_operator(begun: Begun, of: Callable[[VersionId], str | None]) -> logs.ByStore:
    """Return the ids or the digests in the layout of a commit."""
    found: dict[int, dict[int, list[str]]] = {}
    for store, name in begun.stores.items():
        if (text := of(name)) is not None:
            found.setdefault(store.operator, {}).setdefault(store.partition, []).append(text)
    return {
        operator: tuple(tuple(partitions[number]) for number in sorted(partitions))
        for operator, partitions in found.items()
    }


def has_gone_on(storage: Storage, begun: Begun) -> bool:
    """Return whether the query has committed batches with the new snapshots since the rewrite."""
    newest = catalog.newest_batch(storage)
    if newest is None or newest <= begun.batch:
        return False
    if begun.rewrite in (RewriteKind.EDIT, RewriteKind.EVOLVE):
        # The structure and the partitions do not change. In structure V1, the commits before and after an edit are equal.
        return read_or_none(storage, names.commits(begun.batch)) != begun.commit.encode()
    path = names.commits(newest)
    log = logs.parse_commit(storage.read(path), path)
    counts = {len(partitions) for partitions in (log.marks or {}).values()}
    return log.structure is begun.to and (begun.partitions is None or counts == {begun.partitions})


def rolled_back(begun: Begun) -> RefusedAsUnsafe:
    """Return the error for a rewrite that another maintainer has rolled back during its execution."""
    return RefusedAsUnsafe(
        f"the {begun.described} was rolled back during its execution",
        path=names.switchover(begun.number, "ended"),
        hint="the checkpoint is unchanged; run this command again",
    )


def former_heads(begun: Begun) -> dict[StorePath, VersionId]:
    """Return the versions before the rewrite of the stores with new snapshots."""
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


def require_no_attempt(storage: Storage, batch: int, consequence: str) -> None:
    """Require that no attempt at a batch is recorded.

    Failure sequence: the job writes the record of an attempt, which names changelogs on the present state, and the sink; it
    dies before its commit; the state is edited. The restarted job finds its rows in the sink and commits the changelogs of
    this attempt: the edit is lost without an error.

    Raises `RefusedAsUnsafe`, `CorruptFile`, `StorageError`.
    """
    found = next(attempts.records_at(storage, batch), None)
    if found is not None:
        raise RefusedAsUnsafe(
            f"is the record of an attempt at batch {batch}, so the sink may already contain its rows; {consequence}",
            path=found[0],
            hint=f"start the job until it commits batch {batch}, then stop it and run this command again",
        )


def move_to_quarantine(storage: Storage, run: str, path: str) -> None:
    """Move a file into the quarantine of the run; do nothing if the file is missing. Raises `StorageError`."""
    try:
        body = storage.read(path)
    except ObjectMissing:
        return  # an interrupted run has moved it
    # If a query wrote the file again after an interrupted run, the new file replaces the quarantined one.
    storage.replace(names.quarantine(run, path), body, like=path)
    require_deleted(storage, path, body)


def restore_quarantined(storage: Storage, run: str, paths: Iterable[str], still_held: Callable[[], None]) -> None:
    """Move files from the quarantine of the run back to their paths.

    A file that the query wrote again is kept; then the quarantined sidecar is not restored, because it is the checksum of
    the old file. Raises `StorageError`, and the errors of `still_held`.
    """
    written_again: set[str] = set()
    for path in sorted(paths):  # a file before the sidecar beside it
        still_held()
        quarantined = names.quarantine(run, path)
        if path in written_again:
            continue
        body = storage.read(quarantined)
        try:
            storage.create(path, body, like=quarantined)
        except AlreadyExists:
            if storage.read(path) != body:
                written_again |= {path, names.sidecar(path)}
                continue
            # An interrupted run has restored it.
        storage.delete([quarantined])


def quarantined(storage: Storage, begun: Begun) -> set[str]:
    """Return the former paths of the files that the rewrite has moved to quarantine."""
    folder = names.quarantine(begun.run, "")
    return {entry.path.removeprefix(folder) for entry in storage.list(folder.rstrip("/"))}
