"""A rewrite that dies at each of its requests, and is then finished or reversed: what differs from verb to verb.

The base of each verb is made once. Each case disturbs a copy of it.
"""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import HalfSwitched, ObjectMissing, StatekeeperError
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.checkpoint.rewrite_journal import Ending
from statekeeper.statestore.format import names
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.edits import Edit
from statekeeper.statestore.maintenance.rewrites.whole_stores import Convert
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind
from statekeeper.statestore.root.binding import read_binding
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import edits, evolved_roots, loads, switching
from tests.support.checkpoints import Checkpoint
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash, crash_matrix
from tests.support.keyed_roots import KeyedRoot
from tests.support.rescales import abort, all_rows, rescale
from tests.support.roots import opened
from tests.support.structures import as_sparks, without_ids
from tests.support.switching import WRITES, after_the_dead, contents
from tests.support.twins import statekeeper
from tests.support.unpacked import unpacked, update_urls

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"

Case = tuple[Request, Fault]


class Crashing(ABC):
    """A verb on its base. `cases` are the requests of an undisturbed run, each with each fault."""

    cases: list[Case]
    of_undo = False
    """Whether the undo of a rewrite is disturbed. It is not begun again, and need not be finished."""
    keeps_all = False
    """Whether a finished rewrite leaves each file as it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._copies = 0
        self.base = folder / "base"
        self.make_base(self.base)
        rehearsal = FaultyStorage(self.ready())
        self.act(rehearsal)
        self.cases = list(crash_matrix(rehearsal.trace))

    @abstractmethod
    def make_base(self, folder: Path) -> None: ...

    @abstractmethod
    def act(self, storage: Storage, *, clock: Clock | None = None) -> object:
        """Plan and execute. A half-done rewrite is finished."""

    @abstractmethod
    def check_half(self, storage: Storage, case: object) -> None:
        """Check the checkpoint as the crash left it."""

    @abstractmethod
    def check_end(self, storage: Storage, case: object, *, is_done: bool) -> None:
        """Check the state after a rewrite that was finished, or reversed."""

    def ready(self) -> Storage:
        """A copy of the base, before what is disturbed."""
        self._copies += 1
        copied = Path(shutil.copytree(self.base, self.folder / f"case-{self._copies}"))
        update_urls(copied / "checkpoint", copied)
        return open_storage(str(copied / "checkpoint"))

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

    def kept(self, storage: Storage) -> dict[str, bytes]:
        """What a reversed rewrite leaves as it was."""
        return contents(storage)

    def before(self, storage: Storage) -> dict[str, bytes]:
        """The same before the rewrite."""
        return self.kept(storage)

    def play(self, request: Request, fault: Fault, *, finish: bool) -> None:
        """Disturb one request. Then finish the rewrite or reverse it; one that had ended stays as it is."""
        storage, case = self.ready(), (request, fault, finish)
        before = self.before(storage)
        faulty = FaultyStorage(storage, {request.number: fault})
        # A reply that is lost is waited for again, or ends the run with an error.
        with suppress(SimulatedCrash, StatekeeperError):
            self.act(faulty)
        assert len(faulty.trace) > request.number, case
        self.check_half(storage, case)
        has_ended = not self.is_open(storage) and (self.of_undo or self.is_done(storage))
        if not has_ended and finish:
            self.act(storage, clock=after_the_dead())
        elif not has_ended:
            self.abort(storage)
        assert not self.is_open(storage), case
        is_done = self.is_done(storage)
        assert is_done or not finish or self.of_undo, case
        self.check_end(storage, case, is_done=is_done)
        found = audit.judge(audit.gather(storage)).findings
        assert found == (), (case, found)
        left = self.kept(storage)
        assert (is_done and not self.keeps_all) or before.items() <= left.items(), case
        if not is_done:
            assert [path for path in left.keys() - before.keys() if not path.endswith(".sst")] == [], case


def each_kind_of_write(cases: Sequence[Case], turn: int) -> list[Case]:
    """Return one case of each kind of write: a kind of request, on a kind of file. The fault changes from kind to kind, and
    with `turn`, so that several verbs have all faults at each kind."""
    kinds: dict[tuple[object, str], list[Case]] = {}
    for request, fault in cases:
        if request.kind in WRITES:
            shape = re.sub(r"[^/._-]*\d[^/._-]*", "#", request.path)
            kinds.setdefault((request.kind, shape), []).append((request, fault))
    return [of_kind[(number + turn) % len(of_kind)] for number, of_kind in enumerate(kinds.values())]


class OfArchive(Crashing):
    """A checkpoint that Spark wrote. The rewrite appends a batch."""

    archive = ""
    keeps_all = True

    def make_base(self, folder: Path) -> None:
        unpacked(FIXTURES / f"spark-4.2.0-{self.archive}.zip", folder)
        before = open_storage(str(folder / "checkpoint"))
        self.rows = all_rows(folder / "checkpoint")
        batch = catalog.newest_batch(before)
        assert batch is not None
        self.batch = batch

    def is_done(self, storage: Storage) -> bool:
        return not self.is_open(storage) and catalog.newest_batch(storage) != self.batch

    def check_half(self, storage: Storage, case: object) -> None:
        """Check that the head loads, and that Spark's V1 provider cannot start on a part of the new snapshots."""
        batch = self.batch + 1
        if storage.stat(names.commits(batch)) and not storage.stat(names.offsets(batch)):
            # The commit alone does not tell the confs of its batch.
            statekeeper("dump", _path(storage), exit_code=HalfSwitched.exit_code)
        else:
            assert all_rows(_path(storage)) == self.rows, case
        new = names.snapshot(names.VersionId(batch + 1))
        published = [path for path in contents(storage) if path.endswith(f"/{new}")]
        if self.is_guarded and published and storage.stat(names.offsets(batch)) is None:
            stores = {store.folder for store, of in catalog.files(storage).items() if any(v.id for v in of.snapshots)}
            assert {path.rpartition("/")[0] for path in published} <= stores, case

    @property
    def is_guarded(self) -> bool:
        """Whether the query could load a part of the new snapshots before both logs are written, without the guards."""
        return self.archive.startswith("v1")

    def check_end(self, storage: Storage, case: object, *, is_done: bool) -> None:
        assert all_rows(_path(storage)) == self.rows, case


