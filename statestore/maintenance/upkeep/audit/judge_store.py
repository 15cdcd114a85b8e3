"""Findings about one store. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.leftovers import leads_back
from statekeeper.statestore.checkpoint.lineage import shortened
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.chain import Chain
from statekeeper.statestore.format import names
from statekeeper.statestore.format.changelog_header import lineage_bytes
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.upkeep.audit.facts import StoreAuditFacts
from statekeeper.statestore.maintenance.upkeep.audit.findings import (
    RESTORE,
    SNAPSHOT_ALL,
    AuditPolicy,
    Finding,
    FindingKind,
    Restart,
    Severity,
    StoreAudit,
    move_away,
    roll_back,
)
from statekeeper.statestore.maintenance.upkeep.audit.view import View, ranges
from statekeeper.statestore.storage import Entry

_REPAIR_REPLAYS = 500
"""Default of Spark's autoSnapshotRepair.maxChangeFileReplay, in changelogs."""

_CHANGELOG_CODES = {
    Flaw.MISSING: FindingKind.CHANGELOG_MISSING,
    Flaw.CORRUPT: FindingKind.CHANGELOG_UNREADABLE,
    Flaw.TOO_LARGE: FindingKind.CHANGELOG_TOO_LARGE,
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


def store_audit(one: View, policy: AuditPolicy, *, quarantined: bool = False) -> StoreAudit:
    """Summarize a store. `quarantined`: whether it has quarantined snapshots, which keep their SST files."""
    chain = one.chain
    loads = chain.head in chain.bases
    following = _next_lineage_bytes(one.facts)
    entries = [*chain.files.changelogs.values(), *chain.files.snapshots.values(), *chain.files.tables.values()]
    orphans = _orphans(one, policy, quarantined=quarantined)
    return StoreAudit(
        store=one.facts.store,
        head=chain.head,
        oldest=one.oldest,
        intact_from=one.intact_from,
        loadable=chain.newest_loadable,
        base=chain.bases[chain.head] if loads else None,
        tail=len(chain.tail(chain.head)) if loads else 0,
        lost=one.lost,
        lineage_bytes=following,
        ceiling_bytes=one.ceiling_bytes,
        commits_left=None if following is None else _commits_left(chain.head, following, one.ceiling_bytes),
        files=len(entries),
        bytes=sum(entry.size_bytes for entry in entries),
        orphan_files=len(orphans),
        orphan_bytes=sum(entry.size_bytes for entry in orphans),
    )


def _next_lineage_bytes(facts: StoreAuditFacts) -> int | None:
    """Return the size of the lineage in the next changelog; None without a lineage."""
    head = facts.chain.head
    whole = [version for version, snapshot in facts.chain.snapshots.items() if snapshot.is_whole]
    if head.id is None or (facts.lineage is None and head not in whole):
        return None
    return lineage_bytes(shortened((*(facts.lineage or ()), head), whole))


def _commits_left(head: VersionId, used_bytes: int, ceiling_bytes: int) -> int:
    an_item = lineage_bytes((replace(head, version=head.version + 1),)) - 1
    return 0 if used_bytes > ceiling_bytes else (ceiling_bytes - used_bytes) // an_item + 1


def _floors_base(chain: Chain, policy: AuditPolicy) -> VersionId | None:
    """Return the base of the oldest version that retention keeps."""
    floor = max(chain.versions[0].version, chain.head.version - policy.retained_versions + 1)
    return chain.bases.get(chain.versions[floor - chain.versions[0].version])


def _way_back(one: View, base: VersionId | None) -> set[VersionId]:
    """Return the versions before a switchover that retention still keeps."""
    head, files = one.chain.head, one.chain.files
    there = (*files.changelogs, *files.snapshots)
    return {version for version in there if leads_back(version, switched=one.switched, head=head, base=base)}


def _orphans(one: View, policy: AuditPolicy, *, quarantined: bool) -> list[Entry]:
    """Return the files that no committed version can reach. Files older than the chain or newer than its head may belong
    to a committed version."""
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
    """Yield the findings about a store."""
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
        severity=Severity.ERROR,
        kind=FindingKind.NO_BASE,
        store=one.facts.store,
        file=one.facts.store.folder,
        problem="is missing or empty",
        meaning=f"no batch of store {one.facts.store} can be restored; {restart.explained}",
        action="restore the folder from a backup",
    )


def _of_commits(one: View) -> Iterator[Finding]:
    by_number = {version.version: version for version in one.chain.versions}
    for number, version in one.facts.contradicted.items():
        yield Finding(
            severity=Severity.ERROR,
            kind=FindingKind.COMMIT_UNKNOWN_ID,
            store=one.facts.store,
            file=names.commits(number - 1),
            problem=f"says that its version of store {one.facts.store} has the id {version.id}, but no file has "
            "this id; "
            f"according to the lineage of the head, the id is {by_number[number].id}",
            meaning=f"batch {number - 1} can no longer be restored; later batches do not depend on this commit",
            action=RESTORE,
        )


