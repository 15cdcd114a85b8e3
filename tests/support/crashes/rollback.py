"""Repairs, rewinds, their undo, and claims that die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from statekeeper.statestore.base.clock import Clock, RandomIds, SystemClock
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format.file_sink import LOG, parse_entry
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.verbs import rewind
from statekeeper.statestore.maintenance.verbs.claim import Claim
from statekeeper.statestore.maintenance.verbs.repair import Repair
from statekeeper.statestore.storage import Kind, Storage, open_storage
from tests.support import repairs, runs, snapshots
from tests.support.checkpoints import Checkpoint
from tests.support.claims import bound, claimed
from tests.support.clones import own, query_of
from tests.support.crashes import SOME_KINDS, AnyVerb, Case, Crashing, Roots, put_again
from tests.support.faulty_storage import FaultyStorage, Request
from tests.support.file_sinks import CheckpointWithSink
from tests.support.maintained_query import Query, maintained_query
from tests.support.repairs import contents
from tests.support.rescales import all_rows
from tests.support.rewinds import rewound, undone
from tests.support.structures import held
from tests.support.switching import WRITES, after_the_dead
from tests.support.twins import statekeeper
from tests.support.unpacked import unpacked


def moved_by(storage: Storage) -> list[str]:
    """The runs whose files are in quarantine."""
    paths = [entry.path for entry in storage.list(names.QUARANTINE)]
    return sorted({found[0] for path in paths if (found := names.parse_quarantined(path))})


class _OfWrites(Crashing):
    """Only writes are disturbed: a crash at a read leaves the state after the write before it."""

    def chosen(self, trace: Sequence[Request]) -> Sequence[Request]:
        return [one for one in trace if one.kind in WRITES]


class Repairing(Crashing):
    """A checkpoint whose newest batches were deleted, and whose snapshots have the header of Spark 4.0."""

    verb: AnyVerb = Repair
    fewest, every = 40, 5

    def make_base(self) -> None:
        self.made = self.place.shared("to repair", self._make)
        self.before = contents(self.made.storage)

    def _make(self) -> Checkpoint:
        folder = self.place.base_folder()
        made = Checkpoint(self.place.base_root(), folder)
        for _ in range(2):
            made.grow(4)
            snapshots.take(made.storage, folder)
        made.storage.delete([names.BINDING])
        repairs.rewind(made.storage, 5)
        repairs.as_spark_4_0(made.storage)
        return made

    def ready(self) -> Roots:
        return [self.place.copied(self.made.storage)]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        repairs.apply(roots[0], repairs.planned(roots[0], Spark.V4_2), clock=clock)

    def rehearsed(self, roots: Roots, traced: Sequence[FaultyStorage]) -> None:
        self.after = contents(roots[0])
        assert self.after != self.before

    def check_half(self, roots: Roots, case: Case) -> None:
        self.model(self.made, roots[0], 5).assert_right(self.place.scratch())

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        [storage] = roots
        assert contents(storage) == self.after, case
        for run in moved_by(storage):
            repairs.put_back(storage, run)
        assert contents(storage) == self.before, case
        assert not storage.list(names.QUARANTINE)

    def audited(self, roots: Roots) -> Roots:
        return ()


class RevertingRepair(Repairing):
    verb: AnyVerb = rewind.Revert
    fewest, every = 20, 1

    def make_base(self) -> None:
        super().make_base()
        roots = super().ready()
        super().act(roots)
        [self.repaired] = roots
        [self.run] = moved_by(self.repaired)

    def ready(self) -> Roots:
        return [self.place.copied(self.repaired)]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        if clock is not None and not roots[0].list(names.QUARANTINE):
            return
        fresh, now = RandomIds().fresh(), clock or SystemClock()
        runs.undo_repair(roots[0], self.run, run=fresh, holder="a test", clock=now)

    def chosen(self, trace: Sequence[Request]) -> Sequence[Request]:
        return [one for one in trace if one.kind not in (Kind.READ, Kind.LIST)]

    def rehearsed(self, roots: Roots, traced: Sequence[FaultyStorage]) -> None:
        pass

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        assert contents(roots[0]) == self.before, case
        assert not roots[0].list(names.QUARANTINE)


NEWEST, TARGET = 4, 2


class _ThenUndone(_OfWrites):
    """A rewind that died: it is completed, or what it moved is taken back."""

    def complete(self, roots: Roots, case: Case, *, back: bool) -> bool:
        moved = moved_by(roots[0])
        if not moved or not back:
            return super().complete(roots, case, back=back)
        undone(roots[0], moved[0], clock=after_the_dead())
        return False


class Rewinding(_ThenUndone):
    """A query with a snapshot at the target of the rewind."""

    verb: AnyVerb = rewind.Rewind
    fewest, every = 31, 1
    is_reversible = True
    kind = "own v2 in batch logs"
    query: Query

    def make_base(self) -> None:
        self.query = self.place.shared(f"to rewind {self.kind}", self._make)
        states = self.query.checkpoint.states
        self.rows = {batch: states[batch + 1] for batch in range(TARGET, NEWEST + 1)}
        self.before = contents(self.query.storage)
        self.met: set[int] = set()

    def _make(self) -> Query:
        origin, structure, in_batch_logs = SOME_KINDS[self.kind]
        root, folder = self.place.base_root(), self.place.base_folder()
        query = maintained_query(root, folder, structure, origin, batches=3, in_batch_logs=in_batch_logs)
        query.snapshot()
        query.grow(2)
        return query

    @property
    def is_native(self) -> bool:
        return SOME_KINDS[self.kind][0] is Origin.NATIVE

    def ready(self) -> Roots:
        return [self.place.copied(self.query.storage)]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        keeps = clock is not None and self.is_native
        rewound(roots[0], TARGET, self.place.scratch(), clock=clock, keep_query_id=keeps)

    def rehearsed(self, roots: Roots, traced: Sequence[FaultyStorage]) -> None:
        self.after = self.without_binding(roots[0])

    def must_fail(self, case: Case) -> bool:
        """A lost reply to the release of the lease is no error."""
        return not case.request.path.startswith(names.LEASES)

    def check_half(self, roots: Roots, case: Case) -> None:
        newest = catalog.newest_batch(roots[0])
        assert newest is not None
        self.met.add(newest)
        assert self.states(roots[0]) == self.rows[newest], case

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        if not is_done:
            assert contents(roots[0]) == self.before, case
            return
        assert self.is_native or self.without_binding(roots[0]) == self.after, case
        assert self.states(roots[0]) == self.rows[TARGET], case

    def check_run(self, cases: Sequence[Case]) -> None:
        assert len(cases) < len(self.cases) or self.met == {NEWEST, 3, TARGET}

    def states(self, storage: Storage) -> list[object]:
        found = held(storage, self.place.scratch())
        return [rows for _, rows in sorted(found.items(), key=lambda item: item[0].partition)]

    def without_binding(self, storage: Storage) -> dict[str, bytes]:
        return {path: body for path, body in contents(storage).items() if path != names.BINDING}


class RevertingRewind(Rewinding):
    verb: AnyVerb = rewind.Revert
    fewest, every = 20, 4
    is_reversible = False

    def make_base(self) -> None:
        super().make_base()
        [self.rewound] = super().ready()
        self.run = rewound(self.rewound, TARGET, self.place.base_folder())

    def ready(self) -> Roots:
        return [self.place.copied(self.rewound)]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        if clock is not None and not roots[0].list(names.QUARANTINE):
            return
        undone(roots[0], self.run, clock=clock)

    def complete(self, roots: Roots, case: Case, *, back: bool) -> bool:
        return Crashing.complete(self, roots, case, back=back)

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        assert contents(roots[0]) == self.before, case

    def check_run(self, cases: Sequence[Case]) -> None:
        pass


class RewindingWithSink(_OfWrites):
    """A rewind with the log of Spark's file sink: no committed batch lacks its entry."""

    verb: AnyVerb = rewind.Rewind
    sides: Sequence[int] = (0, 1)
    fewest, every = 12, 1
    target = 0

    def make_base(self) -> None:
        self.made = CheckpointWithSink(self.place.base_folder(), interval=2)
        self.sink = self.made.sink
        self.log = self.begun = entries(self.sink)

    def ready(self) -> Roots:
        """The checkpoint names the location of the sink, so that the log is written again in its place."""
        put_again(self.sink, self.begun)
        return [self.place.copied(self.made.storage), self.sink]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        rewound(roots[0], self.target, self.place.scratch(), clock=clock, file_sink=roots[1])

    def chosen(self, trace: Sequence[Request]) -> Sequence[Request]:
        """Those that change which batches are committed or have an entry; a write of state changes neither."""
        return [one for one in super().chosen(trace) if names.COMMITS in one.path or LOG in one.path]

    def must_fail(self, case: Case) -> bool:
        return False

    def audited(self, roots: Roots) -> Roots:
        return roots[:1]

    def check_half(self, roots: Roots, case: Case) -> None:
        newest = catalog.newest_batch(roots[0])
        assert newest is not None
        batches = {entry.batch for path in entries(roots[1]) if (entry := parse_entry(path))}
        assert batches >= set(range(newest + 1)), case

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        assert entries(roots[1]) == {f"{LOG}/0": self.log[f"{LOG}/0"]}, case
        assert catalog.newest_batch(roots[0]) == self.target, case


