"""Emergency snapshots: a job makes them itself if maintenance does not, before its lineage reaches the ceiling."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.upkeep.snapshot import Taken, TakeSnapshot
from statekeeper.statestore.maintenance.verbs.snapshot import take_emergency_snapshots
from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.engine.scratch import user_folder

EMERGENCY_CHANGELOGS = 600
"""Length of the tail from which a store gets a snapshot."""

BATCHES_TO_CEILING = 200
"""Batches from `EMERGENCY_CHANGELOGS` to the ceiling (`LINEAGE_STOP_BYTES`), about: 218 with the first versions, 175 from
version 1,000,000 on."""

LONGEST_PAUSE_BATCHES = 64
"""Most batches between two attempts. At least eight attempts fit between `EMERGENCY_CHANGELOGS` and the ceiling."""


class EmergencySnapshots:
    """Makes missing snapshots when a tail is long.

    A failed attempt is repeated after 1, 2, 4 ... `LONGEST_PAUSE_BATCHES` batches: it lists all of `state/` and replays
    each store while the query waits. The same failure is reported once.
    """

    def __init__(
        self, storage: Storage, *, changelogs: int, scratch: Path, clock: Clock, ids: Ids, warn: Callable[[str], None]
    ) -> None:
        self._storage = storage
        self._changelogs = changelogs
        self._scratch = scratch
        self._clock = clock
        self._ids = ids
        self._warn = warn
        self._pause_batches = 0
        self._next_batch = 0
        self._reported: str | None = None

    def before(self, batch: int, tail_changelogs: int) -> bool:
        """Make emergency snapshots if the longest tail is too long. Call it before each batch; it blocks the batch.

        Returns whether it listed the stores. Reports failures, so that the job continues until the ceiling.
        """
        if tail_changelogs < self._changelogs:
            self._pause_batches = self._next_batch = 0
            self._reported = None
            return False
        if batch < self._next_batch:
            return False
        self._pause_batches = min(max(1, 2 * self._pause_batches), LONGEST_PAUSE_BATCHES)
        self._next_batch = batch + self._pause_batches
        self._try()
        return True

    def _try(self) -> None:
        try:
            plan = snapshot.plan(snapshot.gather(self._storage), snapshot.SnapshotPolicy(changelogs=self._changelogs))
        except StatekeeperError as error:
            self._report("the job cannot find the stores that need an emergency snapshot", [str(error)])
            return
        late = [action for action in plan.take if action.reason is snapshot.SnapshotReason.COUNT]
        if not late:
            return
        if self._reported is None:
            self._warn(
                f"the {'tail' if len(late) == 1 else 'tails'} of {counted(len(late), 'store')} reached {self._changelogs} "
                "changelogs: the job takes snapshots now, and the query waits. Schedule for this root: "
                f"statekeeper maintain {shlex.quote(self._storage.url)}"
            )
        failures: list[str] = []

        def ended(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> None:
            if isinstance(outcome, StatekeeperError):
                failures.append(f"{action.store}: {outcome}")
                return
            batch, seconds = action.version.in_words, outcome.seconds
            self._warn(f"{action.store}: emergency snapshot of {batch} in {seconds:.1f} s")

        try:
            scratch = user_folder(self._scratch)
            # The snapshots cannot wait for a maintainer that holds the lease.
            take_emergency_snapshots(
                self._storage, late, ended, self._unrecorded, scratch=scratch, clock=self._clock, ids=self._ids
            )
        except StatekeeperError as error:
            failures.append(str(error))
        if failures:
            self._report(f"emergency snapshots of {len(failures)} of {len(late)} stores failed", failures)

    def _unrecorded(self, error: StatekeeperError) -> None:
        self._warn(
            f"the emergency snapshots exist, but the job cannot write their record: {error}. No action is needed: the next "
            "full pass of retention finds the snapshots"
        )

    def _report(self, what: str, failures: Sequence[str]) -> None:
        if what != self._reported:
            self._reported = what
            self._warn(
                f"{what}, the first: {failures[0]}. The job tries again after 1, 2, 4 ... {LONGEST_PAUSE_BATCHES} batches "
                f"and does not repeat this warning. Without snapshots, it stops about {BATCHES_TO_CEILING} batches after "
                f"the first try. Run: statekeeper snapshot {shlex.quote(self._storage.url)} --all"
            )
