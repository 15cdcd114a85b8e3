"""A visit to one query: takes the snapshots that are due, audits, and applies retention.

The plan of retention contains the audit. A second audit follows only if files were deleted. The steps share what they read,
but not the listings: see `_Looks`.

Spark maintains the checkpoints of its default provider itself, in the executors. A visit only audits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from statekeeper.statestore.base.errors import (
    CorruptFile,
    LeaseLost,
    RootHeld,
    StatekeeperError,
    UnsupportedProvider,
    VersionNotLoadable,
)
from statekeeper.statestore.base.messages import after_each_step, counted, with_next
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import Audit, Severity
from statekeeper.statestore.maintenance.upkeep.retention import Deleted, DeletionOutcome
from statekeeper.statestore.maintenance.verbs.audit import Looked, described, judged
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, perform, prepare, unattended
from statekeeper.statestore.maintenance.verbs.retention import PlannedRetention, Retention
from statekeeper.statestore.maintenance.verbs.snapshot import (
    Ended,
    PlannedSnapshots,
    Snapshot,
    Snapshots,
    long_tail,
)
from statekeeper.statestore.storage import Reads, RememberingStorage, RequestCounts

_DAMAGES = (CorruptFile, VersionNotLoadable)
"""Errors that do not pass by themselves."""


class Status(IntEnum):
    """The status of a query, in the order of urgency."""

    OK = 0
    """Nothing to do."""
    WARN = 1
    """It needs attention: a restart is slow, or depends on a single file."""
    ERROR = 2
    """State is lost or wrong, the query cannot be read, or maintenance fails."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with a query: the file, the problem, the consequence and the next command."""

    status: Status
    text: str


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What a visit did, and what it found.

    snapshots   the plan and its execution; None if it could not be planned
    retention   likewise
    audited     the audit before the deletions, with its facts and its forecast; None if the checkpoint could not be audited
    after       the audit of what the visit left; likewise
    errors      of the steps that failed; the other steps were made
    failed      the verbs of these steps
    problems    the most urgent first

    is_unchanged  only the files were listed: they are those of an earlier visit, which had nothing to do. Its audit and its
                  problems are shown again
    is_left_to_spark  the query uses Spark's default provider, whose snapshots and deletions Spark makes: only audited
    """

    name: str
    snapshots: Prepared[PlannedSnapshots, Ended, Snapshots] | None
    retention: Prepared[PlannedRetention, Deleted, tuple[Deleted, ...]] | None
    audited: Looked | None = None
    after: Audit | None
    errors: tuple[StatekeeperError, ...]
    failed: frozenset[str] = frozenset()
    problems: tuple[Problem, ...]
    requests: RequestCounts
    seconds: float
    is_unchanged: bool = False
    is_left_to_spark: bool = False

    @property
    def status(self) -> Status:
        """The most urgent status of its problems."""
        return max((one.status for one in self.problems), default=Status.OK)

    @property
    def is_held(self) -> bool:
        """Whether another maintainer held the query. It was audited, and the rest is left to the next visit."""
        return any(isinstance(error, RootHeld | LeaseLost) for error in self.errors)

    @property
    def has_failed(self) -> bool:
        """Whether the next visit should follow before new batches require it."""
        return bool(self.errors) or self.status is Status.ERROR

    @property
    def text(self) -> str:
        """The text of a notice of this visit."""
        if not self.problems:
            return "its audit has no finding"
        text = self.problems[0].text
        if len(self.problems) == 1:
            return text
        # The command stays at the end.
        head, mark, command = text.rpartition(". Next: ")
        more = f"({counted(len(self.problems) - 1, 'more problem')})"
        return f"{head} {more}{mark}{command}" if mark else f"{text} {more}"

    @property
    def is_certain(self) -> bool:
        """Whether the status cannot pass by itself, as a storage that does not answer can."""
        is_damaged = any(isinstance(one, _DAMAGES) for one in self.errors)
        return not self.errors or is_damaged or (self.after is not None and bool(self.after.findings))

    @property
    def is_undecided(self) -> bool:
        """Whether the visit says nothing of the status: what another maintainer is doing may be the cure."""
        return self.is_held and self.status is Status.OK

    @property
    def deleted(self) -> tuple[Deleted, ...]:
        """The deletions that were made."""
        return (self.retention.made or ()) if self.retention else ()

    @property
    def taken(self) -> Snapshots:
        """The snapshots that were taken, and that failed."""
        return (self.snapshots.made or Snapshots()) if self.snapshots else Snapshots()


def visit(
    name: str,
    run: Run,
    *,
    reads: Reads | None = None,
    takes: bool = True,
    deletes: bool = True,
    told: Callable[[str], None] = lambda progress: None,
) -> Visit:
    """Visit a query. `run`: of the snapshots; retention gets a run of its own. `reads`: what earlier visits have read.
    `takes`, `deletes`: False to only plan snapshots, or retention. `told`: called with the progress after each step.

    Plans and audits do not repeat reads. What is executed reads the files themselves: that is the check before a deletion.

    A `StatekeeperError` of a step does not stop the others. Retention deletes nothing while the audit reports errors.
    """
    before, started = run.storage.requests.snapshot(), run.clock.monotonic_seconds()
    errors: list[StatekeeperError] = []
    failed: set[str] = set()
    snapshots = retained = audited = after = None
    reads = Reads(run.clock) if reads is None else reads
    looks = _Looks(run, reads)
    try:
        snapshots = replace(prepare(Snapshot(), looks.run), run=run)
        if takes:
            stores = len(snapshots.plan.plan.take)
            snapshots = unattended(
                snapshots, after_each_step(told, lambda done: f"snapshots: {done:,} of {stores:,} stores")
            )
    except UnsupportedProvider as error:
        done = _only_audited(name, run, looks.run, error)
        if done.after is not None:
            looks.keep_reads()
        seconds = run.clock.monotonic_seconds() - started
        return replace(done, requests=run.storage.requests.since(before), seconds=seconds)
    except StatekeeperError as error:
        errors.append(error)
        failed.add(Snapshot.name)
    else:
        not_taken = [error for _, error in (snapshots.made or Snapshots()).failed]
        errors += not_taken
        failed |= {Snapshot.name} if not_taken else set()
    try:
        by_itself = replace(run, id=run.by.ids.fresh())
        retained = replace(prepare(Retention(), replace(by_itself, storage=looks.run.storage)), run=by_itself)
        planned = retained.plan
        audited = Looked(planned.facts, planned.before, planned.forecast, run.storage.requests.since(before))
        after = planned.before
        not_made: list[StatekeeperError] = []
        if deletes and _deletes(retained):
            retained = perform(retained, after_each_step(told, lambda done: f"retention: {counted(done, 'step')}"))
            not_made += _damages(retained.made or ())
            looks.renew()
            after = judged(audit.gather(looks.run.storage), run.policies)
        elif deletes:
            not_made += (one for one in retained.refusals if _says_more(one, retained))
        errors += not_made
        failed |= {Retention.name} if not_made else set()
    except StatekeeperError as error:
        errors.append(error)
        failed.add(Retention.name)
        if retained is None:
            audited = _audited(looks.run)
            after = None if audited is None else audited.audit
    if after is not None:
        looks.keep_reads()
    for one in errors:
        one.name_root(run.pasteable)
    found = tuple(dict.fromkeys(_problems(run, snapshots, after, errors)))
    return Visit(
        name=name,
        snapshots=snapshots,
        retention=retained,
        audited=audited,
        after=after,
        errors=tuple(errors),
        failed=frozenset(failed),
        problems=tuple(sorted(found, key=lambda one: -one.status)),
        requests=run.storage.requests.since(before),
        seconds=run.clock.monotonic_seconds() - started,
    )


class _Looks:
    """The looks of a visit at the files of a query. They share what they read, and it stays on local disk for the next
    process. Each step lists the files itself.

    *Race*: with a shared listing of the commits and a later one of the offsets, a batch that the query commits in between
    seems to be lost (ADR 060).
    """

    def __init__(self, run: Run, reads: Reads) -> None:
        from statekeeper.statestore.store.engine.kept_tables import kept_tables_of

        self._run, self._reads = run, reads
        tables = kept_tables_of(run.storage.url, run.scratch, run.kept_bytes, run.clock)
        self._kept = None if tables is None else tables.of(run.storage.url, "")
        if self._kept is not None:
            reads.unpack(run.storage.url, self._kept.reads)
        self._storage = RememberingStorage(run.storage, reads)

    @property
    def run(self) -> Run:
        """The run for a plan, or for an audit."""
        return replace(self._run, storage=self._storage)

    def renew(self) -> None:
        """Begin a new look, because files were deleted."""
        self._storage = RememberingStorage(self._run.storage, self._reads)

    def keep_reads(self) -> None:
        """Keep what was read. Call this after a whole audit, which lists all files."""
        packed = None if self._kept is None else self._reads.pack(self._run.storage.url, self._storage.listed)
        if self._kept is not None and packed is not None:
            self._kept.keep_reads(packed)


def _audited(run: Run) -> Looked | None:
    """Audit a checkpoint for which no retention can be planned. None if it cannot be audited either."""
    try:
        return _audit(run)
    except StatekeeperError:
        return None


def _audit(run: Run) -> Looked:
    before = run.storage.requests.snapshot()
    facts = audit.gather(run.storage)
    return Looked(facts, judged(facts, run.policies), None, run.storage.requests.since(before))


def _only_audited(name: str, run: Run, looking: Run, unsupported: UnsupportedProvider) -> Visit:
    """Visit a query whose snapshots Statekeeper cannot take. With Spark's default provider, that is no error.

    `looking`: the run with remembered reads.
    """
    audited: Looked | None = None
    errors: list[StatekeeperError] = []
    try:
        audited = _audit(looking)
    except StatekeeperError as error:
        errors.append(error)
    is_left_to_spark = audited is not None and audited.facts.root.provider is Provider.HDFS_BACKED
    if audited is not None and not is_left_to_spark:
        errors.append(unsupported)
    for one in errors:
        one.name_root(run.pasteable)
    after = None if audited is None else audited.audit
    return Visit(
        name=name,
        snapshots=None,
        retention=None,
        audited=audited,
        after=after,
        errors=tuple(errors),
        failed=frozenset({Snapshot.name, Retention.name} if errors else ()),
        problems=tuple(dict.fromkeys(_problems(run, None, after, errors))),
        requests=RequestCounts(),
        seconds=0.0,
        is_left_to_spark=is_left_to_spark,
    )


def failed_visit(name: str, error: StatekeeperError, *, seconds: float, next_command: str) -> Visit:
    """Return a visit that could not begin, or ended with a defect."""
    return Visit(
        name=name,
        snapshots=None,
        retention=None,
        after=None,
        errors=(error,),
        failed=frozenset({Snapshot.name, Retention.name}),
        problems=(Problem(Status.ERROR, with_next(str(error), next_command)),),
        requests=RequestCounts(),
        seconds=seconds,
    )


def _deletes(prepared: Prepared[PlannedRetention, Deleted, tuple[Deleted, ...]]) -> bool:
    """Return whether to execute a plan. A plan without deletions is executed if it examined stores and that is remembered:
    the next plan examines only stores that changed since."""
    is_allowed = prepared.verb.allowed(prepared.run, prepared.plan) is None
    planned = prepared.plan.plan
    remembers = bool(planned.stores) and prepared.plan.gathered.is_remembered
    return is_allowed and prepared.may_start and bool(planned.deletions or remembers)


def _says_more(refusal: StatekeeperError, prepared: Prepared[PlannedRetention, Deleted, tuple[Deleted, ...]]) -> bool:
    """Return whether a refusal is a failure of the visit. The mode is a choice, and the audit tells its own findings."""
    allowed = prepared.verb.allowed(prepared.run, prepared.plan)
    is_mode = allowed is not None and type(refusal) is type(allowed) and refusal.what == allowed.what
    return not is_mode and not (prepared.own and prepared.plan.before.breaks)


def _damages(done: tuple[Deleted, ...]) -> Iterator[StatekeeperError]:
    for step in done:
        if step.outcome is DeletionOutcome.DAMAGED:
            yield CorruptFile(f"{step.outcome.value}: {step.detail}", path=str(step.store))


def _problems(
    run: Run,
    snapshots: Prepared[PlannedSnapshots, Ended, Snapshots] | None,
    after: Audit | None,
    errors: list[StatekeeperError],
) -> Iterator[Problem]:
    """Yield the findings of the audit first: a step that fails because of a damage names only its own part of it."""
    if after is not None and after.findings:
        worst = after.findings[0].severity
        text = with_next(described(after.findings), "statekeeper audit ROOT")
        yield Problem(Status.ERROR if worst is Severity.ERROR else Status.WARN, run.pasteable(text))
    for error in errors:
        if not isinstance(error, RootHeld | LeaseLost):
            # An audit without --deep does not read the contents of changelogs.
            audit_it = f"statekeeper audit ROOT{' --deep' if isinstance(error, _DAMAGES) else ''}"
            yield Problem(Status.ERROR, run.pasteable(with_next(str(error), audit_it)))
    if snapshots is not None and not any(isinstance(error, RootHeld | LeaseLost) for error in errors):
        # Otherwise the other maintainer may be taking the snapshots.
        tail = long_tail(snapshots.plan, snapshots.made or Snapshots(), run.policies.snapshot.changelogs)
        if tail is not None:
            yield Problem(Status.WARN, run.pasteable(with_next(tail, "statekeeper inspect ROOT")))
