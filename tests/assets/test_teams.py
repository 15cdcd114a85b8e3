"""A fleet of several teams in Dagster: a mistake in the file of one team forgets none of its queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from statekeeper.dagster import build_definitions
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.webhooks import Webhook


@pytest.fixture
def teams(tmp_path: Path) -> Path:
    folder = tmp_path / "teams"
    folder.mkdir()
    for name in ("crm", "payments"):
        Checkpoint(
            open_storage(str(tmp_path / f"{name}/orders/checkpoint")), tmp_path / f"host {name}", partitions=1
        ).grow(1)
        (folder / f"{name}.toml").write_text(f'[parents.{name}]\nurl = "../{name}/*/checkpoint"\nforget_after = "1s"\n')
    return folder


def tick(definitions: dg.Definitions, instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    """Evaluate the sensor, and apply what it requests for its partitions."""
    raw: Any = definitions.resolve_sensor_def("company_changelog_tail")
    with dg.build_sensor_context(instance, cursor, resources=dict(definitions.resources or {})) as context:
        # A call of the definition would pass the resources as arguments, which only tests do.
        found: Any = raw._raw_fn(context)
    for request in found.dynamic_partitions_requests:
        name, keys = request.partitions_def_name, request.partition_keys
        if isinstance(request, dg.AddDynamicPartitionsRequest):
            instance.add_dynamic_partitions(name, list(keys))
        else:
            for key in keys:
                instance.delete_dynamic_partition(name, key)
    assert isinstance(found, dg.SensorResult)
    return found


def test_a_broken_file_of_a_team_keeps_its_queries_and_stops_only_their_maintenance(
    teams: Path, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    definitions = build_definitions(teams / "*.toml", name="company", scratch=tmp_path)

    def known() -> set[str]:
        return set(instance.get_dynamic_partitions("company_streaming_query"))

    cursor = tick(definitions, instance).cursor
    assert known() == {"crm.orders", "payments.orders"}
    valid = (teams / "crm.toml").read_text()
    (teams / "crm.toml").write_text(valid + "[")
    for _ in range(2):
        cursor = tick(definitions, instance, cursor).cursor
    assert known() == {"crm.orders", "payments.orders"}, "the broken file may name it"
    job = definitions.resolve_job_def("company_refresh_fleet_health")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    (check,) = result.get_asset_check_evaluations()
    assert not check.passed
    assert f"file {teams / 'crm.toml'}: " in (check.description or "")
    assert check.metadata["queries"].value == 1


def test_a_condition_requests_the_queries_that_are_known(
    teams: Path, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    condition = dg.AutomationCondition.missing()
    definitions = build_definitions(teams, name="company", scratch=tmp_path, automation=condition)
    tick(definitions, instance)
    result = dg.evaluate_automation_conditions(definitions, instance)
    assert result.get_requested_partitions(dg.AssetKey(["company", "snapshot"])) == {"crm.orders", "payments.orders"}
    assert result.get_num_requested(dg.AssetKey(["company", "clone"])) == 0


def test_a_fleet_without_sensors_is_maintained_by_its_job(
    teams: Path, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    definitions = build_definitions(teams, name="company", scratch=tmp_path, automation=False)
    job = definitions.resolve_job_def("company_maintain_queries")
    assert job.execute_in_process(instance=instance).success
    key = dg.AssetKey(["company", "retention"])
    assert set(instance.get_materialized_partitions(key)) == {"crm.orders", "payments.orders"}


def test_a_broken_file_is_told_once_to_its_team_and_once_when_it_is_valid_again(
    teams: Path, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    with Webhook.opened() as hook:
        team = f'[defaults]\nteam = "crm"\n[teams.crm]\nwebhook = "{hook.url}"\n'
        (teams / "crm.toml").write_text(team + (teams / "crm.toml").read_text())
        typo = '[roots.typo]\nurl = "x"\nretension = 1\n'
        definitions = build_definitions(teams, name="company", scratch=tmp_path)
        job = definitions.resolve_job_def("company_refresh_fleet_health")
        valid = (teams / "crm.toml").read_text()
        for text in (valid, valid + typo, valid + typo, valid, valid):
            (teams / "crm.toml").write_text(text)
            job.execute_in_process(instance=instance, raise_on_error=False)
    subject = f"roots.typo in {teams / 'crm.toml'}"
    found = [(one["subject"], one["team"], one["before"], one["status"]) for one in hook.bodies]
    assert found == [(subject, "crm", "OK", "ERROR"), (subject, "crm", "ERROR", "OK")]
