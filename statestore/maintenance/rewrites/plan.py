"""Plans a rescale, or states why it is blocked. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from statestore.errors import StatekeeperError
from statestore.format import names
from statestore.format.names import MOST_PARTITIONS, StorePath
from statestore.format.sparks import Spark
from statestore.format.structure import Structure
from statestore.maintenance.audit import FindingKind
from statestore.maintenance.rewrites.plans import Goal, OperatorFacts, RewriteFacts, RewritePlan, StoreGroup
from statestore.maintenance.switchover import SwitchoverFacts
from statestore.origin import Origin
from statestore.switch_journal import RewriteKind

_COPIES = 3
"""A row is on local disk at most this many times: in its source, in the spool, and in its target, which is read back."""

_LOCAL_BYTES_PER_TAIL = 8
"""Growth of a compressed changelog on local disk, where it is fetched, sorted, and written as tables."""


def plan(facts: RewriteFacts, goal: Goal, spark: Spark | None = None) -> RewritePlan:
    """Plan a rewrite. `spark`: the release that continues, if known. Pure."""
    stopped, partitions = facts.stopped, goal.partitions
    half_done = stopped.half_done
    is_there = half_done is None and stopped.batch is not None and stopped.partitions == partitions
    groups = () if is_there else tuple(_groups(facts, partitions))
    local_bytes = _local_bytes(groups)
    refusals = () if is_there else tuple(_refusals(facts, groups, partitions, spark, local_bytes))
    structure = stopped.structure or Structure.V1
    header = "v1"
    if half_done is not None:
        header = half_done.begun.header
    elif structure is Structure.V2 and spark is not None:
        header = spark.header
    return RewritePlan(
        rewrite=RewriteKind.RESCALE,
        batch=stopped.batch if half_done is None else half_done.begun.batch,
        partitions=partitions,
        structure=structure,
        header=header,
        groups=groups,
        refusals=refusals,
        commit=stopped.commit,
        offsets=facts.offsets,
        is_there=is_there,
        half_done=half_done,
        conf=stopped.conf,
        local_bytes=local_bytes,
        seconds=sum(group.read_bytes for group in groups) / stopped.replay_bytes_per_second,
    )


def _groups(facts: RewriteFacts, partitions: int) -> Iterator[StoreGroup]:
    for operator in facts.operators:
        count = operator.partitions if operator.is_lone else partitions
        for name in operator.stores:
            sources = [
                one
                for one in facts.stopped.stores
                if (one.store.operator, one.store.store) == (operator.operator, name)
            ]
            rules = operator.rules[name]
            yield StoreGroup(
                operator=operator.operator,
                name=name,
                sources=tuple(sources),
                targets=tuple(StorePath(operator.operator, number, name) for number in range(count)),
                rules=None if operator.is_lone or isinstance(rules, StatekeeperError) else rules,
            )


def _local_bytes(groups: tuple[StoreGroup, ...]) -> int:
    """An upper bound of the local disk of the largest group. Groups are rewritten one after another."""
    sizes = [
        sum(one.base_bytes + _LOCAL_BYTES_PER_TAIL * one.tail_bytes for one in group.sources) * _COPIES
        for group in groups
    ]
    return max(sizes, default=0)


def _refusals(
    facts: RewriteFacts,
    groups: tuple[StoreGroup, ...],
    partitions: int,
    spark: Spark | None,
    local_bytes: int,
) -> Iterator[str]:
    stopped = facts.stopped
    if stopped.origin is Origin.OWN:
        yield "the checkpoint is the state root of a job on `pipelines`; this release rescales only native checkpoints"
        return
    if stopped.batch is None:
        yield f"no batch is committed yet: start the query with spark.sql.shuffle.partitions={partitions}"
        return
    if not 0 < partitions <= MOST_PARTITIONS:
        yield f"--partitions {partitions} is not between 1 and {MOST_PARTITIONS:,}"
        return
    if not stopped.stores:
        yield "the checkpoint has no state: a query without state takes its number of partitions from the session"
        return
    yield from _of_half_done(stopped, partitions)
    yield from _of_logs(stopped)
    for one in stopped.stores:
        if one.load is None or one.problem:
            yield f"{one.store}: {one.problem or 'the head cannot be loaded'}"
    yield from _of_operators(facts.operators)
    yield from _of_audit(stopped)
    if stopped.structure is Structure.V2 and spark is None and stopped.may_be_of_4_0 and stopped.half_done is None:
        yield (
            "Spark 4.0 needs other snapshots in structure V2 than later releases, and the checkpoint does not show the "
            "release: add --for-spark"
        )
    if local_bytes > stopped.free_bytes:
        yield (
            f"up to {local_bytes:,} bytes of local disk are needed, but {stopped.free_bytes:,} are free: use another disk "
            f"with --scratch"
        )


def _of_half_done(stopped: SwitchoverFacts, partitions: int) -> Iterator[str]:
    if stopped.half_done is None:
        return
    begun = stopped.half_done.begun
    if begun.rewrite is not RewriteKind.RESCALE or begun.partitions != partitions:
        yield f"a {begun.described} is half done: to finish it, run: {begun.finishing}; to reverse it: {begun.reversing}"


def _of_logs(stopped: SwitchoverFacts) -> Iterator[str]:
    assert stopped.batch is not None
    if not stopped.is_plain_commit:
        yield f"{names.commits(stopped.batch)} has unknown fields, which the rewrite would lose: upgrade Statekeeper"
    if stopped.half_done is None and stopped.begun > stopped.batch:
        yield (
            f"batch {stopped.begun} is started but not committed, so the sink may already have its rows: run the query "
            f"until it commits this batch, then stop it"
        )
    if stopped.partitions is None:
        yield f"{names.offsets(stopped.batch)} does not name spark.sql.shuffle.partitions: the present number is unknown"


def _of_operators(found: tuple[OperatorFacts, ...]) -> Iterator[str]:
    for operator in found:
        yield from (rules.what for rules in operator.rules.values() if isinstance(rules, StatekeeperError))


def _of_audit(stopped: SwitchoverFacts) -> Iterator[str]:
    if stopped.audit is None:
        return
    bad = [f for f in stopped.audit.findings if f in stopped.audit.breaks or f.kind is FindingKind.ROLLED_BACK_FILES]
    if bad:
        yield (
            f"the audit reports {len(bad):,} findings, the first: {bad[0].file} {bad[0].problem} -> {bad[0].action}; "
            f"to list all, run: statekeeper audit ROOT"
        )
