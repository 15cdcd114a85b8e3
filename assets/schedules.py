"""The schedules: what happens at fixed times, whether or not anything woke a sensor. Hours are UTC."""

import os
from collections.abc import Iterator

import dagster as dg

from assets.history import prune_history
from assets.jobs import maintain_query, refresh_fleet_health
from assets.partitions import QUERY_SET
from resources.fleet import Fleet

HEALTH_CRON = os.environ.get("STATEKEEPER_HEALTH_CRON", "17 * * * *")
"""How often the fleet is looked at: each hour; for a demonstration each minute."""


@dg.schedule(
    job=maintain_query,
    cron_schedule="0 3 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every query, each night at three: also those that stand still, whose old versions become garbage.",
)
def nightly_sweep(context: dg.ScheduleEvaluationContext, fleet: Fleet) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Every query, each night at three: also those that stand still, whose old versions become garbage with time."""
    known = set(context.instance.get_dynamic_partitions(QUERY_SET))
    found = [name for name in fleet.discover().queries if name in known]
    if not found:
        yield dg.SkipReason("no query is known yet: the sensor changelog_tail finds them")
    night = context.scheduled_execution_time.date().isoformat()
    for name in found:
        yield dg.RunRequest(run_key=f"nightly:{name}@{night}", partition_key=name)


hourly_fleet_health = dg.ScheduleDefinition(
    name="hourly_fleet_health",
    job=refresh_fleet_health,
    cron_schedule=HEALTH_CRON,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Looks at every query. STATEKEEPER_HEALTH_CRON sets another rhythm.",
)

weekly_prune = dg.ScheduleDefinition(
    name="weekly_prune",
    job=prune_history,
    cron_schedule="40 4 * * 0",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Deletes Dagster's record of runs that ended a month ago.",
)
