"""A state root that a Python job writes: a valid Spark checkpoint directory, bound to one streaming query.

The driver of a job uses a `StateRoot`; its tasks use stores. Files are created if absent, in an order that leaves a
loadable root after a crash at any point:

    binding.json -> metadata, operator metadata, schema files     once
    offsets/N -> (changelogs, by the tasks) -> schemas/N.json, if columns change -> pending/N-<attempt> -> (the sink)
        -> commits/N

With batch logs, one object takes the place of `pending/N-<attempt>` and of the small changelogs (FLIP-158).

In structure V1 a digest takes the place of the checkpoint id (`checkpoint.digests`). The newest commit determines the
structure of a root; the structure of the job applies only to a root without commits.

Sources: SPARK-49374 (ids in the commit log), SPARK-58659 (the newest commit decides), Spark's offset and commit logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.base.errors import (
    RESTORE,
    AlreadyExists,
    BatchConflict,
    CorruptFile,
    ObjectMissing,
    OtherStructure,
    RootLost,
    WrongInitial,
)
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format import batch_log, json_records, logs, names, operators
from statekeeper.statestore.format.batch_log import Place
from statekeeper.statestore.format.json_records import About, Count, Record
from statekeeper.statestore.format.names import EMPTY, VersionId
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.root import attempts
from statekeeper.statestore.root.attempts import (
    DEFAULT_OUTPUT,
    OutputRecord,
    SinkPosition,
)
from statekeeper.statestore.root.binding import Binding, Bound, bind, require_bindable, require_owner
from statekeeper.statestore.root.columns import ColumnChange, ColumnMapping, schema_digest
from statekeeper.statestore.root.times import BatchTimes
from statekeeper.statestore.storage import Storage, read_or_none
from statekeeper.statestore.storage.query_metrics import QueryMetrics

_ABOUT = About("record of an attempt", then="the attempt is unknown")


@dataclass(frozen=True, kw_only=True)
class Pending:
    """An attempt at a batch, recorded before it writes to the sink: its identity and the ids of its versions.

    `sink`: the position of the sink before the attempt; None if the sink has no history, or no table yet. `initial`: the
    digest of the initial rows, in batch 0. `watermark_ms`: the watermark after the batch. `outputs`: output -> its record,
    for a job that names its outputs; such a job has no `sink`.
    """

    batch: int
    attempt: str
    root_id: str
    query_id: str
    sources: tuple[str, ...]
    schema: str
    ids: Mapping[int, tuple[str, ...]]
    structure: Structure = Structure.V2
    sink: SinkPosition | None = None
    initial: str | None = None
    watermark_ms: int = 0
    outputs: Mapping[str, OutputRecord] = field(default_factory=dict)

    @property
    def positions(self) -> Mapping[str, SinkPosition]:
        """Return output -> the position of its sink before the attempt, for sinks with a history."""
        found = {name: output.sink for name, output in self.outputs.items()} or {DEFAULT_OUTPUT: self.sink}
        return {name: position for name, position in found.items() if position is not None}


@dataclass(frozen=True)
class Done:
    """The batch is already committed, with the same query and source offsets."""


@dataclass(frozen=True)
class Ready:
    """The batch may run. `bases`: operator -> the version of each partition's store to start from."""

    bases: Mapping[int, tuple[VersionId, ...]]
    times: BatchTimes


