"""Findings about a native checkpoint: problems that affect Spark and not Statekeeper. Pure.

Sources: SPARK-51972 and SPARK-56461 (checksums of files), SPARK-49374 (structure V2), SPARK-58659 (structure of a restarted
query). The described behavior was observed on Spark 4.2 unless a text names another release.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from statekeeper.statestore.checkpoint import leftovers
from statekeeper.statestore.checkpoint.catalog import StoreFiles
from statekeeper.statestore.checkpoint.file_problem import FileProblem
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format import sparks as names_in_spark
from statekeeper.statestore.format.logs import SHUFFLE_PARTITIONS
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.operators import OperatorMetadata
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.sparks import RETAINED_VERSIONS, Spark
from statekeeper.statestore.format.structure import FORMAT_VERSION, Structure
from statekeeper.statestore.maintenance.upkeep.audit.facts import AuditFacts, Keeper, Refused
from statekeeper.statestore.maintenance.upkeep.audit.findings import (
    REPAIR,
    Finding,
    FindingKind,
    Restart,
    Severity,
    move_away,
    root_finding,
)
from statekeeper.statestore.maintenance.upkeep.audit.view import View, ranges
from statekeeper.statestore.storage.omissions import SYMBOLIC_LINK

_MOVE = "move the file out of the checkpoint"


def is_v2(facts: AuditFacts) -> bool:
    """Return whether the newest readable commit has structure V2."""
    return bool(facts.logs.readable) and not is_v1(facts)


def is_v1(facts: AuditFacts) -> bool:
    """Return whether the newest readable commit has structure V1."""
    readable = facts.logs.readable
    return bool(readable) and readable[max(readable)].structure is Structure.V1


def of_names(facts: AuditFacts) -> Iterator[Finding]:
    """Yield findings about unrecognized file names."""
    for path in facts.root.strangers:
        place = names.parse_place(path)
        name = "" if place is None or facts.root.origin is Origin.OWN else place[1]
        if is_v1(facts) and names_in_spark.stops_loads(name, facts.root.provider):
            suffix = ".zip" if facts.root.provider is Provider.ROCKSDB else ".snapshot"
            yield _stops_loads(path, f"has a name that ends in {suffix} and is not a snapshot", facts.root.provider)
        elif names_in_spark.stops_cleanup(name, facts.root.provider):
            yield root_finding(
                FindingKind.NAME_STOPS_CLEANUP,
                path,
                "has a name without the version number that Spark's maintenance expects",
                "Spark's maintenance of this store fails silently and never deletes old files; every batch loads",
                _MOVE,
                Severity.WARNING,
            )
        else:
            number = names_in_spark.counted_as(name, facts.root.provider)
            yield root_finding(
                FindingKind.FOREIGN_FILE,
                path,
                "is an unrecognized file",
                "every batch loads, but Spark's maintenance may fail on this file"
                if number is None or number <= facts.logs.newest_version
                else f"every batch loads, but Spark's maintenance takes the number {number:,} for the newest version and "
                "deletes snapshots and changelogs that are still needed",
                "move the file to a folder outside the checkpoint",
                Severity.WARNING,
            )


def of_omissions(facts: AuditFacts) -> Iterator[Finding]:
    """Yield findings about entries that listings omit. No verb reads, moves or deletes them."""
    for omitted in facts.root.omitted:
        yield root_finding(
            FindingKind.NOT_A_FILE,
            omitted.shown,
            f"is ignored: {omitted.reason}",
            "Statekeeper treats the file as missing; gc keeps all SST files of this store",
            "replace the link with a copy of its target"
            if omitted.reason == SYMBOLIC_LINK
            else "move it to a folder outside the checkpoint",
            Severity.WARNING,
        )


def _stops_loads(path: str, problem: str, provider: Provider = Provider.ROCKSDB) -> Finding:
    is_left = path.rpartition("/")[2].startswith(".") or provider is not Provider.ROCKSDB
    return root_finding(
        FindingKind.NAME_STOPS_LOADS,
        path,
        problem,
        "Spark reads it as a snapshot and cannot load any batch of this store; the query cannot start",
        _MOVE if is_left else f"stop the query and run: {REPAIR}; or {_MOVE}",
    )


def of_logs(facts: AuditFacts, views: Sequence[View], restart: Restart) -> Iterator[Finding]:
    """Yield findings about a mix of structures V1 and V2, and about files without any commit."""
    if facts.root.origin is Origin.NATIVE:
        yield from _of_mixed_commits(facts, views, restart)
        yield from _of_flipped_format(facts, views)
        yield from _of_changed_partitions(facts)
        # The query was rolled back to its beginning; its next structure is unknown.
        for store, files in facts.uncommitted.items():
            yield from _of_rolled_back_files(store, files, facts.logs.newest_version, is_v1=True)


def of_skipped_batches(facts: AuditFacts) -> Iterator[Finding]:
    """Yield the finding about batches that Spark skipped after a rewind without the file sink of the query."""
    skipped = facts.root.skipped
    if skipped is None:
        return
    if skipped.is_committed:
        yield root_finding(
            FindingKind.BATCHES_SKIPPED,
            names.commits(skipped.first),
            f"was committed without state, like all of {skipped.in_words} since the rewind to batch {skipped.target}: the "
            "log of the query's file sink still has these batches, so Spark skipped them",
            f"the query cannot start; the newest batch that every store can restore is {skipped.target}. Another rewind "
            "without the sink has the same result",
            f"stop the query and run: {skipped.way_out}",
        )
    elif is_v2(facts):
        yield root_finding(
            FindingKind.BATCHES_SKIPPED,
            names.offsets(skipped.first),
            f"began after the rewind to batch {skipped.target}, and no task has written state",
            "if the query writes files with Spark's file sink, the log of the sink may still have this batch: each start "
            "then fails with `CheckpointInfo length: 0`. If the query was stopped before its first task, it can start",
            f"if the query fails so, stop it and run: {skipped.way_out}",
            Severity.WARNING,
        )


def without_skipped_versions(facts: AuditFacts, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings without those about missing versions of skipped batches: no backup has these versions."""
    skipped = facts.root.skipped
    for one in findings:
        if skipped is not None and skipped.is_committed and one.kind is FindingKind.CHANGELOG_MISSING:
            place = names.parse_file_of_any_provider(one.file)
            if place is not None and place[1].version.version > skipped.target + 1:
                continue
        yield one


