"""Which files are beside the time line of the commit log: of one that was given up, or of one that leads back.

    versions up to `newest`     the logs know of the batch that makes, or is making, them
    later versions              given up: somebody took a query back by deleting its newest commits and offsets

One definition, for the audit that tells, the repair that moves to quarantine and the retention that deletes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from statestore.catalog import StoreFiles
from statestore.format.names import VersionId


@dataclass(frozen=True)
class GivenUp:
    """The versions of one store's files that are of a dead time line, ascending."""

    changelogs: tuple[VersionId, ...]
    snapshots: tuple[VersionId, ...]

    @property
    def versions(self) -> tuple[VersionId, ...]:
        """All of them."""
        return _ordered({*self.changelogs, *self.snapshots})


def newest_known(*, committed: Iterable[int], begun: Iterable[int]) -> int:
    """The newest version that a batch may have made by now, by the batches in the commit log and in the offset log: Spark
    and our own jobs write a batch's offsets before its tasks begin."""
    return max((*committed, *begun), default=-1) + 1


def given_up(files: StoreFiles, newest: int) -> GivenUp:
    """The files of versions after the `newest` one that the logs know of."""
    return GivenUp(
        _ordered(version for version in files.changelogs if version.version > newest),
        _ordered(version for version in files.snapshots if version.version > newest),
    )


def leads_back(version: VersionId, *, switched: int | None, head: VersionId, base: VersionId | None) -> bool:
    """Whether a file is of the structure before the switchover that began with version `switched`, and is needed: without
    it that switchover's own snapshot would be the only way in. `base`: what the oldest retained version is made from."""
    if switched is None or version.version > switched or (version.id is None) == (head.id is None):
        return False
    return base is None or base.version <= switched


def _ordered(versions: Iterable[VersionId]) -> tuple[VersionId, ...]:
    """By number; of one number there may be several, with ids and without."""
    return tuple(sorted(versions, key=lambda version: (version.version, version.id or "")))
