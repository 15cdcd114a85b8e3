"""The sensors: what wakes maintenance, what notices dead runs, and what tells a person."""

from dataclasses import dataclass

import dagster as dg
from dagster import DagsterRunStatus

from assets import due
from assets.due import Ask, Cursor, Last, Wait
from assets.history import prune_history
from assets.jobs import maintain_query, refresh_fleet_health
from assets.partitions import QUERIES, QUERY_SET, QUERY_TAG
from resources.fleet import Fleet
from resources.notifier import Notifier
from resources.worker import HOLDER_TAG, holder, is_dead
from statestore.clock import RandomIds, SystemClock
from statestore.errors import StatekeeperError
from statestore.maintenance import fleet as fleets
from statestore.maintenance import lease
from statestore.maintenance.config import Configuration
from statestore.maintenance.fleet import Query, forget_seconds

MOST_RUNS_A_TICK = 20
"""Each costs the tick 0.4 s, of the 60 s that it has. The rest is still due at the next one."""

_AT_WORK = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


@dg.sensor(
    job=maintain_query,
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Asks for a run for each query whose commit log has moved on by as many versions as make a tail long, and "
    "finds new queries.",
)
def changelog_tail(context: dg.SensorEvaluationContext, fleet: Fleet) -> dg.SensorResult:
    """Asks for a run of `maintain_query` for each query whose commit log has moved on by as many versions as make a tail
    long, and finds new queries. Reads one listing of `commits/` for each query and never what is in `state/`."""
    cursor = due.parse(context.cursor)
    if cursor is None:
        context.log.warning("the cursor cannot be read and begins anew; a run that was asked for is not repeated")
        cursor = Cursor()
    configuration = fleet.configuration()
    # Only later commits are listed: a log that is never purged can hold a million.
    committed = {name: one.version - 1 for name, one in cursor.asked.items()}
    found = fleets.discover(configuration, committed=committed)
    for name, problem in found.problems.items():
        context.log.warning("%s: %s", name, problem)
    now = SystemClock().now_seconds()
    lasts = {name: _last(context.instance, name) for name in found.queries}
    decided = {
        name: due.decide(
            query.version,
            cursor.asked.get(name),
            lasts[name],
            long_tail=query.root.policies.snapshot.changelogs,
            now_seconds=now,
        )
        for name, query in found.queries.items()
    }
    asks = sorted(((name, one) for name, one in decided.items() if isinstance(one, Ask)), key=lambda item: -item[1].new)
    asks = asks[:MOST_RUNS_A_TICK]
    known = set(context.instance.get_dynamic_partitions(QUERY_SET))
    comings = _comings(known, found, cursor, configuration, now)
    asked = {name: one for name, one in cursor.asked.items() if name not in comings.forgotten}
    asked |= {name: one.asked for name, one in decided.items() if isinstance(one, Wait)}
    asked |= {name: one.asked for name, one in asks}
    return dg.SensorResult(
        run_requests=[_request(name, one, found.queries[name]) for name, one in asks],
        skip_reason=None if asks else _why_nothing(found, decided, lasts),
        cursor=Cursor(asked, comings.gone_since_seconds).encoded(),
        dynamic_partitions_requests=[
            *([QUERIES.build_add_request(comings.new)] if comings.new else []),
            *([QUERIES.build_delete_request(comings.forgotten)] if comings.forgotten else []),
        ],
    )


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Reports runs as failed whose process is dead, so that their queries are maintained again.",
)
def dead_runs(context: dg.SensorEvaluationContext, fleet: Fleet) -> dg.SkipReason:
    """Reports runs as failed whose process is dead, and frees the leases that they held. Else a run of a killed worker
    stays "started", and its query waits for it. Asks for no run: `changelog_tail` sees that the newest one failed."""
    started = context.instance.get_runs(filters=dg.RunsFilter(statuses=[DagsterRunStatus.STARTED]))
    dead = [run for run in started if is_dead(context.instance, run.run_id, run.tags)]
    for run in dead:
        context.instance.report_run_failed(run, "the process of the run is dead: killed, or its machine was restarted")
        try:
            _free_lease(fleet, run)
        except StatekeeperError as error:
            context.log.warning("the lease of the dead run %s stands for ten minutes: %s", run.run_id, error)
    return dg.SkipReason(f"{len(started)} runs were at work, of which {len(dead)} were dead and are reported as failed")