def _of_mixed_commits(facts: AuditFacts, views: Sequence[View], restart: Restart) -> Iterator[Finding]:
    """Yield a finding if the newest change of structure is not a switchover, which gives every store a snapshot."""
    commits = facts.logs.readable
    changes = (
        (before, after)
        for before, after in itertools.pairwise(sorted(commits))
        if commits[before].structure is not commits[after].structure
    )
    before, after = max(changes, default=(None, 0))
    if before is None:
        return
    if not all(any(v.version > after for v in one.chain.snapshots) for one in views):
        now, then = commits[after].structure.name, commits[before].structure.name
        yield root_finding(
            FindingKind.COMMITS_MIXED,
            names.commits(after),
            f"has structure {now}, but {names.commits(before)} has {then}. No switchover caused this: a switchover writes "
            f"a snapshot of batch {after:,} in every store, and some stores have none",
            f"Spark loads only batches in the structure of the running query; Spark 4.0 and 4.1 also reject commits in "
            f"the other structure; {restart.explained}",
            f"restore {names.COMMITS}/ from a backup",
        )


def _of_changed_partitions(facts: AuditFacts) -> Iterator[Finding]:
    """Yield a finding for a restart with another number of partitions. In an offset log of v2, Spark 4.2 and 4.3 do not
    record the number in the first run (SPARK-59662). A restart then takes the number of its session, and records it."""
    shuffled, committed = facts.logs.shuffled, facts.logs.commits
    described = {
        max(store.partitions for store in operator.stores)
        for operator in facts.root.operators.values()
        if isinstance(operator, OperatorMetadata)
    }
    for before, after in itertools.pairwise(sorted(shuffled)):
        if after != before + 1 or shuffled[before] is not None or shuffled[after] is None:
            continue
        # A later rescale changes the number, and the metadata with it.
        is_rescaled = shuffled[after] != shuffled[max(shuffled)]
        if len(described) != 1 or shuffled[after] in described or is_rescaled:
            return
        (former,), now = described, shuffled[after]
        looks_up = f"it looks up keys in {now:,} partitions, and the state of most keys is in another one of {former:,}"
        meaning = (
            f"{looks_up}. State and output of batch {after} and later are wrong"
            if after in committed
            else f"{looks_up}, so that batch {after} fails or loses state. The batches before are not affected"
        )
        yield root_finding(
            FindingKind.PARTITIONS_CHANGED,
            names.offsets(after),
            f"sets {SHUFFLE_PARTITIONS}={now}, but the query began with {former:,} partitions: it was started again with "
            "another number, which Spark 4.2 and 4.3 do not detect with an offset log of v2",
            meaning,
            f"stop the query and run: statekeeper rewind ROOT --to-batch {before} --apply --confirm-stopped. Then start it "
            f"with {SHUFFLE_PARTITIONS}={former}",
        )
        return


