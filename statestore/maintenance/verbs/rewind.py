"""Plans and executes rewinds, and undoes rewinds and repairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from statekeeper.statestore.base.errors import LocalStateError, RefusedAsUnsafe, StatekeeperError, VersionNotLoadable
from statekeeper.statestore.checkpoint.origin import origin_of
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.rollback import rewind, undo
from statekeeper.statestore.maintenance.rollback.rewind import (
    DeltaPosition,
    FileSinkLog,
    RewindAction,
    RewindFacts,
    RewindPlan,
    SourceLocations,
    SourceNeed,
)
from statekeeper.statestore.maintenance.verbs import as_json, guards
from statekeeper.statestore.maintenance.verbs.contract import Run, Verb, Work
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True, kw_only=True)
class PlannedRewind:
    """A plan of a rewind and its facts.

    sink     the version of the Delta table that belongs to the target; None without a table
    sources  the data that each source must still have, and the data that it no longer has
    refusals all reasons that block the plan itself
    """

    gathered: RewindFacts
    plan: RewindPlan
    sink: DeltaPosition | None
    sources: tuple[SourceNeed, ...]
    file_sink: Storage | None
    has_no_file_sink: bool
    refusals: tuple[StatekeeperError, ...]


@dataclass(frozen=True, kw_only=True)
class Rewind(Verb[PlannedRewind, RewindAction, None]):
    """Roll a stopped query back to `batch`. `Undo` of the run reverses it.

    `query_id`: the id that the query gets, by default a random one. `keep_query_id`: the query keeps its id. `sink`: the
    Delta table that the query writes. `file_sink`: the output folder, if the query writes files with Spark's file sink.
    `has_no_file_sink`: the query has none, although the checkpoint indicates one. `sources`: where its sources have their
    data.
    """

    name = "rewind"
    batch: int
    query_id: str | None = None
    keep_query_id: bool = False
    sink: str | None = None
    file_sink: str | None = None
    has_no_file_sink: bool = False
    sources: SourceLocations | None = None
    restored: Callable[[StorePath], None] = lambda store: None
    """Called after each store that the plan restores."""

    def plan(self, run: Run) -> PlannedRewind:
        """Restore each store at the batch below `run.scratch`.

        Raises as `rewind.gather`, `rewind.file_sink_log`, `rewind.delta_position`, `rewind.look_up`; `RefusedAsUnsafe` if a
        state root of a Python job is given a file sink."""
        storage, by = run.storage, run.by
        gathered = rewind.gather(storage, self.batch)
        if self.file_sink is not None and gathered.binding is not None:
            raise RefusedAsUnsafe(
                "is a state root, and no file sink of Spark belongs to it; nothing was changed",
                path=storage.url,
                hint="run this command without --file-sink",
            )
        file_sink = None if self.file_sink is None else run.open_other(self.file_sink)
        sink = None if self.sink is None else run.open_other(self.sink)
        needs = rewind.look_up(gathered.sources, self.sources or SourceLocations())
        chosen = None if self.keep_query_id else self.query_id or by.ids.fresh()
        planned = rewind.plan(gathered, query_id=chosen, sink=_log_of(file_sink, gathered))
        found: list[StatekeeperError] = list(planned.refusals)
        if not found:
            conf = origin_of(storage).state_conf(storage, gathered.heads, tuple(Provider))
            failed = rewind.prove(
                storage,
                gathered.heads,
                conf,
                scratch=run.scratch,
                clock=by.clock,
                ids=by.ids,
                restored=self.restored,
            )
            # A full scratch disk says nothing about the checkpoint.
            found += [
                error if isinstance(error, LocalStateError) else _unproved(store, error)
                for store, error in sorted(failed.items())
            ]
        query_ids = {gathered.query_id, *gathered.former_ids}
        position = None if sink is None else rewind.delta_position(sink, query_ids, self.batch)
        if planned.actions and file_sink is None and not self.has_no_file_sink:
            found += guards.refusals(rewind.require_file_sink_named(gathered))
        return PlannedRewind(
            gathered=gathered,
            plan=planned,
            sink=position,
            sources=needs,
            file_sink=file_sink,
            has_no_file_sink=self.has_no_file_sink,
            refusals=tuple(found),
        )

    def plan_again(self, run: Run, first: PlannedRewind) -> PlannedRewind:
        """As `plan`, with the query id of the first plan. The stores are not restored again."""
        gathered = rewind.gather(run.storage, self.batch)
        query_id = None if first.plan.query == gathered.query_id else first.plan.query
        again = rewind.plan(gathered, query_id=query_id, sink=_log_of(first.file_sink, gathered))
        return replace(first, gathered=gathered, plan=again, refusals=again.refusals)

    def has_work(self, plan: PlannedRewind) -> bool:
        return bool(plan.plan.actions)

    def refusals(self, run: Run, plan: PlannedRewind) -> Iterable[StatekeeperError]:
        return plan.refusals

    def record(self, plan: PlannedRewind) -> list[Json]:
        return as_json.of_rewind(plan.plan)

    def record_step(self, step: RewindAction) -> Json:
        return as_json.of_rewind_action(step)

    def execute(self, run: Run, plan: PlannedRewind, work: Work[RewindAction]) -> None:
        """Raises as `rewind.execute`."""
        sink = None if plan.file_sink is None else work.lease.guarded(plan.file_sink)
        for action in rewind.execute(work.storage, plan.plan, run=run.id, scratch=run.scratch, sink=sink):
            work.tell(action)
            work.lease.require()


@dataclass(frozen=True, kw_only=True)
class Undo(Verb[str, str, list[str]]):
    """Restore all files that the repair or rewind `undone`, the id of its run, moved into quarantine.

    Its steps are the paths of the restored files.
    """

    of: Literal["repair", "rewind"]
    undone: str

    @property
    def name(self) -> str:
        return self.of

    def plan(self, run: Run) -> str:
        return self.undone

    def record(self, plan: str) -> list[Json]:
        return [{"undo": plan}]

    def record_step(self, step: str) -> Json:
        return {"put_back": step}

    def execute(self, run: Run, plan: str, work: Work[str]) -> list[str]:
        """Return the paths. Raises `RefusedAsUnsafe` if the query has committed since; as the functions of `undo`."""
        gathered = undo.gather(run.storage, plan, run.open_other)
        sink = None if gathered.sink is None else work.lease.guarded(gathered.sink)
        restored: list[str] = []
        for path in undo.execute(work.storage, plan, undo.plan(gathered), sink=sink):
            restored.append(path)
            work.tell(path)
            work.lease.require()
        return restored


def _log_of(file_sink: Storage | None, gathered: RewindFacts) -> FileSinkLog | None:
    return None if file_sink is None else rewind.file_sink_log(file_sink, gathered.batch, known=gathered.known)


def _unproved(store: StorePath, error: StatekeeperError) -> VersionNotLoadable:
    return VersionNotLoadable(
        f"{store} cannot be restored at this batch: {error.what}; nothing was changed",
        path=error.path,
        hint="to find a batch that can be loaded, run: statekeeper audit ROOT. Then give this batch with --to-batch",
    )
