"""What the facts about one store mean. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from statestore.chain import Chain, SnapshotFacts
from statestore.format import names
from statestore.format.changelog import lineage_bytes
from statestore.format.java_io import UTF_LIMIT_BYTES
from statestore.format.names import VersionId
from statestore.lineage import shortened
from statestore.maintenance.audit.facts import Bad, Flaw, StoreAuditFacts
from statestore.maintenance.audit.findings import AuditPolicy, Finding, FindingKind, Restart, Severity, StoreAudit
from statestore.maintenance.time_line import leads_back
from statestore.storage import Entry
from statestore.store import LINEAGE_STOP_BYTES

_REPAIR_REPLAYS = 500
"""How many changelogs Spark replays at most to repair a load, unless it is told otherwise."""

_CHANGELOG_CODES = {
    Flaw.MISSING: FindingKind.CHANGELOG_MISSING,
    Flaw.CORRUPT: FindingKind.CHANGELOG_UNREADABLE,
    Flaw.MISMATCH: FindingKind.LINEAGE_AT_ODDS,
    Flaw.REPLACED: FindingKind.CHANGELOG_REPLACED,
}
_SNAPSHOT_CODES = {
    Flaw.CORRUPT: FindingKind.SNAPSHOT_UNREADABLE,
    Flaw.MISMATCH: FindingKind.SNAPSHOT_AT_ODDS,
}
_TABLE_CODES = {
    Flaw.MISSING: FindingKind.TABLE_MISSING,
    Flaw.MISMATCH: FindingKind.TABLE_WRONG_SIZE,
    Flaw.CORRUPT: FindingKind.TABLE_UNREADABLE,
    Flaw.REPLACED: FindingKind.TABLE_REPLACED,
}


@dataclass(frozen=True)
class View:
    """A store's facts, and which of its versions are retained. `begins`: its first version, not 1 for a partition that came
    with a repartitioning."""

    facts: StoreAuditFacts
    oldest: int
    ceiling_bytes: int
    is_own: bool = True
    switched: int | None = None
    begins: int = 1

    @property
    def chain(self) -> Chain:
        """The store's versions."""
        return self.facts.chain

    @cached_property
    def lost(self) -> tuple[VersionId, ...]:
        """The retained versions that do not load."""
        return tuple(v for v in self.chain.versions if v.version >= self.oldest and v not in self.chain.bases)

    @cached_property
    def intact_from(self) -> int:
        """The oldest version from which on every one up to the head loads. Versions before a switchover do not count: the
        way back leads to them."""
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
        """Whether the version that the commit log names loads. A store that a commit does not name had no part in it."""
        version = self.facts.committed.get(number)
        return number not in self.facts.gone and (version is None or version in self.chain.bases)

    def regained(self, snapshots: Collection[VersionId]) -> tuple[VersionId, ...]:
        """The lost versions that would load if these had a whole snapshot."""
        bases = self._with_whole(snapshots).bases
        return tuple(version for version in self.lost if version in bases)

    def trapped(self, snapshots: Collection[VersionId]) -> tuple[VersionId, ...]:
        """The retained versions whose load starts from one of these, bad as they are, and does not notice."""
        traps = self.facts.unnoticed.intersection(snapshots)
        bases = self._with_whole(self.facts.unnoticed).bases
        return tuple(v for v in self.chain.versions if v.version >= self.oldest and bases.get(v) in traps)

    def traps(self, number: int) -> tuple[str, ...]:
        """The zips without which a load of the committed version is right: each that it would start from, in turn."""
        left = set(self.facts.unnoticed)
        found: list[str] = []
        version = self.facts.committed.get(number)
        while version is not None and (base := self._with_whole(left).bases.get(version)) in left:
            found.append(self.facts.store.snapshot(base))
            left.remove(base)
        return tuple(found)

    def _with_whole(self, snapshots: Collection[VersionId]) -> Chain:
        whole = {**self.chain.snapshots, **dict.fromkeys(snapshots, SnapshotFacts(None, None))}
        return replace(self.chain, snapshots=whole)


