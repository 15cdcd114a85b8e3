"""One round over a fleet: discovers the queries, visits those that are due, and tells what changed.

    configuration + commit logs + memory -> the due queries, the longest tail first -> visits -> notices, memory

A broken query or root does not keep the others from being visited. While the configuration is invalid, the rounds use the
newest valid one, and a notice names the error. If a part of it is invalid, this holds for the part: a file of several, a
root or a parent.

*Race*: the process is killed in a visit. The next round visits the query again: a visit is recorded when it ends, and the
lease of the dead process expires after ten minutes.
"""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import BadConfiguration, StatekeeperError
from statekeeper.statestore.base.messages import with_name, with_next
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.base.workers import WORKERS, in_pool
from statekeeper.statestore.maintenance.rounds import due, metrics
from statekeeper.statestore.maintenance.rounds.due import Ask, Asked, Last
from statekeeper.statestore.maintenance.rounds.memory import Memory, Remembered
from statekeeper.statestore.maintenance.rounds.notices import Notice, Told, next_notice, sent, told_again
from statekeeper.statestore.maintenance.rounds.unchanged import Unchanged
from statekeeper.statestore.maintenance.rounds.visit import Problem, Status, Visit, failed_visit, visit
from statekeeper.statestore.maintenance.verbs import fleet as fleets
from statekeeper.statestore.maintenance.verbs.config import Configuration, Root, is_part
from statekeeper.statestore.maintenance.verbs.contract import Run
from statekeeper.statestore.maintenance.verbs.fleet import Fleet, Query, forget_seconds
from statekeeper.statestore.storage import Reads

_LOG = logging.getLogger(__name__)

SWEEP_SECONDS = 3600.0
"""Default age of a visit after which the next one follows, also without new batches: versions become garbage with time, and
a file can be lost at any time."""


