"""The maintenance of queries: the assets `snapshot`, `lineage` and `retention`, and the job that maintains many queries.

    maintain_queries    one run for many queries: an op visits them, the most urgent first, and logs the events of each
    maintain_query      one run for one query, launched by a person: the three assets in one step

An op, and not a run of the assets for several partitions: such a run is for a range of partitions, from the first to the
last one in the order of their discovery, and the queries that are due are not next to each other.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import dagster as dg
from pydantic import Field

from statekeeper.assets import work
from statekeeper.assets.launches import run_of
from statekeeper.assets.memory import read, tell_run
from statekeeper.assets.names import Names
from statekeeper.assets.progress import Progress
from statekeeper.assets.sources import Sources
from statekeeper.assets.verdicts import verdicts
from statekeeper.assets.visits import (
    CHECKS,
    LEFT_TO_SPARK,
    LINEAGE,
    RETENTION,
    SNAPSHOT,
    VISIT,
    Recorder,
    Shown,
    Steps,
    shown,
    visited,
)
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import TOLD_TAG, tag_run
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.maintenance.rounds.rounds import defect_of
from statekeeper.statestore.maintenance.rounds.visit import Status, failed_visit
from statekeeper.statestore.maintenance.verbs.config import Configuration, RunsOn
from statekeeper.statestore.storage import Reads

_LOG = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")

MAINTAIN_QUERIES = "maintain_queries"
MAINTAIN_QUERY = "maintain_query"
"""The names of the jobs, without the prefix of the fleet."""

_ONE_HOUR = {"dagster/max_runtime": "3600"}

_DOES = {SNAPSHOT: "adds-files", LINEAGE: "reads", RETENTION: "deletes-files"}

_DESCRIPTIONS = {
    SNAPSHOT: """\
Takes snapshots, in Spark's own format, of the stores with a long tail, the longest tail first.

It adds files and overwrites none, so it is safe while the query runs; a running job starts its lineage at the new
snapshots. A store with a short tail gets no snapshot. `reasons` lists the decision for each store with its figures. `job`
shows the requests, latencies and price that a Statekeeper job recorded.
Policy: `[roots.QUERY.snapshot]` in statekeeper.toml. By hand: `statekeeper snapshot QUERY`.""",
    LINEAGE: """\
Audits the whole checkpoint: every retained version of every store, from its base to the head in the commit log.

Reads only. If a blocking check is red, retention deletes nothing. The picture shows the first broken store, else the store
with the longest tail. By hand: `statekeeper audit QUERY`; --deep reads every byte.""",
    RETENTION: """\
Deletes the files that no retained version needs: old versions, dead branches, unreferenced SST files and old logs.

