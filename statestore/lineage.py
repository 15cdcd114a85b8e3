"""Which files give one version of a store: from (version, id) back to a base. Pure: facts in, a decision out.

A load is decided step by step, because the lineage of a version stands in the head of its own changelog: `next_step`
says either what must be looked up next, or the plan. Sources: SPARK-49374 (structure V2), SPARK-56216 (tracing back).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from statestore.format.names import EMPTY, VersionId

Lineage = tuple[VersionId, ...]
"""Versions in ascending order without a gap."""


class BaseKind(Enum):
    """What a load starts from."""

    NOTHING = "nothing"
    LOCAL = "local copy"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True)
class LocalCopy:
    """What the host's local RocksDB holds: a version, and the lineage a successor of it carries."""

    version: VersionId
    lineage: Lineage


@dataclass(frozen=True)
class LoadPlan:
    """Start from `base`, replay the changelogs of `replay` in order; the last of them, or the base, is the target.

    `lineage` is what a changelog written on top of the target has to carry.
    """

    base_kind: BaseKind
    base: VersionId
    replay: Lineage
    lineage: Lineage

    @property
    def since(self) -> str:
        """What the replay starts from, in words."""
        return "the beginning" if self.base_kind is BaseKind.NOTHING else f"version {self.base.version}"


@dataclass(frozen=True)
class NeedsHeader:
    """The header of this version's changelog must be read before more can be said."""

    version: VersionId


@dataclass(frozen=True)
class NotLoadable:
    """No base is in reach. `missing` is the version whose changelog or snapshot would be needed next."""

    missing: VersionId
    reason: str


def next_step(
    target: VersionId,
    *,
    snapshots: Collection[VersionId],
    local: LocalCopy | None,
    headers: Mapping[VersionId, Lineage],
) -> LoadPlan | NeedsHeader | NotLoadable:
    """What to do to load `target`, as far as the facts reach.

    snapshots  versions with a snapshot in storage that was not found damaged
    local      what the host holds already
    headers    lineages read from changelog headers so far, by the version of the changelog

    The local copy wins when the lineage names it, else the newest snapshot that it names. A snapshot newer than the
    local copy would save the replay of a few changelogs at the price of fetching the whole state, on every host, each
    time that maintenance has made one. What the lineage does not name does not exist for it, so that a late snapshot of
    a dead attempt is never a base. In structure V1 there is no lineage: here a version is its number, and how one
    with a digest is loaded `confirmed` says.
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
            return NotLoadable(gap, "the lineage jumps over a version")
        if local is not None and local.version in chain:
            tail = chain[chain.index(local.version) + 1 :]
            return LoadPlan(BaseKind.LOCAL, local.version, tail, shortened(chain, snapshots))
        for index in range(len(chain) - 1, -1, -1):
            if chain[index] in snapshots:
                return LoadPlan(BaseKind.SNAPSHOT, chain[index], chain[index + 1 :], shortened(chain, snapshots))
        oldest = chain[0]
        if oldest.version == 1:
            return LoadPlan(BaseKind.NOTHING, EMPTY, chain, chain)
        # The presumed snapshot is gone: its version's changelog still tells the lineage before it.
        if oldest not in headers:
            return NeedsHeader(oldest)
        if not headers[oldest]:
            return NotLoadable(oldest, "its changelog names nothing before it, and it has no usable snapshot")
        chain = (*headers[oldest], *chain)


MOST_REPLAYED = 1_000_000
"""Changelogs of one load. A damaged number of a version is not to become a list of billions."""


def _by_number(target: VersionId, snapshots: Collection[VersionId]) -> LoadPlan | NotLoadable:
    """In structure V1 a number is all that a version has: the newest snapshot up to it, and every changelog after that."""
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
    """The lineage from the newest of `snapshots` on it, as Spark cuts it; unchanged when it has none."""
    for index in range(len(lineage) - 1, -1, -1):
        if lineage[index] in snapshots:
            return lineage[index:]
    return lineage
