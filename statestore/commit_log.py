"""The commit log of a checkpoint, as far as it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from statestore.format.names import StorePath, VersionId
from statestore.storage import at_once

_READ_AHEAD = 32


@dataclass(frozen=True)
class Heads:
    """The newest committed version of each store, and the batch whose commit says so."""

    batch: int
    heads: Mapping[StorePath, VersionId]


class CommitLog:
    """The commit log: the version of each store that a batch made. Safe to use from several threads.

    Batches are read when they are asked for, `_READ_AHEAD` at a time: a log that nobody purges may hold a million of them,
    and retention needs the newest. `read` gives None for a commit that was deleted meanwhile.
    """

    def __init__(
        self,
        newest: Heads,
        older: Collection[int] = (),
        read: Callable[[int], Mapping[StorePath, VersionId] | None] | None = None,
    ) -> None:
        self.newest = newest
        self._older = frozenset(older)
        self._read = read
        self._found: dict[int, Mapping[StorePath, VersionId] | None] = {newest.batch: newest.heads}
        self._lock = threading.Lock()

    def at(self, batch: int) -> Mapping[StorePath, VersionId] | None:
        """What a batch made; None where the log has no commit of it. Raises as `heads`."""
        with self._lock:
            if batch not in self._found and batch in self._older:
                self._read_all([n for n in range(batch, batch - _READ_AHEAD, -1) if n in self._older])
            return self._found.get(batch)

    def read_down_to(self, batch: int) -> None:
        """Read the commits from a batch on, many at once. Raises as `heads`."""
        with self._lock:
            self._read_all(sorted(n for n in self._older if n >= batch))

    def of_store(self, store: StorePath) -> Mapping[int, VersionId]:
        """The store's committed versions by their number, as far back as the log has no gap; read as they are asked for.

        What stands alone below a gap proves nothing: a driver that slept may have written it again after it was purged.
        """
        return _Committed(self, store)

    def is_first(self, committed: Mapping[int, VersionId], version: int) -> bool:
        """Whether a store's version, of these that are committed, is its first: 1, or the one with which a repartitioning
        brought its partition, as far as the log shows it."""
        if version <= 1:
            return True
        return version in committed and version - 1 not in committed and self.at(version - 2) is not None

    def _read_all(self, batches: Sequence[int]) -> None:
        read = self._read
        if read is None:
            return

        def keep(batch: int) -> None:
            self._found[batch] = read(batch)

        at_once(keep, [batch for batch in batches if batch not in self._found])


class _Committed(Mapping[int, VersionId]):
    """See `CommitLog.of_store`."""

    def __init__(self, log: CommitLog, store: StorePath) -> None:
        self._log = log
        self._store = store
        self._found: dict[int, VersionId] = {}
        self._next = log.newest.batch
        """The batch to look at next; those after it are in `_found`."""
        self._is_complete = False

    def __getitem__(self, number: int) -> VersionId:
        self._reach(number)
        return self._found[number]

    def __iter__(self) -> Iterator[int]:
        self._reach(0)
        return iter(self._found)

    def __len__(self) -> int:
        self._reach(0)
        return len(self._found)

    def _reach(self, number: int) -> None:
        while not self._is_complete and self._next >= number - 1:
            version = (self._log.at(self._next) or {}).get(self._store)
            if version is None:
                self._is_complete = True
            else:
                self._found[version.version] = version
                self._next -= 1
