"""Plans, executes and undoes rewinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from statekeeper.statestore.base.errors import LocalStateError, RefusedAsUnsafe, StatekeeperError, VersionNotLoadable
from statekeeper.statestore.checkpoint.origin import origin_of
from statekeeper.statestore.contents.quiet import require_stopped
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.rollback import rewind
from statekeeper.statestore.maintenance.rollback.rewind import (
    DeltaPosition,
    FileSinkLog,
    RewindAction,
    RewindFacts,
    RewindPlan,
    SourceLocations,
    SourceNeed,
)
from statekeeper.statestore.maintenance.verbs import guards, runs
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.guards import Maintainer, Refusals
from statekeeper.statestore.storage import Storage, open_storage


@dataclass(frozen=True, kw_only=True)
class PreparedRewind:
    """A plan of a rewind, its facts, and the reasons that block it.

    sink     the version of the Delta table that belongs to the target; None without a table
    sources  the data that each source must still have, and the data that it no longer has
    file_sink, has_no_file_sink: see `plan`
    """

    policies: Policies
    gathered: RewindFacts
    plan: RewindPlan
    sink: DeltaPosition | None
    sources: tuple[SourceNeed, ...]
    file_sink: Storage | None
    has_no_file_sink: bool
    refusals: Refusals


def plan(
    storage: Storage,
    policies: Policies,
    by: Maintainer,
    batch: int,
    *,
    scratch: Path,
    query_id: str | None = None,
    keep_query_id: bool = False,
    sink: Storage | None = None,
    file_sink: Storage | None = None,
    has_no_file_sink: bool = False,
    sources: SourceLocations | None = None,
    restored: Callable[[StorePath], None] = lambda store: None,
) -> PreparedRewind:
    """Plan a rewind to a batch, and restore each store at that batch below `scratch`. Reads only.

    `query_id`: the id that the query gets, by default a random one. `keep_query_id`: the query keeps its id. `sink`: the
    Delta table that the query writes. `file_sink`: the output folder, if the query writes files with Spark's file sink.
    `has_no_file_sink`: the query has none, although the checkpoint indicates one. `sources`: where its sources have their
    data. `restored` is called after each store.
    Raises as `rewind.gather`, `rewind.file_sink_log`, `rewind.delta_position`, `rewind.look_up`; `RefusedAsUnsafe` if a
    state root of a Python job is given a file sink.
    """
    gathered = rewind.gather(storage, batch)
    if file_sink is not None and gathered.binding is not None:
        raise RefusedAsUnsafe(
            "is a state root, and no file sink of Spark belongs to it; nothing was changed",
            path=storage.url,
            hint="run this command without --file-sink",
        )
    needs = rewind.look_up(gathered.sources, sources or SourceLocations())
    chosen = None if keep_query_id else query_id or by.ids.fresh()
    planned = rewind.plan(gathered, query_id=chosen, sink=_log_of(file_sink, gathered))
    found: list[StatekeeperError] = list(planned.refusals)
    if not found:
        conf = origin_of(storage).state_conf(storage, gathered.heads, tuple(Provider))
        failed = rewind.prove(
            storage, gathered.heads, conf, scratch=scratch, clock=by.clock, ids=by.ids, restored=restored
        )
        # A full scratch disk says nothing about the checkpoint.
        found += [
            error if isinstance(error, LocalStateError) else _unproved(store, error)
            for store, error in sorted(failed.items())
        ]
    position = None if sink is None else rewind.delta_position(sink, {gathered.query_id, *gathered.former_ids}, batch)
    if planned.actions and file_sink is None and not has_no_file_sink:
        found += guards.refusals(rewind.require_file_sink_named(gathered))
    by_guards = (guards.rewrites(storage, policies), guards.half_switched(storage), guards.unheld(storage, by.clock))
    return PreparedRewind(
        policies=policies,
        gathered=gathered,
        plan=planned,
        sink=position,
        sources=needs,
        file_sink=file_sink,
        has_no_file_sink=has_no_file_sink,
        refusals=guards.refusals(*(by_guards if planned.actions else ()), *found),
    )


def _log_of(file_sink: Storage | None, gathered: RewindFacts) -> FileSinkLog | None:
    return None if file_sink is None else rewind.file_sink_log(file_sink, gathered.batch, known=gathered.known)


def _unproved(store: StorePath, error: StatekeeperError) -> VersionNotLoadable:
    return VersionNotLoadable(
        f"{store} cannot be restored at this batch: {error.what}; nothing was changed",
        path=error.path,
        hint="to find a batch that can be loaded, run: statekeeper audit ROOT. Then give this batch with --to-batch",
    )


def execute(
    storage: Storage,
    prepared: PreparedRewind,
    by: Maintainer,
    *,
    run: str,
    stopped: bool,
    scratch: Path,
    starting: Callable[[], None] = lambda: None,
    progress: Callable[[RewindAction], None] = lambda action: None,
) -> PreparedRewind:
    """Execute a rewind. `stopped`: a person confirms that the query is stopped.

    `starting` is called when no guard blocks the rewind, `progress` after each file. Returns the executed plan, which is
    made again after the query is verified as stopped; the stores are not restored again. `undo` with the id `run` reverses
    the rewind.

    Raises the first refusal; `RefusedAsUnsafe` while the query runs; as `runs.rewind`.
    """
    if not prepared.plan.actions:
        return prepared
    guards.require_none(prepared.refusals)
    require_stopped(storage, confirmed=stopped, clock=by.clock, seconds=by.quiet_seconds)
    # The query may have been running when the first plan was made.
    gathered = rewind.gather(storage, prepared.plan.batch)
    query_id = None if prepared.plan.query == gathered.query_id else prepared.plan.query
    again = rewind.plan(gathered, query_id=query_id, sink=_log_of(prepared.file_sink, gathered))
    guards.require_none((*again.refusals, *guards.refusals(guards.half_switched(storage))))
    starting()
    done = runs.rewind(
        storage, again, run=run, holder=by.holder, clock=by.clock, scratch=scratch, sink=prepared.file_sink
    )
    for action in done:
        progress(action)
    return replace(prepared, gathered=gathered, plan=again)


def undo(
    storage: Storage,
    policies: Policies,
    undone: str,
    by: Maintainer,
    *,
    run: str,
    stopped: bool,
    open_sink: Callable[[str], Storage] = open_storage,
) -> list[str]:
    """Restore all files that the run `undone` moved into quarantine; returns their paths. `stopped`: as in `execute`.
    `open_sink` opens the output folder of a query with a file sink.

    Raises the first refusal; `RefusedAsUnsafe` while the query runs, and if it has committed since; as `runs.undo_repair`.
    """
    guards.require_none(guards.refusals(guards.rewrites(storage, policies), guards.half_switched(storage)))
    require_stopped(storage, confirmed=stopped, clock=by.clock, seconds=by.quiet_seconds)
    restored = runs.undo_repair(
        storage, undone, run=run, holder=by.holder, clock=by.clock, verb="rewind", open_sink=open_sink
    )
    return list(restored)
