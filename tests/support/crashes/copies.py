"""Copies that die: what a copy has loads, its source is as it was, and a second run completes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format import logs, names, savepoint_names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import unpack
from statekeeper.statestore.maintenance.copies.savepoints import Tables
from statekeeper.statestore.maintenance.executors import Executor
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind
from statekeeper.statestore.maintenance.verbs.clone import Clone
from statekeeper.statestore.maintenance.verbs.contract import Run, perform, prepare
from statekeeper.statestore.maintenance.verbs.migrate import Migrate
from statekeeper.statestore.maintenance.verbs.mirror import Mirror
from statekeeper.statestore.maintenance.verbs.publish import Publish
from statekeeper.statestore.maintenance.verbs.rewrite import Rollback
from statekeeper.statestore.maintenance.verbs.savepoint import Remove, SaveFiles, SaveRows
from statekeeper.statestore.maintenance.verbs.unpack import Unpack
from statekeeper.statestore.storage import Kind, Storage, open_storage, read_or_none
from tests.support import verbs
from tests.support.apart import elsewhere
from tests.support.audits import audited
from tests.support.blueprints import change_schema, column
from tests.support.checkpoints import Checkpoint
from tests.support.clones import FULL, cloned, query_of
from tests.support.crashes import AnyVerb, Case, Crashing, Roots, put_again
from tests.support.dumped import dumped
from tests.support.faulty_storage import FaultyStorage
from tests.support.keyed_roots import KeyedRoot
from tests.support.maintained_query import Query, maintained_query
from tests.support.maintainers import maintainer
from tests.support.mirrors import mirrored
from tests.support.repairs import contents
from tests.support.roots import QUERY
from tests.support.savepoints import as_model, kept, manifest, recomputed, remove, saved
from tests.support.state_tables import as_lines, opened, planned, published, replayed, rows_of
from tests.support.switching import after_the_dead
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
MIGRATION = Migrate(blueprint="blueprint", destination="destination")

OF_RUNS = (savepoint_names.LABELS, savepoint_names.HOLDS, names.LEASES)
"""What copies write into their source."""
PUBLISHED = 7
"""The number of batches of a table before the disturbed run, which then merges its small files."""


class Copying(Crashing):
    """A copy of a source whose URL stays the same. The requests to the destination are disturbed."""

    sides: Sequence[int] = (1,)
    kind, structure, in_batch_logs = Origin.OWN, Structure.V2, False
    batches = 2
    query: Query

    def make_base(self) -> None:
        name = self.place.base_folder()
        self.query = maintained_query(
            self.place.root(f"{name.name}/source"),
            name,
            self.structure,
            self.kind,
            batches=self.batches,
            in_batch_logs=self.in_batch_logs,
        )

    @property
    def source(self) -> Storage:
        return self.query.storage

    def ready(self) -> Roots:
        self.source.delete([entry.path for folder in OF_RUNS for entry in self.source.list(folder)])
        return [self.source, self.place.new_root(1)]

    def must_fail(self, case: Case) -> bool:
        return True

    def is_right(self, storage: Storage, batch: int) -> bool:
        return query_of(self.query, storage, self.place.scratch(), batch).is_right()

    def check_half(self, roots: Roots, case: Case) -> None:
        newest = catalog.newest_batch(roots[1])
        assert newest is None or self.is_right(roots[1], newest), case


class Cloning(Copying):
    verb: AnyVerb = Clone
    fewest, every, in_a_bucket = 61, 1, 1
    in_batch_logs, batches = True, 3

    def make_base(self) -> None:
        super().make_base()
        self.query.snapshot()
        self.query.grow(1)

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        source, destination = roots
        cloned(source, destination, self.place.scratch(), by=maintainer(clock), stopped=True)

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        assert self.is_right(roots[1], 3), case


class CloningV1(Cloning):
    is_slow, in_a_bucket, kind, structure, in_batch_logs = True, 0, Origin.NATIVE, Structure.V1, False


class Mirroring(Copying):
    """A run that copies batches, a snapshot and a deletion to a mirror."""

    verb: AnyVerb = Mirror
    fewest, every = 41, 17
    batches = 3

    def make_base(self) -> None:
        super().make_base()
        self.mirror = self.place.root(f"{self.place.base_folder().name}/mirror")
        mirrored(self.source, self.mirror, self.place.scratch())
        self.query.grow(2)
        self.query.snapshot()
        self.query.grow(1)
        self.query.gc()
        self.jumps = 0

    def ready(self) -> Roots:
        return [super().ready()[0], self.place.copied(self.mirror, 1)]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        source, destination = roots
        mirrored(source, destination, self.place.scratch(), by=maintainer(clock))

    def some(self, turn: int) -> list[Case]:
        chosen = super().some(turn)
        return [*chosen, *[case for case in self.cases if _deletes_a_commit(case) and case not in chosen][:1]]

    def check_half(self, roots: Roots, case: Case) -> None:
        mirror = roots[1]
        newest = catalog.newest_batch(mirror)
        assert newest is not None, case
        assert self.is_right(mirror, newest), case
        # Spark repeats a batch with offsets and without a commit, but only the next one.
        jumped = catalog.newest_begun(mirror) > newest + 1
        if jumped or case.request.path.startswith((names.OFFSETS, names.COMMITS)):
            mirror.delete([entry.path for entry in mirror.list(names.LEASES)])
            require_right_clone(mirror, self.place.new_root(1), self.query, newest)
            self.jumps += jumped

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        assert self.is_right(roots[1], 3 if self.structure is Structure.V1 else 5), case

    def check_run(self, cases: Sequence[Case]) -> None:
        assert any(_deletes_a_commit(case) for case in cases) or len(cases) < 5
        assert len(cases) < len(self.cases) or bool(self.jumps) == (self.structure is Structure.V1)


class Migrating(Copying):
    """A migration to another structure, with an added aggregate. Also the requests to the old checkpoint are disturbed."""

    verb: AnyVerb = Migrate
    sides: Sequence[int] = (0, 1)
    fewest, in_a_bucket = 100, 1
    is_reversible = True
    cluster: Executor | None = None

    def make_base(self) -> None:
        folder = self.place.base_folder()
        self.old = open_storage(str(unpacked(FIXTURES / "spark-4.2.0-v1-aggregation.zip", folder / "old")))
        blueprint = unpacked(FIXTURES / "spark-4.2.0-v2-aggregation.zip", folder / "blueprint")
        change_schema(blueprint, values=lambda fields: [*fields, column("max", "long")])
        self.blueprint = open_storage(str(blueprint))
        self.files = {entry.path: self.old.read(entry.path) for entry in self.old.list("", hidden=True)}
        self.rows = self._rows(self.old)
        assert self.rows

    def ready(self) -> Roots:
        return [self.old, self.place.new_root(1)]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        perform(prepare(MIGRATION, self._run(roots, clock)))

    def must_fail(self, case: Case) -> bool:
        return False  # an audit in the middle judges what it cannot read

    def check_half(self, roots: Roots, case: Case) -> None:
        self._check(roots, case)

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        self._check(roots, case)
        left = {entry.path for entry in roots[1].list("") if not entry.path.startswith(f"{names.CONTROL}/")}
        assert bool(left) is is_done, case
        assert roots[1].list(names.HANDED_OVER) == [], case

    def _check(self, roots: Roots, case: Case) -> None:
        """Check that the old checkpoint is as it was, and that the new one is whole if it is a checkpoint."""
        old, new = roots
        assert {entry.path: old.read(entry.path) for entry in old.list("", hidden=True)} == self.files, case
        if not _can_start(new):
            logged = [entry.path for folder in (names.OFFSETS, names.COMMITS) for entry in new.list(folder)]
            assert not logged or new.read(names.QUERY_METADATA) == logs.UNFINISHED, case
        else:
            assert self._rows(new) == self.rows, case
            assert {finding.kind for finding in audited(new).findings} <= {FindingKind.HALF_SWITCHED}, case

    def complete(self, roots: Roots, case: Case, *, back: bool) -> bool:
        is_open = rewrite_journal.open_journal(roots[1]) is not None
        if not (back and is_open):
            self.act(roots, clock=after_the_dead())
            return True
        run = self._run(roots, after_the_dead())
        perform(prepare(Rollback(RewriteKind.MIGRATE), MIGRATION.run_of_journal(run)))
        return False

    def audited(self, roots: Roots) -> Roots:
        return [one for one in roots if _can_start(one)]

    def _run(self, roots: Roots, clock: Clock | None) -> Run:
        places = {"blueprint": self.blueprint, "destination": roots[1]}
        return Run(
            storage=roots[0],
            by=maintainer(clock),
            scratch=self.place.scratch(),
            stopped=True,
            open_other=places.__getitem__,
            cluster=self.cluster,
        )

    def _rows(self, storage: Storage) -> list[tuple[object, ...]]:
        """The rows in the columns that remain."""
        found = dumped(self.place.local(storage))
        return sorted((row["key"]["k"], row["value"]["count"], row["value"]["sum"]) for row in found)


class MigratingElsewhere(Migrating):
    """The same by tasks elsewhere."""

    is_slow = True
    cluster = elsewhere(sends=False, workers=1)


def _can_start(storage: Storage) -> bool:
    """Whether a query can start on this checkpoint."""
    return read_or_none(storage, names.QUERY_METADATA) not in (None, logs.UNFINISHED)


class MirroringV1(Mirroring):
    is_slow, kind, structure = True, Origin.NATIVE, Structure.V1


class SavingFiles(Copying):
    """A labeled savepoint; the label is also in the source."""

    verb: AnyVerb = SaveFiles
    sides: Sequence[int] = (0, 1)
    fewest = 40

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        source, destination = roots
        kept(source, destination, self.place.scratch(), by=maintainer(clock))

    def must_fail(self, case: Case) -> bool:
        return Crashing.must_fail(self, case)

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        source, destination = roots
        assert verbs.savepoint.listed(source) == verbs.savepoint.listed(destination), case
        assert len(verbs.savepoint.listed(source).labels) == 1
        assert self.is_right(destination, 1), case


class SavingRows(Copying):
    verb: AnyVerb = SaveRows
    fewest, every = 26, 1
    batches = 1

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        source, destination = roots
        saved(source, destination, self.place.scratch(), by=maintainer(clock), tables=Tables.DELTA, batch=0)

    def rehearsed(self, roots: Roots, traced: Sequence[FaultyStorage]) -> None:
        created = [one.path for one in traced[1].trace if one.kind is Kind.CREATE and not one.path.startswith("_")]
        assert created[-1] == savepoint_names.MANIFEST

    def check_half(self, roots: Roots, case: Case) -> None:
        pass

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        folder = self.place.local(roots[1])
        assert as_model(folder) == self.query.checkpoint.states[1], case
        assert manifest(folder)["digest"] == recomputed(folder), case

    def audited(self, roots: Roots) -> Roots:
        return roots[:1]


class Publishing(Copying):
    """A run that applies changelogs to a table of state, and merges its small files."""

    verb: AnyVerb = Publish
    fewest, every = 40, 4

    def make_base(self) -> None:
        folder = self.place.base_folder()
        self.root = KeyedRoot(self.place.root(f"{folder.name}/source"), folder / "hosts", partitions=1)
        self.table = self.place.root(f"{folder.name}/table")
        for _ in range(PUBLISHED):
            self.root.grow(1, keys=4)
            published(self.source, self.table, self.place.scratch(), operator=0)
        self.root.grow(1, keys=4)

    @property
    def source(self) -> Storage:
        return self.root.storage

    def ready(self) -> Roots:
        return [super().ready()[0], self.place.copied(self.table, 1)]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        source, destination = roots
        perform(planned(source, destination, self.place.scratch(), by=maintainer(clock)))

    def rehearsed(self, roots: Roots, traced: Sequence[FaultyStorage]) -> None:
        created = [one.path for one in traced[1].trace if one.kind is Kind.CREATE and one.path.startswith("_delta_log")]
        assert len(created) == 2, "one commit with the batch, and one of the compaction"

    def check_half(self, roots: Roots, case: Case) -> None:
        self.require_rows(roots, case, (PUBLISHED - 1, PUBLISHED))

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        self.require_rows(roots, case, (PUBLISHED,))
        table = open_storage(str(self.place.local(roots[1])))
        assert replayed(table, ("batch", "committed_at")) == as_lines(rows_of(table)), case

    def require_rows(self, roots: Roots, case: Case, batches: Sequence[int]) -> None:
        """Require that the table shows one of these batches, as its transaction says."""
        table = open_storage(str(self.place.local(roots[1])))
        batch = opened(table).transaction_version(f"statekeeper-state-{QUERY}")
        assert batch in batches, case
        of_batch = {key: held for rows in self.root.read(batch).values() for key, held in rows.items()}
        expected = [{"key": key, "value": held} for (operator, key), held in of_batch.items() if operator == 0]
        assert as_lines(rows_of(table)) == as_lines(expected), case

    def audited(self, roots: Roots) -> Roots:
        return ()


class Removing(Copying):
    """The deletion of a savepoint with files and of its label in the source."""

    verb: AnyVerb = Remove
    sides: Sequence[int] = (0, 1)
    fewest, every = 22, 1

    def make_base(self) -> None:
        super().make_base()
        self.savepoint = self.place.root(f"{self.place.base_folder().name}/savepoint")
        kept(self.source, self.savepoint, self.place.scratch())
        self.files = {entry.path: self.savepoint.read(entry.path) for entry in self.savepoint.list("", hidden=True)}
        self.record = self.source.read(savepoint_names.label("before"))

    def ready(self) -> Roots:
        """The savepoint names its location, so that it is written again in its place."""
        put_again(self.savepoint, self.files)
        self.source.replace(savepoint_names.label("before"), self.record)
        return [self.source, self.savepoint]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        source, destination = roots
        if clock is None or verbs.savepoint.listed(source).labels:
            remove(source, destination)
        return

    def rehearsed(self, roots: Roots, traced: Sequence[FaultyStorage]) -> None:
        assert [one.kind for one in traced[1].trace].count(Kind.DELETE) == 4

    def check_half(self, roots: Roots, case: Case) -> None:
        assert self.is_right(roots[0], 1), case

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        assert roots[1].list("", hidden=True) == [], case
        assert verbs.savepoint.listed(roots[0]).labels == (), case

    def audited(self, roots: Roots) -> Roots:
        return roots[:1]


class Unpacking(Crashing):
    """It adds the changelogs of batch logs as files, so that nothing that was there changes."""

    verb: AnyVerb = Unpack
    fewest, every = 60, 1

    def make_base(self) -> None:
        self.made = Checkpoint(self.place.base_root(), self.place.base_folder(), in_batch_logs=True)
        self.made.grow(4)
        self.before = contents(self.made.storage)

    def ready(self) -> Roots:
        return [self.place.copied(self.made.storage)]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        perform(prepare(Unpack(), verbs.a_run(roots[0], FULL, maintainer(clock))))

    def rehearsed(self, roots: Roots, traced: Sequence[FaultyStorage]) -> None:
        self.after, self.written = contents(roots[0]), self.changelogs(roots[0])
        assert len(self.written) == 8

    def changelogs(self, storage: Storage) -> dict[str, bytes]:
        """The files as Spark reads them. Our storage reads a changelog from its batch log, even if there is a file, too."""
        folder = self.place.local(storage)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("state/*/*/*.changelog")}

    def check_half(self, roots: Roots, case: Case) -> None:
        self.model(self.made, roots[0]).assert_right(self.place.scratch())
        assert self.before.items() <= contents(roots[0]).items() <= self.after.items(), case
        assert self.changelogs(roots[0]).items() <= self.written.items(), case

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        assert (contents(roots[0]), self.changelogs(roots[0])) == (self.after, self.written), case
        left = unpack.plan(unpack.gather(roots[0]))
        assert (left.actions, left.missing) == ((), ()), case


def require_right_clone(mirror: Storage, other: Storage, query: Query, newest: int) -> None:
    """Require that Spark can start from a clone of a mirror which a crash stopped."""
    scratch = query.folder / "clones" / other.url.rpartition("/")[2]
    cloned(mirror, other, scratch, by=maintainer(), batch=newest, stopped=True)
    assert catalog.newest_begun(other) == newest
    assert newest == 0 or other.stat(names.offsets(newest - 1)) is not None
    assert query_of(query, other, scratch, newest).is_right()


def _deletes_a_commit(case: Case) -> bool:
    return case.request.kind is Kind.DELETE and case.request.path.startswith(names.COMMITS)


COPIES: dict[str, type[Crashing]] = {
    "migrate": Migrating,
    "migrate by tasks elsewhere": MigratingElsewhere,
    "clone own v2 in batch logs": Cloning,
    "clone native v1": CloningV1,
    "mirror own v2": Mirroring,
    "mirror native v1": MirroringV1,
    "savepoint with files": SavingFiles,
    "savepoint with rows": SavingRows,
    "publish": Publishing,
    "deletion of a savepoint": Removing,
    "unpack": Unpacking,
}
