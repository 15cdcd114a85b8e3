"""Replay: the surviving records of many changelogs, computed on arrays instead of record by record.

This module decides which record of a key wins, and the order of keys. `changelog` defines the records; the engine
applies the survivors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.compute as pc

from statekeeper.statestore.format.changelog import Changes
from statekeeper.statestore.format.ragged import Counts, as_numpy, gather

_LONGEST_KEY_OF_WORDS_BYTES = 64
"""Arrow sorts longer keys: a column of words for every eight bytes of the longest key would cost too much."""

_RECORD_BYTES = 100
"""Bytes that sorting needs per record, in addition to its plain bytes."""


class Window:
    """Records of successive changelogs, collected until sorting them would take `memory_bytes`; at least one piece."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._begin()

    def _begin(self) -> None:
        self._buffer = bytearray()
        self._pieces: list[Changes] = []
        self._records = 0

    def add(self, changes: Changes) -> None:
        """Add changes that follow all earlier ones."""
        if len(changes):
            self._pieces.append(changes.behind(self._buffer))
            self._records += len(changes)

    @property
    def is_full(self) -> bool:
        """Whether the memory limit is reached."""
        return len(self._buffer) + _RECORD_BYTES * self._records >= self._memory_bytes

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def survivors(self) -> Changes:
        """Return the last record of each key, including deletes, in the byte order of the keys. Empties the window."""
        columns = zip(*(piece.columns for piece in self._pieces), strict=True)
        # Eight bytes of padding after the records: see `_words`.
        self._buffer += bytes(8)
        changes = Changes.of(self._buffer, *map(np.concatenate, columns))
        self._begin()
        return changes.take(_last_of_each_key(changes))


def _last_of_each_key(changes: Changes) -> Counts:
    """Return the places of the winning records, in key order. Both sorts are stable: the last of equal keys is the
    newest."""
    order: Counts
    if changes.key_length.max() > _LONGEST_KEY_OF_WORDS_BYTES:
        keys = gather(np.frombuffer(changes.buffer, np.uint8), changes.key_start, changes.key_length).to_arrow()
        places = pc.sort_indices(keys)
        keys = keys.take(places)
        order = as_numpy(places.buffers()[1], np.dtype(np.uint64)).astype(np.int64)
        same = as_numpy(pc.equal(keys[:-1], keys[1:]).cast("uint8").buffers()[1], np.dtype(np.bool_))
    else:
        # Keys that differ only in trailing zeros have the same words; the shorter key sorts first.
        columns = _packed([*_words(changes), changes.key_length.astype(np.uint64)])
        order = np.lexsort(columns[::-1]) if columns else np.arange(len(changes))
        same = np.ones(len(changes) - 1, np.bool_)
        for column in columns:
            ordered = column[order]
            same &= ordered[:-1] == ordered[1:]
    winners: Counts = order[np.append(~same, True)]
    return winners


def _packed(columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return as few columns as possible with the same row order. Adjacent columns share one if their varying bits fit
    into 64."""
    packed: list[np.ndarray] = []
    free_bits = 0
    for column in columns:
        varying = column - column.min()
        bits = int(varying.max()).bit_length()
        if bits == 0:
            continue
        if bits <= free_bits:
            packed[-1] = packed[-1] << np.uint64(bits) | varying
            free_bits -= bits
        else:
            packed.append(varying)
            free_bits = 64 - bits
    return packed


def _words(changes: Changes) -> Iterator[np.ndarray]:
    """Yield the keys as uint64 columns of eight bytes each. Big-endian, so that numbers sort as bytes do. Short keys
    are padded with zeros."""
    # Eight bytes from every byte of the buffer. The last word of the last key may extend past the records' end.
    eights = np.ndarray(len(changes.buffer) - 7, "V8", changes.buffer, strides=1)
    for offset in range(0, int(changes.key_length.max()), 8):
        places = np.minimum(changes.key_start + offset, len(eights) - 1)
        words = eights[places].view(">u8").astype(np.uint64)
        foreign_bits = (64 - 8 * np.clip(changes.key_length - offset, 0, 8)).astype(np.uint64)
        yield words >> foreign_bits << foreign_bits
