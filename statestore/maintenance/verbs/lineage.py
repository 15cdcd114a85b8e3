"""What a picture of the lineage of a store shows: its newest versions, with the fate of each file. Pure.

Dagster's metadata and the report draw it, each in its own form.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format.names import StorePath, VersionId

VERSIONS = 60
"""The most versions of a picture."""


class Fate(Enum):
    """What a restart does with the changelog of a version."""

    REPLAYED = "replayed"
    NOT_NEEDED = "not needed"
    NOT_LOADABLE = "not loadable"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A version. `changelog`: None if it has none; `snapshot`: whether its snapshot is whole, None if it has none."""

    version: VersionId
    changelog: Fate | None
    snapshot: bool | None


@dataclass(frozen=True, kw_only=True)
class PicturedLineage:
    """The newest versions of a store, the oldest first; the last one is the head.

    base   the version from which the head loads; None if it does not load
    tail   the number of changelogs that are then replayed
    dead   numbers of versions among them with a file of an attempt that was never committed
    """

    store: StorePath
    marks: tuple[Mark, ...]
    base: VersionId | None
    tail: int
    dead: tuple[int, ...]

    @property
    def head(self) -> VersionId:
        """The newest committed version."""
        return self.marks[-1].version


def pictured(chain: Chain, *, most: int = VERSIONS) -> PicturedLineage:
    """Choose what a picture of a lineage shows."""
    shown = chain.versions[-most:]
    base = chain.bases.get(chain.head)
    replayed = set(() if base is None else chain.tail(chain.head))

    def fate(version: VersionId) -> Fate | None:
        if version not in chain.files.changelogs and version not in chain.broken:
            return None
        if version not in chain.bases or (version in chain.broken and version not in chain.snapshots):
            return Fate.NOT_LOADABLE
        return Fate.REPLAYED if version in replayed else Fate.NOT_NEEDED

    committed, numbers = set(shown), {version.version for version in shown}
    dead = {v.version for v in (*chain.files.changelogs, *chain.files.snapshots) if v not in committed}
    return PicturedLineage(
        store=chain.store,
        marks=tuple(
            Mark(
                version=version,
                changelog=fate(version),
                snapshot=chain.snapshots[version].is_whole if version in chain.snapshots else None,
            )
            for version in shown
        ),
        base=base,
        tail=len(replayed),
        dead=tuple(sorted(dead & numbers)),
    )
