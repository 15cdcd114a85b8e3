"""The job `prune_history`: Dagster itself never deletes a run."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
from pydantic import Field

from statekeeper.assets.memory import tell_run
from statekeeper.assets.names import OwnRuns
from statekeeper.assets.partitions import ENDED
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.durations import utc

_AT_A_TIME = 100

PRUNE_HISTORY = "prune_history"
"""The name of the job, without the prefix of the fleet."""


class HistoryConfig(dg.Config):
    """The part of Dagster's own history to retain."""

    keep_days: int = Field(default=30, ge=1, description="Days for which ended runs are retained.")
    most_runs: int = Field(
        default=5_000, ge=1, description="Most runs to delete; the next week's run deletes the rest."
    )


def prune_history(runs: OwnRuns, memory: dg.AssetKey) -> dg.JobDefinition:
    """Make the job that deletes old runs of a fleet. `memory`: the asset that remembers what was told."""
    names = runs.names

    @dg.op(name=names.of("delete_old_runs"), required_resource_keys={names.fleet_key, names.notifier_key})
    def delete_old_runs(context: dg.OpExecutionContext, config: HistoryConfig) -> int:
        """Delete old ended runs of this fleet with their events and logs. Returns the number of deleted runs."""
        before = datetime.fromtimestamp(SystemClock().now_seconds(), UTC) - timedelta(days=config.keep_days)
        deleted = delete_ended_runs(context.instance, before, config.most_runs, like=context.run, of=runs)
        context.log.info("deleted %d runs that ended before %s", deleted, utc(before.timestamp()))
        tell_run(context, names, memory, context.run, None)
        return deleted

    @dg.job(
        name=names.of(PRUNE_HISTORY),
        executor_def=dg.in_process_executor,
        tags={"dagster/max_runtime": "900", **names.tags},
    )
    def made() -> None:
        """Deletes Dagster's record of runs of this fleet that ended more than `keep_days` ago. It touches neither
        checkpoints nor the runs of others."""
        delete_old_runs()

    return made


def delete_ended_runs(
    instance: dg.DagsterInstance, before: datetime, most: int, *, like: dg.DagsterRun, of: OwnRuns
) -> int:
    """Delete at most `most` runs of a fleet that ended before a time, with their files. Returns the number of runs.

    A run without the tag of the fleet stays: it is of another team. So does a run of another code location than the run
    `like`: two containers can have their configuration at the same path.
    """
    old = of.filter(statuses=ENDED, updated_before=before)
    deleted, cursor = 0, None
    while deleted < most:
        runs = instance.get_runs(filters=old, cursor=cursor, limit=_AT_A_TIME)
        if not runs:
            break
        ours = [run for run in runs if of.include(run) and _code_location(run) == _code_location(like)]
        for run in ours[: most - deleted]:
            instance.delete_run(run.run_id)
            _delete_files(instance, run.run_id)
            deleted += 1
        # The cursor is a run that still exists.
        kept = [run.run_id for run in runs if run not in ours]
        cursor = kept[-1] if kept else cursor
    return deleted


def _code_location(run: dg.DagsterRun) -> str | None:
    """The repository and the code location of a run; None for a run in the process of its caller."""
    origin = run.remote_job_origin
    return None if origin is None else origin.repository_origin.get_label()


def _delete_files(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete the SQLite file of the run's events, which Dagster leaves behind."""
    for file in (Path(instance.root_directory) / "history" / "runs").glob(f"{run_id}.db*"):
        file.unlink(missing_ok=True)
