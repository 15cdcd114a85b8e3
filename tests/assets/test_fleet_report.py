"""The asset `fleet_report`: the page is in its folder, and each team gets one message that pages nobody."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.maintenance.copies.history_tables import day_of
from statekeeper.statestore.storage import open_storage
from tests.assets.conftest import schedule_of
from tests.support.dagster_runs import materializations
from tests.support.keyed_roots import KeyedRoot
from tests.support.webhooks import Webhook


@pytest.fixture
def root(configuration: Path, tmp_path: Path, webhook: Webhook) -> KeyedRoot:
    """The query `counting` of the team `shop`, with a place for reports."""
    with configuration.open("a") as file:
        file.write(
            f'\n[report]\nurl = "reports"\n[teams.shop]\nslack = "{webhook.url}"\npagerduty = "key"\n'
            f'pagerduty_url = "{webhook.url}"\n[roots.counting]\nurl = "counting"\nteam = "shop"\n'
        )
    made = KeyedRoot(open_storage(str(tmp_path / "counting")), tmp_path / "hosts", partitions=1)
    made.grow(2, keys=2)
    return made


def run(definitions: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("write_report")
    return job.execute_in_process(instance=instance, raise_on_error=False)


def test_a_run_writes_the_page_and_tells_the_team_what_needs_action(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    root: KeyedRoot,
    configuration: Path,
    tmp_path: Path,
    webhook: Webhook,
) -> None:
    assert run(definitions, instance).success
    name = f"report-{day_of(SystemClock().now_seconds())}.html"
    assert webhook.texts == [
        f"weekly report: none of 1 query needs action. The page: {open_storage(str(tmp_path / 'reports')).url}/{name}"
    ]
    page = (tmp_path / "reports" / name).read_text()
    assert "<h2>counting</h2>" in page
    [changelog] = (tmp_path / "counting" / "state" / "1" / "0").glob("2_*.changelog")
    changelog.unlink()
    again = run(definitions, instance)
    [shown] = materializations(again, "fleet_report")
    assert shown.metadata["queries_that_need_action"].value == 1
    assert webhook.texts[1].startswith("weekly report: 1 of 1 query must be looked at: counting. ")
    # The page of the same day is replaced, and the newest page has a constant name.
    page = (tmp_path / "reports" / name).read_text()
    assert "The query cannot restart: 1 store of 2" in page
    assert f"statekeeper --config {configuration} audit counting" in page
    assert (tmp_path / "reports" / "report.html").read_text() == page


def test_a_query_that_cannot_be_opened_is_on_the_page_and_the_others_too(
    definitions: dg.Definitions, instance: dg.DagsterInstance, root: KeyedRoot, configuration: Path, tmp_path: Path
) -> None:
    with configuration.open("a") as file:
        file.write('[roots.closed]\nurl = "hdfs://namenode/closed"\n')
    assert run(definitions, instance).success
    page = (tmp_path / "reports" / "report.html").read_text()
    assert "hdfs:// is not supported" in page
    assert "<h2>counting</h2>" in page


@pytest.fixture
def stored_instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        yield made


def test_the_schedule_requests_a_run_if_there_is_a_place_for_reports(
    stored_instance: dg.DagsterInstance, root: KeyedRoot, configuration: Path
) -> None:
    fleet = Fleet(config_file=str(configuration), scratch=str(configuration.parent), worker=Worker())

    def ticked() -> object:
        with dg.build_schedule_context(
            instance=stored_instance,
            scheduled_execution_time=datetime(2026, 3, 2, 6, tzinfo=UTC),
            resources={"fleet": fleet},
        ) as context:
            return schedule_of(fleet, "weekly_report")(context)

    assert isinstance(ticked(), dg.RunRequest)
    configuration.write_text(configuration.read_text().replace('[report]\nurl = "reports"\n', ""))
    assert isinstance(ticked(), dg.SkipReason)