def _of_flipped_format(facts: AuditFacts, views: Sequence[View]) -> Iterator[Finding]:
    """Yield a finding for Spark 4.2 with V2 on a V1 checkpoint: it writes a V1 changelog with a checksum file and fails."""
    head = max(facts.logs.commits, default=-1) + 1
    if not is_v1(facts) or head not in facts.logs.offsets:
        return
    stray = VersionId(head + 1)
    for one in views:
        store, files = one.facts.store, one.chain.files
        sidecars = {entry.path for entry in files.others if entry.path.endswith(names.SIDECAR)}
        beside = names.sidecar(store.changelog(stray))
        # Spark 4.1 also writes checksum files in V1.
        usual = {names.sidecar(path) for path in (store.changelog(VersionId(head)), store.snapshot(VersionId(head)))}
        if stray not in files.changelogs or beside not in sidecars or usual & sidecars:
            continue
        yield Finding(
            severity=Severity.WARNING,
            kind=FindingKind.FORMAT_FLIPPED,
            store=store,
            file=store.changelog(stray),
            problem=f"belongs to the uncommitted batch {head:,} and has a checksum file, which Spark 4.2 writes only in "
            f"structure V2",
            meaning=f"the query was started with {FORMAT_VERSION}=2 on a V1 checkpoint and failed in its first batch "
            f"(None.get); no state is lost",
            action=f"to restart from batch {head - 1:,}, set {FORMAT_VERSION}=1. To change the structure, run: statekeeper "
            f"switch ROOT --to v2",
        )
        return


def of_store(facts: AuditFacts, one: View, restart: Restart) -> Iterator[Finding]:
    """Yield findings about one store that affect Spark."""
    if facts.root.origin is Origin.OWN:
        return
    yield from _of_ids_in_v1(facts, one)
    is_v1_store = one.chain.head.id is None
    yield from _of_rolled_back_files(one.facts.store, one.chain.files, facts.logs.newest_version, is_v1=is_v1_store)
    yield from _of_spark_4_0(one)
    for refused in one.facts.refused:
        yield _of_refused(one, refused, restart)
    yield from _of_strays(one)


