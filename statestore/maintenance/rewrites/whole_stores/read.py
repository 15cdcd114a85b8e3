"""Reads the present partitions of a group of stores into the spool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import UnknownFormatVersion
from statekeeper.statestore.base.workers import Caller, results_in_pool
from statekeeper.statestore.format.family_rows import family_id
from statekeeper.statestore.format.key_groups import KeyGroups
from statekeeper.statestore.format.murmur3 import partitions_of
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.partition_keys import key_hashes, require_partition
from statekeeper.statestore.format.snapshot import SnapshotMetadata
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.maintenance.rewrites.engine.model import Machine, StoppedStore
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import (
    ByFamily,
    Conversion,
    Partitions,
    RewritePlan,
    Rules,
    StoreGroup,
)
from statekeeper.statestore.maintenance.rewrites.whole_stores.spool import Part, Piece, Spool
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import Database, EngineLimits
from statekeeper.statestore.store.engine.rows_digest import RowsDigest
from statekeeper.statestore.store.loading.loaded import Restored
from statekeeper.statestore.store.loading.loader import Loader

BLOCK_BYTES = 4096
"""Spark's block size."""


@dataclass(frozen=True, kw_only=True)
class ClosedDatabase:
    """A database that no process has open. `merge_delimiter`: if its tables may have merges that are not applied yet; see
    `Database.open_with_merges`."""

    path: Path
    limits: EngineLimits
    merge_delimiter: bytes | None = None

    def open(self) -> Database:
        """Open it for writing. Raises `LocalStateError`."""
        if self.merge_delimiter is None:
            return Database.open_for_writing(self.path, self.limits)
        return Database.open_with_merges(self.path, self.limits, self.merge_delimiter)

    def digest(self) -> str:
        """Open it, and compute a digest of its rows. Raises `LocalStateError`."""
        with self.open() as database:
            return database.digest()


@dataclass(frozen=True)
class Source:
    """A partition that was read: the digest of its rows, and the snapshot that names its column families."""

    digest: RowsDigest
    base: SnapshotMetadata | None


@dataclass(frozen=True)
class Moves:
    """Where the rows of a group go, and how: see `StoreGroup`. `sources`, `targets`: numbers of partitions."""

    rules: Rules | None
    sources: int
    targets: int
    conversion: Conversion | ByFamily | None

    @classmethod
    def of(cls, group: StoreGroup) -> Moves:
        """Return the moves of a group."""
        return cls(group.rules, len(group.sources), len(group.targets), group.conversion)


def read(
    storage: Storage,
    planned: RewritePlan,
    group: StoreGroup,
    machine: Machine,
    folder: Path,
    spool: Spool,
    call: Caller,
) -> Sequence[Source]:
    """Restore each partition below `folder`, and add its rows to the spool. `call`: runs what needs local files only.

    Raises `UnknownPartitioning` if a row is not in the partition in which the rule expects it: then the query partitions
    its rows by something else, such as a function of the key. Raises as `Loader.restore`; `UnknownFormatVersion` for a
    column family without a name, `CorruptFile`.
    """
    moves, share_bytes = Moves.of(group), machine.memory_bytes // machine.workers

    def work(fact: StoppedStore) -> Source:
        place, limits = folder / f"source-{fact.store.partition}", _limits(share_bytes)
        restored = _restored(storage, fact, place, planned.conf, limits, machine.clock, machine.ids)
        families = {} if restored.base is None else restored.base.column_families
        with restored.database as database, spool.lend() as part:
            if call.is_here:
                return Source(_spooled(lambda: nullcontext(database), part, moves, families, fact.store), restored.base)
            database.close()
            delimiter = planned.conf.merge_delimiter if families else None
            closed = ClosedDatabase(path=database.path, limits=limits, merge_delimiter=delimiter)
            return Source(call(_spooled, closed.open, part, moves, families, fact.store), restored.base)

    return results_in_pool(work, group.sources, workers=machine.workers, interrupt=call.end)


