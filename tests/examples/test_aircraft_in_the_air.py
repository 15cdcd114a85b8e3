"""`examples/aircraft-in-the-air`: an asset that asks the table of the state of the flights job."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import dagster as dg
import pytest

from statekeeper.pipelines.flights.departures import days, departures
from statekeeper.pipelines.flights.job import Places
from tests.support.commands import json_output, run

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "aircraft-in-the-air" / "definitions.py"
BATCHES = 3


def loaded(monkeypatch: pytest.MonkeyPatch, folder: Path) -> ModuleType:
    """The module of the example for a folder of the flights job."""
    monkeypatch.setenv("STATEKEEPER_CONFIG", str(folder / "statekeeper.toml"))
    monkeypatch.setenv("AIRCRAFT_TABLE", str(folder / "aircraft"))
    spec = importlib.util.spec_from_file_location("aircraft_in_the_air", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_definitions_load_and_the_asset_depends_on_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "statekeeper.toml").write_text('[roots.flights]\nurl = "state"\n')
    module = loaded(monkeypatch, tmp_path)
    dg.Definitions.validate_loadable(module.defs)
    graph = module.defs.resolve_asset_graph()
    assert graph.get(dg.AssetKey("aircraft_in_the_air")).parent_keys == {dg.AssetKey(["flights", "state_table"])}


@pytest.mark.slow
@pytest.mark.spark
def test_the_asset_shows_the_aircraft_that_left_lately(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The flights job runs some days, its state is published as the job configures it, and the asset counts."""
    job = [sys.executable, "-m", "statekeeper.pipelines.flights.job", "--no-ui", "--batches", str(BATCHES)]
    subprocess.run([*job, "--folder", str(tmp_path)], check=True, timeout=500)
    Places(tmp_path).configuration()
    shown = json_output("--config", tmp_path / "statekeeper.toml", "publish", "flights")
    [table] = shown["tables"]
    assert (table["way"], table["batch"]) == ("load", BATCHES - 1)
    module = loaded(monkeypatch, tmp_path)
    found = module.in_the_air(str(tmp_path / "aircraft"))
    flown = [
        row
        for day in days(departures())[:BATCHES]
        for row in day.to_pylist()
        if row["dep_delay"] is not None and row["tailnum"] is not None
    ]
    newest = max(row["event_at"] for row in flown)
    lately = {row["tailnum"] for row in flown if (newest - row["event_at"]).total_seconds() < 3 * 3600}
    assert set(found["tailnum"].to_pylist()) == lately
    result = dg.materialize([module.aircraft_in_the_air])
    assert result.success
    assert run("top", tmp_path / "state").exit_code == 0
