"""The definitions that Dagster loads by way of `workspace.yaml`.

Environment variables and their defaults: STATEKEEPER_CONFIG (statekeeper.toml in the working directory),
STATEKEEPER_FLEET (the path of that file), STATEKEEPER_SCRATCH (the system's folder for temporary files),
STATEKEEPER_WEBHOOK (none), STATEKEEPER_HEALTH_CRON and STATEKEEPER_MIRROR_CRON (see `statekeeper.assets.schedules`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import dagster as dg

from statekeeper.assets.clone import clone
from statekeeper.assets.fleet_health import fleet_health
from statekeeper.assets.history import prune_history
from statekeeper.assets.jobs import BY_HAND, maintain_query, mirror_checkpoint, refresh_fleet_health
from statekeeper.assets.lineage import lineage
from statekeeper.assets.mirror import mirror
from statekeeper.assets.retention import retention
from statekeeper.assets.rewrites import REWRITES
from statekeeper.assets.savepoint import savepoint
from statekeeper.assets.schedules import hourly_fleet_health, mirror_queries, nightly_sweep, weekly_prune
from statekeeper.assets.sensors import changelog_tail, dead_runs, notify_on_failure
from statekeeper.assets.snapshot import snapshot
from statekeeper.assets.sources import COMMIT_LOG, STATE_STORE, STREAMING_QUERY
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.notifier import Notifier
from statekeeper.resources.worker import Worker
from statekeeper.statestore.base.messages import CONFIGURATION_FILE
from statekeeper.statestore.contents.quiet import QUIET_SECONDS

_WEBHOOK = "STATEKEEPER_WEBHOOK"


def build(environment: Mapping[str, str], *, quiet_seconds: float = QUIET_SECONDS) -> dg.Definitions:
    """Build the definitions for an environment. Tests inject both arguments."""
    return dg.Definitions(
        assets=[
            STREAMING_QUERY,
            COMMIT_LOG,
            STATE_STORE,
            snapshot,
            lineage,
            retention,
            *REWRITES,
            clone,
            mirror,
            savepoint,
            fleet_health,
        ],
        jobs=[maintain_query, *BY_HAND, mirror_checkpoint, refresh_fleet_health, prune_history],
        schedules=[nightly_sweep, mirror_queries, hourly_fleet_health, weekly_prune],
        sensors=[changelog_tail, dead_runs, notify_on_failure],
        resources={
            "fleet": Fleet(
                config_file=str(Path(environment.get("STATEKEEPER_CONFIG", CONFIGURATION_FILE)).resolve()),
                scratch=environment.get("STATEKEEPER_SCRATCH", tempfile.gettempdir()),
                worker=Worker(),
                name=environment.get("STATEKEEPER_FLEET", ""),
                quiet_seconds=quiet_seconds,
            ),
            # EnvVar: the UI shows the values of a resource, and a webhook's URL is a secret.
            "notifier": Notifier(webhook=dg.EnvVar(_WEBHOOK) if environment.get(_WEBHOOK) else ""),
        },
    )


defs = build(os.environ)