def view(
    facts: StoreAuditFacts, policy: AuditPolicy, *, is_own: bool, switched: int | None = None, begins: int = 1
) -> View:
    """A store, seen from its oldest retained version; none is older than the one with which a switchover began: what was
    before it is gone back to by the way that leads back."""
    ceiling_bytes = LINEAGE_STOP_BYTES if is_own else UTF_LIMIT_BYTES
    return View(facts, _oldest(facts, policy, switched), ceiling_bytes, is_own, switched, begins)


def _oldest(facts: StoreAuditFacts, policy: AuditPolicy, switched: int | None) -> int:
    """Retention deletes from the old end on: what is gone there, up to a whole snapshot, is its work. Where it was
    interrupted, changelogs without a base are left: as long as they are old enough, the next gc deletes them."""
    chain, files = facts.chain, facts.chain.files
    first_committed = max(chain.versions[0].version, min(facts.committed), switched or 0)
    if all(version in chain.bases for version in chain.versions):
        return first_committed
    gone = itertools.takewhile(
        lambda v: v not in chain.bases and v not in files.changelogs and v not in files.snapshots, chain.versions
    )
    left = chain.versions[min(len(list(gone)), len(chain.versions) - 1)].version
    return max(first_committed, left, chain.head.version - policy.retained_versions + 1)


def store_audit(one: View, policy: AuditPolicy, *, quarantined: bool = False) -> StoreAudit:
    """The state of a store. `quarantined`: so are snapshots of it, whose tables stay with them."""
    chain = one.chain
    loads = chain.head in chain.bases
    following = _next_lineage_bytes(one.facts)
    entries = [*chain.files.changelogs.values(), *chain.files.snapshots.values(), *chain.files.tables.values()]
    orphans = _orphans(one, policy, quarantined=quarantined)
    return StoreAudit(
        one.facts.store,
        chain.head,
        one.oldest,
        one.intact_from,
        chain.newest_loadable,
        chain.bases[chain.head] if loads else None,
        len(chain.tail(chain.head)) if loads else 0,
        one.lost,
        following,
        one.ceiling_bytes,
        None if following is None else _commits_left(chain.head, following, one.ceiling_bytes),
        len(entries),
        sum(entry.size_bytes for entry in entries),
        len(orphans),
        sum(entry.size_bytes for entry in orphans),
    )


def _next_lineage_bytes(facts: StoreAuditFacts) -> int | None:
    """What the changelog that is written next has to carry."""
    head = facts.chain.head
    whole = [version for version, snapshot in facts.chain.snapshots.items() if snapshot.is_whole]
    if head.id is None or (facts.lineage is None and head not in whole):
        return None
    return lineage_bytes(shortened((*(facts.lineage or ()), head), whole))


def _commits_left(head: VersionId, used_bytes: int, ceiling_bytes: int) -> int:
    an_item = lineage_bytes((replace(head, version=head.version + 1),)) - 1
    return 0 if used_bytes > ceiling_bytes else (ceiling_bytes - used_bytes) // an_item + 1


def _floors_base(chain: Chain, policy: AuditPolicy) -> VersionId | None:
    """What the oldest version that retention keeps is restored from."""
    floor = max(chain.versions[0].version, chain.head.version - policy.retained_versions + 1)
    return chain.bases.get(chain.versions[floor - chain.versions[0].version])


def _way_back(one: View, base: VersionId | None) -> set[VersionId]:
    """Versions of the structure before a switchover that retention still keeps."""
    head, files = one.chain.head, one.chain.files
    there = (*files.changelogs, *files.snapshots)
    return {version for version in there if leads_back(version, switched=one.switched, head=head, base=base)}


def _orphans(one: View, policy: AuditPolicy, *, quarantined: bool) -> list[Entry]:
    """Files that no committed version can reach. What is older than the chain, or newer than its head, may be one's."""
    chain = one.chain
    committed, oldest = {*chain.versions, *_way_back(one, _floors_base(chain, policy))}, chain.versions[0].version
    dead = {
        version
        for version in (*chain.files.changelogs, *chain.files.snapshots)
        if oldest <= version.version <= chain.head.version and version not in committed
    }
    orphans = [
        entry
        for files in (chain.files.changelogs, chain.files.snapshots)
        for version, entry in files.items()
        if version in dead
    ]
    facts = [chain.snapshots.get(version) for version in chain.files.snapshots if version not in dead]
    metadata = [one.metadata for one in facts if one is not None and one.metadata is not None]
    if len(metadata) == len(facts) and not quarantined:
        named = {table.dfs_name for one in metadata for table in one.named_files}
        orphans += [entry for name, entry in chain.files.tables.items() if name not in named]
    return orphans


