"""Cutting a partition's sorted rows into pieces of whole keys, so that memory does not grow with the partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.operator import Pieces
from statestore.errors import HotKey


@dataclass(frozen=True)
class Piece:
    """Some rows and, row by row, the bytes of their state keys; equal keys stand together."""

    rows: pa.Table
    keys: pa.LargeBinaryArray

    def first_of_key(self) -> pa.BooleanArray:
        """True where a row's key differs from the row before; shape (rows,)."""
        changes = pc.not_equal(self.keys[1:], self.keys[:-1]).to_numpy(zero_copy_only=False)
        return pa.array(np.concatenate([np.ones(min(len(self.keys), 1), dtype=bool), changes]))


def whole_keys(
    tables: Iterable[pa.Table], encode: Callable[[pa.Table], pa.LargeBinaryArray], limits: Pieces
) -> Iterator[Piece]:
    """The rows of `tables`, sorted by key, as pieces of whole keys of about `limits.rows` rows or `limits.size_bytes`.

    Raises `HotKey` for a key of more than `limits.hot_key_rows` rows, unless those may be split.
    """
    held: list[Piece] = []
    for rows in tables:
        if rows.num_rows == 0:
            continue
        held.append(Piece(rows, encode(rows)))
        if sum(len(p.keys) for p in held) < limits.rows and sum(p.rows.nbytes for p in held) < limits.size_bytes:
            continue
        piece = _joined(held)
        cut = _start_of_last_key(piece.keys)
        if cut == 0:
            if len(piece.keys) < limits.hot_key_rows and not limits.split_hot_keys:
                held = [piece]
                continue
            if not limits.split_hot_keys:
                raise HotKey(
                    f"more than {limits.hot_key_rows:,} rows of one key in a batch: {_described(piece)}",
                    hint="let it be split (Pieces(split_hot_keys=True)) if the update function may get a key in "
                    "pieces, or raise Pieces.hot_key_rows",
                )
            cut = len(piece.keys)
        yield Piece(piece.rows.slice(0, cut), piece.keys[:cut])
        held = [Piece(piece.rows.slice(cut), piece.keys[cut:])] if cut < len(piece.keys) else []
    if held:
        yield _joined(held)


def _joined(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    rows = pa.concat_tables([piece.rows for piece in pieces]).combine_chunks()
    return Piece(rows, pa.concat_arrays([piece.keys for piece in pieces]))


def _start_of_last_key(keys: pa.LargeBinaryArray) -> int:
    differs = pc.not_equal(keys, keys[-1]).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(differs)
    return int(others[-1]) + 1 if len(others) else 0


def _described(piece: Piece) -> str:
    return str(piece.rows.slice(0, 1).to_pylist()[0])
