"""The jobs. Each runs in one process: starting an interpreter for each step costs more than the steps."""

from __future__ import annotations

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from statekeeper.assets.clone import clone
from statekeeper.assets.fleet_health import fleet_health
from statekeeper.assets.lineage import lineage
from statekeeper.assets.mirror import mirror
from statekeeper.assets.retention import retention
from statekeeper.assets.rewrites import REWRITES
from statekeeper.assets.savepoint import savepoint
from statekeeper.assets.snapshot import snapshot

_FIFTEEN_MINUTES = {"dagster/max_runtime": "900"}
"""Ends runs on other machines, whose liveness this machine cannot check."""

_NAMES = {"checkpoint_format": "switch_checkpoint"}
"""The name of the job of an asset, if it is not that of the asset with the suffix `_checkpoint`."""


def _job(
    name: str, *assets: dg.AssetsDefinition, description: str, tags: dict[str, str] | None = None
) -> UnresolvedAssetJobDefinition:
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*assets),
        executor_def=dg.in_process_executor,
        tags=tags,
        description=description,
    )


def _by_hand(asset: dg.AssetsDefinition) -> UnresolvedAssetJobDefinition:
    """The job with which a person launches an asset. It has no limit on its runtime."""
    name, purpose = asset.key.to_user_string(), str(asset.specs_by_key[asset.key].description).partition(". ")[0]
    described = f"{purpose}. Launch it by hand. It only plans unless the launchpad sets do: APPLY."
    return _job(_NAMES.get(name, f"{name}_checkpoint"), asset, description=described)


BY_HAND = tuple(map(_by_hand, (*REWRITES, clone, savepoint)))
"""The jobs that a person launches."""

maintain_query = _job(
    "maintain_query",
    snapshot,
    lineage,
    retention,
    tags=_FIFTEEN_MINUTES,
    description="Takes snapshots of stores with a long tail, audits the lineage, then applies retention. If the audit "
    "reports an error, the run ends before retention deletes a file.",
)

mirror_checkpoint = _job(
    "mirror_checkpoint",
    mirror,
    description="Copies the batches that the mirror of a query lacks, and checks its lag. The schedule mirror_queries "
    "launches it for each query with a `mirror` in statekeeper.toml.",
)
"""Without a limit on its runtime: the first run copies the whole state."""

refresh_fleet_health = _job(
    "refresh_fleet_health", fleet_health, tags=_FIFTEEN_MINUTES, description="Examines every query and writes nothing."
)
"""A run that dies needs no recovery, because it writes nothing."""
