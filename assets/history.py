"""The job `prune_history`: Dagster itself never deletes a run."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
from dagster import DagsterRunStatus
from pydantic import Field

from statekeeper.resources.fleet import FLEET_TAG, Fleet
from statekeeper.resources.worker import delete_dead_locks
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.durations import utc

_ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
_AT_A_TIME = 100


class HistoryConfig(dg.Config):
    """The part of Dagster's own history to retain."""

    keep_days: int = Field(default=30, ge=1, description="Days for which ended runs are retained.")
    most_runs: int = Field(
        default=5_000, ge=1, description="Most runs to delete; the next week's run deletes the rest."
    )


@dg.op
def delete_old_runs(context: dg.OpExecutionContext, config: HistoryConfig, fleet: Fleet) -> int:
    """Delete old ended runs of this fleet with their events and logs. Returns the number of deleted runs."""
    before = datetime.fromtimestamp(SystemClock().now_seconds(), UTC) - timedelta(days=config.keep_days)
    deleted = delete_ended_runs(context.instance, before, config.most_runs, like=context.run, fleet=fleet.label)
    context.log.info("deleted %d runs that ended before %s", deleted, utc(before.timestamp()))
    return deleted


def delete_ended_runs(
    instance: dg.DagsterInstance, before: datetime, most: int, *, like: dg.DagsterRun, fleet: str
) -> int:
    """Delete at most `most` runs of a fleet that ended before a time, and the locks of dead workers. Returns the number of
    runs.

    A run without the tag of the fleet stays: it is of another team, or it never started. So does a run of another code
    location than the run `like`: two containers can have their configuration at the same path.
    """
    old = dg.RunsFilter(statuses=_ENDED, updated_before=before, tags={FLEET_TAG: fleet})
    deleted, cursor = 0, None
    while deleted < most:
        runs = instance.get_runs(filters=old, cursor=cursor, limit=_AT_A_TIME)
        if not runs:
            break
        ours = [run for run in runs if _code_location(run) == _code_location(like)]
        for run in ours[: most - deleted]:
            instance.delete_run(run.run_id)
            _delete_files(instance, run.run_id)
            deleted += 1
        # The cursor is a run that still exists.
        kept = [run.run_id for run in runs if run not in ours]
        cursor = kept[-1] if kept else cursor
    at_work = instance.get_runs(filters=dg.RunsFilter(statuses=[DagsterRunStatus.STARTED]))
    delete_dead_locks(instance, {run.run_id for run in at_work})
    return deleted


@dg.job(executor_def=dg.in_process_executor, tags={"dagster/max_runtime": "900"})
def prune_history() -> None:
    """Deletes Dagster's record of runs of this fleet that ended more than `keep_days` ago. It touches neither checkpoints
    nor the runs of others."""
    delete_old_runs()


def _code_location(run: dg.DagsterRun) -> str | None:
    """The repository and the code location of a run; None for a run in the process of its caller."""
    origin = run.remote_job_origin
    return None if origin is None else origin.repository_origin.get_label()


def _delete_files(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete the SQLite file of the run's events, which Dagster leaves behind."""
    for file in (Path(instance.root_directory) / "history" / "runs").glob(f"{run_id}.db*"):
        file.unlink(missing_ok=True)
