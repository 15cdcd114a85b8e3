"""Executes a retention plan: verifies the bases again, then deletes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import LeaseLost, ObjectMissing, RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.commit_log import CommitLog
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.chain import StoredSnapshot, look_at_snapshot
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.maintenance.executors import Executor, LocalExecutor
from statekeeper.statestore.maintenance.records import announcements, holds, quarantine
from statekeeper.statestore.maintenance.records.lease import HeldLease
from statekeeper.statestore.maintenance.upkeep import verification
from statekeeper.statestore.maintenance.upkeep.retention import last_pass, uploads
from statekeeper.statestore.maintenance.upkeep.retention.last_pass import LastPass
from statekeeper.statestore.maintenance.upkeep.retention.model import (
    REPLACED,
    RetentionFacts,
    RetentionPlan,
    RetentionPolicy,
    Rule,
    StoreVerdicts,
    Verdict,
    deletion_order,
    is_young,
)
from statekeeper.statestore.maintenance.upkeep.verification import FileRead, Reads, SnapshotRead
from statekeeper.statestore.storage import DELETE_BATCH, Entry, MemberEntry, Storage

if TYPE_CHECKING:
    from statekeeper.statestore.maintenance.upkeep.verification.read_back import ReadBack


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


_DELETED_LATER = (Rule.PARTITION, Rule.YOUNG, Rule.HELD)
"""The rules by which retention keeps the files of a removed partition for a time."""

MayDelete = Callable[[], None]
"""Raises an error if no further file may be deleted."""


class DeletionOutcome(Enum):
    """The outcome of the deletions of one store, or of the logs."""

    DONE = "deleted"
    CHANGED = "skipped: the files of the store changed after the plan was made"
    READ = "the base was read in full and is intact"
    DAMAGED = "nothing is deleted: a full read found damage in the base"


@dataclass(frozen=True, kw_only=True)
class Deleted:
    """The result of one delete request, or of the read of one base.

    `store`: None for the logs; `spared`: announced tables that a new snapshot references; `read_files`, `read_bytes`:
    amount that was read in full.
    """

    store: StorePath | None
    outcome: DeletionOutcome
    files: int = 0
    size_bytes: int = 0
    spared: tuple[str, ...] = ()
    detail: str = ""
    read_files: int = 0
    read_bytes: int = 0


def execute(
    storage: Storage,
    planned: RetentionPlan,
    *,
    run: str,
    lease: HeldLease,
    clock: Clock,
    executor: Executor | None = None,
) -> Iterator[Deleted]:
    """Delete the files of the plan, store by store, and yield the result of each request.

    First the executor reads in full all bases that were not read since they were written; None: threads of this process. If
    a base is damaged or missing, nothing is deleted. The record of reads keeps the result, so the next plan uses an older
    base for that store, or a lower floor. All deletions are requests of this process, which holds the lease.

    *Guarantee*: a crash at any request leaves every retained version loadable, and a second run completes the deletions.
    Before the deletions in a store, its files are listed again: its base must be intact and unchanged since the read, and a
    table that a new snapshot references is spared. Raises `LeaseLost`; `RefusedAsUnsafe` if the plan is too old, or if
    another run holds a batch that the plan deletes; `StorageError`, `LocalDiskFull`.
    """
    on_record = dict(planned.reads_on_record)
    if planned.reads:
        steps = _read_bases(storage, planned, on_record, lease, executor or LocalExecutor(clock=clock))
        yield from steps
        if any(step.outcome is not DeletionOutcome.READ for step in steps):
            return
    started = clock.monotonic_seconds()

    def may_delete() -> None:
        lease.require()
        if clock.monotonic_seconds() - started > announcements.DELETES_FOR_SECONDS:
            raise RefusedAsUnsafe(
                f"the deletions took longer than {announcements.DELETES_FOR_SECONDS:,.0f} s, so the plan is too old; gc "
                "stopped",
                hint="to delete the remaining files, run this command again",
            )

    if planned.deletions:
        _require_no_later_hold(storage, planned)
    stores = (*planned.stores, *planned.removed)
    tables = [v.path for store in stores for v in store.deletions if _is_announced(v)]
    if tables:
        may_delete()
        announcements.announce(storage, run, tables)
    try:
        kept_by_quarantine = _kept_by_quarantine(storage, planned) if tables else frozenset()
        for store in stores:
            if store.deletions:
                yield from _execute_store(storage, store, on_record, kept_by_quarantine, may_delete)
        logs = [verdict for verdict in planned.logs if verdict.rule.deletes]
        if any(names.parse_batch_log(verdict.path) for verdict in logs):
            changed = _first_changed(storage, planned, on_record)
            if changed is not None:
                yield changed
                logs = [verdict for verdict in logs if not names.parse_batch_log(verdict.path)]
        files = [verdict for verdict in logs if verdict.upload is None]
        unfinished = [verdict for verdict in logs if verdict.upload is not None]
        for part in itertools.chain(
            _delete(storage, files, may_delete), uploads.abort(storage, unfinished, may_delete)
        ):
            yield Deleted(
                store=None,
                outcome=DeletionOutcome.DONE,
                files=len(part),
                size_bytes=sum(verdict.size_bytes for verdict in part),
            )
    except (LeaseLost, RefusedAsUnsafe):
        # No request is running, so this run deletes no further file.
        if tables:
            announcements.withdraw(storage, run)
        raise
    if tables:
        announcements.withdraw(storage, run)


def _require_no_later_hold(storage: Storage, planned: RetentionPlan) -> None:
    """Require that no run holds an older batch than the plan retains. See `holds` for the race."""
    for hold in holds.current(storage):
        if planned.floor is None or hold.version < planned.floor:
            raise RefusedAsUnsafe(
                f"batch {hold.batch} is held since the plan was made, by {hold.holder} ({hold.verb}); nothing was deleted",
                path=storage.url,
                hint="run this command again: the new plan keeps the batch",
            )


def remember(storage: Storage, gathered: RetentionFacts, planned: RetentionPlan, done: Iterable[Deleted]) -> None:
    """Write the record of a completely executed plan, so that the next pass gathers only the due stores.

    Raises `StorageError`.
    """
    done = list(done)
    if any(step.outcome is DeletionOutcome.DAMAGED for step in done):
        return
    verified = gathered.since.verified if gathered.since else last_pass.verified_by(gathered.chains)
    if verified is None or planned.left_out or planned.floor is None:
        return
    changed = {step.store for step in done if step.outcome is DeletionOutcome.CHANGED}
    verified = (max(verified[0], planned.floor), verified[1])
    waiting = dict(gathered.since.waiting) if gathered.since else {}
    for chain, verdicts in zip(gathered.chains, planned.stores, strict=True):
        base = verdicts.base
        unfinished = (
            base is None
            or chain.newest_loadable != chain.head
            or any(facts.fault or facts.sidecar for facts in chain.snapshots.values())
            or chain.store in changed
            or any(verdict.rule in (Rule.YOUNG, Rule.HELD, Rule.QUARANTINE) for verdict in verdicts.files)
        )
        newer = tuple(v.version for v in chain.snapshots if base is not None and v.version > base.version)
        waiting[chain.store] = (last_pass.ALWAYS,) if unfinished else newer
    for one in planned.removed:
        # When the floor has passed them, the next pass gathers all stores: a partial one does not see removed partitions.
        if one.store in changed or any(verdict.rule in _DELETED_LATER for verdict in one.files):
            waiting[one.store] = (newest_version(gathered.removed[one.store]) + 1,)
    last_pass.write(storage, LastPass(verified, waiting, last_pass.settled_plans(gathered.logs.history)))


def _is_announced(verdict: Verdict) -> bool:
    """Return whether the deletion of a file is announced: another run may make a snapshot that names the table."""
    place = names.parse_place(verdict.path)
    is_table = place is not None and names.parse_shared_file(place[1]) is not None
    return verdict.rule is Rule.UNNAMED or (verdict.rule is Rule.REMOVED and is_table)


def _kept_by_quarantine(storage: Storage, planned: RetentionPlan) -> frozenset[str]:
    """Return the tables of all quarantined snapshots, also of those that were quarantined after the plan was made."""
    stores = [store.store for store in (*planned.stores, *planned.removed)]
    found: set[str] = set()
    for store, snapshots in quarantine.snapshots(storage, storage.list(names.QUARANTINE), stores).items():
        for metadata in snapshots.values():
            found |= {store.table_file(table.dfs_name) for table in metadata.named_files} if metadata else set()
    return frozenset(found)


def _execute_store(
    storage: Storage,
    planned: StoreVerdicts,
    on_record: Reads,
    kept_by_quarantine: frozenset[str],
    may_delete: MayDelete,
) -> Iterator[Deleted]:
    store, deletions = planned.store, planned.deletions
    files = _files(storage, store)
    changed = _changed_base(storage, planned, files, on_record if _needs_read(deletions) else None)
    if changed is not None:
        yield Deleted(store=store, outcome=DeletionOutcome.CHANGED, detail=changed)
        return
    going = {verdict.path for verdict in deletions}
    # The tables of snapshots that are not in the plan: new snapshots, and snapshots beyond the bound of the plan.
    known = {verdict.path for verdict in planned.files}
    named = set(kept_by_quarantine)
    for version in files.snapshots:
        if store.snapshot(version) in known:
            continue
        facts = look_at_snapshot(storage, store, version, files)
        if facts.metadata is None:
            yield Deleted(store=store, outcome=DeletionOutcome.CHANGED, detail=str(facts.damage or ""))
            return
        named |= {store.table_file(table.dfs_name) for table in facts.metadata.named_files}
    spared = tuple(sorted(going & named))
    chosen = [verdict for verdict in deletions if verdict.path not in named]
    for _, alike in itertools.groupby(chosen, key=lambda verdict: deletion_order(verdict)[0]):
        for part in _delete(storage, list(alike), may_delete):
            yield Deleted(
                store=store,
                outcome=DeletionOutcome.DONE,
                files=len(part),
                size_bytes=sum(verdict.size_bytes for verdict in part),
                spared=spared,
            )
            spared = ()
    if spared:
        yield Deleted(store=store, outcome=DeletionOutcome.DONE, spared=spared)


def _files(storage: Storage, store: StorePath) -> StoreFiles:
    return catalog.by_store(storage.list(store.folder)).of(store)


def _changed_base(storage: Storage, planned: StoreVerdicts, files: StoreFiles, on_record: Reads | None) -> str | None:
    """Return why the base of a store can no longer replace older files; None if it can.

    `on_record`: if given, the base must also be unchanged since it was read in full.
    """
    store, base = planned.store, planned.base
    if base is None or base.version == 0:
        return None
    facts = look_at_snapshot(storage, store, base, files)
    if not facts.is_whole:
        return str(facts.damage or facts.sidecar or "")
    changed = None if on_record is None else _not_as_read(store, base, facts, files, on_record)
    return None if changed is None else f"{changed}: changed after it was read in full"


def _first_changed(storage: Storage, planned: RetentionPlan, on_record: Reads) -> Deleted | None:
    """Look at all bases again before a batch log is deleted, because it has changelogs of all stores. Return the first
    store whose base changed after the plan was made."""
    for store in planned.stores:
        changed = _changed_base(storage, store, _files(storage, store.store), on_record)
        if changed is not None:
            return Deleted(
                store=store.store, outcome=DeletionOutcome.CHANGED, detail=f"{changed}; all batch logs are kept"
            )
    return None


def _read_bases(
    storage: Storage,
    planned: RetentionPlan,
    on_record: dict[str, FileRead],
    lease: HeldLease,
    executor: Executor,
) -> list[Deleted]:
    """Read the bases of the plan in full, and add the results to the record. Returns the steps in the plan's order."""
    lease.require()
    done: dict[StorePath, ReadBack] = {}
    gone: dict[StorePath, str] = {}
    failed: list[StatekeeperError] = []

    def ended(read: SnapshotRead, outcome: ReadBack | StatekeeperError) -> None:
        lease.beat()
        if isinstance(outcome, ObjectMissing):
            gone[read.store] = str(outcome)
            return
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
            return
        done[read.store] = outcome
        on_record.update({one.path: one for one in outcome.files})

    # Imported on demand: only this step opens RocksDB.
    from statekeeper.statestore.maintenance.upkeep.verification.read_back import read_all

    try:
        read_all(storage, planned.reads, ended, executor=executor)
    finally:
        # Also after an interruption, so that the next run does not read these files again.
        if done:
            lease.require()
            superseded = {verdict.path for verdict in planned.deletions}
            verification.write(storage, {path: one for path, one in on_record.items() if path not in superseded})
    if failed:
        raise failed[0]
    return [
        _read_step(done[read.store])
        if read.store in done
        else Deleted(store=read.store, outcome=DeletionOutcome.CHANGED, detail=gone[read.store])
        for read in planned.reads
    ]


