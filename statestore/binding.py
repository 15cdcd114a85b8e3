"""What a state root was made for: its query, its partitions, its schemas; and how a declaration is compared with that.

_statekeeper/binding.json           written once, never changed
_statekeeper/schemas/<batch>.json   the value schemas from that batch on, when columns were added at the end
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from statestore.clock import Ids
from statestore.errors import (
    AlreadyExists,
    CorruptFile,
    ForeignRoot,
    RootLost,
    SchemaMismatch,
    UnknownFormatVersion,
)
from statestore.format import names
from statestore.format.json_object import json_object
from statestore.format.untrusted import BAD_VALUES, parsed_json, partition_count
from statestore.storage import Storage, read_or_none
from statestore.storage.exclusive import require_exclusive_create

_FORMAT = 1

OlderSchemas = Mapping[int, Mapping[str, str]]
"""By the batch that changed them: the value schemas (store name -> Spark's JSON) that held before it."""


@dataclass(frozen=True)
class StoreSchema:
    """One named store: Spark's JSON of its key (with the key group in front) and value schemas.

    Its operator id is its place in the binding: Spark resolves V2 ids for the store `default` of an operator only.
    """

    name: str
    key_json: str
    value_json: str


@dataclass(frozen=True)
class Binding:
    """What a root was made for and can never change, but for columns added to a value at the end."""

    root_id: str
    query_id: str
    partitions: int
    key_groups: int
    stores: tuple[StoreSchema, ...]


@dataclass(frozen=True)
class Bound:
    """A root's binding with its newest value schemas, and what it was before.

    `wanted_stores`: the schemas that the job declares; they differ from the binding's only by columns added at the end,
    which the next batch that is computed brings in.
    """

    binding: Binding
    older: OlderSchemas
    wanted_stores: tuple[StoreSchema, ...]

    def grown(self, storage: Storage, batch: int) -> Bound:
        """Record that the state has the wanted columns from `batch` on; unchanged when it has them already.

        Only for a batch that is about to be computed: one that the sink holds was computed with the older schema.
        Raises `SchemaMismatch` when the batch was begun with another change.
        """
        if self.binding.stores == self.wanted_stores:
            return self
        values = {store.name: store.value_json for store in self.wanted_stores}
        try:
            storage.create(names.later_schema(batch), json.dumps(values, sort_keys=True).encode())
        except AlreadyExists as error:
            raise SchemaMismatch(
                f"batch {batch} changes the schema already, to another one than the job declares",
                path=names.later_schema(batch),
                hint="run that batch with the schema it was started with, then add the next column",
            ) from error
        binding, older = _evolved(self.binding, {batch: values})
        return Bound(binding, {**self.older, **older}, self.wanted_stores)


def schema_digest(stores: tuple[StoreSchema, ...]) -> str:
    """A text that differs when a schema differs."""
    body = json.dumps([[store.name, store.key_json, store.value_json] for store in stores])
    return hashlib.sha256(body.encode()).hexdigest()


def bind(storage: Storage, wanted: Binding, *, batch: int, ids: Ids) -> Bound:
    """The binding of the root at `storage`; made from `wanted` when there is none and `batch` is 0.

    The root's own partitions, key groups and id win over the wanted ones.
    Raises `RootLost`, `ForeignRoot`, `SchemaMismatch`, and `NoExclusiveCreate` for a new root.
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
    return _bound(storage, held, wanted)


def require_bindable(storage: Storage, wanted: Binding, *, batch: int) -> None:
    """Raises what `bind` would raise, and writes nothing."""
    held = read_or_none(storage, names.BINDING)
    if held is not None:
        _bound(storage, held, wanted)
    elif batch > 0:
        raise _no_root(storage.url, batch)


def _no_root(url: str, batch: int) -> RootLost:
    return RootLost(
        f"the query is at batch {batch}, and there is no state root",
        path=url,
        hint="restore the root, or start over with a new checkpoint and a new root",
    )


def _bound(storage: Storage, held: bytes, wanted: Binding) -> Bound:
    binding = _parse_binding(held)
    if binding.query_id != wanted.query_id:
        raise ForeignRoot(
            f"this root belongs to query {binding.query_id}, not to {wanted.query_id}",
            path=storage.url,
            hint="was the query's checkpoint deleted? restore it, or give the new query a root of its own",
        )
    binding, older = _evolved(binding, _later_schemas(storage))
    _require_growth_only(storage.url, binding.stores, wanted.stores)
    return Bound(binding, older, wanted.stores)


def read_binding(storage: Storage) -> tuple[Binding, OlderSchemas]:
    """The binding as it stands, with the newest value schemas, and those that held before.

    Raises `ObjectMissing`, `CorruptFile`, `UnknownFormatVersion`.
    """
    return _evolved(_parse_binding(storage.read(names.BINDING)), _later_schemas(storage))


def _require_growth_only(url: str, held: tuple[StoreSchema, ...], asked: tuple[StoreSchema, ...]) -> None:
    if [store.name for store in held] != [store.name for store in asked]:
        raise SchemaMismatch(
            f"the root has the stores {[s.name for s in held]}, the job declares {[s.name for s in asked]}",
            path=url,
            hint="declare the stores that the root has, in its order, or start a new root",
        )
    for mine, theirs in zip(held, asked, strict=True):
        _compare(url, mine.name, "key", mine.key_json, theirs.key_json, may_grow=False)
        _compare(url, mine.name, "value", mine.value_json, theirs.value_json, may_grow=True)


def _compare(url: str, store: str, part: str, held_json: str, asked_json: str, *, may_grow: bool) -> None:
    """Raises `SchemaMismatch` with the first difference that is not a nullable column added at the end."""
    asked = json.loads(asked_json)["fields"]
    try:
        held = [{"name": f["name"], "type": f["type"], "nullable": f["nullable"], **f} for f in _fields_of(held_json)]
    except BAD_VALUES as error:
        raise CorruptFile(f"the {part} schema of store {store!r} is no schema", path=names.BINDING) from error
    for place in range(max(len(held), len(asked))):
        mine = held[place] if place < len(held) else None
        theirs = asked[place] if place < len(asked) else None
        grows = mine is None and may_grow and theirs is not None and theirs["nullable"]
        if mine != theirs and not grows:
            raise SchemaMismatch(
                f"store {store!r}, {part} column {place}: "
                f"the root has {_column(mine)}, the job declares {_column(theirs)}",
                path=url,
                hint="declare it as the root has it; only nullable value columns at the end can be added",
            )


def _fields_of(schema_json: str) -> list[dict[str, Any]]:
    return list(parsed_json(schema_json)["fields"])


def _column(column: dict[str, Any] | None) -> str:
    if column is None:
        return "none"
    kind = column["type"] if isinstance(column["type"], str) else json.dumps(column["type"])
    return f"{column['name']}: {kind}{'' if column['nullable'] else ' not null'}"


def _later_schemas(storage: Storage) -> Mapping[int, dict[str, str]]:
    found = {}
    for entry in storage.list(names.SCHEMAS):
        batch = names.parse_batch(entry.path.rpartition("/")[2].removesuffix(".json"))
        if batch is not None:
            found[batch] = {str(k): str(v) for k, v in json_object(storage.read(entry.path), entry.path).items()}
    return dict(sorted(found.items()))


def _evolved(binding: Binding, later: Mapping[int, dict[str, str]]) -> tuple[Binding, OlderSchemas]:
    """The binding with its newest value schemas, and by batch the value schemas that held before it."""
    previous: dict[int, dict[str, str]] = {}
    for batch, values in later.items():
        before = {store.name: store.value_json for store in binding.stores}
        if not values.keys() <= before.keys():
            raise CorruptFile("names a store that the binding does not have", path=names.later_schema(batch))
        previous[batch] = {name: before[name] for name, value in values.items() if before[name] != value}
        binding = replace(
            binding, stores=tuple(replace(s, value_json=values.get(s.name, s.value_json)) for s in binding.stores)
        )
    return binding, previous


def encode_binding(binding: Binding) -> bytes:
    """The bytes of `binding.json`."""
    body = {
        "format": _FORMAT,
        "root": binding.root_id,
        "query": binding.query_id,
        "partitions": binding.partitions,
        "keyGroups": binding.key_groups,
        "stores": [{"name": s.name, "key": s.key_json, "value": s.value_json} for s in binding.stores],
    }
    return json.dumps(body, indent=1).encode()


def _parse_binding(data: bytes) -> Binding:
    body = json_object(data, names.BINDING)
    if body.get("format") != _FORMAT:
        raise UnknownFormatVersion(f"binding format {body.get('format')!r}: known is {_FORMAT}", path=names.BINDING)
    try:
        stores = tuple(StoreSchema(str(s["name"]), str(s["key"]), str(s["value"])) for s in body["stores"])
        return Binding(
            str(body["root"]), str(body["query"]), partition_count(body["partitions"]), int(body["keyGroups"]), stores
        )
    except BAD_VALUES as error:
        raise CorruptFile("lacks what a binding holds", path=names.BINDING) from error
