"""The schedules. Hours are in UTC."""

import os
from collections.abc import Iterator

import dagster as dg

from assets.history import prune_history
from assets.jobs import maintain_query, refresh_fleet_health
from assets.partitions import QUERY_SET, REASON_TAG
from resources.fleet import Fleet

HEALTH_CRON = os.environ.get("STATEKEEPER_HEALTH_CRON", "17 * * * *")
"""When the fleet is examined. Default: minute 17 of each hour; the demonstration uses each minute."""


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
            run_key=f"nightly:{name}@{night}", partition_key=name, tags={REASON_TAG: f"nightly sweep of {night}"}
        )


hourly_fleet_health = dg.ScheduleDefinition(
    name="hourly_fleet_health",
    job=refresh_fleet_health,
    cron_schedule=HEALTH_CRON,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Examines every query. STATEKEEPER_HEALTH_CRON changes the schedule.",
    tags={REASON_TAG: "schedule"},
)

weekly_prune = dg.ScheduleDefinition(
    name="weekly_prune",
    job=prune_history,
    cron_schedule="40 4 * * 0",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Deletes Dagster's record of runs that ended more than 30 days ago.",
    tags={REASON_TAG: "schedule"},
)
