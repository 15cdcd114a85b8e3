"""Snapshots that a job makes itself when nobody else does: the last resort before its lineage is too long to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from statestore.clock import Clock, Ids
from statestore.errors import StatekeeperError
from statestore.maintenance import records, snapshot
from statestore.maintenance.history import History
from statestore.maintenance.records import Record
from statestore.storage import Storage

EMERGENCY_CHANGELOGS = 600
"""A store with so many since its newest snapshot gets one. Some 840 are the most that a lineage can name (SPARK-49374)."""


def take_emergency_snapshots(
    storage: Storage, *, changelogs: int, scratch: Path, clock: Clock, ids: Ids, warn: Callable[[str], None]
) -> None:
    """Snapshots at the head of all stores whose tail has `changelogs` files.

    Called between two batches: it takes as long as it takes. What goes wrong is told, and the job goes on as long as it
    can.
    """
    try:
        plan = snapshot.plan(snapshot.gather(storage), snapshot.SnapshotPolicy(changelogs=changelogs))
    except StatekeeperError as error:
        warn(f"which stores need an emergency snapshot cannot be seen: {error}")
        return
    late = [action for action in plan.take if action.reason is snapshot.Why.COUNT]
    if late:
        warn(
            f"{len(late)} stores have {changelogs} changelogs or more without a snapshot: the job makes them itself "
            "now, and stands still meanwhile; see that `statekeeper snapshot` runs for this root"
        )
        # Without a lease, which a maintainer may hold, and without a record, if need be: this cannot wait.
        history = History.begin(storage, "snapshot", ids.fresh(), clock)
        with _told(warn):
            history.plan(map(records.of_action, late))
        done = [_take(storage, action, scratch=scratch, clock=clock, ids=ids, warn=warn) for action in late]
        with _told(warn):
            history.outcome(done)


@contextmanager
def _told(warn: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except StatekeeperError as error:
        warn(f"the emergency snapshots are not on record, retention finds them at its next full pass: {error}")


def _take(
    storage: Storage,
    action: snapshot.TakeSnapshot,
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    warn: Callable[[str], None],
) -> Record:
    try:
        taken = snapshot.execute(storage, action, scratch=scratch, clock=clock, ids=ids)
    except StatekeeperError as error:
        warn(f"{action.store}: an emergency snapshot failed: {error}")
        return records.of_failed(action, error)
    warn(f"{action.store}: emergency snapshot of version {action.version.version} in {taken.seconds:.1f} s")
    return records.of_taken(taken)
