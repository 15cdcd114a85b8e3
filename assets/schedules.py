"""The schedules. Hours are in UTC."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

import dagster as dg

from statekeeper.assets.jobs import AssetJob, Jobs
from statekeeper.assets.maintenance import run_config
from statekeeper.assets.names import Names, OwnRuns
from statekeeper.assets.partitions import ACTIVE, PRIORITY_TAG, QUERY_TAG, REASON_TAG
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.maintenance.rounds import due
from statekeeper.statestore.maintenance.verbs.config import Outputs, Root, RunsOn

HEALTH_CRON = "17 * * * *"
"""The default time at which the fleet is examined: minute 17 of each hour."""

MIRROR_CRON = "*/5 * * * *"
"""The default time at which the queries with a mirror are mirrored: each five minutes."""

PUBLISH_CRON = "*/5 * * * *"
"""The default time at which the state of queries with tables is published: each five minutes."""


DEEP_AUDIT_CRON = "0 2 * * *"
"""The default time at which the deep audits that are due are requested: each day at 02:00Z."""

DRILL_CRON = "0 5 * * 0"
"""The default time at which a sample of the stores of each query is restored: Sunday at 05:00Z."""

HISTORY_CRON = "20 4 * * *"
"""The default time at which the history of all queries is added to its tables: each day at 04:20Z."""

REPORT_CRON = "0 6 * * 1"
"""The default time at which the report of all queries is written: Monday at 06:00Z."""


OPTIMIZE_CRON = "0 6 * * 0"
"""The default time at which the tables that queries write are optimized: Sunday at 06:00Z."""

_LONGEST_RUN_SECONDS = 12 * 3600.0


def schedules(
    runs: OwnRuns,
    jobs: Jobs,
    prune_history: dg.JobDefinition,
    *,
    deep_audit: dg.AssetKey,
    health_cron: str,
    mirror_cron: str,
    publish_cron: str,
    deep_audit_cron: str,
    drill_cron: str,
    history_cron: str,
    report_cron: str,
    optimize_cron: str,
) -> list[dg.ScheduleDefinition]:
    """Make the schedules of a fleet."""
    names = runs.names
    resources = {names.fleet_key}

    @dg.schedule(
        name=names.of("nightly_sweep"),
        job=jobs.maintain_queries,
        cron_schedule="0 3 * * *",
        default_status=names.schedule_status,
        required_resource_keys=resources,
        description="Maintains every query at 03:00Z, also idle queries, whose old versions become garbage with time. The "
        f'sensor {names.of("changelog_tail")} does so for queries with executor = "spark" once a day.',
    )
    def nightly_sweep(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        known = set(context.instance.get_dynamic_partitions(names.query_set))
        at = context.scheduled_execution_time.timestamp()
        # The sensor requests the others once a day in their own window.
        found = [
            name
            for name, query in names.fleet_in(context).discover().queries.items()
            if name in known
            and query.root.policies.executor is RunsOn.LOCAL
            and due.closed_because(query.root.policies.schedule, 0.0, at) is None
        ]
        if not found:
            yield dg.SkipReason(
                f"no query is known that may be maintained now; the sensor {names.of('changelog_tail')} discovers queries"
            )
        night = context.scheduled_execution_time.date().isoformat()
        most = names.fleet_in(context).queries_per_run
        for number, first in enumerate(range(0, len(found), most), start=1):
            queries = found[first : first + most]
            tags = {REASON_TAG: f"nightly sweep of {night}: {counted(len(queries), 'query')}", **names.tags}
            yield dg.RunRequest(run_key=f"nightly:{night}#{number}", run_config=run_config(names, queries), tags=tags)

    @dg.schedule(
        name=names.of("mirror_queries"),
        job=jobs.mirror_checkpoint,
        cron_schedule=mirror_cron,
        default_status=names.schedule_status,
        required_resource_keys=resources,
        description="Mirrors every query with a `mirror` in statekeeper.toml, unless the previous run has not ended.",
    )
    def mirror_queries(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        # Not only those that can be read now: a mirror whose source is lost turns its check red.
        yield from _of_each(runs, context, jobs.mirror_checkpoint, "mirror", lambda root: root.mirror is not None)

    @dg.schedule(
        name=names.of("publish_queries"),
        job=jobs.publish_state,
        cron_schedule=publish_cron,
        default_status=names.schedule_status,
        required_resource_keys=resources,
        description="Publishes the state of every query with `tables` in statekeeper.toml, unless the previous run has not "
        "ended.",
    )
    def publish_queries(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        yield from _of_each(runs, context, jobs.publish_state, "table", lambda root: bool(root.state_tables))

    @dg.schedule(
        name=names.of("nightly_deep_audit"),
        job=jobs.audit_deep,
        cron_schedule=deep_audit_cron,
        default_status=names.schedule_status,
        required_resource_keys=resources,
        description="Reads every byte of the queries with `audit.deep_every` in statekeeper.toml whose last deep audit is "
        "at least `deep_every` ago, unless the previous run has not ended. Each tick requests a share of them, the longest "
        "unaudited first.",
    )
    def nightly_deep_audit(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        yield from _deep_audits(runs, context, jobs.audit_deep, deep_audit, deep_audit_cron)

    @dg.schedule(
        name=names.of("weekly_drill"),
        job=jobs.drill_restore,
        cron_schedule=drill_cron,
        default_status=names.schedule_status,
        required_resource_keys=resources,
        description="Restores a sample of the stores of every query, each store once in a quarter, unless the previous run "
        "has not ended.",
    )
    def weekly_drill(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        yield from _of_each(runs, context, jobs.drill_restore, "drill", lambda root: True)

    @dg.schedule(
        name=names.of("weekly_optimize"),
        job=jobs.optimize_sink,
        cron_schedule=optimize_cron,
        default_status=names.schedule_status,
        required_resource_keys=resources,
        description="Merges small files and deletes unneeded ones in the tables of every query with `sinks` in "
        "statekeeper.toml, unless the previous run has not ended.",
    )
    def weekly_optimize(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        yield from _of_each(runs, context, jobs.optimize_sink, "sink", lambda root: bool(root.sinks))

    @dg.schedule(
        name=names.of("hourly_fleet_health"),
        job=jobs.refresh_fleet_health,
        cron_schedule=health_cron,
        default_status=names.schedule_status,
        description="Examines every query.",
    )
    def hourly_fleet_health() -> dg.RunRequest:
        return dg.RunRequest(tags={REASON_TAG: "schedule", **names.tags})

    @dg.schedule(
        name=names.of("daily_history"),
        job=jobs.record_history,
        cron_schedule=history_cron,
        default_status=names.schedule_status,
        required_resource_keys=resources,
        description="Adds the runs of all queries to the tables of [history] in statekeeper.toml.",
    )
    def daily_history(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        return _of_place(names, context, "history", lambda outputs: outputs.history)

    @dg.schedule(
        name=names.of("weekly_report"),
        job=jobs.write_report,
        cron_schedule=report_cron,
        default_status=names.schedule_status,
        required_resource_keys=resources,
        description="Writes the report of all queries to the folder of [report] in statekeeper.toml.",
    )
    def weekly_report(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        return _of_place(names, context, "report", lambda outputs: outputs.report)

    @dg.schedule(
        name=names.of("weekly_prune"),
        job=prune_history,
        cron_schedule="40 4 * * 0",
        default_status=names.schedule_status,
        description="Deletes Dagster's record of runs of this fleet that ended more than 30 days ago. Runs of other jobs "
        "and of other fleets in the same Dagster instance stay.",
    )
    def weekly_prune() -> dg.RunRequest:
        return dg.RunRequest(tags={REASON_TAG: "schedule", **names.tags})

    of_each = [nightly_sweep, mirror_queries, publish_queries, nightly_deep_audit, weekly_drill, weekly_optimize]
    return [*of_each, hourly_fleet_health, daily_history, weekly_report, weekly_prune]


def _of_place(
    names: Names, context: dg.ScheduleEvaluationContext, table: str, of: Callable[[Outputs], object]
) -> dg.RunRequest | dg.SkipReason:
    """Request a run if a file of the configuration has this table."""
    configuration = names.fleet_in(context).configuration()
    of_roots = [one.outputs for one in configuration.roots.values()]
    of_parents = [one.outputs for one in configuration.parents.values()]
    if not any(of(one) for one in (*of_roots, *of_parents)):
        return dg.SkipReason(f"statekeeper.toml has no table [{table}]")
    return dg.RunRequest(tags={REASON_TAG: "schedule", **names.tags})


def _of_each(
    runs: OwnRuns,
    context: dg.ScheduleEvaluationContext,
    job: AssetJob,
    what: str,
    has: Callable[[Root], bool],
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Request a run for each known query that has something in the configuration, and no run of the job. `what`: it has."""
    configuration = runs.names.fleet_in(context).configuration()
    found = [name for name in sorted(runs.names.queries_in(context)) if has(configuration.find(name))]
    if not found:
        yield dg.SkipReason(f"no known query has a {what} in statekeeper.toml")
    busy = _busy(runs, context, job)
    yield from _requests(runs.names, context, what, [name for name in found if name not in busy])


