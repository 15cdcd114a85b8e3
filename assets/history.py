"""The job `prune_history`: Dagster itself never deletes a run."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
from dagster import DagsterRunStatus
from pydantic import Field

from assets import metadata
from resources.worker import delete_dead_locks
from statestore.clock import SystemClock

_ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
_AT_A_TIME = 100


class HistoryConfig(dg.Config):
    """The part of Dagster's own history to retain."""

    keep_days: int = Field(default=30, ge=1, description="Days for which ended runs are retained.")
    most_runs: int = Field(
        default=5_000, ge=1, description="Most runs to delete; the next week's run deletes the rest."
    )


@dg.op
def delete_old_runs(context: dg.OpExecutionContext, config: HistoryConfig) -> int:
    """Delete old ended runs with their events and logs. Returns the number of deleted runs."""
    before = datetime.fromtimestamp(SystemClock().now_seconds(), UTC) - timedelta(days=config.keep_days)
    deleted = delete_ended_runs(context.instance, before, config.most_runs)
    context.log.info("deleted %d runs that ended before %s", deleted, metadata.utc(before.timestamp()))
    return deleted


def delete_ended_runs(instance: dg.DagsterInstance, before: datetime, most: int) -> int:
    """Delete at most `most` runs that ended before a time, and the locks of dead workers. Returns the number of runs."""
    old = dg.RunsFilter(statuses=_ENDED, updated_before=before)
    deleted = 0
    while deleted < most:
        runs = instance.get_runs(filters=old, limit=min(_AT_A_TIME, most - deleted))
        if not runs:
            break
        for run in runs:
            instance.delete_run(run.run_id)
            _delete_files(instance, run.run_id)
            deleted += 1
    at_work = instance.get_runs(filters=dg.RunsFilter(statuses=[DagsterRunStatus.STARTED]))
    delete_dead_locks(instance, {run.run_id for run in at_work})
    return deleted


@dg.job(executor_def=dg.in_process_executor, tags={"dagster/max_runtime": "900"})
def prune_history() -> None:
    """Deletes Dagster's record of runs that ended more than `keep_days` ago. It does not touch checkpoints."""
    delete_old_runs()


def _delete_files(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete the SQLite file of the run's events, which Dagster leaves behind."""
    for file in (Path(instance.root_directory) / "history" / "runs").glob(f"{run_id}.db*"):
        file.unlink(missing_ok=True)
