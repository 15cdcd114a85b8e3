"""Makes another query the owner of the root of a Python job, also if the checkpoint of its query is lost (FLIP-428).

    gather(root, checkpoint)  ->  ClaimFacts  ->  plan(gathered, ...)  ->  ClaimPlan  ->  execute(root, checkpoint, plan)

The binding of the root records the query, the time of the claim and the former query. A driver that was started before
stops before its next batch with `ForeignRoot`. If the checkpoint of the query is empty, the claim makes it from the logs of
the root: its metadata, the newest offsets, then the newest commit. It has the former query id, so that the sink recognizes
the batches that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from statekeeper.statestore.base.errors import (
    RESTORE,
    DestinationNotEmpty,
    NotACheckpoint,
    ObjectMissing,
    RefusedAsUnsafe,
    StatekeeperError,
)
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import file_source, logs, names
from statekeeper.statestore.format.logs import OffsetLog
from statekeeper.statestore.maintenance.copies.mirrors import model as mirror_record
from statekeeper.statestore.root import binding
from statekeeper.statestore.root.binding import Binding, Claim
from statekeeper.statestore.storage import Storage, read_or_none


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """The checkpoint of the query that claims the root.

    query_id  in its metadata; None without metadata
    newest    its newest committed batch; None before the first
    sources   the source offsets of that batch
    files     the paths of its files; the first thousand
    is_root   it is a state root
    overlaps  it is the root that is claimed, or one of both contains the other
    """

    url: str
    query_id: str | None
    newest: int | None
    sources: tuple[str, ...]
    files: tuple[str, ...]
    is_root: bool
    overlaps: bool


@dataclass(frozen=True, kw_only=True)
class ClaimFacts:
    """A root, and the checkpoint of the query that claims it.

    newest      the newest batch of the root
    offsets     the offset logs of its newest two batches, and of the batch after them if it has begun
    checkpoint  None if the caller gives only a query id
    mirror_of   the source of the root if it is a mirror
    """

    url: str
    binding: Binding
    newest: int
    offsets: dict[int, OffsetLog]
    checkpoint: CheckpointFacts | None
    mirror_of: str | None


@dataclass(frozen=True, kw_only=True)
class ClaimPlan:
    """The new owner, and the files that its checkpoint gets, in order.

    former     the query id of the present owner
    query      the query id of the new owner
    newest     the newest batch of the root
    begun      the newest batch of the root that has begun
    is_done    the query already owns the root and has a checkpoint
    mirror_of  the source of the root if it is a mirror: the next run of that mirror fails
    """

    former: str
    query: str
    newest: int
    begun: int
    files: tuple[tuple[str, bytes], ...]
    refusals: tuple[StatekeeperError, ...]
    is_done: bool
    mirror_of: str | None

    def is_same(self, other: ClaimPlan) -> bool:
        """Return whether both plans make the same changes at the same batch."""
        mine, theirs = ((one.former, one.query, one.newest, one.begun, one.files) for one in (self, other))
        return mine == theirs


def gather(root: Storage, checkpoint: Storage | None) -> ClaimFacts:
    """Gather the facts. Requests: the binding, the newest logs of both, a listing of the checkpoint, and the records that
    show a mirror and another state root.

    Raises `NotACheckpoint` for another folder than the root of a Python job; `ObjectMissing`, `CorruptFile`,
    `StorageError`.
    """
    data = read_or_none(root, names.BINDING)
    newest = catalog.newest_batch(root)
    if data is None or newest is None:
        raise NotACheckpoint(
            "is not the state root of a job on `pipelines`, or has no committed batch; it cannot be claimed",
            path=root.url,
            hint="claim works only for a state root. To give the checkpoint of a native query a new id, run: statekeeper "
            "clone CHECKPOINT DESTINATION --new-query",
        )
    mirrored = mirror_record.read(root)
    batches = range(max(0, newest - 1), max(newest, catalog.newest_begun(root)) + 1)
    return ClaimFacts(
        url=root.url,
        binding=binding.parse_binding(data),
        newest=newest,
        offsets={batch: _offsets(root, batch) for batch in batches},
        checkpoint=None if checkpoint is None else _checkpoint(root, checkpoint),
        mirror_of=None if mirrored is None else mirrored.source,
    )


def _offsets(storage: Storage, batch: int) -> OffsetLog:
    path = names.offsets(batch)
    data = read_or_none(storage, path)
    if data is None:
        raise ObjectMissing("is missing, but the batch is committed", path=path, hint=RESTORE)
    return logs.parse_offsets(data, path)


def _checkpoint(root: Storage, storage: Storage) -> CheckpointFacts:
    ours, theirs = root.location, storage.location
    metadata = read_or_none(storage, names.QUERY_METADATA)
    newest = catalog.newest_batch(storage)
    return CheckpointFacts(
        url=storage.url,
        query_id=None if metadata is None else logs.parse_metadata(metadata, names.QUERY_METADATA),
        newest=newest,
        sources=() if newest is None else _offsets(storage, newest).sources,
        files=tuple(entry.path for entry in storage.list("")[:1000]),
        is_root=storage.stat(names.BINDING) is not None,
        overlaps=ours.contains(theirs) or theirs.contains(ours),
    )


def plan(gathered: ClaimFacts, *, query_id: str | None = None) -> ClaimPlan:
    """Plan a claim. `query_id`: of the new owner, unless its checkpoint has one; None for the present one. Pure."""
    there, former = gathered.checkpoint, gathered.binding.query_id
    query = (there and there.query_id) or query_id or former
    refusals = [*_unusable_id(gathered, query), *_misplaced(gathered)]
    if there is not None and query_id not in (None, query):
        refusals.append(
            RefusedAsUnsafe(
                f"has the query id {query}, not {query_id}; nothing was written",
                path=there.url,
                hint="leave out --query-id, or name another checkpoint",
            )
        )
    files: tuple[tuple[str, bytes], ...] = ()
    if there is not None and there.newest is None:
        files = tuple(_files(gathered, query))
        refusals += [*_not_empty(there, {path for path, _ in files}), *_lost_sources(gathered)]
    elif there is not None:
        refusals += _diverged(gathered, there)
    if query != former:
        refusals += _begun(gathered)
    return ClaimPlan(
        former=former,
        query=query,
        newest=gathered.newest,
        begun=max(gathered.offsets),
        files=files,
        refusals=tuple(refusals),
        is_done=query == former and not files,
        mirror_of=gathered.mirror_of,
    )


def _files(gathered: ClaimFacts, query: str) -> Iterator[tuple[str, bytes]]:
    """The checkpoint of a query without state that has committed the same batches. Spark reads its newest two offsets, and
    runs a batch that has begun with the same input."""
    yield names.QUERY_METADATA, logs.encode_metadata(query)
    for batch, offsets in gathered.offsets.items():
        # The other confs in the root's offsets describe its state. Spark 4.2 fails without the number of partitions.
        yield names.offsets(batch), logs.encode_offsets(replace(offsets, conf=offsets.query_conf))
    yield names.commits(gathered.newest), logs.encode_commit(logs.CommitLog(0, None))


def _unusable_id(gathered: ClaimFacts, query: str) -> Iterator[StatekeeperError]:
    """Require the form of Spark's query ids, unless the root already knows the id."""
    known = (gathered.binding.query_id, *gathered.binding.former_ids)
    if query not in known and not names.is_checkpoint_id(query):
        yield RefusedAsUnsafe(
            f"{query!r} is not a UUID, but Spark's query ids are UUIDs; nothing was written",
            path=gathered.url,
            hint="give a UUID such as 6ad1c2f0-0000-4000-8000-000000000000, or leave out the query id",
        )


