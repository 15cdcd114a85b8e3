"""Verbs that die at each of their requests, and are then completed or reversed: what differs from verb to verb.

`Crashing` is the invariant, and its subclasses are the verbs, in files like the rooms of `maintenance`. The base of each
verb is made once. Each case disturbs a copy of it.
"""

from __future__ import annotations

import itertools
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.verbs.contract import Verb
from statekeeper.statestore.storage import Storage, at_once, open_storage
from tests.support.audits import audited
from tests.support.checkpoints import Checkpoint
from tests.support.clones import at
from tests.support.faulty_storage import Fault, FaultyStorage, Request, SimulatedCrash, crash_matrix
from tests.support.s3_server import S3Server
from tests.support.switching import WRITES, after_the_dead
from tests.support.unpacked import update_urls

T = TypeVar("T")
AnyVerb = type[Verb[Any, Any, Any]]
Roots = Sequence[Storage]
"""The root. Of a copy, the source and the destination; of a claim, the root and the new checkpoint."""

DECISIVE = (names.COMMITS, names.OFFSETS, names.BINDING, names.SWITCHOVERS)
SOME_KINDS = {
    "own v2": (Origin.OWN, Structure.V2, False),
    "own v2 in batch logs": (Origin.OWN, Structure.V2, True),
    "own v1": (Origin.OWN, Structure.V1, False),
    "native v1": (Origin.NATIVE, Structure.V1, False),
    "native v2": (Origin.NATIVE, Structure.V2, False),
}
"""The queries whose checkpoints differ: their origin, their structure, and whether they write batch logs."""