def _of_strays(one: View) -> Iterator[Finding]:
    for version in one.facts.strays:
        if version.version < one.oldest:
            continue  # retention deletes a checksum file after its zip
        zipped = names.snapshot(version, one.facts.store.provider)
        yield Finding(
            severity=Severity.WARNING,
            kind=FindingKind.SIDECAR_STRAY,
            store=one.facts.store,
            file=names.sidecar(one.facts.store.snapshot(version)),
            problem=f"exists without {zipped}: an executor failed between the two writes, or the zip was deleted",
            meaning=f"every batch loads, but Spark would reject a new {zipped}; Statekeeper writes no snapshot of this "
            f"batch",
            action=f"stop the query, which may still write {zipped}, then run: {REPAIR}",
        )


def _of_ids_in_v1(facts: AuditFacts, one: View) -> Iterator[Finding]:
    if is_v1(facts):
        with_ids = sorted(version for version in one.chain.files.snapshots if version.id is not None)
        for version in with_ids:
            yield _stops_loads(one.facts.store.snapshot(version), "is a V2 snapshot in a V1 checkpoint")


def _of_rolled_back_files(store: StorePath, files: StoreFiles, newest: int, *, is_v1: bool) -> Iterator[Finding]:
    """Yield a finding about files of versions that no logged batch can have written: the query was rolled back."""
    found = leftovers.given_up(files, newest)
    zips, dead = found.snapshots, found.versions
    if not dead:
        return
    spoils = False
    numbers = (
        f"batches {dead[0].version - 1:,} to {dead[-1].version - 1:,}"
        if dead[-1].version > dead[0].version
        else dead[0].in_words
    )
    logged = f"the logs end at batch {newest - 1:,}" if newest else "the logs contain no batch"
    traps = [version for version in zips if version.id is None] if is_v1 else []
    if traps:
        meaning = (
            f"the query was rolled back, and these files remain; once the query reaches {traps[0].in_words} "
            f"again, a restart loads the old {names.snapshot(traps[0], store.provider)} and silently uses wrong state"
        )
    elif zips:
        # Spark's maintenance keeps the newest snapshot below the retention floor, and deletes older files.
        kept = max(
            (v.version for v in files.snapshots if v.version <= zips[-1].version - RETAINED_VERSIONS + 1), default=0
        )
        meaning = (
            "the query was rolled back, and these files remain; no load uses them, but Spark's maintenance "
            "counts from the largest number in a file name and deletes snapshots and changelogs that are still needed"
        )
        if kept > newest:
            meaning += f": every file with a number below {kept:,}"
            spoils = True
    else:
        meaning = "the query was rolled back, and these files remain; no load uses them"
    yield Finding(
        severity=Severity.ERROR if traps or spoils else Severity.WARNING,
        kind=FindingKind.ROLLED_BACK_FILES,
        store=store,
        file=store.snapshot(zips[0]) if zips else store.changelog(dead[0]),
        problem=f"is one of {len(dead):,} files of {numbers}, but {logged}"
        if len(dead) > 1
        else f"belongs to {numbers}, but {logged}",
        meaning=meaning,
        action=f"before you start the query, {move_away(store.provider, 'these files')}; if the query was not rolled back, "
        f"restore {names.COMMITS}/ and {names.OFFSETS}/ from a backup",
    )


def _of_spark_4_0(one: View) -> Iterator[Finding]:
    old = [
        version
        for version, snapshot in one.chain.snapshots.items()
        if version.version >= one.oldest
        and snapshot.metadata is not None
        and snapshot.metadata.header == Spark.V4_0.header
    ]
    if not old:
        return
    newest = max(old, key=lambda version: version.version)
    hang = [v for v in one.chain.versions if v.version >= one.oldest and one.chain.bases.get(v) in old]
    yield Finding(
        severity=Severity.WARNING,
        kind=FindingKind.SNAPSHOT_OF_SPARK_4_0,
        store=one.facts.store,
        file=one.facts.store.snapshot(newest),
        problem=f"was written by Spark 4.0 in structure V2; this store has {len(old):,} such snapshots, including this one",
        meaning="Spark 4.0 loads every batch; Spark 4.1 and later reject such a snapshot (Expected v1, but found v2)"
        + (f" and cannot restore {ranges(hang)}" if hang else ""),
        action="stay on Spark 4.0; to upgrade, run: statekeeper repair ROOT --for-spark 4.2 --apply --confirm-stopped",
    )


