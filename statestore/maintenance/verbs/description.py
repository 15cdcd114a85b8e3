"""Describes a checkpoint for its readers: structure, operators and number of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, UnknownFormatVersion
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.maintenance.copies import labels, mirrors
from statekeeper.statestore.maintenance.copies.clones import CloneRecord
from statekeeper.statestore.maintenance.copies.clones import model as copies_record
from statekeeper.statestore.maintenance.copies.labels import Label
from statekeeper.statestore.maintenance.copies.mirrors import MirrorRecord
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotFacts, StoreSnapshotFacts
from statekeeper.statestore.root.attempts import metrics_at
from statekeeper.statestore.root.binding import Binding, Claim, read_binding
from statekeeper.statestore.root.columns import OlderSchemas, columns_text
from statekeeper.statestore.storage import Storage, at_once
from statekeeper.statestore.storage.query_metrics import QueryMetrics

Record = TypeVar("Record")


@dataclass(frozen=True)
class BatchLogs:
    """The batch logs of a root, and the versions that they hold."""

    files: int
    size_bytes: int
    oldest: int
    newest: int


@dataclass(frozen=True)
class Owner:
    """The query that owns a root, since this time in seconds since the epoch (None if the storage does not know it)."""

    query_id: str
    since_seconds: float | None
    claim: Claim | None

    @property
    def since_utc(self) -> str | None:
        """The time for display."""
        if self.since_seconds is None:
            return None
        return utc(self.since_seconds, between=" ")


@dataclass(frozen=True, kw_only=True)
class StoreColumns:
    """The value columns of one store of a Python job for display.

    since      the batch that changed them last; None if they are those of the first batch
    committed  whether this batch is committed. If not, the former columns are those of the newest committed batch
    """

    store: str
    columns: str
    since: int | None
    committed: bool


@dataclass(frozen=True, kw_only=True)
class Description:
    """`structure` is None before the first commit. `operators`: the name of each operator by its number, None without
    metadata (Spark 3.5). `keys`: the number of keys in the base of each store, where the snapshot states it. `batch_logs`:
    None if there are none. `metrics`: the figures that the job recorded with the newest batch. `cloned`: where a clone
    comes from; None for another checkpoint. `mirror`, `savepoint`: likewise. `owner`, `columns`: of the root of a Python
    job."""

    structure: Structure | None = None
    operators: Mapping[int, str | None] = field(default_factory=dict)
    keys: Mapping[StorePath, int] = field(default_factory=dict)
    batch_logs: BatchLogs | None = None
    metrics: QueryMetrics | None = None
    cloned: CloneRecord | None = None
    mirror: MirrorRecord | None = None
    savepoint: Label | None = None
    owner: Owner | None = None
    columns: tuple[StoreColumns, ...] = ()


def describe(storage: Storage, gathered: SnapshotFacts) -> Description:
    """Describe a checkpoint. Requests: one per operator, one per store with a snapshot, one for each record of a clone,
    a mirror and a savepoint, and seven for the owner, the columns, the batch logs and the figures of a Statekeeper
    job, plus one for each change of columns.

    Raises `StorageError`.
    """
    if gathered.batch is None or not gathered.stores:
        return Description()
    batch = gathered.batch
    structure = Structure.V1 if gathered.stores[0].head.id is None else Structure.V2
    operators: dict[int, str | None] = {}
    for operator in sorted({fact.store.operator for fact in gathered.stores}):
        metadata = catalog.operator_at(storage, operator, batch)
        operators[operator] = None if metadata is None else metadata.name
    keys: dict[StorePath, int] = {}

    def read(fact: StoreSnapshotFacts) -> None:
        # Snapshots of Spark's default provider do not state it.
        is_stated = gathered.conf.provider is Provider.ROCKSDB
        if is_stated and fact.load is not None and fact.load.base_kind is BaseKind.SNAPSHOT:
            found = _keys(storage, fact.store, fact.load.base)
            if found is not None:
                keys[fact.store] = found

    at_once(read, gathered.stores)
    found = Description(
        structure=structure,
        operators=operators,
        keys=keys,
        cloned=_without_damage(copies_record.read, storage),
        mirror=_without_damage(mirrors.read, storage),
        savepoint=_without_damage(labels.read, storage),
    )
    if gathered.origin is Origin.NATIVE:
        return found
    found = replace(found, batch_logs=_batch_logs(storage), metrics=metrics_at(storage, batch))
    try:
        bound, older = read_binding(storage)
    except (ObjectMissing, CorruptFile, UnknownFormatVersion):
        return found  # the audit reports the file
    return replace(found, owner=_owner(storage, bound), columns=tuple(_columns(bound, older, batch)))


def _columns(bound: Binding, older: OlderSchemas, newest: int) -> Iterator[StoreColumns]:
    for store in bound.stores:
        try:
            text = columns_text(store.value_json)
        except BAD_VALUES:
            continue  # the audit reports the schema
        since = max((batch for batch, values in older.items() if store.name in values), default=None)
        yield StoreColumns(store=store.name, columns=text, since=since, committed=since is None or since <= newest)


def _owner(storage: Storage, bound: Binding) -> Owner:
    if bound.claim is not None:
        return Owner(bound.query_id, bound.claim.at_seconds, bound.claim)
    entry = storage.stat(names.BINDING)
    return Owner(bound.query_id, None if entry is None else entry.modified_at_seconds, None)


def _batch_logs(storage: Storage) -> BatchLogs | None:
    listed = [(names.parse_batch_log(entry.path), entry.size_bytes) for entry in storage.list(names.BATCH_LOGS)]
    found = [(place[0], size_bytes) for place, size_bytes in listed if place is not None]
    if not found:
        return None
    versions = [version for version, _ in found]
    return BatchLogs(len(found), sum(size_bytes for _, size_bytes in found), min(versions), max(versions))


def _without_damage(read: Callable[[Storage], Record | None], storage: Storage) -> Record | None:
    try:
        return read(storage)
    except CorruptFile:
        # A description leaves it out. Only another run of the verb needs the record, and reports the damage.
        return None


def _keys(storage: Storage, store: StorePath, version: VersionId) -> int | None:
    path = store.snapshot(version)
    try:
        count = read_snapshot(storage.read(path), path).metadata.key_count
    except (ObjectMissing, CorruptFile, UnknownFormatVersion):
        # The audit reports it; a description leaves it out.
        return None
    return count if count >= 0 else None
