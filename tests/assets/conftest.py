"""A fleet on local disk, configured by `statekeeper.toml`, and a Dagster instance without a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.definitions import build
from statekeeper.assets.partitions import QUERY_SET
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.maintainers import QUIET_SECONDS

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
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        made.add_dynamic_partitions(QUERY_SET, ["flights"])
        yield made
