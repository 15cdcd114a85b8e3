"""Rewrites that die. Then the checkpoint has the old or the new state, or no query starts on it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import HalfSwitched, ObjectMissing
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.checkpoint.rewrite_journal import Ending
from statekeeper.statestore.format import names
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.executors import Executor
from statekeeper.statestore.maintenance.rewrites.edits import Edit
from statekeeper.statestore.maintenance.rewrites.whole_stores import Convert
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind
from statekeeper.statestore.maintenance.verbs import edit, switch
from statekeeper.statestore.maintenance.verbs import rewrite as rewrites
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import edits, evolved_roots, loads, switching
from tests.support.apart import elsewhere
from tests.support.checkpoints import Checkpoint
from tests.support.crashes import AnyVerb, Case, Crashing, Place, Roots, is_after_write, path_of
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash
from tests.support.keyed_roots import KeyedRoot
from tests.support.rescales import abort, all_rows, rescale
from tests.support.roots import opened
from tests.support.structures import as_sparks, without_ids
from tests.support.switching import WRITES, after_the_dead, contents
from tests.support.twins import clean, statekeeper
from tests.support.unpacked import unpacked

SHARE_IN_A_BUCKET = 6
AT_ANOTHER_PLACE = elsewhere(sends=False, workers=1)
"""The tasks have the storage that fails, and run one after the other, so that the requests have one order."""
FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"


class Rewriting(Crashing):
    """A rewrite is finished or reversed; one that had ended stays as it is."""

    fewest = 100
    is_reversible = True
    of_undo = False
    """Whether the undo of a rewrite is disturbed. It is not begun again, and need not be finished."""
    keeps_all = False
    """Whether a finished rewrite leaves each file as it was."""
    commit_in_a_bucket: int | None = None
    """CI also runs the verb in a bucket, where it dies after it has rewritten the commit of this batch."""
    original: dict[str, bytes] | None = None
    """What a reversed rewrite leaves as it was, if the base is no longer as it was before the rewrite."""

    def __init__(self, place: Place) -> None:
        self.folder = place.base_folder()
        self.base = self.folder / "base"
        super().__init__(place)

    @abstractmethod
    def rewrite(self, storage: Storage, *, clock: Clock | None = None) -> None:
        """Plan and execute. A half-done rewrite is finished."""

    @abstractmethod
    def check_dead(self, storage: Storage, case: Case) -> None: ...

    @abstractmethod
    def check_ended(self, storage: Storage, case: Case, *, is_done: bool) -> None: ...

    def check_half(self, roots: Roots, case: Case) -> None:
        self.check_dead(roots[0], case)

    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        self.check_ended(roots[0], case, is_done=is_done)

    def ready(self) -> Roots:
        storage = self.place.copied(open_storage(str(self.base / "checkpoint")))
        self.old_files = self.before(storage)
        return [storage]

    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        self.rewrite(roots[0], clock=clock)

    def must_fail(self, case: Case) -> bool:
        # An audit in the middle judges what it cannot read.
        return False

    def abort(self, storage: Storage) -> None:
        abort(storage, clock=after_the_dead())

    def is_open(self, storage: Storage) -> bool:
        return rewrite_journal.open_journal(storage) is not None

    def is_done(self, storage: Storage) -> bool:
        newest = rewrite_journal.newest_journal(storage)
        return (
            not self.is_open(storage)
            and newest is not None
            and rewrite_journal.ending(storage, newest.begun) is Ending.SWITCHED
        )

    def some_in_a_bucket(self, some: Sequence[Case]) -> Sequence[Case]:
        commit = None if self.commit_in_a_bucket is None else names.commits(self.commit_in_a_bucket)
        return [one for one in self.cases if is_after_write(one) and one.request.path == commit] * self.in_a_bucket

    def all_in_a_bucket(self, some: Sequence[Case]) -> Sequence[Case]:
        return some

    def kept(self, storage: Storage) -> dict[str, bytes]:
        """Return what a reversed rewrite leaves as it was."""
        return contents(storage)

    def before(self, storage: Storage) -> dict[str, bytes]:
        """Return the same before the rewrite."""
        if self.original is None:
            return self.kept(storage)
        # As in the copy of a base, URLs name the location of the copy.
        old, new = (str(path).encode() for path in (self.base / "checkpoint", self.place.location(storage, self.base)))
        return {path: body.replace(old, new) for path, body in self.original.items()}

    def complete(self, roots: Roots, case: Case, *, back: bool) -> bool:
        [storage] = roots
        has_ended = not self.is_open(storage) and (self.of_undo or self.is_done(storage))
        if not has_ended and not back:
            self.rewrite(storage, clock=after_the_dead())
        elif not has_ended:
            self.abort(storage)
        assert not self.is_open(storage), case
        is_done = self.is_done(storage)
        assert is_done or back or self.of_undo, case
        assert storage.list(names.HANDED_OVER) == [], case
        left, before = self.kept(storage), self.old_files
        assert (is_done and not self.keeps_all) or before.items() <= left.items(), case
        if not is_done:
            assert [path for path in left.keys() - before.keys() if not path.endswith(".sst")] == [], case
        return is_done


class OfArchive(Rewriting):
    """A checkpoint that Spark wrote. The rewrite appends a batch."""

    archive = ""
    keeps_all = True

    def make_base(self) -> None:
        path = unpacked(FIXTURES / f"spark-4.2.0-{self.archive}.zip", self.base)
        before = open_storage(str(path))
        self.rows = all_rows(path)
        batch = catalog.newest_batch(before)
        assert batch is not None
        self.batch = batch

    def is_done(self, storage: Storage) -> bool:
        return not self.is_open(storage) and catalog.newest_batch(storage) != self.batch

    def check_dead(self, storage: Storage, case: Case) -> None:
        """Check that the head loads, and that Spark's V1 provider cannot start on a part of the new snapshots."""
        batch = self.batch + 1
        is_committed, is_begun = (storage.stat(log(batch)) is not None for log in (names.commits, names.offsets))
        # Spark would start a batch with its new number of partitions or provider.
        assert is_committed or not is_begun, case
        if is_committed and not is_begun:
            # The commit alone does not tell the confs of its batch.
            statekeeper("dump", str(self.place.local(storage)), exit_code=HalfSwitched.exit_code)
        else:
            assert all_rows(self.place.local(storage)) == self.rows, case
        new = names.snapshot(names.VersionId(batch + 1))
        published = [path for path in contents(storage) if path.endswith(f"/{new}")]
        if self.is_guarded and published and storage.stat(names.offsets(batch)) is None:
            stores = {store.folder for store, of in catalog.files(storage).items() if any(v.id for v in of.snapshots)}
            assert {path.rpartition("/")[0] for path in published} <= stores, case

    @property
    def is_guarded(self) -> bool:
        """Whether the query could load a part of the new snapshots before both logs are written, without the guards."""
        return self.archive.startswith("v1")

    def check_ended(self, storage: Storage, case: Case, *, is_done: bool) -> None:
        assert all_rows(self.place.local(storage)) == self.rows, case


