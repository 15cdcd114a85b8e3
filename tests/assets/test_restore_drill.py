"""The asset `restore_drill`, its check and its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.partitions import QUERY_SET
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records import drills
from statekeeper.statestore.storage import open_storage
from tests.assets.conftest import schedule_of
from tests.support import planted
from tests.support.checkpoints import Checkpoint
from tests.support.dagster_runs import checks, description, shown
from tests.support.mirrors import mirrored
from tests.support.switching import take_snapshots


@pytest.fixture
def drillable(flights: Checkpoint, tmp_path: Path) -> Checkpoint:
    """The query `flights`, with two snapshots of each store."""
    for _ in range(2):
        take_snapshots(flights.storage, tmp_path / "scratch")
        flights.grow(1)
    return flights


def run(definitions: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("drill_restore")
    return job.execute_in_process(partition_key="flights", instance=instance, raise_on_error=False)


def test_a_run_shows_predicted_and_measured_seconds_and_the_check_is_green(
    definitions: dg.Definitions, instance: dg.DagsterInstance, drillable: Checkpoint
) -> None:
    first = run(definitions, instance)
    assert first.success
    result = shown(first, "restore_drill")
    assert (result["phase"], result["equal_stores"], result["findings"]) == ("restored", 2, 0)
    assert float(str(result["measured_seconds"])) > float(str(result["predicted_seconds"])) >= 0
    assert drills.read(drillable.storage).keys() == set(drillable.stores)
    assert checks(first)["newest_snapshot_restores"].passed
    second = shown(run(definitions, instance), "restore_drill")
    assert float(str(second["predicted_seconds"])) == pytest.approx(float(str(result["measured_seconds"])), abs=0.02)


def test_a_wrong_row_turns_the_check_red_and_names_the_store_and_the_next_command(
    definitions: dg.Definitions, instance: dg.DagsterInstance, drillable: Checkpoint, tmp_path: Path
) -> None:
    store, newest = drillable.stores[1], drillable.versions[-2][1]
    planted.in_snapshot(drillable.storage, store, newest, lambda rows: {**rows, b"extra": b"x"}, tmp_path)
    failed = run(definitions, instance)
    check = checks(failed)["newest_snapshot_restores"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "state/0/1: differs from the replay of " in (check.description or "")
    assert "rows: 1 additional" in (check.description or "")
    assert "Next: statekeeper" in (check.description or "")
    assert shown(failed, "restore_drill")["findings"] == 1


def test_rows_that_were_not_compared_are_a_warning(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, tmp_path: Path
) -> None:
    check = checks(run(definitions, instance))["newest_snapshot_restores"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "not compared" in (check.description or "")
    second = checks(run(definitions, instance))["newest_snapshot_restores"]
    assert (second.passed, second.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "unchanged since the last drill" in (second.description or "")


def test_the_mirror_of_a_query_is_drilled_too(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    drillable: Checkpoint,
    configuration: Path,
    tmp_path: Path,
) -> None:
    text = configuration.read_text()
    configuration.write_text(text.replace('url = "flights"', 'url = "flights"\nmirror = { url = "replica" }'))
    early = shown(run(definitions, instance), "restore_drill")
    assert early["mirror/result"] == "there is no mirror yet"
    mirror = open_storage(str(tmp_path / "replica"))
    mirrored(drillable.storage, mirror, tmp_path / "scratch")
    done = run(definitions, instance)
    assert done.success
    assert "restored" in str(shown(done, "restore_drill")["mirror/result"])
    assert drills.read(mirror).keys() == set(drillable.stores)
    changelog = drillable.stores[0].changelog(drillable.versions[-1][0])
    mirror.delete([changelog])
    check = checks(run(definitions, instance))["newest_snapshot_restores"]
    assert not check.passed
    assert (check.description or "").startswith("mirror state/0/0: does not restore")
    mirror.replace(names.commits(10), b"v1\n{")
    assert description(run(definitions, instance)).startswith("mirror: ")


@pytest.fixture
def stored_instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        made.add_dynamic_partitions(QUERY_SET, ["flights", "jobs.orders"])
        yield made


def test_the_schedule_requests_one_run_for_each_known_query(
    stored_instance: dg.DagsterInstance, configuration: Path
) -> None:
    fleet = Fleet(config_file=str(configuration), scratch=str(configuration.parent), worker=Worker())
    time = datetime(2026, 3, 1, 5, tzinfo=UTC)
    with dg.build_schedule_context(
        instance=stored_instance, scheduled_execution_time=time, resources={"fleet": fleet}
    ) as context:
        requests = list(schedule_of(fleet, "weekly_drill")(context))
    assert [(one.partition_key, one.run_key) for one in requests if isinstance(one, dg.RunRequest)] == [
        ("flights", "drill:flights@2026-03-01T05:00+00:00"),
        ("jobs.orders", "drill:jobs.orders@2026-03-01T05:00+00:00"),
    ]
