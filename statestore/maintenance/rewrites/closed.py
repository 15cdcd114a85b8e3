"""A local database that another process opens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.engine.rocks import Database, EngineLimits


@dataclass(frozen=True, kw_only=True)
class ClosedDatabase:
    """A database that no process has open. `merge_delimiter`: if its tables may have merges that are not applied yet; see
    `Database.open_with_merges`."""

    path: Path
    limits: EngineLimits
    merge_delimiter: bytes | None = None

    def open(self) -> Database:
        """Open it for writing. Raises `LocalStateError`."""
        if self.merge_delimiter is None:
            return Database.open_for_writing(self.path, self.limits)
        return Database.open_with_merges(self.path, self.limits, self.merge_delimiter)

    def digest(self) -> str:
        """Open it, and compute a digest of its rows. Raises `LocalStateError`."""
        with self.open() as database:
            return database.digest()
