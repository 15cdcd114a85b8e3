"""The asset `deep_audit`, its check and its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.partitions import QUERY_SET
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.base.clock import SystemClock
from tests.assets.conftest import schedule_of
from tests.support.checkpoints import Checkpoint
from tests.support.dagster_runs import checks, description, maintained, shown
from tests.support.stores import flip
from tests.support.switching import take_snapshots


def audited(definitions: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("audit_deep")
    return job.execute_in_process(partition_key="flights", instance=instance, raise_on_error=False)


def test_a_damage_inside_of_a_file_turns_the_check_red_until_a_deep_audit_has_no_finding(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, configuration: Path
) -> None:
    configuration.write_text(configuration.read_text().replace('url = "flights"', 'url = "flights"\nmode = "observe"'))
    take_snapshots(flights.storage, configuration.parent / "scratch")
    path = next(one.path for one in flights.storage.list("state") if one.path.endswith(".sst"))
    before = flights.storage.read(path)
    flip(flights.storage, path, 10)
    assert all(one.passed for name, one in checks(maintained(definitions, instance)).items() if "lineage" in name)
    red = audited(definitions, instance)
    assert red.success, "the audit itself has worked"
    check = checks(red)["deep_audit_has_no_finding"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert path in (check.description or "")
    assert (check.description or "").endswith(f"Next: statekeeper --config {configuration} audit flights --deep")
    assert shown(red, "deep_audit")["errors"] == 1
    flights.storage.delete([path])
    flights.storage.create(path, before)
    green = audited(definitions, instance)
    assert checks(green)["deep_audit_has_no_finding"].passed
    read = shown(green, "deep_audit", "read")
    assert (read["changelogs"], read["snapshots"]) == (2 * 9, 2)
    assert read["keys"] > 0
    assert read["bytes"] > len(before)


def test_a_checkpoint_that_cannot_be_audited_fails_the_run_with_the_reason(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    failed = audited(definitions, instance)
    assert not failed.success
    assert "flights" in description(failed)
    assert checks(failed) == {}


@pytest.fixture
def stored_instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        made.add_dynamic_partitions(QUERY_SET, ["flights", "jobs.orders", "jobs.clicks"])
        yield made


def test_the_schedule_requests_a_run_for_each_query_whose_last_deep_audit_was_the_configured_time_ago(
    stored_instance: dg.DagsterInstance, configuration: Path
) -> None:
    fleet = Fleet(config_file=str(configuration), scratch=str(configuration.parent), worker=Worker())

    def requested(days: int) -> list[str | None]:
        now = datetime.fromtimestamp(SystemClock().now_seconds(), UTC)
        with dg.build_schedule_context(
            instance=stored_instance, scheduled_execution_time=now + timedelta(days=days), resources={"fleet": fleet}
        ) as context:
            found = list(schedule_of(fleet, "nightly_deep_audit")(context))
        if not any(isinstance(one, dg.RunRequest) for one in found):
            assert "no known query has a deep audit that is due" in str(found)
        return [one.partition_key for one in found if isinstance(one, dg.RunRequest)]

    assert requested(0) == []
    each_month = '\n[policies."jobs.*"]\naudit = { deep_every = "30d" }\n'
    each_week = '[policies."jobs.clicks"]\naudit = { deep_every = "7d" }\n'
    configuration.write_text(configuration.read_text() + each_month + each_week)
    assert requested(0) == ["jobs.clicks", "jobs.orders"], "neither was ever audited"
    for name in ("jobs.clicks", "jobs.orders"):
        stored_instance.report_runless_asset_event(dg.AssetMaterialization("deep_audit", partition=name))
    assert [requested(days) for days in (1, 6)] == [[], []]
    # The run has ended after its tick.
    assert requested(7) == ["jobs.clicks"]
    assert requested(30) == ["jobs.clicks", "jobs.orders"]