def _of_odds(one: View) -> Iterator[Finding]:
    """Yield a finding if a lineage below the head contradicts the commit log, part of which is purged."""
    conflict = one.chain.conflicts
    known = any(bad.flaw is Flaw.MISMATCH for bad in one.facts.changelogs.values())
    if conflict is not None and not known and not one.facts.contradicted:
        yield Finding(
            severity=Severity.ERROR,
            kind=FindingKind.LINEAGE_AT_ODDS,
            store=one.facts.store,
            file=conflict.path,
            problem=conflict.text,
            meaning="the committed state is ambiguous; the state of later batches may not match the output of the query",
            action=f"compare this file and {names.COMMITS}/ with a backup, and restore the one that differs",
        )


def _of_changelogs(one: View, restart: Restart) -> Iterator[Finding]:
    for run in _runs(one):
        retained = [version for version in run if version.version >= one.oldest]
        if retained:
            yield from _of_run(one, run, retained, restart)
    for version, bad in one.facts.changelogs.items():
        if bad.flaw is Flaw.MISSING or bad.path in one.chain.files.damaged:
            continue  # the root has a finding for a damaged batch log
        if version in one.chain.bases and version.version >= one.oldest:
            yield Finding(
                severity=Severity.WARNING,
                kind=_CHANGELOG_CODES[bad.flaw],
                store=one.facts.store,
                file=bad.path,
                problem=bad.text,
                meaning="every batch loads, because this batch has a snapshot",
                action=f"{bad.fix or RESTORE}; until then, only the snapshot can restore this batch",
            )


def _runs(one: View) -> list[list[VersionId]]:
    """Group the versions that cannot be loaded into runs without a gap."""
    loads = one.chain.bases
    grouped = itertools.groupby(one.chain.versions, key=lambda version: version in loads)
    return [list(group) for is_loaded, group in grouped if not is_loaded]


def _of_run(one: View, run: Sequence[VersionId], retained: Sequence[VersionId], restart: Restart) -> Iterator[Finding]:
    """Yield the causes for a run of versions that cannot be loaded. None of them has an intact snapshot."""
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
            severity=Severity.ERROR,
            kind=_CHANGELOG_CODES[bad[group[0]].flaw],
            store=one.facts.store,
            file=bad[group[0]].path,
            problem=_problem(one, group),
            meaning=_lost(one, lost, restart),
            action=_way_out(one, lost, restart, bad[group[0]].fix or RESTORE),
        )


def _groups(causes: Sequence[VersionId], bad: Mapping[VersionId, FileProblem]) -> Iterator[list[VersionId]]:
    """Group causes: consecutive missing changelogs are one finding, each other cause is one finding."""
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
        last = names.changelog(group[-1], one.facts.store.provider)
        return f"and all changelogs up to {last} are missing ({len(group):,} in a row)"
    others = [v for v in one.chain.files.changelogs if v.version == group[0].version and v != group[0]]
    if bad.flaw is Flaw.TOO_LARGE and one.origin is Origin.NATIVE:
        return f"{bad.text}. Spark has no such limit: it can load the batch, but maintenance cannot"
    if bad.flaw is Flaw.MISSING and others:
        there = ", ".join(names.changelog(version, one.facts.store.provider) for version in others)
        return f"is missing; uncommitted changelogs of the same batch exist: {there}"
    return bad.text


def _no_base(one: View, retained: Sequence[VersionId], restart: Restart) -> Finding:
    if one.chain.needs_base and one.chain.versions[0].version == 1:
        return Finding(
            severity=Severity.ERROR,
            kind=FindingKind.FAMILIES_LOST,
            store=one.facts.store,
            file=one.facts.store.snapshot(one.chain.versions[0]),
            problem="is missing, and changelogs do not contain the names of the store's column families",
            meaning=_lost(one, retained, restart),
            action=_way_out(one, retained, restart),
        )
    return Finding(
        severity=Severity.ERROR,
        kind=FindingKind.NO_BASE,
        store=one.facts.store,
        file=one.facts.store.folder,
        problem=f"has no snapshot of a batch before {one.chain.versions[0].version - 1}; "
        f"{one.chain.end or 'older changelogs are missing'}",
        meaning=_lost(one, retained, restart),
        action=_way_out(one, retained, restart),
    )


