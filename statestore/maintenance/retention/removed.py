"""Partitions that a rescale removed: finds their stores, and gives their files rules. Pure.

A retained batch before the rescale still has the partitions. When the floor has passed the rescale, no retained version
needs their files: the commits from the floor on do not name the stores, and no file of theirs has a version from the floor
on. Otherwise all of their files are kept. They are also kept until each store has a snapshot after that of the rescale: if
that of the rescale were lost, the versions after it could be restored from the second one.

A partition that the query still has commits a version with each batch, so it always has a file of the head. This protects
it if the number of partitions was read from damaged metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from statekeeper.statestore.catalog import StoreFiles
from statekeeper.statestore.commit_log import CommitLog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import EMPTY, StorePath
from statekeeper.statestore.maintenance.retention.facts import RetentionFacts, is_young
from statekeeper.statestore.maintenance.retention.verdicts import RetentionPolicy, Rule, StoreVerdicts, Verdict
from statekeeper.statestore.origin import Origin
from statekeeper.statestore.storage import Entry, MemberEntry


def removed_stores(
    files: Mapping[StorePath, StoreFiles], heads: Collection[StorePath]
) -> Mapping[StorePath, StoreFiles]:
    """Return the stores with files beyond the partitions of their operator. Other stores without a head are unknown."""
    partitions: dict[tuple[int, str], int] = {}
    for store in heads:
        kind = (store.operator, store.store)
        partitions[kind] = max(partitions.get(kind, 0), store.partition + 1)
    return {
        store: found
        for store, found in sorted(files.items())
        if store not in heads and store.partition >= partitions.get((store.operator, store.store), store.partition + 1)
    }


def newest_version(files: StoreFiles) -> int:
    """Return the newest version of which a store has a file; 0 if only tables are left."""
    return max((version.version for version in (*files.changelogs, *files.snapshots)), default=0)


def unnamed_from(log: CommitLog, stores: Collection[StorePath], *, down_to: int) -> Mapping[StorePath, int]:
    """Return the batch from which on every commit is in the log and does not name the store. Raises as `catalog.heads`."""
    found = dict.fromkeys(stores, log.newest.batch + 1)
    unseen = set(stores)
    for batch in range(log.newest.batch, down_to - 1, -1):
        commit = log.at(batch) if unseen else None
        if commit is None:
            break
        unseen -= commit.keys()
        found.update(dict.fromkeys(unseen, batch))
    return found


@dataclass(frozen=True, kw_only=True)
class RemovedPartitions:
    """Gives the files of the removed partitions rules. `has_way_back`: a switchover can still be reversed."""

    gathered: RetentionFacts
    policy: RetentionPolicy
    floor: int | None
    has_way_back: bool

    def verdicts(self) -> tuple[StoreVerdicts, ...]:
        """Return the verdicts on their files. No retained version has a base in them."""
        return tuple(
            StoreVerdicts(store, EMPTY, tuple(sorted(self._verdicts(store), key=lambda verdict: verdict.path)))
            for store in self.gathered.removed
        )

    def rule(self, store: StorePath, entry: Entry) -> Rule:
        """Return the rule of a changelog or a snapshot, also of a changelog in the batch log `entry`."""
        if store not in self.gathered.removed:
            return Rule.HELD
        young = is_young(entry, self.policy.grace_seconds, self.gathered.now_seconds)
        return self._kept(store) or (Rule.YOUNG if young else Rule.REMOVED)

    def _kept(self, store: StorePath) -> Rule | None:
        """Return why the whole store is kept; None if its files are not needed."""
        if self.floor is None:
            return Rule.HELD
        if self.has_way_back:
            return Rule.WAY_BACK
        files = self.gathered.removed[store]
        newest = newest_version(files)
        is_needed = self.gathered.unnamed_from[store] > self.floor - 1 or newest >= self.floor
        # The version of the rescale's own snapshots. The rescale of an own root gives its newest version again.
        rescaled = newest if self.gathered.origin is Origin.OWN else newest + 1
        return None if not is_needed and self._has_snapshots_after(rescaled) else Rule.PARTITION

    def _has_snapshots_after(self, number: int) -> bool:
        """Return whether each store has an intact snapshot of a later version than this one."""
        return all(
            any(version.version > number and facts.is_whole for version, facts in chain.snapshots.items())
            for chain in self.gathered.chains
        )

    def _verdicts(self, store: StorePath) -> Iterator[Verdict]:
        files = self.gathered.removed[store]
        for entry in (*files.changelogs.values(), *files.snapshots.values()):
            if not isinstance(entry, MemberEntry):
                yield Verdict(entry.path, entry.size_bytes, self.rule(store, entry))
        quarantined = self.gathered.quarantine.get(store, {}).values()
        named = {table.dfs_name for metadata in quarantined if metadata is not None for table in metadata.named_files}
        is_unread = store in self.gathered.unseen or any(metadata is None for metadata in quarantined)
        for name, entry in files.tables.items():
            held = Rule.QUARANTINE if name in named else Rule.HELD if is_unread else None
            yield Verdict(entry.path, entry.size_bytes, held or self.rule(store, entry))
        for entry in files.others:
            is_sidecar = entry.path.endswith(names.SIDECAR)
            is_known = is_sidecar and names.parse_store_path(entry.path.removesuffix(names.SIDECAR)) is not None
            yield Verdict(entry.path, entry.size_bytes, self.rule(store, entry) if is_known else Rule.UNKNOWN)