def rescaling(archive: str, cluster: Executor | None = None, *, is_slow: bool = False) -> type[Rewriting]:
    class Rescaling(OfArchive):
        def rewrite(self, storage: Storage, *, clock: Clock | None = None) -> None:
            rescale(storage, 3, self.folder, clock=clock, cluster=cluster)

    Rescaling.archive, Rescaling.verb, Rescaling.is_slow = archive, rewrites.Rescale, is_slow
    return Rescaling


def converting(archive: str, goal: Convert, cluster: Executor | None = None) -> type[Rewriting]:
    class Converting(OfArchive):
        # Each provider ignores the snapshots of the other.
        is_guarded = False

        def rewrite(self, storage: Storage, *, clock: Clock | None = None) -> None:
            rescale(storage, goal, self.folder, clock=clock, cluster=cluster)

    Converting.archive, Converting.verb, Converting.is_slow = archive, rewrites.Convert, cluster is not None
    return Converting


def loading(archive: str, cluster: Executor | None = None) -> type[Rewriting]:
    class Loading(OfArchive):
        def make_base(self) -> None:
            super().make_base()
            self.of = loads.savepoint(open_storage(str(self.base / "checkpoint")), self.folder / "savepoint")

        def rewrite(self, storage: Storage, *, clock: Clock | None = None) -> None:
            loads.load(storage, self.of, self.folder, clock=clock, cluster=cluster)

        def all_in_a_bucket(self, some: Sequence[Case]) -> Sequence[Case]:
            return [case for case in self.cases if case.request.kind in WRITES][::SHARE_IN_A_BUCKET]

    Loading.archive, Loading.verb, Loading.is_slow = archive, rewrites.Load, cluster is not None
    return Loading


