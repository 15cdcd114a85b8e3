"""Plans and makes clones of checkpoints, and what all copies have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import clones as copies
from statekeeper.statestore.maintenance.copies.clones import CloneFacts, ClonePlan, CopyFile, FreshIds, Way
from statekeeper.statestore.maintenance.copies.mirrors import MirrorPlan
from statekeeper.statestore.maintenance.records import holds
from statekeeper.statestore.maintenance.records.holds import Hold
from statekeeper.statestore.maintenance.upkeep.snapshot.gather import LIVE_MARGIN_VERSIONS
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Verb, Work
from statekeeper.statestore.maintenance.verbs.guards import Refusals
from statekeeper.statestore.maintenance.verbs.options import BATCH_DEFAULT, LOCATION, option
from statekeeper.statestore.maintenance.verbs.report import Report, Table, as_objects, decimal, when
from statekeeper.statestore.storage import Storage


class PlannedCopy(Protocol):
    """A plan of a copy into `destination`. `mode`: of the source; `oldest`: the oldest batch that it reads; `is_complete`:
    there is nothing to copy."""

    @property
    def mode(self) -> Mode: ...

    @property
    def destination(self) -> Storage: ...

    @property
    def oldest(self) -> int: ...

    @property
    def is_complete(self) -> bool: ...


P = TypeVar("P", bound=PlannedCopy)
S = TypeVar("S")
R = TypeVar("R")


class Copy(Verb[P, S, R]):
    """A verb that copies from the root, which may be running and is not changed.

    While it runs, it holds the batches that it reads in the source, so that retention keeps their files and other
    maintenance continues; and the lease of the destination, so that no other copy writes there. Both are renewed by a
    timer, and expire by themselves if the process dies. In mode `observe`, nothing is written into the source: there, no
    maintenance deletes a file.
    """

    def allowed(self, run: Run, plan: P) -> StatekeeperError | None:
        return None

    def unheld(self, run: Run, plan: P) -> Refusals:
        return () if plan.is_complete else guards.copies(run.storage, plan.destination, plan.mode, run.clock)

    def needs_stopped(self, plan: P) -> bool:
        return False

    @abstractmethod
    def begin(self, run: Run, plan: P) -> None:
        """Require that the source is as in the plan, and write the record of the copy into the destination."""

    @contextmanager
    def work(self, run: Run, plan: P, told: Callable[[S], None]) -> Iterator[Work[S]]:
        if plan.is_complete:
            yield Work(plan.destination, told)
            return
        with ExitStack() as stack:
            if plan.mode is not Mode.OBSERVE:
                hold, by = Hold(batch=plan.oldest, holder=run.by.holder, verb=self.name), run.by
                beat = by.beat_seconds
                stack.enter_context(holds.held(run.storage, hold, run=run.id, clock=by.clock, renew_seconds=beat))
            rewrite_journal.require_none(run.storage)
            self.begin(run, plan)
            held = stack.enter_context(run.lease_of(plan.destination, self.name))
            yield Work(held.storage, told, held=held)


@dataclass(frozen=True, kw_only=True)
class PlannedClone:
    """A plan of a clone, and its facts."""

    mode: Mode
    destination: Storage
    gathered: CloneFacts
    plan: ClonePlan

    @property
    def oldest(self) -> int:
        return copies.oldest_batch(self.plan.files, self.plan.record.batch)

    @property
    def is_complete(self) -> bool:
        return self.plan.is_complete


@dataclass(frozen=True, kw_only=True)
class Clone(Copy[PlannedClone, CopyFile, None]):
    """Copy the root at a batch, by default the newest one. A complete clone stays as it is.

    In structure V1, a running Spark query may replace its newest changelogs: see `copies.newest_settled`. `new_query`: the
    clone belongs to a new query, with `query_id` or a random id. `location`: the URL that Spark uses for the destination.
    `command`: as in `copies.plan`.
    """

    name = "clone"
    destination: str = option("The empty location to copy to: a URL, a path, or a name in statekeeper.toml.", flag="")
    batch: int | None = option(f"The batch to clone. {BATCH_DEFAULT}", default=None, least=0)
    new_query: bool = option(
        "Give the clone a new query id. Use it if both queries write to the same Delta table: with the same id, the table "
        "skips a batch if it already has a batch with this number. Default: the clone keeps the query id of the source.",
        default=False,
    )
    query_id: str | None = option(
        "The new query id. Implies --new-query. Default: a random id.",
        default=None,
        metavar="UUID",
        is_query_id=True,
    )
    location: str | None = option(**LOCATION)
    command: str = "clone"

    def plan(self, run: Run) -> PlannedClone:
        """Raises as `copies.gather`, and `RefusedAsUnsafe` if the query is not stopped or the query id is not a UUID."""
        guards.require_none(guards.refusals(guards.is_query_id(run.storage, self.query_id)))
        if run.stopped:
            run.require_stopped(confirmed=True)
        destination = run.open_other(self.destination)
        gathered = copies.gather(run.storage, destination, batch=self.batch, stopped=run.stopped)
        fresh = FreshIds(run.by.ids.fresh(), run.by.ids.fresh() if self.new_query else None)
        planned = copies.plan(gathered, fresh, query_id=self.query_id, location=self.location, command=self.command)
        mode = run.policies.mode_for(Origin.NATIVE if gathered.binding is None else Origin.OWN)
        return PlannedClone(mode=mode, destination=destination, gathered=gathered, plan=planned)

    def refusals(self, run: Run, plan: PlannedClone) -> Iterable[StatekeeperError]:
        return guards.refusals(is_settled(run.storage, plan.gathered), *plan.plan.refusals)

    def begin(self, run: Run, plan: PlannedClone) -> None:
        copies.require_unchanged(run.storage, plan.plan.files)
        copies.begin(plan.destination, plan.plan)

    def execute(self, run: Run, plan: PlannedClone, work: Work[CopyFile]) -> None:
        """Copy the files, and tell each. Raises as `copies.require_unchanged`, `copies.begin` and `copies.execute`."""
        if not plan.is_complete:
            copies.execute(
                run.storage,
                work.storage,
                plan.plan,
                executor=run.executor_of(copies.AT_ONCE),
                scratch=run.scratch,
                copied=work.tell,
            )

    def report(self, prepared: Prepared[PlannedClone, CopyFile, None]) -> Report:
        found, plan = report_of_clone(prepared), prepared.plan.plan
        through = decimal(plan.size_bytes(Way.STREAM, Way.REWRITE))
        done = (
            f"cloned {when(plan.record.batch)} to {prepared.plan.destination.url}: {counted(len(plan.files), 'file')}, "
            f"{decimal(plan.size_bytes())} in {prepared.seconds:,.1f} s, of which {through} went through this "
            "machine"
        )
        if not prepared.is_done:
            return found
        made = {"cloned": True, "seconds": round(prepared.seconds, 3)}
        return replace(found, record={**found.record, **made}, phase="cloned", done=(done,))


def report_of_clone(prepared: Prepared[Any, CopyFile, Any]) -> Report:
    """Report the plan of a clone, or of a savepoint with files: the files by part and way."""
    plan: ClonePlan = prepared.plan.plan
    phase = "refused" if prepared.refusals else "complete" if plan.is_complete else "planned"
    lines = [f"query id of the clone: {plan.record.query}"]
    if plan.is_complete:
        lines.append("the clone is complete: nothing to do")
    title = (
        f"{when(plan.record.batch)} (newest batch of the source: {plan.newest:,}): {counted(plan.stores, 'store')}, "
        f"{counted(len(plan.files), 'file')}, {decimal(plan.size_bytes())}"
    )
    return Report(
        record={
            "batch": plan.record.batch,
            "newest_batch": plan.newest,
            "structure": plan.structure.value,
            "query_id": plan.record.query,
            "complete": plan.is_complete,
            "stores": plan.stores,
            "files": len(plan.files),
            "bytes": plan.size_bytes(),
            **by_way(plan),
            "bytes_present": plan.size_bytes(Way.PRESENT),
            "refusals": as_objects(prepared.refusals),
            "list": [
                {"path": file.path, "bytes": file.size_bytes, "part": file.part.value, "way": file.way.value}
                for file in plan.files
            ],
        },
        phase=phase,
        facts={"destination": prepared.plan.destination.url, "query_id": plan.record.query},
        figures={
            "batch": plan.record.batch,
            "newest_batch": plan.newest,
            "stores": plan.stores,
            "files": len(plan.files),
            "bytes": plan.size_bytes(),
            **by_way(plan),
        },
        tables=(files_by_part("parts", title, plan.files),),
        lines=tuple(lines),
    )


def by_way(plan: ClonePlan | MirrorPlan) -> dict[str, int]:
    """Return the bytes that the storage service copies, and those that pass through this machine."""
    through = plan.size_bytes(Way.STREAM, Way.REWRITE)
    return {"bytes_by_service": plan.size_bytes(Way.SERVICE), "bytes_through_this_machine": through}


def files_by_part(name: str, title: str, copied: Iterable[CopyFile]) -> Table:
    """Count files by their part of the checkpoint and the way of their copy."""
    files, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for file in copied:
        files[file.part.value, file.way.value] += 1
        sizes[file.part.value, file.way.value] += file.size_bytes
    rows = [(part, way, number, sizes[part, way]) for (part, way), number in files.items()]
    return Table(name, title, ("part", "copied", "files", "bytes"), rows)


def is_settled(source: Storage, gathered: CloneFacts) -> RefusedAsUnsafe | None:
    """Require that a running query can no longer replace the files of the batch."""
    if gathered.structure is Structure.V2 or gathered.batch <= gathered.settled:
        return None
    final = gathered.batch + LIVE_MARGIN_VERSIONS
    earlier = f"use --batch {gathered.settled}" if gathered.settled >= 0 else f"wait until batch {final} is committed"
    return RefusedAsUnsafe(
        f"batch {gathered.batch} is one of the {LIVE_MARGIN_VERSIONS} newest batches; in structure V1, a running query "
        "may still replace its changelogs; nothing was written",
        path=source.url,
        hint=f"{earlier}, or stop the query and add --confirm-stopped",
    )
