"""Decides which files restore one version of a store: from (version, id) back to a base. Pure functions.

The lineage of a version is in the header of its changelog, so that a load is decided in steps: `next_step` returns the next
fact to look up, or the plan. Sources: SPARK-49374 (structure V2), SPARK-56216 (tracing back).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from statekeeper.statestore.base.errors import LineageCeiling
from statekeeper.statestore.format.changelog_header import MOST_LINEAGE_ITEM_BYTES, lineage_bytes
from statekeeper.statestore.format.java_io import UTF_LIMIT_BYTES
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId

Lineage = tuple[VersionId, ...]
"""Versions in ascending order without a gap."""


class BaseKind(Enum):
    """The kind of base of a load."""

    NOTHING = "nothing"
    LOCAL = "local copy"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True)
class LocalCopy:
    """The version in the local RocksDB of a host, and the lineage of the next version."""

    version: VersionId
    lineage: Lineage


@dataclass(frozen=True)
class LoadPlan:
    """Start from `base`, and replay the changelogs of `replay` in order; the last of them, or the base, is the target.

    `lineage`: the lineage in the changelog of the next version.
    """

    base_kind: BaseKind
    base: VersionId
    replay: Lineage
    lineage: Lineage

    @property
    def since(self) -> str:
        """The base in words."""
        return "the beginning" if self.base_kind is BaseKind.NOTHING else self.base.in_words


@dataclass(frozen=True)
class NeedsHeader:
    """The header of this version's changelog is the next fact to look up."""

    version: VersionId


@dataclass(frozen=True)
class NotLoadable:
    """There is no base. `missing`: the version whose changelog or snapshot would be needed next."""

    missing: VersionId
    reason: str


def next_step(
    target: VersionId,
    *,
    snapshots: Collection[VersionId],
    local: LocalCopy | None,
    headers: Mapping[VersionId, Lineage],
) -> LoadPlan | NeedsHeader | NotLoadable:
    """Decide the next step of a load of `target`.

    snapshots  versions with a snapshot in storage that is not known to be damaged
    local      the version of the local copy
    headers    the lineages in the changelog headers read so far, by the version of the changelog

    If the lineage names the local copy, the copy is the base; otherwise the newest snapshot that the lineage names. A
    snapshot newer than the local copy is not used: it saves the replay of a few changelogs, but each host would fetch the
    whole state after each new snapshot. Versions outside of the lineage are ignored, so that a late snapshot of a failed
    attempt is never a base. In structure V1 there is no lineage, and the number decides; `store.loading.planning` loads
    versions with a digest.
    """
    if target == EMPTY:
        return LoadPlan(BaseKind.NOTHING, EMPTY, (), ())
    if target.id is None:
        return _by_number(target, snapshots)
    if local is not None and local.version == target:
        return LoadPlan(BaseKind.LOCAL, target, (), shortened(local.lineage, snapshots))
    if local is not None and local.version.version >= target.version:
        local = None  # no ancestor of the target
    if target in snapshots and local is None:
        return LoadPlan(BaseKind.SNAPSHOT, target, (), (target,))
    if target not in headers:
        return NeedsHeader(target)
    chain: Lineage = (*headers[target], target)
    while True:
        gap = _gap(chain)
        if gap is not None:
            return NotLoadable(gap, "the lineage jumps over a batch")
        if local is not None and (tail := _after(local.version, chain)) is not None:
            return LoadPlan(BaseKind.LOCAL, local.version, tail, shortened(chain, snapshots))
        for index in range(len(chain) - 1, -1, -1):
            if chain[index] in snapshots:
                return LoadPlan(BaseKind.SNAPSHOT, chain[index], chain[index + 1 :], shortened(chain, snapshots))
        oldest = chain[0]
        if oldest.version == 1:
            return LoadPlan(BaseKind.NOTHING, EMPTY, chain, chain)
        # The presumed snapshot is missing. The changelog of its version has the lineage before it.
        if oldest not in headers:
            return NeedsHeader(oldest)
        if not headers[oldest]:
            return NotLoadable(oldest, "its changelog has an empty lineage, and it has no usable snapshot")
        chain = (*headers[oldest], *chain)


