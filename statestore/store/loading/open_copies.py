"""Local copies that a process keeps open between batches.

The task that has committed a version usually loads it for the next batch. Then the database is open already, and all later
changes are in memory: the load reads no file except the pointer of the local copy.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import LocalStateError
from statekeeper.statestore.checkpoint.lineage import LocalCopy
from statekeeper.statestore.store.engine.rocks import BlockCache, Database, EngineLimits

MOST_BYTES = 64 * 1024 * 1024
"""The most memory for the indexes and filters of open tables, and for changes that are not in a database."""

UNUSED_SECONDS = 60.0
"""After this time without use, a copy is closed. Another worker may have taken over the partition."""

_SHARE_OF_FILES = 0.25
"""The share of the file descriptors of a process that open copies may take."""

_FILES_BESIDE_TABLES = 2
_KEY_OVERHEAD_BYTES = 200
"""Memory of a change in a dictionary, besides its bytes."""


@dataclass(frozen=True, kw_only=True)
class OpenCopy:
    """A version of a store in a process: an open database, and the later changes.

    database          as it was when it was opened; a write by another process does not change it
    database_version  the version number of the database
    holds             the version of the database with the changes, and the lineage of the next version
    ahead             the changes of versions after the database; None for a deleted key
    ahead_bytes       the bytes of their keys and values
    """

    database: Database
    database_version: int
    holds: LocalCopy
    ahead: dict[bytes, bytes | None] = field(default_factory=dict)
    ahead_bytes: int = 0

    def close(self) -> None:
        """Close the database. A damaged one is closed without an error."""
        with contextlib.suppress(LocalStateError):
            self.database.close()


@dataclass(frozen=True, kw_only=True)
class _Kept:
    copy: OpenCopy
    files: int
    size_bytes: int
    since_seconds: float


class OpenCopies:
    """The open copies of one process, by folder. Thread-safe. A copy is either here or lent to one store.

    `block_cache`: the cache that the copies share, of `block_cache_bytes`.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        block_cache_bytes: int = EngineLimits.block_cache_bytes,
        most_bytes: int = MOST_BYTES,
        most_files: int | None = None,
    ) -> None:
        self.block_cache = BlockCache(block_cache_bytes)
        self._clock = clock
        self._most_bytes = most_bytes
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_files = int(soft * _SHARE_OF_FILES) if most_files is None else most_files
        self._kept: OrderedDict[Path, _Kept] = OrderedDict()
        self._files = 0
        self._bytes = 0
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def lend(self, folder: Path) -> OpenCopy | None:
        """Take out the copy of a folder; None if it is not here. The caller closes it or keeps it again."""
        with self._guard:
            return self._taken(folder)

    def keep(self, folder: Path, copy: OpenCopy) -> None:
        """Take over a copy. Close it if there is no space for it, and close the copies that were not used for a minute.

        A task uses its copies in turn. If they do not all fit, a rule that closes the least recently used copy would close
        each one before its next use.
        """
        tables, readers_bytes = copy.database.open_tables()
        now = self._clock.monotonic_seconds()
        kept = _Kept(
            copy=copy,
            files=tables + _FILES_BESIDE_TABLES,
            size_bytes=readers_bytes + copy.ahead_bytes + len(copy.ahead) * _KEY_OVERHEAD_BYTES,
            since_seconds=now,
        )
        closed: list[OpenCopy | None] = []
        with self._guard:
            closed.append(self._taken(folder))
            while self._kept:
                oldest, first = next(iter(self._kept.items()))
                if now - first.since_seconds < UNUSED_SECONDS:
                    break
                closed.append(self._taken(oldest))
            if self._files + kept.files > self._most_files or self._bytes + kept.size_bytes > self._most_bytes:
                closed.append(copy)
            else:
                self._kept[folder] = kept
                self._files += kept.files
                self._bytes += kept.size_bytes
        for other in closed:
            if other is not None:
                other.close()

    def close(self) -> None:
        """Close all copies that are here."""
        for folder in list(self._kept):
            copy = self.lend(folder)
            if copy is not None:
                copy.close()

    def _taken(self, folder: Path) -> OpenCopy | None:
        kept = self._kept.pop(folder, None)
        if kept is None:
            return None
        self._files -= kept.files
        self._bytes -= kept.size_bytes
        return kept.copy
