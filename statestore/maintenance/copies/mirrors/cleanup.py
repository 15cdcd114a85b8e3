"""Plans the deletions of a mirror: the files that the source has deleted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format import file_source, names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.copies.clones.model import Part, part_of
from statekeeper.statestore.maintenance.copies.mirrors.model import CleanupFacts


class Reason(Enum):
    """The reason to delete or to keep a file that the source does not have."""

    DELETED = "the source has deleted them, and no batch of the mirror needs them"
    NEEDED = "batches of the mirror need them"
    NOT_COPIED = "no run of the mirror copied them"
    UNKNOWN = "the source contains links or invalid names, so its listing is not complete"


@dataclass(frozen=True)
class Obsolete:
    """A file to delete."""

    path: str
    size_bytes: int
    reason: Reason = Reason.DELETED


@dataclass(frozen=True)
class CleanupPlan:
    """The files to delete, in the order of deletion, and the number of files to keep by reason."""

    obsolete: tuple[Obsolete, ...]
    kept: dict[Reason, int]

    @property
    def size_bytes(self) -> int:
        """The bytes of the files to delete."""
        return sum(file.size_bytes for file in self.obsolete)


_ORDER = (names.COMMITS, names.OFFSETS)
"""A batch without its commit is not loaded. The files that it needs are deleted after it."""


def plan_cleanup(gathered: CleanupFacts) -> CleanupPlan:
    """Plan the deletions. A file is deleted only if the mirror copied it, the source has deleted it, and no batch of the
    mirror needs it."""
    unsafe = {store for store, chain in gathered.chains.items() if not _is_loadable(chain, gathered.first + 1)}
    kept = Counter[Reason]()
    obsolete: list[Obsolete] = []
    for path in gathered.existing.keys() - gathered.source:
        if path.startswith(f"{names.CONTROL}/") and path not in gathered.marks:
            continue
        if path not in gathered.marks:
            kept[Reason.NOT_COPIED] += 1
        elif gathered.omitted is not None:
            kept[Reason.UNKNOWN] += 1
        elif _needs(unsafe, path) or _is_retained(gathered, path) or path in gathered.tables:
            kept[Reason.NEEDED] += 1
        else:
            obsolete.append(Obsolete(path, gathered.existing[path]))
    return CleanupPlan(tuple(sorted(obsolete, key=lambda file: (_place(file.path), file.path))), dict(kept))


def _is_loadable(chain: Chain, first: int) -> bool:
    """Return whether each version of a store from `first` on can be loaded."""
    versions = [version for version in chain.versions if version.version >= first] or [chain.head]
    return chain.conflicts is None and all(version in chain.bases for version in versions)


def _needs(unsafe: Collection[StorePath], path: str) -> bool:
    """Return whether one of these stores may need a file. A batch log has changelogs of all stores."""
    if path.startswith(f"{names.BATCH_LOGS}/"):
        return bool(unsafe)
    place = names.parse_place(path)
    return place is not None and place[0] in unsafe


def _is_retained(gathered: CleanupFacts, path: str) -> bool:
    """Return whether a batch of the mirror needs a log entry, an entry of a source or metadata."""
    part = part_of(path)
    if part in (Part.OFFSETS, Part.COMMITS):
        batch = names.parse_batch(path)
        return batch is not None and batch >= gathered.first
    if part is Part.METADATA:
        return not _is_superseded(gathered, path)
    return part is Part.SOURCES and not _is_merged(gathered, path)


def _is_superseded(gathered: CleanupFacts, path: str) -> bool:
    """Return whether newer metadata of the operator applies to all batches of the mirror."""
    place = names.parse_operator_metadata(path)
    if place is None or place[1] < 0:
        return False
    others = (names.parse_operator_metadata(other) for other in gathered.existing)
    return any(other and other[0] == place[0] and place[1] < other[1] <= gathered.first for other in others)


def _is_merged(gathered: CleanupFacts, path: str) -> bool:
    """Return whether the log of a file source is complete without the entries that the source has deleted."""
    parsed, positions = file_source.parse(path), gathered.positions
    if parsed is None or parsed[0] not in positions.entries or parsed[0] in positions.uncertain:
        return False
    left = gathered.existing.keys() & gathered.source
    return file_source.is_complete(parsed[0], positions.entries[parsed[0]], left)


def _place(path: str) -> int:
    folder = path.split("/", 1)[0]
    return _ORDER.index(folder) if folder in _ORDER else len(_ORDER)
