"""The asset `checkpoint_format` plans, executes a launched switchover, and shows an incomplete one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format import names
from statekeeper.statestore.storage import Storage
from tests.support.checkpoints import Checkpoint
from tests.support.dagster_runs import checks, shown
from tests.support.faulty_storage import Fault, FaultyStorage, Request
from tests.support.structures import as_sparks, held


def launched(definitions: dg.Definitions, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("switch_checkpoint")
    ops = {"ops": {"checkpoint_format": {"config": config}}}
    return job.execute_in_process(ops, partition_key="flights", instance=instance, raise_on_error=False)


def files(storage: Storage) -> set[str]:
    return {entry.path for entry in storage.list("") if not entry.path.startswith(names.CONTROL)}


def test_a_launch_with_the_default_configuration_only_plans(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    storage = as_sparks(flights).storage
    before = {entry.path for entry in storage.list("")}
    result = launched(definitions, instance, to="V1")
    assert result.success
    plan = shown(result, "checkpoint_format")
    assert (plan["phase"], plan["stores"], plan["version"], plan["refusals"]) == ("planned", 2, 9, 0)
    assert {entry.path for entry in storage.list("")} == before
    assert checks(result)["nothing_left_half_switched"].passed


def test_it_switches_a_query_confirmed_as_stopped_and_shows_the_conf_for_the_restart(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, tmp_path: Path
) -> None:
    storage = as_sparks(flights).storage
    before = files(storage)
    refused = launched(definitions, instance, to="V1", do="APPLY")
    assert not refused.success
    assert files(storage) == before
    result = launched(definitions, instance, to="V1", do="APPLY", confirm_stopped=True)
    assert result.success
    done = shown(result, "checkpoint_format")
    assert done["phase"] == "switched"
    assert done["start_with"] == "spark.sql.streaming.stateStore.checkpointFormatVersion=1"
    heads = catalog.heads(storage)
    assert heads is not None
    assert {version.id for version in heads.heads.values()} == {None}
    assert held(storage, tmp_path) == dict(zip(flights.stores, flights.states[-1], strict=True))


def test_an_incomplete_switchover_is_red_until_a_launch_completes_or_aborts_it(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = as_sparks(flights).storage
    before = files(storage)

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.LOST_REPLY if request.path == names.switchover(1, "cleared") else None

    with monkeypatch.context() as patched:
        patched.setattr("statekeeper.resources.fleet.open_storage", lambda *_, **__: Dying(storage))
        result = launched(definitions, instance, to="V1", do="APPLY", confirm_stopped=True)
    assert not result.success
    assert not checks(result)["nothing_left_half_switched"].passed
    assert rewrite_journal.open_journal(storage) is not None
    result = launched(definitions, instance, do="ABORT", confirm_stopped=True)
    assert result.success
    assert checks(result)["nothing_left_half_switched"].passed
    assert shown(result, "checkpoint_format")["phase"] == "aborted"
    assert files(storage) == before