def of_store(one: View, policy: AuditPolicy, restart: Restart) -> Iterator[Finding]:
    """What is wrong with a store."""
    if not one.chain.files.entries:
        yield _gone(one, restart)
        return
    yield from _of_commits(one)
    yield from _of_odds(one)
    yield from _of_changelogs(one, restart)
    yield from _of_missing_snapshot(one, restart)
    yield from _of_snapshots(one, restart)
    yield from _of_ceiling(one, policy)


def _gone(one: View, restart: Restart) -> Finding:
    return Finding(
        Severity.ERROR,
        FindingKind.NO_BASE,
        one.facts.store,
        one.facts.store.folder,
        "is gone, or empty: not one file of this store is there",
        f"none of its versions can be loaded; {restart.explained}",
        "restore the whole folder from a backup",
    )


def _of_commits(one: View) -> Iterator[Finding]:
    told = {version.version: version for version in one.chain.versions}
    for number, version in one.facts.contradicted.items():
        yield Finding(
            Severity.ERROR,
            FindingKind.COMMIT_UNKNOWN_ID,
            one.facts.store,
            names.commits(number - 1),
            f"names {version.id} as version {number} of {one.facts.store}: there is no file of that id, and the lineage "
            f"of the head names {told[number].id}",
            f"batch {number - 1} cannot be gone back to; the versions after it do not depend on this commit",
            "restore the file from a backup",
        )


def _of_odds(one: View) -> Iterator[Finding]:
    """A lineage below the head that contradicts the commit log: it was asked what the log does not tell any more."""
    conflict = one.chain.conflicts
    known = any(bad.flaw is Flaw.MISMATCH for bad in one.facts.changelogs.values())
    if conflict is not None and not known and not one.facts.contradicted:
        yield Finding(
            Severity.ERROR,
            FindingKind.LINEAGE_AT_ODDS,
            one.facts.store,
            conflict.path,
            conflict.text,
            "which of the two was committed cannot be told: the versions after it may hold another state than was put out",
            "audit with --deep, and restore the commit log or the changelog from a backup",
        )


def _of_changelogs(one: View, restart: Restart) -> Iterator[Finding]:
    for run in _runs(one):
        retained = [version for version in run if version.version >= one.oldest]
        if retained:
            yield from _of_run(one, run, retained, restart)
    for version, bad in one.facts.changelogs.items():
        if bad.flaw is not Flaw.MISSING and version in one.chain.bases and version.version >= one.oldest:
            yield Finding(
                Severity.WARNING,
                _CHANGELOG_CODES[bad.flaw],
                one.facts.store,
                bad.path,
                bad.why,
                "every version loads without it: its version has a snapshot",
                "restore the file from a backup, so that the version does not hang on its snapshot alone",
            )


def _runs(one: View) -> list[list[VersionId]]:
    """The versions that do not load, in runs without a gap."""
    loads = one.chain.bases
    grouped = itertools.groupby(one.chain.versions, key=lambda version: version in loads)
    return [list(group) for is_loaded, group in grouped if not is_loaded]


def _of_run(one: View, run: Sequence[VersionId], retained: Sequence[VersionId], restart: Restart) -> Iterator[Finding]:
    """Why each of the versions of a run does not load. All of them lack a whole snapshot."""
    bad = one.facts.changelogs
    causes = [v for v in retained if v in bad and not (bad[v].flaw is Flaw.MISSING and v in one.facts.snapshots)]
    first = retained[0]
    if first not in bad and first not in one.regained([*one.facts.snapshots, *_presumed(one)]):
        below = [version for version in run if version.version < first.version and version in bad]
        if not below:
            yield _no_base(one, retained, restart)
        causes = [*below[-1:], *causes]
    for group in _groups(causes, bad):
        lost = [version for version in retained if version.version >= group[0].version]
        yield Finding(
            Severity.ERROR,
            _CHANGELOG_CODES[bad[group[0]].flaw],
            one.facts.store,
            bad[group[0]].path,
            _problem(one, group),
            _lost(one, lost, restart),
            _way_out(one, lost, restart),
        )


