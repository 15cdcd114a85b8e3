"""State roots for benchmarks of maintenance, written without Spark."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.format import logs, names, operators
from statekeeper.statestore.format.changelog import ChangelogWriter
from statekeeper.statestore.format.changelog_header import Header
from statekeeper.statestore.format.key_groups import KeyGroups
from statekeeper.statestore.format.murmur3 import partitions_of, row_hashes
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_rows import encode_keys, encode_values, key_schema
from statekeeper.statestore.format.types import spark_schema_json
from statekeeper.statestore.root import binding
from statekeeper.statestore.root.columns import StoreSchema
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage

GROUPS = 128
_PIECE_KEYS = 200_000

_KEY = pa.schema([("key", pa.int64())])
_VALUE = pa.schema([("count", pa.int64()), ("mean", pa.float64())])
_SCHEMA = StoreSchema("default", spark_schema_json(key_schema(_KEY)), spark_schema_json(_VALUE))

Changes = tuple[pa.LargeBinaryArray, pa.LargeBinaryArray]


def state_keys(numbers: np.ndarray, groups: int = GROUPS) -> pa.LargeBinaryArray:
    """Return state keys in the order in which a task gets them after Spark's sort."""
    of_keys = _groups(numbers, groups)
    order = np.argsort(of_keys, kind="stable")
    return encode_keys(of_keys[order], pa.table({"key": numbers[order]}))


def state_values(random: np.random.Generator, count: int) -> pa.LargeBinaryArray:
    """Return random states of a count and a mean."""
    return encode_values(pa.table({"count": random.integers(0, 1_000_000, count), "mean": random.random(count)}))


def changes(random: np.random.Generator, numbers: np.ndarray, groups: int = GROUPS) -> Iterable[Changes]:
    """Yield new states for these keys, in pieces."""
    for first in range(0, len(numbers), _PIECE_KEYS):
        some = numbers[first : first + _PIECE_KEYS]
        yield state_keys(some, groups), state_values(random, len(some))


class StateRoot:
    """One operator with `stores` stores, in a new folder."""

    def __init__(self, folder: Path, stores: int) -> None:
        self.folder = folder
        self.storage: Storage = open_storage(StorageSpec(str(folder)))
        self.stores = [StorePath(0, partition) for partition in range(stores)]
        self.lineages: list[list[VersionId]] = [[] for _ in self.stores]
        self._ids = RandomIds()
        self.storage.create(names.BINDING, b"{}")
        self.storage.create(names.QUERY_METADATA, logs.encode_metadata("a query"))
        info = operators.StoreInfo(name=names.DEFAULT_STORE, prefix_columns=1, partitions=stores)
        operator = operators.OperatorMetadata(0, "counting", (info,))
        self.storage.create(names.operator_metadata(0), operators.encode_operator(operator))
        self._batches = 0

    @property
    def heads(self) -> list[VersionId]:
        """The newest version of each store."""
        return [lineage[-1] for lineage in self.lineages]

    def commit(self, of_stores: Sequence[Iterable[Changes]]) -> None:
        """Commit one batch: a changelog for each store, then the commit log entry."""
        for store, lineage, pieces in zip(self.stores, self.lineages, of_stores, strict=True):
            version = VersionId(self._batches + 1, self._ids.fresh())
            sink = io.BytesIO()
            writer = ChangelogWriter(sink, Header(tuple(lineage)))
            for keys, values in pieces:
                writer.append(keys, values)
            writer.finish()
            self.storage.create(store.changelog(version), sink.getvalue())
            lineage.append(version)
        ids = tuple((str(head.id),) for head in self.heads)
        self.storage.create(names.commits(self._batches), logs.encode_commit(logs.CommitLog(0, {0: ids})))
        self._batches += 1

    def snapshots_are_known(self) -> None:
        """Start the lineages at the snapshots that every head has."""
        self.lineages = [lineage[-1:] for lineage in self.lineages]


def job_root(folder: Path, rows: int, stores: int, groups: int = GROUPS) -> StateRoot:
    """Make a root of a Python job after batch 0, whose stores have one changelog each. Its keys are `range(rows)`."""
    root = StateRoot(folder, stores)
    bound = binding.Binding(
        root_id="a query", query_id="a query", partitions=stores, key_groups=groups, stores=(_SCHEMA,)
    )
    root.storage.replace(names.BINDING, binding.encode_binding(bound))
    root.storage.create(names.state_schema(0), operators.encode_schema(_SCHEMA.key_json, _SCHEMA.value_json))
    conf = {**logs.STATE_CONF, "spark.sql.shuffle.partitions": str(stores)}
    log = logs.OffsetLog(watermark_ms=0, timestamp_ms=0, conf=conf, sources=('"a source"',))
    root.storage.create(names.offsets(0), logs.encode_offsets(log))
    random, numbers = np.random.default_rng(7), np.arange(rows)
    places = KeyGroups(groups).partitions_of(_groups(numbers, groups).astype(np.int64), stores)
    root.commit([changes(random, numbers[places == store], groups) for store in range(stores)])
    return root


def _groups(numbers: np.ndarray, groups: int) -> np.ndarray:
    return partitions_of(row_hashes(pa.table({"key": numbers}, schema=_KEY)), groups)