def editing(archive: str, *, of_undo: bool = False) -> type[Rewriting]:
    """Keys of different partitions, so that two stores are edited."""
    goal = Edit(operator=0, keys=pa.table({"k": ["key 3", "key 1"]}), options=("--operator", "0"))

    class Editing(Rewriting):
        def make_base(self) -> None:
            path = unpacked(FIXTURES / f"spark-4.2.0-{archive}.zip", self.base)
            self.old, self.original = edits.rows(path), contents(open_storage(str(path)))
            edited = path if of_undo else path_of(self.place.copied(open_storage(str(path))))
            self.run = edits.apply(open_storage(str(edited)), goal, self.folder)
            self.edited = edits.rows(edited)
            assert len(self.old) - len(self.edited) == 2

        def rewrite(self, storage: Storage, *, clock: Clock | None = None) -> None:
            if not of_undo:
                edits.apply(storage, goal, self.folder, clock=clock)
            elif clock is None:
                edits.undo(storage, self.run)
            else:
                self._finish(storage)

        def check_dead(self, storage: Storage, case: Case) -> None:
            """Check that Spark loads the old rows of all stores or the edited rows of all, or that its V1 provider cannot
            start: a new snapshot has an id in its name."""
            files = catalog.files(storage)
            if archive.startswith("v1") and any(one.id for of in files.values() for one in of.snapshots):
                return
            assert edits.rows(self.place.local(storage)) in (self.old, self.edited), case

        def check_ended(self, storage: Storage, case: Case, *, is_done: bool) -> None:
            assert edits.rows(self.place.local(storage)) == (self.edited if is_done else self.old), case

        def _finish(self, storage: Storage) -> None:
            """Finish the edit. An undo that has deleted new snapshots can only be completed: the error names --abort."""
            missing = ""
            try:
                edits.apply(storage, goal, self.folder, clock=after_the_dead())
            except ObjectMissing as error:
                missing = error.hint or "no hint"
            if missing:
                assert "statekeeper edit ROOT --abort --confirm-stopped" in missing
                self.abort(storage)

    Editing.of_undo, Editing.verb = of_undo, rewrites.Revert if of_undo else edit.Edit
    Editing.fewest = 30 if of_undo else 100
    return Editing


class Aborting(OfArchive):
    """The abort of a rescale that died. In structure V1, Spark loads snapshots by their number, unless a guard is beside
    them: an abort that dies leaves no new snapshot that a query could load."""

    verb: AnyVerb = rewrites.Rollback
    archive, fewest = "v1-aggregation", 30
    of_undo = True
    died_at = ""

    def make_base(self) -> None:
        super().make_base()
        storage, part = open_storage(str(self.base / "checkpoint")), self.died_at
        self.original = contents(storage)

        class Dying(FaultyStorage):
            def _fault_of(self, request: Request) -> Fault | None:
                return Fault.BEFORE if request.kind in WRITES and part in request.path else None

        with pytest.raises(SimulatedCrash):
            rescale(Dying(storage), 3, self.folder)

    def rewrite(self, storage: Storage, *, clock: Clock | None = None) -> None:
        self.abort(storage)

    def some(self, turn: int) -> list[Case]:
        """Return a crash after each write."""
        return [*filter(is_after_write, self.cases)]

    def check_dead(self, storage: Storage, case: Case) -> None:
        super().check_dead(storage, case)
        files, new = catalog.files(storage), names.VersionId(self.batch + 2)
        published = {store for store, of in files.items() if new in of.snapshots}
        guarded = {store for store, of in files.items() if any(one.id for one in of.snapshots)}
        assert storage.stat(names.commits(self.batch + 1)) is not None or published <= guarded, case


