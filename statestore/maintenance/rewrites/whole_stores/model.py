"""The types of a rewrite of native state: facts, groups of stores, and the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind, Schemas
from statekeeper.statestore.contents.rows import Layout
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.hdfs_backed import DEFAULT_CODEC
from statekeeper.statestore.format.key_groups import KeyGroups
from statekeeper.statestore.format.logs import CODEC
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.partition_keys import PartitionColumns, PartitionRule
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.row_encodings import RowEncoding, Rows
from statekeeper.statestore.format.state_conf import OURS, StateConf
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.savepoints.saved import Saved, SavedTable
from statekeeper.statestore.maintenance.rewrites.engine.model import Plan, StoppedQuery, StoppedStore
from statekeeper.statestore.maintenance.rewrites.evolution import Evolve
from statekeeper.statestore.maintenance.rewrites.whole_stores.file_sink import FileSinkPlan
from statekeeper.statestore.root.columns import StoreSchema
from statekeeper.statestore.storage import Storage

Partitions = npt.NDArray[np.int32]
"""The partition of each row."""

Rules = Mapping[str | None, PartitionRule] | KeyGroups
"""How the rows of a store are partitioned: by the name of their column family, None without families; by key groups in an
own root."""


@dataclass(frozen=True)
class Rescale:
    """The goal of another number of partitions."""

    partitions: int


@dataclass(frozen=True)
class Convert:
    """The goal of another state store provider. `structure`: of the versions afterwards."""

    provider: Provider
    structure: Structure = Structure.V1


@dataclass(frozen=True)
class Load:
    """The goal of the rows of a savepoint as the state. `storage`: the savepoint; `replaces_state`: also if the checkpoint
    has rows."""

    saved: Saved
    storage: Storage
    replaces_state: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments of the command that state this goal."""
        return (self.saved.url, *(("--replace-state",) if self.replaces_state else ()))

    @property
    def digest(self) -> str:
        """The digest of the rows that the options name."""
        return self.saved.identity


Goal = Rescale | Convert | Load | Evolve
"""The goal of a rewrite."""


