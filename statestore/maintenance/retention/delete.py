"""Deletes what a plan says, after a second look at what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from statestore import catalog
from statestore.catalog import StoreFiles
from statestore.chain import look_at_snapshot
from statestore.clock import Clock
from statestore.errors import LeaseLost, RefusedAsUnsafe
from statestore.format import names
from statestore.format.names import StorePath
from statestore.maintenance import announcements, aside
from statestore.maintenance.lease import HeldLease
from statestore.maintenance.retention import last_pass
from statestore.maintenance.retention.facts import Gathered
from statestore.maintenance.retention.last_pass import LastPass
from statestore.maintenance.retention.verdicts import RetentionPlan, Rule, StoreVerdicts, Verdict, deletion_order
from statestore.storage import DELETE_BATCH, Storage

MayDelete = Callable[[], None]
"""Raises when nothing more may be deleted."""


class Outcome(Enum):
    """What became of the deletions of one store, or of the logs."""

    DONE = "deleted"
    CHANGED = "left alone: what the plan rests on has changed"


@dataclass(frozen=True)
class Deleted:
    """What one request did. `store` is None for the logs; `spared`: announced tables that a new snapshot names."""

    store: StorePath | None
    outcome: Outcome
    files: int
    size_bytes: int
    spared: tuple[str, ...] = ()
    detail: str = ""


def execute(storage: Storage, planned: RetentionPlan, *, run: str, lease: HeldLease, clock: Clock) -> Iterator[Deleted]:
    """Delete what the plan says, store by store, and say after each request what was done.

    *Guarantee*: a crash at any request leaves every retained version loadable; running it again finishes it. Before a
    store's files go it is looked at again: its base must still be whole, and a table that a new snapshot names is
    spared. Raises `LeaseLost`, `RefusedAsUnsafe` when the plan has grown too old, `StorageError`.
    """
    started = clock.monotonic_seconds()

    def may_delete() -> None:
        lease.require()
        if clock.monotonic_seconds() - started > announcements.DELETES_FOR_SECONDS:
            raise RefusedAsUnsafe("the plan has grown old while it was executed", hint="run it again")

    tables = [v.path for store in planned.stores for v in store.deletions if v.rule is Rule.UNNAMED]
    if tables:
        may_delete()
        announcements.announce(storage, run, tables)
    try:
        kept_aside = _kept_aside(storage, planned) if tables else frozenset()
        for store in planned.stores:
            if store.deletions:
                yield from _execute_store(storage, store, kept_aside, may_delete)
        logs = [verdict for verdict in planned.logs if verdict.rule.deletes]
        for part in _delete(storage, logs, may_delete):
            yield Deleted(None, Outcome.DONE, len(part), sum(verdict.size_bytes for verdict in part))
    except (LeaseLost, RefusedAsUnsafe):
        # No request is under way: what is left is not going to be deleted by this run.
        if tables:
            announcements.withdraw(storage, run)
        raise
    if tables:
        announcements.withdraw(storage, run)


def remember(storage: Storage, gathered: Gathered, planned: RetentionPlan, done: Iterable[Deleted]) -> None:
    """After a plan was executed to its end: leave for the next pass what it need not look at again.

    Raises `StorageError`.
    """
    verified = gathered.since.verified if gathered.since else last_pass.verified_by(gathered.chains)
    if verified is None or planned.left_out or planned.floor is None:
        return
    changed = {step.store for step in done if step.outcome is Outcome.CHANGED}
    verified = (max(verified[0], planned.floor), verified[1])
    waiting = dict(gathered.since.waiting) if gathered.since else {}
    for chain, verdicts in zip(gathered.chains, planned.stores, strict=True):
        base = verdicts.base
        unfinished = (
            base is None
            or chain.newest_loadable != chain.head
            or chain.store in changed
            or any(verdict.rule in (Rule.YOUNG, Rule.HELD, Rule.ASIDE) for verdict in verdicts.files)
        )
        newer = tuple(v.version for v in chain.snapshots if base is not None and v.version > base.version)
        waiting[chain.store] = (last_pass.ALWAYS,) if unfinished else newer
    last_pass.write(storage, LastPass(verified, waiting, last_pass.settled_plans(gathered.logs.history)))


def _kept_aside(storage: Storage, planned: RetentionPlan) -> frozenset[str]:
    """The tables of all snapshots that repairs have put aside, maybe since this was planned."""
    stores = [store.store for store in planned.stores]
    found: set[str] = set()
    for store, snapshots in aside.snapshots(storage, storage.list(names.ASIDE), stores).items():
        for metadata in snapshots.values():
            found |= {store.table_file(table.dfs_name) for table in metadata.named_files} if metadata else set()
    return frozenset(found)


def _execute_store(
    storage: Storage, planned: StoreVerdicts, kept_aside: frozenset[str], may_delete: MayDelete
) -> Iterator[Deleted]:
    store, deletions = planned.store, planned.deletions
    files = catalog.files(storage, store.folder).get(store, StoreFiles())
    if planned.base is not None and planned.base.version > 0:
        facts = look_at_snapshot(storage, store, planned.base, files)
        if not facts.is_whole:
            yield Deleted(store, Outcome.CHANGED, 0, 0, detail=facts.damage or "")
            return
    going = {verdict.path for verdict in deletions}
    # The tables of snapshots that the plan does not speak of: those that were published since, those beyond its bound.
    known = {verdict.path for verdict in planned.files}
    named = set(kept_aside)
    for version in files.snapshots:
        if store.snapshot(version) in known:
            continue
        facts = look_at_snapshot(storage, store, version, files)
        if facts.metadata is None:
            yield Deleted(store, Outcome.CHANGED, 0, 0, detail=facts.damage or "")
            return
        named |= {store.table_file(table.dfs_name) for table in facts.metadata.named_files}
    spared = tuple(sorted(going & named))
    chosen = [verdict for verdict in deletions if verdict.path not in named]
    for _, alike in groupby(chosen, key=lambda verdict: deletion_order(verdict)[0]):
        for part in _delete(storage, list(alike), may_delete):
            yield Deleted(store, Outcome.DONE, len(part), sum(verdict.size_bytes for verdict in part), spared)
            spared = ()
    if spared:
        yield Deleted(store, Outcome.DONE, 0, 0, spared)


def _delete(storage: Storage, verdicts: list[Verdict], may_delete: MayDelete) -> Iterator[list[Verdict]]:
    """Delete them in as few requests as may be; after each, what it took."""
    for start in range(0, len(verdicts), DELETE_BATCH):
        part = verdicts[start : start + DELETE_BATCH]
        may_delete()
        storage.delete([verdict.path for verdict in part])
        yield part
