"""A schema evolution that finds no space leaves the former rows, and can be finished or reversed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import HalfSwitched, LocalDiskFull, RefusedAsUnsafe, StorageError
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.evolved_roots import by_key, commit, evolve, goal, new_rows, old_rows, plain_rows, rows_of, run
from tests.support.mounts import fill, small_disk
from tests.support.rescales import abort, planned
from tests.support.switching import after_the_dead, contents
from tests.support.twins import clean

ROOM = 48 * 1024**2
FOR_JOURNAL = 256 * 1024
KEYS = [random.Random(n).randbytes(150).hex() + str(n) for n in range(4_000)]
ROWS = old_rows(*KEYS)
BEFORE, AFTER = by_key(ROWS), by_key(new_rows(ROWS))


def _root(folder: Path, host: Path) -> Storage:
    folder.mkdir(exist_ok=True)
    storage = open_storage(str(folder))
    commit(storage, host, 0, ROWS, plain_rows("a"))
    return storage


def test_a_plan_that_needs_more_space_than_the_scratch_folder_has_is_rejected(tmp_path: Path) -> None:
    storage = _root(tmp_path / "root", tmp_path / "host")
    before = contents(storage)
    with small_disk(tmp_path / "scratch", 1024**2) as scratch:
        [refusal] = planned(storage, goal(), scratch).refusals
        assert "of local disk are needed" in refusal
        with pytest.raises(RefusedAsUnsafe, match="of local disk are needed"):
            evolve(storage, goal(), scratch)
    assert contents(storage) == before


@pytest.mark.parametrize("finish", [True, False], ids=["finish", "abort"])
def test_a_scratch_folder_that_fills_after_the_plan_leaves_the_former_rows(tmp_path: Path, finish: bool) -> None:
    storage = _root(tmp_path / "root", tmp_path / "host")
    before = contents(storage)
    with small_disk(tmp_path / "scratch", ROOM) as scratch:
        ready = planned(storage, goal(), scratch)
        assert ready.refusals == ()
        filler = fill(scratch)
        with pytest.raises(LocalDiskFull, match="space"):
            run(storage, ready, scratch)
        with pytest.raises(HalfSwitched, match="--abort"):
            rows_of(storage, 0, tmp_path)
        filler.unlink()
        _end(storage, scratch, finish=finish, before=before)
    clean(storage, tmp_path)


@pytest.mark.parametrize("finish", [True, False], ids=["finish", "abort"])
def test_a_full_disk_of_the_root_leaves_the_former_rows(tmp_path: Path, finish: bool) -> None:
    with small_disk(tmp_path / "root", ROOM) as place:
        storage = _root(place, tmp_path / "host")
        before = contents(storage)
        ready = planned(storage, goal(), tmp_path / "scratch")
        filler = fill(place, left_bytes=FOR_JOURNAL)
        with pytest.raises(StorageError, match="space"):
            run(storage, ready, tmp_path / "scratch")
        assert rewrite_journal.open_journal(storage) is not None
        filler.unlink()
        _end(storage, tmp_path / "scratch", finish=finish, before=before)
        clean(storage, tmp_path)


def _end(storage: Storage, scratch: Path, *, finish: bool, before: dict[str, bytes]) -> None:
    if finish:
        evolve(storage, goal(), scratch, clock=after_the_dead())
        assert rows_of(storage, 0, scratch) == AFTER
    else:
        abort(storage)
        assert rows_of(storage, 0, scratch) == BEFORE
        assert {path: body for path, body in contents(storage).items() if path in before} == before
    assert rewrite_journal.open_journal(storage) is None
