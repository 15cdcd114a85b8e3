"""Snapshots and retention that die: no version is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import drills as recorded
from statekeeper.statestore.maintenance.upkeep import retention
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPolicy
from statekeeper.statestore.maintenance.upkeep.snapshot import SkipReason, SnapshotPolicy
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import perform
from statekeeper.statestore.maintenance.verbs.drill import Drill
from statekeeper.statestore.maintenance.verbs.optimize import Optimize
from statekeeper.statestore.maintenance.verbs.retention import Retention
from statekeeper.statestore.maintenance.verbs.snapshot import Snapshot
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import drills, runs, snapshots, verbs
from tests.support.checkpoints import Checkpoint
from tests.support.crashes import AnyVerb, Case, Crashing, Roots, differing
from tests.support.faulty_storage import FaultyStorage, Request
from tests.support.hosts import column
from tests.support.keyed_roots import KeyedRoot
from tests.support.maintainers import maintainer
from tests.support.rescales import rescale
from tests.support.retention import take_snapshots
from tests.support.sink_tables import WrittenRoot, in_days, optimized, planned
from tests.support.switching import WRITES


class _OfCheckpoint(Crashing):
    made: Checkpoint

    def ready(self) -> Roots:
        return [self.place.copied(self.made.storage)]


class Snapshotting(_OfCheckpoint):
    """A store with a snapshot and a tail of two changelogs."""

    verb: AnyVerb = Snapshot
    fewest, every, in_a_bucket = 25, 1, 5
    policies = Policies(SnapshotPolicy(changelogs=1), mode=Mode.FULL)

    def make_base(self) -> None:
        folder = self.place.base_folder()
        self.made = Checkpoint(self.place.base_root(), folder, partitions=1)
        self.made.grow(4)
        snapshots.take(self.made.storage, folder)
        self.made.grow(2)

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        prepared = verbs.snapshot.plan(roots[0], self.policies, clock=clock)
        verbs.snapshot.execute(roots[0], prepared, maintainer(clock), scratch=self.place.scratch())

    def must_fail(self, case: Case) -> bool:
        # A failure does not stop the snapshots of other stores.
        return False

    def check_half(self, roots: Roots, case: Case) -> None:
        self.model(self.made, roots[0]).assert_right(self.place.scratch())

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        assert [left.reason for left in snapshots.planned(roots[0]).leave] == [SkipReason.AT_HEAD], case
        self.model(self.made, roots[0]).assert_snapshots_are_right(self.place.scratch())


POLICY = RetentionPolicy(versions=3, grace_seconds=0)
RETAINED_BATCHES = (9, 10, 11)


class Collecting(_OfCheckpoint):
    """Three snapshots, an attempt that was never committed, and a table that no zip names."""

    verb: AnyVerb = Retention
    fewest, every, in_a_bucket = 60, 3, 1
    structure = Structure.V2

    def make_base(self) -> None:
        folder = self.place.base_folder()
        self.made = made = Checkpoint(self.place.base_root(), folder, partitions=1, structure=self.structure)
        for _ in range(3):
            made.grow(4)
            snapshots.take(made.storage, folder)
        with made.load(made.stores[0], made.versions[5][0], folder / "zombie") as opened:
            opened.put(column([b"of a zombie"]), column([b"x"]))
            opened.commit()
        made.storage.create(made.stores[0].table_file(f"000999-{RandomIds().fresh()}.sst"), b"no zip names it")

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        collect(roots[0], POLICY, clock)

    def rehearsed(self, roots: Roots, traced: Sequence[FaultyStorage]) -> None:
        self.left = what_is_left(roots[0])
        assert len(self.left) < len(what_is_left(self.made.storage))

    def check_half(self, roots: Roots, case: Case) -> None:
        for batch in RETAINED_BATCHES:
            self.model(self.made, roots[0]).assert_right(self.place.scratch(), batch)

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        assert what_is_left(roots[0]) == self.left, case


class CollectingV1(Collecting):
    is_slow, structure, in_a_bucket = True, Structure.V1, 0


class CollectingRemoved(Crashing):
    """A root of which a rescale has removed two of four partitions."""

    verb: AnyVerb = Retention
    fewest, every = 40, 6
    in_batch_logs = False
    policy = RetentionPolicy(versions=1, grace_seconds=0, quarantine_seconds=0)

    def make_base(self) -> None:
        folder = self.place.base_folder()
        self.root = KeyedRoot(self.place.base_root(), folder, 4, 16, self.in_batch_logs)
        self.root.grow(2)
        take_snapshots(self.root.storage, folder)
        self.root.grow(1)
        rescale(self.root.storage, 2, folder)
        self.root.grow(1)
        take_snapshots(self.root.storage, folder)

    def ready(self) -> Roots:
        return [self.place.copied(self.root.storage)]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        collect(roots[0], self.policy, clock)

    def chosen(self, trace: Sequence[Request]) -> Sequence[Request]:
        return [one for one in trace if one.kind in WRITES]

    def some(self, turn: int) -> list[Case]:
        # Each case loads each store twice.
        return differing(self.cases)[:: self.every]

    def check_half(self, roots: Roots, case: Case) -> None:
        replace(self.root, storage=roots[0], folder=self.place.scratch()).assert_right(2)

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        assert {store.partition for store in catalog.files(roots[0])} == {0, 1}, case
        self.check_half(roots, case)


class CollectingRemovedInBatchLogs(CollectingRemoved):
    in_batch_logs = True


def collect(storage: Storage, policy: RetentionPolicy, clock: Clock | None) -> None:
    """Run retention like `statekeeper gc --apply`."""
    clock = clock or SystemClock()
    gathered = retention.gather(storage, policy, clock=clock)
    planned = retention.plan(gathered, policy)
    runs.delete(storage, gathered, planned, holder="a test", clock=clock, ids=RandomIds())


def what_is_left(storage: Storage) -> set[str]:
    """All files but those about the runs themselves."""
    of_runs = (f"{names.LEASES}/", f"{names.HISTORY}/", f"{names.DELETING}/")
    return {entry.path for entry in storage.list("") if not entry.path.startswith(of_runs)}


class Drilling(_OfCheckpoint):
    """A store with two snapshots. The drill only reads the state: it writes a hold, the history and its record."""

    verb: AnyVerb = Drill
    fewest, every, in_a_bucket = 30, 4, 2

    def make_base(self) -> None:
        folder = self.place.base_folder()
        self.made = Checkpoint(self.place.base_root(), folder, partitions=1)
        for _ in range(2):
            self.made.grow(2)
            snapshots.take(self.made.storage, folder)
        self.made.grow(1)

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        drills.drilled(roots[0], self.place.scratch(), by=maintainer(clock), stopped=False)

    def must_fail(self, case: Case) -> bool:
        # A store that cannot be examined does not stop the others.
        return False

    def check_half(self, roots: Roots, case: Case) -> None:
        self.model(self.made, roots[0]).assert_right(self.place.scratch())

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        records = recorded.read(roots[0])
        assert records.keys() == set(self.made.stores), case
        assert {one.verdict for one in records.values()} == {"same"}, case
        self.check_half(roots, case)


class Optimizing(Crashing):
    """A table with small files, and with files that no rewind and no reader needs. Its requests are disturbed."""

    verb: AnyVerb = Optimize
    sides: Sequence[int] = (1,)
    fewest, every, in_a_bucket = 75, 20, 1

    def make_base(self) -> None:
        folder = self.place.base_folder()
        root = KeyedRoot(self.place.base_root(), folder / "hosts", partitions=1, key_groups=4)
        self.made = WrittenRoot(root, open_storage(str(folder / "table")))
        self.made.grow(2)
        optimized(self.made, folder / "scratch")
        self.made.grow(2)
        self.made.retain(1, folder / "scratch")
        self.rows = self.made.rows()

    def ready(self) -> Roots:
        return [self.place.copied(self.made.root.storage), self.place.copied(self.made.table, 1)]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        later = in_days(30) if clock is None else in_days(31)
        made = WrittenRoot(replace(self.made.root, storage=roots[0]), roots[1])
        perform(planned(made, self.place.scratch(), by=later))

    def rehearsed(self, roots: Roots, traced: Sequence[FaultyStorage]) -> None:
        self.left = len(self._local(roots).data_files())
        assert self.left < len(self.made.data_files())

    def check_half(self, roots: Roots, case: Case) -> None:
        local = self._local(roots)
        assert local.rows() == self.rows, case
        local.assert_all_retained_batches_can_be_restored()

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        self.check_half(roots, case)
        local = self._local(roots)
        assert len(local.opened().file_uris()) == 1, case
        # The second run also deletes what a merge before the crash has replaced, or has not committed.
        assert len(local.data_files()) <= self.left, case

    def audited(self, roots: Roots) -> Roots:
        return roots[:1]

    def _local(self, roots: Roots) -> WrittenRoot:
        table = open_storage(str(self.place.local(roots[1])))
        return WrittenRoot(replace(self.made.root, storage=roots[0]), table)


UPKEEP: dict[str, type[Crashing]] = {
    "drill": Drilling,
    "optimize": Optimizing,
    "snapshot": Snapshotting,
    "gc v2": Collecting,
    "gc v1": CollectingV1,
    "gc of removed partitions": CollectingRemoved,
    "gc of removed partitions in batch logs": CollectingRemovedInBatchLogs,
}
