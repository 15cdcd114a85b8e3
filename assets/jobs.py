"""The jobs. Each runs in one process: starting an interpreter for each step costs more than the steps."""

from __future__ import annotations

import dagster as dg

from statekeeper.assets.clone import clone
from statekeeper.assets.fleet_health import fleet_health
from statekeeper.assets.lineage import lineage
from statekeeper.assets.mirror import mirror
from statekeeper.assets.retention import retention
from statekeeper.assets.rewrites import checkpoint_format, convert, edit, evolve, load, rescale
from statekeeper.assets.savepoint import savepoint
from statekeeper.assets.snapshot import snapshot

_FIFTEEN_MINUTES = {"dagster/max_runtime": "900"}
"""Ends runs on other machines, whose liveness this machine cannot check."""

maintain_query = dg.define_asset_job(
    "maintain_query",
    selection=dg.AssetSelection.assets(snapshot, lineage, retention),
    executor_def=dg.in_process_executor,
    tags=_FIFTEEN_MINUTES,
    description="Takes snapshots of stores with a long tail, audits the lineage, then applies retention. If the audit "
    "reports an error, the run ends before retention deletes a file.",
)

switch_checkpoint = dg.define_asset_job(
    "switch_checkpoint",
    selection=dg.AssetSelection.assets(checkpoint_format),
    executor_def=dg.in_process_executor,
    description="Moves the checkpoint of a stopped query between the structures V1 and V2. Launch it by hand. It only "
    "plans unless the launchpad sets do: APPLY.",
)
"""Without a limit on its runtime."""

rescale_checkpoint = dg.define_asset_job(
    "rescale_checkpoint",
    selection=dg.AssetSelection.assets(rescale),
    executor_def=dg.in_process_executor,
    description="Changes the number of partitions of a stopped query. Launch it by hand. It only plans unless the "
    "launchpad sets do: APPLY.",
)
"""Without a limit on its runtime."""

convert_checkpoint = dg.define_asset_job(
    "convert_checkpoint",
    selection=dg.AssetSelection.assets(convert),
    executor_def=dg.in_process_executor,
    description="Moves the state of a stopped Spark query from Spark's default state store provider to RocksDB, or back. "
    "Launch it by hand. It only plans unless the launchpad sets do: APPLY.",
)
"""Without a limit on its runtime."""

edit_checkpoint = dg.define_asset_job(
    "edit_checkpoint",
    selection=dg.AssetSelection.assets(edit),
    executor_def=dg.in_process_executor,
    description="Deletes keys of the state of a stopped query, or corrects rows. Launch it by hand. It only plans unless "
    "the launchpad sets do: APPLY.",
)
"""Without a limit on its runtime."""

load_checkpoint = dg.define_asset_job(
    "load_checkpoint",
    selection=dg.AssetSelection.assets(load),
    executor_def=dg.in_process_executor,
    description="Replaces the state of a stopped query by the rows of a savepoint. Launch it by hand. It only plans unless "
    "the launchpad sets do: APPLY.",
)
"""Without a limit on its runtime."""

evolve_checkpoint = dg.define_asset_job(
    "evolve_checkpoint",
    selection=dg.AssetSelection.assets(evolve),
    executor_def=dg.in_process_executor,
    description="Adds, drops, widens or renames value columns of the state root of a stopped job. Launch it by hand. It "
    "only plans unless the launchpad sets do: APPLY.",
)
"""Without a limit on its runtime."""

clone_checkpoint = dg.define_asset_job(
    "clone_checkpoint",
    selection=dg.AssetSelection.assets(clone),
    executor_def=dg.in_process_executor,
    description="Copies a checkpoint at one batch to another location. Launch it by hand. It only plans unless the "
    "launchpad sets do: APPLY.",
)
"""Without a limit on its runtime."""

savepoint_checkpoint = dg.define_asset_job(
    "savepoint_checkpoint",
    selection=dg.AssetSelection.assets(savepoint),
    executor_def=dg.in_process_executor,
    description="Keeps the state of one batch in another location, as files or as typed rows. Launch it by hand. It only "
    "plans unless the launchpad sets do: APPLY.",
)
"""Without a limit on its runtime."""

mirror_checkpoint = dg.define_asset_job(
    "mirror_checkpoint",
    selection=dg.AssetSelection.assets(mirror),
    executor_def=dg.in_process_executor,
    description="Copies the batches that the mirror of a query lacks, and checks its lag. The schedule mirror_queries "
    "launches it for each query with a `mirror` in statekeeper.toml.",
)
"""Without a limit on its runtime: the first run copies the whole state."""

refresh_fleet_health = dg.define_asset_job(
    "refresh_fleet_health",
    selection=dg.AssetSelection.assets(fleet_health),
    executor_def=dg.in_process_executor,
    tags=_FIFTEEN_MINUTES,
    description="Examines every query and writes nothing.",
)
"""A run that dies needs no recovery, because it writes nothing."""
