"""How every verb runs: one order of steps, and one set of guards, for the command line, Dagster and Python.

    prepare(verb, run)     gather -> plan -> guards                                                 reads only
    perform(prepared)      guards -> stopped? -> plan again -> lease -> history -> execute

A `Verb` holds its options and states what it needs. A `Run` holds what every verb needs: the root, the process and what it
may use of the machine. A `Prepared` verb has its plan and `refusals`: typed errors of all that blocks it, and the only
answer to "may this verb run?". The guards of a verb that states nothing are the strictest, so that none can be forgotten.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import StatekeeperError, naming_root
from statekeeper.statestore.base.messages import with_name, without_root
from statekeeper.statestore.base.workers import PROCESS_BYTES, WORKERS
from statekeeper.statestore.contents.quiet import QUIET_SECONDS, require_stopped
from statekeeper.statestore.maintenance.executors import MEMORY_BYTES, Executor, LocalExecutor
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.records.history import Json, recorded
from statekeeper.statestore.maintenance.records.lease import BEAT_SECONDS, HeldLease
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.guards import Refusals
from statekeeper.statestore.maintenance.verbs.report import Report
from statekeeper.statestore.storage import Storage, open_storage

P = TypeVar("P")
S = TypeVar("S")
R = TypeVar("R")


@dataclass(frozen=True)
class Maintainer:
    """The process that executes a verb.

    `holder` names the process in the lease; `clock` and `ids` are its sources of time and of new ids; `quiet_seconds`: how
    long a checkpoint must not change before the query counts as stopped; `beat_seconds`: time between two renewals of a
    lease or hold by work whose steps may take hours.
    """

    holder: str
    clock: Clock
    ids: Ids
    quiet_seconds: float = QUIET_SECONDS
    _: KW_ONLY
    beat_seconds: float = BEAT_SECONDS


@dataclass(frozen=True, kw_only=True)
class Run:
    """What every verb needs.

    storage, policies   the root; for a copy, its source
    by                  the process that executes the verb
    scratch             local disk for temporary files
    id                  the id of the run in lease and history; a new one by default
    stopped             a person confirms that the query is stopped
    workers, memory_bytes, process_bytes  what the verb may use of this machine: see `Machine`
    kept_bytes          most bytes of SST files that stay below `scratch` for the next snapshots: see `snapshot.execute_all`
    cluster             runs the tasks of the verb elsewhere; None for this machine
    open_other          opens another location by its URL or name: the destination of a copy, the output of the query
    named               completes the commands of a message, which have a placeholder for the root; by default with its URL
    """

    storage: Storage
    policies: Policies = field(default_factory=Policies)
    by: Maintainer
    scratch: Path
    id: str = ""
    stopped: bool = False
    workers: int = WORKERS
    memory_bytes: int = MEMORY_BYTES
    process_bytes: int = PROCESS_BYTES
    kept_bytes: int = 0
    cluster: Executor | None = None
    open_other: Callable[[str], Storage] = open_storage
    named: Callable[[str], str] | None = None

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", self.by.ids.fresh())

    @property
    def clock(self) -> Clock:
        """The clock of the process."""
        return self.by.clock

    @property
    def executor(self) -> Executor:
        """Runs the tasks of the verb."""
        return self.executor_of(self.workers)

    def executor_of(self, workers: int) -> Executor:
        """Return what runs tasks: the cluster, or `workers` at a time this machine."""
        return self.cluster or LocalExecutor(
            scratch=self.scratch,
            clock=self.by.clock,
            ids=self.by.ids,
            memory_bytes=self.memory_bytes,
            workers=workers,
        )

    @property
    def workers_here(self) -> int:
        """The stores that are on the local disk of this machine at a time: none if a cluster has them."""
        return self.workers if self.cluster is None else 0

    def pasteable(self, text: str) -> str:
        """Return a text with commands that can be pasted."""
        if self.named is None:
            return with_name(text, self.storage.url)
        # Findings of an audit have the URL.
        return self.named(without_root(text, self.storage.url))

    def naming_root(self) -> AbstractContextManager[None]:
        """Complete the commands of an error that is raised."""
        return naming_root(self.pasteable)

    def lease_of(self, storage: Storage, verb: str) -> AbstractContextManager[HeldLease]:
        """Hold the lease of a root for this run. Raises `RootHeld`."""
        by = self.by
        return lease.held(storage, verb, run=self.id, holder=by.holder, clock=by.clock, beat_seconds=by.beat_seconds)

    def require_stopped(self, *, confirmed: bool) -> None:
        """Require that the query is stopped. Raises `RefusedAsUnsafe`."""
        require_stopped(self.storage, confirmed=confirmed, clock=self.by.clock, seconds=self.by.quiet_seconds)


@dataclass(frozen=True)
class Work(Generic[S]):
    """The execution of one plan.

    `storage`: for the work under the lease; `tell`: called after each step; `done`: the outcome that the history records.
    """

    storage: Storage
    tell: Callable[[S], None]
    done: list[Json] = field(default_factory=list)
    held: HeldLease | None = None

    @property
    def lease(self) -> HeldLease:
        """The lease of a verb that needs it."""
        assert self.held is not None
        return self.held


class Verb(ABC, Generic[P, S, R]):
    """What a person or a schedule asks for, with its options. `P`: its plan, `S`: a step of the execution, `R`: the result.

    `shows_refused_plans`: an execution returns a plan that refuses itself, and does not raise the refusal.
    """

    shows_refused_plans: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """The verb in the lease and in the history."""

    @abstractmethod
    def plan(self, run: Run) -> P:
        """Gather the facts and plan. Reads only."""

    def plan_again(self, run: Run, first: P) -> P:
        """Plan again after the query is verified as stopped: it may have been running when the first plan was made."""
        del first
        return self.plan(run)

    def has_work(self, plan: P) -> bool:
        """Return whether the execution would do something. Nothing guards a plan without work."""
        del plan
        return True

    def refusals(self, run: Run, plan: P) -> Iterable[StatekeeperError]:
        """Return why the plan itself must not be executed."""
        del run, plan
        return ()

    def allowed(self, run: Run, plan: P) -> StatekeeperError | None:
        """Require that the mode of the root allows the verb."""
        del plan
        return guards.rewrites(run.storage, run.policies)

    def no_rewrite_begun(self, run: Run) -> StatekeeperError | None:
        """Require that no rewrite is half done."""
        return guards.half_switched(run.storage)

    def unheld(self, run: Run, plan: P) -> Refusals:
        """Require that no other maintainer works on the root."""
        del plan
        return guards.refusals(guards.unheld(run.storage, run.clock))

    def needs_stopped(self, plan: P) -> bool:
        """Return whether the plan is safe only while the query is stopped."""
        del plan
        return True

    def is_confirmed(self, run: Run, plan: P) -> bool:
        """Return whether a person has confirmed that the query is stopped."""
        del plan
        return run.stopped

    def record(self, plan: P) -> Iterable[Json]:
        """Encode the plan for the history."""
        del plan
        return ()

    def record_step(self, step: S) -> Json | None:
        """Encode a step for the history; None to leave it out."""
        del step
        return None

    @contextmanager
    def work(self, run: Run, plan: P, told: Callable[[S], None]) -> Iterator[Work[S]]:
        """Hold the lease, and record plan and outcome in the history. Raises `HalfSwitched`, `RootHeld`, `StorageError`."""
        with run.lease_of(run.storage, self.name) as held:
            if (begun := self.no_rewrite_begun(run)) is not None:
                raise begun
            with recorded(run.storage, self.name, run.id, self.record(plan), run.clock) as done:

                def tell(step: S) -> None:
                    record = self.record_step(step)
                    if record is not None:
                        done.append(record)
                    held.beat()
                    told(step)

                yield Work(held.storage, tell, done, held)

    @abstractmethod
    def execute(self, run: Run, plan: P, work: Work[S]) -> R:
        """Execute the plan under the lease; call `work.tell` after each step."""

    @abstractmethod
    def report(self, prepared: Prepared[P, S, R]) -> Report:
        """Report a plan, or its execution. `Prepared.report` completes its commands."""


class CompletesRewrites(Verb[P, S, R]):
    """A verb that completes or reverses a half-done rewrite. Its plan refuses one of another kind."""

    def no_rewrite_begun(self, run: Run) -> StatekeeperError | None:
        return None


class Unleased(Verb[P, S, R]):
    """A verb that works beside any other one: it needs no lease, and the history does not record it."""

    def unheld(self, run: Run, plan: P) -> Refusals:
        return ()

    def needs_stopped(self, plan: P) -> bool:
        return False

    @contextmanager
    def work(self, run: Run, plan: P, told: Callable[[S], None]) -> Iterator[Work[S]]:
        yield Work(run.storage, told)


@dataclass(frozen=True, kw_only=True)
class Prepared(Generic[P, S, R]):
    """A verb with its plan, and what blocks it.

    refusals     all that blocks the execution, the lease of another maintainer last
    own          whether the plan refuses itself
    made         the result of the execution; None before it, and if nothing was executed
    is_done      whether the plan was executed, in `seconds`
    """

    verb: Verb[P, S, R]
    run: Run
    plan: P
    refusals: Refusals
    own: bool
    made: R | None = None
    is_done: bool = False
    seconds: float = 0.0

    @property
    def may_start(self) -> bool:
        """Return whether the plan has work and nothing blocks it."""
        return self.verb.has_work(self.plan) and not self.refusals

    def phase(self, done: str) -> str:
        """Return the phase of a report. `done`: that of an executed plan."""
        if self.is_done:
            return done
        if not self.verb.has_work(self.plan):
            return "complete"
        return "refused" if self.refusals else "planned"

    def report(self) -> Report:
        """Report the plan, or its execution, with commands that can be pasted."""
        return self.verb.report(self).named(self.run.pasteable)


def prepare(verb: Verb[P, S, R], run: Run) -> Prepared[P, S, R]:
    """Plan a verb, and find what blocks it. Reads only. Raises as the plan of the verb, and `StorageError`."""
    with run.naming_root():
        return _guarded(verb, run, verb.plan(run))


def _guarded(verb: Verb[P, S, R], run: Run, planned: P) -> Prepared[P, S, R]:
    own = tuple(verb.refusals(run, planned))
    found = own
    if verb.has_work(planned):
        first = guards.refusals(verb.allowed(run, planned), verb.no_rewrite_begun(run))
        # The lease of a dead run expires by itself, and each other refusal names something to do.
        found = (*first, *own, *verb.unheld(run, planned))
    for refusal in found:
        refusal.name_root(run.pasteable)
    return Prepared(verb=verb, run=run, plan=planned, refusals=found, own=bool(own))


def perform(
    prepared: Prepared[P, S, R],
    told: Callable[[S], None] = lambda step: None,
    *,
    starting: Callable[[], None] = lambda: None,
) -> Prepared[P, S, R]:
    """Execute a prepared verb. `told` is called after each step, `starting` when nothing blocks the execution.

    Returns the executed plan with its result. It is made again after the query is verified as stopped. Without work,
    nothing is executed. Raises the first refusal; `RefusedAsUnsafe` while the query runs; `HalfSwitched`, `RootHeld`,
    `LeaseLost`, `StorageError`; `UnsupportedEnvironment` if the cluster cannot run tasks; as the execution of the verb.
    """
    verb, run = prepared.verb, prepared.run
    if not _starts(prepared):
        return prepared
    with run.naming_root():
        if verb.needs_stopped(prepared.plan):
            run.require_stopped(confirmed=verb.is_confirmed(run, prepared.plan))
            prepared = _guarded(verb, run, verb.plan_again(run, prepared.plan))
            if not _starts(prepared):
                return prepared
        run.executor.require_ready()
        starting()
        started = run.clock.monotonic_seconds()
        made = execute(verb, run, prepared.plan, told)
    return replace(prepared, made=made, is_done=True, seconds=run.clock.monotonic_seconds() - started)


def _starts(prepared: Prepared[P, S, R]) -> bool:
    """Return whether the plan is to be executed; if not, `perform` returns it. Raises the first refusal."""
    verb = prepared.verb
    if not verb.has_work(prepared.plan) or (prepared.own and verb.shows_refused_plans):
        return False
    guards.require_none(prepared.refusals)
    return True


def execute(verb: Verb[P, S, R], run: Run, plan: P, told: Callable[[S], None] = lambda step: None) -> R:
    """Execute a plan under the lease, and record it in the history. The caller has verified the guards, except the lease
    and that no rewrite is half done. Raises as `perform`."""
    with verb.work(run, plan, told) as work:
        return verb.execute(run, plan, work)


def unattended(prepared: Prepared[P, S, R], told: Callable[[S], None] = lambda step: None) -> Prepared[P, S, R]:
    """Execute a plan for a schedule if the mode allows it. `told` as for `perform`. Raises as `perform`, but not for a mode
    that does not allow the verb."""
    verb, run = prepared.verb, prepared.run
    if verb.allowed(run, prepared.plan) is None:
        return perform(prepared, told)
    with run.naming_root():
        guards.require_none(verb.refusals(run, prepared.plan))
    return prepared
