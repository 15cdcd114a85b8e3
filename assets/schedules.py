"""The schedules. Hours are in UTC."""

import os
from collections.abc import Iterator

import dagster as dg

from statekeeper.assets.history import prune_history
from statekeeper.assets.jobs import maintain_query, mirror_checkpoint, refresh_fleet_health
from statekeeper.assets.partitions import ACTIVE, QUERY_SET, QUERY_TAG, REASON_TAG
from statekeeper.resources.fleet import FLEET_TAG, Fleet

HEALTH_CRON = os.environ.get("STATEKEEPER_HEALTH_CRON", "17 * * * *")
"""When the fleet is examined. Default: minute 17 of each hour; the demonstration uses each minute."""

MIRROR_CRON = os.environ.get("STATEKEEPER_MIRROR_CRON", "*/5 * * * *")
"""When the queries with a mirror are mirrored. Default: each five minutes."""


@dg.schedule(
    job=maintain_query,
    cron_schedule="0 3 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Maintains every query at 03:00Z, also idle queries, whose old versions become garbage with time.",
)
def nightly_sweep(context: dg.ScheduleEvaluationContext, fleet: Fleet) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Request a run of `maintain_query` for every query at 03:00Z, also for idle queries."""
    known = set(context.instance.get_dynamic_partitions(QUERY_SET))
    found = [name for name in fleet.discover().queries if name in known]
    if not found:
        yield dg.SkipReason("no query is known yet; the sensor changelog_tail discovers queries")
    night = context.scheduled_execution_time.date().isoformat()
    for name in found:
        yield dg.RunRequest(
            run_key=f"nightly:{name}@{night}",
            partition_key=name,
            tags={REASON_TAG: f"nightly sweep of {night}", FLEET_TAG: fleet.label},
        )


@dg.schedule(
    job=mirror_checkpoint,
    cron_schedule=MIRROR_CRON,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Mirrors every query with a `mirror` in statekeeper.toml. STATEKEEPER_MIRROR_CRON changes the schedule.",
)
def mirror_queries(context: dg.ScheduleEvaluationContext, fleet: Fleet) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Request a run of `mirror_checkpoint` for every query with a mirror, unless the previous one has not ended."""
    configuration = fleet.configuration()
    known = filter(configuration.names, context.instance.get_dynamic_partitions(QUERY_SET))
    # Not only those that can be read now: a mirror whose source is lost turns its check red.
    found = [name for name in sorted(known) if configuration.find(name).mirror is not None]
    busy = {
        run.tags.get(QUERY_TAG)
        for run in context.instance.get_runs(dg.RunsFilter(job_name=mirror_checkpoint.name, statuses=ACTIVE))
        if fleet.may_own(run.tags)
    }
    if not found:
        yield dg.SkipReason("no known query has a mirror in statekeeper.toml")
    tick = context.scheduled_execution_time.isoformat(timespec="minutes")
    for name in found:
        if name not in busy:
            tags = {REASON_TAG: f"mirror at {tick}", FLEET_TAG: fleet.label}
            yield dg.RunRequest(run_key=f"mirror:{name}@{tick}", partition_key=name, tags=tags)


@dg.schedule(
    job=refresh_fleet_health,
    cron_schedule=HEALTH_CRON,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Examines every query. STATEKEEPER_HEALTH_CRON changes the schedule.",
)
def hourly_fleet_health(fleet: Fleet) -> dg.RunRequest:
    """Request a run of `refresh_fleet_health`."""
    return dg.RunRequest(tags={REASON_TAG: "schedule", FLEET_TAG: fleet.label})


@dg.schedule(
    job=prune_history,
    cron_schedule="40 4 * * 0",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Deletes Dagster's record of runs of this fleet that ended more than 30 days ago. Runs of other jobs and "
    "of other fleets in the same Dagster instance stay.",
)
def weekly_prune(fleet: Fleet) -> dg.RunRequest:
    """Request a run of `prune_history`."""
    return dg.RunRequest(tags={REASON_TAG: "schedule", FLEET_TAG: fleet.label})
