"""The asset `history_table`, its job and its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.history_table import recorded_at
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.verbs.history import destinations
from statekeeper.statestore.storage import open_storage
from tests.assets.conftest import schedule_of
from tests.support.dagster_runs import shown
from tests.support.histories import a_run, asked
from tests.support.keyed_roots import KeyedRoot


@pytest.fixture
def root(configuration: Path, tmp_path: Path) -> KeyedRoot:
    """The query `counting` with a run, and a place for the tables of history."""
    with configuration.open("a") as file:
        file.write('\n[history]\nurl = "history"\n[roots.counting]\nurl = "counting"\n')
    made = KeyedRoot(open_storage(str(tmp_path / "counting")), tmp_path / "hosts", partitions=1)
    made.grow(1, keys=2)
    a_run(made.storage, "gc", SystemClock().now_seconds() - 60, plan=[{"head": 1}], outcome=[])
    return made


def run(definitions: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("record_history")
    return job.execute_in_process(instance=instance, raise_on_error=False)


def test_a_run_adds_the_runs_of_all_queries_once(
    definitions: dg.Definitions, instance: dg.DagsterInstance, root: KeyedRoot, tmp_path: Path
) -> None:
    first = shown(run(definitions, instance), "history_table")
    assert first["phase"] == "recorded"
    assert first["queries_without_history"] == 0
    second = shown(run(definitions, instance), "history_table")
    rows = asked("select query, verb from runs where query = 'counting'", str(tmp_path / "history"))
    assert rows == [{"query": "counting", "verb": "gc"}]
    assert {record.data["rows"] for record in second["tables"].records} == {0}


def test_a_query_that_cannot_be_read_fails_the_run_and_the_others_are_added(
    definitions: dg.Definitions, instance: dg.DagsterInstance, root: KeyedRoot, configuration: Path, tmp_path: Path
) -> None:
    with configuration.open("a") as file:
        file.write("[roots.broken]\nurl = 7\n")
    assert not run(definitions, instance).success
    assert asked("select query from runs where query = 'counting'", str(tmp_path / "history")) != []


def test_a_query_that_cannot_be_opened_is_a_problem_and_the_others_are_added(
    root: KeyedRoot, configuration: Path, tmp_path: Path
) -> None:
    with configuration.open("a") as file:
        file.write('[roots.closed]\nurl = "hdfs://namenode/closed"\n')
    fleet = Fleet(config_file=str(configuration), scratch=str(tmp_path / "scratch"), worker=Worker())
    found = fleet.configuration()
    [place], _ = destinations([found.find("closed"), found.find("counting")])
    recorded = recorded_at(dg.build_asset_context(), fleet, place)
    assert "hdfs:// is not supported" in recorded.problems["closed"]
    assert asked("select query from runs", str(tmp_path / "history")) == [{"query": "counting"}]


def test_a_damaged_record_is_in_the_metadata(
    definitions: dg.Definitions, instance: dg.DagsterInstance, root: KeyedRoot
) -> None:
    path = names.history("20260301T000000Z", "gc", RandomIds().fresh(), "plan")
    root.storage.create(path, b'{"head": 7')
    first = shown(run(definitions, instance), "history_table")
    assert first["damaged_records"] == 1
    assert "counting" in str(first["damaged"])


@pytest.fixture
def stored_instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        yield made


def test_the_schedule_requests_a_run_if_there_is_a_place_for_the_tables(
    stored_instance: dg.DagsterInstance, root: KeyedRoot, configuration: Path
) -> None:
    fleet = Fleet(config_file=str(configuration), scratch=str(configuration.parent), worker=Worker())
    time = datetime(2026, 3, 1, 3, tzinfo=UTC)

    def ticked() -> object:
        with dg.build_schedule_context(
            instance=stored_instance, scheduled_execution_time=time, resources={"fleet": fleet}
        ) as context:
            return schedule_of(fleet, "daily_history")(context)

    assert isinstance(ticked(), dg.RunRequest)
    configuration.write_text(configuration.read_text().replace('[history]\nurl = "history"\n', ""))
    assert isinstance(ticked(), dg.SkipReason)
