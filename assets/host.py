"""The settings of a company's Dagster instance that maintenance misses.

They are read from `dagster.yaml`, and not from the instance: opening its storage at load would create tables, and would
make the code location depend on a database.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

_LOG = logging.getLogger("statekeeper.dagster")


@cache
def warn_of_missing_settings(fleet: str, pool: str) -> None:
    """Log a warning for each missing setting, once in a process that loads definitions to serve or to check them.

    The process of a run loads the definitions, too, and logs nothing: it is a child of the code server, or a run launcher
    has set DAGSTER_RUN_JOB_NAME.
    """
    if multiprocessing.parent_process() is not None or "DAGSTER_RUN_JOB_NAME" in os.environ:
        return
    home = os.environ.get("DAGSTER_HOME")
    if not home:
        _LOG.info("fleet %s: DAGSTER_HOME is not set, so the settings of dagster.yaml were not checked", fleet)
        return
    file = Path(home) / "dagster.yaml"
    try:
        settings = yaml.safe_load(file.read_text()) if file.exists() else None
    except (OSError, yaml.YAMLError) as error:
        _LOG.warning("fleet %s: the settings in %s were not checked: %s", fleet, file, error)
        return
    for problem in missing_settings(settings if isinstance(settings, dict) else {}, pool):
        _LOG.warning("fleet %s: %s (%s)", fleet, problem, file)


def missing_settings(settings: Mapping[str, Any], pool: str) -> Iterator[str]:
    """The settings that `dagster.yaml` lacks, each with its consequence and the lines to add. Pure."""
    if not _at(settings, "run_monitoring", "enabled"):
        yield (
            "run monitoring is off: while the sensor dead_runs of this fleet is stopped, a run that was killed stays "
            "active, and its queries are not maintained. Add to dagster.yaml: "
            "run_monitoring: {enabled: true, max_runtime_seconds: 3600}"
        )
    if _at(settings, "concurrency", "pools", "default_limit") is None:
        yield (
            "pools have no default limit: all requested runs maintain queries at the same time. Set a limit of the pool "
            f"{pool} (run: dagster instance concurrency set {pool} 2), or add to dagster.yaml: "
            "concurrency: {pools: {default_limit: 2}}"
        )


def _at(settings: Any, *path: str) -> Any:
    for name in path:
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    return settings
