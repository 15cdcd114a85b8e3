"""The binding of a state root to its query, partitions and schemas, and its comparison with the declaration of a job.

_statekeeper/binding.json   replaced only by a claim, a rescale, a schema evolution, and a rewind

The value schemas of a later batch are in `columns`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta, field

from statekeeper.statestore.base.clock import Ids
from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.errors import (
    RESTORE,
    AlreadyExists,
    BatchConflict,
    CorruptFile,
    ForeignRoot,
    RootLost,
    SchemaMismatch,
)
from statekeeper.statestore.format import json_records, names, operators, prefix_columns
from statekeeper.statestore.format.json_records import About, PartitionCount, Record, UnixSeconds
from statekeeper.statestore.format.untrusted import BAD_VALUES
from statekeeper.statestore.root import columns as later_schemas
from statekeeper.statestore.root.columns import ColumnChange, ColumnMapping, LaterSchemas, OlderSchemas, StoreSchema
from statekeeper.statestore.root.declaration import (
    column_changes,
    require_same_inputs,
    require_same_start,
    require_same_ticks,
)
from statekeeper.statestore.storage import Storage, read_or_none
from statekeeper.statestore.storage.exclusive import require_exclusive_create

_FORMAT = 1
_ABOUT = About("binding", then="the root cannot be opened")
_PrefixColumns = Annotated[int, Meta(ge=prefix_columns.OF_STATE, le=prefix_columns.OF_DUE_KEYS)]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A change of the owner of a root: its time in seconds since the epoch, the maintainer, and the former query id."""

    at_seconds: float
    by: str
    former: str

    @property
    def at_utc(self) -> str:
        """The time for display."""
        return utc(self.at_seconds, between=" ")


