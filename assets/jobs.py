"""The jobs: one that maintains a query, one that looks at the fleet. Each runs in one process: a step costs less than an
interpreter."""

from __future__ import annotations

import dagster as dg

from assets.checkpoint_format import checkpoint_format
from assets.fleet_health import fleet_health
from assets.lineage import lineage
from assets.retention import retention
from assets.snapshot import snapshot

_FIFTEEN_MINUTES = {"dagster/max_runtime": "900"}
"""For runs whose process is on another machine: nobody here can tell whether it lives."""

maintain_query = dg.define_asset_job(
    "maintain_query",
    selection=dg.AssetSelection.assets(snapshot, lineage, retention),
    executor_def=dg.in_process_executor,
    tags=_FIFTEEN_MINUTES,
    description="Snapshots where tails are long, then the proof of the lineage, then retention. The order is the point: "
    "what is broken ends the run before anything is deleted.",
)

switch_checkpoint = dg.define_asset_job(
    "switch_checkpoint",
    selection=dg.AssetSelection.assets(checkpoint_format),
    executor_def=dg.in_process_executor,
    description="Moves one stopped query's checkpoint between the structures V1 and V2; nothing launches it but a person. "
    "It plans, until the launchpad says do: APPLY.",
)
"""However long it takes."""

refresh_fleet_health = dg.define_asset_job(
    "refresh_fleet_health",
    selection=dg.AssetSelection.assets(fleet_health),
    executor_def=dg.in_process_executor,
    tags=_FIFTEEN_MINUTES,
    description="Looks at every query and writes nothing.",
)
"""Its runs write nothing, so that one that dies half-way needs no care."""
