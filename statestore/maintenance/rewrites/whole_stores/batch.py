"""The batch that a rewrite appends to the logs of a native query: it has no rows, and its versions are the new ones.

    commits/N+1     the point of no return
    offsets/N+1     the offsets of batch N, with the confs after the rewrite

The commit is written first. Between the two requests, Spark runs batch N again, from the old state, and then stops with
CONCURRENT_STREAM_LOG_UPDATE or CANNOT_LOAD_STATE_STORE. In the other order, Spark 3.5 to 4.1 would start batch N+1 with the
new number of partitions from the old state. Spark's own offline repartition appends such a batch, too (SPARK-54346).
"""

from __future__ import annotations

from statekeeper.statestore.base.errors import AlreadyExists, RefusedAsUnsafe
from statekeeper.statestore.checkpoint.rewrite_journal import Begun
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.logs import SHUFFLE_PARTITIONS, with_confs
from statekeeper.statestore.format.provider import PROVIDER
from statekeeper.statestore.maintenance.rewrites.engine.commit import new_commit, require_newest, require_snapshots
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import RewritePlan
from statekeeper.statestore.storage import Storage, read_or_none


def append(storage: Storage, begun: Begun, planned: RewritePlan) -> None:
    """Write both logs, or those that an interrupted run did not write.

    Raises `RefusedAsUnsafe` if the query ran after the plan, `ObjectMissing` if a snapshot of the rewrite is missing,
    `StorageError`.
    """
    batch = begun.batch + 1
    commit, offsets = new_commit(begun), _offsets(planned.offsets, begun)
    if not is_appended(storage, begun):
        require_newest(storage, begun, begun.batch)
        require_snapshots(storage, begun)
        _create(storage, names.commits(batch), commit)
    _create(storage, names.offsets(batch), offsets)


def is_appended(storage: Storage, begun: Begun) -> bool:
    """Return whether the commit of the rewrite exists. Up to three requests. Raises `ObjectMissing` if the offsets of
    batch N are missing: then the answer is unknown.

    Failure sequence: a conversion dies; its query, which the default provider does not stop, runs batch N+1. In structure
    V1, the commit of that batch can have the bytes of the rewrite's own. Only the offsets differ.
    """
    if read_or_none(storage, names.commits(begun.batch + 1)) != new_commit(begun):
        return False
    offsets = read_or_none(storage, names.offsets(begun.batch + 1))
    newest = storage.read(names.offsets(begun.batch)).decode()
    return offsets in (None, _offsets(newest, begun), _offsets_of_former_releases(newest, begun))


def remove(storage: Storage, begun: Begun) -> None:
    """Delete both logs. The query has not continued with them."""
    # The offsets first: with them alone, Spark would start the batch with the new number of partitions.
    storage.delete([names.offsets(begun.batch + 1)])
    storage.delete([names.commits(begun.batch + 1)])


def _create(storage: Storage, path: str, body: bytes) -> None:
    try:
        storage.create(path, body)
    except AlreadyExists as error:
        if read_or_none(storage, path) != body:
            raise RefusedAsUnsafe(
                "was written by the query after the rewrite started",
                path=path,
                hint="stop the query, reverse the rewrite with --abort, then run this command again",
            ) from error


def _offsets(newest: str, begun: Begun) -> bytes:
    """Return the offsets of the newest batch with the new confs. Unknown fields are kept, and so is the watermark.

    The watermark of a batch decides which rows of the next one are late. Spark 4.2 also evicts rows of a join (state format
    4) only from this watermark on. So the next batch must find that of the newest batch, as without the rewrite.
    """
    confs = {PROVIDER: begun.provider.class_name}
    if begun.partitions is not None:
        confs[SHUFFLE_PARTITIONS] = str(begun.partitions)
    if begun.watermark_ms is not None:
        # A load restores the watermark of its savepoint, also if that is lower.
        late = begun.watermark_ms if begun.late_watermark_ms is None else begun.late_watermark_ms
        return with_confs(newest, names.offsets(begun.batch), confs, watermark_ms=late, lowers=True)
    return with_confs(newest, names.offsets(begun.batch), confs)


def _offsets_of_former_releases(newest: str, begun: Begun) -> bytes:
    """Return the offsets that former releases wrote, with the next watermark, so that their rewrites can be reversed."""
    path = names.offsets(begun.batch)
    next_ms = logs.parse_commit(begun.commit.encode(), names.commits(begun.batch)).next_watermark_ms
    if begun.watermark_ms is not None:
        return with_confs(_offsets(newest, begun).decode(), path, {}, watermark_ms=begun.watermark_ms, lowers=True)
    return with_confs(_offsets(newest, begun).decode(), path, {}, watermark_ms=next_ms)