def _deep_audits(
    runs: OwnRuns, context: dg.ScheduleEvaluationContext, job: AssetJob, asset: dg.AssetKey, cron: str
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Request the deep audits that are due, so many at each tick that each query is audited in time. If all were requested
    at once, they would be due at once again."""
    configuration, at = runs.names.fleet_in(context).configuration(), context.scheduled_execution_time
    periods = {
        name: seconds
        for name in runs.names.queries_in(context)
        if (seconds := configuration.find(name).policies.audit.deep_every_seconds) is not None
    }
    busy, due_now = _busy(runs, context, job), dict[str, float]()
    for name, seconds in sorted(periods.items()):
        last = _last_materialized(context.instance, asset, name)
        # A run ends after its tick: the tick one period later still counts.
        if name not in busy and at.timestamp() - last > seconds - min(_LONGEST_RUN_SECONDS, seconds / 4):
            # A query whose runs fail must not keep the others from being audited.
            due_now[name] = max(last, _last_begun(runs, context.instance, job, name))
    if not due_now:
        yield dg.SkipReason("no deep audit is due")
    until_next = _until_next(cron, at)
    share = math.ceil(round(sum(until_next / seconds for seconds in periods.values()), 6))
    first = sorted(due_now, key=lambda name: (due_now[name], name))[: max(1, share)]
    yield from _requests(runs.names, context, "deep audit", first, {PRIORITY_TAG: "-1"})


def _until_next(cron: str, at: datetime) -> float:
    """The seconds from a tick of a schedule to the next one."""
    ticks = dg.TimeWindowPartitionsDefinition(start=at - timedelta(days=1), cron_schedule=cron, fmt="%Y-%m-%dT%H:%M")
    window = ticks.get_next_partition_window(at, respect_bounds=False)
    assert window is not None  # without bounds
    return (window.end - window.start).total_seconds()


def _last_materialized(instance: dg.DagsterInstance, asset: dg.AssetKey, query: str) -> float:
    """The time of the newest materialization of an asset for a query; 0 without one."""
    found = instance.fetch_materializations(dg.AssetRecordsFilter(asset, asset_partitions=[query]), limit=1).records
    return found[0].timestamp if found else 0.0


def _last_begun(runs: OwnRuns, instance: dg.DagsterInstance, job: AssetJob, query: str) -> float:
    """The time of the newest run of a job for a query; 0 without one."""
    found = instance.get_run_records(runs.filter(job_name=job.name, tags={QUERY_TAG: query}), limit=1)
    return found[0].create_timestamp.timestamp() if found else 0.0


def _busy(runs: OwnRuns, context: dg.ScheduleEvaluationContext, job: AssetJob) -> set[str | None]:
    """The queries with an unfinished run of a job."""
    active = runs.filter(job_name=job.name, statuses=ACTIVE)
    return {run.tags.get(QUERY_TAG) for run in context.instance.get_runs(active)}


def _requests(
    names: Names,
    context: dg.ScheduleEvaluationContext,
    what: str,
    queries: Iterable[str],
    tags: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[dg.RunRequest]:
    tick = context.scheduled_execution_time.isoformat(timespec="minutes")
    for name in queries:
        of_run = {REASON_TAG: f"{what} at {tick}", **tags, **names.tags}
        yield dg.RunRequest(run_key=f"{what}:{name}@{tick}", partition_key=name, tags=of_run)