class StateRoot:
    """A bound root. If two drivers use it at a time, the slower one gets a `BatchConflict`."""

    def __init__(self, storage: Storage, bound: Bound, structure: Structure) -> None:
        self.storage = storage
        self.structure = structure
        self._bound = bound
        self._head = catalog.newest_batch(storage)
        self._times: BatchTimes | None = None
        """Those of the newest begun batch."""

    @classmethod
    def open(
        cls,
        storage: Storage,
        wanted: Binding,
        *,
        batch: int,
        ids: Ids,
        structure: Structure = Structure.V2,
        mappings: Mapping[str, ColumnMapping] | None = None,
    ) -> StateRoot:
        """Open the root at `storage` for the query and schemas of `wanted`, before `batch`.

        structure   that of a new root; `begin` rejects a root with another structure
        mappings    store name -> the columns that the job has renamed or widened

        Raises as `bind`, `HalfSwitched`.
        """
        rewrite_journal.require_none(storage)
        root = cls(storage, bind(storage, wanted, batch=batch, ids=ids, mappings=mappings), structure)
        root._write_descriptions()
        return root

    @property
    def binding(self) -> Binding:
        """The binding with the newest recorded schemas."""
        return self._bound.binding

    @property
    def head(self) -> int | None:
        """The newest committed batch that this driver knows; None if there is none."""
        return self._head

    def begin(self, batch: int, outer: logs.OffsetLog) -> Done | Ready:
        """Decide whether a batch may run. If so, write `offsets/N`.

        `outer`: the offset log of the batch in the checkpoint of the streaming query. Raises `RootLost`, `BatchConflict`,
        `OtherStructure`, `ForeignRoot` before any write.
        """
        # Another query may have claimed the root since this driver opened it.
        require_owner(self.storage, self.binding)
        committed = read_or_none(self.storage, names.commits(batch))
        if committed is not None:
            self._require_same_sources(batch, outer)
            return Done()
        if self._head is not None and batch <= self._head:
            raise RootLost(
                f"batch {batch} is not in the commit log, but batch {self._head} is; no new batch was started",
                path=names.commits(batch),
                hint="restore the commit log of the root from a backup, or roll back to the batch before the gap",
            )
        bases, watermark_ms = self._after_previous(batch)
        mine = self._offsets(outer, watermark_ms)
        try:
            self.storage.create(names.offsets(batch), logs.encode_offsets(mine))
        except AlreadyExists as error:
            mine = self._require_same_sources(batch, outer, cause=error)
        self._times = BatchTimes(
            batch=batch,
            time_ms=mine.timestamp_ms,
            watermark_ms=watermark_ms,
            late_watermark_ms=self._watermark_of(batch - 1),
        )
        return Ready(bases, self._times)

    def rewrites(self, batch: int) -> Mapping[int, ColumnChange]:
        """Return operator -> the change of columns with which `batch` must rewrite the existing rows. Writes nothing."""
        changes = {change.store: change for change in self._bound.changes_at(batch)}
        return {op: changes[store.name] for op, store in enumerate(self.binding.stores) if store.name in changes}

    def record_changes(self, batch: int) -> None:
        """Record the columns that the job added, renamed or widened, before the record of an attempt that has them.

        An attempt that fails earlier leaves the columns as they were, so that the former job can start again.
        """
        self._bound = self._bound.grown(self.storage, batch)

    def schema(self) -> str:
        """Compute the digest of the schemas of the newest computed batch."""
        return schema_digest(self.binding.stores)

    def write_pending(
        self,
        pending: Pending,
        changelogs: Mapping[Place, bytes] | None = None,
        *,
        metrics: QueryMetrics | None = None,
    ) -> int:
        """Record an attempt before it writes to the sink. Return the size of the record in bytes.

        changelogs  if given, the record is in a batch log with these members; see `format.batch_log`
        metrics     the figures of the query before this batch, for Dagster and `inspect`

        Raises `WrongInitial` if the initial rows differ from those of an earlier attempt at batch 0.
        """
        if pending.initial is not None:
            self._require_same_initial(pending.initial)
        body = json_records.as_json(json_records.recast(_Written, pending))
        if metrics is not None:
            body["metrics"] = metrics.as_json()
        if changelogs is None:
            path, data = names.pending(pending.batch, pending.attempt), json_records.encoded(body)
        else:
            version, tag = pending.batch + 1, batch_log.tag_of(pending.attempt)
            path, data = names.batch_log(version, tag), batch_log.encode(version, tag, body, changelogs)
        self.storage.create(path, data)
        return len(data)

    def _require_same_initial(self, mine: str) -> None:
        # A sink that cannot report its batches may hold the output of the earlier attempt.
        for path, record in attempts.records_at(self.storage, 0):
            held = record.get("initial")
            if held != mine:
                raise WrongInitial(
                    f"an earlier attempt at batch 0 read other initial rows ({_initial_rows(held)}, this attempt: "
                    f"{_initial_rows(mine)} with another digest); the batch was not committed",
                    path=path,
                    hint="let `initial` return the same rows as before, for example a fixed version of the table. "
                    "Otherwise start with a new root, a new checkpoint and an empty sink",
                )

    def pending(self, batch: int, attempt: str) -> Pending | None:
        """Read the record of an attempt; None if there is none."""
        for path in (names.pending(batch, attempt), names.batch_log(batch + 1, batch_log.tag_of(attempt))):
            record = attempts.record_in(self.storage, path)
            found = None if record is None else _parsed_pending(record, path)
            if found is not None and found.attempt == attempt:
                return found
        return None

    def sinks_before(self, batch: int) -> Mapping[str, SinkPosition]:
        """Find output -> the position of its sink before the committed attempt of a batch, or its later accepted position.
        Sinks without a recorded position are left out."""
        path = names.commits(batch)
        data = None if batch < 0 else read_or_none(self.storage, path)
        if data is None:
            return {}
        committed = _ids_of_partitions(logs.parse_commit(data, path).marks)
        recorded = [_parsed_pending(record, path) for path, record in attempts.records_at(self.storage, batch)]
        newest: dict[str, SinkPosition] = {}
        for pending in recorded:
            for name, position in pending.positions.items() if pending.ids == committed else ():
                if name not in newest or position.version > newest[name].version:
                    newest[name] = position
        return newest

    def commit(self, batch: int, ids: Mapping[int, tuple[str, ...]], *, watermark_ms: int = 0) -> None:
        """Commit a batch: write `commits/N`. `watermark_ms`: that of the next batch. Raises `BatchConflict` if the file
        exists with other ids."""
        by_store: logs.ByStore = {
            operator: tuple((i,) for i in of_partitions) for operator, of_partitions in ids.items()
        }
        is_v2 = self.structure is Structure.V2
        log = logs.CommitLog(watermark_ms, by_store if is_v2 else None, None if is_v2 else by_store)
        try:
            self.storage.create(names.commits(batch), logs.encode_commit(log))
        except AlreadyExists as error:
            raise BatchConflict(
                f"batch {batch} was committed by another driver with other ids; this attempt is discarded",
                path=names.commits(batch),
                hint="stop one of the two drivers of this query; the committed state is not affected",
            ) from error
        self._head = batch
        if batch in self._bound.older:
            self._write_schemas()

    def _watermark_of(self, batch: int) -> int:
        """The watermark of an earlier batch. 0 if its offset log is lost: then no row is late, and nothing is dropped."""
        if self._times is not None and self._times.batch == batch:
            return self._times.watermark_ms
        path = names.offsets(batch)
        data = None if batch < 0 else read_or_none(self.storage, path)
        return 0 if data is None else logs.parse_offsets(data, path).watermark_ms

    def _after_previous(self, batch: int) -> tuple[Mapping[int, tuple[VersionId, ...]], int]:
        """The versions and the watermark with which a batch starts."""
        operators_ = range(len(self.binding.stores))
        if batch == 0:
            return dict.fromkeys(operators_, (EMPTY,) * self.binding.partitions), 0
        path = names.commits(batch - 1)
        data = read_or_none(self.storage, path)
        if data is None:
            raise RootLost(
                f"batch {batch} needs the state of batch {batch - 1}, which is not in the commit log; the batch was not "
                f"started",
                path=path,
                hint="restore the root from a backup; if it was emptied, start over with a new checkpoint and a new root",
            )
        log = logs.parse_commit(data, path)
        _require_structure(self.storage.url, path, log, self.structure)
        by_store = log.marks
        if by_store is None:
            raise CorruptFile(
                "has no digests (checksums of the changelogs); the committed changelogs are unknown",
                path=path,
                hint="restore the original file of the job from a backup",
            )
        wrong = [op for op in operators_ if len(by_store.get(op, ())) != self.binding.partitions]
        if wrong:
            raise CorruptFile(
                f"lists checkpoint ids for {len(by_store.get(wrong[0], ()))} partitions of operator {wrong[0]}, but "
                f"the root has {self.binding.partitions} partitions; batch {batch} was not started",
                path=path,
                hint=RESTORE,
            )
        bases = {op: tuple(log.version(batch, of_partition[0]) for of_partition in by_store[op]) for op in operators_}
        return bases, log.next_watermark_ms

    def _offsets(self, outer: logs.OffsetLog, watermark_ms: int) -> logs.OffsetLog:
        # The confs of the outer, stateless query name another provider. Spark reads the state with these confs. A claim
        # makes the checkpoint of the query with the others.
        state = {**logs.STATE_CONF, logs.SHUFFLE_PARTITIONS: str(self.binding.partitions)}
        conf = {**outer.query_conf, **state}
        return replace(outer, conf=conf, watermark_ms=watermark_ms)

    def _require_same_sources(
        self, batch: int, outer: logs.OffsetLog, cause: Exception | None = None
    ) -> logs.OffsetLog:
        """Return the offset log of a batch that has begun."""
        path = names.offsets(batch)
        try:
            held = logs.parse_offsets(self.storage.read(path), path)
        except ObjectMissing as error:
            raise RootLost(
                f"is missing, but batch {batch} is committed; no new batch was started",
                path=path,
                hint="restore the root from a backup",
            ) from error
        # Only the sources: a batch that Spark plans again from an older checkpoint has another time, but the same rows.
        if held.sources != outer.sources:
            raise BatchConflict(
                f"batch {batch} has other source offsets than in the query's checkpoint; the batch was not started",
                path=path,
                hint="checkpoint and state root have diverged; restore both to the same point in time",
            ) from cause
        return held

    def _write_descriptions(self) -> None:
        """Write the metadata that Spark needs, also if a crash after `binding.json` left it incomplete."""
        self.storage.create(names.QUERY_METADATA, logs.encode_metadata(self.binding.root_id))
        for path, body in operator_metadata(self.binding):
            self.storage.create(path, body)
        self._write_schemas()

    def _write_schemas(self) -> None:
        changing = self._bound.older.get((self._head if self._head is not None else -1) + 1, {})
        for operator, store in enumerate(self.binding.stores):
            path = names.state_schema(operator)
            # Until the batch that rewrites the rows is committed, Spark must read them with the older schema.
            value_json = changing.get(store.name, store.value_json)
            body = operators.encode_schema(store.key_json, value_json)
            if read_or_none(self.storage, path) != body:
                self.storage.replace(path, body)