def _groups(causes: Sequence[VersionId], bad: Mapping[VersionId, Bad]) -> Iterator[list[VersionId]]:
    """Missing changelogs that follow on each other are one finding; of the others each is one."""
    group: list[VersionId] = []
    for version in causes:
        joins = group and bad[version].flaw is Flaw.MISSING and bad[group[-1]].flaw is Flaw.MISSING
        if group and not (joins and version.version == group[-1].version + 1):
            yield group
            group = []
        group.append(version)
    if group:
        yield group


def _problem(one: View, group: Sequence[VersionId]) -> str:
    bad = one.facts.changelogs[group[0]]
    if len(group) > 1:
        return f"is missing, and so are those up to {names.changelog(group[-1])}: {len(group):,} in a row"
    others = [v for v in one.chain.files.changelogs if v.version == group[0].version and v != group[0]]
    if bad.flaw is Flaw.MISSING and others:
        there = ", ".join(names.changelog(version) for version in others)
        return f"is missing; of the same version, under ids that the commit log does not name, there is {there}"
    return bad.why


def _no_base(one: View, retained: Sequence[VersionId], restart: Restart) -> Finding:
    if one.chain.needs_base and one.chain.versions[0].version == 1:
        return Finding(
            Severity.ERROR,
            FindingKind.FAMILIES_LOST,
            one.facts.store,
            one.facts.store.snapshot(one.chain.versions[0]),
            "is missing, and only a snapshot says what the store's column families are called: changelogs do not",
            _lost(one, retained, restart),
            _way_out(one, retained, restart),
        )
    return Finding(
        Severity.ERROR,
        FindingKind.NO_BASE,
        one.facts.store,
        one.facts.store.folder,
        f"before version {one.chain.versions[0].version} there is no snapshot, and {one.chain.end or 'no changelog'}",
        _lost(one, retained, restart),
        _way_out(one, retained, restart),
    )


def _presumed(one: View) -> tuple[VersionId, ...]:
    """The snapshot that the head's lineage starts from, when it is not there."""
    first = one.facts.lineage[0] if one.facts.lineage else None
    if first is None or first.version == 1 or first in one.chain.files.snapshots or first not in one.chain.versions:
        return ()
    return (first,)


def _of_missing_snapshot(one: View, restart: Restart) -> Iterator[Finding]:
    for version in _presumed(one):
        lost = one.regained([version])
        newer = any(v.version > version.version and s.is_whole for v, s in one.chain.snapshots.items())
        if newer and not lost:
            continue
        severity, meaning = Severity.WARNING, "every version loads without it, by a longer replay"
        action = "take a snapshot: statekeeper snapshot --all"
        if lost:
            severity, meaning, action = Severity.ERROR, _lost(one, lost, restart), _way_out(one, lost, restart)
        elif not one.is_own:
            short = _too_short_for_repair(one)
            severity = Severity.ERROR if short else Severity.WARNING
            meaning = (
                f"Statekeeper loads every version without it, by a longer replay; Spark 4.0 and 4.1 cannot load version "
                f"{one.chain.head.version:,}, {short or 'later ones repair it by a longer replay'}"
            )
            action = (
                "stop the query and take a snapshot at the head, where Spark starts: statekeeper snapshot --at-head"
            )
        yield Finding(
            severity,
            FindingKind.SNAPSHOT_MISSING,
            one.facts.store,
            one.facts.store.snapshot(version),
            "is missing, and the lineage of the head starts from it",
            meaning,
            action,
        )


