"""The view of one store that the audit judges: its facts, its retained versions, and the versions that load. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from statekeeper.statestore.checkpoint.lineage import LINEAGE_STOP_BYTES
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.chain import Chain, StoredSnapshot
from statekeeper.statestore.format.java_io import UTF_LIMIT_BYTES
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.maintenance.upkeep.audit.facts import StoreAuditFacts
from statekeeper.statestore.maintenance.upkeep.audit.findings import AuditPolicy


@dataclass(frozen=True, kw_only=True)
class View:
    """The facts of a store and its retained versions. `begins`: its first version, not 1 for a partition that a
    repartitioning added. `is_removed`: the newest batch has no such store, because a rescale removed its partition."""

    facts: StoreAuditFacts
    oldest: int
    ceiling_bytes: int
    origin: Origin = Origin.OWN
    switched: int | None = None
    begins: int = 1
    is_removed: bool = False

    @property
    def chain(self) -> Chain:
        """The versions of the store."""
        return self.facts.chain

    @cached_property
    def lost(self) -> tuple[VersionId, ...]:
        """The retained versions that cannot be loaded."""
        return tuple(v for v in self.chain.versions if v.version >= self.oldest and v not in self.chain.bases)

    @cached_property
    def intact_from(self) -> int:
        """The oldest version from which every version up to the head loads. Versions before a switchover are not counted:
        reversing the switchover restores them."""
        intact = self.chain.head.version + 1
        for version in reversed(self.chain.versions):
            if version not in self.chain.bases and version.version >= (self.switched or 0):
                break
            intact = version.version
        else:
            if self.facts.gone and self.facts.gone[-1] < (self.switched or 0):
                intact = self.facts.gone[0]
        return 1 if intact == self.begins else intact

    def loads_committed(self, number: int) -> bool:
        """Return whether the committed version loads. A commit that does not name the store has no version of it."""
        version = self.facts.committed.get(number)
        return number not in self.facts.gone and (version is None or version in self.chain.bases)

    def regained(self, snapshots: Collection[VersionId]) -> tuple[VersionId, ...]:
        """Return the lost versions that would load if these snapshots were intact."""
        bases = self._with_whole(snapshots).bases
        return tuple(version for version in self.lost if version in bases)

    def trapped(self, snapshots: Collection[VersionId]) -> tuple[VersionId, ...]:
        """Return the retained versions whose load starts from one of these corrupt snapshots and does not detect it."""
        traps = self.facts.unnoticed.intersection(snapshots)
        bases = self._with_whole(self.facts.unnoticed).bases
        return tuple(v for v in self.chain.versions if v.version >= self.oldest and bases.get(v) in traps)

    def traps(self, number: int) -> tuple[str, ...]:
        """Return the corrupt zips that a load of the committed version would start from, one after the other."""
        left = set(self.facts.unnoticed)
        found: list[str] = []
        version = self.facts.committed.get(number)
        while version is not None and (base := self._with_whole(left).bases.get(version)) in left:
            found.append(self.facts.store.snapshot(base))
            left.remove(base)
        return tuple(found)

    def _with_whole(self, snapshots: Collection[VersionId]) -> Chain:
        whole = {**self.chain.snapshots, **dict.fromkeys(snapshots, StoredSnapshot(metadata=None, damage=None))}
        return replace(self.chain, snapshots=whole)


def view(
    facts: StoreAuditFacts,
    policy: AuditPolicy,
    *,
    origin: Origin,
    switched: int | None = None,
    begins: int = 1,
    is_removed: bool = False,
) -> View:
    """Build the view of a store. Its oldest retained version is not older than the newest switchover."""
    ceiling_bytes = LINEAGE_STOP_BYTES if origin is Origin.OWN else UTF_LIMIT_BYTES
    return View(
        facts=facts,
        oldest=_oldest(facts, policy, switched),
        ceiling_bytes=ceiling_bytes,
        origin=origin,
        switched=switched,
        begins=begins,
        is_removed=is_removed,
    )


def _oldest(facts: StoreAuditFacts, policy: AuditPolicy, switched: int | None) -> int:
    """Return the oldest retained version. Retention deletes the oldest files first, up to an intact snapshot. An
    interrupted retention leaves changelogs without a base, which the next gc deletes if they are old enough."""
    chain, files = facts.chain, facts.chain.files
    first_committed = max(chain.versions[0].version, min(facts.committed), switched or 0)
    if all(version in chain.bases for version in chain.versions):
        return first_committed
    gone = itertools.takewhile(
        lambda v: v not in chain.bases and v not in files.changelogs and v not in files.snapshots, chain.versions
    )
    left = chain.versions[min(len(list(gone)), len(chain.versions) - 1)].version
    return max(first_committed, left, chain.head.version - policy.retained_versions + 1)


def ranges(versions: Sequence[VersionId]) -> str:
    """Format versions by their batches: `batch 3`, `batches 3 to 7`."""
    pieces = []
    for _, group in itertools.groupby(enumerate(versions), key=lambda pair: pair[1].version - pair[0]):
        numbers = [version.version for _, version in group]
        first, last = numbers[0], numbers[-1]
        one, many = f"batch {first - 1:,}", f"batches {first - 1:,} to {last - 1:,}"
        pieces.append(one if first == last else many)
    return " and ".join(pieces)
