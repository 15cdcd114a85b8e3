"""The asset `state_table`, its job and its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.partitions import QUERY_SET
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.storage import open_storage
from tests.assets.conftest import schedule_of
from tests.support.dagster_runs import shown
from tests.support.keyed_roots import KeyedRoot
from tests.support.state_tables import rows_of


@pytest.fixture
def root(configuration: Path, tmp_path: Path) -> KeyedRoot:
    """The query `counting`, with a table of its first operator."""
    with configuration.open("a") as file:
        file.write('\n[roots.counting]\nurl = "counting"\n')
        file.write('[roots.counting.tables.counts]\nurl = "counts"\noperator = 0\n')
    made = KeyedRoot(open_storage(str(tmp_path / "counting")), tmp_path / "hosts", partitions=2)
    made.grow(2)
    return made


def run(
    definitions: dg.Definitions, instance: dg.DagsterInstance, query: str = "counting"
) -> dg.ExecuteInProcessResult:
    instance.add_dynamic_partitions(QUERY_SET, [query])
    job = definitions.resolve_job_def("publish_state")
    return job.execute_in_process(partition_key=query, instance=instance, raise_on_error=False)


def test_each_run_publishes_the_new_batches_and_shows_the_changed_rows(
    definitions: dg.Definitions, instance: dg.DagsterInstance, root: KeyedRoot, tmp_path: Path
) -> None:
    first = shown(run(definitions, instance), "state_table")
    assert (first["phase"], first["way"], first["batch"]) == ("published", "load", 1)
    root.grow(1, keys=3)
    second = shown(run(definitions, instance), "state_table")
    assert (second["way"], second["batch"], second["updated"], second["deleted"]) == ("changes", 2, 1, 1)
    assert second["rows"] == len(rows_of(open_storage(str(tmp_path / "counts"))))
    third = shown(run(definitions, instance), "state_table")
    assert (third["phase"], third["way"]) == ("complete", "nothing")


def test_one_table_that_cannot_be_published_does_not_stop_the_others(
    definitions: dg.Definitions, instance: dg.DagsterInstance, root: KeyedRoot, configuration: Path, tmp_path: Path
) -> None:
    with configuration.open("a") as file:
        file.write('[roots.counting.tables.broken]\nurl = "broken"\noperator = 9\n')
    failed = run(definitions, instance)
    assert not failed.success
    assert len(rows_of(open_storage(str(tmp_path / "counts")))) == sum(operator == 0 for operator, _ in root.rows)


def test_a_query_without_tables_fails_with_the_line_to_add(
    definitions: dg.Definitions, instance: dg.DagsterInstance, root: KeyedRoot, configuration: Path
) -> None:
    configuration.write_text(configuration.read_text().partition("[roots.counting.tables")[0])
    assert not run(definitions, instance).success


@pytest.fixture
def stored_instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        made.add_dynamic_partitions(QUERY_SET, ["flights", "counting"])
        yield made


def test_the_schedule_requests_one_run_for_each_query_with_tables(
    stored_instance: dg.DagsterInstance, root: KeyedRoot, configuration: Path
) -> None:
    fleet = Fleet(config_file=str(configuration), scratch=str(configuration.parent), worker=Worker())
    time = datetime(2026, 3, 1, 3, tzinfo=UTC)
    with dg.build_schedule_context(
        instance=stored_instance, scheduled_execution_time=time, resources={"fleet": fleet}
    ) as context:
        [request] = schedule_of(fleet, "publish_queries")(context)
    assert isinstance(request, dg.RunRequest)
    assert (request.partition_key, request.run_key) == ("counting", "table:counting@2026-03-01T03:00+00:00")
