"""The asset `deep_audit`, its check and its schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.definitions import build
from statekeeper.assets.partitions import QUERY_SET
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.base.clock import SystemClock
from tests.assets.conftest import schedule_of
from tests.support.checkpoints import Checkpoint
from tests.support.dagster_runs import checks, description, maintained, shown
from tests.support.stores import flip
from tests.support.switching import take_snapshots
from tests.support.webhooks import Webhook


def audited(definitions: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("audit_deep")
    return job.execute_in_process(partition_key="flights", instance=instance, raise_on_error=False)


@pytest.fixture
def definitions(configuration: Path, webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    monkeypatch.setenv("STATEKEEPER_WEBHOOK", webhook.url)
    scratch = str(configuration.parent / "scratch")
    environment = {"STATEKEEPER_CONFIG": str(configuration), "STATEKEEPER_SCRATCH": scratch}
    return build({**environment, "STATEKEEPER_WEBHOOK": webhook.url})


def test_damage_inside_a_file_turns_the_check_red_until_a_deep_audit_has_no_finding_and_both_are_told(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
    configuration: Path,
    webhook: Webhook,
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
    told, over = webhook.texts
    assert told.startswith("deep audit of flights (run: ")
    assert "OK -> ERROR" in told.replace("&gt;", ">")
    assert path in told
    assert "ERROR -> OK" in over.replace("&gt;", ">")


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


Requested = Callable[[float], list[str]]


@pytest.fixture
def requested(stored_instance: dg.DagsterInstance, configuration: Path) -> Requested:
    """Return the queries that the schedule requests after some days."""
    fleet = Fleet(config_file=str(configuration), scratch=str(configuration.parent), worker=Worker())

    def after(days: float) -> list[str]:
        now = datetime.fromtimestamp(SystemClock().now_seconds(), UTC)
        with dg.build_schedule_context(
            instance=stored_instance, scheduled_execution_time=now + timedelta(days=days), resources={"fleet": fleet}
        ) as context:
            found = list(schedule_of(fleet, "nightly_deep_audit")(context))
        requests = [one for one in found if isinstance(one, dg.RunRequest)]
        if not requests:
            assert "no deep audit is due" in str(found)
        assert {one.tags["dagster/priority"] for one in requests} <= {"-1"}
        return [str(one.partition_key) for one in requests]

    return after


def audited_now(instance: dg.DagsterInstance, *queries: str) -> None:
    for name in queries:
        instance.report_runless_asset_event(dg.AssetMaterialization("deep_audit", partition=name))


def test_the_schedule_requests_a_run_for_each_query_whose_last_deep_audit_was_the_configured_time_ago(
    stored_instance: dg.DagsterInstance, configuration: Path, requested: Requested
) -> None:
    assert requested(0) == []
    text = configuration.read_text()
    configuration.write_text(text + '\n[policies."jobs.clicks"]\naudit = { deep_every = "7d" }\n')
    assert requested(0) == ["jobs.clicks"], "it was never audited"
    audited_now(stored_instance, "jobs.clicks")
    assert [requested(days) for days in (1, 6)] == [[], []]
    assert requested(7) == ["jobs.clicks"], "the run has ended after its tick"
    configuration.write_text(text + '\n[policies."jobs.clicks"]\naudit = { deep_every = "1h" }\n')
    assert requested(0.5 / 24) == [], "a quarter of an hour is the most that a run may be early"
    assert requested(0.8 / 24) == ["jobs.clicks"]


def test_a_tick_requests_a_share_of_the_queries_and_the_longest_unaudited_first(
    stored_instance: dg.DagsterInstance, configuration: Path, requested: Requested
) -> None:
    text = configuration.read_text()
    configuration.write_text(text + '\n[policies."*"]\naudit = { deep_every = "3d" }\n')
    assert requested(0) == ["flights"], "three queries in three nights, and none was ever audited"
    audited_now(stored_instance, "flights")
    assert requested(1) == ["jobs.clicks"]
    run = stored_instance.create_run_for_job(
        build({"STATEKEEPER_CONFIG": str(configuration)}).resolve_job_def("audit_deep"),
        tags={"dagster/partition": "jobs.clicks", "statekeeper/fleet": str(configuration)},
        status=dg.DagsterRunStatus.STARTED,
    )
    assert requested(1) == ["jobs.orders"], "the run of the other one is unfinished"
    stored_instance.report_run_failed(run)
    assert requested(1) == ["jobs.orders"], "a query whose runs fail must not keep the others from being audited"
    audited_now(stored_instance, "jobs.orders")
    assert requested(1) == ["jobs.clicks"]
    configuration.write_text(text + '\n[policies."*"]\naudit = { deep_every = "36h" }\n')
    assert requested(3) == ["flights", "jobs.clicks"], "three queries in one and a half nights"
