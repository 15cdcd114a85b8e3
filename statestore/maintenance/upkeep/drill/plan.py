"""Plans a drill: which stores to restore. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.maintenance.records.drills import StoreDrill
from statekeeper.statestore.maintenance.upkeep.drill.model import (
    DRILLS_IN_A_QUARTER,
    DrillFacts,
    DrillPlan,
    DrillStore,
    Reason,
    StoreFacts,
)

_LEAST_SAMPLE = 8
"""A smaller sample saves nothing: the start of a process takes longer than these restores."""


def plan(
    facts: DrillFacts, *, stores: Sequence[str] = (), sample: int | None = None, turn: int | None = None
) -> DrillPlan:
    """Plan a drill. `stores`: those to restore, such as "0/3"; `sample`: how many stores; by default so many that weekly
    drills restore each store within a quarter, half of them because of their long restores.

    `turn`: the number of the drill, for a root whose drills are not recorded: the stores take turns. None: those that
    drills restored the longest time ago. Stores without a load are always in the sample: they are known not to restore.
    """
    if stores:
        return _of_names(facts, stores)
    every = sorted(facts.stores, key=lambda one: (-one.predicted_seconds, -one.changelogs, one.store))
    lost = [one for one in every if one.load is None]
    there = [one for one in every if one.load is not None]
    size = sample_size(len(there)) if sample is None else min(sample, len(there))
    turns = size - size // 2
    if turn is None:
        # The longest time ago first, never first of all; among equals, the longest restore first.
        by_age = sorted(there, key=lambda one: _drilled_at(facts, one))[:turns]
        chosen = {one.store: Reason.NEVER if _drilled_at(facts, one) < 0 else Reason.OLDEST for one in by_age}
    else:
        in_order = sorted(one.store for one in there)
        chosen = {in_order[(turn * turns + number) % len(there)]: Reason.TURN for number in range(turns)}
    for one in there:
        if len(chosen) >= size:
            break
        chosen.setdefault(one.store, Reason.WORST)
    reasons = {**dict.fromkeys((one.store for one in lost), Reason.NOT_LOADABLE), **chosen}
    return DrillPlan(
        batch=facts.batch,
        drill=_actions(facts, ((one, reasons[one.store]) for one in every if one.store in reasons)),
        stores=len(facts.stores),
        rounds=1 if size >= len(there) else math.ceil(len(there) / turns),
    )


def sample_size(stores: int) -> int:
    """Return the number of stores of one of the weekly drills that together restore each store within a quarter."""
    return min(stores, max(_LEAST_SAMPLE, 2 * math.ceil(stores / DRILLS_IN_A_QUARTER)))


def _drilled_at(facts: DrillFacts, one: StoreFacts) -> float:
    last = facts.last.get(one.store)
    return -1.0 if last is None else last.drilled_at_seconds


def _of_names(facts: DrillFacts, stores: Sequence[str]) -> DrillPlan:
    wanted = [name.strip() for text in stores for name in text.split(",") if name.strip()]
    by_name = {str(one.store).removeprefix(f"{names.STATE}/"): one for one in facts.stores}
    found = {name: by_name.get(name.removeprefix(f"{names.STATE}/")) for name in wanted}
    unknown = [name for name, one in found.items() if one is None]
    known = ", ".join(list(by_name)[:5]) + (" ..." if len(by_name) > 5 else "")
    refusals = [
        RefusedAsUnsafe(
            f"there is no store {name!r} at the newest batch; nothing was restored",
            path=name,
            hint=f"the stores are: {known or 'none'}. To list all, run: statekeeper inspect ROOT",
        )
        for name in unknown
    ]
    there = list({one.store: one for one in found.values() if one is not None}.values())
    actions = _actions(facts, ((one, Reason.ASKED) for one in there))
    return DrillPlan(batch=facts.batch, drill=actions, stores=len(facts.stores), rounds=None, refusals=tuple(refusals))


def _actions(facts: DrillFacts, chosen: Iterable[tuple[StoreFacts, Reason]]) -> tuple[DrillStore, ...]:
    return tuple(
        DrillStore(facts=one, reason=reason, last=comparable(facts.last.get(one.store), one)) for one, reason in chosen
    )


def comparable(last: StoreDrill | None, one: StoreFacts) -> StoreDrill | None:
    """Return the last drill of a store if its version is the one to restore, or an earlier one of the same past.

    In structure V1, the number of a version does not tell its content: an edit or a rollback replaces it. So without an id
    or a digest, the version counts only if nothing has been rewritten or rolled back since.
    """
    if last is None or not last.digest or last.version > one.version.version:
        return None
    if (last.mark is None) != (one.version.mark is None):
        return None  # a switchover was between them
    if last.mark is None:
        return last if last.past == one.past_of_last else None
    is_other = last.version == one.version.version and last.mark != one.version.mark
    return None if is_other else last


def version_of(last: StoreDrill, one: StoreFacts) -> VersionId:
    """Return the version that a comparable last drill restored."""
    has_id = one.version.id is not None
    return VersionId(last.version, last.mark if has_id else None, digest=None if has_id else last.mark)
