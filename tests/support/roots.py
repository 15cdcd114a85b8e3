"""Roots with a schema, and batches that a driver commits to them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pyarrow as pa

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.state_rows import key_schema
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.root.columns import NO_MAPPING, ColumnMapping, StoreSchema
from statekeeper.statestore.root.state_root import Done, Pending, StateRoot
from statekeeper.statestore.storage import Storage

QUERY = "11111111-0000-4000-8000-000000000000"
OTHER_QUERY = "22222222-0000-4000-8000-000000000000"
PARTITIONS = 3
IDS = RandomIds()
KEYS = pa.schema([("tail", pa.string())])
VALUES = pa.schema([("legs", pa.int64()), pa.field("mean", pa.float64(), nullable=False)])
GROWN = VALUES.append(pa.field("worst", pa.float64()))


def store(values: pa.Schema = VALUES, keys: pa.Schema = KEYS, name: str = "default") -> StoreSchema:
    return StoreSchema(name, spark_schema_json(key_schema(keys)), spark_schema_json(values))


def wanted(*stores: StoreSchema, query: str = QUERY, partitions: int = PARTITIONS, key_groups: int = 64) -> Binding:
    return Binding(
        root_id="", query_id=query, partitions=partitions, key_groups=key_groups, stores=stores or (store(),)
    )


def outer(batch: int, source: str = "flights") -> logs.OffsetLog:
    """The streaming query's own log of a batch."""
    return logs.OffsetLog(
        watermark_ms=0,
        timestamp_ms=1_700_000_000_000 + batch,
        conf={"spark.sql.shuffle.partitions": "200"},
        sources=(f'"{source} {batch}"',),
    )


def opened(
    storage: Storage,
    binding: Binding | None = None,
    batch: int = 0,
    structure: Structure = Structure.V2,
    mapping: ColumnMapping = NO_MAPPING,
) -> StateRoot:
    return StateRoot.open(
        storage,
        binding or wanted(),
        batch=batch,
        ids=IDS,
        structure=structure,
        mappings=dict.fromkeys(["default"], mapping),
    )


def fresh_ids(root: StateRoot) -> dict[int, tuple[str, ...]]:
    binding = root.binding
    return {operator: tuple(IDS.fresh() for _ in range(binding.partitions)) for operator in range(len(binding.stores))}


@dataclass
class World:
    """The state that outlives a driver, besides the root: the sink, with one attempt per batch, and each batch's job."""

    sink: dict[int, str] = field(default_factory=dict)
    structure: Structure = Structure.V2

    def run(self, storage: Storage, batch: int) -> StateRoot:
        """A batch as a fresh driver runs it, in the protocol's order. From batch 1 on the state has a column more."""
        root = opened(storage, wanted(store(GROWN if batch else VALUES)), batch, self.structure)
        if isinstance(root.begin(batch, outer(batch)), Done):
            return root
        if batch in self.sink:
            pending = root.pending(batch, self.sink[batch])
            assert pending is not None, "the sink holds an attempt that nobody wrote down"
        else:
            attempt = IDS.fresh()
            root.record_changes(batch)
            pending = Pending(
                batch=batch,
                attempt=attempt,
                root_id=root.binding.root_id,
                query_id=QUERY,
                sources=outer(batch).sources,
                schema=root.schema(),
                ids=fresh_ids(root),
                structure=root.structure,
            )
            root.write_pending(pending)
            self.sink[batch] = attempt
        root.commit(batch, pending.ids)
        return root

    def assert_allowed(self, storage: Storage) -> None:
        """Assert that all files are readable, and that the commit log contains the ids of the attempts in the sink."""
        for entry in storage.list(""):
            read_whole(entry.path, storage.read(entry.path))
        head = catalog.newest_batch(storage)
        for batch in range(0 if head is None else head + 1):
            committed = ids_of(storage, batch)
            of_sink = json.loads(storage.read(names.pending(batch, self.sink[batch])))["ids"]
            assert committed == {int(operator): tuple(ids) for operator, ids in of_sink.items()}


def ids_of(storage: Storage, batch: int) -> dict[int, tuple[str, ...]]:
    path = names.commits(batch)
    log = logs.parse_commit(storage.read(path), path)
    ids = log.ids or log.digests
    assert ids is not None
    return {operator: tuple(of_partition[0] for of_partition in partitions) for operator, partitions in ids.items()}


def read_whole(path: str, data: bytes) -> None:
    """Raises for a file whose content does not match its name."""
    match path.split("/"):
        case ["offsets", _]:
            logs.parse_offsets(data, path)
        case ["commits", _]:
            logs.parse_commit(data, path)
        case [*_, "schema"]:
            operators.parse_schema(data, path)
        case ["state", _, "_metadata", "metadata"]:
            operators.parse_operator(data, path)
        case ["metadata"]:
            logs.parse_metadata(data, path)
        case _:
            assert path.startswith("_statekeeper/"), path
            json.loads(data)
