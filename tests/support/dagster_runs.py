"""Runs of `maintain_query` in this process, and their events."""

from __future__ import annotations

from typing import Any

import dagster as dg


def stored_checks(instance: dg.DagsterInstance, run_id: str) -> list[dg.AssetCheckEvaluation]:
    """The evaluations that the instance has of a run, in their order."""
    logs = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    return [one.dagster_event.asset_check_evaluation_data for one in logs if one.dagster_event is not None]


def maintained(definitions: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("maintain_query")
    return job.execute_in_process(partition_key="flights", instance=instance, raise_on_error=False)


def materializations(result: dg.ExecuteInProcessResult, asset: str) -> list[dg.AssetMaterialization]:
    """The materializations of an asset in a run."""
    events = [
        event.step_materialization_data.materialization for event in result.all_events if event.is_step_materialization
    ]
    return [event for event in events if event.asset_key == dg.AssetKey(asset)]


def shown(result: dg.ExecuteInProcessResult, asset: str, label: str = "figures") -> dict[str, object]:
    """The metadata of the asset, with the rows of the table with this label."""
    (event,) = materializations(result, asset)
    found: dict[str, Any] = {name: value.value for name, value in event.metadata.items()}
    table = found.pop(label, None)
    return found | {row.data["figure"]: row.data["value"] for row in (table.records if table else ())}


def checks(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    """The evaluations of the run's own query; `fleet_health` is of all."""
    found = result.get_asset_check_evaluations()
    return {one.check_name: one for one in found if one.partition or one.check_name == "all_queries_healthy"}


def description(failed: dg.ExecuteInProcessResult) -> str:
    """The error that the step of a run has raised as `dg.Failure`."""
    (event,) = [one for one in failed.all_events if one.is_step_failure]
    failure = event.step_failure_data.user_failure_data
    assert failure is not None
    return str(failure.description)
