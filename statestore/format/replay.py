"""Replay: what is left of the records of many changelogs, found on arrays instead of record by record.

Belongs here: which record of a key wins, and the order of keys. What a record looks like is `changelog`'s business; what
becomes of those that are left, the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.compute as pc

from statestore.format.changelog import Changes
from statestore.format.ragged import Counts, as_numpy, gather

_LONGEST_KEY_OF_WORDS_BYTES = 64
"""Longer keys are left to Arrow: a column of words for each eight bytes of the longest one would cost too much."""

_RECORD_BYTES = 100
"""What sorting takes for each record, beside its plain bytes."""


class Window:
    """Records of successive changelogs, gathered until they would take `memory_bytes` to sort; one piece at least."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._begin()

    def _begin(self) -> None:
        self._buffer = bytearray()
        self._pieces: list[Changes] = []
        self._records = 0

    def add(self, changes: Changes) -> None:
        """Take changes in that come after all others."""
        if len(changes):
            self._pieces.append(changes.behind(self._buffer))
            self._records += len(changes)

    @property
    def is_full(self) -> bool:
        """Whether the bound is reached."""
        return len(self._buffer) + _RECORD_BYTES * self._records >= self._memory_bytes

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def survivors(self) -> Changes:
        """The last record of each key, deletions too, in the order of their keys' bytes. Leaves the window empty."""
        columns = zip(*(piece.columns for piece in self._pieces), strict=True)
        # Eight bytes longer than the records are: see `_words`.
        self._buffer += bytes(8)
        changes = Changes(self._buffer, *map(np.concatenate, columns))
        self._begin()
        return changes.take(_last_of_each_key(changes))


def _last_of_each_key(changes: Changes) -> Counts:
    """The places of the records that win, in key order. Both sorts are stable: the last of equal keys is the newest."""
    order: Counts
    if changes.key_length.max() > _LONGEST_KEY_OF_WORDS_BYTES:
        keys = gather(np.frombuffer(changes.buffer, np.uint8), changes.key_start, changes.key_length).to_arrow()
        places = pc.sort_indices(keys)
        keys = keys.take(places)
        order = as_numpy(places.buffers()[1], np.dtype(np.uint64)).astype(np.int64)
        same = as_numpy(pc.equal(keys[:-1], keys[1:]).cast("uint8").buffers()[1], np.dtype(np.bool_))
    else:
        # Keys that differ only in zeros at their end have the same words: the shorter one is the smaller.
        columns = _packed([*_words(changes), changes.key_length.astype(np.uint64)])
        order = np.lexsort(columns[::-1]) if columns else np.arange(len(changes))
        same = np.ones(len(changes) - 1, np.bool_)
        for column in columns:
            ordered = column[order]
            same &= ordered[:-1] == ordered[1:]
    winners: Counts = order[np.append(~same, True)]
    return winners


def _packed(columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Columns that order rows as these do, as few as may be: neighbours share one where what varies in them fits."""
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
    """The keys as columns of uint64, eight bytes each, big-endian: numbers sort as bytes do. Short keys end in zeros."""
    # Every eight bytes of the buffer, wherever they begin. The last word of the last key may reach over the records' end.
    eights = np.ndarray(len(changes.buffer) - 7, "V8", changes.buffer, strides=1)
    for offset in range(0, int(changes.key_length.max()), 8):
        places = np.minimum(changes.key_start + offset, len(eights) - 1)
        words = eights[places].view(">u8").astype(np.uint64)
        foreign_bits = (64 - 8 * np.clip(changes.key_length - offset, 0, 8)).astype(np.uint64)
        yield words >> foreign_bits << foreign_bits
