"""Retention: planned, checked against the audit, and carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from statestore.clock import Clock
from statestore.errors import CorruptFile
from statestore.maintenance import audit, retention, runs
from statestore.maintenance.audit import Audit
from statestore.maintenance.config import Mode, Policies
from statestore.maintenance.passes import guards
from statestore.maintenance.passes.audit import judged
from statestore.maintenance.passes.guards import Refusals
from statestore.maintenance.passes.losses import Losses, losses
from statestore.maintenance.passes.maintainer import Maintainer
from statestore.maintenance.pool import WORKERS
from statestore.maintenance.quiet import require_stopped
from statestore.maintenance.retention import Deleted, DeletionOutcome, Forecast, RetentionFacts, RetentionPlan
from statestore.storage import Storage


@dataclass(frozen=True)
class PreparedRetention:
    """The plan, the facts behind it, and the guards that block it.

    `forecast`: what it deletes now, and from when on it can delete the rest; `before`: the audit that must allow it;
    `losses`: what that reports as lost, and what the deletions would add; `needs_stopped`: the plan deletes files that a
    running query of Spark's may still name.
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
    """The result of a retention plan. `before`: the audit that allowed it; `done` is empty where nothing was deleted."""

    mode: Mode
    before: Audit
    planned: RetentionPlan
    done: tuple[Deleted, ...] = ()


def prepare(
    storage: Storage,
    policies: Policies,
    *,
    clock: Clock,
    mode: Mode | None = None,
    everything: bool = False,
    stopped: bool = False,
    accept_loss: bool = False,
) -> PreparedRetention:
    """Plan what retention deletes, and audit the checkpoint: what the caller knows of it may be old. Read-only.

    `mode` overrides the configured one. `everything`: look at every store, not only where something may have changed;
    with `stopped`, which a person confirms, also delete tables that a running query of Spark's may still name.
    `accept_loss`: errors of the audit do not block; `losses` says what is lost. Raises as `audit.gather` and
    `retention.gather`.
    """
    facts = audit.gather(storage)
    before = judged(facts, policies)
    gathered = retention.gather(storage, policies.retention, clock=clock, everything=everything)
    planned = retention.plan(gathered, policies.retention, stopped=everything and stopped)
    allowed = mode or policies.mode_for(is_own=planned.is_own)
    found = guards.refusals(
        guards.deletes(storage, allowed),
        guards.half_switched(storage),
        None if accept_loss else guards.is_whole(before),
    )
    needs_stopped = everything and stopped and not planned.is_own
    return PreparedRetention(
        allowed,
        before,
        losses(facts, before, planned),
        gathered,
        planned,
        retention.forecast(gathered, planned, policies.retention),
        found,
        needs_stopped,
    )


def execute(
    storage: Storage,
    prepared: PreparedRetention,
    by: Maintainer,
    *,
    told: Callable[[Deleted], None] = lambda step: None,
    scratch: Path | None = None,
    workers: int = WORKERS,
) -> RetentionPass:
    """Read the bases that the plan names, delete what it says, and call `told` after each of these steps. `scratch`: local
    disk for the reads, None for the system's folder for temporary files; `workers`: how many bases are read at a time.

    *Danger*: it deletes without asking. *Guarantee*: as `retention.execute`.
    Raises the first refusal; `RefusedAsUnsafe` for a query at work where the plan needs it stopped; as `runs.delete`.
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
        told(step)
    return RetentionPass(prepared.mode, prepared.before, prepared.planned, tuple(done))


def unattended(storage: Storage, policies: Policies, by: Maintainer, *, scratch: Path | None = None) -> RetentionPass:
    """Delete what the plan says where the mode allows it, else only plan: for a schedule. `scratch`: as `execute`.

    *Danger*: as `execute`. Raises as `prepare` and `execute`, but not for a mode that allows no deletions;
    `CorruptFile` when the read of a base has found damage, after which nothing is deleted.
    """
    prepared = prepare(storage, policies, clock=by.clock)
    if prepared.mode is not Mode.FULL:
        guards.require_none(guards.refusals(guards.is_whole(prepared.before)))
        return RetentionPass(prepared.mode, prepared.before, prepared.planned)
    finished = execute(storage, prepared, by, scratch=scratch)
    for step in finished.done:
        if step.outcome is DeletionOutcome.DAMAGED:
            raise CorruptFile(f"{step.outcome.value}: {step.detail}", path=str(step.store))
    return finished
