"""The asset `clone` plans, and copies a checkpoint if the launchpad says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.root.binding import parse_binding
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.clones import at
from tests.support.dagster_runs import shown


def launched(definitions: dg.Definitions, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("clone_checkpoint")
    ops = {"ops": {"clone": {"config": config}}}
    return job.execute_in_process(ops, partition_key="flights", instance=instance, raise_on_error=False)


def test_a_launch_plans_and_copies_only_if_told_to(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, tmp_path: Path
) -> None:
    to = str(tmp_path / "clone")
    planned = launched(definitions, instance, destination=to, batch=5)
    assert planned.success
    plan = shown(planned, "clone")
    assert (plan["phase"], plan["batch"], plan["stores"], plan["refusals"]) == ("planned", 5, 2, 0)
    assert not Path(to).exists()
    done = launched(definitions, instance, destination=to, batch=5, do="APPLY")
    assert done.success
    result = shown(done, "clone")
    assert result["phase"] == "cloned"
    assert result["bytes"] == result["bytes_by_service"] + result["bytes_through_this_machine"]
    assert result["bytes_by_service"] > 0
    assert result["seconds"] > 0
    at(flights, open_storage(to), tmp_path / "job", 5).assert_right(tmp_path / "host")


def test_a_refusal_fails_the_run_and_changes_nothing(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, tmp_path: Path
) -> None:
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "notes.txt").write_text("of somebody")
    to = str(tmp_path / "clone")
    planned = launched(definitions, instance, destination=to)
    assert (planned.success, shown(planned, "clone")["phase"]) == (True, "refused")
    done = launched(definitions, instance, destination=to, do="APPLY")
    assert not done.success
    assert catalog.newest_batch(open_storage(to)) is None
    assert [path.name for path in (tmp_path / "clone").iterdir()] == ["notes.txt"]


def test_a_launch_gives_the_clone_a_certain_query_id(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, tmp_path: Path
) -> None:
    assert flights.stores
    certain = "0badc0de-0000-4000-8000-00000000000a"
    to = str(tmp_path / "clone")
    assert launched(definitions, instance, destination=to, query_id=certain, do="APPLY").success
    assert parse_binding(open_storage(to).read(names.BINDING)).query_id == certain
    assert not launched(definitions, instance, destination=to, query_id="a name").success