@dg.run_failure_sensor(
    monitored_jobs=[maintain_query, refresh_fleet_health, prune_history],
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Tells a person of each run that failed: in the log, and by the webhook that STATEKEEPER_WEBHOOK names.",
)
def notify_on_failure(context: dg.RunFailureSensorContext, notifier: Notifier) -> dg.SkipReason | None:
    """Tells a person of each run that failed: in the log, and by the webhook that STATEKEEPER_WEBHOOK names."""
    run = context.dagster_run
    failures = [event.step_failure_data.error for event in context.get_step_failure_events()]
    # The cause is ours, what is around it says only that a step failed.
    causes = [(error.cause or error).message.strip() for error in failures if error is not None]
    why = causes[0] if causes else context.failure_event.message
    problem = notifier.tell(
        f"{run.job_name} of {run.tags.get(QUERY_TAG, 'the fleet')} failed (run {run.run_id}): {why}"
    )
    return None if problem is None else dg.SkipReason(problem)


@dataclass(frozen=True)
class _Comings:
    """Queries that come and go: `new` ones and `forgotten` ones of this tick, and since when others are gone."""

    new: list[str]
    forgotten: list[str]
    gone_since_seconds: dict[str, float]


def _comings(
    known: set[str], found: fleets.Fleet, cursor: Cursor, configuration: Configuration, now_seconds: float
) -> _Comings:
    gone = {
        name: cursor.gone_since_seconds.get(name, now_seconds)
        for name in sorted(known - set(found.queries) - set(configuration.roots))
        if not found.is_unseen(name)
    }
    forgotten = [name for name, since in gone.items() if now_seconds - since >= forget_seconds(configuration, name)]
    since = {name: seconds for name, seconds in gone.items() if name not in forgotten}
    return _Comings(sorted(set(found.queries) - known), forgotten, since)


def _request(name: str, ask: Ask, query: Query) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=ask.run_key(name),
        partition_key=name,
        tags={"statekeeper/version": str(query.version), "statekeeper/why": ask.why},
    )


def _free_lease(fleet: Fleet, run: dg.DagsterRun) -> None:
    query, dead = run.tags.get(QUERY_TAG), run.tags.get(HOLDER_TAG)
    if query and dead:
        storage = fleet.open(query).storage
        by = holder(run.run_id)
        lease.break_dead_lease(storage, dead, run=RandomIds().fresh(), by=by, clock=SystemClock())


def _last(instance: dg.DagsterInstance, query: str) -> Last:
    """How the newest run of the query stands, whoever asked for it."""
    tags = {QUERY_TAG: query}
    if instance.get_runs(filters=dg.RunsFilter(job_name="maintain_query", tags=tags, statuses=_AT_WORK), limit=1):
        return Last.AT_WORK
    newest = instance.get_runs(filters=dg.RunsFilter(job_name="maintain_query", tags=tags), limit=1)
    if not newest:
        return Last.NONE
    return Last.WELL if newest[0].status is DagsterRunStatus.SUCCESS else Last.ILL


def _why_nothing(found: fleets.Fleet, decided: dict[str, Ask | Wait], lasts: dict[str, Last]) -> str:
    """In figures, for the list of ticks."""
    if not decided:
        return (
            f"no query has a committed batch yet; {len(found.waiting)} are waited for, {len(found.problems)} not seen"
        )
    name, furthest = max(decided.items(), key=lambda item: item[1].new)
    at_work = sum(last is Last.AT_WORK for last in lasts.values())
    return (
        f"{len(decided)} queries, none is due; furthest is {name}: {furthest.why}; "
        f"{at_work} at work, {len(found.problems)} not seen"
    )
