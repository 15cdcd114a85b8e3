"""Makes the new snapshots of a rewrite, in parallel, and records each in the journal. The next run keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.workers import in_pool
from statekeeper.statestore.checkpoint import rewrite_journal as journal
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Ending, Made
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.maintenance.rewrites.engine.commit import rolled_back
from statekeeper.statestore.maintenance.rewrites.engine.model import Machine, Progress, RewritePhase, StoreStep
from statekeeper.statestore.maintenance.rewrites.engine.steps import Rewriting
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.upkeep.snapshot import Change, SnapshotReason, TakeSnapshot

Skipped = tuple[str, ...]
"""The unusable bases of a store, with reasons."""


def make_each(
    work: Rewriting,
    stores: Sequence[StorePath],
    make: Callable[[StorePath], tuple[Made, Skipped]],
    *,
    workers: int,
    interrupt: Callable[[], None] = lambda: None,
) -> None:
    """Make the snapshots in this order, and record each in the journal. If one fails, the others are completed, and its
    error is raised. `make` publishes a snapshot and reads it back; `interrupt`: see `in_pool`."""
    storage, begun, failed = work.storage, work.begun, list[StatekeeperError]()

    def made(store: StorePath) -> tuple[Made, Skipped]:
        work.still_held()
        return make(store)

    def ended(store: StorePath, outcome: tuple[Made, Skipped] | StatekeeperError) -> None:
        _require_open(work, store)
        if isinstance(outcome, StatekeeperError):
            failed.append(outcome)
            return
        one, skipped = outcome
        if store in work.made:
            return
        journal.note_made(storage, begun, store, one)
        work.made[store] = one
        done, of = len(work.made), len(begun.built)
        work.progress(Progress(phase=RewritePhase.SNAPSHOTS, done=done, of=of, store=store, skipped_snapshots=skipped))

    if stores:
        in_pool(made, stores, ended, workers=max(1, min(workers, len(stores))), interrupt=interrupt)
    if failed:
        raise failed[0]


def largest_first(steps: Iterable[StoreStep]) -> dict[StorePath, StoreStep]:
    """Return the steps by store, the largest first."""
    return {step.store: step for step in sorted(steps, key=lambda step: -step.read_bytes)}


def build(
    work: Rewriting,
    step: StoreStep,
    machine: Machine,
    *,
    conf: StateConf,
    at_a_time: int,
    change: Change | None = None,
) -> tuple[Made, Skipped]:
    """Make the snapshot of a store from a load of its head, after the `change`. Return it, and the unusable bases.

    `at_a_time`: the number of stores that share the memory. Raises as `snapshot.execute`.
    """
    action = TakeSnapshot(
        store=step.store,
        version=step.head,
        load=step.load,
        tail_bytes=step.tail_bytes,
        reason=SnapshotReason.ASKED,
        conf=conf,
        header=work.begun.header or None,
        name=work.begun.stores[step.store],
    )
    taken = snapshot.execute(
        work.storage,
        action,
        scratch=machine.scratch,
        clock=machine.clock,
        ids=machine.ids,
        memory_bytes=snapshot.share_of(machine.memory_bytes, at_a_time),
        change=change,
    )
    assert taken.digest is not None
    return Made(taken.digest, taken.sent_tables), taken.skipped_snapshots


def table_name(begun: Begun, local_name: str) -> str:
    """Return the name of a table of a rewrite that makes all its tables itself."""
    return f"{local_name}{_ending(begun)}"


def tables_of(begun: Begun, files: StoreFiles) -> tuple[str, ...]:
    """Return the tables of a store with such names, whether a snapshot names them or not."""
    return tuple(sorted(name for name in files.tables if name.endswith(_ending(begun))))


def _ending(begun: Begun) -> str:
    return f"-{begun.run}.sst"


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
