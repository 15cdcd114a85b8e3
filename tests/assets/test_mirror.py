"""The asset `mirror`, its check and its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.partitions import QUERY_SET
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.assets.conftest import schedule_of
from tests.support.checkpoints import Checkpoint
from tests.support.clones import at
from tests.support.dagster_runs import checks, shown
from tests.support.maintained_query import maintained_query


@pytest.fixture
def mirrored(configuration: Path, tmp_path: Path) -> Path:
    """The folder of the configured mirror."""
    text = configuration.read_text()
    configuration.write_text(
        text.replace('url = "flights"', 'url = "flights"\nmirror = { url = "replica/flights", lag = "5m" }')
    )
    return tmp_path / "replica" / "flights"


def run(definitions: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("mirror_checkpoint")
    return job.execute_in_process(partition_key="flights", instance=instance, raise_on_error=False)


def test_each_run_copies_the_new_batches_and_checks_the_lag(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, mirrored: Path, tmp_path: Path
) -> None:
    first = run(definitions, instance)
    assert first.success
    assert checks(first)["mirror_is_fresh"].passed
    flights.grow(2)
    second = run(definitions, instance)
    result = shown(second, "mirror")
    assert (result["phase"], result["batch"], result["lag_batches"], result["refusals"]) == ("mirrored", 10, 0, 0)
    assert result["destination"] == f"file://{mirrored}"
    assert result["seconds"] > 0
    assert result["bytes"] > result["bytes_by_service"] > 0
    at(flights, open_storage(str(mirrored)), tmp_path / "job", 10).assert_right(tmp_path / "host")


def test_a_started_mirror_fails_the_run_and_the_check_names_the_next_command(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, mirrored: Path
) -> None:
    assert run(definitions, instance).success
    open_storage(str(mirrored)).create(names.offsets(9), b"v1\n{}")
    failed = run(definitions, instance)
    assert not failed.success
    check = checks(failed)["mirror_is_fresh"]
    assert not check.passed
    assert "mirror flights" in (check.description or "")
    assert flights.storage.stat(names.offsets(9)) is None


def test_the_check_is_red_if_the_lag_exceeds_the_limit_or_is_unknown(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
    mirrored: Path,
    configuration: Path,
) -> None:
    configuration.write_text(configuration.read_text().replace("5m", "0s"))
    assert checks(run(definitions, instance))["mirror_is_fresh"].passed
    flights.grow(1)
    heads = sorted(entry.path for entry in flights.storage.list("state") if "/10_" in entry.path)
    flights.storage.delete(heads)
    red = checks(run(definitions, instance))["mirror_is_fresh"]
    assert not red.passed
    assert "1 batch " in (red.description or "")
    assert "mirror flights" in (red.description or "")
    flights.storage.delete([entry.path for entry in flights.storage.list("", hidden=True)])
    lost = checks(run(definitions, instance))["mirror_is_fresh"]
    assert not lost.passed
    assert "unknown" in (lost.description or "")
    assert mirrored.exists()


def test_a_query_without_a_mirror_fails_with_the_line_to_add(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    assert flights.storage.stat(names.commits(8)) is not None
    assert not run(definitions, instance).success


@pytest.fixture
def stored_instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        made.add_dynamic_partitions(QUERY_SET, ["flights", "jobs.orders"])
        yield made


def ticked(instance: dg.DagsterInstance, configuration: Path) -> list[dg.RunRequest | dg.SkipReason]:
    fleet = Fleet(config_file=str(configuration), scratch=str(configuration.parent), worker=Worker())
    time = datetime(2026, 3, 1, 3, tzinfo=UTC)
    with dg.build_schedule_context(
        instance=instance, scheduled_execution_time=time, resources={"fleet": fleet}
    ) as context:
        return list(schedule_of(fleet, "mirror_queries")(context))


def test_the_schedule_requests_one_run_for_each_query_with_a_mirror(
    stored_instance: dg.DagsterInstance, configuration: Path
) -> None:
    (skipped,) = ticked(stored_instance, configuration)
    assert isinstance(skipped, dg.SkipReason)


def test_the_schedule_requests_a_run_also_if_the_source_is_lost(
    stored_instance: dg.DagsterInstance, configuration: Path, mirrored: Path
) -> None:
    assert not mirrored.exists()
    (request,) = ticked(stored_instance, configuration)
    assert isinstance(request, dg.RunRequest)
    assert (request.partition_key, request.run_key) == ("flights", "mirror:flights@2026-03-01T03:00+00:00")


def test_the_mirror_of_a_query_with_too_few_batches_waits_and_the_run_succeeds(
    definitions: dg.Definitions, instance: dg.DagsterInstance, configuration: Path, mirrored: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "new"
    maintained_query(open_storage(str(folder / "root")), folder, Structure.V1, Origin.NATIVE, batches=2)
    configuration.write_text(configuration.read_text().replace('url = "flights"', f'url = "{folder}/root"', 1))
    first = run(definitions, instance)
    assert first.success
    assert shown(first, "mirror")["phase"] == "waiting"
    assert not checks(first)["mirror_is_fresh"].passed
    assert not mirrored.exists()