def rescaling(archive: str) -> type[Crashing]:
    class Rescaling(OfArchive):
        def act(self, storage: Storage, *, clock: Clock | None = None) -> object:
            return rescale(storage, 3, self.folder, clock=clock)

    Rescaling.archive = archive
    return Rescaling


def converting(archive: str, goal: Convert) -> type[Crashing]:
    class Converting(OfArchive):
        # Each provider ignores the snapshots of the other.
        is_guarded = False

        def act(self, storage: Storage, *, clock: Clock | None = None) -> object:
            return rescale(storage, goal, self.folder, clock=clock)

    Converting.archive = archive
    return Converting


def loading(archive: str) -> type[Crashing]:
    class Loading(OfArchive):
        def make_base(self, folder: Path) -> None:
            super().make_base(folder)
            self.of = loads.savepoint(open_storage(str(folder / "checkpoint")), self.folder / "savepoint")

        def act(self, storage: Storage, *, clock: Clock | None = None) -> object:
            return loads.load(storage, self.of, self.folder, clock=clock)

    Loading.archive = archive
    return Loading


def editing(archive: str, *, of_undo: bool = False) -> type[Crashing]:
    """Keys of different partitions, so that two stores are edited."""
    goal = Edit(operator=0, keys=pa.table({"k": ["key 3", "key 1"]}), options=("--operator", "0"))

    class Editing(Crashing):
        def make_base(self, folder: Path) -> None:
            unpacked(FIXTURES / f"spark-4.2.0-{archive}.zip", folder)
            self.old = edits.rows(folder / "checkpoint")
            edited = super().ready()
            edits.apply(edited, goal, self.folder)
            self.edited = edits.rows(_path(edited))
            assert len(self.old) - len(self.edited) == 2

        def ready(self) -> Storage:
            storage = super().ready()
            self.unedited = contents(storage)
            self.run = edits.apply(storage, goal, self.folder) if of_undo else ""
            return storage

        def before(self, storage: Storage) -> dict[str, bytes]:
            return self.unedited

        def act(self, storage: Storage, *, clock: Clock | None = None) -> object:
            if not of_undo:
                return edits.apply(storage, goal, self.folder, clock=clock)
            return edits.undo(storage, self.run) if clock is None else self._finish(storage)

        def check_half(self, storage: Storage, case: object) -> None:
            """Check that Spark loads the old rows of all stores or the edited rows of all, or that its V1 provider cannot
            start: a new snapshot has an id in its name."""
            files = catalog.files(storage)
            if archive.startswith("v1") and any(one.id for of in files.values() for one in of.snapshots):
                return
            assert edits.rows(_path(storage)) in (self.old, self.edited), case

        def check_end(self, storage: Storage, case: object, *, is_done: bool) -> None:
            assert edits.rows(_path(storage)) == (self.edited if is_done else self.old), case

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

    Editing.of_undo = of_undo
    return Editing


class RescalingOfRoot(Crashing):
    """A state root of `pipelines`, from two partitions to three."""

    def make_base(self, folder: Path) -> None:
        (folder / "checkpoint").mkdir(parents=True)
        place = open_storage(str(folder / "checkpoint"))
        self.first = KeyedRoot(place, self.folder, partitions=2, key_groups=16)
        self.first.grow(2, keys=6)

    def _root(self, storage: Storage) -> KeyedRoot:
        twin = self.first
        return KeyedRoot(storage, self.folder, 2, 16, False, twin.structure, dict(twin.rows), twin.batches)

    def act(self, storage: Storage, *, clock: Clock | None = None) -> object:
        return rescale(storage, 3, self.folder, clock=clock)

    def kept(self, storage: Storage) -> dict[str, bytes]:
        return _described(storage)

    def check_half(self, storage: Storage, case: object) -> None:
        root = self._root(storage)
        root.assert_right()
        if self.is_open(storage):
            with pytest.raises(HalfSwitched, match="rescale to 3 partitions"):
                opened(storage, root.wanted(), root.batches)
            _require_half_done(storage, case)

    def check_end(self, storage: Storage, case: object, *, is_done: bool) -> None:
        assert read_binding(storage)[0].partitions == (3 if is_done else 2), case
        self._root(storage).assert_right(3 if is_done else 2)


