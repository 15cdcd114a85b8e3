"""The sensors: they request runs of maintenance, report dead runs, and notify on failures."""

from dataclasses import dataclass, replace
from functools import partial

import dagster as dg
from dagster import DagsterRunStatus

from statekeeper.assets.jobs import Jobs
from statekeeper.assets.names import OwnRuns
from statekeeper.assets.partitions import ACTIVE, QUERY_TAG, REASON_TAG
from statekeeper.assets.verdicts import red_queries
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import HOLDER_TAG, holder, is_dead
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rounds import due
from statekeeper.statestore.maintenance.rounds.due import Ask, Asked, Cursor, Last, Wait
from statekeeper.statestore.maintenance.verbs import fleet as fleets
from statekeeper.statestore.maintenance.verbs.config import Configuration
from statekeeper.statestore.maintenance.verbs.fleet import Query, forget_seconds


@dataclass(frozen=True)
class _Watched:
    """What the sensors of a fleet know of its other definitions."""

    runs: OwnRuns
    jobs: Jobs
    snapshot: dg.AssetKey
    fleet_health: dg.AssetKey


def sensors(
    runs: OwnRuns,
    jobs: Jobs,
    prune_history: dg.JobDefinition,
    *,
    snapshot: dg.AssetsDefinition,
    fleet_health: dg.AssetsDefinition,
) -> list[dg.SensorDefinition]:
    """Make the sensors of a fleet."""
    names, watched = runs.names, _Watched(runs, jobs, snapshot.key, fleet_health.key)

    @dg.sensor(
        name=names.of("changelog_tail"),
        jobs=[jobs.maintain_query, jobs.refresh_fleet_health],
        minimum_interval_seconds=15,
        default_status=names.sensor_status,
        required_resource_keys={names.fleet_key},
        description="Requests a run of maintain_query for each query with at least `snapshot.changelogs` new versions, or "
        "whose replay exceeds `snapshot.restore_target`. It also discovers queries. The first tick that finds a query "
        "requests the health of the fleet.",
    )
    def changelog_tail(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _tick(context, watched)

    @dg.sensor(
        name=names.of("dead_runs"),
        minimum_interval_seconds=30,
        default_status=names.sensor_status,
        required_resource_keys={names.fleet_key},
        description="Reports runs of this fleet whose process is dead as failed, so that changelog_tail retries them.",
    )
    def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        return _report_dead(context, runs)

    def notify(context: dg.RunStatusSensorContext) -> dg.SkipReason | None:
        run = context.dagster_run
        query = run.tags.get(QUERY_TAG)
        of = f" of {query}" if query else ""
        cause = _cause(context.for_run_failure())
        problem = names.notifier_in(context).notify(f"{run.job_name}{of} failed (run {run.run_id}): {cause}")
        return None if problem is None else dg.SkipReason(problem)

    # The decorator takes the keys of resources from the names of parameters, which would be the same for each fleet.
    notify_on_failure = dg.RunStatusSensorDefinition(
        name=names.of("notify_on_failure"),
        run_status=DagsterRunStatus.FAILURE,
        run_status_sensor_fn=notify,
        monitored_jobs=[jobs.maintain_query, jobs.refresh_fleet_health, prune_history],
        minimum_interval_seconds=15,
        default_status=names.sensor_status,
        required_resource_keys={names.notifier_key},
        description="Reports each failed run of this fleet in the log, and to the webhook if there is one.",
    )
    return [changelog_tail, dead_runs, notify_on_failure]


def _tick(context: dg.SensorEvaluationContext, watched: _Watched) -> dg.SensorResult:
    """Request a run of `maintain_query` for each query with at least `snapshot.changelogs` new versions, or whose replay
    exceeds `snapshot.restore_target`, and discover queries. Lists `commits/` of each query, and reads no state."""
    names = watched.runs.names
    fleet = names.fleet_in(context)
    cursor = due.parse(context.cursor)
    if cursor is None:
        context.log.warning("the cursor is unreadable and starts empty; run keys prevent duplicate runs")
        cursor = Cursor()
    configuration = fleet.configuration()
    # List only later commits: a commit log that is never purged can have a million entries.
    committed = {name: one.version - 1 for name, one in cursor.asked.items()}
    found = fleets.discover(configuration, committed=committed)
    for name, problem in found.problems.items():
        context.log.warning("%s: %s", printable(name), printable(problem))
    now = SystemClock().now_seconds()
    lasts = {name: _last(context.instance, watched, name) for name in found.queries}
    known_requests = {
        name: _measured(context.instance, watched.snapshot, query, asked) if lasts[name] is Last.SUCCEEDED else asked
        for name, query in found.queries.items()
        if (asked := cursor.asked.get(name))
    }
    decided = {
        name: due.decide(
            query.version,
            known_requests.get(name),
            lasts[name],
            long_tail=query.root.policies.snapshot.changelogs,
            now_seconds=now,
        )
        for name, query in found.queries.items()
    }
    asks = sorted(((name, one) for name, one in decided.items() if isinstance(one, Ask)), key=lambda item: -item[1].new)
    asks = asks[: fleet.runs_per_tick]
    known = set(context.instance.get_dynamic_partitions(names.query_set))
    changes = _changes(known, found, cursor, configuration, now)
    requested = {name: one for name, one in cursor.asked.items() if name not in changes.forgotten}
    requested |= {name: one.asked for name, one in decided.items() if isinstance(one, Wait)}
    requested |= {name: one.asked for name, one in asks}
    requests = [_request(name, one, found.queries[name], watched) for name, one in asks]
    requests += _first_health(context.instance, found, watched)
    return dg.SensorResult(
        run_requests=requests,
        skip_reason=None if requests else _skip_reason(found, decided, lasts),
        cursor=Cursor(requested, changes.gone_since_seconds, changes.added).encoded(),
        dynamic_partitions_requests=[
            *([names.queries.build_add_request(changes.new)] if changes.new else []),
            *([names.queries.build_delete_request(changes.forgotten)] if changes.forgotten else []),
        ],
    )


def _report_dead(context: dg.SensorEvaluationContext, runs: OwnRuns) -> dg.SkipReason:
    """Report runs whose process is dead as failed, and release their leases. Otherwise the run of a killed process would
    stay STARTED and block its query. It requests no run: `changelog_tail` retries the query."""
    fleet = runs.names.fleet_in(context)
    all_started = context.instance.get_runs(filters=runs.filter(statuses=[DagsterRunStatus.STARTED]))
    started = [run for run in all_started if HOLDER_TAG in run.tags and runs.include(run)]
    dead = [run for run in started if is_dead(context.instance, run.run_id, run.tags)]
    for run in dead:
        context.instance.report_run_failed(
            run, "the process of the run is dead: it was killed, or its machine restarted"
        )
        try:
            _free_lease(fleet, run)
        except StatekeeperError as error:
            context.log.warning("the lease of the dead run %s expires in ten minutes: %s", run.run_id, error)
    return dg.SkipReason(
        f"{len(started)} runs of this fleet are started; {len(dead)} of them were dead and are reported as failed"
    )


def _cause(context: dg.RunFailureSensorContext) -> str:
    """The red blocking checks of a run with their files and next commands, else the error of the step or of the run.

    If other queries are red, too, the fleet's verdict follows, which names the worst query.
    """
    events = context.instance.all_logs(context.dagster_run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    found = [event.get_dagster_event().asset_check_evaluation_data for event in events]
    red = [one for one in found if one.blocking and not one.passed and one.severity is dg.AssetCheckSeverity.ERROR]
    fleet = {one.check_name: one for one in found if one.partition is None and red_queries(one) > 1}
    if red:
        parts = [f"{one.check_name}: {one.description}" for one in red]
        parts += [f"Fleet: {fleet[one.check_name].description}" for one in red if one.check_name in fleet]
        return " | ".join(parts)
    errors = [event.step_failure_data.error for event in context.get_step_failure_events()]
    # The cause is Statekeeper's error; the outer error only says that the step failed.
    causes = [(error.cause or error).message.strip() for error in errors if error is not None]
    return causes[0] if causes else context.failure_event.message or "no message"


@dataclass(frozen=True)
class _Changes:
    """Changes of the set of queries: the `new` and the `forgotten` ones of this tick, since when others are gone, and all
    that this sensor has added."""

    new: list[str]
    forgotten: list[str]
    gone_since_seconds: dict[str, float]
    added: frozenset[str]


def _changes(
    known: set[str], found: fleets.Fleet, cursor: Cursor, configuration: Configuration, now_seconds: float
) -> _Changes:
    gone = {
        name: cursor.gone_since_seconds.get(name, now_seconds)
        for name in sorted((known & cursor.added) - set(found.queries) - set(configuration.roots))
        if not found.is_unseen(name)
    }
    forgotten = [name for name, since in gone.items() if now_seconds - since >= forget_seconds(configuration, name)]
    since = {name: seconds for name, seconds in gone.items() if name not in forgotten}
    new = set(found.queries) - known
    return _Changes(sorted(new), forgotten, since, ((cursor.added & known) | new) - set(forgotten))


def _request(name: str, ask: Ask, query: Query, watched: _Watched) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=ask.run_key(name),
        partition_key=name,
        tags={REASON_TAG: f"version {query.version:,}: {ask.reason}", **watched.runs.names.tags},
        job_name=watched.jobs.maintain_query.name,
    )


def _measured(instance: dg.DagsterInstance, snapshot: dg.AssetKey, query: Query, asked: Asked) -> Asked:
    """Add to a request whose run has succeeded since the previous tick the number of versions until the restore target.
    One query to Dagster's storage for each such run."""
    target = query.root.policies.snapshot.restore_target_seconds
    if target is None or not asked.attempts:
        return asked if target is not None else replace(asked, versions=None)
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(snapshot, asset_partitions=[query.root.name]), limit=1
    ).records
    event = records[0].asset_materialization if records else None
    table = None if event is None else event.metadata.get("figures")
    rows = table.records if isinstance(table, dg.TableMetadataValue) else ()
    figures = {str(row.data["figure"]): row.data["value"] for row in rows}
    return replace(asked, versions=due.versions_in(target, figures, long_tail=query.root.policies.snapshot.changelogs))


