"""What the facts about the logs, and about what the root says of itself, mean. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from statestore.binding import Binding
from statestore.format import names
from statestore.format.operators import OperatorMetadata
from statestore.maintenance.audit.facts import AuditFacts, Bad, Flaw, is_unknown
from statestore.maintenance.audit.findings import Finding, FindingKind, Restart, Severity
from statestore.storage.urls import Locality

_RESTORE = "restore the file from a backup"
_KNOW_IT = "use a Statekeeper that knows this format, and leave the file as it is"
_REWRITTEN = "start the job once: it writes the file again"


def of_logs(facts: AuditFacts, restart: Restart) -> Iterator[Finding]:
    """What is wrong with `commits/` and `offsets/`."""
    yield from _of_commits(facts, restart)
    yield from _of_misfits(facts, restart)
    yield from _of_offsets(facts)


def _of_commits(facts: AuditFacts, restart: Restart) -> Iterator[Finding]:
    commits = facts.logs.commits
    newest = max(commits, default=-1)
    # Not by all the numbers between them: a damaged one is not to become a loop of billions.
    gaps = [(before + 1, after - 1) for before, after in itertools.pairwise(sorted(commits)) if after > before + 1]
    if facts.stateless:
        # Asynchronous progress tracking writes the logs of some batches only, and a start needs the newest alone.
        gaps = []
    for first, last in gaps:
        many = f"is missing, and so are those up to batch {last}" if last > first else "is missing"
        yield _finding(
            FindingKind.COMMIT_MISSING, names.commits(first), many, _gone_back(first, last, restart), _RESTORE
        )
    for batch, bad in commits.items():
        if isinstance(bad, Bad):
            meaning = _gone_back(batch, batch, restart)
            if batch == newest and is_unknown(bad):
                meaning = f"a later Spark may have written it, and go on from it; {restart.explained}"
            elif batch == newest:
                meaning = f"it is the newest commit: the query cannot start; {restart.explained}"
            action = _KNOW_IT if is_unknown(bad) else _RESTORE
            yield _finding(FindingKind.COMMIT_UNREADABLE, bad.path, bad.why, meaning, action)


def _gone_back(first: int, last: int, restart: Restart) -> str:
    which = f"batch {first}" if first == last else f"batches {first} to {last}"
    return f"{which} cannot be gone back to; {restart.explained}"


def _of_misfits(facts: AuditFacts, restart: Restart) -> Iterator[Finding]:
    blamed = {misfit.operator for misfit in facts.misfits.values()}
    for operator in sorted(blamed):
        batches = [batch for batch, misfit in facts.misfits.items() if misfit.operator == operator]
        if isinstance(facts.root.operators[operator], OperatorMetadata) and len(batches) == len(facts.logs.readable):
            yield _finding(
                FindingKind.DESCRIPTION_AT_ODDS,
                facts.root.metadata_paths[operator],
                f"fits no commit: the newest {facts.misfits[max(batches)].problem}",
                restart.explained,
                _RESTORE,
            )
            continue
        for batch in batches:
            problem = f"{facts.misfits[batch].problem} of operator {operator}"
            yield _finding(
                FindingKind.COMMIT_AT_ODDS, names.commits(batch), problem, _gone_back(batch, batch, restart), _RESTORE
            )


def _of_offsets(facts: AuditFacts) -> Iterator[Finding]:
    offsets, newest = facts.logs.offsets, max(facts.logs.commits, default=-1)
    # Older ones than the oldest that there is were purged.
    missing = [batch for batch in facts.logs.commits if batch not in offsets and batch >= min(offsets, default=0)]
    for first, last in _runs(missing):
        at_head = last == newest
        yield _finding(
            FindingKind.OFFSETS_MISSING,
            names.offsets(first),
            f"is missing, and so are those up to batch {last}" if last > first else "is missing",
            "the query cannot start from its newest batch" if at_head else "this batch cannot be gone back to",
            _RESTORE,
            Severity.ERROR if at_head else Severity.WARNING,
        )
    for batch, bad in facts.logs.offsets_read.items():
        # Later Sparks write a log of another version, which nothing here needs.
        if isinstance(bad, Bad) and not (bad.flaw is Flaw.UNKNOWN_FORMAT and facts.root.binding is None):
            at_head = batch >= newest
            meaning = "the query cannot start from its newest batch" if at_head else "this batch cannot be gone back to"
            severity = Severity.ERROR if at_head else Severity.WARNING
            yield _finding(FindingKind.OFFSETS_UNREADABLE, bad.path, bad.why, meaning, _RESTORE, severity)
    for path in facts.logs.in_the_way:
        name = path.rpartition("/.")[2].removesuffix(names.SIDECAR)
        yield _finding(
            FindingKind.LOG_IN_THE_WAY,
            path,
            f"was left when {path.partition('/')[0]}/{name} was deleted",
            f"batch {name} cannot be written: the query stops there (Multiple streaming queries are concurrently using)",
            "delete it",
        )
    if offsets and max(offsets) > newest + 1 and not facts.stateless:
        said = f"the newest commit is of batch {newest}" if facts.logs.commits else "there is no commit"
        yield _finding(
            FindingKind.OFFSETS_AHEAD,
            names.offsets(max(offsets)),
            f"is the newest, and {said}",
            f"the commits from batch {newest + 1} on were lost, or the query was taken back",
            f"restore {names.COMMITS}/; if the query was taken back, delete the offsets from batch {newest + 1} on",
        )


def of_root(facts: AuditFacts) -> Iterator[Finding]:
    """What is wrong with what the root says of itself."""
    root = facts.root
    is_own = root.binding is not None
    binding = root.binding[0] if isinstance(root.binding, tuple) else None
    if isinstance(root.query, Bad):
        yield _described(root.query, "Spark does not read the checkpoint", is_rewritten=is_own and _is_gone(root.query))
    elif binding is not None and root.query != binding.root_id:
        problem = f"says {root.query}, {names.BINDING} says {binding.root_id}"
        yield _finding(
            FindingKind.DESCRIPTION_AT_ODDS, names.QUERY_METADATA, problem, "the job does not start", _RESTORE
        )
    if isinstance(root.binding, Bad):
        yield _described(root.binding, "the job does not start: nothing says which query the state belongs to")
    yield from _of_operators(facts, binding)
    yield from _of_schemas(facts)
    yield from _of_layouts(facts)
    yield from _of_moved(facts)
    yield from _of_changed(facts)
    yield from _of_switchover(facts)


def _of_switchover(facts: AuditFacts) -> Iterator[Finding]:
    half_done = facts.root.half_switched
    if half_done is None:
        return
    if isinstance(half_done, Bad):
        yield _finding(
            FindingKind.HALF_SWITCHED,
            half_done.path,
            half_done.why,
            "whether a switchover between the structures is half done is not known",
            _RESTORE,
        )
        return
    begun = half_done.begun
    yield _finding(
        FindingKind.HALF_SWITCHED,
        names.switchover(begun.number, "begun"),
        f"is the journal of a switchover to {begun.to.value} at batch {begun.batch}, which has not ended",
        "a query that is started now is refused, or goes on in one of the two structures",
        f"before the query is started: statekeeper switch ROOT --to {begun.to.value} --apply --confirm-stopped finishes "
        f"it, statekeeper switch ROOT --abort --confirm-stopped takes it back",
    )


def _of_operators(facts: AuditFacts, binding: Binding | None) -> Iterator[Finding]:
    metadata = {op: found for op, found in facts.root.operators.items() if isinstance(found, OperatorMetadata)}
    for operator, found in facts.root.operators.items():
        path = facts.root.metadata_paths[operator]
        if isinstance(found, Bad):
            yield _described(found, "neither Spark's reader nor maintenance knows the stores of this operator")
            continue
        if found.operator != operator:
            twin = found.operator in metadata
            yield _finding(
                FindingKind.TWO_OPERATORS if twin else FindingKind.DESCRIPTION_AT_ODDS,
                path,
                f"says operator {found.operator}"
                + (f", as {facts.root.metadata_paths[found.operator]} does" if twin else ", its folder another"),
                "which ids of the commit log belong to which stores is not certain",
                _RESTORE,
            )
        elif binding is not None and not _fits(found, binding):
            problem = f"does not describe {binding.partitions} partitions of one store, as {names.BINDING} does"
            yield _finding(FindingKind.DESCRIPTION_AT_ODDS, path, problem, "the job does not start", _RESTORE)


def _fits(metadata: OperatorMetadata, binding: Binding) -> bool:
    described = [(store.name, store.partitions) for store in metadata.stores]
    return metadata.operator < len(binding.stores) and described == [(names.DEFAULT_STORE, binding.partitions)]


def _of_schemas(facts: AuditFacts) -> Iterator[Finding]:
    bound = facts.root.binding if isinstance(facts.root.binding, tuple) else None
    for operator, found in facts.root.schemas.items():
        path = names.state_schema(operator)
        if isinstance(found, Bad):
            if found.flaw is not Flaw.UNKNOWN_FORMAT or facts.root.binding is not None:
                is_own = facts.root.binding is not None
                yield _described(found, "Spark does not read the state of this operator", is_rewritten=is_own)
        elif bound is not None and operator < len(bound[0].stores):
            store = bound[0].stores[operator]
            values = {store.value_json, *(older[store.name] for older in bound[1].values() if store.name in older)}
            if found[0] != store.key_json or found[1] not in values:
                yield _finding(
                    FindingKind.DESCRIPTION_AT_ODDS,
                    path,
                    f"is not the schema that {names.BINDING} says",
                    "Spark reads the state of this operator wrongly",
                    _REWRITTEN,
                    Severity.WARNING,
                )


def _of_layouts(facts: AuditFacts) -> Iterator[Finding]:
    """Of a checkpoint of Spark's: the schemas of its stores."""
    known = {bad.path for bad in facts.root.schemas.values() if isinstance(bad, Bad)}
    for bad in facts.root.layouts.values():
        if isinstance(bad, Bad) and bad.path not in known and bad.flaw is not Flaw.UNKNOWN_FORMAT:
            yield _described(bad, "Spark does not read the state of this operator")
    for bad in facts.root.older_metadata:
        yield _described(bad, "Spark does not read the state of this operator at older batches")