def read_one(
    storage: Storage,
    fact: StoppedStore,
    moves: Moves,
    part: Part,
    folder: Path,
    *,
    conf: StateConf,
    share_bytes: int,
    clock: Clock,
    ids: Ids,
) -> Source:
    """Restore one partition below `folder`, and add its rows to a part of a spool. `share_bytes`: the memory for it.
    Raises as `read`."""
    restored = _restored(storage, fact, folder, conf, _limits(share_bytes), clock, ids)
    families = {} if restored.base is None else restored.base.column_families
    with restored.database as database:
        return Source(_spooled(lambda: nullcontext(database), part, moves, families, fact.store), restored.base)


def _limits(share_bytes: int) -> EngineLimits:
    return EngineLimits(block_bytes=BLOCK_BYTES, replay_bytes=share_bytes // 2)


def _restored(
    storage: Storage, fact: StoppedStore, folder: Path, conf: StateConf, limits: EngineLimits, clock: Clock, ids: Ids
) -> Restored:
    cache = LocalCopyFolder(folder / "store", limits, ids)
    loader = Loader(fact.store, storage, cache, limits, clock=clock, lock_timeout_seconds=0, conf=conf)
    return loader.restore(fact.head, folder / "database")


def _spooled(
    opened: Callable[[], AbstractContextManager[Database]],
    part: Part,
    moves: Moves,
    families: Mapping[str, int],
    store: StorePath,
) -> RowsDigest:
    """Add the rows of a restored partition to the spool, and return their digest. Needs local files only."""
    digest = RowsDigest()
    with opened() as database, part.writing() as rows:
        rows.add(_pieces(database, moves, families, store, digest))
    return digest


def _pieces(
    database: Database, moves: Moves, families: Mapping[str, int], store: StorePath, digest: RowsDigest
) -> Iterator[Piece]:
    """Find the target of each row, and convert it. A piece has rows of one column family."""
    names = {number: name for name, number in families.items()}
    for all_keys, all_values in database.scan():
        begin = 0
        while begin < len(all_keys):
            end, family = len(all_keys), None
            if names:
                number = family_id(all_keys[begin])
                end = next((at for at in range(begin, end) if family_id(all_keys[at]) != number), end)
                family = names.get(number)
                _require_family(number, family, moves, store)
            elif isinstance(moves.conversion, ByFamily):
                _require_family(family_id(all_keys[begin]), None, moves, store)
            keys, values = all_keys[begin:end], all_values[begin:end]
            begin = end
            conversion = moves.conversion
            if isinstance(conversion, ByFamily):
                if family is None or family not in conversion.families:
                    continue
                conversion = conversion.families[family]
            targets = _targets(keys, family, moves, store)
            if conversion is None:
                digest.add(zip(keys, values, strict=True))
                yield targets, keys, values
            else:
                digest.add(zip(*conversion.of_source(keys, values), strict=True))
                yield targets, *conversion.converted(keys, values)


def _targets(keys: Sequence[bytes], family: str | None, moves: Moves, store: StorePath) -> Partitions:
    if moves.rules is None:
        return np.full(len(keys), store.partition, np.int32)
    if isinstance(moves.rules, KeyGroups):
        return moves.rules.moved(keys, store, moves.sources, moves.targets)
    rule = replace(moves.rules[family], store=store)
    hashes = key_hashes(keys, rule)
    require_partition(hashes, rule, moves.sources)
    return partitions_of(hashes, moves.targets)


def _require_family(number: int, family: str | None, moves: Moves, store: StorePath) -> None:
    if family is None or (isinstance(moves.rules, Mapping) and family not in moves.rules):
        raise UnknownFormatVersion(
            f"has rows of a column family with the id {number}, which the snapshot or the schema does not name; the rows "
            f"cannot be moved",
            path=str(store),
            hint="restore the snapshot and the schema that Spark wrote when the family was added",
        )
