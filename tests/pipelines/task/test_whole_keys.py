"""A partition's rows reach the update function as pieces of whole keys, in bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeeper.pipelines.operator.declaration import Pieces
from statekeeper.pipelines.task.whole_keys import Piece, WholeKeys
from statekeeper.statestore.base.errors import HotKey, SchemaMismatch

NO_LIMIT = 2**60


def whole_keys(tables: Iterable[pa.Table], *of: Any, **more: Any) -> Iterator[Piece]:
    splitting = WholeKeys(*of, **more)
    for rows in tables:
        yield from splitting.push(rows)
    yield from splitting.rest()


def encode(rows: pa.Table) -> pa.LargeBinaryArray:
    return rows.column("key").combine_chunks().cast(pa.large_binary())


def table(keys: list[str], payload_bytes: int = 0) -> pa.Table:
    return pa.table(
        {
            "key": pa.array(keys, pa.string()),
            "place": pa.array(range(len(keys)), pa.int64()),
            "payload": pa.array(["x" * payload_bytes] * len(keys), pa.string()),
        }
    )


def cut(rows: pa.Table, places: list[int]) -> list[pa.Table]:
    ends = [0, *sorted(place % (rows.num_rows + 1) for place in places), rows.num_rows]
    return [rows.slice(start, end - start) for start, end in itertools.pairwise(ends)]


def keys_of(counts: list[int]) -> list[str]:
    return [f"{number:04}" for number, count in enumerate(counts) for _ in range(count)]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)
COUNTS = st.lists(st.integers(1, 40), max_size=30)


@settings(deadline=None)
@given(COUNTS, CUTS, st.integers(1, 60), st.integers(1, 4_000))
def test_any_rows_in_any_batches_are_returned_as_whole_keys_in_order_without_loss(counts, cuts, rows, size_bytes):
    given_rows = table(keys_of(counts))
    limits = Pieces(rows=rows, size_bytes=size_bytes, hot_key_rows=40, hot_key_bytes=NO_LIMIT)
    pieces = list(whole_keys(cut(given_rows, cuts), encode, limits, key_columns=["key"]))
    for piece in pieces:
        assert len(piece.keys) == piece.rows.num_rows > 0
        assert piece.keys.equals(encode(piece.rows))
    assert pa.concat_tables([given_rows.slice(0, 0), *(piece.rows for piece in pieces)]).equals(given_rows)
    keys = [key for piece in pieces for key in set(piece.keys.to_pylist())]
    assert len(keys) == len(set(keys)) == len(counts)


@settings(deadline=None)
@given(COUNTS, CUTS, st.integers(1, 60), st.integers(1, 60))
def test_splittable_hot_keys_come_in_pieces_and_other_keys_whole(counts, cuts, rows, hot_key_rows):
    given_rows = table(keys_of(counts))
    limits = Pieces(
        rows=rows, size_bytes=NO_LIMIT, hot_key_rows=hot_key_rows, hot_key_bytes=NO_LIMIT, split_hot_keys=True
    )
    pieces = list(whole_keys(cut(given_rows, cuts), encode, limits, key_columns=["key"]))
    assert pa.concat_tables([given_rows.slice(0, 0), *(piece.rows for piece in pieces)]).equals(given_rows)
    for number, count in enumerate(counts):
        holding = [piece for piece in pieces if f"{number:04}".encode() in piece.keys.to_pylist()]
        assert len(holding) == 1 or count > hot_key_rows


@settings(deadline=None)
@given(COUNTS, CUTS, st.integers(1, 60), st.integers(1, 39))
def test_a_key_with_too_many_rows_is_rejected_for_any_batch_boundaries(counts, cuts, rows, hot_key_rows):
    limits = Pieces(rows=rows, size_bytes=NO_LIMIT, hot_key_rows=hot_key_rows, hot_key_bytes=NO_LIMIT)
    hot = [number for number, count in enumerate(counts) if count > hot_key_rows]
    pieces = whole_keys(cut(table(keys_of(counts)), cuts), encode, limits, key_columns=["key"])
    if hot:
        with pytest.raises(HotKey) as refused:
            list(pieces)
        assert f"a key has more than {hot_key_rows} rows" in refused.value.what
        assert any(f"{{'key': '{number:04}'}}" in refused.value.what for number in hot)
    else:
        assert sum(len(piece) for piece in pieces) == sum(counts)


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), max_size=60), CUTS, st.integers(1, 60))
def test_a_piece_is_at_most_a_limit_and_a_slice_for_any_batch_size(counts, cuts, rows):
    hot_key_rows = 5
    limits = Pieces(rows=rows, size_bytes=NO_LIMIT, hot_key_rows=hot_key_rows)
    for piece in whole_keys(cut(table(keys_of(counts)), cuts), encode, limits, key_columns=["key"]):
        assert len(piece) <= max(rows, hot_key_rows) + rows


def test_pieces_of_wide_rows_have_fewer_rows():
    limits = Pieces(size_bytes=100_000)
    rows = table([f"{n:06}" for n in range(2_000)], payload_bytes=1_000)
    pieces = list(whole_keys([rows], encode, limits, key_columns=["key"]))
    assert max(piece.size_bytes for piece in pieces) < 2 * limits.size_bytes
    assert sum(len(piece) for piece in pieces) == 2_000


def test_a_key_with_few_rows_and_many_bytes_is_hot_too():
    limits = Pieces(size_bytes=10_000, hot_key_bytes=50_000)
    rows = cut(table(["a"] * 10 + ["wide"] * 100, payload_bytes=1_000), [15, 50])
    with pytest.raises(HotKey, match=r"a key has more than 50,000 bytes in a batch: \{'key': 'wide'\}"):
        list(whole_keys(rows, encode, limits, key_columns=["key"]))


def test_the_memory_does_not_grow_with_the_partition():
    batches = 200
    limits = Pieces(rows=5_000)

    def peak_bytes(most: int) -> int:
        def arriving():
            for number in range(most):
                keys = np.repeat(np.arange(number * 250, (number + 1) * 250), 4)
                yield table([f"{key:08}" for key in keys.tolist()], payload_bytes=50)

        before, peak = pa.total_allocated_bytes(), 0
        for piece in whole_keys(arriving(), encode, limits, key_columns=["key"]):
            del piece
            peak = max(peak, pa.total_allocated_bytes() - before)
        return peak

    assert peak_bytes(batches) < 1.5 * peak_bytes(batches // 10) + 500_000


@pytest.mark.parametrize("limit", ["rows", "size_bytes", "hot_key_rows", "hot_key_bytes", "expired_rows"])
def test_a_limit_below_one_is_rejected_before_a_query_starts(limit: str) -> None:
    with pytest.raises(SchemaMismatch, match=rf"Pieces\({limit}=0\) is below 1 -> give a limit of 1 or more"):
        Pieces(**{limit: 0})
