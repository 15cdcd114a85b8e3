"""`statekeeper inspect`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.lineage import BaseKind
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import FINDINGS, Opened, Output, error_object, output_option, pasteable, say
from statekeeper.statestore.cli.lineage import lineage_lines, lineage_object
from statekeeper.statestore.cli.roots import several_roots
from statekeeper.statestore.format import names
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.mirrors import MirrorRecord
from statekeeper.statestore.maintenance.records import drills
from statekeeper.statestore.maintenance.records.drills import Measured
from statekeeper.statestore.maintenance.upkeep import retention
from statekeeper.statestore.maintenance.upkeep import snapshot as snapshots
from statekeeper.statestore.maintenance.upkeep.snapshot import SnapshotFacts, StoreSnapshotFacts
from statekeeper.statestore.maintenance.verbs.advice import Advice, advice
from statekeeper.statestore.maintenance.verbs.description import Description, Owner, StoreColumns, describe
from statekeeper.statestore.maintenance.verbs.report import when
from statekeeper.statestore.storage.query_metrics import QueryMetrics


@click.command()
@several_roots
@click.option(
    "--lineage",
    metavar="STORE",
    help="Show the lineage of one store, for example 0/3 (operator 0, partition 3): its batches, its snapshots and "
    "its dead branches. A dead branch is a file of a failed attempt.",
)
@output_option
def inspect(root: Opened, lineage: str | None, output: Output) -> int:
    """Show each store of a checkpoint. inspect only reads.

    For each store, inspect shows the batch of the snapshot from which a restart begins (base) and the changelogs
    that a restart replays (tail). It also shows the predicted time to replay the tail (restore s), and the number and
    size of the files. After a drill, this time includes the base, as measured.

    If the commit or the offsets of the newest batch are damaged, inspect names the file, and shows the newest batch that
    it can read.
    """
    if lineage is not None:
        _show_lineage(root, lineage, output)
        return 0
    gathered, damage = snapshots.gather_readable(root.storage, supported=tuple(Provider))
    gathered = gathered.corrected_by(drills.read(root.storage))
    found = advice(root.storage, gathered, root.policies.mode_for(gathered.origin), clock=SystemClock())
    about = describe(root.storage, gathered)
    result = _facts_object(gathered, about, found)
    if damage is not None:
        output.show(
            {"error": error_object(damage), **result},
            lambda console: _print_facts(console, gathered, about, found, damage),
        )
        say(damage)
        return damage.exit_code
    output.show(result, lambda console: _print_facts(console, gathered, about, found))
    plan = snapshots.plan(gathered, root.policies.snapshot)
    return FINDINGS if any(action.reason.is_finding for action in plan.leave) else 0


def _show_lineage(root: Opened, wanted: str, output: Output) -> None:
    policy = root.policies.retention
    gathered = retention.gather(root.storage, policy, clock=SystemClock(), everything=True)
    judged = retention.judge_stores(gathered, policy)
    folder = wanted if wanted.startswith(f"{names.STATE}/") else f"{names.STATE}/{wanted}"
    chains = {str(chain.store): chain for chain in gathered.chains}
    chain = chains.get(folder)
    if chain is None:
        known = ", ".join(list(chains)[:5]) + (" ..." if len(chains) > 5 else "") or "none, before the first batch"
        raise click.BadParameter(f"there is no store {wanted!r}; existing stores: {known}", param_hint="--lineage")
    verdicts = judged[chain.store]
    output.show(
        lineage_object(chain, verdicts),
        lambda console: _print_lines(console, lineage_lines(chain, verdicts)),
    )


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(tables.plain(line), soft_wrap=True)


def _facts_object(gathered: SnapshotFacts, about: Description, found: Sequence[Advice]) -> dict[str, Any]:
    """The result as one JSON object."""
    batch = gathered.batch
    return {
        "batch": batch,
        "version": None if batch is None else batch + 1,
        "stateless": gathered.stateless and code(gathered.stateless),
        "structure": about.structure and about.structure.value,
        "provider": about.structure and gathered.conf.provider.value,
        "operators": {str(number): name for number, name in about.operators.items()},
        "batch_logs": about.batch_logs and asdict(about.batch_logs),
        "cloned": about.cloned and {"source": about.cloned.source, "batch": about.cloned.batch},
        "mirror": about.mirror
        and {
            "source": about.mirror.source,
            "batch": about.mirror.batch,
            "first_batch": about.mirror.first,
        },
        "savepoint": about.savepoint and {"label": about.savepoint.label, "note": about.savepoint.note},
        "owner": about.owner and _owner_object(about.owner),
        "columns": {one.store: _columns_object(one) for one in about.columns},
        "metrics": about.metrics and about.metrics.as_json(),
        "written_by": [spark.value for spark in gathered.written_by],
        "restore_seconds": round(sum(gathered.restore_seconds(fact) for fact in gathered.stores), 3),
        "restore_measured": gathered.measured and _measured_object(gathered.measured),
        "stores": [_fact_object(gathered, about, fact) for fact in gathered.stores],
        "advice": [{"seen": one.seen, "confs": one.confs} for one in found],
    }


def mirror_line(record: MirrorRecord, newest: int | None) -> str:
    """The source of a mirror, and what to do before a failover."""
    if newest is not None and newest > record.batch:
        return f"mirror of {record.source}; newer than its last complete run, which ended at batch {record.batch:,}"
    return (
        f"mirror of {record.source} at batch {record.batch:,}; before you start a query from here, remove the output "
        "of later batches from the sink"
    )


def _measured_object(measured: Measured) -> dict[str, Any]:
    return {
        "drilled_at": utc(measured.drilled_at_seconds),
        "stores": measured.stores,
        "seconds": round(measured.seconds, 3),
    }


def _owner_object(owner: Owner) -> dict[str, Any]:
    claim = owner.claim
    return {
        "query_id": owner.query_id,
        "since": owner.since_utc,
        "claimed_by": claim and claim.by,
        "former_query_id": claim and claim.former,
    }


def _owner_line(owner: Owner) -> str:
    since = f" since {owner.since_utc}" if owner.since_utc else ""
    claim = owner.claim
    return f"owner: query {owner.query_id}{since}" + (f", claimed by {claim.by}" if claim else "")


def _columns_object(columns: StoreColumns) -> dict[str, Any]:
    return {"columns": columns.columns, "since_batch": columns.since, "committed": columns.committed}


def _columns_line(columns: StoreColumns) -> str:
    since = "" if columns.since is None else f" since batch {columns.since:,}"
    not_yet = "" if columns.committed else ", which is not committed"
    return f"columns of store {columns.store}{since}{not_yet}: {columns.columns}"


def _metrics_lines(metrics: QueryMetrics) -> Iterator[str]:
    p50, p99, p999 = metrics.record_milliseconds
    yield (
        f"the newest {metrics.batches:,} batches of the job took {metrics.seconds:,.0f} s and sent {metrics.writes:,} "
        f"write requests and {metrics.reads:,} read requests"
    )
    yield (
        f"record of a batch: {metrics.record_bytes:,} bytes with {metrics.members:,} changelogs, written in "
        f"{p50:,.0f} ms (p99 {p99:,.0f} ms, p999 {p999:,.0f} ms)"
    )
    if metrics.hedges_sent or metrics.wait_seconds or metrics.uploaded_bytes:
        early = "-" if metrics.early_share is None else f"{metrics.early_share:.0%}"
        yield (
            f"slow requests sent twice: {metrics.hedges_sent:,}, the second reply was first for "
            f"{metrics.hedges_won:,}; waits for unavailable storage: {metrics.wait_seconds:,.0f} s"
        )
        yield (
            f"changelogs uploaded by tasks: {metrics.uploaded_bytes:,} bytes, of which {early} before the commit; "
            f"waits for these uploads: {metrics.back_pressure_seconds:,.0f} s"
        )


def _fact_object(gathered: SnapshotFacts, about: Description, fact: StoreSnapshotFacts) -> dict[str, Any]:
    load = fact.load
    return {
        "store": str(fact.store),
        "head": str(fact.head),
        "base": None if load is None else str(load.base),
        "base_keys": about.keys.get(fact.store),
        "tail_changelogs": None if load is None else len(load.replay),
        "tail_bytes": None if load is None else fact.tail_bytes,
        "restore_seconds": None if load is None else round(gathered.restore_seconds(fact), 3),
        "snapshots": fact.snapshots,
        "files": fact.files,
        "bytes": fact.size_bytes,
        "problem": fact.problem,
    }


def _print_facts(
    console: Console,
    gathered: SnapshotFacts,
    about: Description,
    found: Sequence[Advice],
    damage: StatekeeperError | None = None,
) -> None:
    """Print the stores, longest tail first, then the problems of each store and the advised settings.

    `damage`: why a newer batch cannot be read."""
    if damage is not None:
        line = (
            f"{damage.path} is damaged: the query cannot restart from it. The table shows the newest batch before it:"
        )
        console.print(tables.plain(line), soft_wrap=True)
    if gathered.stateless is not None:
        console.print(tables.plain(f"{when(gathered.batch)}: {gathered.stateless.value}"), soft_wrap=True)
        return
    facts = gathered.stores
    lost = sum(fact.load is None for fact in facts)
    debt = f"{sum(gathered.restore_seconds(fact) for fact in facts):,.1f} s"
    restore = f"no restart: {counted(lost, 'store')} cannot be restored" if lost else f"restore time {debt}"
    if damage is not None and not lost:
        restore = f"restore time after a rewind to it {debt}"
    by = f", Spark {' or '.join(spark.value for spark in gathered.written_by)}" if gathered.written_by else ""
    structure = f", structure {about.structure.value.upper()}" if about.structure else ""
    provider = "" if gathered.conf.provider is Provider.ROCKSDB else f", {gathered.conf.provider.value}"
    table = tables.table(
        f"{when(gathered.batch)}{structure}{provider}{by}: {counted(len(facts), 'store')}, "
        f"{counted(sum(fact.files for fact in facts), 'file')} with "
        f"{sum(fact.size_bytes for fact in facts):,} bytes, {restore}",
        *("store", "base", "base keys", "tail", "tail bytes", "restore s", "files", "bytes"),
    )
    worst = sorted(facts, key=lambda fact: (fact.problem is None, -fact.tail_bytes, fact.store))
    for fact in worst[: tables.ROWS]:
        keys = f"{about.keys[fact.store]:,}" if fact.store in about.keys else "-"
        sizes = (f"{fact.files:,}", f"{fact.size_bytes:,}")
        if fact.load is None:
            tables.add(table, fact.store, "-", "-", "-", "-", "-", *sizes)
        else:
            base = "none" if fact.load.base_kind is BaseKind.NOTHING else fact.load.base.version - 1
            seconds = f"{gathered.restore_seconds(fact):,.1f}"
            tail = (f"{len(fact.load.replay):,}", f"{fact.tail_bytes:,}", seconds)
            tables.add(table, fact.store, base, keys, *tail, *sizes)
    if len(facts) > tables.ROWS:
        table.caption = f"the worst {tables.ROWS} of {len(facts):,}"
    tables.show(console, table)
    operators = ", ".join(f"{number} {name or 'without metadata'}" for number, name in about.operators.items())
    if operators:
        console.print(tables.plain(f"operators: {operators}"), soft_wrap=True)
    if gathered.origin is Origin.NATIVE and about.structure is Structure.V2:
        confs = " ".join(f"--conf {name}={value}" for name, value in about.structure.conf.items())
        console.print(tables.plain(f"before Spark 4.3, each start of the query needs: {confs}"), soft_wrap=True)
    if about.cloned is not None:
        console.print(
            f"cloned from {about.cloned.source} at batch {about.cloned.batch:,}", soft_wrap=True, markup=False
        )
    if about.mirror is not None:
        console.print(mirror_line(about.mirror, gathered.batch), soft_wrap=True, markup=False)
    if about.savepoint is not None:
        note = f": {about.savepoint.note}" if about.savepoint.note else ""
        console.print(tables.plain(f"savepoint {about.savepoint.label}{note}"), soft_wrap=True)
    if about.owner is not None:
        console.print(tables.plain(_owner_line(about.owner)), soft_wrap=True)
    for columns in about.columns:
        console.print(tables.plain(_columns_line(columns)), soft_wrap=True)
    if about.batch_logs is not None:
        logs = about.batch_logs
        console.print(
            f"batch logs: {logs.files:,} with {logs.size_bytes:,} bytes, batches {logs.oldest - 1} to {logs.newest - 1}; "
            + pasteable("Spark reads their changelogs after: statekeeper unpack ROOT"),
            soft_wrap=True,
            markup=False,
        )
    if about.metrics is not None:
        for line in _metrics_lines(about.metrics):
            console.print(line, soft_wrap=True)
    if gathered.measured is not None:
        console.print(tables.plain(gathered.measured.described), soft_wrap=True)
    for fact in worst[: tables.ROWS]:
        if fact.problem:
            console.print(tables.plain(f"{fact.store}: {fact.problem}"), soft_wrap=True)
    for one in found:
        console.print(tables.plain(f"{one.seen}. Recommended settings of the query:"), soft_wrap=True)
        for name, value in one.confs.items():
            console.print(tables.plain(f"  {name}={value}"), soft_wrap=True)