class Place:
    """Where bases and cases are: on local disk, or in buckets. `folder`: also for local files of cases in a bucket."""

    def __init__(self, folder: Path, server: S3Server | None = None) -> None:
        self.folder = folder
        self.is_disk = server is None
        self._server = server
        self._numbers = itertools.count()
        self._shared: dict[str, object] = {}

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return what several verbs use, and make it for the first one."""
        if name not in self._shared:
            self._shared[name] = make()
        return cast(T, self._shared[name])

    def root(self, name: str) -> Storage:
        """Return an empty root."""
        if self._server is None:
            return open_storage(f"{self.folder}/{name}")
        # A bucket of its own: the time of a listing grows with all objects of the bucket.
        return open_storage(f"s3://{self._server.make_bucket()}/{name}", options=self._server.options)

    def new_root(self, side: int = 0) -> Storage:
        return self.root(f"case-{next(self._numbers)}/{'destination' if side else 'checkpoint'}")

    def copied(self, storage: Storage, side: int = 0) -> Storage:
        """Copy a root with its hidden files. URLs in it that name its location name the new one."""
        copied = self.new_root(side)
        if storage.url.startswith("file:") and self.is_disk:
            # No hard links: `update_urls` writes into the files.
            target = path_of(copied)
            shutil.copytree(path_of(storage), target, copy_function=shutil.copyfile)
            update_urls(target, target.parent)
        else:
            paths = [entry.path for entry in storage.list("", hidden=True)]
            put_again(copied, {path: storage.read(path) for path in paths})
        return copied

    def local(self, storage: Storage) -> Path:
        """Return the path of a root, or that of a copy of it on local disk."""
        if storage.url.startswith("file:"):
            return path_of(storage)
        folder = self.scratch()
        for entry in storage.list("", hidden=True):
            path = folder / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(storage.read(entry.path))
        return folder

    def location(self, storage: Storage, folder: Path) -> Path:
        """Return the path that URLs in a copy of `folder`/checkpoint name."""
        return path_of(storage) if self.is_disk else folder / "checkpoint"

    def base_root(self) -> Storage:
        """Return an empty root on local disk, for a base."""
        return open_storage(str(self.base_folder() / "checkpoint"))

    def base_folder(self) -> Path:
        """Return a new folder for a base, which is not deleted."""
        folder = self.folder / f"base-{next(self._numbers)}"
        folder.mkdir()
        return folder

    def scratch(self) -> Path:
        """Return a folder that no other caller has."""
        folder = self.folder / "scratch" / str(next(self._numbers))
        folder.mkdir(parents=True)
        return folder

    def forget(self, roots: Roots) -> None:
        """Delete the copies of a case, and what was written to look at it."""
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)
        for storage in roots:
            if storage.url.startswith("file:") and path_of(storage).parent.name.startswith("case-"):
                shutil.rmtree(path_of(storage).parent, ignore_errors=True)


def put_again(storage: Storage, files: Mapping[str, bytes]) -> None:
    """Let a storage have these files, and no other."""

    def put(path: str) -> None:
        storage.create(path, files[path])

    storage.delete([entry.path for entry in storage.list("", hidden=True)])
    at_once(put, list(files))


def path_of(storage: Storage) -> Path:
    """The path of a root on local disk."""
    return Path(unquote(storage.url.removeprefix("file://")))


@dataclass(frozen=True)
class Case:
    """A fault of one request. `side`: the index of the root, of which it is a request."""

    side: int
    request: Request
    fault: Fault


class Crashing(ABC):
    """A verb on its base. `cases` are the requests of an undisturbed run, each with each fault."""

    verb: AnyVerb
    fewest: int
    """There are at least this many cases."""
    every = 0
    """In CI, a crash after each write runs, and one of this number of the other cases that `differing` returns; 0: one case
    of each kind of write."""
    is_slow = False
    """Whether CI leaves out the verb: it is another one with another base."""
    in_a_bucket = 0
    """The number of cases that CI also runs in a bucket."""
    sides: Sequence[int] = (0,)
    """The roots whose requests are disturbed."""
    is_reversible = False
    """Whether `complete` can reverse an interrupted run."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.make_base()
        roots = self.ready()
        rehearsed = [FaultyStorage(root) for root in roots]
        self.act(rehearsed)
        self.rehearsed(roots, rehearsed)
        self.cases = [
            Case(side, *case) for side in self.sides for case in crash_matrix(self.chosen(rehearsed[side].trace))
        ]

    @abstractmethod
    def make_base(self) -> None: ...

    @abstractmethod
    def ready(self) -> Roots:
        """Copy the base as it is before what is disturbed."""

    @abstractmethod
    def act(self, roots: Roots, *, clock: Clock | None = None) -> None:
        """Plan and execute. A run after a dead one gets a clock at whose time the dead one's lease has expired."""

    @abstractmethod
    def check_half(self, roots: Roots, case: Case) -> None:
        """Check the roots as the crash left them: they load what they loaded."""

    @abstractmethod
    def check_end(self, roots: Roots, case: Case, *, is_done: bool) -> None:
        """Check the roots after the verb was completed, or reversed."""

    def rehearsed(self, roots: Roots, traced: Sequence[FaultyStorage]) -> None:  # noqa: B027
        """Check the undisturbed run, and remember its result."""

    def chosen(self, trace: Sequence[Request]) -> Sequence[Request]:
        """Return the requests that are disturbed."""
        return trace

    def must_fail(self, case: Case) -> bool:
        """Return whether the disturbed run must end with an error. A reply that is lost may be waited for again."""
        return case.fault is not Fault.LOST_REPLY

    def complete(self, roots: Roots, case: Case, *, back: bool) -> bool:
        """Complete the verb, or reverse it. Return whether it is done."""
        del case, back
        self.act(roots, clock=after_the_dead())
        return True

    def audited(self, roots: Roots) -> Roots:
        """Return the roots in which the audit finds nothing in the end."""
        return roots

    def check_run(self, cases: Sequence[Case]) -> None:  # noqa: B027
        """Check that the cases have shown what they are for."""

    def some(self, turn: int) -> list[Case]:
        """Return the cases of CI."""
        if not self.every:
            return each_kind_of_write(self.cases, turn)
        cases = differing(self.cases)
        return [*filter(is_after_write, cases), *[one for one in cases if not is_after_write(one)][:: self.every]]

    def some_in_a_bucket(self, some: Sequence[Case]) -> Sequence[Case]:
        """Return the cases that CI also runs in a bucket."""
        return [some[len(some) * (2 * n + 1) // (2 * self.in_a_bucket)] for n in range(self.in_a_bucket)]

    def all_in_a_bucket(self, some: Sequence[Case]) -> Sequence[Case]:
        """Return the cases that the slow tests run in a bucket."""
        return self.cases

    def play(self, case: Case, *, back: bool) -> None:
        """Disturb one request. Then complete the verb, or take it `back`."""
        roots = self.ready()
        faulty = FaultyStorage(roots[case.side], {case.request.number: case.fault})
        failed = False
        try:
            self.act([faulty if side == case.side else root for side, root in enumerate(roots)])
        except (SimulatedCrash, StatekeeperError):
            failed = True
        assert len(faulty.trace) > case.request.number, f"{case} was not reached"
        assert failed or not self.must_fail(case), case
        self.check_half(roots, case)
        is_done = self.complete(roots, case, back=back)
        self.check_end(roots, case, is_done=is_done)
        for root in self.audited(roots):
            assert audited(root).findings == (), case
        self.place.forget(roots)

    def model(self, made: Checkpoint, storage: Storage, batch: int | None = None) -> Checkpoint:
        """The model of a checkpoint, in another storage."""
        newest = len(made.versions) - 2 if batch is None else batch
        return at(made, storage, self.place.scratch(), newest)


def differing(cases: Sequence[Case]) -> list[Case]:
    """Return the cases without those that leave the same files as the case before them.

    A process that dies before or after a read, or before a write, leaves the files as the write before has left them.
    """
    found: list[Case] = []
    for case in cases:
        is_same = case.fault is Fault.BEFORE or (case.fault is not Fault.LOST_REPLY and case.request.kind not in WRITES)
        if not is_same or not found or found[-1].side != case.side:
            found.append(case)
    return found


def is_after_write(case: Case) -> bool:
    """Whether the process dies after a write: these are all states in which a crash can leave the files of a storage
    without torn writes."""
    return case.fault is Fault.AFTER and case.request.kind in WRITES


def each_kind_of_write(cases: Sequence[Case], turn: int) -> list[Case]:
    """Return one case of each kind of write: a kind of request, on a kind of file. The process dies after a write that
    decides what a query loads. The fault of the others changes from kind to kind, and with `turn`, so that several verbs
    have all faults at each kind."""
    kinds: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        if case.request.kind in WRITES:
            shape = re.sub(r"[^/._-]*\d[^/._-]*", "#", case.request.path)
            kinds.setdefault((case.side, case.request.kind, shape), []).append(case)
    found = []
    for number, of_kind in enumerate(kinds.values()):
        if of_kind[0].request.path.startswith(DECISIVE):
            of_kind = [one for one in of_kind if one.fault is Fault.AFTER]
        found.append(of_kind[(number + turn) % len(of_kind)])
    return found
