"""Switches checkpoints like `statekeeper switch`, with crashes at selected requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rewrites import engine, switchover
from statekeeper.statestore.maintenance.rewrites.engine import Machine, Progress
from statekeeper.statestore.maintenance.rewrites.switchover import SwitchPlan
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.storage import Kind, Storage
from tests.support import runs
from tests.support.checkpoints import Checkpoint
from tests.support.clocks import SleeplessClock
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash
from tests.support.structures import held

WRITES = (Kind.CREATE, Kind.REPLACE, Kind.DELETE)


def planned(storage: Storage, to: Structure, scratch: Path, spark: Spark | None = None) -> SwitchPlan:
    return switchover.plan(engine.gather(storage, scratch=scratch), to, spark)


def switch(
    storage: Storage, to: Structure, scratch: Path, spark: Spark | None = None, *, clock: Clock | None = None
) -> list[Progress]:
    told: list[Progress] = []
    plan = planned(storage, to, scratch, spark)
    if plan.refusals:
        # As every entry point does; a fault that is injected into the audit ends here.
        raise RefusedAsUnsafe("; ".join(plan.refusals))
    machine = Machine(scratch=scratch, clock=clock or SystemClock(), ids=RandomIds(), workers=1)
    runs.switch(storage, plan, told.append, run=RandomIds().fresh(), holder="a test", machine=machine)
    return told


def abort(storage: Storage, *, clock: Clock | None = None) -> None:
    journal = rewrite_journal.open_journal(storage)
    if journal is not None:
        run = RandomIds().fresh()
        runs.abort(storage, journal, lambda _: None, run=run, holder="a test", clock=clock or SystemClock())


def structure_of(storage: Storage) -> Structure:
    heads = catalog.heads(storage)
    assert heads is not None
    return Structure.V1 if next(iter(heads.heads.values())).id is None else Structure.V2


def contents(storage: Storage) -> dict[str, bytes]:
    """Of every file of the checkpoint."""
    return {e.path: storage.read(e.path) for e in storage.list("") if not e.path.startswith(f"{names.CONTROL}/")}


def snapshots(storage: Storage) -> list[VersionId]:
    return [version for files in catalog.files(storage).values() for version in files.snapshots]


def is_right(checkpoint: Checkpoint, storage: Storage, scratch: Path) -> bool:
    return held(storage, scratch) == dict(zip(checkpoint.stores, checkpoint.states[-1], strict=True))


def die_at(storage: Storage, to: Structure, scratch: Path, where: Callable[[Request], bool], fault: Fault) -> None:
    """Die at the first write for which `where` holds."""

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return fault if request.kind in WRITES and where(request) else None

    with pytest.raises(SimulatedCrash):
        switch(Dying(storage), to, scratch)


def begin_a_switch(storage: Storage, to: Structure, folder: Path) -> None:
    """Start a switchover that dies before the end."""
    die_at(
        storage,
        to,
        folder / "scratch",
        lambda request: request.path == names.switchover(1, "cleared"),
        Fault.BEFORE,
    )
    storage.delete([entry.path for entry in storage.list(names.LEASES)])


def gone_on(storage: Storage, *, purges: Iterable[int] = range(6)) -> None:
    """The query has committed a batch more, in the structure that it found, and purged these."""
    for store, head in catalog.heads_at(storage, 5).heads.items():
        place = store.snapshot if head in catalog.files(storage)[store].snapshots else store.changelog
        storage.create(place(VersionId(7, head.id)), storage.read(place(head)))
    storage.create(names.offsets(6), storage.read(names.offsets(5)))
    storage.create(names.commits(6), storage.read(names.commits(5)))
    storage.delete(map(names.commits, purges))


class Dying(FaultyStorage):
    """Dies at the first write of a file of the state, when the journal exists."""

    def _fault_of(self, request: Request) -> Fault | None:
        writes = request.kind in WRITES and request.path.startswith("state/")
        return Fault.BEFORE if writes else None


def after_the_dead() -> SleeplessClock:
    """When a dead run's lease counts no more."""
    return SleeplessClock(SystemClock().now_seconds() + lease.LIFE_SECONDS)


def silent(_: Progress) -> None:
    pass


def take_snapshots(storage: Storage, scratch: Path, *, at_head: bool = False) -> None:
    """Of every store."""
    gathered = snapshot.gather(storage, at_head=at_head)
    for action in snapshot.plan(gathered, snapshot.SnapshotPolicy(), take_all=True).take:
        snapshot.execute(storage, action, scratch=scratch, clock=SystemClock(), ids=RandomIds())
