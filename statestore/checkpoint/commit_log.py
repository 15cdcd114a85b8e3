"""The commit log of a checkpoint, read on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.storage import Entry, at_once

_READ_AHEAD = 32


@dataclass(frozen=True)
class Heads:
    """The newest committed version of each store, and its batch."""

    batch: int
    heads: Mapping[StorePath, VersionId]


def batches_of(entries: Iterable[Entry]) -> list[int]:
    """The batch numbers in a listing of a log. Files with other names are left out."""
    parsed = (names.parse_batch(entry.path) for entry in entries)
    return [batch for batch in parsed if batch is not None]


class CommitLog:
    """The versions that each batch committed. Thread-safe.

    Batches are read on demand, `_READ_AHEAD` at a time: a log that is never purged may have a million batches, and
    retention needs only the newest. `read` returns None for a commit that was deleted since the listing.
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
        """The versions that a batch committed; None if the log has no such commit. Raises as `catalog.heads`."""
        with self._lock:
            if batch not in self._found and batch in self._older:
                self._read_all([n for n in range(batch, batch - _READ_AHEAD, -1) if n in self._older])
            return self._found.get(batch)

    def read_down_to(self, batch: int) -> None:
        """Read this commit and all newer ones in parallel. Raises as `catalog.heads`."""
        with self._lock:
            self._read_all(sorted(n for n in self._older if n >= batch))

    def of_store(self, store: StorePath) -> Mapping[int, VersionId]:
        """The committed versions of a store by number, back to the first gap in the log. Read on demand.

        A commit below a gap proves nothing: a stalled driver may have written it again after it was purged.
        """
        return _Committed(self, store)

    def is_first(self, committed: Mapping[int, VersionId], version: int) -> bool:
        """Whether a version is the first of its store: 1, or the version at which a repartitioning added the partition, if
        the log still shows it."""
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
        """The batch to read next. Later ones are in `_found`."""
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
