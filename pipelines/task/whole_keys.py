"""Split of a partition's sorted rows into pieces of whole keys, so that memory does not grow with the partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.operator.declaration import Pieces
from statekeeper.statestore.base.errors import HotKey


@dataclass(frozen=True)
class Piece:
    """Rows and the bytes of their state keys; shape (rows,) each. Equal keys are adjacent."""

    rows: pa.Table
    keys: pa.LargeBinaryArray

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def size_bytes(self) -> int:
        return int(self.rows.nbytes + self.keys.nbytes)

    def first_of_key(self) -> pa.BooleanArray:
        """Return True where a row's key differs from the previous row; shape (rows,)."""
        changes = pc.not_equal(self.keys[1:], self.keys[:-1]).to_numpy(zero_copy_only=False)
        return pa.array(np.concatenate([np.ones(min(len(self.keys), 1), dtype=bool), changes]))


class WholeKeys:
    """Splits rows, sorted by key, into whole keys: about `limits.rows` rows or `limits.size_bytes` a piece.

    encode       returns the bytes of the state keys of rows; shape (rows,)
    key_columns  the columns whose values an error shows

    Memory holds at most two pieces, or one piece and one key of `hot_key_rows` rows or `hot_key_bytes`.
    """

    def __init__(
        self, encode: Callable[[pa.Table], pa.LargeBinaryArray], limits: Pieces, *, key_columns: Sequence[str] = ()
    ) -> None:
        self._encode = encode
        self._limits = limits
        self._key_columns = key_columns
        self._held: list[Piece] = []

    def push(self, rows: pa.Table) -> Iterator[Piece]:
        """Add the next rows, and return the pieces that are complete.

        Raises `HotKey` for a key that is too large, unless hot keys may be split.
        """
        for part in _slices(rows, self._limits):
            yield from self._push(part)

    def rest(self) -> Iterator[Piece]:
        """Return the last piece. Raises as `push`."""
        if self._held:
            yield self._allowed(self._held)
            self._held = []

    def _push(self, rows: pa.Table) -> Iterator[Piece]:
        limits, newest = self._limits, Piece(rows, self._encode(rows))
        self._held.append(newest)
        if not _exceeds(self._held, limits.rows - 1, limits.size_bytes - 1):
            return
        if self._held[0].keys[0].equals(newest.keys[-1]):
            # One key fills the piece. Joining now would copy the held rows again for each new table.
            if _exceeds(self._held, limits.hot_key_rows, limits.hot_key_bytes):
                yield from self.rest()
            return
        piece = _joined(self._held)
        cut = _start_of_last_key(piece.keys)
        yield self._allowed([Piece(piece.rows.slice(0, cut), piece.keys[:cut])])
        self._held = [Piece(piece.rows.slice(cut), piece.keys[cut:])]

    def _allowed(self, held: list[Piece]) -> Piece:
        return _allowed(_joined(held), self._limits, self._key_columns)


def _slices(table: pa.Table, limits: Pieces) -> Iterator[pa.Table]:
    """Slice an Arrow batch of Spark that is larger than a piece."""
    by_size = table.num_rows * limits.size_bytes // max(table.nbytes, 1)
    at_once = max(1, min(limits.rows, by_size))
    for start in range(0, table.num_rows, at_once):
        yield table.slice(start, at_once)


def _exceeds(pieces: list[Piece], rows: int, size_bytes: int) -> bool:
    return sum(map(len, pieces)) > rows or sum(piece.size_bytes for piece in pieces) > size_bytes


def _allowed(piece: Piece, limits: Pieces, key_columns: Sequence[str]) -> Piece:
    """Return the piece. Raises `HotKey` if a key has too many rows or bytes."""
    if limits.split_hot_keys:
        return piece
    starts = np.flatnonzero(piece.first_of_key().to_numpy(zero_copy_only=False))
    lengths = np.diff(np.append(starts, len(piece)))
    longest = int(lengths.argmax())
    is_too_large = len(starts) == 1 and piece.size_bytes > limits.hot_key_bytes
    if lengths[longest] <= limits.hot_key_rows and not is_too_large:
        return piece
    limit = f"{limits.hot_key_bytes:,} bytes" if is_too_large else f"{limits.hot_key_rows:,} rows"
    key = piece.rows.slice(int(starts[longest]), 1).select(list(key_columns)).to_pylist()[0]
    raise HotKey(
        f"a key has more than {limit} in a batch: {key}",
        hint="if the update function supports several calls per key, set Pieces(split_hot_keys=True); otherwise raise "
        "Pieces.hot_key_rows and hot_key_bytes",
    )


def _joined(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    rows = pa.concat_tables([piece.rows for piece in pieces]).combine_chunks()
    return Piece(rows, pa.concat_arrays([piece.keys for piece in pieces]))


def _start_of_last_key(keys: pa.LargeBinaryArray) -> int:
    differs = pc.not_equal(keys, keys[-1]).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(differs)
    return int(others[-1]) + 1 if len(others) else 0
