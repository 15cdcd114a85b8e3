"""Plans and makes clones of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.quiet import require_stopped
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import clones as copies
from statekeeper.statestore.maintenance.copies.clones import CloneFacts, ClonePlan, CopyFile, FreshIds
from statekeeper.statestore.maintenance.records import holds, lease
from statekeeper.statestore.maintenance.records.holds import Hold
from statekeeper.statestore.maintenance.upkeep.snapshot.gather import LIVE_MARGIN_VERSIONS
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.guards import Maintainer, Refusals
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True)
class PreparedClone:
    """A plan of a clone, its facts, and the reasons that block it."""

    mode: Mode
    gathered: CloneFacts
    plan: ClonePlan
    refusals: Refusals


def plan(
    source: Storage,
    destination: Storage,
    policies: Policies,
    by: Maintainer,
    *,
    batch: int | None = None,
    new_query: bool = False,
    query_id: str | None = None,
    stopped: bool = False,
    location: str | None = None,
    command: str = "clone",
) -> PreparedClone:
    """Plan a clone of the source at a batch, by default the newest one. Reads only.

    In structure V1, a running Spark query may replace its newest changelogs: see `copies.newest_settled`. `stopped`: a
    person confirms that the query is stopped. `new_query`: the clone belongs to a new query, with `query_id` or a
    random id. `policies`: of the source. `location`: the URL that Spark uses for the destination. `command`: as in
    `copies.plan`. Raises as `copies.gather`, and `RefusedAsUnsafe` if the query is not stopped.
    """
    if stopped:
        require_stopped(source, confirmed=True, clock=by.clock, seconds=by.quiet_seconds)
    gathered = copies.gather(source, destination, batch=batch, stopped=stopped)
    fresh = FreshIds(by.ids.fresh(), by.ids.fresh() if new_query else None)
    planned = copies.plan(gathered, fresh, query_id=query_id, location=location, command=command)
    mode = policies.mode_for(Origin.NATIVE if gathered.binding is None else Origin.OWN)
    found = guards.refusals(
        is_settled(source, gathered),
        guards.half_switched(source),
        *planned.refusals,
        *(() if planned.is_complete else guards.copies(source, destination, mode, by.clock)),
    )
    return PreparedClone(mode, gathered, planned, found)


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

    While it runs, it holds the batch in the source, so that retention keeps its files and other maintenance continues; and
    the lease of the destination, so that no other clone writes there. Both are renewed by a timer, and expire by themselves
    if the process dies. In mode `observe`, nothing is written into the source: there, no maintenance deletes a file. Raises
    the first refusal; `RootHeld` while another verb deletes files of the source, or writes to the destination;
    `HalfSwitched`; as `copies.require_unchanged`, `copies.begin` and `copies.execute`.
    """
    guards.require_none(prepared.refusals)
    if prepared.plan.is_complete:
        return
    run = by.ids.fresh()
    with ExitStack() as stack:
        if prepared.mode is not Mode.OBSERVE:
            oldest = copies.oldest_batch(prepared.plan.files, prepared.plan.record.batch)
            hold = Hold(batch=oldest, holder=by.holder, verb="clone")
            stack.enter_context(holds.held(source, hold, run=run, clock=by.clock, renew_seconds=by.beat_seconds))
        rewrite_journal.require_none(source)
        copies.require_unchanged(source, prepared.plan.files)
        copies.begin(destination, prepared.plan)
        held = stack.enter_context(
            lease.held(destination, "clone", run=run, holder=by.holder, clock=by.clock, beat_seconds=by.beat_seconds)
        )
        copies.execute(source, held.storage, prepared.plan, scratch=scratch, copied=copied)


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
