"""Findings about the logs and the metadata files of a checkpoint. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from statestore.binding import Binding
from statestore.counts import counted
from statestore.file_problem import FileProblem, Flaw
from statestore.format import names
from statestore.format.operators import OperatorMetadata
from statestore.maintenance.audit.actions import REPAIR, RESTORE, START_JOB, UPGRADE
from statestore.maintenance.audit.facts import AuditFacts, is_unknown
from statestore.maintenance.audit.findings import Finding, FindingKind, Restart, Severity, root_finding
from statestore.origin import Origin
from statestore.storage.urls import Locality
from statestore.switch_journal import OpenJournal


def of_logs(facts: AuditFacts, restart: Restart) -> Iterator[Finding]:
    """Yield findings about `commits/` and `offsets/`."""
    yield from _of_commits(facts, restart)
    yield from _of_misfits(facts, restart)
    yield from _of_offsets(facts, restart)


def _of_commits(facts: AuditFacts, restart: Restart) -> Iterator[Finding]:
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
            FindingKind.COMMIT_MISSING, names.commits(first), many, _not_restorable(first, last, restart), RESTORE
        )
    for batch, bad in commits.items():
        if isinstance(bad, FileProblem):
            meaning = _not_restorable(batch, batch, restart)
            if batch == newest and is_unknown(bad):
                meaning = _of_a_later_spark(restart)
            elif batch == newest:
                meaning = f"the query cannot start, because this is the newest commit; {restart.explained}"
            action = UPGRADE if is_unknown(bad) else RESTORE
            yield root_finding(FindingKind.COMMIT_UNREADABLE, bad.path, bad.text, meaning, action)


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


def _of_offsets(facts: AuditFacts, restart: Restart) -> Iterator[Finding]:
    offsets, newest = facts.logs.offsets, max(facts.logs.commits, default=-1)
    # Offsets older than the oldest file were purged.
    missing = [batch for batch in facts.logs.commits if batch not in offsets and batch >= min(offsets, default=0)]
    for first, last in _runs(missing):
        at_head = last == newest
        yield root_finding(
            FindingKind.OFFSETS_MISSING,
            names.offsets(first),
            f"and all offsets up to batch {last} are missing" if last > first else "is missing",
            _offsets_meaning(at_head=at_head, first=first, last=last),
            RESTORE,
            Severity.ERROR if at_head else Severity.WARNING,
        )
    for batch, bad in facts.logs.offsets_read.items():
        if isinstance(bad, FileProblem):
            at_head = batch >= newest
            meaning = _offsets_meaning(at_head=at_head, first=batch, last=batch)
            if at_head and is_unknown(bad):
                meaning = _of_a_later_spark(restart)
            action = UPGRADE if is_unknown(bad) else RESTORE
            severity = Severity.ERROR if at_head else Severity.WARNING
            yield root_finding(FindingKind.OFFSETS_UNREADABLE, bad.path, bad.text, meaning, action, severity)
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
            f"the commits from batch {newest + 1} on are lost, or the query was rolled back",
            f"restore {names.COMMITS}/ from a backup; if the query was rolled back, delete the offsets from batch "
            f"{newest + 1} on",
        )


def _offsets_meaning(*, at_head: bool, first: int, last: int) -> str:
    if at_head:
        return "the query cannot start from its newest batch"
    return (
        f"batch {first} can no longer be restored"
        if first == last
        else f"batches {first} to {last} can no longer be restored"
    )


def of_root(facts: AuditFacts) -> Iterator[Finding]:
    """Yield findings about the metadata files of the root."""
    root = facts.root
    is_own = root.origin is Origin.OWN
    binding = root.binding[0] if isinstance(root.binding, tuple) else None
    if isinstance(root.query, FileProblem):
        yield _described(root.query, "Spark cannot read the checkpoint", is_rewritten=is_own and _is_gone(root.query))
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
    yield root_finding(
        FindingKind.HALF_SWITCHED,
        names.switchover(begun.number, "begun"),
        f"is the journal of an incomplete {begun.described} at batch {begun.batch}",
        "if the query starts now, it fails or reads state of the wrong structure",
        f"before you start the query, run: {begun.finishing}; to reverse the {begun.rewrite.value}, run: {begun.reversing}",
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
    return half_done.begun.partitions if isinstance(half_done, OpenJournal) else None


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
            f"the changelogs of version {place[0]} (batch {place[0] - 1}) in it are lost",
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