class Conversion(Protocol):
    """The re-encoding of the rows of a store."""

    def converted(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Encode present rows as the new ones."""

    def of_source(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Return what present rows and their new rows have in common."""

    def of_target(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Return the same of new rows: the digests are compared."""


@dataclass(frozen=True)
class ByFamily:
    """The conversions of the column families of a store, by name; None if the rows keep their bytes. A family that is not
    here is dropped: its rows become no rows."""

    families: Mapping[str, Conversion | None]


@dataclass(frozen=True)
class ProviderConversion:
    """The re-encoding of the rows of a store for another provider."""

    encoding: RowEncoding
    to: Provider

    def converted(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Encode rows of the present provider for the other one."""
        return self.encoding.encoded(keys, values) if self.to is Provider.ROCKSDB else self.encoding.bare(keys, values)

    def of_source(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Return present rows without the encoding of RocksDB."""
        return (keys, values) if self.to is Provider.ROCKSDB else self.encoding.bare(keys, values)

    def of_target(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Rows:
        """Return new rows without the encoding of RocksDB."""
        return self.encoding.bare(keys, values) if self.to is Provider.ROCKSDB else (keys, values)


@dataclass(frozen=True, kw_only=True)
class OperatorFacts:
    """One operator: the names of its stores, and its number of partitions.

    rules      by store, how its rows are partitioned, or why that is unknown
    encodings  by store, how RocksDB encodes its rows, or why only one provider can hold them
    layouts    by store, the layout of its rows, or why it cannot be read
    """

    operator: int
    name: str
    stores: tuple[str, ...]
    partitions: int
    rules: Mapping[str, Rules | StatekeeperError]
    encodings: Mapping[str, RowEncoding | StatekeeperError]
    layouts: Mapping[str, Layout | StatekeeperError] = field(default_factory=dict)

    @property
    def is_lone(self) -> bool:
        """Whether it has one partition whatever the number of the query: a limit, or an aggregation over all rows."""
        rules = [
            rule for of_store in self.rules.values() if isinstance(of_store, Mapping) for rule in of_store.values()
        ]
        return bool(rules) and all(rule.columns is PartitionColumns.NONE for rule in rules)


@dataclass(frozen=True, kw_only=True)
class RewriteFacts:
    """The facts about a checkpoint whose state is to be rewritten.

    stopped      the facts that every rewrite of a stopped query needs
    offsets      the newest offset log, as text
    key_groups   of an own root; None for a native checkpoint
    filled       a store that may have rows, and the reason; None if all stores are empty
    free_at_root free bytes where the checkpoint is; None if unlimited
    schemas      of an own root: its stores, with the value schemas before a half-done schema evolution
    is_appended  an interrupted rewrite has committed its batch, and only its end is missing; no fact about stores is
                 gathered then
    """

    stopped: StoppedQuery
    operators: tuple[OperatorFacts, ...] = ()
    offsets: str = ""
    key_groups: int | None = None
    filled: str | None = None
    free_at_root: int | None = None
    schemas: tuple[StoreSchema, ...] = ()
    is_appended: bool = False


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """The rows of a savepoint's table that become rows of a store.

    layout      of the rows in the store
    rule        how rows of a native checkpoint are partitioned; None for an own root
    key_groups  of an own root
    """

    table: SavedTable
    layout: Family
    rule: PartitionRule | None = None
    key_groups: KeyGroups | None = None


@dataclass(frozen=True, kw_only=True)
class StoreGroup:
    """The stores of one name of one operator, whose rows are distributed anew.

    sources   the present partitions
    targets   the partitions afterwards
    rules       how rows are partitioned; None if each source becomes the target with its number
    conversion  the re-encoding of rows; None if they keep their bytes
    incoming    of a load: the tables whose rows replace those of the sources
    """

    operator: int
    name: str
    sources: tuple[StoppedStore, ...]
    targets: tuple[StorePath, ...]
    rules: Rules | None = None
    conversion: Conversion | ByFamily | None = None
    incoming: tuple[Incoming, ...] = ()

    @property
    def incoming_rows(self) -> int:
        """The rows to load."""
        return sum(one.table.rows for one in self.incoming)

    @property
    def read_bytes(self) -> int:
        """Bytes to download."""
        if self.incoming:
            return sum(one.table.file_bytes for one in self.incoming)
        return sum(one.base_bytes + one.tail_bytes for one in self.sources)


@dataclass(frozen=True, kw_only=True)
class RewritePlan(Plan):
    """The steps of a rewrite, in order. Native: make the snapshots of all groups at the version after the head, then append
    one batch without rows to the logs. Own root: make the snapshots at the head, then rewrite the newest commit.

    batch        the newest committed batch; the rewrite of a native checkpoint appends batch + 1
    partitions   the number of partitions afterwards
    provider     the state store provider afterwards
    structure    the structure of the new versions
    offsets      the newest offset log, as text
    load         the savepoint of a load; None for other rewrites
    file_sink    the entry to add to the log of a file sink, after the batch is appended; None without such a sink
    evolve       of a schema evolution: its goal
    schemas      of a schema evolution: the changed value schemas
    heads        of a schema evolution: the head of every store; those without a group keep it
    source       of a migration: the checkpoint whose rows are read; None for others, which read their own
    conf_after   of a migration: how the new rows are encoded; None if as the present ones
    """

    partitions: int | None
    provider: Provider
    structure: Structure
    groups: tuple[StoreGroup, ...] = ()
    offsets: str = ""
    conf: StateConf = OURS
    load: Load | None = None
    file_sink: FileSinkPlan | None = None
    evolve: Evolve | None = None
    schemas: Schemas = field(default_factory=dict)
    heads: Mapping[StorePath, VersionId] = field(default_factory=dict)
    source: Storage | None = None
    conf_after: StateConf | None = None

    @property
    def codec(self) -> str:
        """The codec of the query's files, by its name in the offset log."""
        return logs.parse_offsets(self.offsets.encode(), names.offsets(self.batch or 0)).conf.get(CODEC, DEFAULT_CODEC)

    @property
    def rows(self) -> int:
        """The rows to load."""
        return sum(group.incoming_rows for group in self.groups)

    @property
    def version(self) -> int:
        """The number of the new version of every store."""
        assert self.batch is not None
        replaces_head = self.origin is Origin.OWN or self.rewrite is RewriteKind.MIGRATE
        return self.batch + (1 if replaces_head else 2)

    @property
    def targets(self) -> tuple[StorePath, ...]:
        """The stores of the new version."""
        return tuple(target for group in self.groups for target in group.targets)

    @property
    def read_bytes(self) -> int:
        """Bytes to download for all groups."""
        return sum(group.read_bytes for group in self.groups)


def new_versions(planned: RewritePlan, fresh: Callable[[], str]) -> Mapping[StorePath, VersionId]:
    """Name the new version of each store. `fresh` gives a checkpoint id."""
    is_v2 = planned.structure is Structure.V2
    made = {target: VersionId(planned.version, fresh() if is_v2 else None) for target in planned.targets}
    return {**planned.heads, **made}