def operator_metadata(binding: Binding) -> Iterator[tuple[str, bytes]]:
    """Yield the paths and contents of the metadata of the operators: each store is one."""
    for operator, store in enumerate(binding.stores):
        info = operators.StoreInfo(
            name=names.DEFAULT_STORE, prefix_columns=store.prefix_columns, partitions=binding.partitions
        )
        metadata = operators.OperatorMetadata(operator, "statekeeper", (info,))
        yield names.operator_metadata(operator), operators.encode_operator(metadata)


class _WrittenOutput(Record, omit_defaults=True):
    """An `OutputRecord` in the file."""

    columns: str
    sink: SinkPosition | None = None
    rows: str | None = None
    files: tuple[dict[str, Any], ...] | None = None


class _Written(Record, kw_only=True, omit_defaults=True):
    """A `Pending` in the file. That of an earlier release has no structure."""

    root_id: str = msgspec.field(name="root")
    query_id: str = msgspec.field(name="query")
    batch: Count
    attempt: str
    sources: tuple[str, ...]
    schema: str
    ids: Mapping[int, tuple[str, ...]]
    structure: Structure = msgspec.field(default_factory=lambda: Structure.V2)  # written also if it is the default
    sink: SinkPosition | None = None
    outputs: Mapping[str, _WrittenOutput] = {}
    initial: str | None = None
    watermark_ms: int = 0