def _misplaced(gathered: ClaimFacts) -> Iterator[StatekeeperError]:
    """Require another folder than a state root: Spark writes the checkpoint of the query there."""
    there = gathered.checkpoint
    if there is None or not (there.overlaps or there.is_root):
        return
    problem = f"overlaps with the state root {gathered.url}" if there.overlaps else "is a state root"
    yield RefusedAsUnsafe(
        f"{problem}, so it cannot be the checkpoint of the query; nothing was written",
        path=there.url,
        hint="name the checkpointLocation of the query, or an empty folder outside of the state root",
    )


def _not_empty(there: CheckpointFacts, planned: set[str]) -> Iterator[StatekeeperError]:
    other = next((path for path in there.files if path not in planned), None)
    if other is not None:
        yield DestinationNotEmpty(
            f"has no committed batch, but it contains {other}; nothing was written",
            path=there.url,
            hint="name an empty folder, or the checkpoint of a query that has committed the batches of the root",
        )


def _begun(gathered: ClaimFacts) -> Iterator[StatekeeperError]:
    """Reject another query id if a batch has begun: the sink may hold it under the former id."""
    begun = max(gathered.offsets)
    if begun > gathered.newest:
        yield RefusedAsUnsafe(
            f"batch {begun} has begun, and the sink may contain its rows; a query with another id would write them again",
            path=names.offsets(begun),
            hint=f"start the job with its present id until batch {begun} is committed. Or remove the batch: statekeeper "
            f"rewind {gathered.url} --to-batch {gathered.newest} --sink TABLE (the plan shows the command that removes "
            "its rows from the table)",
        )


