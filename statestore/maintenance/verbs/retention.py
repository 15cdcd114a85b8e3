"""Plans retention, compares the plan with the audit, and executes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.quiet import require_stopped
from statekeeper.statestore.maintenance.upkeep import audit, retention
from statekeeper.statestore.maintenance.upkeep.audit import Audit
from statekeeper.statestore.maintenance.upkeep.retention import (
    Deleted,
    DeletionOutcome,
    Forecast,
    RetentionFacts,
    RetentionPlan,
)
from statekeeper.statestore.maintenance.verbs import guards, runs
from statekeeper.statestore.maintenance.verbs.audit import judged
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.guards import Maintainer, Refusals
from statekeeper.statestore.maintenance.verbs.losses import Losses, losses
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True, kw_only=True)
class PreparedRetention:
    """A retention plan, its facts, and the guards that block it.

    before          the audit that must report no errors
    losses          lost versions, and versions that the deletions would lose
    forecast        the files that the plan deletes now, and when the other files can be deleted
    needs_stopped   whether the plan deletes files that a running Spark query may still reference
    """

    mode: Mode
    before: Audit
    losses: Losses
    gathered: RetentionFacts
    planned: RetentionPlan
    forecast: Forecast
    refusals: Refusals
    needs_stopped: bool


@dataclass(frozen=True)
class RetentionPass:
    """The result of a retention pass. `before`: the audit before it; `done` is empty if nothing was deleted."""

    mode: Mode
    before: Audit
    planned: RetentionPlan
    done: tuple[Deleted, ...] = ()


def plan(
    storage: Storage,
    policies: Policies,
    *,
    clock: Clock,
    mode: Mode | None = None,
    everything: bool = False,
    stopped: bool = False,
    accept_loss: bool = False,
) -> PreparedRetention:
    """Plan which files retention deletes, and audit the checkpoint, because an earlier audit may be outdated. Read-only.

    `mode` overrides the configured mode. `everything`: gather all stores, not only the changed ones. With `stopped`, which
    a person confirms, and `everything`, the plan also deletes tables that a running Spark query may still reference.
    `accept_loss`: errors of the audit do not block the plan; see `losses`. Raises as `audit.gather` and `retention.gather`.
    """
    facts = audit.gather(storage)
    before = judged(facts, policies)
    gathered = retention.gather(storage, policies.retention, clock=clock, everything=everything)
    planned = retention.plan(gathered, policies.retention, stopped=everything and stopped)
    allowed = mode or policies.mode_for(planned.origin)
    found = guards.refusals(
        guards.deletes(storage, allowed),
        guards.half_switched(storage),
        None if accept_loss else guards.is_whole(before),
        guards.unheld(storage, clock),
    )
    needs_stopped = everything and stopped and planned.origin is Origin.NATIVE
    return PreparedRetention(
        mode=allowed,
        before=before,
        losses=losses(facts, before, planned),
        gathered=gathered,
        planned=planned,
        forecast=retention.forecast(gathered, planned, policies.retention),
        refusals=found,
        needs_stopped=needs_stopped,
    )


def execute(
    storage: Storage,
    prepared: PreparedRetention,
    by: Maintainer,
    *,
    progress: Callable[[Deleted], None] = lambda step: None,
    scratch: Path | None = None,
    workers: int = WORKERS,
) -> RetentionPass:
    """Execute a retention plan: read its bases, delete its files, and call `progress` after each step.

    `scratch`: local disk for the reads, None for the system's folder for temporary files; `workers`: number of concurrent
    reads. *Danger*: it deletes without a prompt. *Guarantee*: as `retention.execute`. Raises the first refusal;
    `RefusedAsUnsafe` for a running query if the plan needs a stopped one; as `runs.delete`.
    """
    guards.require_none(prepared.refusals)
    if prepared.needs_stopped:
        require_stopped(storage, confirmed=True, clock=by.clock, seconds=by.quiet_seconds)
    done: list[Deleted] = []
    steps = runs.delete(
        storage,
        prepared.gathered,
        prepared.planned,
        holder=by.holder,
        clock=by.clock,
        ids=by.ids,
        scratch=scratch,
        workers=workers,
    )
    for step in steps:
        done.append(step)
        progress(step)
    return RetentionPass(prepared.mode, prepared.before, prepared.planned, tuple(done))


def unattended(storage: Storage, policies: Policies, by: Maintainer, *, scratch: Path | None = None) -> RetentionPass:
    """Plan retention for a schedule, and execute the plan if the mode allows it. `scratch`: as in `execute`.

    *Danger*: as `execute`. Raises as `plan` and `execute`, but not for a mode that allows no deletions; `CorruptFile` if
    a base is damaged, and then nothing is deleted.
    """
    prepared = plan(storage, policies, clock=by.clock)
    if prepared.mode is not Mode.FULL:
        guards.require_none(guards.refusals(guards.is_whole(prepared.before)))
        return RetentionPass(prepared.mode, prepared.before, prepared.planned)
    finished = execute(storage, prepared, by, scratch=scratch)
    for step in finished.done:
        if step.outcome is DeletionOutcome.DAMAGED:
            raise CorruptFile(f"{step.outcome.value}: {step.detail}", path=str(step.store))
    return finished
