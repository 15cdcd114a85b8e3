"""A fleet on local disk, configured by `statekeeper.toml`, and a Dagster instance without a daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from statekeeper.assets.definitions import build
from statekeeper.assets.partitions import QUERY_SET
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.maintainers import QUIET_SECONDS
from tests.support.webhooks import Webhook

CONFIGURATION = """
[defaults]
snapshot = { changelogs = 4 }
retention = { versions = 3, grace = "0s" }

[roots.flights]
url = "flights"

[parents.jobs]
url = "jobs"
below = "state"
forget_after = "10m"
"""


QUERIES = dg.DynamicPartitionsDefinition(name=QUERY_SET)


def sensor_of(fleet: Fleet, name: str) -> Callable[[Any], Any]:
    """The function of a sensor of a fleet in this repository's own instance.

    A call of the definition would pass the resources as arguments, which only tests do.
    """
    found: Any = next(one for one in _definitions_of(fleet.config_file, fleet.name).sensors or () if one.name == name)
    function: Callable[[Any], Any]
    function = found._run_status_sensor_fn if isinstance(found, dg.RunStatusSensorDefinition) else found._raw_fn
    return function


def reaped(fleet: Fleet, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, *, seconds: float = 120) -> str:
    """Evaluate the sensor `dead_runs` once a minute. Returns its last message."""
    said = ticked(sensor_of(fleet, "dead_runs"), instance, {"fleet": fleet}, monkeypatch, seconds=seconds)
    return str(said)


def ticked(
    evaluate: Callable[[Any], Any],
    instance: dg.DagsterInstance,
    resources: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    seconds: float = 120,
) -> Any:
    """Evaluate a sensor once a minute. Returns its last answer."""
    began, cursor, said = SystemClock().now_seconds(), None, None
    for passed in (0.0, *(60.0 * minute for minute in range(1, 60) if 60 * minute < seconds), seconds):
        with monkeypatch.context() as patched:
            patched.setattr("statekeeper.assets.sensors.SystemClock.now_seconds", lambda _, now=began + passed: now)
            with dg.build_sensor_context(instance=instance, cursor=cursor, resources=dict(resources)) as context:
                said = evaluate(context)
                cursor = context.cursor
    return said


def schedule_of(fleet: Fleet, name: str) -> Callable[..., Any]:
    """The function of a schedule; see `sensor_of`."""
    all_schedules: Any = _definitions_of(fleet.config_file, fleet.name).schedules
    function: Callable[..., Any] = next(one for one in all_schedules if one.name == name)._execution_fn.decorated_fn
    return function


def job_of(fleet: Fleet, name: str) -> dg.JobDefinition:
    """A job of a fleet; see `sensor_of`."""
    return _definitions_of(fleet.config_file, fleet.name).resolve_job_def(name)


@cache
def _definitions_of(config_file: str, name: str) -> dg.Definitions:
    return build({"STATEKEEPER_CONFIG": config_file, "STATEKEEPER_FLEET": name})


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "statekeeper.toml"
    path.write_text(CONFIGURATION)
    return path


@pytest.fixture
def definitions(configuration: Path, tmp_path: Path) -> dg.Definitions:
    environment = {"STATEKEEPER_CONFIG": str(configuration), "STATEKEEPER_SCRATCH": str(tmp_path / "scratch")}
    return build(environment, quiet_seconds=QUIET_SECONDS)


@pytest.fixture
def flights(configuration: Path) -> Checkpoint:
    """Nine versions and no snapshot."""
    return grown(configuration.parent, "flights", 9)


def grown(folder: Path, where: str, batches: int) -> Checkpoint:
    """A checkpoint below the folder of the configuration."""
    made = Checkpoint(open_storage(str(folder / where)), folder / f"job of {where.replace('/', ' ')}")
    made.grow(batches)
    return made


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook.opened() as made:
        yield made


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        made.add_dynamic_partitions(QUERY_SET, ["flights"])
        yield made
