"""Plans and makes clones of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from statestore import switch_journal
from statestore.errors import RefusedAsUnsafe
from statestore.format.structure import Structure
from statestore.maintenance import copies, lease
from statestore.maintenance.copies import CloneFacts, ClonePlan, CopyFile
from statestore.maintenance.passes import guards
from statestore.maintenance.passes.guards import Refusals
from statestore.maintenance.passes.maintainer import Maintainer
from statestore.maintenance.quiet import require_stopped
from statestore.maintenance.snapshot.gather import LIVE_MARGIN_VERSIONS
from statestore.storage import Storage


@dataclass(frozen=True)
class PreparedClone:
    """A plan of a clone, its facts, and the reasons that block it."""

    gathered: CloneFacts
    plan: ClonePlan
    refusals: Refusals


def plan(
    source: Storage,
    destination: Storage,
    by: Maintainer,
    *,
    batch: int | None = None,
    new_query: bool = False,
    query_id: str | None = None,
    stopped: bool = False,
    location: str | None = None,
) -> PreparedClone:
    """Plan a clone of the source at a batch, by default the newest one. Reads only.

    In structure V1, a running Spark query may replace its newest changelogs. Then the default is `LIVE_MARGIN_VERSIONS`
    batches earlier, unless a person confirms that the query is `stopped`. `new_query`: the clone belongs to a new query,
    with `query_id` or a random id. `location`: the URL that Spark uses for the destination. Raises as `copies.gather`, and
    `RefusedAsUnsafe` if the query is not stopped.
    """
    if stopped:
        require_stopped(source, confirmed=True, clock=by.clock, seconds=by.quiet_seconds)
    gathered = copies.gather(source, destination, batch=batch, stopped=stopped)
    fresh = query_id or (by.ids.fresh() if new_query else None)
    planned = copies.plan(gathered, query_id=fresh, root_id=by.ids.fresh(), location=location)
    found = guards.refusals(_is_settled(source, gathered, stopped), guards.half_switched(source), *planned.refusals)
    return PreparedClone(gathered, planned, found)


def execute(
    source: Storage,
    destination: Storage,
    prepared: PreparedClone,
    by: Maintainer,
    *,
    scratch: Path,
    copied: Callable[[CopyFile], None] = lambda file: None,
) -> None:
    """Make the clone; call `copied` after each file. A complete clone stays as it is.

    While it runs, it holds the lease of the source, so that no other maintainer deletes the files. A lease expires by
    itself if its holder dies. Raises the first refusal; `RootHeld`, `HalfSwitched`; as `copies.execute`.
    """
    guards.require_none(prepared.refusals)
    if prepared.plan.is_complete:
        return
    with lease.held(source, "clone", run=by.ids.fresh(), holder=by.holder, clock=by.clock) as held:
        switch_journal.require_none(source)

        def ended(file: CopyFile) -> None:
            held.beat()
            copied(file)

        copies.execute(source, destination, prepared.plan, scratch=scratch, copied=ended)


def _is_settled(source: Storage, gathered: CloneFacts, stopped: bool) -> RefusedAsUnsafe | None:
    """Require that a running query can no longer replace the files of the batch."""
    margin = gathered.newest - gathered.batch
    is_final = gathered.structure is Structure.V2 or gathered.binding is not None
    if stopped or is_final or margin >= LIVE_MARGIN_VERSIONS:
        return None
    return RefusedAsUnsafe(
        f"batch {gathered.batch} is one of the newest {LIVE_MARGIN_VERSIONS}; in structure V1, a running query may still "
        "replace its changelogs",
        path=source.url,
        hint=f"clone batch {max(0, gathered.newest - LIVE_MARGIN_VERSIONS)}, or stop the query and add --confirm-stopped",
    )
