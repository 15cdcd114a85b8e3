"""Verbs on the root of a job with timers and a TTL, with batches before and after: timers and state are those of a twin.

In each batch, timers are due and state expires.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import claims, repairs
from tests.support.audits import audited
from tests.support.clones import cloned
from tests.support.dumped import dumped
from tests.support.loads import load, savepoint, undo
from tests.support.mirrors import mirrored
from tests.support.rescales import rescale
from tests.support.rewinds import rewound
from tests.support.switching import switch, take_snapshots
from tests.support.timed_root import STEADY, TimedJob, expected


class Ran:
    """A job whose root is maintained between its batches. `storage`: the root; some verbs move the job to another one."""

    def __init__(self, folder: Path, log: LogLayout = LogLayout.STORES) -> None:
        self.folder = folder
        self.storage = open_storage(str(folder / "root"))
        self.job = TimedJob(folder=folder / "job", log=log)
        self._places = 0

    def grow(self, batches: int) -> None:
        self.job.grow(self.storage, batches)

    @property
    def newest(self) -> int:
        newest = catalog.newest_batch(self.storage)
        assert newest is not None
        return newest

    def another(self) -> Path:
        """A new folder, for a copy or for a run."""
        self._places += 1
        return self.folder / f"place-{self._places}"

    def root(self) -> Storage:
        return open_storage(str(self.another()))

    def rows(self, *options: str) -> Counter[str]:
        """The rows of all stores, without their key groups."""
        found = dumped(self.storage.url.removeprefix("file://"), *options)
        for row in found:
            del row["key"]["key_group"]
            row["store"] = row["store"].split("/")[1]
        return Counter(json.dumps(row, sort_keys=True) for row in found)

    def assert_right(self, twins: Callable[[int], Counter[str]]) -> None:
        """The timers that fired and the state are those of a twin, and an audit finds nothing."""
        batches = self.newest + 1
        assert self.job.told() == expected(batches)
        assert self.rows() == twins(batches)
        assert audited(self.storage, scratch=self.another()).findings == ()


def snapshot_and_gc(ran: Ran) -> None:
    take_snapshots(ran.storage, ran.another(), at_head=True)
    repairs.aggressively_collected(ran.storage, days=1)


def rescale_up_and_down(ran: Ran) -> None:
    rescale(ran.storage, 5, ran.another())
    ran.grow(2)
    rescale(ran.storage, 1, ran.another())


def savepoint_and_load(ran: Ran) -> None:
    saved = savepoint(ran.storage, ran.another())
    rescale(ran.storage, 4, ran.another())
    load(ran.storage, saved, ran.another())


def load_into_another_root(ran: Ran) -> None:
    """The other root has other partitions and other key groups."""
    saved, batch = savepoint(ran.storage, ran.another()), ran.newest
    log = LogLayout.STORES if ran.job.structure is Structure.V1 else ran.job.log
    job = TimedJob(folder=ran.another(), partitions=3, key_groups=10, log=log, first=batch + 1)
    root = ran.root()
    job.grow(root, batch + 1)
    load(root, saved, ran.another())
    job.sink = ran.job.sink
    ran.storage, ran.job = root, job


def rewind(ran: Ran) -> None:
    target = ran.newest - 2
    rewound(ran.storage, target, ran.another())
    # The query gets a new id, as its new checkpoint has.
    ran.job.query = claims.bound(ran.storage).query_id
    ran.job.forget_after(target)


def clone(ran: Ran) -> None:
    copy = ran.root()
    cloned(ran.storage, copy, ran.another())
    ran.grow(1)
    ran.job.forget_after(ran.newest - 1)
    ran.storage = copy


def mirror_and_failover(ran: Ran) -> None:
    mirror = ran.root()
    for _ in range(2):
        mirrored(ran.storage, mirror, ran.another())
        ran.grow(1)
    ran.job.forget_after(ran.newest - 1)
    ran.storage = mirror


def claim(ran: Ran) -> None:
    claims.claimed(ran.storage, None, query_id=claims.NEW)
    ran.job.query = claims.NEW


def switch_there_and_back(ran: Ran) -> None:
    log = ran.job.log
    for structure in (Structure.V1, Structure.V2):
        switch(ran.storage, structure, ran.another())
        ran.job.structure = structure
        ran.job.log = log if structure is Structure.V2 else LogLayout.STORES
        ran.grow(1)


def repair(ran: Ran) -> None:
    """Roll back as users do, by deleting the newest logs."""
    newest = ran.newest
    ran.storage.delete([of(batch) for batch in (newest - 1, newest) for of in (names.commits, names.offsets)])
    repairs.apply(ran.storage, repairs.planned(ran.storage))
    ran.job.forget_after(newest - 2)


VERBS = (
    snapshot_and_gc,
    rescale_up_and_down,
    savepoint_and_load,
    load_into_another_root,
    rewind,
    clone,
    mirror_and_failover,
    claim,
    switch_there_and_back,
    repair,
)


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Counter[str]]:
    """The state of a job without maintenance, by the number of its batches."""
    twin = Ran(tmp_path_factory.mktemp("twin"))
    twin.grow(STEADY + 1)

    def after(batches: int) -> Counter[str]:
        twin.grow(max(0, batches - 1 - twin.newest))
        return twin.rows("--batch", str(batches - 1))

    return after


FAST = {(load_into_another_root, LogLayout.STORES)}
CASES = [
    pytest.param(verb, log, id=f"{verb.__name__}-{log}", marks=[] if (verb, log) in FAST else pytest.mark.slow)
    for verb in VERBS
    for log in LogLayout
]


@pytest.mark.parametrize(("verb", "log"), CASES)
def test_after_a_verb_timers_fire_and_state_expires_as_in_a_twin(
    tmp_path: Path, verb: Callable[[Ran], None], log: LogLayout, twins: Callable[[int], Counter[str]]
) -> None:
    ran = Ran(tmp_path, log)
    ran.grow(STEADY + 1)
    verb(ran)
    ran.assert_right(twins)
    ran.grow(4)
    ran.assert_right(twins)


@pytest.mark.slow
@pytest.mark.parametrize("order", [VERBS, VERBS[::-1]], ids=["forward", "backward"])
def test_after_all_verbs_in_turn_timers_fire_and_state_expires_as_in_a_twin(
    tmp_path: Path, order: tuple[Callable[[Ran], None], ...], twins: Callable[[int], Counter[str]]
) -> None:
    ran = Ran(tmp_path, LogLayout.BATCH)
    ran.grow(STEADY + 1)
    for verb in order:
        verb(ran)
        ran.grow(3)
        ran.assert_right(twins)


@pytest.mark.parametrize(
    "batches",
    [pytest.param(2, id="a lower watermark"), pytest.param(6, id="a higher watermark", marks=pytest.mark.slow)],
)
def test_a_load_restores_the_watermark_of_the_savepoint_and_its_undo_that_of_the_root(
    tmp_path: Path, batches: int
) -> None:
    source, target = Ran(tmp_path / "source"), Ran(tmp_path / "target")
    source.grow(batches)
    target.grow(4)
    before = watermarks(target.storage, 3)
    run = load(target.storage, savepoint(source.storage, source.another()), target.another())
    assert watermarks(target.storage, 3) == watermarks(source.storage, batches - 1) != before
    undo(target.storage, run)
    assert watermarks(target.storage, 3) == before


def watermarks(storage: Storage, batch: int) -> tuple[int, int]:
    """The watermark of a batch, which decides about late rows of the next batch, and that of the next batch."""
    offsets, commit = names.offsets(batch), names.commits(batch)
    of_batch = logs.parse_offsets(storage.read(offsets), offsets).watermark_ms
    return of_batch, logs.parse_commit(storage.read(commit), commit).next_watermark_ms
