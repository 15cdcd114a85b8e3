"""Runs of the verbs that write: the lease held, the plan on record before, the outcome after, however a run ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from statestore import catalog, switch_journal
from statestore.clock import Clock, Ids
from statestore.errors import RefusedAsUnsafe, StatekeeperError
from statestore.format import names
from statestore.format.structure import Structure
from statestore.maintenance import lease, records, retention, snapshot, switchover, undo
from statestore.maintenance import repair as repairs
from statestore.maintenance.audit import AuditPolicy
from statestore.maintenance.history import History
from statestore.maintenance.lease import HeldLease
from statestore.maintenance.pool import WORKERS
from statestore.maintenance.records import Record
from statestore.maintenance.repair import RepairAction, RepairPlan
from statestore.maintenance.retention import Deleted, RetentionFacts, RetentionPlan
from statestore.maintenance.snapshot import MEMORY_BYTES, Taken, TakeSnapshot
from statestore.maintenance.switchover import Begun, Machine, OpenJournal, Progress, ProgressCallback, SwitchPlan
from statestore.redaction import redacted
from statestore.storage import Storage

Ended = Callable[[TakeSnapshot, Taken | StatekeeperError], None]
"""ProgressCallback what became of each store, of one at a time."""


@contextmanager
def recorded(storage: Storage, verb: str, run: str, plan: Iterable[Record], clock: Clock) -> Iterator[list[Record]]:
    """The record of a run: the plan before, and after it what was added to the list, a line each.

    Raises `StorageError`, and whatever is raised within, which is in the outcome then.
    """
    history = History.begin(storage, verb, run, clock)
    history.plan(plan)
    done: list[Record] = []
    try:
        yield done
    except BaseException as error:
        failed = {
            "failed": redacted(str(error)) or type(error).__name__,
            "code": error.code if isinstance(error, StatekeeperError) else "failed",
        }
        # What went wrong is told by the error itself, not by a record that could not be written.
        with suppress(StatekeeperError):
            history.outcome([*done, failed])
        raise
    history.outcome(done)


@contextmanager
def _at_work(
    storage: Storage, verb: str, run: str, plan: Iterable[Record], holder: str, clock: Clock
) -> Iterator[tuple[HeldLease, list[Record]]]:
    """A run of a verb that is for whole checkpoints alone. Raises `HalfSwitched` for another, `RootHeld`."""
    with lease.held(storage, verb, run=run, holder=holder, clock=clock) as held:
        switch_journal.require_none(storage)
        with recorded(storage, verb, run, plan, clock) as done:
            yield held, done


def take_snapshots(
    storage: Storage,
    actions: Sequence[TakeSnapshot],
    ended: Ended,
    *,
    scratch: Path,
    workers: int = WORKERS,
    memory_bytes: int = MEMORY_BYTES,
    holder: str,
    clock: Clock,
    ids: Ids,
) -> None:
    """Make these snapshots, `workers` at a time in `memory_bytes` altogether. One that fails does not stop the others.

    Raises `RootHeld`, `StorageError` for the lease or the record; `RefusedAsUnsafe` for ones of a structure that the
    checkpoint no longer has.
    """
    run, plan = ids.fresh(), [records.of_action(action) for action in actions]
    with _at_work(storage, "snapshot", run, plan, holder, clock) as (held, done):
        _require_structure(storage, actions)

        def record(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> None:
            done.append(records.of_outcome(action, outcome))
            held.beat()
            ended(action, outcome)

        snapshot.execute_all(
            storage,
            actions,
            record,
            scratch=scratch,
            workers=workers,
            memory_bytes=memory_bytes,
            clock=clock,
            ids=ids,
        )


def _require_structure(storage: Storage, actions: Sequence[TakeSnapshot]) -> None:
    """Losing schedule: this is planned; a switchover to structure V1 begins, ends, and gives the lease back; a snapshot
    with an id is published, and no query starts beside it. One without an id, in structure V2, does no harm."""
    newest = catalog.newest_batch(storage)
    with_id = next((action for action in actions if action.version.id is not None), None)
    if with_id and newest is not None and catalog.structure_at(storage, newest) is Structure.V1:
        raise RefusedAsUnsafe(
            "the checkpoint was switched to structure V1 since this was planned",
            path=with_id.path,
            hint="run this again: nothing was made",
        )


def repair(storage: Storage, planned: RepairPlan, *, run: str, holder: str, clock: Clock) -> Iterator[RepairAction]:
    """Do what a repair plans, and say after each file what was done. Raises as `repairs.execute`, and `RootHeld`."""
    with _at_work(storage, "repair", run, map(records.of_repair, planned.actions), holder, clock) as (held, done):
        for action in repairs.execute(storage, planned, run=run):
            done.append(records.of_repair(action))
            held.beat()
            held.require()
            yield action


def undo_repair(storage: Storage, undone: str, *, run: str, holder: str, clock: Clock) -> Iterator[str]:
    """Take a repair back, and say after each file which it was. Raises as `undo`'s functions, and `RootHeld`."""
    with _at_work(storage, "repair", run, [{"undo": undone}], holder, clock) as (held, done):
        for path in undo.execute(storage, undone, undo.plan(undo.gather(storage, undone))):
            done.append({"put_back": path})
            held.beat()
            held.require()
            yield path


