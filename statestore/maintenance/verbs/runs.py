"""Runs of the verbs that write: each holds the lease, and records its plan before and its outcome after the execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.base.redaction import redacted
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.records.history import FailedRun, History
from statekeeper.statestore.maintenance.records.lease import HeldLease
from statekeeper.statestore.maintenance.rewrites import edits, engine, switchover
from statekeeper.statestore.maintenance.rewrites.edits import EditPlan
from statekeeper.statestore.maintenance.rewrites.engine import RewritePlan
from statekeeper.statestore.maintenance.rewrites.switchover import (
    Begun,
    Machine,
    OpenJournal,
    Progress,
    ProgressCallback,
    SwitchPlan,
)
from statekeeper.statestore.maintenance.rollback import repair as repairs
from statekeeper.statestore.maintenance.rollback import rewind as rewinds
from statekeeper.statestore.maintenance.rollback import undo
from statekeeper.statestore.maintenance.rollback.repair import RepairAction, RepairPlan
from statekeeper.statestore.maintenance.rollback.rewind import RewindAction, RewindPlan
from statekeeper.statestore.maintenance.upkeep import retention, snapshot
from statekeeper.statestore.maintenance.upkeep.audit import AuditPolicy
from statekeeper.statestore.maintenance.upkeep.retention import Deleted, RetentionFacts, RetentionPlan
from statekeeper.statestore.maintenance.upkeep.snapshot import MEMORY_BYTES, Taken, TakeSnapshot
from statekeeper.statestore.maintenance.verbs import as_json
from statekeeper.statestore.maintenance.verbs.as_json import Record
from statekeeper.statestore.storage import Storage, open_storage

Ended = Callable[[TakeSnapshot, Taken | StatekeeperError], None]
"""Called with the result of each store, from one thread at a time."""


@contextmanager
def recorded(storage: Storage, verb: str, run: str, plan: Iterable[Record], clock: Clock) -> Iterator[list[Record]]:
    """Record a run in the history: the plan before the body of the `with` statement, and the yielded list after it.

    If the body raises an error, the outcome contains the list and the error. Raises `StorageError`, and the error of the
    body.
    """
    history = History.begin(storage, verb, run, clock)
    history.plan(plan)
    done: list[Record] = []
    try:
        yield done
    except BaseException as error:
        failed = FailedRun(
            failed=redacted(str(error)) or type(error).__name__,
            code=error.code if isinstance(error, StatekeeperError) else "failed",
        )
        # Report the error of the body, not that of its record.
        with suppress(StatekeeperError):
            history.outcome([*done, failed.encode()])
        raise
    history.outcome(done)


@contextmanager
def _leased(
    storage: Storage, verb: str, run: str, plan: Iterable[Record], holder: str, clock: Clock
) -> Iterator[tuple[HeldLease, list[Record]]]:
    """Hold the lease and record a run of a verb that rejects a half-done switchover. Raises `HalfSwitched`, `RootHeld`."""
    with lease.held(storage, verb, run=run, holder=holder, clock=clock) as held:
        rewrite_journal.require_none(storage)
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
    """Make these snapshots, `workers` at a time with `memory_bytes` in total. A failure does not stop the others.

    Raises `HalfSwitched`, `RootHeld`; `StorageError` for the lease or the record; `RefusedAsUnsafe` if the structure of the
    checkpoint has changed since the plan.
    """
    run, plan = ids.fresh(), [as_json.of_action(action) for action in actions]
    with _leased(storage, "snapshot", run, plan, holder, clock) as (held, done):
        _require_no_ids_in_v1(storage, actions)

        def record(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> None:
            done.append(as_json.of_outcome(action, outcome))
            held.beat()
            ended(action, outcome)

        snapshot.execute_all(
            held.storage,
            actions,
            record,
            scratch=scratch,
            workers=workers,
            memory_bytes=memory_bytes,
            clock=clock,
            ids=ids,
        )


def take_emergency_snapshots(
    storage: Storage,
    actions: Sequence[TakeSnapshot],
    ended: Ended,
    unrecorded: Callable[[StatekeeperError], None],
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
) -> None:
    """Make the snapshots that a running job cannot wait for: one at a time, and without the lease.

    An error of the record does not stop them; `unrecorded` is called with it. A failure does not stop the others.
    """
    history = History.begin(storage, "snapshot", ids.fresh(), clock)
    done: list[Record] = []

    def record(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> None:
        done.append(as_json.of_outcome(action, outcome))
        ended(action, outcome)

    _reported(unrecorded, lambda: history.plan(map(as_json.of_action, actions)))
    snapshot.execute_all(storage, actions, record, scratch=scratch, workers=1, clock=clock, ids=ids)
    _reported(unrecorded, lambda: history.outcome(done))


def _reported(report: Callable[[StatekeeperError], None], work: Callable[[], None]) -> None:
    try:
        work()
    except StatekeeperError as error:
        report(error)


def _require_no_ids_in_v1(storage: Storage, actions: Sequence[TakeSnapshot]) -> None:
    """Require that no planned snapshot has an id if the checkpoint has structure V1.

    Race: the snapshots are planned; a switchover to structure V1 starts, ends, and releases the lease; a snapshot with an
    id is published, and no query starts beside it. A snapshot without an id does no harm in structure V2.
    """
    newest = catalog.newest_batch(storage)
    with_id = next((action for action in actions if action.version.id is not None), None)
    if with_id and newest is not None and catalog.structure_at(storage, newest) is Structure.V1:
        raise RefusedAsUnsafe(
            "the checkpoint was switched to structure V1 after the plan was made; no snapshot was made",
            path=with_id.path,
            hint="run this command again",
        )


def repair(storage: Storage, planned: RepairPlan, *, run: str, holder: str, clock: Clock) -> Iterator[RepairAction]:
    """Execute a repair plan; yield the action after each file. Raises as `repairs.execute`, and `RootHeld`."""
    with _leased(storage, "repair", run, map(as_json.of_repair, planned.actions), holder, clock) as (held, done):
        for action in repairs.execute(held.storage, planned, run=run):
            done.append(as_json.of_repair(action))
            held.beat()
            held.require()
            yield action


def rewind(
    storage: Storage,
    planned: RewindPlan,
    *,
    run: str,
    holder: str,
    clock: Clock,
    scratch: Path,
    sink: Storage | None = None,
) -> Iterator[RewindAction]:
    """Execute a rewind; yield the action after each file. `sink`: the output folder, if the plan has a file sink. Raises as
    `rewinds.execute`, and `RootHeld`."""
    with _leased(storage, "rewind", run, as_json.of_rewind(planned), holder, clock) as (held, done):
        guarded = None if sink is None else held.guarded(sink)
        for action in rewinds.execute(held.storage, planned, run=run, scratch=scratch, sink=guarded):
            done.append(as_json.of_rewind_action(action))
            held.beat()
            held.require()
            yield action


def undo_repair(
    storage: Storage,
    undone: str,
    *,
    run: str,
    holder: str,
    clock: Clock,
    verb: str = "repair",
    open_sink: Callable[[str], Storage] = open_storage,
) -> Iterator[str]:
    """Undo a repair, or another `verb`; yield the path of each restored file. `open_sink` opens the output folder of a
    query with a file sink. Raises as the functions of `undo`, and `RootHeld`."""
    with _leased(storage, verb, run, [{"undo": undone}], holder, clock) as (held, done):
        gathered = undo.gather(storage, undone, open_sink)
        guarded = None if gathered.sink is None else held.guarded(gathered.sink)
        for path in undo.execute(held.storage, undone, undo.plan(gathered), sink=guarded):
            done.append({"put_back": path})
            held.beat()
            held.require()
            yield path


def switch(
    storage: Storage,
    planned: SwitchPlan,
    progress: ProgressCallback,
    *,
    run: str,
    holder: str,
    machine: Machine,
    policy: AuditPolicy | None = None,
) -> Begun:
    """Execute a switchover. Raises as `switchover.execute`, and `RootHeld`."""
    with (
        lease.held(storage, "switch", run=run, holder=holder, clock=machine.clock) as held,
        recorded(storage, "switch", run, [as_json.of_switch_plan(planned)], machine.clock) as done,
    ):

        def record(step: Progress) -> None:
            done.append(as_json.of_progress(step))
            held.beat()
            progress(step)

        return switchover.execute(
            held.storage, planned, record, run=run, machine=machine, still_held=held.require, policy=policy
        )


def rewrite(
    storage: Storage,
    planned: RewritePlan | EditPlan,
    progress: ProgressCallback,
    *,
    run: str,
    holder: str,
    machine: Machine,
    policy: AuditPolicy | None = None,
    sink: Storage | None = None,
) -> Begun:
    """Execute a rewrite of native state. Raises as `rewrites.execute` or `edits.execute`, and `RootHeld`."""
    verb = planned.rewrite.value
    plan = as_json.of_edit_plan(planned) if isinstance(planned, EditPlan) else as_json.of_rewrite_plan(planned)
    with (
        lease.held(storage, verb, run=run, holder=holder, clock=machine.clock) as held,
        recorded(storage, verb, run, [plan], machine.clock) as done,
    ):

        def record(step: Progress) -> None:
            done.append(as_json.of_progress(step))
            held.beat()
            progress(step)

        still_held = held.require
        if sink is not None:
            sink = held.guarded(sink)
        if isinstance(planned, EditPlan):
            return edits.execute(
                held.storage, planned, record, run=run, machine=machine, still_held=still_held, policy=policy
            )
        return engine.execute(
            held.storage, planned, record, run=run, machine=machine, still_held=still_held, policy=policy, sink=sink
        )


def abort_switch(
    storage: Storage, journal: OpenJournal, progress: ProgressCallback, *, run: str, holder: str, clock: Clock
) -> None:
    """Roll back a half-done switchover. Raises as `switchover.roll_back`, `RootHeld`; `RefusedAsUnsafe` if it has ended."""
    with _reversed(storage, journal, run, holder, clock) as (now, held):
        switchover.roll_back(held.storage, now, progress, still_held=held.require)


def abort_rewrite(
    storage: Storage,
    journal: OpenJournal,
    progress: ProgressCallback,
    *,
    run: str,
    holder: str,
    clock: Clock,
    sink: Storage | None = None,
) -> None:
    """Reverse a half-done rewrite. Raises as the `roll_back` of its package; `RootHeld`; `RefusedAsUnsafe` if it has
    ended."""
    with _reversed(storage, journal, run, holder, clock) as (now, held):
        if now.begun.rewrite is RewriteKind.EDIT:
            edits.roll_back(held.storage, now, progress, still_held=held.require)
        else:
            guarded = None if sink is None else held.guarded(sink)
            engine.roll_back(held.storage, now, progress, still_held=held.require, sink=guarded)


def undo_rewrite(
    storage: Storage,
    undone: str,
    progress: ProgressCallback,
    rewrite: RewriteKind,
    *,
    run: str,
    holder: str,
    clock: Clock,
    open_sink: Callable[[str], Storage] = open_storage,
) -> Begun:
    """Reverse the completed edit, load or schema evolution of the run `undone`. If this is interrupted, the rewrite is half
    done again. `open_sink` opens the output folder of a query with a file sink.

    Raises as the `require_reversible` and `roll_back` of `edits` and `rewrites`; `HalfSwitched`, `RootHeld`.
    """
    with _leased(storage, rewrite.value, run, [{"undo": undone}], holder, clock) as (held, done):
        if rewrite is RewriteKind.LOAD:
            completed = engine.require_reversible(storage, undone)
        else:
            completed = edits.require_reversible(storage, undone, rewrite)
        entry = completed.begun.file_sink
        sink = None if entry is None else held.guarded(open_sink(entry.url))
        rewrite_journal.reopen(held.storage, completed.begun)
        if rewrite is RewriteKind.EDIT:
            edits.roll_back(held.storage, completed, progress, still_held=held.require)
        else:
            engine.roll_back(held.storage, completed, progress, still_held=held.require, sink=sink)
        done.append({"undone": completed.begun.number})
        return completed.begun


@contextmanager
def _reversed(
    storage: Storage, journal: OpenJournal, run: str, holder: str, clock: Clock
) -> Iterator[tuple[OpenJournal, HeldLease]]:
    """Hold the lease and record the reversal of a half-done switchover or rewrite, whose journal is read again."""
    begun = journal.begun
    verb = begun.rewrite.value
    with (
        lease.held(storage, verb, run=run, holder=holder, clock=clock) as held,
        recorded(storage, verb, run, [{"abort": begun.number}], clock) as done,
    ):
        # Race: another maintainer completes it while this run waits for quiet; the journal read before is old.
        now = rewrite_journal.open_journal(storage)
        if now is None or now.begun.number != begun.number:
            raise RefusedAsUnsafe(
                f"another process has ended the {begun.described} in the meantime; nothing was changed",
                path=names.switchover(begun.number, "ended"),
                hint="to reverse a completed switchover, run switch with --to. To reverse a completed edit, load or "
                "evolve, run it with --undo. To reverse another rewrite, run: statekeeper rewind",
            )
        yield now, held
        done.append({"aborted": begun.number})


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
    """Execute a retention plan that was made from these facts; yield the result of each request.

    `scratch`, `workers`: for the reads of the bases, as in `retention.execute`. Raises as `retention.execute`, and
    `RootHeld`.
    """
    run = ids.fresh()
    steps: list[Deleted] = []
    with _leased(storage, "gc", run, as_json.of_retention_plan(planned), holder, clock) as (held, done):
        executed = retention.execute(
            held.storage, planned, run=run, lease=held, clock=clock, scratch=scratch, workers=workers
        )
        for step in executed:
            steps.append(step)
            done.append(as_json.of_deleted(step))
            yield step
        retention.remember(held.storage, gathered, planned, steps)