def _lost_sources(gathered: ClaimFacts) -> Iterator[StatekeeperError]:
    for source, offset in gathered.offsets[gathered.newest].by_source.items():
        if file_source.position(offset) is not None:
            yield RefusedAsUnsafe(
                f"source {source} reads files, and the list of the files that it has already read is in the lost "
                "checkpoint. With a new checkpoint, the query would read all files again",
                path=gathered.url,
                hint="restore the checkpoint from a backup, or start over with a new root and a new checkpoint",
            )


def _diverged(gathered: ClaimFacts, there: CheckpointFacts) -> Iterator[StatekeeperError]:
    """Require that the checkpoint is at the newest batch of the root, or at the batch before it."""
    assert there.newest is not None
    mine = gathered.offsets.get(there.newest)
    if mine is None:
        behind, ahead = (there.url, gathered.url) if there.newest < gathered.newest else (gathered.url, there.url)
        target = min(there.newest, gathered.newest)
        yield RefusedAsUnsafe(
            f"the newest batch of the checkpoint is {there.newest}, but the newest batch of the root is {gathered.newest}; "
            "nothing was written",
            path=behind,
            hint=f"rewind only {ahead}: statekeeper rewind {ahead} --to-batch {target} --apply --confirm-stopped. Then run "
            "this command again",
        )
    elif mine.sources != there.sources:
        yield RefusedAsUnsafe(
            f"batch {there.newest} has other source offsets in the checkpoint than in the root: the checkpoint does not "
            "belong to this state; nothing was written",
            path=f"{there.url}/{names.offsets(there.newest)}",
            hint="name the checkpoint that has committed the batches of the root",
        )


def execute(root: Storage, checkpoint: Storage | None, planned: ClaimPlan, *, by: str, now_seconds: float) -> None:
    """Execute the plan: the binding of the root, which stops the former driver, then the files of the checkpoint.

    *Guarantee*: the commit is the last file, so that no job starts before the claim is complete. A later run completes an
    interrupted claim. Raises `RefusedAsUnsafe` if another claim came first, or if the former job has begun a batch at the
    same time; `AlreadyExists`, `StorageError`.
    """
    before = root.read(names.BINDING)
    held = binding.parse_binding(before)
    if held.query_id != planned.former:
        raise _changed(root, f"query {held.query_id} claimed the root after this plan was made")
    is_rerun = held.claim is not None and held.query_id == planned.query
    former = held.claim.former if held.claim is not None and is_rerun else planned.former
    owned = held.owned_by(planned.query, Claim(at_seconds=now_seconds, by=by, former=former))
    root.replace(names.BINDING, binding.encode_binding(owned))
    # Race: the former driver compares the owner; the binding is replaced; the driver writes the offsets of its next batch,
    # which it then commits. The plan does not contain this batch.
    if catalog.newest_begun(root) > planned.begun:
        root.replace(names.BINDING, before)
        raise _changed(root, f"the former job is running: it began batch {planned.begun + 1} during the claim")
    for path, body in planned.files:
        assert checkpoint is not None
        checkpoint.create(path, body)


def require_same(root: Storage, planned: ClaimPlan, again: ClaimPlan) -> None:
    """Require that a plan that was made again is the confirmed one. Raises `RefusedAsUnsafe`."""
    if not planned.is_same(again):
        raise _changed(root, "the state root or the checkpoint is no longer the same as in the plan")


def _changed(root: Storage, problem: str) -> RefusedAsUnsafe:
    return RefusedAsUnsafe(
        f"{problem}; nothing was changed",
        path=root.url,
        hint="stop the former job. After its application has ended, run this command again",
    )