def aborting(died_at: str) -> type[Rewriting]:
    return type("AbortingAt", (Aborting,), {"died_at": died_at})


class RescalingOfRoot(Rewriting):
    """A state root of `pipelines`, from two partitions to three."""

    in_a_bucket, commit_in_a_bucket = 2, 1  # once to finish it, and once to reverse it
    verb = rewrites.Rescale

    def make_base(self) -> None:
        place = open_storage(str(self.base / "checkpoint"))
        self.first = KeyedRoot(place, self.folder, partitions=2, key_groups=16)
        self.first.grow(2, keys=6)

    def _root(self, storage: Storage) -> KeyedRoot:
        return replace(self.first, storage=storage, folder=self.place.scratch(), rows=dict(self.first.rows))

    def rewrite(self, storage: Storage, *, clock: Clock | None = None) -> None:
        rescale(storage, 3, self.folder, clock=clock)

    def kept(self, storage: Storage) -> dict[str, bytes]:
        return _described(storage)

    def check_dead(self, storage: Storage, case: Case) -> None:
        root = self._root(storage)
        root.assert_right()
        if self.is_open(storage):
            with pytest.raises(HalfSwitched, match="rescale to 3 partitions"):
                opened(storage, root.wanted(), root.batches)
            _require_half_done(storage, case)

    def check_ended(self, storage: Storage, case: Case, *, is_done: bool) -> None:
        assert read_binding(storage)[0].partitions == (3 if is_done else 2), case
        root, partitions = self._root(storage), 3 if is_done else 2
        root.assert_right(partitions)
        if not self.place.is_disk:
            root.grow(1)
            root.assert_right(partitions)
            clean(storage, self.place.scratch())


def evolving(*, of_undo: bool = False) -> type[Rewriting]:
    rows = evolved_roots.old_rows(*[f"key {n}" for n in range(6)])
    values = {False: evolved_roots.OLD, True: evolved_roots.NEW}

    class Evolving(Rewriting):
        def make_base(self) -> None:
            storage = open_storage(str(self.base / "checkpoint"))
            evolved_roots.commit(storage, self.folder / "host", 0, rows, evolved_roots.plain_rows("a"))
            self.original = _described(storage)
            self.run = evolved_roots.evolve(storage, evolved_roots.goal(), self.folder) if of_undo else ""

        def rewrite(self, storage: Storage, *, clock: Clock | None = None) -> None:
            if not of_undo:
                evolved_roots.evolve(storage, evolved_roots.goal(), self.folder, clock=clock)
            elif clock is None:
                evolved_roots.undo(storage, self.run)
            else:
                # An undo that has deleted new snapshots can only be completed.
                self.abort(storage)

        def kept(self, storage: Storage) -> dict[str, bytes]:
            return _described(storage)

        def check_dead(self, storage: Storage, case: Case) -> None:
            if self.is_open(storage):
                for of in values.values():
                    with pytest.raises(HalfSwitched, match="schema evolution of 2 stores"):
                        opened(storage, evolved_roots.declared(of, evolved_roots.PLAIN), 1)
                _require_half_done(storage, case)
                with pytest.raises(HalfSwitched):
                    evolved_roots.rows_of(storage, 0, self.folder)

        def check_ended(self, storage: Storage, case: Case, *, is_done: bool) -> None:
            expected = evolved_roots.new_rows(rows) if is_done else rows
            assert evolved_roots.rows_of(storage, 0, self.folder) == evolved_roots.by_key(expected), case
            opened(storage, evolved_roots.declared(values[is_done], evolved_roots.PLAIN), 1)
            # A driver that was running during the evolution compares it.
            assert bool(read_binding(storage)[0].evolution) is is_done, case
            if not self.place.is_disk:
                evolved_roots.commit(storage, self.place.scratch(), 1, expected, evolved_roots.plain_rows("a"))
                clean(storage, self.place.scratch())

    Evolving.of_undo, Evolving.verb = of_undo, rewrites.Revert if of_undo else rewrites.Evolve
    Evolving.in_a_bucket, Evolving.commit_in_a_bucket = (0, None) if of_undo else (1, 0)
    Evolving.fewest = 30 if of_undo else 100
    return Evolving