def _of_moved(facts: AuditFacts) -> Iterator[Finding]:
    for one in facts.root.moved:
        is_sure = one.locality is Locality.ELSEWHERE
        yield _finding(
            FindingKind.DESCRIPTION_MOVED,
            one.path,
            f"names its state schema at {one.uri}, outside of this checkpoint",
            "Spark reads the schema there: the query does not start, or depends on another checkpoint"
            if is_sure
            else f"unless Spark reaches this checkpoint at {one.location}, the query does not start",
            "statekeeper repair ROOT --apply --confirm-stopped has it name this place",
            Severity.ERROR if is_sure else Severity.WARNING,
        )


def _of_changed(facts: AuditFacts) -> Iterator[Finding]:
    for bad in facts.changed:
        yield _finding(
            FindingKind.DESCRIPTION_CHANGED,
            bad.path,
            bad.why,
            "the file was changed after Spark wrote it, by a person or by a faulty disk: Spark may go on from wrong facts",
            f"{_RESTORE}; if the change is meant, delete {names.hidden_checksum(bad.path)}",
            Severity.WARNING,
        )


def _is_gone(bad: Bad) -> bool:
    return bad.flaw is Flaw.MISSING


def _described(bad: Bad, meaning: str, *, is_rewritten: bool = False) -> Finding:
    """`is_rewritten`: the next start of the job mends it."""
    return _finding(
        FindingKind.DESCRIPTION_MISSING if _is_gone(bad) else FindingKind.DESCRIPTION_UNREADABLE,
        bad.path,
        bad.why,
        meaning,
        _REWRITTEN if is_rewritten else _RESTORE,
        Severity.WARNING if is_rewritten else Severity.ERROR,
    )


def _finding(
    what: FindingKind, file: str, problem: str, meaning: str, action: str, severity: Severity = Severity.ERROR
) -> Finding:
    return Finding(severity, what, None, file, problem, meaning, action)


def _runs(batches: Sequence[int]) -> list[tuple[int, int]]:
    """Batches that follow on each other, as (first, last)."""
    found = []
    for _, group in itertools.groupby(enumerate(sorted(batches)), key=lambda pair: pair[1] - pair[0]):
        run = [batch for _, batch in group]
        found.append((run[0], run[-1]))
    return found