def _after(version: VersionId, chain: Lineage) -> Lineage | None:
    """The versions of a lineage after this one; None if it does not lead to them. An empty copy leads to version 1."""
    if version == EMPTY:
        return chain if chain[0].version == 1 else None
    return chain[chain.index(version) + 1 :] if version in chain else None


MOST_REPLAYED = 1_000_000
"""The most changelogs of one load. A corrupt version number must not become a list of billions."""


def _by_number(target: VersionId, snapshots: Collection[VersionId]) -> LoadPlan | NotLoadable:
    """Plan by version numbers, in structure V1: the newest snapshot up to the target and all changelogs after it."""
    older = (s for s in snapshots if s.id is None and s.version <= target.version)
    newest = max(older, key=lambda version: version.version, default=EMPTY)
    base = target if newest == target else newest
    if target.version - base.version > MOST_REPLAYED:
        return NotLoadable(
            target, f"{target.version - base.version:,} changelogs lie between it and the newest snapshot"
        )
    replay = tuple(VersionId(number) for number in range(base.version + 1, target.version))
    if base != target:
        replay += (target,)
    return LoadPlan(BaseKind.NOTHING if base == EMPTY else BaseKind.SNAPSHOT, base, replay, ())


def _gap(chain: Lineage) -> VersionId | None:
    for before, after in itertools.pairwise(chain):
        if after.version != before.version + 1:
            return after
    return None


def shortened(lineage: Lineage, snapshots: Collection[VersionId]) -> Lineage:
    """Cut the lineage to start at its newest snapshot, as Spark does. Without a snapshot, return it unchanged."""
    for index in range(len(lineage) - 1, -1, -1):
        if lineage[index] in snapshots:
            return lineage[index:]
    return lineage


LINEAGE_STOP_BYTES = 62_000
"""Spark reads at most 65,535 bytes of lineage. The store stops about 45 versions earlier, in time for a snapshot."""

LINEAGE_WARN_BYTES = 50_000
"""From this size on, a job should warn that snapshots are missing."""

_HINT = "run: statekeeper snapshot ROOT --all. Then start the query again"


def tail_changelogs(base: VersionId, lineage: Lineage, snapshots: Collection[VersionId]) -> int:
    """Return the number of changelogs since the newest snapshot, including the next one. `lineage`: that of the next
    version."""
    if base.digest is not None:
        return base.version + 1 - max((s.version for s in snapshots if s.version <= base.version), default=0)
    # A lineage starts at a snapshot or at version 1.
    begins_with_snapshot = bool(lineage) and (lineage[0].version > 1 or lineage[0] in snapshots)
    return len(lineage) + 1 - begins_with_snapshot


def check_ceiling(
    store: StorePath, base: VersionId, lineage: Lineage, most_bytes: int, snapshots: Collection[VersionId] = ()
) -> None:
    """Raise `LineageCeiling` if the lineage of the version after `base` takes more than `most_bytes`; in structure V1, if
    no load could replay the changelogs since the newest of the known `snapshots`."""
    if (tail := tail_changelogs(base, lineage, snapshots)) > MOST_REPLAYED:
        raise LineageCeiling(
            f"{tail:,} changelogs since the newest snapshot are more than the {MOST_REPLAYED:,} that a load replays; no "
            f"batch after batch {base.version - 1} can be committed",
            path=store.folder,
            hint=_HINT,
        )
    if len(lineage) * MOST_LINEAGE_ITEM_BYTES <= most_bytes:
        return
    needed = lineage_bytes(lineage)
    if needed > most_bytes:
        raise LineageCeiling(
            f"the lineage of {len(lineage)} versions since the newest snapshot takes {needed:,} bytes, and the limit is "
            f"{UTF_LIMIT_BYTES:,}; no batch after batch {base.version - 1} can be committed",
            path=store.folder,
            hint=_HINT,
        )
