"""The job `prune_history`: Dagster keeps every run for ever unless somebody deletes it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
from dagster import DagsterRunStatus
from pydantic import Field

from resources.worker import forget_dead
from statestore.clock import SystemClock

_ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
_AT_A_TIME = 100


class HistoryConfig(dg.Config):
    """What of Dagster's own history stays."""

    keep_days: int = Field(default=30, ge=1, description="Runs that ended within so many days stay.")
    most_runs: int = Field(default=5_000, ge=1, description="So many are deleted at most; the rest waits a week.")


@dg.op
def delete_old_runs(context: dg.OpExecutionContext, config: HistoryConfig) -> int:
    """Delete runs that ended long ago, with their events and logs. Nothing rests on them; returns how many it were."""
    instance = context.instance
    before = datetime.fromtimestamp(SystemClock().now_seconds(), UTC) - timedelta(days=config.keep_days)
    old = dg.RunsFilter(statuses=_ENDED, updated_before=before)
    deleted = 0
    while deleted < config.most_runs:
        runs = instance.get_runs(filters=old, limit=min(_AT_A_TIME, config.most_runs - deleted))
        if not runs:
            break
        for run in runs:
            instance.delete_run(run.run_id)
            _delete_files(instance, run.run_id)
            deleted += 1
    at_work = instance.get_runs(filters=dg.RunsFilter(statuses=[DagsterRunStatus.STARTED]))
    forget_dead(instance, {run.run_id for run in at_work})
    context.log.info("deleted %d runs that ended before %s", deleted, before.isoformat(timespec="minutes"))
    return deleted


@dg.job(executor_def=dg.in_process_executor, tags={"dagster/max_runtime": "900"})
def prune_history() -> None:
    """Deletes Dagster's record of runs that ended more than `keep_days` ago. Checkpoints are not touched."""
    delete_old_runs()


def _delete_files(instance: dg.DagsterInstance, run_id: str) -> None:
    """What deleting a run leaves behind: with SQLite, the file of its events."""
    for file in (Path(instance.root_directory) / "history" / "runs").glob(f"{run_id}.db*"):
        file.unlink(missing_ok=True)
