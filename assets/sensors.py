"""The sensors: they request runs of maintenance, report dead runs, and notify on failures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256

import dagster as dg
from dagster import DagsterRunStatus

from statekeeper.assets import liveness, memory
from statekeeper.assets.jobs import Jobs
from statekeeper.assets.maintenance import Maintenance, queries_in, run_config
from statekeeper.assets.names import OwnRuns
from statekeeper.assets.partitions import ACTIVE, ENDED, QUERY_TAG, REASON_TAG
from statekeeper.assets.progress import unfinished
from statekeeper.assets.visits import SNAPSHOT
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import BEAT_TAG, HOLDER_TAG, TOLD_TAG, holder
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.format import json_records
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rounds import due
from statekeeper.statestore.maintenance.rounds.due import Ask, Asked, Cursor, Last, Wait
from statekeeper.statestore.maintenance.verbs import fleet as fleets
from statekeeper.statestore.maintenance.verbs.config import Configuration, RunsOn
from statekeeper.statestore.maintenance.verbs.fleet import Query, forget_seconds

_MOST_RUNS = 200
"""The most ended runs that a tick reads. Only after a long pause of the sensor are there more since the previous tick; then
a query may be maintained once more than needed."""

_DAY_SECONDS = 86_400.0

_OVERLAP_SECONDS = 600.0
"""Time before the previous tick from which runs are read again: the clocks of machines differ."""


@dataclass(frozen=True)
class _Watched:
    """What the sensors of a fleet know of its other definitions. `snapshot`, `fleet_health`: assets."""

    runs: OwnRuns
    jobs: Jobs
    snapshot: dg.AssetKey
    fleet_health: dg.AssetKey


def sensors(
    runs: OwnRuns,
    jobs: Jobs,
    prune_history: dg.JobDefinition,
    *,
    maintenance: Maintenance,
    fleet_health: dg.AssetsDefinition,
) -> list[dg.SensorDefinition]:
    """Make the sensors of a fleet."""
    names, watched = runs.names, _Watched(runs, jobs, maintenance.keys[SNAPSHOT], fleet_health.key)

    @dg.sensor(
        name=names.of("changelog_tail"),
        jobs=[jobs.maintain_queries, jobs.maintain_query, jobs.refresh_fleet_health],
        minimum_interval_seconds=15,
        default_status=names.sensor_status,
        required_resource_keys={names.fleet_key},
        description=f"Requests one run of {names.of('maintain_queries')} for the queries with at least "
        "`snapshot.changelogs` new batches, or whose replay exceeds `snapshot.restore_target`. It also discovers queries. "
        f'A query with executor = "spark" gets a run of {names.of("maintain_query")} for it alone. The first tick that '
        "finds a query requests the health of the fleet.",
    )
    def changelog_tail(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _tick(context, watched)

    @dg.sensor(
        name=names.of("dead_runs"),
        minimum_interval_seconds=30,
        default_status=names.sensor_status,
        required_resource_keys={names.fleet_key},
        description="Reports runs of this fleet without a sign of life for two minutes, or that do not start within "
        "ten minutes, as failed, so that changelog_tail retries them.",
    )
    def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        return _report_dead(context, watched)

    def notify(context: dg.RunStatusSensorContext) -> dg.SkipReason | None:
        run = context.dagster_run
        if TOLD_TAG in run.tags:
            return dg.SkipReason(f"the notice of its query or of the configuration has told of the run {run.run_id}")
        memory.tell_run(context, names, maintenance.memory, run, _cause(context.for_run_failure()))
        return None

    # The decorator takes the keys of resources from the names of parameters, which would be the same for each fleet.
    notify_on_failure = dg.RunStatusSensorDefinition(
        name=names.of("notify_on_failure"),
        run_status=DagsterRunStatus.FAILURE,
        run_status_sensor_fn=notify,
        monitored_jobs=[
            jobs.maintain_queries,
            jobs.maintain_query,
            jobs.audit_deep,
            jobs.drill_restore,
            jobs.refresh_fleet_health,
            prune_history,
        ],
        minimum_interval_seconds=15,
        default_status=names.sensor_status,
        required_resource_keys={names.notifier_key},
        description="Reports a job of this fleet whose run died or ended with an error of its own: once, in the log and by "
        "the channels of the fleet. The next run that succeeds reports the end. The notice of a query tells what is wrong "
        "with the query.",
    )
    return [changelog_tail, dead_runs, notify_on_failure]


def _tick(context: dg.SensorEvaluationContext, watched: _Watched) -> dg.SensorResult:
    """Request one run of `maintain_queries` for the queries that are due, the most urgent first, and discover queries. A
    query on a Spark cluster gets a run of `maintain_query`: it may take hours, and a person can terminate it alone.

    Lists `commits/` of each query, and reads no state. Reads the active runs of the fleet, and those that ended since the
    previous tick.
    """
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
    lasts, died = _lasts(context.instance, watched, cursor)
    before = {
        name: _measured(context.instance, watched.snapshot, query, asked)
        if lasts.get(name) is Last.SUCCEEDED
        else due.failed(asked)
        if lasts.get(name) is Last.FAILED
        else asked
        for name, query in found.queries.items()
        if (asked := cursor.asked.get(name))
    }
    decided = {
        name: due.decide(
            query.version,
            before.get(name),
            lasts.get(name, Last.NONE),
            long_tail=query.root.policies.snapshot.changelogs,
            now_seconds=now,
            schedule=query.root.policies.schedule,
            sweep=_sweep(query, before.get(name), now),
            has_died=name in died,
        )
        for name, query in found.queries.items()
    }
    due_now = {name: one for name, one in decided.items() if isinstance(one, Ask)}
    due_on_spark = {name: one for name, one in due_now.items() if _is_on_spark(found.queries[name])}
    due_here = {name: one for name, one in due_now.items() if name not in due_on_spark}
    batches = due.batches(due_here, died, most=fleet.queries_per_run)
    known = set(context.instance.get_dynamic_partitions(names.query_set))
    changes = _changes(known, found, cursor, configuration, now)
    remembered = {
        **cursor.asked,
        **before,
        **{name: one.asked for name, one in decided.items() if isinstance(one, Wait)},
    }
    remembered |= {name: one.asked for batch in (*batches, due_on_spark) for name, one in batch.items()}
    requests = [_request(batch, watched) for batch in batches]
    requests += [_request_on_spark(name, one, watched) for name, one in due_on_spark.items()]
    requests += _first_health(context.instance, found, watched)
    after = Cursor(
        asked={name: one for name, one in remembered.items() if name not in changes.forgotten},
        gone_since_seconds=changes.gone_since_seconds,
        added=changes.added,
        died={name: times for name, times in died.items() if name in remembered and name not in changes.forgotten},
        looked_seconds=now,
    )
    return dg.SensorResult(
        run_requests=requests,
        skip_reason=None if requests else _skip_reason(found, decided, lasts),
        cursor=after.encoded(),
        dynamic_partitions_requests=[
            *([names.queries.build_add_request(changes.new)] if changes.new else []),
            *([names.queries.build_delete_request(changes.forgotten)] if changes.forgotten else []),
        ],
    )


def _report_dead(context: dg.SensorEvaluationContext, watched: _Watched) -> dg.SkipReason:
    """Report runs without a sign of life as failed, and release their leases. Otherwise the run of a killed process would
    stay STARTED and block its queries. It requests no run: `changelog_tail` retries the queries."""
    runs = watched.runs
    fleet = runs.names.fleet_in(context)
    statuses = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED]
    all_started = context.instance.get_runs(filters=runs.filter(statuses=statuses))
    started = {run.run_id: run for run in all_started if runs.include(run) and _has_to_beat(run, runs)}
    beats = {
        run_id: liveness.STARTING if _is_starting(run) else run.tags.get(BEAT_TAG, "")
        for run_id, run in started.items()
    }
    now = SystemClock().now_seconds()
    dead, seen = liveness.look(liveness.parse(context.cursor), beats, now_seconds=now)
    context.update_cursor(seen.encoded())
    for run in (started[run_id] for run_id in sorted(dead)):
        since = run.tags.get(BEAT_TAG, "its start")
        message = f"the run has given no sign of life since {since}: its process or its machine was killed"
        if _is_starting(run):
            minutes = liveness.START_SECONDS / 60
            message = f"the run did not start within {minutes:.0f} minutes: the process that launches it was killed"
        context.instance.report_run_failed(run, message)
        by_hand = run.tags.get(QUERY_TAG)
        for query in [by_hand] if by_hand else sorted(unfinished(run.tags, queries_in(runs.names, run))):
            try:
                _free_lease(fleet, run, query)
            except StatekeeperError as error:
                context.log.warning("%s: the lease of the dead run expires in ten minutes: %s", printable(query), error)
    return dg.SkipReason(
        f"{len(started)} runs of this fleet are started; {len(dead)} of them were dead and are reported as failed"
    )


def _has_to_beat(run: dg.DagsterRun, runs: OwnRuns) -> bool:
    """Whether a started run beats while it lives. The jobs of the fleet do so at once. A step of another job of its assets
    may wait for a slot of a pool; and a run of an earlier build never beats, and has only a holder."""
    if _is_starting(run):
        return True
    return BEAT_TAG in run.tags or (run.job_name in runs.jobs and HOLDER_TAG not in run.tags)


def _is_starting(run: dg.DagsterRun) -> bool:
    return run.status is DagsterRunStatus.STARTING


def _cause(context: dg.RunFailureSensorContext) -> str:
    """The error of the step, or of the run."""
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


def _sweep(query: Query, asked: Asked | None, now_seconds: float) -> tuple[float, float] | None:
    """The age of the newest request, and the age after which the next one follows also without new versions: a query that
    the schedule does not maintain at night is maintained once a day, in its own window."""
    if asked is None or (query.root.policies.schedule.window is None and not _is_on_spark(query)):
        return None
    return now_seconds - asked.at_seconds, _DAY_SECONDS


def _request(asks: Mapping[str, Ask], watched: _Watched) -> dg.RunRequest:
    """Request one run for these queries. Dagster creates one run for equal run keys, that is, for the same versions and
    attempts of the same queries."""
    keys = [ask.run_key(name) for name, ask in asks.items()]
    first, ask = next(iter(asks.items()))
    reason, key = f"{first}: batch {ask.asked.version - 1:,}: {ask.reason}", keys[0]
    if len(asks) > 1:
        reason = f"{counted(len(asks), 'query')}; first {reason}"
        key = f"{key}+{len(asks) - 1}:{sha256(json_records.encoded(sorted(keys))).hexdigest()[:16]}"
    return dg.RunRequest(
        run_key=key,
        run_config=run_config(watched.runs.names, list(asks)),
        tags={REASON_TAG: printable(reason), **watched.runs.names.tags},
        job_name=watched.jobs.maintain_queries.name,
    )


def _request_on_spark(name: str, ask: Ask, watched: _Watched) -> dg.RunRequest:
    """Request a run for one query."""
    reason = printable(f"{name}: batch {ask.asked.version - 1:,}: {ask.reason}")
    return dg.RunRequest(
        run_key=ask.run_key(name),
        partition_key=name,
        tags={REASON_TAG: reason, **watched.runs.names.tags},
        job_name=watched.jobs.maintain_query.name,
    )


def _is_on_spark(query: Query) -> bool:
    return query.root.policies.executor is RunsOn.SPARK


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


def _free_lease(fleet: Fleet, run: dg.DagsterRun, query: str) -> None:
    dead = run.tags.get(HOLDER_TAG)
    if dead:
        storage = fleet.open(query).storage
        by = holder(run.run_id)
        lease.break_dead_lease(storage, dead, run=RandomIds().fresh(), by=by, clock=SystemClock())


def _lasts(instance: dg.DagsterInstance, watched: _Watched, cursor: Cursor) -> tuple[dict[str, Last], dict[str, int]]:
    """The status of the newest run of each query, whoever requested it, if it is active or has ended since the previous
    tick; and the times that a run died with a query."""
    runs, lasts, died = watched.runs, dict[str, Last](), dict(cursor.died)
    for run in instance.get_runs(filters=runs.filter(statuses=ACTIVE)):
        lasts |= dict.fromkeys(_queries_of(run, watched), Last.ACTIVE)
    since = None
    if cursor.looked_seconds is not None:
        since = datetime.fromtimestamp(cursor.looked_seconds - _OVERLAP_SECONDS, UTC)
    for run in instance.get_runs(filters=runs.filter(statuses=ENDED, updated_after=since), limit=_MOST_RUNS):
        queries = _queries_of(run, watched)
        is_of_many = run.job_name == watched.jobs.maintain_queries.name
        has_ended_well = run.status is DagsterRunStatus.SUCCESS
        left = unfinished(run.tags, queries) if is_of_many else set() if has_ended_well else set(queries)
        for name in queries:
            if name in lasts:
                continue  # a newer run has it
            lasts[name] = Last.FAILED if name in left else Last.SUCCEEDED
            died.pop(name, None)
            if name in left and is_of_many and not has_ended_well:
                died[name] = due.failed(cursor.asked[name]).attempts if name in cursor.asked else 1
    return lasts, died


def _queries_of(run: dg.DagsterRun, watched: _Watched) -> list[str]:
    """The queries that a run maintains."""
    if run.job_name == watched.jobs.maintain_queries.name:
        return queries_in(watched.runs.names, run)
    name = run.tags.get(QUERY_TAG)
    return [name] if name is not None and run.job_name == watched.jobs.maintain_query.name else []


def _skip_reason(found: fleets.Fleet, decided: dict[str, Ask | Wait], lasts: Mapping[str, Last]) -> str:
    """The reason for a tick without requests, in figures."""
    if not decided:
        return (
            f"no query has a committed batch; {len(found.waiting)} wait for their first batch, "
            f"{len(found.problems)} cannot be reached"
        )
    name, furthest = max(decided.items(), key=lambda item: item[1].new)
    active = sum(lasts.get(name) is Last.ACTIVE for name in decided)
    return (
        f"{len(decided)} queries, none is due; closest is {name}: {furthest.reason}; "
        f"{active} have a queued or running run, {len(found.problems)} cannot be reached"
    )