def _read_step(done: ReadBack) -> Deleted:
    read, bad = done.read, done.damaged
    outcome, detail = DeletionOutcome.READ, ""
    if bad is not None and bad.fault is not None:
        outcome = DeletionOutcome.DAMAGED
        detail = (
            f"{bad.path} {bad.fault.text}; {read.store.snapshot(read.version)} cannot be a base. Stop the query and "
            f"run: statekeeper repair ROOT --apply --confirm-stopped"
        )
    return Deleted(
        store=read.store,
        outcome=outcome,
        detail=detail,
        read_files=len(read.files),
        read_bytes=read.size_bytes,
    )


def _needs_read(deletions: Iterable[Verdict]) -> bool:
    return any(verdict.rule in REPLACED for verdict in deletions)


def _not_as_read(
    store: StorePath, base: VersionId, facts: StoredSnapshot, files: StoreFiles, on_record: Reads
) -> str | None:
    """Return a file of the base that was not read in full, or changed since; None if there is none."""
    entries = {entry.path: entry for entry in (*files.snapshots.values(), *files.tables.values())}
    tables = facts.metadata.tables if facts.metadata else ()
    needed = [store.snapshot(base), *(store.table_file(table.dfs_name) for table in tables)]
    for path in needed:
        one = on_record.get(path)
        if one is None or one.fault is not None or not one.is_of(entries.get(path)):
            return path
    return None


def _delete(storage: Storage, verdicts: list[Verdict], may_delete: MayDelete) -> Iterator[list[Verdict]]:
    """Delete the files in as few requests as possible; yield the files of each request."""
    for start in range(0, len(verdicts), DELETE_BATCH):
        part = verdicts[start : start + DELETE_BATCH]
        may_delete()
        storage.delete([verdict.path for verdict in part])
        yield part