def _parsed_pending(body: Mapping[str, Any], path: str) -> Pending:
    try:
        return json_records.recast(Pending, json_records.converted(_Written, body))
    except BAD_VALUES as error:
        raise _ABOUT.invalid(error, path) from error


def _initial_rows(digest: object) -> str:
    return "no rows" if digest is None else f"{str(digest).partition(':')[0]} rows"


def require_startable(
    storage: Storage,
    wanted: Binding,
    *,
    committed: int | None,
    structure: Structure,
    mappings: Mapping[str, ColumnMapping] | None = None,
) -> tuple[ColumnChange, ...]:
    """Verify that the next batch of a query can start with this root, without a write. Raises as `StateRoot.begin`.

    `committed`: the newest batch in the commit log of the query's checkpoint. A missing root of a new query is accepted.
    Returns the changes of value columns that the batch makes.
    """
    rewrite_journal.require_none(storage)
    changes = require_bindable(storage, wanted, batch=-1 if committed is None else committed + 1, mappings=mappings)
    head = catalog.newest_batch(storage)
    if committed is not None and (head is None or head < committed):
        raise RootLost(
            f"the query has committed batch {committed}, but the root has "
            f"{'no batch' if head is None else f'only batch {head}'}; the query was not started",
            path=storage.url,
            hint="restore the root from a backup; if it was emptied, start over with a new checkpoint and a new root",
        )
    if head is not None:
        path = names.commits(head)
        _require_structure(storage.url, path, logs.parse_commit(storage.read(path), path), structure)
    return changes


def _require_structure(url: str, path: str, log: logs.CommitLog, wanted: Structure) -> None:
    held = log.structure
    if held is not wanted:
        raise OtherStructure(
            f"the root has structure {held.name}, but the job requires {wanted.name}; nothing was written",
            path=path,
            hint=f"start the job with structure {held.name}, or stop it and run: statekeeper switch {url} --to "
            f"{wanted.value} "
            "--apply --confirm-stopped",
        )


def _ids_of_partitions(by_store: logs.ByStore | None) -> Mapping[int, tuple[str, ...]]:
    return {operator: tuple(i for (i, *_) in stores) for operator, stores in (by_store or {}).items()}