@dataclass(frozen=True)
class Due:
    """A query to visit, with the reason. `new`: its versions since the newest visit."""

    query: Query
    asked: Asked
    new: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round.

    visits   of the due queries
    not_due  the reason by query
    absent   root -> its problem: it cannot be visited, or is expected and has no checkpoint. Also the fleet, by its name,
             if its configuration is invalid
    """

    visits: tuple[Visit, ...]
    not_due: Mapping[str, str]
    absent: Mapping[str, Problem]

    @property
    def status(self) -> Status:
        """The most urgent status that this round saw."""
        found = [*(one.status for one in self.visits), *(one.status for one in self.absent.values())]
        return max(found, default=Status.OK)


class Rounds:
    """Makes rounds over a fleet.

    name          of the fleet
    configured    reads the configuration; raises `BadConfiguration`
    people        what an invalid configuration says of the people to tell, as long as no valid one is known
    run_of        the run of a visit, with the share of the machine that it may use: (root, workers)
    command       options that a pasted command needs before its verb, such as `--config`
    tell          sends a notice to people, and returns what is left to send, as `Send`; the next look sends it
    visited       called after each visit, from one thread at a time
    sweep_seconds a query is visited at least this often
    """

    def __init__(
        self,
        name: str,
        configured: Callable[[], Configuration],
        run_of: Callable[[Root, int], Run],
        memory: Memory,
        *,
        clock: Clock,
        people: Callable[[], Configuration] = Configuration,
        command: tuple[str, ...] = (),
        tell: Callable[[Notice, Configuration], Notice | None] = lambda notice, configuration: None,
        visited: Callable[[Visit], None] = lambda visit: None,
        sweep_seconds: float = SWEEP_SECONDS,
        workers: int = WORKERS,
    ) -> None:
        self._name, self._configured, self._run_of, self._memory, self._clock = name, configured, run_of, memory, clock
        self._people, self._command, self._tell, self._visited = people, command, tell, visited
        self._sweep_seconds, self._workers = sweep_seconds, workers
        self._newest = Configuration()
        self._reads = Reads(clock)
        self._unchanged = Unchanged(clock)
        self._is_new = True
        self._refused: set[str] = set()

    def round(self, *, everything: bool = False) -> Round:
        """Make a round. `everything`: visit also the queries that are not due. Raises `LocalStateError`."""
        self._refused.clear()
        of_fleet = self._read_configuration()
        if self._is_new:
            # What a killed process was sending. Later, each look at a subject does this.
            self._is_new = False
            for subject in [name for name, one in self._memory.told.items() if one.unsent is not None]:
                self._tell_again(subject)
        asked = {name: one.asked for name, one in self._memory.queries.items()}
        committed = {name: one.version - 1 for name, one in asked.items() if one.version > 0}
        found = fleets.discover(self._newest, committed=committed)
        absent = dict(absent_in(found, self._newest, visited=self._memory.queries, command=self._command))
        for name, problem in absent.items():
            # A storage may answer again at the next look; a checkpoint that is gone, stays gone.
            self._look(name, problem.status, problem.text, is_certain=is_part(name) or name not in found.problems)
            if (remembered := self._memory.queries.get(name)) is not None:
                # The visit that follows when it can be read again tells the end of the problem.
                self._memory.queries[name] = replace(remembered, has_failed=True)
        self._forget(found, absent)
        decided = {name: self._decide(query, everything=everything) for name, query in found.queries.items()}
        # A query with new batches comes before one that is visited because of its age.
        to_visit = sorted((one for one in decided.values() if isinstance(one, Due)), key=lambda one: -one.new)
        visits: list[Visit] = []
        at_once = max(1, min(self._workers, len(to_visit)))
        share = max(1, self._workers // at_once)

        def ended(one: Due, outcome: Visit | StatekeeperError) -> None:
            if isinstance(outcome, StatekeeperError):
                raise outcome
            visits.append(outcome)
            self._remember(one, outcome)
            self._visited(outcome)

        in_pool(lambda one: self._visit(one, share), to_visit, ended, workers=at_once)
        self._memory.save()
        return Round(
            visits=tuple(visits),
            not_due={name: one for name, one in decided.items() if isinstance(one, str)},
            absent=absent if of_fleet.status is Status.OK else {self._name: of_fleet, **absent},
        )

    # -- what is due ----------------------------------------------------------------------------------------------------

    def _read_configuration(self) -> Problem:
        """Return the status of the configuration of this round, with its text."""
        try:
            self._newest = self._configured().keeping(self._newest)
        except BadConfiguration as error:
            if not self._newest.files:
                self._newest = self._people()
            read = Problem(Status.ERROR, str(error))
        else:
            read = Problem(*of_configuration(self._newest))
        self._look(self._name, read.status, read.text)
        return read

    def _forget(self, found: Fleet, absent: Mapping[str, Problem]) -> None:
        """Forget queries that the configuration no longer has. A notice closes each problem of what is gone, or of a parent
        that can be listed again."""
        for name in sorted({*self._memory.queries, *self._memory.told} - {self._name, *found.queries, *absent}):
            if not is_part(name) and (found.is_unseen(name) or name in self._newest.roots):
                continue
            remembered = self._memory.queries.get(name)
            gone = self._clock.now_seconds() - (remembered.visited_seconds if remembered else 0.0)
            if gone >= forget_seconds(self._newest, name):
                self._memory.queries.pop(name, None)
                self._look(name, Status.OK, why_gone(name, self._newest))

    def _decide(self, query: Query, *, everything: bool) -> Due | str:
        """Return why a query is due, or why not."""
        remembered, now = self._memory.queries.get(query.root.name), self._clock.now_seconds()
        last = Last.NONE
        if remembered is not None:
            # The schedule may have changed.
            latest = self._latest_seconds(query.root, remembered.asked, remembered.visited_seconds)
            self._memory.queries[query.root.name] = replace(remembered, due_seconds=latest)
            last = Last.FAILED if remembered.has_failed else Last.SUCCEEDED
        long_tail = query.root.policies.snapshot.changelogs
        decided = due.decide(
            query.version,
            None if remembered is None else remembered.asked,
            last,
            long_tail=long_tail,
            now_seconds=now,
            schedule=query.root.policies.schedule,
            sweep=None if remembered is None else (now - remembered.visited_seconds, self._sweep_seconds),
        )
        if isinstance(decided, Ask):
            return Due(query, decided.asked, decided.new, decided.reason)
        if everything:
            return Due(query, Asked(query.version, decided.asked.attempts + 1, now), decided.new, "asked for")
        return decided.reason

    def _latest_seconds(self, root: Root, asked: Asked, visited_seconds: float) -> float:
        """The latest time at which the visit after this one becomes due."""
        return due.latest_seconds(
            root.policies.schedule,
            newest_seconds=asked.at_seconds,
            visited_seconds=visited_seconds,
            sweep_seconds=self._sweep_seconds,
        )

    # -- visits ---------------------------------------------------------------------------------------------------------

    def _visit(self, one: Due, workers: int) -> Visit:
        name = one.query.root.name
        started = self._clock.monotonic_seconds()
        try:
            run = self._run_of(one.query.root, workers)
            run = replace(run, named=lambda text: self._pasteable(text, name))
            if one.new:
                return visit(name, run, reads=self._reads)
            return self._unchanged.visit(name, run, reads=self._reads)
        except Exception as error:  # noqa: BLE001 - a defect must not keep the other queries from being maintained
            _LOG.exception("visit of %s", printable(name))
            seconds, audit = self._clock.monotonic_seconds() - started, self._pasteable("statekeeper audit ROOT", name)
            return failed_visit(name, defect_of(error), seconds=seconds, next_command=audit)

    def _remember(self, one: Due, done: Visit) -> None:
        """Record a visit, and tell what changed."""
        root, before = one.query.root, self._memory.queries.get(one.query.root.name)
        has_failed = done.has_failed or done.is_held
        if done.is_unchanged and before is not None:
            versions, figures = before.asked.versions, before.figures
        else:
            versions = _versions_in(root, done)
            figures = metrics.gauges_of(done) if done.after is not None or before is None else before.figures
        asked = one.asked if has_failed else replace(one.asked, attempts=0, versions=versions)
        totals = Counter(before.totals if before else {})
        totals.update(metrics.counters_of(done))
        now = self._clock.now_seconds()
        self._memory.queries[root.name] = Remembered(
            asked=asked,
            visited_seconds=now,
            due_seconds=self._latest_seconds(root, asked, now),
            has_failed=has_failed,
            status=done.status,
            team=root.policies.team,
            figures=figures,
            totals=dict(totals),
        )
        if done.is_undecided:
            self._memory.save()
            return
        self._look(root.name, done.status, done.text, root=root, is_certain=done.is_certain)

    def _look(
        self, subject: str, status: Status, text: str, *, root: Root | None = None, is_certain: bool = True
    ) -> None:
        """Send the notice of a look at a subject, if the look changes what people know.

        The memory is saved before and after it. A process that is killed in between leaves an unsent notice.
        """
        if not self._tell_again(subject):
            return
        policies = root.policies if root is not None else self._newest.policies_if_named(subject)
        if subject == self._name:
            policies = self._newest.defaults
        told, notice = next_notice(
            subject,
            self._memory.told.get(subject),
            status,
            text,
            now_seconds=self._clock.now_seconds(),
            is_certain=is_certain,
            policies=policies,
        )
        self._know(subject, told)
        if told is not None and notice is not None:
            self._know(subject, sent(told, self._tell(notice, self._newest)))

    def _tell_again(self, subject: str) -> bool:
        """Send the notice that was left unsent, once in a round. Returns whether the next notice may follow it."""
        told = self._memory.told.get(subject)
        if told is not None and told.unsent is not None and subject not in self._refused:
            told = told_again(told, lambda notice: self._tell(notice, self._newest))
            self._know(subject, told)
            self._refused |= {subject} if told is not None and told.unsent is not None else set()
        return told is None or not told.is_waiting

    def _know(self, subject: str, told: Told | None) -> None:
        """Save what people know of a subject."""
        if told is None:
            self._memory.told.pop(subject, None)
        else:
            self._memory.told[subject] = told
        self._memory.save()

    def _pasteable(self, text: str, name: str) -> str:
        return with_name(text, name, before=self._command)


def of_configuration(configuration: Configuration) -> tuple[Status, str]:
    """Return the status of a valid configuration, and its reason."""
    if configuration.roots or configuration.parents or configuration.broken:
        return Status.OK, "the configuration is valid"
    return Status.ERROR, "the configuration names no root, so nothing is maintained -> add a table [roots.NAME]"


def absent_in(
    found: Fleet, configuration: Configuration, *, visited: Collection[str], command: tuple[str, ...]
) -> Iterator[tuple[str, Problem]]:
    """Yield the problems of what cannot be visited. A query or parent that is expected and has no checkpoint is one.

    `visited`: queries that had a committed batch before; `command`: options before the verb of a pasted command.
    """

    def next_command(name: str) -> str:
        # It shows the URL, the file that has it, and whether the checkpoint can be read now.
        root = configuration.root(name)
        if root is None:
            return shlex.join(["statekeeper", *command, "config", "check"])
        if root.file:
            return shlex.join(["statekeeper", *command, "config", "check", name])
        return with_name("statekeeper inspect ROOT", name, before=command)

    for name, problem in found.problems.items():
        yield name, Problem(Status.ERROR, with_next(problem, next_command(name)))
    for name in found.waiting:
        if name in visited:
            text = "the checkpoint has no committed batch any more: it was deleted or moved"
            yield name, Problem(Status.ERROR, with_next(text, next_command(name)))
        elif name in configuration.roots:
            text = "there is no committed batch yet. Start the query, or correct its url"
            yield name, Problem(Status.WARN, with_next(text, next_command(name)))
    for name in found.empty:
        url = configuration.parents[name].url
        if any(one.startswith(f"{name}.") for one in visited):
            text = f"there is no folder at {url} any more: its checkpoints were deleted or moved"
            yield name, Problem(Status.ERROR, with_next(text, next_command(name)))
        else:
            text = f"there is no folder at {url}. Start a query there, or correct the url"
            yield name, Problem(Status.WARN, with_next(text, next_command(name)))


def why_gone(subject: str, configuration: Configuration) -> str:
    """Return why a subject with a problem is no subject any more."""
    if is_part(subject):
        return "it is valid again, or no longer part of the configuration"
    return "it can be listed again" if subject in configuration.parents else "it is no longer part of the fleet"


def defect_of(error: Exception) -> StatekeeperError:
    """Return the error of a visit that ended with an exception."""
    if isinstance(error, StatekeeperError):
        return error
    return StatekeeperError(
        f"the visit ended with a defect of Statekeeper: {type(error).__name__}: {error}",
        hint="report it with the traceback in the log",
    )


def _versions_in(root: Root, done: Visit) -> int | None:
    """Return the number of new versions until the replay exceeds the restore target; None without a target."""
    target, snapshots = root.policies.snapshot.restore_target_seconds, done.snapshots
    if target is None or snapshots is None:
        return None
    return due.versions_in(target, snapshots.report().figures, long_tail=root.policies.snapshot.changelogs)
