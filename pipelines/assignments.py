"""Which versions the stores of each partition build on, packed so that a task reads its own part alone."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from statestore.format.names import StorePath, VersionId

_Version = tuple[int, str | None, str | None]
_END = struct.Struct("<I")


@dataclass(frozen=True)
class Assigned:
    """What a task needs to know of one of its stores: the version that the batch builds on, and those with a snapshot."""

    base: VersionId
    snapshots: frozenset[VersionId]


@dataclass(frozen=True)
class Assignments:
    """The stores of all partitions. `parts` are the pickled parts one after another, `ends` says where each one ends.

    Spark sends one function to all tasks of a batch. If that holds a version as an object for each store, every task
    unpickles those of all the others: 63 ms at 1,000 partitions, and as many tasks. Two strings of bytes are copied.
    """

    parts: bytes
    ends: bytes

    @classmethod
    def of(
        cls, bases: Mapping[int, tuple[VersionId, ...]], snapshots: Mapping[StorePath, Collection[VersionId]]
    ) -> Assignments:
        """`bases`: operator -> the version of each partition's store, of as many partitions each."""
        parts = []
        for partition in range(min(map(len, bases.values()), default=0)):
            of_partition = [
                (
                    _plain(of[partition]),
                    [_plain(version) for version in snapshots.get(StorePath(operator, partition), ())],
                )
                for operator, of in sorted(bases.items())
            ]
            parts.append(pickle.dumps(of_partition))
        ends, end = [], 0
        for part in parts:
            end += len(part)
            ends.append(_END.pack(end))
        return cls(b"".join(parts), b"".join(ends))

    def of_partition(self, partition: int) -> tuple[Assigned, ...]:
        """The stores of a partition, by operator."""
        start = _END.unpack_from(self.ends, (partition - 1) * _END.size)[0] if partition else 0
        [end] = _END.unpack_from(self.ends, partition * _END.size)
        # The driver's own bytes, as the function is that they came with.
        of_partition: list[tuple[_Version, list[_Version]]] = pickle.loads(self.parts[start:end])  # noqa: S301
        return tuple(
            Assigned(VersionId(*base), frozenset(VersionId(*version) for version in snapshots))
            for base, snapshots in of_partition
        )


def _plain(version: VersionId) -> _Version:
    return version.version, version.id, version.digest