def _first_health(instance: dg.DagsterInstance, found: fleets.Fleet, watched: _Watched) -> list[dg.RunRequest]:
    """The first examination of the fleet, in the first tick that finds a query. The schedule requests the others."""
    if not (found.queries or found.problems) or instance.get_latest_materialization_event(watched.fleet_health):
        return []
    name = watched.jobs.refresh_fleet_health.name
    if instance.get_runs(filters=watched.runs.filter(job_name=name), limit=1):
        return []  # the first run is not finished, or has failed
    tags = {REASON_TAG: "first tick", **watched.runs.names.tags}
    return [dg.RunRequest(run_key="first_fleet_health", tags=tags, job_name=name)]


def _free_lease(fleet: Fleet, run: dg.DagsterRun) -> None:
    query, dead = run.tags.get(QUERY_TAG), run.tags.get(HOLDER_TAG)
    if query and dead:
        storage = fleet.open(query).storage
        by = holder(run.run_id)
        lease.break_dead_lease(storage, dead, run=RandomIds().fresh(), by=by, clock=SystemClock())


def _last(instance: dg.DagsterInstance, watched: _Watched, query: str) -> Last:
    """The status of the newest run of the query in this fleet, whoever requested it."""
    of_query = partial(watched.runs.filter, job_name=watched.jobs.maintain_query.name, tags={QUERY_TAG: query})
    if instance.get_runs(filters=of_query(statuses=ACTIVE), limit=1):
        return Last.ACTIVE
    newest = instance.get_runs(filters=of_query(), limit=1)
    if not newest:
        return Last.NONE
    return Last.SUCCEEDED if newest[0].status is DagsterRunStatus.SUCCESS else Last.FAILED


def _skip_reason(found: fleets.Fleet, decided: dict[str, Ask | Wait], lasts: dict[str, Last]) -> str:
    """The reason for a tick without requests, in figures."""
    if not decided:
        return (
            f"no query has a committed batch; {len(found.waiting)} wait for their first batch, "
            f"{len(found.problems)} cannot be reached"
        )
    name, furthest = max(decided.items(), key=lambda item: item[1].new)
    active = sum(last is Last.ACTIVE for last in lasts.values())
    return (
        f"{len(decided)} queries, none is due; closest is {name}: {furthest.reason}; "
        f"{active} have a queued or running run, {len(found.problems)} cannot be reached"
    )