*Danger*: it deletes files. It first audits the checkpoint and deletes nothing while the audit reports errors. A rule keeps
or deletes each file (`reasons`). It records the plan below `_statekeeper/history/` before the first deletion. Policy:
`[roots.QUERY.retention]` in statekeeper.toml; in mode "observe" or "snapshots" it only plans. By hand: `statekeeper gc
QUERY`.""",
}


@dataclass(frozen=True)
class Maintenance:
    """The assets of a visit, and the job that visits many queries."""

    assets: dg.AssetsDefinition
    keys: Mapping[str, dg.AssetKey]
    memory: dg.AssetKey
    job: dg.JobDefinition


def maintenance(names: Names, sources: Sources) -> Maintenance:
    """Make the assets of a visit, and the job `maintain_queries`, of a fleet."""
    specs: dict[str, dg.AssetSpec] = {}
    upstream = sources.commit_log
    for name, description in _DESCRIPTIONS.items():
        specs[name] = upstream = names.asset_spec(
            name, deps=[upstream], does=_DOES[name], description=description, skippable=True
        )
    keys = {name: spec.key for name, spec in specs.items()}
    recorder = Recorder(names, keys, sources.commit_log.key, sources.state_store.key)
    return Maintenance(_assets(names, specs, recorder), keys, recorder.memory, _job(names, recorder))


def _assets(names: Names, specs: Mapping[str, dg.AssetSpec], recorder: Recorder) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name=names.of("visit_query"),
        specs=list(specs.values()),
        check_specs=[names.check_spec(check, specs[name].key) for name, checks in CHECKS.items() for check in checks],
        can_subset=True,
        required_resource_keys={names.fleet_key, names.notifier_key},
        pool=names.pool,
        description="Visits a query: takes the snapshots that are due, audits, and applies retention. The assets that are "
        "not chosen are only planned.",
    )
    def made(context: dg.AssetExecutionContext) -> Iterator[Any]:
        fleet, name = names.fleet_in(context), context.partition_key
        chosen = [asset for asset, key in recorder.keys.items() if key in context.selected_asset_keys]
        configuration = fleet.configuration()
        query = fleet.open(name, configuration)
        is_whole = len(chosen) == len(CHECKS)
        steps = Steps(takes=SNAPSHOT in chosen, deletes=RETENTION in chosen, is_whole=is_whole)
        one = work.done(context, names, query, VISIT, asdict(steps))
        yield from recorder.recorded(context, configuration, one, chosen=chosen, is_asset=True)
        if one.is_left_to_spark:
            _log(context, one)
        _log_verdicts(context, names, recorder, configuration, chosen, visited=[name])
        if not one.has_failed:
            tell_run(context, names, recorder.memory, context.run, None)
        if one.has_failed:
            if is_whole and not one.is_undecided:
                # The notice of its status has told it.
                tag_run(context.instance, context.run.run_id, {TOLD_TAG: "true"})
            raise dg.Failure(printable(one.why))

    return made


def _log_verdicts(
    context: Any,
    names: Names,
    recorder: Recorder,
    configuration: Configuration,
    chosen: Sequence[str],
    *,
    visited: Sequence[str],
) -> None:
    """Log the fleet's verdict on each check of the chosen assets. `visited`: queries of this run, which the sensor may not
    have found yet."""
    known = {*context.instance.get_dynamic_partitions(names.query_set), *visited}
    red = {name: read(context.instance, recorder.memory, name).red for name in known if configuration.names(name)}
    keys = [dg.AssetCheckKey(recorder.keys[asset], check.name) for asset in chosen for check in CHECKS[asset]]
    for event in verdicts(keys, red):
        context.log_event(event)


class Queries(dg.Config):
    """The queries to maintain."""

    queries: list[str] = Field(
        default=[], description="Names of the queries, the most urgent first. Default: all queries of the fleet."
    )


def _job(names: Names, recorder: Recorder) -> dg.JobDefinition:
    @dg.op(
        name=names.of("visit_queries"),
        required_resource_keys={names.fleet_key, names.notifier_key},
        out={},
        pool=names.pool,
        description="Visits queries, several at a time, in the order of the configuration. An error of one query does not "
        "stop the others and does not fail the run.",
    )
    def visit_queries(context: dg.OpExecutionContext, config: Queries) -> Iterator[Any]:
        fleet = names.fleet_in(context)
        configuration = fleet.configuration()
        chosen = list(dict.fromkeys(config.queries or fleet.discover().queries))
        progress = Progress(context.instance, context.run.run_id, chosen)
        here = [name for name in chosen if configuration.policies_of(name).executor is RunsOn.LOCAL]
        for name in sorted({*chosen} - {*here}):
            job = names.of(MAINTAIN_QUERY)
            context.log.warning(
                printable(f'{name} has executor = "spark": left to a run of the job {job} for it alone')
            )
        for one in _visited(context, fleet, configuration, here):
            yield from recorder.recorded(context, configuration, one)
            _log(context, one)
            progress.ended(one.name, has_failed=one.has_failed)
        _log_verdicts(context, names, recorder, configuration, list(CHECKS), visited=here)
        tell_run(context, names, recorder.memory, context.run, None)

    @dg.job(
        name=names.of(MAINTAIN_QUERIES),
        executor_def=dg.in_process_executor,
        tags={**_ONE_HOUR, **names.tags},
        description="Maintains many queries in one run: takes snapshots of stores with a long tail, audits the lineage, "
        "and applies retention. While the audit of a query reports an error, retention deletes nothing there; the other "
        f"queries are maintained. The sensor {names.of('changelog_tail')} requests it for the queries that are due. "
        f'Queries with executor = "spark" are left to runs of {names.of(MAINTAIN_QUERY)}.',
    )
    def made() -> None:
        visit_queries()

    return made


def run_config(names: Names, queries: Sequence[str]) -> dict[str, Any]:
    """The configuration of a run of `maintain_queries`."""
    return {"ops": {names.of("visit_queries"): {"config": {"queries": list(queries)}}}}


def queries_in(names: Names, run: dg.DagsterRun) -> list[str]:
    """The queries of a run of `maintain_queries`; none if the run chooses them itself."""
    found: Any = run.run_config
    for key in ("ops", names.of("visit_queries"), "config", "queries"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return list(dict.fromkeys(found)) if isinstance(found, Sequence) and not isinstance(found, str) else []


def _visited(
    context: dg.OpExecutionContext, fleet: Fleet, configuration: Configuration, queries: Sequence[str]
) -> Iterator[Shown]:
    """Visit queries in a bounded pool. Yields each visit when it ends, in the thread of the step."""
    at_once = max(1, min(WORKERS, len(queries)))
    share, clock = max(1, WORKERS // at_once), SystemClock()
    reads = Reads(clock)

    def visit(name: str) -> Shown:
        started = clock.monotonic_seconds()
        try:
            query = fleet.open(name, configuration)
            return visited(run_of(context, fleet, query, workers=share), query, reads=reads)
        except Exception as error:  # noqa: BLE001 - a defect must not keep the other queries from being maintained
            _LOG.exception("visit of %s", printable(name))
            seconds = clock.monotonic_seconds() - started
            failed = failed_visit(name, defect_of(error), seconds=seconds, next_command=fleet.command("audit", name))
            return shown(failed, None)

    return _as_they_end(visit, queries, at_once)


def _as_they_end(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Run `work` for each item, starting in order. Yields each result when it is there. At an exception of the caller, no
    new item starts, and the running ones finish."""
    pool = ThreadPoolExecutor(workers)
    try:
        for one in as_completed([pool.submit(work, item) for item in items]):
            yield one.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _log(context: dg.OpExecutionContext | dg.AssetExecutionContext, done: Shown) -> None:
    log = context.log.info if done.status is Status.OK else context.log.warning
    held = "; another maintainer holds the lease" if done.is_held else ""
    spark = f". {LEFT_TO_SPARK}" if done.is_left_to_spark else ""
    log(printable(f"{done.name}: {done.status.name}: {done.text}{held}{spark}"))
