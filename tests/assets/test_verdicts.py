"""The page of a check shows red while any query is red, and no plot mixes the numbers of queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from statekeeper.assets.partitions import QUERY_SET
from statekeeper.assets.verdicts import Red, verdict
from tests.assets.conftest import grown
from tests.support.checkpoints import Checkpoint

KEY = dg.AssetCheckKey(dg.AssetKey("lineage"), "lineage_is_gapless")


@pytest.fixture
def orders(configuration: Path, instance: dg.DagsterInstance) -> Checkpoint:
    instance.add_dynamic_partitions(QUERY_SET, ["jobs.orders"])
    return grown(configuration.parent, "jobs/orders/state", 9)


def run(definitions: dg.Definitions, instance: dg.DagsterInstance, query: str) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("maintain_query")
    return job.execute_in_process(partition_key=query, instance=instance, raise_on_error=False)


def page(instance: dg.DagsterInstance) -> dg.AssetCheckEvaluation:
    """Return the newest evaluation of the check, of any query. The page of the check shows it."""
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([KEY])[KEY]
    assert record.evaluation is not None
    return record.evaluation


def broken(checkpoint: Checkpoint, version: int = 9) -> tuple[str, bytes]:
    """Delete a changelog. Returns its path and its bytes."""
    path = checkpoint.stores[0].changelog(checkpoint.versions[version][0])
    body = checkpoint.storage.read(path)
    checkpoint.storage.delete([path])
    return path, body


def test_the_page_of_a_check_is_red_until_no_query_is_red_and_names_query_file_and_command(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    configuration: Path,
    flights: Checkpoint,
    orders: Checkpoint,
) -> None:
    path, body = broken(flights)
    assert not run(definitions, instance, "flights").success
    assert not page(instance).passed
    green = run(definitions, instance, "jobs.orders")
    assert green.success, "the red of another query does not end the run"
    own = [one for one in green.get_asset_check_evaluations() if one.asset_check_key == KEY and one.partition]
    assert [(one.partition, one.passed) for one in own] == [("jobs.orders", True)]
    shown = page(instance)
    assert (shown.passed, shown.severity, shown.partition) == (False, dg.AssetCheckSeverity.ERROR, None)
    description = shown.description or ""
    assert description.startswith(f"Red queries: 1 of 2. Worst: flights: {path}")
    assert description.endswith(f"Next: statekeeper --config {configuration} audit flights")
    flights.storage.create(path, body)
    assert run(definitions, instance, "flights").success
    assert page(instance).passed
    assert page(instance).description == "The check passes for all queries (2)."


def test_a_red_query_stays_red_until_its_next_run_evaluates_the_check(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, orders: Checkpoint
) -> None:
    broken(flights)
    run(definitions, instance, "flights")
    # Creating a run plans its evaluations, which are newer than the red one.
    instance.create_run_for_job(definitions.resolve_job_def("maintain_query"), tags={"dagster/partition": "flights"})
    run(definitions, instance, "jobs.orders")
    assert not page(instance).passed


def test_the_verdict_on_each_check_of_an_asset_counts_all_queries(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, orders: Checkpoint
) -> None:
    found = run(definitions, instance, "flights").get_asset_check_evaluations()
    of_fleet = {one.check_name: one.description for one in found if one.partition is None}
    assert len(of_fleet) == 5
    assert set(of_fleet.values()) == {"The check passes for all queries (2)."}


def test_a_forgotten_query_is_not_red(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, orders: Checkpoint
) -> None:
    broken(flights)
    run(definitions, instance, "flights")
    instance.delete_dynamic_partition(QUERY_SET, "flights")
    run(definitions, instance, "jobs.orders")
    assert page(instance).passed


def test_an_error_is_worse_than_a_warning() -> None:
    found = verdict(KEY, {"a": Red(False, "near"), "b": Red(True, "lost"), "c": Red(True, "lost")}, queries=9)
    assert (found.description or "").startswith("Red queries: 3 of 9. Worst: b: lost")
    assert found.severity is dg.AssetCheckSeverity.ERROR
    assert verdict(KEY, {"a": Red(False, "near")}, queries=9).severity is dg.AssetCheckSeverity.WARN
    assert verdict(KEY, {}, queries=9).passed


def test_a_verdict_over_no_query_is_not_green() -> None:
    nothing = verdict(KEY, {}, queries=0)
    assert (nothing.passed, nothing.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (nothing.description or "").startswith("No query was examined")


def test_no_plot_mixes_the_numbers_of_queries(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    run(definitions, instance, "flights")
    flights.grow(4)
    results = [run(definitions, instance, "flights")]
    broken(flights, 13)
    results.append(run(definitions, instance, "flights"))
    events = [event for result in results for event in result.all_events]
    evaluated = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    of_queries = [event.step_materialization_data.materialization for event in events if event.is_step_materialization]
    of_queries += [event.asset_check_evaluation_data for event in events if event.event_type is evaluated]
    of_queries = [one for one in of_queries if one.partition]
    assert len(of_queries) > 10
    assert [one for one in of_queries if any(map(is_plotted, one.metadata.values()))] == []


def is_plotted(value: Any) -> bool:
    return isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue)
