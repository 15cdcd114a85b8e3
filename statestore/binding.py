"""What a state root was made for: its query, its partitions, its schemas; and how a declaration is compared with that.

_statekeeper/binding.json           written once, never changed
_statekeeper/schemas/<batch>.json   the value schemas from that batch on, when columns were added at the end
"""

from __future__ import annotations

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
from statestore.storage import Storage, read_or_none

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


def bind(storage: Storage, wanted: Binding, *, batch: int, ids: Ids) -> tuple[Binding, OlderSchemas]:
    """The binding of the root at `storage`; made from `wanted` when there is none and `batch` is 0.

    The root's own partitions, key groups and id win over the wanted ones. Columns that `wanted` adds are recorded as
    beginning with `batch`. Raises `RootLost`, `ForeignRoot`, `SchemaMismatch`.
    """
    held = read_or_none(storage, names.BINDING)
    if held is None:
        if batch > 0:
            raise RootLost(
                f"the query is at batch {batch}, and there is no state root",
                path=storage.url,
                hint="restore the root, or start over with a new checkpoint and a new root",
            )
        held = _encode_binding(replace(wanted, root_id=ids.fresh()))
        try:
            storage.create(names.BINDING, held)
        except AlreadyExists:
            held = storage.read(names.BINDING)
    binding = _parse_binding(held)
    if binding.query_id != wanted.query_id:
        raise ForeignRoot(
            f"this root belongs to query {binding.query_id}, not to {wanted.query_id}",
            path=storage.url,
            hint="was the query's checkpoint deleted? restore it, or give the new query a root of its own",
        )
    binding, older = _evolved(binding, _later_schemas(storage))
    return _reconciled(storage, binding, wanted, older, batch)


def _reconciled(
    storage: Storage, binding: Binding, wanted: Binding, previous: OlderSchemas, batch: int
) -> tuple[Binding, OlderSchemas]:
    """Compare what the root holds with what the job declares; record columns added at the end."""
    held, asked = [s.name for s in binding.stores], [s.name for s in wanted.stores]
    if held != asked:
        raise SchemaMismatch(f"the root has the stores {held}, the job declares {asked}", path=storage.url)
    older: dict[str, str] = {}
    for mine, theirs in zip(binding.stores, wanted.stores, strict=True):
        _compare(storage.url, mine.name, "key", mine.key_json, theirs.key_json, may_grow=False)
        if _compare(storage.url, mine.name, "value", mine.value_json, theirs.value_json, may_grow=True):
            older[mine.name] = mine.value_json
    if not older:
        return binding, previous
    stores = {theirs.name: theirs.value_json for theirs in wanted.stores}
    storage.create(names.later_schema(batch), json.dumps(stores, sort_keys=True).encode())
    return replace(binding, stores=wanted.stores), {**previous, batch: older}


def _compare(url: str, store: str, part: str, held_json: str, asked_json: str, *, may_grow: bool) -> bool:
    """Whether `asked` only adds nullable columns at the end. Raises `SchemaMismatch` with the first difference."""
    held, asked = json.loads(held_json)["fields"], json.loads(asked_json)["fields"]
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
    return len(asked) > len(held)


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
        previous[batch] = {name: before[name] for name, value in values.items() if before[name] != value}
        binding = replace(
            binding, stores=tuple(replace(s, value_json=values.get(s.name, s.value_json)) for s in binding.stores)
        )
    return binding, previous


def _encode_binding(binding: Binding) -> bytes:
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
        return Binding(str(body["root"]), str(body["query"]), int(body["partitions"]), int(body["keyGroups"]), stores)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile("lacks what a binding holds", path=names.BINDING) from error
