"""Runs of `maintain_query` in this process, and their events."""

from __future__ import annotations

import dagster as dg


def maintained(definitions: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("maintain_query")
    return job.execute_in_process(partition_key="flights", instance=instance, raise_on_error=False)


def shown(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, object]:
    events = result.asset_materializations_for_node(asset)
    (event,) = [event for event in events if event.asset_key == dg.AssetKey(asset)]  # beside those of the ledger
    return {name: value.value for name, value in event.metadata.items()}


def checks(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {one.check_name: one for one in result.get_asset_check_evaluations()}
