"""The definitions that Dagster loads by way of `workspace.yaml`.

Environment variables and their defaults: STATEKEEPER_CONFIG (statekeeper.toml in the working directory),
STATEKEEPER_FLEET (the path of that file), STATEKEEPER_SCRATCH (the system's folder for temporary files),
STATEKEEPER_KEPT_TABLES_MIB (see `statekeeper.resources.fleet`), STATEKEEPER_WEBHOOK and STATEKEEPER_UI_URL (none),
STATEKEEPER_HEALTH_CRON, STATEKEEPER_MIRROR_CRON, STATEKEEPER_PUBLISH_CRON, STATEKEEPER_DRILL_CRON,
STATEKEEPER_HISTORY_CRON and STATEKEEPER_REPORT_CRON (see `statekeeper.assets.schedules`).
"""

from __future__ import annotations

import os

from statekeeper.assets.factory import build

__all__ = ["build", "defs"]

defs = build(os.environ)
