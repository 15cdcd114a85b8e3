"""Plans a rewind. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError, VersionNotLoadable
from statekeeper.statestore.contents import restart
from statekeeper.statestore.contents.restart import lost_logs
from statekeeper.statestore.format import file_source, logs, names, operators
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.records.quarantine import QuarantineRecord
from statekeeper.statestore.maintenance.rollback.rewind.facts import RewindFacts
from statekeeper.statestore.maintenance.rollback.rewind.sinks import FileSinkLog
from statekeeper.statestore.root import binding
from statekeeper.statestore.storage import Entry


class RewindReason(Enum):
    """The reason for an action."""

    ATTEMPT = (
        "the record of an attempt at a later batch; with this record, a restart could commit the later batch again"
    )
    COMMIT = "the commit of a later batch"
    FILE_SINK = "the entry of a later batch in the log of the file sink; with this entry, the sink skips the batch"
    STATE = "state of a later batch; in structure V1, a restart could load it in place of the new state"
    STORE = "belongs to a store that a later batch added, for example for a new partition"
    SCHEMA = "a schema that a later batch introduced"
    OFFSETS = "the offsets of a later batch"
    SOURCE = "the entry of a file source that a later batch has read"
    QUERY_ID = (
        "the query gets a new id: under the former id, a sink such as Delta skips the batches that it already has"
    )
    ROWS = "describes the rows with a schema that a later batch introduced"
    PARTITIONS = "describes the partitions after a later rescale"


@dataclass(frozen=True)
class MoveAway:
    """Move a file to quarantine; with the reason `FILE_SINK`, from the output folder of the query."""

    entry: Entry
    reason: RewindReason

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.entry.path


@dataclass(frozen=True)
class Rewrite:
    """Replace a file, after a copy to quarantine."""

    entry: Entry
    body: bytes
    reason: RewindReason

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.entry.path


RewindAction = MoveAway | Rewrite


@dataclass(frozen=True, kw_only=True)
class RewindPlan:
    """The actions in their order, and the reasons not to rewind.

    batch         the newest batch after the rewind
    newest        the newest committed batch before it
    former_query  the query id before the rewind
    query         the query id after it
    file_sink     the log of the query's file sink; None without one
    """

    batch: int
    newest: int
    former_query: str
    query: str
    actions: tuple[RewindAction, ...]
    record: QuarantineRecord
    refusals: tuple[StatekeeperError, ...]
    file_sink: FileSinkLog | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes of the files that are quarantined."""
        return sum(action.entry.size_bytes for action in self.actions)


def plan(gathered: RewindFacts, *, query_id: str | None, sink: FileSinkLog | None = None) -> RewindPlan:
    """Plan a rewind. `query_id`: the query id after it; None keeps the id. `sink`: the log of the query's file sink.

    Order: the files of the newest batch first. Of each batch, first the record of its attempt, then its commit, then its
    entry in the log of a file sink, then its state, and its offsets last. So a crash leaves a batch whole, or as a batch
    that the query runs again. Sources last.

    Of a batch that a rescale or a conversion has appended, the offsets are first. Failure sequence otherwise: a crash
    leaves these offsets without their commit; the query runs the batch again, with fewer partitions, from the state in the
    former partitions, and loses the rest. Without the offsets, Spark runs the batch before again, and then stops with
    CONCURRENT_STREAM_LOG_UPDATE, because that batch is committed.
    """
    if gathered.newest == gathered.batch:
        # No later batch is committed. An interrupted rewind has given the query its id already.
        query_id = None
    by_batch = _later(gathered)
    for entry, batch in (sink.later if sink else {}).items():
        by_batch.setdefault(batch, []).append(MoveAway(entry, RewindReason.FILE_SINK))
    actions: list[RewindAction] = []
    for batch in sorted(by_batch, reverse=True):
        if batch == gathered.newest:
            actions += _rewritten_ids(gathered, query_id)
        actions += _in_order(by_batch[batch], is_appended=batch in gathered.appended)
    actions += _sources(gathered)
    actions += _rows(gathered)
    actions += _descriptions(gathered)
    rewritten = {
        action.path: hashlib.sha256(action.body).hexdigest() for action in actions if isinstance(action, Rewrite)
    }
    return RewindPlan(
        batch=gathered.batch,
        newest=gathered.newest,
        former_query=gathered.query_id,
        query=query_id or gathered.query_id,
        actions=tuple(actions),
        record=QuarantineRecord(
            position=gathered.position,
            rewound=gathered.commits,
            rewritten=rewritten,
            order=tuple(action.path for action in actions),
            file_sink=None if sink is None else sink.url,
        ),
        file_sink=sink,
        refusals=(
            *_of_structures(gathered),
            *_not_loadable(gathered),
            *lost_logs(
                gathered.batch,
                gathered.files,
                gathered.positions,
                has_state=bool(gathered.heads.heads) or gathered.binding is not None,
            ),
        ),
    )


