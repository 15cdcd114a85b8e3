"""Claims of the roots of Python jobs in tests."""

from __future__ import annotations

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rollback.claim import ClaimPlan
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Prepared
from statekeeper.statestore.root import binding
from statekeeper.statestore.root.state_root import StateRoot
from statekeeper.statestore.storage import Storage
from tests.support import verbs
from tests.support.clocks import SleeplessClock
from tests.support.clones import FULL

NEW = "0badc0de-0000-4000-8000-00000000000a"

Claimed = Prepared[ClaimPlan, None, None]


def operator(clock: Clock | None = None) -> Maintainer:
    """A maintainer that does not wait."""
    return Maintainer("an operator", clock or SleeplessClock(SystemClock().now_seconds()), RandomIds())


def planned_claim(
    root: Storage, checkpoint: Storage | None, query_id: str | None = None, *, clock: Clock | None = None
) -> Claimed:
    return verbs.claim.plan(root, checkpoint, FULL, operator(clock), query_id=query_id)


def execute_claim(root: Storage, checkpoint: Storage | None, prepared: Claimed, *, clock: Clock | None = None) -> None:
    by = operator(clock)
    verbs.claim.execute(root, checkpoint, prepared, by, run=by.ids.fresh(), stopped=True)


def claimed(
    root: Storage, checkpoint: Storage | None, query_id: str | None = None, *, clock: Clock | None = None
) -> Claimed:
    """Plan a claim and execute it."""
    prepared = planned_claim(root, checkpoint, query_id, clock=clock)
    execute_claim(root, checkpoint, prepared, clock=clock)
    return prepared


def bound(root: Storage) -> binding.Binding:
    return binding.parse_binding(root.read(names.BINDING))


def driver(root: Storage) -> StateRoot:
    """Open the root as the job of its present owner."""
    return StateRoot(root, binding.bind(root, bound(root), batch=8, ids=RandomIds()), Structure.V2)


def outer(batch: int) -> logs.OffsetLog:
    return logs.OffsetLog(watermark_ms=0, timestamp_ms=batch, conf={}, sources=('"a source"',))