def _presumed(one: View) -> tuple[VersionId, ...]:
    """Return the snapshot that the head's lineage starts from, if it is missing."""
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
        severity, meaning = Severity.WARNING, "every batch can still be restored, but with a longer replay"
        action = f"run: {SNAPSHOT_ALL}"
        if lost:
            severity, meaning, action = Severity.ERROR, _lost(one, lost, restart), _way_out(one, lost, restart)
        elif one.origin is Origin.NATIVE:
            short = _too_short_for_repair(one)
            severity = Severity.ERROR if short else Severity.WARNING
            head = one.chain.head.in_words
            meaning = (
                f"no Spark release can load {head}, because {short}. Statekeeper can load every batch, by a longer replay"
                if short
                else f"Spark 4.0 and 4.1 cannot load {head}. Later releases and Statekeeper can load it, by a longer replay"
            )
            action = "stop the query, then run: statekeeper snapshot ROOT --at-head --mode snapshots"
        yield Finding(
            severity=severity,
            kind=FindingKind.SNAPSHOT_MISSING,
            store=one.facts.store,
            file=one.facts.store.snapshot(version),
            problem="is missing, but the lineage of the head starts from it",
            meaning=meaning,
            action=action,
        )


def _too_short_for_repair(one: View) -> str | None:
    """Return the reason why Spark's snapshot repair (SPARK-56216) fails, None if it succeeds. The repair replays a
    configured number of changelogs and ignores snapshots between them."""
    first = max(1, one.chain.head.version - _REPAIR_REPLAYS)
    there = {v.version for v in one.chain.versions if v not in one.facts.changelogs}
    gone = [number for number in range(first, one.chain.head.version) if number not in there]
    if not gone:
        return None
    return (
        f"the changelog of batch {gone[-1] - 1:,} is missing: Spark's snapshot repair needs all changelogs from batch "
        f"{first - 1:,} on (autoSnapshotRepair.maxChangeFileReplay, default {_REPAIR_REPLAYS:,})"
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
        zips = ", ".join(names.snapshot(version, one.facts.store.provider) for version in sorted(versions))
        if lost:
            meaning, action = _lost(one, lost, restart), _way_out(one, lost, restart)
        else:
            meaning, action = _longer(one, zips)
        if trapped:
            # A load opens it without an error. Later reads fail or return wrong values, and each new load uses it again.
            meaning = (
                f"loads of {ranges(trapped)} use this corrupt file and report no error; without this file, {meaning}"
            )
        yield Finding(
            severity=Severity.ERROR if lost or trapped else Severity.WARNING,
            kind=(_TABLE_CODES if is_table else _SNAPSHOT_CODES)[bad.flaw],
            store=one.facts.store,
            file=path,
            problem=f"{bad.text}; {zips} requires it" if is_table else bad.text,
            meaning=meaning,
            action=action,
        )


def _longer(one: View, zips: str) -> tuple[str, str]:
    """Return the consequence and the next step of snapshots that no version needs."""
    meaning = "every batch can still be restored, but with a longer replay"
    if one.facts.store.provider is Provider.HDFS_BACKED:
        meaning += "; Spark 4.1 and earlier releases cannot restore the batch of this file and later batches"
        return meaning, f"stop the query and {move_away(one.facts.store.provider, zips)}; Spark takes another snapshot"
    return meaning, (
        f"stop the query. To quarantine {zips}, run: statekeeper repair ROOT --deep --apply --confirm-stopped. Then run: "
        f"{SNAPSHOT_ALL}"
    )


def _lost(one: View, lost: Sequence[VersionId], restart: Restart) -> str:
    after = lost[-1].version + 1
    later = f", batch {after - 1:,} and later can" if after <= one.chain.head.version else ""
    return f"{ranges(lost)} of store {one.facts.store} cannot be restored{later}; {restart.explained}"


def _way_out(one: View, lost: Sequence[VersionId], restart: Restart, fix: str = RESTORE) -> str:
    if lost[-1] != one.chain.head:
        without = "without a backup" if fix == RESTORE else "without it"
        return f"{fix}; {without}, only these batches are lost: later batches still load"
    return roll_back(restart, fix=fix)


def _of_ceiling(one: View, policy: AuditPolicy) -> Iterator[Finding]:
    used = _next_lineage_bytes(one.facts)
    if used is None or used <= policy.ceiling_share * one.ceiling_bytes:
        return
    left = _commits_left(one.chain.head, used, one.ceiling_bytes)
    stops = left < policy.least_commits_left
    # A running Spark query continues its lineage: it looks for snapshots only when it loads a store.
    restart = (
        ". Then restart the query, because it finds these snapshots only at the start"
        if one.origin is Origin.NATIVE
        else ""
    )
    yield Finding(
        severity=Severity.ERROR if stops else Severity.WARNING,
        kind=FindingKind.NEAR_CEILING,
        store=one.facts.store,
        file=one.facts.store.changelog(one.chain.head),
        problem=f"is close to the lineage limit: the next changelog needs {used:,} of {one.ceiling_bytes:,} bytes",
        meaning=f"the query fails after {left:,} more commits",
        action=f"stop the query, then run: {SNAPSHOT_ALL}" if stops else f"run: {SNAPSHOT_ALL}{restart}",
    )