def _in_order(actions: Iterable[MoveAway], *, is_appended: bool) -> list[MoveAway]:
    order = list(RewindReason)
    if is_appended:
        order.sort(key=lambda reason: reason is not RewindReason.OFFSETS)
    return sorted(actions, key=lambda action: (order.index(action.reason), _first(action)))


def _first(action: RewindAction) -> tuple[bool, str]:
    """Batch logs first: they contain the record of the attempt."""
    return names.parse_batch_log(action.path) is None, action.path


def _later(gathered: RewindFacts) -> dict[int, list[MoveAway]]:
    """Find the files of each batch after the target."""
    found: dict[int, list[MoveAway]] = {}
    for path, entry in gathered.files.items():
        place = _batch_of(path) or _of_later_store(gathered, path)
        if place is not None and place[0] > gathered.batch:
            found.setdefault(place[0], []).append(MoveAway(entry, place[1]))
    if gathered.newest > gathered.batch:
        found.setdefault(gathered.newest, [])
    oldest = _oldest_metadata(gathered)
    for batch, actions in found.items():
        found[batch] = [action for action in actions if action.path not in oldest]
    return found


def _oldest_metadata(gathered: RewindFacts) -> set[str]:
    """The oldest metadata of each operator, which is also valid for older batches."""
    oldest: dict[int, tuple[int, str]] = {}
    for path in gathered.files:
        place = names.parse_operator_metadata(path)
        if place is not None:
            operator, since = place
            oldest[operator] = min(oldest.get(operator, (since, path)), (since, path))
    return {path for _, path in oldest.values()}


def _batch_of(path: str) -> tuple[int, RewindReason] | None:
    """Return the batch that wrote a file, and the reason to move it away after a rewind to an earlier batch."""
    folder, _, name = path.rpartition("/")
    if folder in (names.COMMITS, names.OFFSETS):
        batch = names.parse_batch(name)
        reason = RewindReason.COMMIT if folder == names.COMMITS else RewindReason.OFFSETS
        return None if batch is None else (batch, reason)
    if folder == names.SCHEMAS:
        batch = names.parse_batch(name.removesuffix(".json"))
        return None if batch is None else (batch, RewindReason.SCHEMA)
    if (pending := names.parse_pending(path)) is not None:
        return pending[0], RewindReason.ATTEMPT
    if (log := names.parse_batch_log(path)) is not None:
        return log[0] - 1, RewindReason.STATE
    if (metadata := names.parse_operator_metadata(path)) is not None:
        return metadata[1], RewindReason.SCHEMA
    place = names.parse_file_of_any_provider(path)
    return None if place is None else (place[1].version.version - 1, RewindReason.STATE)


def _of_later_store(gathered: RewindFacts, path: str) -> tuple[int, RewindReason] | None:
    """As `_batch_of`, for a table or another file of a store that the target does not have."""
    place = names.parse_place(path)
    if place is None or place[0] not in gathered.later_stores:
        return None
    return gathered.later_stores[place[0]], RewindReason.STORE


