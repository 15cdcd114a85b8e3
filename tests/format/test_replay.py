"""The surviving records of many changelogs, compared with a loop over every record."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statekeeper.statestore.format import changelog, replay
from statekeeper.statestore.format.replay import Window
from tests.support.changelogs import Records, changes_of, one_by_one

PLENTY = 1 << 40


def left_of(pieces: list[Records], memory_bytes: int = PLENTY) -> list[Records]:
    """Return the survivors of each window, with garbage of another length before each piece."""
    window = Window(memory_bytes)
    left = []
    for number, piece in enumerate(pieces):
        window.add(changes_of(piece, garbage=b"\xff" * number))
        if window.is_full:
            left.append(list(window.survivors().pairs()))
    return [*left, list(window.survivors().pairs())] if window else left


any_keys = st.binary(max_size=90)
# Zeros and ff at their ends, one the beginning of another, and more than eight bytes that are the same.
close_keys = st.builds(
    lambda beginning, ends: beginning + b"".join(ends),
    st.sampled_from([b"", b"\0" * 7, b"\xff" * 8, b"12345678", b"x" * 60, b"x" * 64]),
    st.lists(st.sampled_from([b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff"]), max_size=4),
)
alike_keys = st.integers(0, 2**16).map(lambda number: struct.pack("<iq", number % 7, number))
# Little varies in each eight bytes: several of them are compared as one number.
narrow_keys = st.builds(
    lambda words, end: struct.pack(f">{len(words)}q", *words) + end,
    st.lists(st.integers(0, 9) | st.integers(2**40, 2**40 + 3), min_size=2, max_size=3),
    st.sampled_from([b"", b"\0", b"\1"]),
)
values = st.none() | st.binary(max_size=5) | st.just(b"alike")


def pieces_of(keys: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[Records]]:
    return st.lists(st.lists(st.tuples(keys, values), max_size=30), max_size=4)


@given(
    pieces_of(any_keys)
    | pieces_of(close_keys)
    | pieces_of(alike_keys)
    | pieces_of(narrow_keys)
    | pieces_of(any_keys | close_keys)
)
@example([[(b"", b"1")], [(b"", None)]])
@example([[(b"a", b"1"), (b"a\0", b"2"), (b"a\0\0", None), (b"a", b"3")]])
@example([[(b"same", b"1")] * 3, [], [(b"same", b"2")]])
@example([[(b"1234567890123456", b"1")], [(b"123456789012345", b"2"), (b"12345678", b"3")]])
def test_the_last_record_of_each_key_survives_in_key_order(pieces: list[Records]) -> None:
    records = [record for piece in pieces for record in piece]
    assert left_of(pieces) == ([one_by_one(records)] if records else [])


@given(pieces_of(close_keys), st.integers(1, 4000))
def test_several_windows_have_the_same_survivors_as_one(pieces: list[Records], memory_bytes: int) -> None:
    left = left_of(pieces, memory_bytes)
    assert all(window == one_by_one(window) != [] for window in left)
    records = [record for window in left for record in window]
    assert one_by_one(records) == one_by_one([record for piece in pieces for record in piece])


def test_a_window_is_full_at_its_limit_and_empty_after_its_survivors_are_taken() -> None:
    window = Window(10_000)
    added = 0
    while not window.is_full:
        window.add(changes_of([(b"key", bytes(100))]))
        added += 1
    assert 20 < added < 60
    assert window
    window.survivors()
    assert not window
    assert not window.is_full


@pytest.mark.parametrize(
    "count", [changelog.PAIRS_AT_ONCE, changelog.PAIRS_AT_ONCE + 1, 2 * changelog.PAIRS_AT_ONCE + 5]
)
def test_pairs_in_parts_are_complete(count: int) -> None:
    records: Records = [(b"%05d" % number, None if number % 5 == 4 else b"v%d" % number) for number in range(count)]
    assert left_of([records[count // 2 :], records[: count // 2]]) == [records]


def test_pairs_of_a_few_and_of_many_different_lengths_keep_each_byte() -> None:
    few: list[bytes | None] = [b"", b"\0", b"v\0\0", None, b"\0\0v"]
    many: list[bytes | None] = [bytes(size) for size in range(40)]
    for values in (few, many, [None, None]):
        records: Records = [
            (b"k%03d" % number + b"\0" * (number % 3), values[number % len(values)])
            for number in range(len(values) * 20)
        ]
        assert left_of([records]) == [one_by_one(records)]


def test_pairs_of_large_records_are_not_all_copied_at_once() -> None:
    window = Window(PLENTY)
    window.add(changes_of([(b"%03d" % number, bytes(100_000)) for number in range(300)]))
    changes = window.survivors()
    tracemalloc.start()
    try:
        assert sum(len(value or b"") for _, value in changes.pairs()) == 30_000_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@given(pieces_of(close_keys))
def test_long_and_short_keys_have_the_same_order(pieces: list[Records]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lefts = []
        for longest in (0, 1_000):
            patch.setattr(replay, "_LONGEST_KEY_OF_WORDS_BYTES", longest)
            lefts.append(left_of(pieces))
    assert lefts[0] == lefts[1]