class RevertingRewindWithSink(RewindingWithSink):
    """The undo. After it has died, the query is rewound again."""

    verb: AnyVerb = rewind.Revert

    def make_base(self) -> None:
        super().make_base()
        self.run = rewound(self.made.storage, self.target, self.place.base_folder(), file_sink=self.sink)
        self.begun = entries(self.sink)

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        if clock is None:
            undone(roots[0], self.run, open_sink=lambda url: roots[1])
        else:
            super().act(roots, clock=clock)


def entries(sink: Storage) -> dict[str, bytes]:
    """The log of a file sink."""
    return {entry.path: sink.read(entry.path) for entry in sink.list("", hidden=True) if entry.path.startswith(LOG)}


JOIN = Path(__file__).parents[2] / "fixtures" / "checkpoints" / "spark-4.2.0-hdfs-join-2.zip"


class RewindingConversion(_ThenUndone):
    """A rewind of a converted query to a batch before the conversion: no offsets of the appended batch remain without its
    commit."""

    verb: AnyVerb = rewind.Rewind
    fewest, is_slow, is_reversible = 30, True, True
    commands: Sequence[Sequence[str]] = (("convert", "--to", "rocksdb"),)
    back = 1

    def make_base(self) -> None:
        path = unpacked(JOIN, self.place.base_folder())
        self.root = open_storage(str(path))
        options = ("--for-spark", "4.2", "--apply", "--confirm-stopped", "--scratch", str(self.place.scratch()))
        for number, (verb, *how) in enumerate(self.commands):
            statekeeper(verb, str(path), *how, *options)
            if number == 0:
                newest = catalog.newest_batch(self.root)
                assert newest is not None
                self.target = newest - self.back
        self.rows: Counter[str] = all_rows(path)

    def ready(self) -> Roots:
        roots = [self.place.copied(self.root)]
        self.before = contents(roots[0])
        return roots

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        rewound(roots[0], self.target, self.place.scratch(), clock=clock, keep_query_id=True)

    def must_fail(self, case: Case) -> bool:
        return False

    def check_half(self, roots: Roots, case: Case) -> None:
        newest = catalog.newest_batch(roots[0])
        assert newest is not None
        assert catalog.newest_begun(roots[0]) <= newest, case

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        if not is_done:
            assert contents(roots[0]) == self.before, case
            return
        assert catalog.newest_batch(roots[0]) == self.target
        assert all_rows(self.place.local(roots[0])) == self.rows, case
        statekeeper("audit", str(self.place.local(roots[0])), "--deep")


