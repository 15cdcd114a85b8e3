"""What the facts about a checkpoint that Spark writes by itself mean: over what Spark stumbles, and we do not. Pure.

Sources: SPARK-51972 and SPARK-56461 (checksums of files), SPARK-49374 (structure V2), SPARK-58659 (which structure a
query goes on with). What Spark does over each was seen on Spark 4.2, for other releases it is said by which one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from statestore.catalog import StoreFiles
from statestore.format import names
from statestore.format.names import StorePath, VersionId
from statestore.format.sparks import RETAINED_VERSIONS, Spark
from statestore.maintenance import time_line
from statestore.maintenance.audit.facts import AuditFacts, Bad, Keeper, Refused
from statestore.maintenance.audit.findings import Finding, FindingKind, Restart, Severity
from statestore.maintenance.audit.judge_store import View, ranges

_MOVE = "move it to a place outside of the checkpoint"
_PUT_ASIDE = "statekeeper repair ROOT --apply --confirm-stopped"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


def is_v1(facts: AuditFacts) -> bool:
    """Whether the newest commit that can be read is of structure V1."""
    readable = facts.logs.readable
    return bool(readable) and readable[max(readable)].ids is None


def of_names(facts: AuditFacts) -> Iterator[Finding]:
    """Names below the root that nobody gives, and what Spark does over them."""
    is_own = facts.root.binding is not None
    for path in facts.root.strangers:
        place = names.parse_place(path)
        name = "" if place is None or is_own else place[1]
        if is_v1(facts) and names.stops_loads(name):
            yield _stops_loads(path, "has a name that ends in .zip, and is no snapshot of Spark's")
        elif names.stops_cleanup(name):
            yield _finding(
                FindingKind.NAME_STOPS_CLEANUP,
                path,
                "has a name in which Spark's clean-up looks for a number, and finds none",
                "Spark's clean-up of this store fails each time, without a word: its old files stay for ever; all "
                "versions load",
                _MOVE,
                Severity.WARNING,
            )
        else:
            number = names.counted_as(name)
            yield _finding(
                FindingKind.FOREIGN_FILE,
                path,
                "has a name that neither Spark nor Statekeeper gives",
                "it is in no store's way here, but Spark's own clean-up may stumble over it"
                if number is None or number <= facts.logs.newest_version
                else f"no load takes it, but Spark's clean-up counts from version {number:,}: it deletes snapshots and "
                "changelogs that are still needed",
                "move it away",
                Severity.WARNING,
            )


def of_omissions(facts: AuditFacts) -> Iterator[Finding]:
    """What listings left out. No verb reads, moves or deletes it."""
    for omitted in facts.root.omitted:
        yield _finding(
            FindingKind.NOT_A_FILE,
            omitted.shown,
            f"is left out: {omitted.why}",
            "to Statekeeper a file that is behind it is missing; gc keeps all tables of its store",
            "put the file itself there, or move it away",
            Severity.WARNING,
        )


def _stops_loads(path: str, problem: str) -> Finding:
    is_hidden = path.rpartition("/")[2].startswith(".")
    return _finding(
        FindingKind.NAME_STOPS_LOADS,
        path,
        problem,
        "Spark takes it for the snapshot of a version and cannot load any version of this store: the query does not start",
        _MOVE if is_hidden else f"{_PUT_ASIDE} puts it aside; or {_MOVE}",
    )


def of_logs(facts: AuditFacts, views: Sequence[View], restart: Restart) -> Iterator[Finding]:
    """Where the structures V1 and V2 stand beside each other in one checkpoint."""
    if facts.root.binding is None:
        yield from _of_mixed_commits(facts, views, restart)
        yield from _of_flipped_format(facts, views)
        # A query that was taken back to its beginning; of which structure it is going to be nobody knows.
        for store, files in facts.uncommitted.items():
            yield from _of_dead_time_line(store, files, facts.logs.newest_version, is_v1=True)


def _of_mixed_commits(facts: AuditFacts, views: Sequence[View], restart: Restart) -> Iterator[Finding]:
    """A change of structure is a switchover, if every store has a snapshot from then on. Only the newest counts: what was
    before it is gone back to by the way that leads back."""
    commits = facts.logs.readable
    changes = (
        (before, after)
        for before, after in itertools.pairwise(sorted(commits))
        if (commits[before].ids is None) != (commits[after].ids is None)
    )
    before, after = max(changes, default=(None, 0))
    if before is None:
        return
    if not all(any(v.version > after for v in one.chain.snapshots) for one in views):
        now, then = ("V1", "V2") if commits[after].ids is None else ("V2", "V1")
        yield _finding(
            FindingKind.COMMITS_MIXED,
            names.commits(after),
            f"is of structure {now}, {names.commits(before)} of {then}, and not every store has a snapshot of version "
            f"{after + 1:,}, with which a switchover begins",
            f"Spark looks for the files of one structure and finds none of the other; 4.0 and 4.1 refuse the commits of "
            f"the other structure by themselves; {restart.explained}",
            f"restore {names.COMMITS}/ from a backup",
        )


def _of_flipped_format(facts: AuditFacts, views: Sequence[View]) -> Iterator[Finding]:
    """Spark 4.2, told to write V2 into a checkpoint of V1, writes the next changelog as V1, with a sidecar, and dies."""
    head = max(facts.logs.commits, default=-1) + 1
    if not is_v1(facts) or head not in facts.logs.offsets:
        return
    stray = VersionId(head + 1)
    for one in views:
        store, files = one.facts.store, one.chain.files
        sidecars = {entry.path for entry in files.others if entry.path.endswith(names.SIDECAR)}
        beside = names.sidecar(store.changelog(stray))
        # Spark 4.1 gives sidecars to the files of V1, too.
        usual = {names.sidecar(path) for path in (store.changelog(VersionId(head)), store.snapshot(VersionId(head)))}
        if stray not in files.changelogs or beside not in sidecars or usual & sidecars:
            continue
        yield Finding(
            Severity.WARNING,
            FindingKind.FORMAT_FLIPPED,
            store,
            store.changelog(stray),
            f"is of batch {head:,}, which did not end, and has a sidecar, which Spark 4.2 gives to no file of structure V1",
            f"the query was started with {_FORMAT}=2 on a checkpoint of structure V1, where Spark 4.2 fails in each first "
            f"batch (None.get); nothing is lost",
            f"start the query with {_FORMAT}=1: it goes on from batch {head - 1:,} and writes the file again; or "
            f"give it the structure that was meant: statekeeper switch ROOT --to v2",
        )
        return


def of_store(facts: AuditFacts, one: View, restart: Restart) -> Iterator[Finding]:
    """What Spark would stumble over in one store."""
    if facts.root.binding is not None:
        return
    yield from _of_ids_in_v1(facts, one)
    is_v1_store = one.chain.head.id is None
    yield from _of_dead_time_line(one.facts.store, one.chain.files, facts.logs.newest_version, is_v1=is_v1_store)
    yield from _of_spark_4_0(one)
    for refused in one.facts.refused:
        yield _of_refused(one, refused, restart)
    yield from _of_strays(one)


def _of_strays(one: View) -> Iterator[Finding]:
    for version in one.facts.strays:
        if version.version < one.oldest:
            continue  # retention deletes a sidecar after its zip
        zipped = names.snapshot(version)
        yield Finding(
            Severity.WARNING,
            FindingKind.SIDECAR_STRAY,
            one.facts.store,
            names.sidecar(one.facts.store.snapshot(version)),
            f"is there without {zipped}: an executor died between the two, or the zip was deleted alone",
            f"every version loads; Spark refuses every snapshot that is written as {zipped} later: Statekeeper writes none",
            f"if the query is stopped: {_PUT_ASIDE} quarantines it; a running query may be writing {zipped} now",
        )


def _of_ids_in_v1(facts: AuditFacts, one: View) -> Iterator[Finding]:
    if is_v1(facts):
        with_ids = sorted(version for version in one.chain.files.snapshots if version.id is not None)
        for version in with_ids:
            yield _stops_loads(one.facts.store.snapshot(version), "is a snapshot of structure V2 in a checkpoint of V1")


def _of_dead_time_line(store: StorePath, files: StoreFiles, newest: int, *, is_v1: bool) -> Iterator[Finding]:
    """Files of versions that no batch can have begun: the query was taken back."""
    found = time_line.given_up(files, newest)
    zips, dead = found.snapshots, found.versions
    if not dead:
        return
    spoils = False
    numbers = (
        f"versions up to {dead[-1].version:,}" if dead[-1].version > dead[0].version else f"version {dead[0].version:,}"
    )
    told = f"the logs know nothing after version {newest:,}" if newest else "the logs know of no batch"
    traps = [version for version in zips if version.id is None] if is_v1 else []
    if traps:
        meaning = (
            f"the query was taken back, and these files are of what was given up; as soon as it is past version "
            f"{traps[0].version:,}, a restart takes {names.snapshot(traps[0])} for its own: wrong state, without a word"
        )
    elif zips:
        # Of the snapshots that are old enough, counted from the newest number, it keeps the newest, and deletes below it.
        kept = max(
            (v.version for v in files.snapshots if v.version <= zips[-1].version - RETAINED_VERSIONS + 1), default=0
        )
        meaning = (
            "the query was taken back, and these files are of what was given up; no load takes them, but Spark's clean-up "
            "counts from the newest number: it deletes snapshots and changelogs that are still needed"
        )
        if kept > newest:
            meaning += f", here all below version {kept:,}"
            spoils = True
    else:
        meaning = "the query was taken back, and these files are of what was given up; no load takes them"
    yield Finding(
        Severity.ERROR if traps or spoils else Severity.WARNING,
        FindingKind.ROLLED_BACK_FILES,
        store,
        store.snapshot(zips[0]) if zips else store.changelog(dead[0]),
        f"is of {numbers}, of which there are {len(dead):,}, and {told}"
        if len(dead) > 1
        else f"is of {numbers}, and {told}",
        meaning,
        f"before the query is started: {_PUT_ASIDE} puts them aside; if the logs were "
        f"lost instead, restore {names.COMMITS}/ and {names.OFFSETS}/",
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
        Severity.WARNING,
        FindingKind.SNAPSHOT_OF_SPARK_4_0,
        one.facts.store,
        one.facts.store.snapshot(newest),
        f"was written by Spark 4.0 in structure V2, as {len(old):,} of its snapshots were",
        "Spark 4.0 loads every version; Spark 4.1 and later refuse such a snapshot (Expected v1, but found v2)"
        + (f": they cannot load {ranges(hang)}" if hang else ""),
        "go on with Spark 4.0, or upgrade by statekeeper repair ROOT --for-spark 4.2 --apply --confirm-stopped",
    )


def _of_refused(one: View, refused: Refused, restart: Restart) -> Finding:
    is_v1_changelog = refused.is_changelog and refused.versions[0].id is None
    hang = _hanging(one, refused)
    what, who = FindingKind.SIDECAR_AT_ODDS, "Spark"
    if refused.keeper is Keeper.HADOOP:
        what, why = FindingKind.HIDDEN_CHECKSUM_AT_ODDS, "ChecksumException"
    else:
        why = "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"
    if is_v1_changelog:
        who = "Spark 4.1 (later ones do not look at it in structure V1)"
    meaning = f"{who} refuses {refused.file.rpartition('/')[2]} ({why})"
    if hang:
        meaning += f" and cannot load {ranges(hang)} from it; without {refused.checksum.path.rpartition('/')[2]}, "
        meaning += restart.explained
    else:
        meaning += "; every version loads without it"
    return Finding(
        Severity.ERROR if hang and not is_v1_changelog else Severity.WARNING,
        what,
        one.facts.store,
        refused.checksum.path,
        refused.checksum.why,
        meaning,
        _mended(refused),
    )


def _mended(refused: Refused) -> str:
    beside = refused.checksum.path.rpartition("/")[2]
    if refused.is_guarded is None:
        return f"audit with --deep; when the file itself is whole, delete {beside}: Spark reads a file without one"
    if refused.is_guarded and refused.keeper is Keeper.SPARK and not refused.is_changelog:
        return f"the file itself is whole: {_PUT_ASIDE} quarantines {beside}; Spark reads a file without one"
    if refused.is_guarded:
        return f"the file itself is whole: delete {beside}, Spark reads a file without one"
    return (
        "restore the file and its sidecar from a backup: the file can be read, but its codec keeps no checksums, and its "
        f"values may be wrong; only without a backup delete {beside}"
    )


def _hanging(one: View, refused: Refused) -> list[VersionId]:
    """The retained versions whose load reads the file."""
    bases = one.chain.bases
    retained = [v for v in one.chain.versions if v.version >= one.oldest and v in bases]
    if not refused.is_changelog:
        return [v for v in retained if bases[v] in refused.versions]
    number = refused.versions[0].version
    return [v for v in retained if bases[v].version < number <= v.version]


def _finding(
    what: FindingKind, file: str, problem: str, meaning: str, action: str, severity: Severity = Severity.ERROR
) -> Finding:
    return Finding(severity, what, None, file, problem, meaning, action)


def unproven(facts: AuditFacts) -> Iterator[str]:
    """What no file of a checkpoint of Spark's can show."""
    if facts.root.binding is not None:
        return
    if is_v1(facts):
        yield (
            "in structure V1 a changelog or snapshot that a late attempt wrote again, under the same name, cannot be told "
            "from the committed one"
        )
    if facts.codec not in (None, "lz4"):
        yield (
            f"changelogs of the codec {facts.codec} carry no checksums: where there is no sidecar either, a wrong byte in "
            "a value is not seen"
        )
    yield (
        "the files in which sources keep their own progress (sources/) were not read: each source has its own format"
    )
    unread = sorted(bad.path for bad in facts.root.layouts.values() if isinstance(bad, Bad))
    if unread and facts.deep:
        yield f"rows were not decoded by {', '.join(unread[:5])}, which cannot be read, or not by this release"
    if not facts.deep:
        yield "rows were not decoded by their schema: --deep does it"
        yield "the sidecars of Spark (.crc), and the hidden ones of Hadoop, were not compared: --deep does it"
