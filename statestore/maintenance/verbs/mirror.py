"""Plans and runs mirrors of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.maintenance.copies import clones, mirrors
from statekeeper.statestore.maintenance.copies.clones import CopyFile, Way
from statekeeper.statestore.maintenance.copies.mirrors import CleanupPlan, Lag, MirrorFacts, MirrorPlan
from statekeeper.statestore.maintenance.records.history import Json, recorded
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.as_json import copies as as_json
from statekeeper.statestore.maintenance.verbs.clone import Copy, by_way, files_by_part, is_settled
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Work
from statekeeper.statestore.maintenance.verbs.options import BATCH_DEFAULT, LOCATION, option
from statekeeper.statestore.maintenance.verbs.report import Report, as_objects, decimal, when
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True, kw_only=True)
class PlannedMirror:
    """A plan of a mirror, its facts, and the deletions as of now.

    is_waiting  the query in structure V1 runs and has too few batches: its files may still change, and nothing is copied
    refusals    the reasons of the plan itself
    """

    mode: Mode
    destination: Storage
    gathered: MirrorFacts
    plan: MirrorPlan
    cleanup: CleanupPlan
    is_waiting: bool
    refusals: tuple[StatekeeperError, ...]

    @property
    def oldest(self) -> int:
        return clones.oldest_batch(self.plan.files, self.plan.record.batch)

    @property
    def is_complete(self) -> bool:
        return self.is_waiting or (self.plan.is_current and not self.cleanup.obsolete)


@dataclass(frozen=True, kw_only=True)
class Mirror(Copy[PlannedMirror, CopyFile, CleanupPlan]):
    """Copy the batches that the mirror of the root lacks, by default up to the newest one. Then delete the files that the
    source has deleted; the history of the mirror records these deletions.

    In structure V1, a running Spark query may replace its newest changelogs. Then the default is `LIVE_MARGIN_VERSIONS`
    batches earlier, unless a person confirms that the query is stopped. `location`: the URL that Spark uses for the
    destination.
    """

    name = "mirror"
    destination: str = option("The location of the mirror: a URL, a path, or a name in statekeeper.toml.", flag="")
    batch: int | None = option(
        f"The last batch that the mirror contains after the run. {BATCH_DEFAULT}", default=None, least=0
    )
    location: str | None = option(**LOCATION)

    def plan(self, run: Run) -> PlannedMirror:
        """Raises as `mirrors.gather`, and `RefusedAsUnsafe` if the query is not stopped."""
        if run.stopped:
            run.require_stopped(confirmed=True)
        source, destination = run.storage, run.open_other(self.destination)
        gathered = mirrors.gather(source, destination, batch=self.batch, stopped=run.stopped)
        planned = mirrors.plan(gathered, run.by.ids.fresh(), location=self.location)
        is_waiting = self.batch is None and gathered.copy.settled < 0
        if is_waiting:
            planned = replace(planned, record=replace(planned.record, batch=-1, first=0), files=(), left=planned.lag)
        settled = None if is_waiting else is_settled(source, gathered.copy)
        found = guards.refusals(settled, *planned.refusals)
        blocked = found or guards.refusals(self.no_rewrite_begun(run))
        is_begun = gathered.record is not None and gathered.record.batch >= 0 and not blocked
        return PlannedMirror(
            mode=run.policies.mode_for(Origin.NATIVE if gathered.copy.binding is None else Origin.OWN),
            destination=destination,
            gathered=gathered,
            plan=planned,
            cleanup=_cleanup(source, destination) if is_begun else CleanupPlan((), {}),
            is_waiting=is_waiting,
            refusals=found,
        )

    def refusals(self, run: Run, plan: PlannedMirror) -> Iterable[StatekeeperError]:
        return plan.refusals

    def begin(self, run: Run, plan: PlannedMirror) -> None:
        clones.require_unchanged(run.storage, plan.plan.files)
        mirrors.begin(plan.destination, plan.plan)

    def execute(self, run: Run, plan: PlannedMirror, work: Work[CopyFile]) -> CleanupPlan:
        """Copy the files and tell each; return the deletions. Raises as `clones.require_unchanged`, `mirrors.begin` and
        `mirrors.execute`."""
        if plan.is_complete:
            return plan.cleanup
        if not plan.plan.is_current:
            mirrors.execute(
                run.storage,
                work.storage,
                plan.plan,
                executor=run.executor_of(clones.AT_ONCE),
                scratch=run.scratch,
                copied=work.tell,
            )
        cleanup = _cleanup(run.storage, plan.destination)
        if cleanup.obsolete:
            deletions = as_json.of_cleanup(cleanup)
            with recorded(plan.destination, self.name, run.id, deletions, run.clock) as done:
                for files in mirrors.execute_cleanup(work.storage, cleanup, work.lease.require):
                    done.append(as_json.of_cleaned(files))
        return cleanup

    def report(self, prepared: Prepared[PlannedMirror, CopyFile, CleanupPlan]) -> Report:
        """Report the files by part and way, the lag before or after the run, and the deletions."""
        found, plan = prepared.plan, prepared.plan.plan
        cleanup = prepared.made or found.cleanup
        lag = plan.left if prepared.is_done else plan.lag
        lines = []
        if plan.before is not None and plan.before.batch >= 0:
            lines.append(f"lag before this run: {_in_words(plan.lag)}")
        if plan.is_current:
            lines.append("the mirror has all files: nothing to copy")
        title = (
            f"{when(plan.record.batch)} (newest batch of the source: {plan.lag.newest:,}): {plan.stores:,} stores, "
            f"{counted(len(plan.files), 'file')}, {decimal(plan.size_bytes())}"
        )
        made: Json = {
            "mirrored": not found.is_waiting,
            "seconds": round(prepared.seconds, 3),
            "lag": _of_lag(plan.left),
            "delete": _of_cleanup(cleanup),
        }
        return Report(
            record={
                "batch": None if found.is_waiting else plan.record.batch,
                "first_batch": None if found.is_waiting else plan.record.first,
                "waiting": found.is_waiting,
                "newest_batch": plan.lag.newest,
                "structure": plan.structure.value,
                "query_id": plan.record.query,
                "current": plan.is_current,
                "stores": plan.stores,
                "files": len(plan.files),
                "bytes": plan.size_bytes(),
                **by_way(plan),
                "bytes_present": plan.size_bytes(Way.PRESENT),
                "lag": _of_lag(plan.lag),
                "delete": _of_cleanup(found.cleanup),
                "refusals": as_objects(prepared.refusals),
                "list": [
                    {"path": file.path, "bytes": file.size_bytes, "part": file.part.value, "way": file.way.value}
                    for file in plan.files
                    if file.way is not Way.PRESENT
                ],
                **(made if prepared.is_done else {}),
            },
            phase="refused"
            if prepared.refusals
            else "waiting"
            if found.is_waiting
            else "mirrored"
            if prepared.is_done
            else "planned",
            facts={"destination": found.destination.url, "query_id": plan.record.query},
            figures={
                "batch": plan.record.batch,
                "newest_batch": lag.newest,
                "lag_batches": lag.batches,
                "lag_bytes": lag.size_bytes,
                **({} if lag.seconds is None else {"lag_seconds": lag.seconds}),
                "stores": plan.stores,
                "files": len(plan.files),
                "bytes": plan.size_bytes(),
                **by_way(plan),
                "deletions": len(cleanup.obsolete),
                "deleted_bytes": cleanup.size_bytes,
            },
            tables=() if found.is_waiting else (files_by_part("parts", title, plan.files),),
            lines=(_WAITING,) if found.is_waiting else (*lines, *_cleanup_lines(found.cleanup, "to delete")),
            done=(_WAITING,) if found.is_waiting else _done(prepared, cleanup),
        )


_WAITING = (
    "nothing to copy yet: in structure V1, the running query may still replace the files of its newest two batches. The "
    "mirror begins with the third batch; with --confirm-stopped it begins at once"
)


def _done(prepared: Prepared[PlannedMirror, CopyFile, CleanupPlan], cleanup: CleanupPlan) -> tuple[str, ...]:
    plan = prepared.plan.plan
    new = [file for file in plan.files if file.way is not Way.PRESENT] if not plan.is_current else []
    size, through = (
        decimal(sum(file.size_bytes for file in new if file.way in ways))
        for ways in (tuple(Way), (Way.STREAM, Way.REWRITE))
    )
    return (
        f"{prepared.plan.destination.url} mirrors {when(plan.record.batch)}: copied {counted(len(new), 'file')}, {size} in "
        f"{prepared.seconds:,.1f} s, of which {through} went through this machine",
        *_cleanup_lines(cleanup, "deleted"),
        f"lag: {_in_words(plan.left)}",
        f"before you start a query from the mirror, remove the output of the batches after batch {plan.record.batch:,} "
        "from the sink",
    )


def _of_lag(lag: Lag) -> Json:
    return {"batches": lag.batches, "seconds": lag.seconds, "bytes": lag.size_bytes}


def _of_cleanup(cleanup: CleanupPlan) -> Json:
    return {
        "files": len(cleanup.obsolete),
        "bytes": cleanup.size_bytes,
        "kept": {reason.name.lower(): number for reason, number in cleanup.kept.items()},
        "list": [
            {"path": file.path, "bytes": file.size_bytes, "reason": file.reason.value} for file in cleanup.obsolete
        ],
    }


def _in_words(lag: Lag) -> str:
    seconds = "an unknown time" if lag.seconds is None else f"{lag.seconds:,.0f} s"
    return f"{counted(lag.batches, 'batch')}, {seconds}, {decimal(lag.size_bytes)} of changelogs"


def _cleanup_lines(cleanup: CleanupPlan, label: str) -> list[str]:
    lines = [
        f"kept: {number:,} files that the source does not have: {reason.value}"
        for reason, number in cleanup.kept.items()
    ]
    if not cleanup.obsolete:
        return lines
    why, size = cleanup.obsolete[0].reason.value, decimal(cleanup.size_bytes)
    return [f"{label}: {counted(len(cleanup.obsolete), 'file')}, {size}: {why}", *lines]


def _cleanup(source: Storage, destination: Storage) -> CleanupPlan:
    return mirrors.plan_cleanup(mirrors.gather_cleanup(source, destination))