def switching_from(source: Structure) -> type[Rewriting]:
    class Switching(Rewriting):
        verb = switch.Switch

        def make_base(self) -> None:
            made = Checkpoint(open_storage(str(self.base / "checkpoint")), self.folder / "job")
            made.grow(4)
            switching.take_snapshots(made.storage, self.folder)
            made.grow(2)
            self.first = as_sparks(made)
            if source is Structure.V1:
                without_ids(self.first)

        def rewrite(self, storage: Storage, *, clock: Clock | None = None) -> None:
            switching.switch(storage, source.other, self.folder, clock=clock)

        def abort(self, storage: Storage) -> None:
            switching.abort(storage, clock=after_the_dead())

        def is_open(self, storage: Storage) -> bool:
            return rewrite_journal.open_journal(storage) is not None

        def is_done(self, storage: Storage) -> bool:
            return not self.is_open(storage) and switching.structure_of(storage) is source.other

        def check_dead(self, storage: Storage, case: Case) -> None:
            assert switching.is_right(self.first, storage, self.folder), case
            if switching.structure_of(storage) is Structure.V2:
                # Spark loads by these ids.
                heads, files = catalog.heads(storage), catalog.files(storage)
                assert heads is not None
                for store in self.first.stores:
                    head = heads.heads[store]
                    assert head in files[store].snapshots or head in files[store].changelogs, case

        def check_ended(self, storage: Storage, case: Case, *, is_done: bool) -> None:
            assert switching.is_right(self.first, storage, self.folder), case

    return Switching


REWRITES: dict[str, type[Crashing]] = {
    **{f"switch from {one.value}": switching_from(one) for one in Structure},
    **{f"rescale {one}": rescaling(one) for one in ("v1-aggregation", "v2-aggregation")},
    **{
        f"rescale {one} by tasks elsewhere": rescaling(one, AT_ANOTHER_PLACE, is_slow=one.startswith("v2"))
        for one in ("v1-aggregation", "v2-aggregation")
    },
    "rescale of a root of pipelines": RescalingOfRoot,
    "convert to rocksdb v1": converting("hdfs-aggregation", Convert(Provider.ROCKSDB, Structure.V1)),
    "convert to rocksdb v2": converting("hdfs-aggregation", Convert(Provider.ROCKSDB, Structure.V2)),
    "convert to hdfs": converting("v1-aggregation", Convert(Provider.HDFS_BACKED, Structure.V1)),
    "convert to hdfs by tasks elsewhere": converting(
        "v1-aggregation", Convert(Provider.HDFS_BACKED, Structure.V1), AT_ANOTHER_PLACE
    ),
    **{f"load {one}": loading(one) for one in ("v1-aggregation", "v2-aggregation")},
    "load v2-aggregation by tasks elsewhere": loading("v2-aggregation", AT_ANOTHER_PLACE),
    **{
        f"{'undo of an edit' if of_undo else 'edit'} {one}": editing(one, of_undo=of_undo)
        for one in ("v1-aggregation", "v1-a-zip-for-each-version", "v2-aggregation")
        for of_undo in (False, True)
    },
    **{f"abort of a rescale that died at {part}": aborting(part) for part in ("commits/", "ended")},
    "evolve": evolving(),
    "undo of an evolution": evolving(of_undo=True),
}
"""Name of the rewrite, as in the ids of the tests -> the rewrite."""


def _require_half_done(storage: Storage, case: Case) -> None:
    found = {finding.kind for finding in audit.judge(audit.gather(storage)).findings}
    assert found == {FindingKind.HALF_SWITCHED}, (case, found)


def _described(storage: Storage) -> dict[str, bytes]:
    """Every file of a root of `pipelines` but tables, leases and records."""
    kept = ("state/", "commits/", "offsets/", names.BINDING, names.SCHEMAS)
    return {
        entry.path: storage.read(entry.path)
        for entry in storage.list("")
        if entry.path.startswith(kept) and not entry.path.endswith(".sst")
    }
