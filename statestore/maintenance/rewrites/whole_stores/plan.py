"""Plans a rewrite of state, or states why it is blocked. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.workers import WORKERS, results_in_pool
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.contents.differences import Change, Difference
from statekeeper.statestore.contents.rows import Contents, layout, opened
from statekeeper.statestore.format import names
from statekeeper.statestore.format.logs import SHUFFLE_PARTITIONS
from statekeeper.statestore.format.names import MOST_PARTITIONS, StorePath
from statekeeper.statestore.format.plain_values import plain_rows
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.row_encodings import RowEncoding
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine.model import StoppedQuery
from statekeeper.statestore.maintenance.rewrites.engine.plan import (
    LOCAL_BYTES_PER_TAIL,
    of_audit,
    of_disk,
    of_other,
    of_release,
    of_stores,
)
from statekeeper.statestore.maintenance.rewrites.evolution import Evolve, EvolvedRows, schema_change
from statekeeper.statestore.maintenance.rewrites.whole_stores.evolve import evolutions, evolved_groups, of_root
from statekeeper.statestore.maintenance.rewrites.whole_stores.load import ROWS_PER_SECOND, incoming, of_load
from statekeeper.statestore.maintenance.rewrites.whole_stores.load import local_bytes as local_bytes_of_load
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import (
    Convert,
    Goal,
    Load,
    ProviderConversion,
    Rescale,
    RewriteFacts,
    RewritePlan,
    StoreGroup,
)
from statekeeper.statestore.storage import Storage

_COPIES = 3
"""A row is on local disk at most this many times: in its source, in the spool, and in its target, which is read back."""

_KINDS: dict[type[Goal], RewriteKind] = {
    Rescale: RewriteKind.RESCALE,
    Convert: RewriteKind.CONVERT,
    Load: RewriteKind.LOAD,
    Evolve: RewriteKind.EVOLVE,
}


def plan(facts: RewriteFacts, goal: Goal, spark: Spark | None = None) -> RewritePlan:
    """Plan a rewrite. `spark`: the release that continues, if known. Pure. Raises as `evolution.evolution_of`."""
    stopped = facts.stopped
    half_done = stopped.half_done
    is_there = half_done is None and stopped.batch is not None and _is_there(stopped, goal)
    evolved = evolutions(facts, goal) if isinstance(goal, Evolve) else {}
    if isinstance(goal, Evolve):
        groups = tuple(evolved_groups(facts, evolved))
    else:
        groups = () if is_there else tuple(_groups(facts, goal))
    local_bytes = _local_bytes(groups, goal)
    refusals = () if is_there else tuple(_refusals(facts, goal, spark, local_bytes))
    structure = goal.structure if isinstance(goal, Convert) else stopped.structure or Structure.V1
    header = "v1"
    if half_done is not None:
        header = half_done.begun.header
    elif structure is Structure.V2 and spark is not None and stopped.origin is Origin.NATIVE:
        header = spark.header
    return RewritePlan(
        rewrite=_KINDS[type(goal)],
        batch=stopped.batch if half_done is None else half_done.begun.batch,
        partitions=goal.partitions if isinstance(goal, Rescale) else stopped.partitions,
        provider=_provider(stopped, goal),
        structure=structure,
        header=header,
        groups=groups,
        refusals=refusals,
        begun=stopped.begun,
        commit=stopped.commit,
        offsets=facts.offsets,
        is_there=is_there,
        half_done=half_done,
        conf=stopped.conf,
        local_bytes=local_bytes,
        seconds=_seconds(groups, goal, stopped),
        origin=stopped.origin,
        load=goal if isinstance(goal, Load) else None,
        evolve=goal if isinstance(goal, Evolve) else None,
        schemas={name: schema_change(one) for name, one in evolved.items()},
        heads={one.store: one.head for one in stopped.stores} if isinstance(goal, Evolve) else {},
    )


def _seconds(groups: tuple[StoreGroup, ...], goal: Goal, stopped: StoppedQuery) -> float:
    if isinstance(goal, Load):
        return sum(group.incoming_rows for group in groups) / ROWS_PER_SECOND
    return sum(group.read_bytes for group in groups) / stopped.replay_bytes_per_second


def _provider(stopped: StoppedQuery, goal: Goal) -> Provider:
    return goal.provider if isinstance(goal, Convert) else stopped.conf.provider


def _is_there(stopped: StoppedQuery, goal: Goal) -> bool:
    if isinstance(goal, Rescale):
        return stopped.partitions == goal.partitions
    if isinstance(goal, Evolve | Load):
        # The changes of an evolution are of the present columns, so they cannot be there.
        return False
    return (stopped.conf.provider, stopped.structure) == (goal.provider, goal.structure)


def _groups(facts: RewriteFacts, goal: Rescale | Convert | Load) -> Iterator[StoreGroup]:
    provider = _provider(facts.stopped, goal)
    for operator in facts.operators:
        moves = isinstance(goal, Rescale) and not operator.is_lone
        count = goal.partitions if isinstance(goal, Rescale) and moves else operator.partitions
        for name in operator.stores:
            place = operator.operator, name
            rules, encoding = operator.rules[name], operator.encodings[name]
            conversion = None
            if isinstance(goal, Convert) and isinstance(encoding, RowEncoding):
                conversion = ProviderConversion(encoding, provider)
            yield StoreGroup(
                operator=operator.operator,
                name=name,
                sources=tuple(s for s in facts.stopped.stores if (s.store.operator, s.store.store) == place),
                targets=tuple(StorePath(operator.operator, number, name, provider) for number in range(count)),
                rules=rules if moves and not isinstance(rules, StatekeeperError) else None,
                incoming=incoming(facts, goal, operator, name) if isinstance(goal, Load) else (),
                conversion=conversion,
            )


def _local_bytes(groups: tuple[StoreGroup, ...], goal: Goal) -> int:
    """An upper bound of the local disk of the largest group. Groups are rewritten one after another."""
    if isinstance(goal, Load):
        return max((local_bytes_of_load(group) for group in groups), default=0)
    return local_bytes_of(groups)


def local_bytes_of(groups: Iterable[StoreGroup]) -> int:
    """Return an upper bound of the local disk of the largest group, whose present rows are rewritten."""
    sizes = [
        sum(one.base_bytes + LOCAL_BYTES_PER_TAIL * one.tail_bytes for one in group.sources) * _COPIES
        for group in groups
    ]
    return max(sizes, default=0)


def _refusals(facts: RewriteFacts, goal: Goal, spark: Spark | None, local_bytes: int) -> Iterator[str]:
    stopped = facts.stopped
    if isinstance(goal, Evolve):
        yield from of_root(stopped)
    if stopped.origin is Origin.OWN and isinstance(goal, Convert):
        yield "the checkpoint is the state root of a job on `pipelines`, which always has the RocksDB provider"
        return
    if stopped.batch is None:
        yield "no batch is committed yet: nothing to rewrite; start the query with the new settings"
        return
    yield from _of_half_done(stopped, goal)
    if facts.is_appended:
        return
    if not stopped.stores:
        yield "the checkpoint has no state: nothing to rewrite; start the query with the new settings"
        return
    yield from of_logs(stopped)
    yield from of_stores(stopped)
    match goal:
        case Rescale():
            yield from _of_rescale(facts, goal)
        case Convert():
            yield from _of_conversion(facts, goal)
        case Load():
            yield from of_load(facts, goal)
    yield from of_audit(stopped)
    structure = goal.structure if isinstance(goal, Convert) else stopped.structure
    yield from of_release(stopped, structure, spark)
    yield from of_disk(stopped, local_bytes, grows_with_workers=False)


def _of_rescale(facts: RewriteFacts, goal: Rescale) -> Iterator[str]:
    assert facts.stopped.batch is not None
    if not 0 < goal.partitions <= MOST_PARTITIONS:
        yield f"--partitions {goal.partitions} is not between 1 and {MOST_PARTITIONS:,}"
    if facts.key_groups is not None:
        yield from _of_own_root(facts.stopped, facts.key_groups, goal)
    elif facts.stopped.partitions is None:
        path = names.offsets(facts.stopped.batch)
        yield (
            f"{path} does not contain {SHUFFLE_PARTITIONS}, which Spark 4.2 and 4.3 do not record in the first run of a "
            f"query with an offset log of v2: start the query with {SHUFFLE_PARTITIONS}={_width(facts)} for one more "
            "batch, and stop it. With another number, the query would lose state. Then run this command again"
        )
    if facts.stopped.conf.provider is Provider.HDFS_BACKED:
        # An interrupted run leaves <N+2>.snapshot. The default provider ignores the guards of `execute`. A query that is
        # started then runs batch N+1 and afterwards loads this snapshot, without the rows of its batch.
        yield (
            "rescale does not support Spark's default provider: first move the query to RocksDB with: statekeeper convert "
            "ROOT --to rocksdb"
        )
    for operator in facts.operators:
        for rules in operator.rules.values():
            if isinstance(rules, StatekeeperError):
                yield f"{rules.what}: {rules.hint}" if rules.hint else rules.what


def _width(facts: RewriteFacts) -> int:
    """Return the number of partitions of the query, as its operators have it."""
    return max((operator.partitions for operator in facts.operators), default=1)


def _of_own_root(stopped: StoppedQuery, key_groups: int, goal: Rescale) -> Iterator[str]:
    if stopped.structure is Structure.V1:
        yield (
            "the root has structure V1, in which the new snapshots would have the names of the present ones; first run: "
            "statekeeper switch ROOT --to v2"
        )
    if goal.partitions > key_groups:
        yield (
            f"--partitions {goal.partitions} is more than the {key_groups} key groups of the root, and a partition has at "
            f"least one: choose at most {key_groups}"
        )


def _of_conversion(facts: RewriteFacts, goal: Convert) -> Iterator[str]:
    if facts.stopped.conf.provider is goal.provider:
        yield (
            f"the checkpoint already has the provider {goal.provider.value}, so there is nothing to convert. To change its "
            f"structure, run: statekeeper switch ROOT --to {goal.structure.value}"
        )
        return
    if goal.provider is Provider.HDFS_BACKED and goal.structure is Structure.V2:
        yield f"{goal.provider.value} supports only structure V1: omit --structure"
    unsupported = [
        f"operator {operator.operator} ({operator.name or 'unnamed'}), store {name}: {encoding.what}"
        + (f": {encoding.hint}" if encoding.hint else "")
        for operator in facts.operators
        for name, encoding in operator.encodings.items()
        if isinstance(encoding, StatekeeperError)
    ]
    yield from unsupported
    if goal.provider is Provider.HDFS_BACKED and facts.stopped.structure is Structure.V2 and not unsupported:
        yield (
            f"{goal.provider.value} supports only structure V1, but the checkpoint has structure V2: first run: "
            "statekeeper switch ROOT --to v1"
        )


def _of_half_done(stopped: StoppedQuery, goal: Goal) -> Iterator[str]:
    if stopped.half_done is None:
        return
    begun = stopped.half_done.begun
    match goal:
        case Rescale(partitions):
            is_same = (begun.rewrite, begun.partitions) == (RewriteKind.RESCALE, partitions)
        case Convert(provider, structure):
            is_same = (begun.rewrite, begun.provider, begun.to) == (RewriteKind.CONVERT, provider, structure)
        case Load(saved):
            is_same = (begun.rewrite, begun.rows) == (RewriteKind.LOAD, saved.identity)
        case Evolve():
            is_same = (begun.rewrite, begun.rows) == (RewriteKind.EVOLVE, goal.digest)
    if not is_same:
        yield of_other(begun)


def of_logs(stopped: StoppedQuery) -> Iterator[str]:
    """Yield the reasons in the logs of a query that was not stopped between two batches."""
    assert stopped.batch is not None
    if not stopped.is_plain_commit:
        yield f"{names.commits(stopped.batch)} has unknown fields, which the rewrite would lose: upgrade Statekeeper"
    if stopped.half_done is None and (stopped.begun > stopped.batch or stopped.pending):
        yield (
            f"batch {stopped.batch + 1} is started but not committed, so the sink may already have its rows: run the query "
            f"until it commits this batch, then stop it"
        )


SHOWN_ROWS = 20
"""The rows that a plan shows."""


@dataclass(frozen=True, kw_only=True)
class EvolutionPreview:
    """The number of rows by store, and the first rows, each with its store."""

    rows: dict[StorePath, int]
    first: tuple[tuple[StorePath, Difference], ...]

    @property
    def total(self) -> int:
        """The number of rows."""
        return sum(self.rows.values())


def preview(
    storage: Storage, planned: RewritePlan, *, scratch: Path, clock: Clock, ids: Ids, workers: int = WORKERS
) -> EvolutionPreview | None:
    """Restore each store of the plan below `scratch`, and convert all its rows in memory. None for a blocked plan, and for
    one that completes an interrupted run.

    Raises as `contents.rows.opened` and `EvolvedRows.table`.
    """
    if planned.refusals or planned.half_done is not None or planned.batch is None:
        return None
    stores = dict(planned.heads)
    contents = Contents(storage=storage, batch=planned.batch, stores=stores, origin=Origin.OWN, conf=planned.conf)
    evolved = {store: group.conversion for group in planned.groups for store in group.targets}

    def work(store: StorePath) -> tuple[int, list[Difference]]:
        evolution = evolved[store]
        assert isinstance(evolution, EvolvedRows)
        return _of_store(contents, store, evolution, scratch=scratch, clock=clock, ids=ids)

    found = dict(zip(evolved, results_in_pool(work, list(evolved), workers=workers), strict=True))
    shown = [(store, row) for store in evolved for row in found[store][1]]
    return EvolutionPreview(rows={store: found[store][0] for store in evolved}, first=tuple(shown[:SHOWN_ROWS]))


def _of_store(
    contents: Contents, store: StorePath, evolution: EvolvedRows, *, scratch: Path, clock: Clock, ids: Ids
) -> tuple[int, list[Difference]]:
    count, first = 0, list[Difference]()
    with opened(contents, store, layout(contents, store), scratch=scratch, clock=clock, ids=ids) as rows:
        for decoded in map(rows.decoded, rows.pairs()):
            after = evolution.table(decoded.values)
            count += after.num_rows
            most = SHOWN_ROWS - len(first)
            sides = (plain_rows(table.slice(0, most)) for table in (decoded.keys, decoded.values, after))
            first += [
                Difference(family=None, change=Change.CHANGED, key=key, before=before, after=new)
                for key, before, new in zip(*sides, strict=True)
            ]
    return count, first
