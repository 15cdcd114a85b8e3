"""Plans and makes savepoints of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from statestore import switch_journal
from statestore.format import savepoint_names
from statestore.maintenance import lease, savepoints
from statestore.maintenance.passes import guards
from statestore.maintenance.passes.clone import is_settled
from statestore.maintenance.passes.guards import Refusals
from statestore.maintenance.passes.maintainer import Maintainer
from statestore.maintenance.pool import WORKERS
from statestore.maintenance.quiet import require_stopped
from statestore.maintenance.savepoints import RowsFacts, RowsPlan, Tables
from statestore.maintenance.savepoints.execute import begin
from statestore.maintenance.savepoints.manifest import Summary, summary_of
from statestore.maintenance.savepoints.record import StoreRows
from statestore.storage import Storage


@dataclass(frozen=True)
class PreparedRows:
    """A plan of a savepoint with rows, its facts, and the reasons that block it."""

    gathered: RowsFacts
    plan: RowsPlan
    refusals: Refusals


def plan_rows(
    source: Storage,
    destination: Storage,
    by: Maintainer,
    *,
    batch: int | None = None,
    tables: Tables = Tables.PARQUET,
    stopped: bool = False,
) -> PreparedRows:
    """Plan a savepoint of all rows of the source at a batch. Reads only.

    The default is the batch of an unfinished savepoint in the destination, else as for a clone: see `clone.plan`. Raises
    as `savepoints.gather`, and `RefusedAsUnsafe` if the query is not stopped.
    """
    if stopped:
        require_stopped(source, confirmed=True, clock=by.clock, seconds=by.quiet_seconds)
    gathered = savepoints.gather(source, destination, batch=batch, stopped=stopped)
    planned = savepoints.plan(gathered, tables, run=by.ids.fresh(), now_ms=int(by.clock.now_seconds() * 1000))
    settled = is_settled(source, gathered.copied, stopped)
    found = guards.refusals(settled, guards.half_switched(source), *planned.refusals)
    return PreparedRows(gathered, planned, found)


def execute_rows(
    source: Storage,
    destination: Storage,
    prepared: PreparedRows,
    by: Maintainer,
    *,
    scratch: Path,
    workers: int = WORKERS,
    wrote: Callable[[int], None] = lambda rows: None,
    finished: Callable[[StoreRows], None] = lambda store: None,
) -> Summary:
    """Make the savepoint. Call `wrote` with the number of rows of each piece, and `finished` after each store. A complete
    savepoint stays as it is.

    Nothing is written into the source. If its files of the batch are deleted meanwhile, the run ends with an error. It
    holds the lease of the destination. Raises the first refusal; `RootHeld`, `HalfSwitched`; as `savepoints.execute`.
    """
    guards.require_none(prepared.refusals)
    if prepared.plan.is_complete:
        return summary_of(destination.read(savepoint_names.MANIFEST))
    switch_journal.require_none(source)
    begin(destination, prepared.plan)
    with lease.held(destination, "savepoint", run=by.ids.fresh(), holder=by.holder, clock=by.clock) as held:

        def written(rows: int) -> None:
            held.beat()
            wrote(rows)

        return savepoints.execute(
            prepared.gathered,
            destination,
            prepared.plan,
            scratch=scratch,
            clock=by.clock,
            ids=by.ids,
            workers=workers,
            wrote=written,
            finished=finished,
        )
