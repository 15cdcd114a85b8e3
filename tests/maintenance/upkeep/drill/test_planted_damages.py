"""Wrong rows in intact files: an audit that verifies every byte finds nothing, and a drill finds each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.maintenance.upkeep.drill import Against, Differences, Verdict
from statekeeper.statestore.storage import Storage, open_storage
from tests.support import planted
from tests.support.checkpoints import Checkpoint
from tests.support.drills import by_store, drilled
from tests.support.switching import take_snapshots

Rows = dict[bytes, bytes]
FIRST, LAST = b"counter", b"key 008 9"
STALE, DELETED, ALIEN = b"4", b"key 001", b"key of another partition"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Two snapshots of each store, with all changelogs before, between and after them."""
    folder = tmp_path_factory.mktemp("made")
    root = Checkpoint(open_storage(str(folder / "root")), folder / "hosts")
    for _ in range(2):
        root.grow(4)
        take_snapshots(root.storage, folder / "scratch")
    for late in (b"1", b"2"):  # the tail overwrites no damaged row
        root.batch({b"late": late}, {b"late": late})
    return root


@pytest.fixture
def root(made: Checkpoint, tmp_path: Path) -> Checkpoint:
    return made.copied_to(open_storage(str(tmp_path / "root")), tmp_path / "hosts")


def _with(changes: Rows) -> Callable[[Rows], Rows]:
    return lambda rows: {**rows, **changes}


def _without(*keys: bytes) -> Callable[[Rows], Rows]:
    return lambda rows: {key: value for key, value in rows.items() if key not in keys}


def _swapped(rows: Rows) -> Rows:
    return {**rows, FIRST: rows[LAST], LAST: rows[FIRST]}


def _renamed(rows: Rows) -> Rows:
    return {**_without(LAST)(rows), b"key 008 8 ": rows[LAST]}


DAMAGES: dict[str, tuple[Callable[[Rows], Rows], Differences]] = {
    "a wrong value": (_with({FIRST: b"9"}), Differences(changed=1)),
    "an older value": (_with({FIRST: STALE}), Differences(changed=1)),
    "a truncated value": (_with({LAST: b"x" * 49}), Differences(changed=1)),
    "an empty value": (_with({LAST: b""}), Differences(changed=1)),
    "two swapped values": (_swapped, Differences(changed=2)),
    "a missing row": (_without(LAST), Differences(missing=1)),
    "most rows missing": (lambda rows: dict(list(rows.items())[:5]), Differences(missing=76)),
    "a deleted row that is back": (_with({DELETED: b"x"}), Differences(added=1)),
    "an extra row": (_with({ALIEN: b"x"}), Differences(added=1)),
    "a row under another key": (_renamed, Differences(missing=1, added=1)),
}


def audited(storage: Storage, scratch: Path) -> tuple[object, ...]:
    """The findings of an audit that reads every byte."""
    return audit.judge(audit.gather(storage, scratch=scratch)).findings


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_row_in_the_newest_snapshot_is_found_by_the_replay_since_an_older_one(
    root: Checkpoint, tmp_path: Path, damage: str
) -> None:
    change, expected = DAMAGES[damage]
    store, version = root.stores[0], root.versions[8][0]
    planted.in_snapshot(root.storage, store, version, change, tmp_path)
    assert audited(root.storage, tmp_path / "scratch") == ()
    found = by_store(drilled(root.storage, tmp_path / "scratch"))
    assert {one: result.verdict for one, result in found.items()} == {
        root.stores[0]: Verdict.DIFFERS,
        root.stores[1]: Verdict.SAME,
    }
    [comparison] = found[store].comparisons
    assert (comparison.against, comparison.differences) == (Against.REPLAY, expected)
    assert found[store].explained.endswith(f": {expected}")


def test_a_root_without_damage_is_equal(root: Checkpoint, tmp_path: Path) -> None:
    found = drilled(root.storage, tmp_path / "scratch")
    assert found.is_green
    since = "equal to the replay of 6 changelogs since the snapshot of batch 3"
    assert [one.explained for one in found.drilled] == [since] * 2
    [again, _] = drilled(root.storage, tmp_path / "scratch").drilled
    assert again.explained == f"{since} and to the last drill, of batch 9"


CHANGED: dict[str, Callable[[dict[bytes, bytes | None]], dict[bytes, bytes | None]]] = {
    "a wrong value": lambda records: {**records, FIRST: b"99"},
    "a lost record": lambda records: {key: value for key, value in records.items() if key != FIRST},
    "a lost deletion": lambda records: {key: value for key, value in records.items() if value is not None},
    "an extra deletion": lambda records: {**records, b"key 008 1": None},
}


@pytest.mark.parametrize("damage", CHANGED)
@pytest.mark.parametrize("later", [0, 2], ids=["at the same head", "at a later head"])
def test_a_changelog_that_was_replaced_after_a_drill_is_found_by_the_next_one(
    root: Checkpoint, tmp_path: Path, damage: str, later: int
) -> None:
    """Both loads replay it, so that only the rows of the last drill tell."""
    keys = {b"key 006": b"x"}
    root.batch(keys, keys)
    root.batch({b"key 006": None, FIRST: b"12"}, {FIRST: b"12"})
    assert drilled(root.storage, tmp_path / "scratch").is_green
    version: VersionId = root.versions[12][0]
    for late in range(later):
        root.batch(*[{b"late": b"%d" % late}] * 2)
    planted.in_changelog(root.storage, root.stores[0], version, CHANGED[damage])
    assert audited(root.storage, tmp_path / "scratch") == ()
    [wrong] = drilled(root.storage, tmp_path / "scratch").findings
    assert wrong.action.store == root.stores[0]
    assert {one.against: one.is_equal for one in wrong.comparisons} == {
        Against.REPLAY: True,
        Against.LAST_DRILL: False,
    }


def test_a_finding_stays_red_until_the_rows_are_right_again(root: Checkpoint, tmp_path: Path) -> None:
    assert drilled(root.storage, tmp_path / "scratch").is_green
    store, version = root.stores[0], root.versions[10][0]
    right = root.storage.read(store.changelog(version))
    planted.in_changelog(root.storage, store, version, CHANGED["a wrong value"])
    for _ in range(2):
        assert not drilled(root.storage, tmp_path / "scratch").is_green
    root.storage.replace(store.changelog(version), right)
    assert drilled(root.storage, tmp_path / "scratch").is_green