def evolving(*, of_undo: bool = False) -> type[Crashing]:
    rows = evolved_roots.old_rows(*[f"key {n}" for n in range(6)])
    values = {False: evolved_roots.OLD, True: evolved_roots.NEW}

    class Evolving(Crashing):
        def make_base(self, folder: Path) -> None:
            (folder / "checkpoint").mkdir(parents=True)
            storage = open_storage(str(folder / "checkpoint"))
            evolved_roots.commit(storage, self.folder / "host", 0, rows, evolved_roots.plain_rows("a"))
            self.old = _described(storage)
            self.run = evolved_roots.evolve(storage, evolved_roots.goal(), self.folder) if of_undo else ""

        def act(self, storage: Storage, *, clock: Clock | None = None) -> object:
            if of_undo:
                # An undo that has deleted new snapshots can only be completed.
                return evolved_roots.undo(storage, self.run) if clock is None else self.abort(storage)
            return evolved_roots.evolve(storage, evolved_roots.goal(), self.folder, clock=clock)

        def kept(self, storage: Storage) -> dict[str, bytes]:
            return _described(storage)

        def before(self, storage: Storage) -> dict[str, bytes]:
            return self.old

        def check_half(self, storage: Storage, case: object) -> None:
            if self.is_open(storage):
                for of in values.values():
                    with pytest.raises(HalfSwitched, match="schema evolution of 2 stores"):
                        opened(storage, evolved_roots.declared(of, evolved_roots.PLAIN), 1)
                _require_half_done(storage, case)

        def check_end(self, storage: Storage, case: object, *, is_done: bool) -> None:
            expected = evolved_roots.new_rows(rows) if is_done else rows
            assert evolved_roots.rows_of(storage, 0, self.folder) == evolved_roots.by_key(expected), case
            opened(storage, evolved_roots.declared(values[is_done], evolved_roots.PLAIN), 1)

    Evolving.of_undo = of_undo
    return Evolving


def switching_from(source: Structure) -> type[Crashing]:
    class Switching(Crashing):
        def make_base(self, folder: Path) -> None:
            made = Checkpoint(open_storage(str(folder / "checkpoint")), self.folder / "job")
            made.grow(4)
            switching.take_snapshots(made.storage, self.folder)
            made.grow(2)
            self.first = as_sparks(made)
            if source is Structure.V1:
                without_ids(self.first)

        def act(self, storage: Storage, *, clock: Clock | None = None) -> object:
            return switching.switch(storage, source.other, self.folder, clock=clock)

        def abort(self, storage: Storage) -> None:
            switching.abort(storage, clock=after_the_dead())

        def is_open(self, storage: Storage) -> bool:
            return rewrite_journal.open_journal(storage) is not None

        def is_done(self, storage: Storage) -> bool:
            return not self.is_open(storage) and switching.structure_of(storage) is source.other

        def check_half(self, storage: Storage, case: object) -> None:
            assert switching.is_right(self.first, storage, self.folder), case
            if switching.structure_of(storage) is Structure.V2:
                # Spark loads by these ids.
                heads, files = catalog.heads(storage), catalog.files(storage)
                assert heads is not None
                for store in self.first.stores:
                    head = heads.heads[store]
                    assert head in files[store].snapshots or head in files[store].changelogs, case

        def check_end(self, storage: Storage, case: object, *, is_done: bool) -> None:
            assert switching.is_right(self.first, storage, self.folder), case

    return Switching


VERBS: dict[str, Callable[[Path], Crashing]] = {
    **{f"switch from {one.value}": switching_from(one) for one in Structure},
    **{f"rescale {one}": rescaling(one) for one in ("v1-aggregation", "v2-aggregation")},
    "rescale of a root of pipelines": RescalingOfRoot,
    "convert to rocksdb v1": converting("hdfs-aggregation", Convert(Provider.ROCKSDB, Structure.V1)),
    "convert to rocksdb v2": converting("hdfs-aggregation", Convert(Provider.ROCKSDB, Structure.V2)),
    "convert to hdfs": converting("v1-aggregation", Convert(Provider.HDFS_BACKED, Structure.V1)),
    **{f"load {one}": loading(one) for one in ("v1-aggregation", "v2-aggregation")},
    **{
        f"{'undo of an edit' if of_undo else 'edit'} {one}": editing(one, of_undo=of_undo)
        for one in ("v1-aggregation", "v1-a-zip-for-each-version", "v2-aggregation")
        for of_undo in (False, True)
    },
    "evolve": evolving(),
    "undo of an evolution": evolving(of_undo=True),
}
"""Name of the rewrite, as in the ids of the tests -> the rewrite."""


def _require_half_done(storage: Storage, case: object) -> None:
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


def _path(storage: Storage) -> str:
    return storage.url.removeprefix("file://")
