"""Plans and makes whole-query drills: a command of the user starts the query on a clone, which must commit."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError, WrongOption
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import has_secret
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.executors.submit import has_cluster_driver
from statekeeper.statestore.maintenance.records.history import Json, PlannedStart, StartedQuery, recorded
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import Severity
from statekeeper.statestore.maintenance.upkeep.drill.start import CHECKPOINT, VARIABLE, Ran, start
from statekeeper.statestore.maintenance.upkeep.snapshot.gather import LIVE_MARGIN_VERSIONS
from statekeeper.statestore.maintenance.verbs.clone import Clone
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Unleased, Work, perform, prepare
from statekeeper.statestore.maintenance.verbs.options import option
from statekeeper.statestore.maintenance.verbs.report import Report, as_objects
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.scratch import work_folder


@dataclass(frozen=True, kw_only=True)
class PlannedQueryDrill:
    """`batch`: the one to clone; None if there is none; `head`: the newest one. The query must commit the batch after
    `batch` again."""

    mode: Mode
    origin: Origin
    batch: int | None
    head: int | None
    command: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class QueryDrill:
    """The result. `wanted`: the batch that the query must commit; `problems`: errors that an audit of the clone found after
    the query had ended."""

    ran: Ran
    wanted: int
    clone_seconds: float
    problems: tuple[str, ...] = ()

    @property
    def is_green(self) -> bool:
        """Return whether the query committed the batch again, into an intact checkpoint."""
        return self.ran.batch is not None and self.ran.batch >= self.wanted and not self.problems

    @property
    def explained(self) -> str:
        """The result in a sentence."""
        ran = self.ran
        if self.problems:
            return f"the query committed, but the audit of the clone has errors: {self.problems[0]}"
        if self.is_green:
            return f"the query committed batch {self.wanted:,} again, {ran.seconds:,.1f} s after its start"
        newest = "no batch" if ran.batch is None else f"batch {ran.batch:,}"
        end = "the time was over" if ran.exit_code is None else f"the command ended with exit code {ran.exit_code}"
        return f"the query did not commit batch {self.wanted:,}: {end} after {ran.seconds:,.1f} s, at {newest}"


@dataclass(frozen=True, kw_only=True)
class StartDrill(Unleased[PlannedQueryDrill, str, QueryDrill]):
    """Clone an earlier batch, start the query on the clone, and wait until it commits the newest batch again.

    The root is only read. The clone is deleted at the end. The query must write nowhere: see `VARIABLE`.
    """

    name = "drill"
    command: str = option(
        "Start the whole query: this command runs on a clone of the batch before the newest one, and must commit the "
        f"newest batch again. {CHECKPOINT} in it becomes the location of the clone. The query must write nowhere: it finds "
        f"{VARIABLE}=1 in its environment. Restores no single stores.",
        flag="--start",
        metavar="COMMAND",
    )
    place: str | None = option(
        "Where to put the clone for --start: a URL that the query can read. Default: a folder in --scratch.",
        default=None,
        flag="--start-in",
        metavar="LOCATION",
    )
    most_seconds: float = option(
        "Time for the query to commit with --start, for example 10m.", default=600.0, flag="--start-timeout"
    )

    def plan(self, run: Run) -> PlannedQueryDrill:
        """Raises `WrongOption` for a command without the clone; `NotACheckpoint`, `CorruptFile`, `StorageError`."""
        command = _words(self.command)
        if run.stopped:
            run.require_stopped(confirmed=True)
        head = catalog.newest_batch(run.storage)
        batch = None if head is None else head - self._margin(run, head)
        origin = origin_of(run.storage)
        return PlannedQueryDrill(
            mode=run.policies.mode_for(origin),
            origin=origin,
            batch=batch if batch is not None and batch >= 0 else None,
            head=head,
            command=command,
        )

    @staticmethod
    def _margin(run: Run, head: int) -> int:
        # In structure V1, a running query may replace the changelogs of its newest batches.
        is_final = run.stopped or catalog.structure_at(run.storage, head) is Structure.V2
        return 1 if is_final else LIVE_MARGIN_VERSIONS

    def refusals(self, run: Run, plan: PlannedQueryDrill) -> Iterable[StatekeeperError]:
        if plan.origin is Origin.OWN:
            yield RefusedAsUnsafe(
                "is a job root, whose query has a checkpoint of its own; --start works for native queries; nothing was "
                "started",
                path=run.storage.url,
                hint="to restore its stores, run: statekeeper drill ROOT",
            )
        elif plan.batch is None:
            yield RefusedAsUnsafe(
                "has too few committed batches: --start clones an earlier batch than the newest one; nothing was started",
                path=run.storage.url,
                hint="run the query until it has committed three batches",
            )

    def allowed(self, run: Run, plan: PlannedQueryDrill) -> StatekeeperError | None:
        return None

    @contextmanager
    def work(self, run: Run, plan: PlannedQueryDrill, told: object) -> Iterator[Work[str]]:
        """Record plan and outcome. In mode `observe`, nothing is written below the root."""
        if plan.mode is Mode.OBSERVE:
            yield Work(run.storage, lambda step: None)
            return
        with recorded(run.storage, self.name, run.id, self.record(plan), run.clock) as done:
            yield Work(run.storage, lambda step: None, done)

    def record(self, plan: PlannedQueryDrill) -> Iterable[Json]:
        assert plan.batch is not None
        yield PlannedStart(start_at=plan.batch, commit=plan.batch + 1).encode()

    def execute(self, run: Run, plan: PlannedQueryDrill, work: Work[str]) -> QueryDrill:
        """Clone, start and audit. Raises as `Clone` and `start`."""
        with work_folder(run.scratch, "drill") as folder:
            folder.mkdir(exist_ok=True)
            # As it was given: Spark reads s3a:// where Statekeeper says s3://.
            url = str(folder / "checkpoint") if self.place is None else f"{self.place.rstrip('/')}/drill-{run.id}"
            clone = run.open_other(url)
            try:
                made = self._made(run, plan, url, clone, folder)
            finally:
                clone.delete(entry.path for entry in clone.list("", hidden=True))
        line = StartedQuery(
            committed=made.ran.batch,
            seconds=round(made.ran.seconds, 3),
            is_green=made.is_green,
            detail=made.explained,
        )
        work.done.append(line.encode())
        return made

    def _made(self, run: Run, plan: PlannedQueryDrill, url: str, clone: Storage, folder: Path) -> QueryDrill:
        assert plan.batch is not None
        began = run.clock.monotonic_seconds()
        # With the id of the query, a Delta table would skip batches of the query itself that the drill wrote by mistake.
        copy = Clone(destination=url, batch=plan.batch, new_query=True)
        perform(prepare(copy, replace(run, id="")))
        cloned = run.clock.monotonic_seconds()
        ran = start(
            [word.replace(CHECKPOINT, url) for word in plan.command],
            newest=lambda: catalog.newest_batch(clone),
            wanted=plan.batch + 1,
            most_seconds=self.most_seconds,
            log=folder / "log",
            clock=run.clock,
        )
        is_new = ran.batch is not None and ran.batch > plan.batch
        found = audit.judge(audit.gather(clone)).findings if is_new else ()
        problems = tuple(f"{one.place} {one.problem}" for one in found if one.severity is Severity.ERROR)
        return QueryDrill(ran=ran, wanted=plan.batch + 1, clone_seconds=cloned - began, problems=problems)

    def report(self, prepared: Prepared[PlannedQueryDrill, str, QueryDrill]) -> Report:
        plan, made = prepared.plan, prepared.made
        record: Json = {
            "batch": plan.batch,
            "head": plan.head,
            "command": list(plan.command),
            "refusals": as_objects(prepared.refusals),
        }
        planned = (
            f"clone batch {plan.batch}, start the query on the clone, and wait until it commits batch "
            f"{(plan.batch or 0) + 1} again",
            f"start: {shlex.join(plan.command)}",
            f"the query must write nowhere: it finds {VARIABLE}=1 in its environment",
        )
        if made is None:
            lines = () if prepared.refusals else planned
            return Report(record=record, phase=prepared.phase("started"), lines=lines)
        output = () if made.is_green else tuple(f"  {line}" for line in made.ran.lines)
        more = (f"the last {counted(len(output), 'line')} of its output:", *output) if output else ()
        return Report(
            record={
                **record,
                "is_green": made.is_green,
                "result": made.explained,
                "committed": made.ran.batch,
                "exit_code": made.ran.exit_code,
                "clone_seconds": round(made.clone_seconds, 3),
                "seconds": round(made.ran.seconds, 3),
                "problems": list(made.problems),
            },
            phase=prepared.phase("started"),
            facts={"result": made.explained},
            figures={"seconds": round(made.ran.seconds, 3), "clone_seconds": round(made.clone_seconds, 3)},
            done=(f"{made.explained}; the clone took {made.clone_seconds:,.1f} s", *more),
        )


def _words(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise WrongOption(f"the command of --start cannot be read: {error}", hint="correct its quotes") from error
    if not any(CHECKPOINT in word for word in words):
        raise WrongOption(
            f"the command of --start does not contain {CHECKPOINT}, so it would start the query on its own checkpoint; "
            "nothing was started",
            hint="for example: --start 'spark-submit orders.py --checkpoint {checkpoint}'",
        )
    if (secret := next((word for word in words if has_secret(word)), None)) is not None:
        raise WrongOption(
            f"the command of --start has a secret: {secret.partition('=')[0]}; each user of the machine sees the words of "
            "a command; nothing was started",
            hint="give the secret in the environment of the command",
        )
    if has_cluster_driver(words):
        raise WrongOption(
            f"the command of --start starts the driver on the cluster, which does not get {VARIABLE}=1 and does not end "
            "with the command; nothing was started",
            hint="start it in client mode: leave out --deploy-mode cluster",
        )
    return words
