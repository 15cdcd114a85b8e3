"""The number of keys in a snapshot: the same as going over all of them gives, or not known."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from statekeeper.statestore.store.engine.rocks import Database, EngineLimits
from statekeeper.statestore.store.loading.replay import KeyCount
from tests.support.changelogs import Records, changes_of, one_by_one

LIMITS = EngineLimits(block_cache_bytes=1024 * 1024)
HELD = 60


def counted(folder: Path, windows: list[Records], held: int | None = HELD, **limits: int) -> tuple[int | None, int]:
    """Return the key count after the windows, and the number of keys in the database."""
    with Database.create(folder / "db", LIMITS) as database:
        if held:
            database.apply([[(b"%03d" % number, b"") for number in range(held)]], None)
        count = KeyCount(database, held, **limits)
        database.apply([count.count(changes_of(one_by_one(window))).pairs() for window in windows if window], None)
        return count.keys, database.count_keys()


few_records = st.lists(
    st.tuples(st.integers(0, 80).map(lambda number: b"%03d" % number), st.sampled_from([None, b"", b"new"])),
    max_size=11,
)


@given(few_records)
@settings(max_examples=40)
def test_the_count_is_right_when_a_few_keys_change(changes: Records) -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys, truth = counted(Path(folder), [changes])
        assert keys == truth


@given(st.lists(few_records, min_size=2, max_size=3))
@settings(max_examples=30)
def test_the_count_over_several_windows_is_right_or_unknown(windows: list[Records]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys, truth = counted(Path(folder), windows)
        assert keys in (None, truth)
        assert (keys is None) == (sum(map(bool, windows)) > 1)


def test_a_store_that_grew_from_nothing_has_the_keys_that_were_put(tmp_path: Path) -> None:
    changes: Records = [(b"%d" % number, b"" if number % 3 else None) for number in range(30)]
    assert counted(tmp_path, [changes], held=0) == (20, 20)


def test_with_many_changes_or_a_base_without_a_count_the_count_is_unknown(tmp_path: Path) -> None:
    many: Records = [(b"%03d" % number, b"new") for number in range(HELD // 4)]
    assert counted(tmp_path / "many", [many]) == (None, HELD)
    assert counted(tmp_path / "uncounted", [[(b"new", b"")]], held=None) == (None, 1)


def test_keys_are_looked_up_in_pieces(tmp_path: Path) -> None:
    changes: Records = [(b"%03d" % number, None if number % 2 else b"") for number in range(53, 63)]
    assert counted(tmp_path, [changes], at_once=3) == (58, 58)
