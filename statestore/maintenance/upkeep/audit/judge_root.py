"""Findings about the logs and the metadata files of a checkpoint. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.file_problem import FileProblem, Flaw
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteJournal, RewriteKind
from statekeeper.statestore.contents import restart
from statekeeper.statestore.contents.restart import Way
from statekeeper.statestore.format import names
from statekeeper.statestore.format.logs import UNFINISHED
from statekeeper.statestore.format.operators import OperatorMetadata
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.upkeep.audit.facts import AuditFacts, is_unknown
from statekeeper.statestore.maintenance.upkeep.audit.findings import (
    FOR_A_REWIND,
    REPAIR,
    RESTORE,
    START_JOB,
    UPGRADE,
    Finding,
    FindingKind,
    Restart,
    Severity,
    roll_back,
    root_finding,
)
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.storage.urls import Locality


def of_logs(facts: AuditFacts, restart: Restart) -> Iterator[Finding]:
    """Yield findings about `commits/` and `offsets/`."""
    yield from _of_commits(facts, restart)
    yield from _of_misfits(facts, restart)
    yield from _of_offsets(facts, restart)


def _of_commits(facts: AuditFacts, start: Restart) -> Iterator[Finding]:
    commits = facts.logs.commits
    newest = max(commits, default=-1)
    # Do not loop over all numbers between two commits: a corrupt file name could mean billions.
    gaps = [(before + 1, after - 1) for before, after in itertools.pairwise(sorted(commits)) if after > before + 1]
    if facts.stateless:
        # Asynchronous progress tracking logs only some batches, and a restart needs only the newest.
        gaps = []
    for first, last in gaps:
        many = f"and all commits up to batch {last} are missing" if last > first else "is missing"
        yield root_finding(
            FindingKind.COMMIT_MISSING,
            names.commits(first),
            many,
            _no_rewind(first, last, start),
            FOR_A_REWIND,
            Severity.WARNING,
        )
    for batch, bad in commits.items():
        if not isinstance(bad, FileProblem):
            continue
        severity, meaning = Severity.WARNING, _no_rewind(batch, batch, start)
        action = f"to move the file out of the way, run: {REPAIR}; for a rewind to this batch, {RESTORE}"
        if batch == newest:
            severity, action = Severity.ERROR, roll_back(start)
            meaning = f"the query cannot start, because this is the newest commit; {start.explained}"
        if is_unknown(bad):
            action = UPGRADE
            meaning = _of_a_later_spark(start) if batch == newest else meaning
        yield root_finding(FindingKind.COMMIT_UNREADABLE, bad.path, bad.text, meaning, action, severity)


def _no_rewind(first: int, last: int, start: Restart) -> str:
    which = f"batch {first}" if first == last else f"batches {first} to {last}"
    return f"no start needs this, but a rewind to {which} is not possible; {start.explained}"


def _not_restorable(first: int, last: int, restart: Restart) -> str:
    which = f"batch {first}" if first == last else f"batches {first} to {last}"
    return f"{which} can no longer be restored; {restart.explained}"


def _of_a_later_spark(restart: Restart) -> str:
    return f"a newer Spark release may have written it and can restart from it; {restart.explained}"


def _of_misfits(facts: AuditFacts, restart: Restart) -> Iterator[Finding]:
    blamed = {misfit.operator for misfit in facts.misfits.values()}
    for operator in sorted(blamed):
        batches = [batch for batch, misfit in facts.misfits.items() if misfit.operator == operator]
        if isinstance(facts.root.operators[operator], OperatorMetadata) and len(batches) == len(facts.logs.readable):
            yield root_finding(
                FindingKind.DESCRIPTION_AT_ODDS,
                facts.root.metadata_paths[operator],
                f"contradicts every commit: the newest commit {facts.misfits[max(batches)].problem}",
                restart.explained,
                RESTORE,
            )
            continue
        for batch in batches:
            problem = f"contradicts the metadata of operator {operator}: it {facts.misfits[batch].problem}"
            yield root_finding(
                FindingKind.COMMIT_AT_ODDS,
                names.commits(batch),
                problem,
                _not_restorable(batch, batch, restart),
                RESTORE,
            )


def without_offsets(facts: AuditFacts) -> frozenset[int]:
    """Return the batches whose offsets are missing or unusable. Batches before the oldest offsets were purged."""
    logs = facts.logs
    damaged = {
        batch
        for batch, log in logs.offsets_read.items()
        if isinstance(log, FileProblem) and log.flaw is not Flaw.UNKNOWN_FORMAT
    }
    newest = max(logs.commits, default=-1)
    read = restart.offsets_read(newest, logs.begun, facts.root.origin) if logs.commits else frozenset()
    if facts.stateless:
        read &= _logged(facts)
    return frozenset({batch for batch in (*logs.commits, *read) if batch not in logs.offsets} | damaged)


def way_to(facts: AuditFacts, batch: int) -> Way | None:
    """Return how the query can start after a committed batch, as far as its logs decide; None if it cannot."""
    logs, newest = facts.logs, max(facts.logs.commits)
    offsets = logs.offsets_readable.get(batch)
    if (offsets is not None and restart.is_rebuilt(offsets)) or _is_before_a_switchover(facts, batch):
        return None
    lost = without_offsets(facts)
    return restart.way(
        batch,
        newest=newest,
        begun=newest if facts.stateless else logs.begun,
        lost=lost & _logged(facts) if facts.stateless else lost,
        needed_from=[first for _, first in logs.lost_entries],
        origin=facts.root.origin,
    )


def _is_before_a_switchover(facts: AuditFacts, batch: int) -> bool:
    """Return whether a switchover after a batch has changed the structure: `rewind` then rejects the batch."""
    readable = facts.logs.readable
    if facts.root.provider is Provider.HDFS_BACKED or batch not in readable:
        return False
    return readable[max(readable)].structure is not readable[batch].structure


def _logged(facts: AuditFacts) -> frozenset[int]:
    """Return the batches of a query without state that have a log. With asynchronous progress tracking, other batches have
    none, and offsets are ahead of commits."""
    return frozenset({*facts.logs.commits, *facts.logs.offsets})


def _of_offsets(facts: AuditFacts, start: Restart) -> Iterator[Finding]:
    logs = facts.logs
    offsets, newest = logs.offsets, max(logs.commits, default=-1)
    if logs.commits:
        yield from _of_lost_offsets(facts, start)
    for batch, bad in logs.offsets_read.items():
        if isinstance(bad, FileProblem):
            severity, meaning, action = _of_one_offsets(facts, batch, start)
            if is_unknown(bad):
                action = UPGRADE
                meaning = _of_a_later_spark(start) if severity is Severity.ERROR else meaning
            kind = FindingKind.OFFSETS_AT_ODDS if _is_edited(bad) else FindingKind.OFFSETS_UNREADABLE
            yield root_finding(kind, bad.path, bad.text, meaning, action, severity)
    for lost, _ in logs.lost_entries:
        yield root_finding(
            FindingKind.SOURCE_LOG_DAMAGED,
            lost.problem.path,
            lost.problem.text,
            f"Spark cannot start, because it reads the log of this file source; {start.explained}",
            roll_back(start),
        )
    for path in facts.logs.in_the_way:
        name = path.rpartition("/.")[2].removesuffix(names.SIDECAR)
        yield root_finding(
            FindingKind.LOG_IN_THE_WAY,
            path,
            f"remained after {path.partition('/')[0]}/{name} was deleted",
            f'the query fails at batch {name}: Spark reports "Multiple streaming queries are concurrently using ..."',
            f"stop the query and run: {REPAIR}; or delete the file",
        )
    if offsets and max(offsets) > newest + 1 and not facts.stateless:
        commit = f"but the newest commit is batch {newest}" if facts.logs.commits else "but no batch is committed"
        yield root_finding(
            FindingKind.OFFSETS_AHEAD,
            names.offsets(max(offsets)),
            f"exists, {commit}",
            f"the commits from batch {newest + 1} on are lost, or the query was rolled back; {start.explained}",
            f"restore {names.COMMITS}/ from a backup; or {roll_back(start, has_backup=False)}",
        )


def _is_edited(offsets: object) -> bool:
    return isinstance(offsets, FileProblem) and offsets.flaw is Flaw.MISMATCH


def _of_lost_offsets(facts: AuditFacts, start: Restart) -> Iterator[Finding]:
    logs = facts.logs
    # Offsets older than the oldest file were purged, unless a start needs them.
    read = restart.offsets_read(max(logs.commits), logs.begun, facts.root.origin)
    oldest = min(logs.offsets, default=0)
    missing = [one for one in without_offsets(facts) if one not in logs.offsets and (one >= oldest or one in read)]
    for first, last in _runs(sorted(missing)):
        worst = max(range(first, last + 1), key=lambda batch: batch in read)
        severity, meaning, action = _of_one_offsets(facts, worst, start, first=first, last=last)
        yield root_finding(
            FindingKind.OFFSETS_MISSING,
            names.offsets(first),
            f"and all offsets up to batch {last} are missing" if last > first else "is missing",
            meaning,
            action,
            severity,
        )


def _of_one_offsets(
    facts: AuditFacts, batch: int, start: Restart, *, first: int | None = None, last: int | None = None
) -> tuple[Severity, str, str]:
    """Return the severity, the meaning and the action of unusable offsets, of the batch or of a run with this batch."""
    logs, newest = facts.logs, max(facts.logs.commits, default=-1)
    read = restart.offsets_read(newest, logs.begun, facts.root.origin)
    if facts.stateless:
        read &= _logged(facts)
    if batch not in read:
        first, last = batch if first is None else first, batch if last is None else last
        # A start after a batch also reads the offsets before it.
        after = last if facts.root.origin is Origin.OWN else last + 1
        meaning = _no_rewind(first, min(after, newest - 1), start) if first < newest else start.explained
        return Severity.WARNING, meaning, FOR_A_REWIND
    is_edited = batch in logs.offsets_read and batch in logs.offsets and _is_edited(logs.offsets_read[batch])
    reads = "the settings of its newest offsets" if is_edited else "the newest offsets and those of the batch before"
    meaning = f"the query cannot start{' or loses state' if is_edited else ''}: it uses {reads}; {start.explained}"
    if logs.commits and way_to(facts, newest) is Way.REPAIR:
        # The newest batch is complete, so that its own offsets can take their place.
        return Severity.ERROR, meaning, f"run: {REPAIR}"
    return Severity.ERROR, meaning, roll_back(start)


def of_root(facts: AuditFacts) -> Iterator[Finding]:
    """Yield findings about the metadata files of the root."""
    root = facts.root
    is_own = root.origin is Origin.OWN
    binding = root.binding[0] if isinstance(root.binding, tuple) else None
    if isinstance(root.query, FileProblem):
        yield _described(root.query, "Spark cannot read the checkpoint", is_rewritten=is_own and _is_gone(root.query))
    elif root.query == UNFINISHED.decode():
        # The finding about the open journal has the commands.
        if not isinstance(root.half_switched, RewriteJournal):
            problem, hint = "is that of an unfinished migration, whose journal is missing", "delete the checkpoint"
            yield root_finding(
                FindingKind.DESCRIPTION_UNREADABLE, names.QUERY_METADATA, problem, "no query can start", hint
            )
    elif binding is not None and root.query != binding.root_id:
        problem = f"contains the id {root.query}, but {names.BINDING} contains {binding.root_id}"
        yield root_finding(
            FindingKind.DESCRIPTION_AT_ODDS, names.QUERY_METADATA, problem, "the job cannot start", RESTORE
        )
    if isinstance(root.binding, FileProblem):
        yield _described(root.binding, "the job cannot start, because the owner of the state is unknown")
    yield from _of_operators(facts, binding)
    yield from _of_schemas(facts)
    yield from _of_layouts(facts)
    yield from _of_moved(facts)
    yield from _of_batch_logs(facts)
    yield from _of_changed(facts)
    yield from _of_switchover(facts)


def _of_switchover(facts: AuditFacts) -> Iterator[Finding]:
    half_done = facts.root.half_switched
    if half_done is None:
        return
    if isinstance(half_done, FileProblem):
        yield root_finding(
            FindingKind.HALF_SWITCHED,
            half_done.path,
            half_done.text,
            "Statekeeper cannot tell whether a switchover is incomplete: do not start the query before you restore this "
            "file",
            RESTORE,
        )
        return
    begun = half_done.begun
    meaning = "if the query starts now, it fails or reads state of the wrong structure"
    if begun.rewrite is RewriteKind.MIGRATE:
        meaning = "no query can start on this checkpoint before the migration is complete"
    yield root_finding(
        FindingKind.HALF_SWITCHED,
        names.switchover(begun.number, "begun"),
        f"is the journal of an incomplete {begun.described} at batch {begun.batch}",
        meaning,
        f"before you start the query, run: {begun.finishing}; to reverse the {begun.rewrite.noun}, run: {begun.reversing}",
    )


def _of_operators(facts: AuditFacts, binding: Binding | None) -> Iterator[Finding]:
    metadata = {op: found for op, found in facts.root.operators.items() if isinstance(found, OperatorMetadata)}
    for operator, found in facts.root.operators.items():
        path = facts.root.metadata_paths[operator]
        if isinstance(found, FileProblem):
            yield _described(found, "Spark's state reader and Statekeeper cannot determine the stores of this operator")
            continue
        if found.operator != operator:
            twin = found.operator in metadata
            yield root_finding(
                FindingKind.TWO_OPERATORS if twin else FindingKind.DESCRIPTION_AT_ODDS,
                path,
                f"describes operator {found.operator}, "
                + (
                    f"as does {facts.root.metadata_paths[found.operator]}"
                    if twin
                    else "but its folder has another number"
                ),
                "Statekeeper cannot tell to which store each id in the commit log belongs",
                RESTORE,
            )
        elif binding is not None and not _fits(found, binding, _rescaled_to(facts)):
            partitions = counted(binding.partitions, "partition")
            problem = f"contradicts {names.BINDING}, which has {partitions} with one store each"
            yield root_finding(FindingKind.DESCRIPTION_AT_ODDS, path, problem, "the job cannot start", RESTORE)


def _rescaled_to(facts: AuditFacts) -> int | None:
    """Return the new number of partitions of a half-done rescale, which some files name already."""
    half_done = facts.root.half_switched
    return half_done.begun.partitions if isinstance(half_done, RewriteJournal) else None


def _fits(metadata: OperatorMetadata, binding: Binding, rescaled_to: int | None) -> bool:
    described = [(store.name, store.partitions) for store in metadata.stores]
    allowed = [[(names.DEFAULT_STORE, partitions)] for partitions in (binding.partitions, rescaled_to)]
    return metadata.operator < len(binding.stores) and described in allowed


def _of_schemas(facts: AuditFacts) -> Iterator[Finding]:
    bound = facts.root.binding if isinstance(facts.root.binding, tuple) else None
    for operator, found in facts.root.schemas.items():
        path = names.state_schema(operator)
        if isinstance(found, FileProblem):
            yield _of_schema(found, is_rewritten=facts.root.origin is Origin.OWN)
        elif bound is not None and operator < len(bound[0].stores):
            store = bound[0].stores[operator]
            values = {store.value_json, *(older[store.name] for older in bound[1].values() if store.name in older)}
            if found[0] != store.key_json or found[1] not in values:
                yield root_finding(
                    FindingKind.DESCRIPTION_AT_ODDS,
                    path,
                    f"differs from the schema in {names.BINDING}",
                    "Spark reads wrong values from the state of this operator",
                    START_JOB,
                    Severity.WARNING,
                )


def _of_layouts(facts: AuditFacts) -> Iterator[Finding]:
    """Yield findings about the state schemas of a native checkpoint."""
    known = {bad.path for bad in facts.root.schemas.values() if isinstance(bad, FileProblem)}
    for bad in facts.root.layouts.values():
        # Spark reads a type that Statekeeper does not decode: `unproven` lists these schemas.
        if isinstance(bad, FileProblem) and bad.path not in known and bad.flaw is not Flaw.UNKNOWN_TYPE:
            yield _of_schema(bad)
    for bad in facts.root.older_metadata:
        yield _described(bad, "Spark cannot read the state of this operator at older batches")


def _of_schema(bad: FileProblem, *, is_rewritten: bool = False) -> Finding:
    if is_unknown(bad) and not is_rewritten:
        return root_finding(
            FindingKind.DESCRIPTION_UNREADABLE,
            bad.path,
            bad.text,
            "a newer Spark release may have written it and can read it; the commands dump, diff and audit --deep cannot "
            "decode the rows of this operator",
            UPGRADE,
            Severity.WARNING,
        )
    return _described(bad, "Spark cannot read the state of this operator", is_rewritten=is_rewritten)


def _of_moved(facts: AuditFacts) -> Iterator[Finding]:
    for one in facts.root.moved:
        is_sure = one.locality is Locality.ELSEWHERE
        yield root_finding(
            FindingKind.DESCRIPTION_MOVED,
            one.path,
            f"refers to the state schema {one.uri}, outside this checkpoint",
            "the query cannot start, or depends on another checkpoint"
            if is_sure
            else f"unless {one.location} is another URL of this checkpoint, the query cannot start",
            f"stop the query, then run: {REPAIR}",
            Severity.ERROR if is_sure else Severity.WARNING,
        )


def _of_batch_logs(facts: AuditFacts) -> Iterator[Finding]:
    """Yield findings about damaged batch logs. The findings of the stores name the versions that are lost."""
    for bad in facts.root.batch_logs:
        place = names.parse_batch_log(bad.path)
        assert place is not None
        yield root_finding(
            FindingKind.BATCH_LOG_UNREADABLE,
            bad.path,
            bad.text,
            f"the changelogs of batch {place[0] - 1} in it are lost",
            RESTORE,
            Severity.WARNING,
        )


def _of_changed(facts: AuditFacts) -> Iterator[Finding]:
    for bad in facts.changed:
        yield root_finding(
            FindingKind.DESCRIPTION_CHANGED,
            bad.path,
            bad.text,
            "the file was modified by a person or by a faulty disk; Spark may restart from wrong data",
            f"{RESTORE}; if the modification is intended, delete {names.hidden_checksum(bad.path)}",
            Severity.WARNING,
        )


def _is_gone(bad: FileProblem) -> bool:
    return bad.flaw is Flaw.MISSING


def _described(bad: FileProblem, meaning: str, *, is_rewritten: bool = False) -> Finding:
    """Return a finding about a metadata file. `is_rewritten`: the next start of the job writes the file again."""
    return root_finding(
        FindingKind.DESCRIPTION_MISSING if _is_gone(bad) else FindingKind.DESCRIPTION_UNREADABLE,
        bad.path,
        bad.text,
        meaning,
        START_JOB if is_rewritten else UPGRADE if is_unknown(bad) else RESTORE,
        Severity.WARNING if is_rewritten else Severity.ERROR,
    )


def _runs(batches: Sequence[int]) -> list[tuple[int, int]]:
    """Group consecutive batches as (first, last)."""
    found = []
    for _, group in itertools.groupby(enumerate(sorted(batches)), key=lambda pair: pair[1] - pair[0]):
        run = [batch for _, batch in group]
        found.append((run[0], run[-1]))
    return found