class RewindingRescale(RewindingConversion):
    commands = (("convert", "--to", "rocksdb"), ("rescale", "--partitions", "1"))
    back = 0


class Claiming(Crashing):
    """A claim of the root of a job, with a new checkpoint: the owner is the former one or the new one."""

    verb: AnyVerb = Claim
    sides: Sequence[int] = (0, 1)
    fewest, every = 12, 1

    def make_base(self) -> None:
        folder = self.place.base_folder()
        self.query = own(self.place.base_root(), folder)

    def ready(self) -> Roots:
        return [self.place.copied(self.query.storage), self.place.new_root(1)]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        claimed(roots[0], roots[1], clock=clock)

    def chosen(self, trace: Sequence[Request]) -> Sequence[Request]:
        return [one for one in trace if one.kind in (Kind.CREATE, Kind.REPLACE)]

    def check_half(self, roots: Roots, case: Case) -> None:
        assert query_of(self.query, roots[0], self.place.scratch(), 7).is_right(), case

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        assert bound(roots[0]).claim is not None, case
        assert catalog.newest_batch(roots[1]) == 7, case

    def audited(self, roots: Roots) -> Roots:
        return roots[:1]


def _of_kind(kind: type[Rewinding], of: str) -> type[Rewinding]:
    is_first = of == Rewinding.kind
    return kind if is_first else type(f"{kind.__name__}Of", (kind,), {"kind": of, "is_slow": True})


ROLLBACK: dict[str, type[Crashing]] = {
    "repair": Repairing,
    "undo of a repair": RevertingRepair,
    **{f"rewind {kind}": _of_kind(Rewinding, kind) for kind in SOME_KINDS},
    **{f"undo of a rewind {kind}": _of_kind(RevertingRewind, kind) for kind in SOME_KINDS},
    "rewind with a file sink": RewindingWithSink,
    "undo of a rewind with a file sink": RevertingRewindWithSink,
    "rewind before a conversion": RewindingConversion,
    "rewind before a rescale": RewindingRescale,
    "claim": Claiming,
}
