"""Reads the present partitions of a group of stores into the spool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from statestore.engine.local_copy import LocalCopyFolder
from statestore.engine.rocks import Database, EngineLimits
from statestore.engine.rows_digest import RowsDigest
from statestore.errors import StatekeeperError, UnknownFormatVersion
from statestore.format.family_rows import family_id
from statestore.format.key_groups import KeyGroups
from statestore.format.murmur3 import partitions_of
from statestore.format.names import StorePath
from statestore.format.partition_keys import key_hashes, require_partition
from statestore.format.snapshot import SnapshotMetadata
from statestore.loading.loader import Loader
from statestore.maintenance.pool import in_pool
from statestore.maintenance.rewrites.plans import Partitions, RewritePlan, StoreGroup
from statestore.maintenance.rewrites.spool import Spool
from statestore.maintenance.switchover import Machine, StoreSwitchFacts
from statestore.storage import Storage

BLOCK_BYTES = 4096
"""Spark's block size."""

Piece = tuple[Partitions, Sequence[bytes], Sequence[bytes]]
"""The target of each row, its key and its value."""


@dataclass(frozen=True)
class Source:
    """A partition that was read: the digest of its rows, and the snapshot that names its column families."""

    digest: RowsDigest
    base: SnapshotMetadata | None


def read(
    storage: Storage, planned: RewritePlan, group: StoreGroup, machine: Machine, folder: Path, spool: Spool
) -> Sequence[Source]:
    """Restore each partition below `folder`, and add its rows to the spool.

    Raises `UnknownPartitioning` if a row is not in the partition in which the rule expects it: then the query partitions
    its rows by something else, such as a function of the key. Raises as `Loader.restore`; `UnknownFormatVersion` for a
    column family without a name, `CorruptFile`.
    """
    found: list[Source] = []
    failed: list[StatekeeperError] = []

    def work(fact: StoreSwitchFacts) -> Source:
        limits = EngineLimits(block_bytes=BLOCK_BYTES, replay_bytes=machine.memory_bytes // (2 * machine.workers))
        place = folder / f"source-{fact.store.partition}"
        cache = LocalCopyFolder(place / "store", limits, machine.ids)
        loader = Loader(
            fact.store, storage, cache, limits, clock=machine.clock, lock_timeout_seconds=0, conf=planned.conf
        )
        restored = loader.restore(fact.head, place / "database")
        with restored.database as database:
            source = Source(RowsDigest(), restored.base)
            spool.add(_pieces(database, group, source, fact.store))
            return source

    def ended(fact: StoreSwitchFacts, outcome: Source | StatekeeperError) -> None:
        del fact
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
        else:
            found.append(outcome)

    in_pool(work, group.sources, ended, workers=max(1, min(machine.workers, len(group.sources))))
    if failed:
        raise failed[0]
    return found


def _pieces(database: Database, group: StoreGroup, source: Source, store: StorePath) -> Iterator[Piece]:
    """Find the target of each row, and convert it. A piece has rows of one column family."""
    names = {} if source.base is None else {number: name for name, number in source.base.column_families.items()}
    for all_keys, all_values in database.scan():
        begin = 0
        while begin < len(all_keys):
            end, family = len(all_keys), None
            if names:
                number = family_id(all_keys[begin])
                end = next((at for at in range(begin, end) if family_id(all_keys[at]) != number), end)
                family = names.get(number)
                _require_family(number, family, group, store)
            keys, values = all_keys[begin:end], all_values[begin:end]
            targets = _targets(keys, family, group, store)
            if group.conversion is None:
                source.digest.add(zip(keys, values, strict=True))
                yield targets, keys, values
            else:
                source.digest.add(zip(*group.conversion.of_source(keys, values), strict=True))
                yield targets, *group.conversion.converted(keys, values)
            begin = end


def _targets(keys: Sequence[bytes], family: str | None, group: StoreGroup, store: StorePath) -> Partitions:
    if group.rules is None:
        return np.full(len(keys), store.partition, np.int32)
    if isinstance(group.rules, KeyGroups):
        return group.rules.moved(keys, store, len(group.sources), len(group.targets))
    rule = replace(group.rules[family], store=store)
    hashes = key_hashes(keys, rule)
    require_partition(hashes, rule, len(group.sources))
    return partitions_of(hashes, len(group.targets))


def _require_family(number: int, family: str | None, group: StoreGroup, store: StorePath) -> None:
    if family is None or (isinstance(group.rules, Mapping) and family not in group.rules):
        raise UnknownFormatVersion(
            f"has rows of a column family with the id {number}, which the snapshot or the schema does not name; the rows "
            f"cannot be moved",
            path=str(store),
            hint="restore the snapshot and the schema that Spark wrote when the family was added",
        )
