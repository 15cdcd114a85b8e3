"""Which files are of a time line that was given up: somebody took a query back by deleting its newest commits and offsets.

    versions up to `newest`     the logs know of the batch that makes, or is making, them
    later versions              nobody can have written them but a time line that is no more

One definition, for the audit that tells and the repair that puts aside. Pure.
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


def _ordered(versions: Iterable[VersionId]) -> tuple[VersionId, ...]:
    """By number; of one number there may be several, with ids and without."""
    return tuple(sorted(versions, key=lambda version: (version.version, version.id or "")))