def _too_short_for_repair(one: View) -> str | None:
    """Why Spark's repair of a load whose snapshot is missing (SPARK-56216) fails: it goes back over changelogs alone, by as
    many as a conf says, whatever snapshots it passes. None when it does not fail."""
    first = max(1, one.chain.head.version - _REPAIR_REPLAYS)
    there = {v.version for v in one.chain.versions if v not in one.facts.changelogs}
    gone = [number for number in range(first, one.chain.head.version) if number not in there]
    if not gone:
        return None
    return (
        f"and later ones neither: their repair goes back to the changelog of version {first:,}, and that of version "
        f"{gone[-1]:,} is not there (autoSnapshotRepair.maxChangeFileReplay is {_REPAIR_REPLAYS:,} unless configured)"
    )


def _of_snapshots(one: View, restart: Restart) -> Iterator[Finding]:
    by_file: dict[str, list[VersionId]] = {}
    for version, bad in one.facts.snapshots.items():
        by_file.setdefault(bad.path, []).append(version)
    for path, versions in by_file.items():
        lost, trapped = one.regained(versions), one.trapped(versions)
        if not lost and not trapped and max(versions).version < one.oldest:
            continue
        bad = one.facts.snapshots[versions[0]]
        is_table = path != one.facts.store.snapshot(versions[0])
        zips = ", ".join(names.snapshot(version) for version in sorted(versions))
        if lost:
            meaning, action = _lost(one, lost, restart), _way_out(one, lost, restart)
        else:
            meaning = "every version loads without it, by a longer replay"
            action = (
                f"statekeeper repair ROOT --deep --apply --confirm-stopped quarantines {zips}; then take a snapshot: "
                f"statekeeper snapshot --all"
            )
        if trapped:
            # A load opens it without complaint. A read fails then, or worse, and a new load starts from it again.
            without = "without it " if lost else ""
            meaning = f"loads of {ranges(trapped)} start from it and do not notice; {without}{meaning}"
        yield Finding(
            Severity.ERROR if lost or trapped else Severity.WARNING,
            (_TABLE_CODES if is_table else _SNAPSHOT_CODES)[bad.flaw],
            one.facts.store,
            path,
            f"{bad.why}; it is named by {zips}" if is_table else bad.why,
            meaning,
            action,
        )


def _lost(one: View, lost: Sequence[VersionId], restart: Restart) -> str:
    after = lost[-1].version + 1
    later = f", version {after:,} and later load" if after <= one.chain.head.version else ""
    return f"{ranges(lost)} cannot be loaded any more{later}; {restart.explained}"


def _way_out(one: View, lost: Sequence[VersionId], restart: Restart) -> str:
    if lost[-1] != one.chain.head:
        return "restore the file from a backup; without it just these versions are lost"
    if restart.batch is None:
        return "restore the file from a backup"
    return f"restore the file from a backup, or go back to batch {restart.batch}"


def ranges(versions: Sequence[VersionId]) -> str:
    """`version 4 (batch 3)`, `versions 4 to 8 (batches 3 to 7)`."""
    pieces = []
    for _, group in itertools.groupby(enumerate(versions), key=lambda pair: pair[1].version - pair[0]):
        numbers = [version.version for _, version in group]
        first, last = numbers[0], numbers[-1]
        one = f"version {first:,} (batch {first - 1:,})"
        many = f"versions {first:,} to {last:,} (batches {first - 1:,} to {last - 1:,})"
        pieces.append(one if first == last else many)
    return " and ".join(pieces)


def _of_ceiling(one: View, policy: AuditPolicy) -> Iterator[Finding]:
    used = _next_lineage_bytes(one.facts)
    if used is None or used <= policy.ceiling_share * one.ceiling_bytes:
        return
    left = _commits_left(one.chain.head, used, one.ceiling_bytes)
    stops = left < policy.least_commits_left
    yield Finding(
        Severity.ERROR if stops else Severity.WARNING,
        FindingKind.NEAR_CEILING,
        one.facts.store,
        one.facts.store.changelog(one.chain.head),
        f"the next lineage takes {used:,} of {one.ceiling_bytes:,} bytes",
        f"after {left:,} more commits the query stops",
        "stop the query and take a snapshot at the head: statekeeper snapshot --all"
        if stops
        else "take a snapshot: statekeeper snapshot --all",
    )
