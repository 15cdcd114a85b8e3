"""Makes the new snapshots of a rewrite, in parallel, and records each in the journal. The next run keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.workers import in_pool
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Ending, Made
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.snapshot import read_snapshot
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.executors import Executor, Place, Task
from statekeeper.statestore.maintenance.rewrites.engine.commit import rolled_back
from statekeeper.statestore.maintenance.rewrites.engine.model import Progress, RewritePhase, StoreStep
from statekeeper.statestore.maintenance.rewrites.engine.steps import Rewriting
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.upkeep.snapshot import Change, Published, SnapshotReason, TakeSnapshot
from statekeeper.statestore.storage import Storage

Skipped = tuple[str, ...]
"""The unusable bases of a store, with reasons."""


class OfStore(Protocol):
    """A store to make a snapshot of, with all that its task needs."""

    @property
    def store(self) -> StorePath: ...


Item = TypeVar("Item", bound=OfStore)


def build_each(
    work: Rewriting, task: Task[Item, tuple[Made, Skipped]], items: Sequence[Item], *, executor: Executor
) -> None:
    """Make the snapshots in this order, and record each in the journal. If one fails, the others are completed, and its
    error is raised. If the lease is lost, no other one starts. The task publishes a snapshot and reads it back, as `build`.
    """
    making = _Making(work)

    def ended(item: Item, outcome: tuple[Made, Skipped] | StatekeeperError) -> None:
        making.ended(item.store, outcome)
        work.still_held()

    work.still_held()
    executor.map(task, items, ended)
    making.require_all()


def make_each(
    work: Rewriting,
    stores: Sequence[StorePath],
    make: Callable[[StorePath], tuple[Made, Skipped]],
    *,
    workers: int,
    interrupt: Callable[[], None] = lambda: None,
) -> None:
    """Make the snapshots in this process, as `build_each`. `make` publishes a snapshot and reads it back; `interrupt`: see
    `in_pool`."""
    making = _Making(work)

    def made(store: StorePath) -> tuple[Made, Skipped]:
        work.still_held()
        return make(store)

    if stores:
        in_pool(made, stores, making.ended, workers=max(1, min(workers, len(stores))), interrupt=interrupt)
    making.require_all()


class _Making:
    """The outcomes of the stores of a rewrite."""

    def __init__(self, work: Rewriting) -> None:
        self._work = work
        self._failed: list[StatekeeperError] = []

    def ended(self, store: StorePath, outcome: tuple[Made, Skipped] | StatekeeperError) -> None:
        """Record a snapshot in the journal. Raises as `_require_open`."""
        work, begun = self._work, self._work.begun
        _require_open(work, store)
        if isinstance(outcome, StatekeeperError):
            self._failed.append(outcome)
            return
        one, skipped = outcome
        if store in work.made:
            return
        journal.note_made(work.storage, begun, store, one)
        work.made[store] = one
        done, of = len(work.made), len(begun.built)
        work.progress(Progress(phase=RewritePhase.SNAPSHOTS, done=done, of=of, store=store, skipped_snapshots=skipped))

    def require_all(self) -> None:
        """Raise the first error."""
        if self._failed:
            raise self._failed[0]


def largest_first(steps: Iterable[StoreStep]) -> list[StoreStep]:
    """Return the steps, the largest first."""
    return sorted(steps, key=lambda step: -step.read_bytes)


def build(
    storage: Storage,
    begun: Begun,
    step: StoreStep,
    place: Place,
    *,
    conf: StateConf,
    change: Change | None = None,
    may_be_late: bool = False,
) -> tuple[Made, Skipped]:
    """Make the snapshot of a store from a load of its head, after the `change`. Return it, and the unusable bases.

    `may_be_late`: see `withdraw_if_late`. Raises as `snapshot.execute`.
    """
    action = TakeSnapshot(
        store=step.store,
        version=step.head,
        load=step.load,
        tail_bytes=step.tail_bytes,
        reason=SnapshotReason.ASKED,
        conf=conf,
        header=begun.header or None,
        name=begun.stores[step.store],
    )
    taken = snapshot.execute(
        storage,
        action,
        scratch=place.folder,
        clock=place.clock,
        ids=place.ids,
        memory_bytes=snapshot.share_of(place.memory_bytes, place.at_a_time),
        change=change,
    )
    if may_be_late and taken.published is Published.NEW:
        withdraw_if_late(storage, begun, step.store)
    assert taken.digest is not None
    sent = taken.sent_tables if taken.published is Published.NEW else _own_tables(storage, begun, step)
    return Made(taken.digest, sent), taken.skipped_snapshots


def _own_tables(storage: Storage, begun: Begun, step: StoreStep) -> tuple[str, ...]:
    """The tables of a snapshot of another try that its base does not have: a revert deletes them."""
    path = step.store.snapshot(begun.stores[step.store])
    named = {table.dfs_name for table in read_snapshot(storage.read(path), path).metadata.tables}
    if step.load.base_kind is BaseKind.SNAPSHOT:
        base = step.store.snapshot(step.load.base)
        named -= {table.dfs_name for table in read_snapshot(storage.read(base), base).metadata.tables}
    return tuple(sorted(named))


def withdraw_if_late(storage: Storage, begun: Begun, store: StorePath) -> None:
    """Delete a snapshot that this task has published after the rewrite was rolled back or reversed, or has moved that of
    another try away.

    Race: on a cluster, a task is repeated on another host, and the first try stalls; the rewrite ends without it; the query
    is edited, switched back or rolled back, which removes the snapshot of the other try; then the first try publishes its
    own, and in structure V1 no query starts beside it. Only a name with an id belongs to this run alone: see
    `_require_open`.

    Race: the first try publishes, and stalls while it reads back; the other try finds its snapshot and reads it back, too;
    the rewrite ends, and its commit needs that snapshot. In structure V2 it stays: one that no commit names does no harm.
    """
    name = begun.stores[store]
    if name.id is None:
        return
    path = store.snapshot(name)
    is_moved = storage.stat(names.quarantine(begun.run, path)) is not None
    ending = journal.ending(storage, begun)
    if is_moved or ending is Ending.ABORTED or (ending is not None and _is_in_v1(storage)):
        storage.delete([path])


def _is_in_v1(storage: Storage) -> bool:
    newest = catalog.newest_batch(storage)
    return newest is not None and catalog.structure_at(storage, newest) is Structure.V1


def table_name(run: str, local_name: str, attempt: str | None = None) -> str:
    """Return the name of a table of a rewrite that makes all its tables itself. `run`: of its journal; `attempt`: the id of
    one of several attempts at the same time, whose tables differ."""
    return f"{local_name}{'' if attempt is None else f'-{attempt}'}{_ending(run)}"


def tables_of(run: str, files: StoreFiles) -> tuple[str, ...]:
    """Return the tables of a store with such names, of all attempts, whether a snapshot names them or not."""
    return tuple(sorted(name for name in files.tables if name.endswith(_ending(run))))


def delete_unpublished(work: Rewriting, stores: Iterable[StorePath]) -> None:
    """Delete the tables with such names that no snapshot of these stores names: other attempts have uploaded them. Each
    store has its published snapshot, so that no other attempt is published any more. One listing for each operator."""
    storage, run = work.storage, work.begun.run
    of_operators: dict[int, list[StorePath]] = {}
    for store in stores:
        of_operators.setdefault(store.operator, []).append(store)
    for operator, its_stores in of_operators.items():
        there = catalog.files(storage, f"{names.STATE}/{operator}")
        storage.delete(
            store.table_file(name)
            for store in its_stores
            for name in tables_of(run, there.of(store))
            if name not in work.made[store].tables
        )


def _ending(run: str) -> str:
    return f"-{run}.sst"


def delete_handed(work: Rewriting) -> None:
    """Delete what the tasks of this rewrite have handed to each other: an interrupted run leaves it. One listing.

    A task that runs longer than the process that started it may write there once more; retention deletes that.
    """
    work.storage.delete([entry.path for entry in work.storage.list(names.handed_over(work.begun.run))])


def _require_open(work: Rewriting, store: StorePath) -> None:
    """Require that the rewrite is not rolled back; if it is, delete the snapshot that was published after the rollback.

    Race: a run makes a snapshot for a long time; its lease is broken; the switchover is rolled back; then the snapshot is
    published, and in structure V1 no query starts beside it. Only a name with an id belongs to this run alone. A
    remaining V1 snapshot does no harm; the next switchover moves it into quarantine.
    """
    begun = work.begun
    if journal.ending(work.storage, begun) is not Ending.ABORTED:
        return
    work.is_rolled_back = True
    if begun.stores[store].id is not None:
        work.storage.delete([store.snapshot(begun.stores[store])])
    raise rolled_back(begun)