def _sources(gathered: RewindFacts) -> Iterator[MoveAway]:
    """Yield the later entries of file sources. Later entries stay if Spark has merged the entry of the target with them, or
    if the target may have read them. The query then reads their files in its next batch."""
    positions = gathered.positions.entries
    for path, entry in sorted(gathered.files.items()):
        parsed = file_source.parse(path)
        if parsed is None or parsed[0] not in positions:
            continue
        newest = positions[parsed[0]]
        if parsed[1] > newest and file_source.is_complete(parsed[0], newest, gathered.files):
            yield MoveAway(entry, RewindReason.SOURCE)


def _rewritten_ids(gathered: RewindFacts, query_id: str | None) -> Iterator[Rewrite]:
    """Yield the file with the query id. Another id makes sinks accept the numbers of the rewound batches again."""
    bound = gathered.binding
    is_new = query_id is not None and query_id != gathered.query_id
    if bound is None:
        if query_id is not None and is_new:
            yield Rewrite(gathered.files[names.QUERY_METADATA], logs.encode_metadata(query_id), RewindReason.QUERY_ID)
        return
    rewound = replace(bound, partitions=_partitions(gathered))
    if query_id is not None and is_new:
        rewound = rewound.owned_by(query_id)
    if rewound != bound:
        reason = RewindReason.QUERY_ID if is_new else RewindReason.PARTITIONS
        yield Rewrite(gathered.files[names.BINDING], binding.encode_binding(rewound), reason)


def _partitions(gathered: RewindFacts) -> int:
    """Return the number of partitions at the target. A rescale of an own root gives each operator the same number."""
    return len({store.partition for store in gathered.heads.heads})


def _descriptions(gathered: RewindFacts) -> Iterator[Rewrite]:
    """Yield the metadata of the operators of a Python job that a later rescale has changed, as at the target."""
    for path, body in gathered.metadata.items():
        rewound = operators.with_partitions(body, path, _partitions(gathered))
        if rewound != body:
            yield Rewrite(gathered.files[path], rewound, RewindReason.PARTITIONS)


def _rows(gathered: RewindFacts) -> Iterator[Rewrite]:
    """Yield the state schemas of a Python job that a later batch has extended, as they were at the target."""
    for path, body in gathered.rows.items():
        yield Rewrite(gathered.files[path], body, RewindReason.ROWS)


# -- reasons not to rewind ---------------------------------------------------------------------------------------------


def _of_structures(gathered: RewindFacts) -> Iterator[StatekeeperError]:
    then, now = gathered.structure, gathered.newest_structure
    if gathered.provider is Provider.HDFS_BACKED:
        return  # a conversion adds files, and a switchover of the converted checkpoint moves none of the default provider
    # After a switchover and the way back, the files of the structure between them are later than the target.
    if now is then.other:
        # A switchover to V1 moves snapshots of V2 aside, and `gc` deletes files of the former structure.
        is_kept = next(restart.lost_versions(gathered.chains), None) is None
        back = f"switch back first: statekeeper switch {gathered.url} --to {then.value} --apply --confirm-stopped; or "
        yield RefusedAsUnsafe(
            f"batch {gathered.batch} has structure {then.name}, but a later switchover moved the checkpoint to structure "
            f"{then.other.name}; nothing was changed",
            path=gathered.url,
            hint=f"{back if is_kept else ''}choose a batch after the switchover",
        )


def _not_loadable(gathered: RewindFacts) -> Iterator[StatekeeperError]:
    for lost in restart.lost_versions(gathered.chains):
        yield VersionNotLoadable(
            f"{lost.problem.of_batch}; {lost.version.in_words} of {lost.store} cannot be loaded, and nothing was changed",
            path=lost.problem.path,
            hint=f"to find a batch that can be loaded, run: statekeeper audit {gathered.url}. Then give this batch with "
            "--to-batch",
        )