def switch(
    storage: Storage,
    planned: SwitchPlan,
    told: ProgressCallback,
    *,
    run: str,
    holder: str,
    machine: Machine,
    policy: AuditPolicy | None = None,
) -> Begun:
    """Carry a switchover out. Raises as `switchover.execute`, and `RootHeld`."""
    with (
        lease.held(storage, "switch", run=run, holder=holder, clock=machine.clock) as held,
        recorded(storage, "switch", run, [records.of_switch_plan(planned)], machine.clock) as done,
    ):

        def record(progress: Progress) -> None:
            done.append(records.of_progress(progress))
            held.beat()
            told(progress)

        return switchover.execute(
            storage, planned, record, run=run, machine=machine, still_held=held.require, policy=policy
        )


def abort_switch(
    storage: Storage, standing: OpenJournal, told: ProgressCallback, *, run: str, holder: str, clock: Clock
) -> None:
    """Take a switchover back that is half done. Raises as `switchover.roll_back`, and `RootHeld`."""
    with (
        lease.held(storage, "switch", run=run, holder=holder, clock=clock) as held,
        recorded(storage, "switch", run, [{"abort": standing.begun.number}], clock) as done,
    ):
        # Losing schedule: who finishes it publishes and ends while this waits for quiet; what was read before is old.
        now = switch_journal.standing(storage)
        if now is None or now.begun.number != standing.begun.number:
            raise RefusedAsUnsafe(
                "the switchover has ended meanwhile",
                path=names.switchover(standing.begun.number, "ended"),
                hint="one that has ended is led back by --to",
            )
        switchover.roll_back(storage, now, told, still_held=held.require)
        done.append({"aborted": standing.begun.number})


def delete(
    storage: Storage,
    gathered: RetentionFacts,
    planned: RetentionPlan,
    *,
    holder: str,
    clock: Clock,
    ids: Ids,
    scratch: Path | None = None,
    workers: int = WORKERS,
) -> Iterator[Deleted]:
    """Read the bases that the plan names, delete what retention planned from these facts, and say after each request what
    was done. `scratch`, `workers`: for the reads, as `retention.execute`.

    Raises as `retention.execute`, and `RootHeld`.
    """
    run = ids.fresh()
    steps: list[Deleted] = []
    with _at_work(storage, "gc", run, records.of_retention_plan(planned), holder, clock) as (held, done):
        steps_of = retention.execute(
            storage, planned, run=run, lease=held, clock=clock, scratch=scratch, workers=workers
        )
        for step in steps_of:
            steps.append(step)
            done.append(records.of_deleted(step))
            yield step
        retention.remember(storage, gathered, planned, steps)
