"""The asset `savepoint`, launched by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from statekeeper.statestore.storage import open_storage
from tests.support import verbs
from tests.support.checkpoints import Checkpoint
from tests.support.clones import at
from tests.support.dagster_runs import shown
from tests.support.savepoints import manifest


def launched(definitions: dg.Definitions, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("savepoint_checkpoint")
    ops = {"ops": {"savepoint": {"config": config}}}
    return job.execute_in_process(ops, partition_key="flights", instance=instance, raise_on_error=False)


def test_a_launch_plans_and_keeps_the_files_only_if_told_to(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, tmp_path: Path
) -> None:
    to = str(tmp_path / "savepoint")
    planned = launched(definitions, instance, destination=to, label="march", batch=5)
    assert planned.success
    plan = shown(planned, "savepoint")
    assert (plan["phase"], plan["batch"], plan["label"], plan["refusals"]) == ("planned", 5, "march", 0)
    assert not Path(to).exists()
    done = launched(definitions, instance, destination=to, label="march", batch=5, do="APPLY")
    assert done.success
    result = shown(done, "savepoint")
    assert (result["phase"], result["listed"]) == ("saved", True)
    assert result["bytes"] == plan["bytes"] > 0
    assert result["seconds"] > 0
    at(flights, open_storage(to), tmp_path / "job", 5).assert_right(tmp_path / "host")
    assert [one.label for one in verbs.savepoint.listed(flights.storage).labels] == ["march"]


def test_a_launch_keeps_the_rows(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, tmp_path: Path
) -> None:
    to = tmp_path / "savepoint"
    planned = launched(definitions, instance, destination=str(to), keep="DELTA")
    assert (planned.success, to.exists()) == (True, False)
    done = launched(definitions, instance, destination=str(to), keep="DELTA", do="APPLY")
    assert done.success
    result = shown(done, "savepoint")
    assert (result["phase"], result["format"]) == ("saved", "delta")
    assert result["rows"] == sum(map(len, flights.states[-1])) == manifest(to)["rows"]
    assert result["digest"] == manifest(to)["digest"]
    assert "rows/0/default: " in result["untyped"]
    assert result["seconds"] >= 0


@pytest.mark.parametrize("config", [{"keep": "PARQUET"}, {"label": "march"}])
def test_a_refusal_fails_the_run_and_changes_nothing(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
    tmp_path: Path,
    config: dict[str, str],
) -> None:
    (tmp_path / "savepoint").mkdir()
    (tmp_path / "savepoint" / "notes.txt").write_text("of another person")
    to = str(tmp_path / "savepoint")
    planned = launched(definitions, instance, destination=to, **config)
    assert (planned.success, shown(planned, "savepoint")["phase"]) == (True, "refused")
    assert not launched(definitions, instance, destination=to, do="APPLY", **config).success
    assert [path.name for path in (tmp_path / "savepoint").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"label": "../march"},
        {"keep": "PARQUET", "note": "without a label"},
        {"keep": "PARQUET", "location": "s3a://b/x"},
    ],
)
def test_a_configuration_that_would_be_ignored_or_is_incomplete_fails_the_run(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
    tmp_path: Path,
    config: dict[str, str],
) -> None:
    done = launched(definitions, instance, destination=str(tmp_path / "savepoint"), do="APPLY", **config)
    assert not done.success
    assert not (tmp_path / "savepoint").exists()