def _of_refused(one: View, refused: Refused, restart: Restart) -> Finding:
    is_v1_changelog = refused.is_changelog and refused.versions[0].id is None
    hang = _hanging(one, refused)
    kind, reader = FindingKind.SIDECAR_AT_ODDS, "Spark"
    if refused.keeper is Keeper.HADOOP:
        kind, error = FindingKind.HIDDEN_CHECKSUM_AT_ODDS, "ChecksumException"
    else:
        error = "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"
    if is_v1_changelog:
        reader = "Spark 4.1"
    meaning = f"{reader} rejects {refused.file.rpartition('/')[2]} ({error})"
    if hang:
        meaning += f" and cannot restore {ranges(hang)}; if you delete {refused.checksum.path.rpartition('/')[2]}, "
        meaning += restart.explained
    else:
        meaning += "; every batch loads without this file"
    if is_v1_changelog:
        meaning += "; later Spark releases ignore the checksum file in structure V1"
    return Finding(
        severity=Severity.ERROR if hang and not is_v1_changelog else Severity.WARNING,
        kind=kind,
        store=one.facts.store,
        file=refused.checksum.path,
        problem=refused.checksum.text,
        meaning=meaning,
        action=_mended(refused),
    )


def _mended(refused: Refused) -> str:
    file, beside = (path.rpartition("/")[2] for path in (refused.file, refused.checksum.path))
    if refused.is_guarded is None:
        return f"run: statekeeper audit ROOT --deep. If {file} is intact, delete {beside}: Spark does not require it"
    if refused.is_guarded and refused.keeper is Keeper.SPARK and not refused.is_changelog:
        return f"{file} is intact. To quarantine its checksum file {beside}, run: {REPAIR}"
    if refused.is_guarded:
        return f"{file} is intact. Delete its checksum file {beside}: Spark does not require it"
    return (
        f"restore {file} and {beside} from a backup: the values in {file} may be wrong, because its codec has no "
        f"checksums. Without a backup, delete {beside}"
    )


def _hanging(one: View, refused: Refused) -> list[VersionId]:
    """Return the retained versions whose load reads the file."""
    bases = one.chain.bases
    retained = [v for v in one.chain.versions if v.version >= one.oldest and v in bases]
    if not refused.is_changelog:
        return [v for v in retained if bases[v] in refused.versions]
    number = refused.versions[0].version
    return [v for v in retained if bases[v].version < number <= v.version]


def unproven(facts: AuditFacts) -> Iterator[str]:
    """Yield the properties of a native checkpoint that this audit cannot verify."""
    if facts.root.origin is Origin.OWN:
        return
    if is_v1(facts):
        yield (
            "in structure V1, the audit cannot detect whether a late task attempt overwrote a committed changelog or "
            "snapshot"
        )
    if facts.codec not in (None, "lz4"):
        yield (
            f"changelogs with codec {facts.codec} have no checksums: without a checksum file, a wrong byte in a value is "
            "not detected"
        )
    if facts.root.provider is Provider.HDFS_BACKED and facts.deep:
        yield "the checksum files (.crc) that Spark 4.1 writes beside snapshots were not compared"
    yield "the progress files of sources (sources/) were " + (
        "read only of file sources: each source has its own format"
        if facts.deep
        else "compared with the offsets only by name: --deep reads those of file sources"
    )
    unread = sorted(bad.path for bad in facts.root.layouts.values() if isinstance(bad, FileProblem))
    if unread and facts.deep:
        yield f"rows were not decoded, because these schemas cannot be read: {', '.join(unread[:5])}"
    if not facts.deep:
        yield "rows were not decoded with their schema: --deep decodes them"
        yield "checksum files of Spark (.crc) and Hadoop were not verified: --deep verifies them"
