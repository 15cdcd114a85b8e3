"""Local disk between the old and the new partitions: rows arrive by source and leave by target, sorted.

One RocksDB holds all rows of a group of stores, each under the number of its target and its key. So each row is written
twice, whatever the numbers of sources and targets, and memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import numpy as np

from statestore.engine.rocks import Database, EngineLimits
from statestore.maintenance.rewrites.plans import Partitions

_TARGET_BYTES = 4


class Spool:
    """Rows of one group of stores. `piece_bytes`: keys and values that are sorted at a time."""

    def __init__(self, path: Path, limits: EngineLimits, piece_bytes: int) -> None:
        self._database = Database.create(path, limits)
        self._piece_bytes = piece_bytes
        self._writing = Lock()

    def add(self, rows: Iterator[tuple[Partitions, Sequence[bytes], Sequence[bytes]]]) -> None:
        """Add the rows of one source: pieces of targets, keys and values. Several threads may add, each another
        source. Raises `LocalStateError`."""
        piece = _Piece()
        for targets, keys, values in rows:
            piece.add(targets, keys, values)
            if piece.size_bytes >= self._piece_bytes:
                self._write(piece)
                piece = _Piece()
        if piece.keys:
            self._write(piece)

    def _write(self, piece: _Piece) -> None:
        # An ingestion writes its tables under fixed names below the database.
        with self._writing:
            self._database.apply([piece.sorted_rows()], None)

    def rows_of(self, target: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Iterate over the rows of a target, in the order of their keys, in batches of keys and values."""
        for keys, values in self._database.scan(_prefix(target)):
            yield [key[_TARGET_BYTES:] for key in keys], values

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.__exit__(kind, error, trace)


class _Piece:
    """Rows of one source that are not written yet."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.size_bytes = 0
        self._values: list[bytes] = []
        self._targets: list[Partitions] = []

    def add(self, targets: Partitions, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._targets.append(targets)
        self.keys.extend(keys)
        self._values.extend(values)
        self.size_bytes += sum(map(len, keys)) + sum(map(len, values))

    def sorted_rows(self) -> Iterator[tuple[bytes, bytes]]:
        targets = np.concatenate(self._targets)
        prefixes = {int(target): _prefix(int(target)) for target in np.unique(targets)}
        # A conversion changes the order of keys. If it did not, the sort finds them in order.
        places = sorted(range(len(self.keys)), key=self.keys.__getitem__)
        order = np.array(places)[np.argsort(targets[places], kind="stable")]
        for place, target in zip(order.tolist(), targets[order].tolist(), strict=True):
            yield prefixes[target] + self.keys[place], self._values[place]


def _prefix(target: int) -> bytes:
    return target.to_bytes(_TARGET_BYTES, "big")