@dataclass(frozen=True, kw_only=True)
class Binding:
    """The properties of a root that no job changes, except for the value columns.

    claim       how the query became the owner; None for the query that created the root, and after a rewind
    former_ids  the ids that the query had before, and the former owners, oldest first: a sink has their batches
    initial     batch 0 starts from initial rows of the job
    evolution   the run of the newest schema evolution; empty without one
    inputs      the names of the inputs, in the order of the query's sources; empty for a job with one stream
    ticks       the query has a source of ticks after its inputs
    """

    root_id: str
    query_id: str
    partitions: int
    key_groups: int
    stores: tuple[StoreSchema, ...]
    claim: Claim | None = None
    former_ids: tuple[str, ...] = ()
    initial: bool = False
    evolution: str = ""
    inputs: tuple[str, ...] = ()
    ticks: bool = False

    def owned_by(self, query_id: str, claim: Claim | None = None) -> Binding:
        """Return the binding with another owner, whose former ids include the present one."""
        former = dict.fromkeys((*self.former_ids, self.query_id))
        former.pop(query_id, None)
        return replace(self, query_id=query_id, claim=claim, former_ids=tuple(former))


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The binding of a root with its newest value schemas, and the older ones.

    later     the recorded changes of value schemas
    pending   the changes of value columns that the job declares, which the next computed batch makes and records
    """

    binding: Binding
    older: OlderSchemas
    later: LaterSchemas
    pending: tuple[ColumnChange, ...] = ()

    def grown(self, storage: Storage, batch: int) -> Bound:
        """Record that the state has the declared columns from `batch` on. Return self if it has them already.

        Call it only for an attempt with these columns: a batch that the sink already contains has the older schema. Raises
        `SchemaMismatch` if an earlier attempt at the batch recorded another change.
        """
        if not self.pending:
            return self
        values = {store.name: store.value_json for store in self.binding.stores}
        values |= {change.store: change.after for change in self.pending}
        path, body = names.later_schema(batch), later_schemas.encode(values, self.pending)
        try:
            storage.create(path, body)
        except AlreadyExists as error:
            raise SchemaMismatch(
                f"an earlier attempt at batch {batch} recorded a new schema, but this job declares a different schema; "
                "the batch was not started",
                path=path,
                hint="run the batch with the schema in this file. Make the next change after the batch is committed",
            ) from error
        later = {batch: later_schemas.parse(body, path)}
        binding, older = _evolved(self.binding, later)
        return Bound(binding=binding, older={**self.older, **older}, later={**self.later, **later})

    def changes_at(self, batch: int) -> tuple[ColumnChange, ...]:
        """Return the changes of columns with which `batch` begins: the recorded ones, otherwise those to make. Raises
        `CorruptFile`."""
        if batch not in self.later:
            return self.pending
        before, path = self.older[batch], names.later_schema(batch)
        try:
            return tuple(self.later[batch][name].change_from(name, before[name]) for name in before)
        except BAD_VALUES as error:
            raise CorruptFile(
                "has schemas that do not fit those of the batch before; the batch was not started",
                path=path,
                hint=RESTORE,
            ) from error


def bind(
    storage: Storage, wanted: Binding, *, batch: int, ids: Ids, mappings: Mapping[str, ColumnMapping] | None = None
) -> Bound:
    """Read the binding of the root at `storage`. Create it from `wanted` if there is none and `batch` is 0.

    Partitions, key groups and id of an existing root take precedence over those of `wanted`. `mappings`: store name -> the
    columns that the job has renamed or widened. Raises `RootLost`, `ForeignRoot`, `SchemaMismatch`, and
    `NoExclusiveCreate` for a new root.
    """
    held = read_or_none(storage, names.BINDING)
    if held is None:
        if batch > 0:
            raise _no_root(storage.url, batch)
        require_exclusive_create(storage, ids)
        held = encode_binding(replace(wanted, root_id=ids.fresh()))
        try:
            storage.create(names.BINDING, held)
        except AlreadyExists:
            held = storage.read(names.BINDING)
    return _bound(storage, held, wanted, batch, mappings or {})


def require_bindable(
    storage: Storage, wanted: Binding, *, batch: int, mappings: Mapping[str, ColumnMapping] | None = None
) -> tuple[ColumnChange, ...]:
    """Verify that `bind` would succeed, without a write. Returns the changes of columns to make. Raises as `bind`."""
    held = read_or_none(storage, names.BINDING)
    if held is not None:
        return _bound(storage, held, wanted, batch, mappings or {}).pending
    if batch > 0:
        raise _no_root(storage.url, batch)
    return ()


def _no_root(url: str, batch: int) -> RootLost:
    return RootLost(
        f"the query is at batch {batch}, but the state root is missing; the batch was not started",
        path=url,
        hint="restore the root from a backup, or start over with a new checkpoint and a new root",
    )


def _bound(storage: Storage, held: bytes, wanted: Binding, batch: int, mappings: Mapping[str, ColumnMapping]) -> Bound:
    binding = parse_binding(held)
    if binding.query_id != wanted.query_id:
        raise ForeignRoot(
            f"the state root belongs to query {binding.query_id}, not to {wanted.query_id}; the batch was not started",
            path=storage.url,
            hint="for a new query, use a new root. If the checkpoint of the query was deleted, restore it, or continue its "
            "state with this job: statekeeper claim ROOT --checkpoint CHECKPOINT --apply --confirm-stopped",
        )
    require_same_start(storage, held=binding.initial, wanted=wanted.initial, batch=batch)
    require_same_inputs(storage.url, held=binding.inputs, wanted=wanted.inputs)
    require_same_ticks(storage.url, held=binding.ticks, wanted=wanted.ticks)
    later = later_schemas.read(storage)
    binding, older = _evolved(binding, later)
    pending = tuple(column_changes(storage.url, binding.stores, wanted.stores, mappings, older))
    return Bound(binding=binding, older=older, later=later, pending=pending)


def changes_to(
    storage: Storage, values: Mapping[str, str], mappings: Mapping[str, ColumnMapping]
) -> tuple[ColumnChange, ...]:
    """Return the changes of value columns that the start of a job would make. Keys are not compared.

    values     store name -> the value schema that the job declares, in Spark's JSON
    mappings   store name -> the columns that the job has renamed or widened

    Raises `SchemaMismatch`, and as `read_binding`.
    """
    held, older = read_binding(storage)
    keys = {store.name: store.key_json for store in held.stores}
    declared = tuple(StoreSchema(name, keys.get(name, ""), value) for name, value in values.items())
    return tuple(column_changes(storage.url, held.stores, declared, mappings, older))


def require_owner(storage: Storage, bound: Binding) -> None:
    """Verify that no claim, no rescale and no schema evolution has followed since the root was bound. One request.

    Raises `ForeignRoot`, `BatchConflict`, `ObjectMissing`, `CorruptFile`.
    """
    held = parse_binding(storage.read(names.BINDING))
    if (held.query_id, held.claim) == (bound.query_id, bound.claim):
        if held.partitions != bound.partitions:
            raise BatchConflict(
                f"the state root was rescaled from {bound.partitions} to {held.partitions} partitions while this job was "
                f"running; the batch was not started",
                path=storage.url,
                hint="start the job again: it continues with the new number of partitions",
            )
        if held.evolution != bound.evolution:
            raise BatchConflict(
                "`statekeeper evolve` changed the columns of the state root while this job was running; the batch was not "
                "started",
                path=storage.url,
                hint="start the job again, with the new columns in the state of its operator",
            )
        return
    at = "" if held.claim is None else f" at {held.claim.at_utc}"
    raise ForeignRoot(
        f"the state root was claimed for query {held.query_id}{at}, so query {bound.query_id} no longer owns it; "
        "the batch was not started",
        path=storage.url,
        hint=f"stop this job. Start it again only with the checkpoint of query {held.query_id}, which owns the root",
    )


def read_binding(storage: Storage) -> tuple[Binding, OlderSchemas]:
    """Read the binding with the newest value schemas, and the older ones.

    Raises `ObjectMissing`, `CorruptFile`, `UnknownFormatVersion`.
    """
    return _evolved(parse_binding(storage.read(names.BINDING)), later_schemas.read(storage))


def stores_at(storage: Storage, batch: int) -> tuple[StoreSchema, ...]:
    """Read the stores with the value schemas that were valid at a batch. Raises as `read_binding`."""
    later = {since: values for since, values in later_schemas.read(storage).items() if since <= batch}
    return _evolved(parse_binding(storage.read(names.BINDING)), later)[0].stores


def _evolved(binding: Binding, later: LaterSchemas) -> tuple[Binding, OlderSchemas]:
    """Apply the later value schemas to the binding. Return it with the older schemas."""
    previous: dict[int, dict[str, str]] = {}
    for batch, values in later.items():
        before = {store.name: store.value_json for store in binding.stores}
        if not values.keys() <= before.keys():
            raise CorruptFile(
                "names a store that is not in the binding; the root cannot be opened",
                path=names.later_schema(batch),
                hint=RESTORE,
            )
        after = {name: schema.value_json for name, schema in values.items()}
        previous[batch] = {name: before[name] for name, value in after.items() if before[name] != value}
        binding = replace(
            binding, stores=tuple(replace(s, value_json=after.get(s.name, s.value_json)) for s in binding.stores)
        )
    return binding, previous


class _WrittenStore(Record, omit_defaults=True):
    """A `StoreSchema` in the file."""

    name: str
    key_json: str = field(name="key")
    value_json: str = field(name="value")
    prefix_columns: _PrefixColumns = field(name="prefixColumns", default=prefix_columns.OF_STATE)


class _WrittenClaim(Record):
    """A `Claim` in the file."""

    at_seconds: UnixSeconds = field(name="at")
    by: str
    former: str


class _Written(Record, omit_defaults=True):
    """A `Binding` in the file."""

    root_id: str = field(name="root")
    query_id: str = field(name="query")
    partitions: PartitionCount
    key_groups: int = field(name="keyGroups")
    stores: tuple[_WrittenStore, ...]
    claim: _WrittenClaim | None = None
    former_ids: tuple[str, ...] = field(name="formerQueries", default=())
    initial: bool = False
    evolution: str = ""
    inputs: tuple[str, ...] = ()
    ticks: bool = False


def encode_binding(binding: Binding) -> bytes:
    """Encode `binding.json`."""
    written = json_records.as_json(json_records.recast(_Written, binding))
    return json_records.encoded({"format": _FORMAT, **written}, indent=1)


def parse_binding(data: bytes) -> Binding:
    """Parse `binding.json`, without later schemas. Raises `CorruptFile`, `UnknownFormatVersion`."""
    json_records.require_format(data, names.BINDING, _ABOUT, [_FORMAT])
    binding = json_records.recast(Binding, json_records.decoded(_Written, data, names.BINDING, _ABOUT))
    claim = binding.claim
    if claim is None or binding.former_ids or claim.former == binding.query_id:
        return binding
    # Files of earlier releases have only the former id of the claim.
    return replace(binding, former_ids=(claim.former,))


def rows_at(storage: Storage, batch: int, paths: Collection[str]) -> Mapping[str, bytes]:
    """Return the state schemas that a later batch has extended, by path, with their bytes as of `batch`.

    `paths`: those of the root. Requests: the binding, the later schemas, and one for each store. Raises `CorruptFile`,
    `ObjectMissing`, `StorageError`.
    """
    found: dict[str, bytes] = {}
    for operator, store in enumerate(stores_at(storage, batch)):
        path = names.state_schema(operator)
        body = operators.encode_schema(store.key_json, store.value_json)
        if path in paths and storage.read(path) != body:
            found[path] = body
    return found
