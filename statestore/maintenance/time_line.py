"""Finds files that are not on the time line of the commit log: files of rolled-back batches, and files for a switch back.

    versions up to `newest`     the logs contain the batch that makes the version
    later versions              rolled back: the newest commits and offsets were deleted to roll back the query

The audit reports these files, repair moves them into quarantine, and retention deletes them; all use this definition.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from statekeeper.statestore.catalog import StoreFiles
from statekeeper.statestore.format.names import VersionId


@dataclass(frozen=True)
class GivenUp:
    """The rolled-back versions of one store that have files, ascending."""

    changelogs: tuple[VersionId, ...]
    snapshots: tuple[VersionId, ...]

    @property
    def versions(self) -> tuple[VersionId, ...]:
        """All versions with a changelog or a snapshot, ascending."""
        return _ordered({*self.changelogs, *self.snapshots})


def newest_known(*, committed: Iterable[int], begun: Iterable[int]) -> int:
    """Return the newest version that a batch may have made, from the batches in the commit log and in the offset log. Spark
    and Statekeeper's own jobs write the offsets of a batch before its tasks start."""
    return max((*committed, *begun), default=-1) + 1


def given_up(files: StoreFiles, newest: int) -> GivenUp:
    """Return the versions after `newest`, the newest version that the logs contain."""
    return GivenUp(
        _ordered(version for version in files.changelogs if version.version > newest),
        _ordered(version for version in files.snapshots if version.version > newest),
    )


def leads_back(version: VersionId, *, switched: int | None, head: VersionId, base: VersionId | None) -> bool:
    """Return whether a file of the structure before the switchover is still needed to restore a version.

    The switchover's own snapshot, of version `switched`, is the only base until a later snapshot becomes the base of the
    floor. `head`: shows the current structure; `base`: the base of the oldest retained version.
    """
    if switched is None or version.version > switched or (version.id is None) == (head.id is None):
        return False
    return base is None or base.version <= switched


def _ordered(versions: Iterable[VersionId]) -> tuple[VersionId, ...]:
    """Sort by number; several versions may have one number, with and without an id."""
    return tuple(sorted(versions, key=lambda version: (version.version, version.id or "")))
