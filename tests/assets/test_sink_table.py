"""The asset `sink_table`, its check, its job and its schedule."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.partitions import QUERY_SET
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from tests.assets.conftest import schedule_of
from tests.support.dagster_runs import checks, shown
from tests.support.sink_tables import FILES, WrittenRoot, rows_of_batch, written


@pytest.fixture
def made(configuration: Path, tmp_path: Path) -> WrittenRoot:
    """The query `counting`, with the table that it writes."""
    with configuration.open("a") as file:
        file.write('\n[roots.counting]\nurl = "counting/root"\n')
        file.write('[roots.counting.sinks.rows]\nurl = "counting/table"\nkeep_readers = "2d"\n')
    return written(tmp_path / "counting", 2)


def run(definitions: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    instance.add_dynamic_partitions(QUERY_SET, ["counting"])
    job = definitions.resolve_job_def("optimize_sink")
    return job.execute_in_process(partition_key="counting", instance=instance, raise_on_error=False)


def test_each_run_merges_small_files_and_shows_how_many_are_left(
    definitions: dg.Definitions, instance: dg.DagsterInstance, made: WrittenRoot
) -> None:
    first = run(definitions, instance)
    assert shown(first, "sink_table")["phase"] == "optimized"
    assert (shown(first, "sink_table")["merged_files"], shown(first, "sink_table")["made_files"]) == (2 * FILES, 1)
    check = checks(first)["sink_tables_are_healthy"]
    assert (check.passed, check.description) == (True, "1 table with 1 small file.")
    assert made.rows() == [*rows_of_batch(0), *rows_of_batch(1)]
    assert shown(run(definitions, instance), "sink_table")["phase"] == "complete"


def test_a_table_that_cannot_be_optimized_turns_the_check_red_and_does_not_stop_the_others(
    definitions: dg.Definitions, instance: dg.DagsterInstance, made: WrittenRoot, configuration: Path
) -> None:
    with configuration.open("a") as file:
        file.write('[roots.counting.sinks.broken]\nurl = "nothing"\n')
    failed = run(definitions, instance)
    assert not failed.success
    check = checks(failed)["sink_tables_are_healthy"]
    assert not check.passed
    assert "broken: " in str(check.description)
    assert "statekeeper --config" in str(check.description)
    assert len(made.opened().file_uris()) == 1


def test_a_merge_that_another_program_has_hit_turns_the_check_red(
    definitions: dg.Definitions, instance: dg.DagsterInstance, made: WrittenRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.delete_rows_during_merges(monkeypatch)
    check = checks(run(definitions, instance))["sink_tables_are_healthy"]
    assert not check.passed
    assert "rows: 1 merge dropped" in str(check.description)


def test_in_mode_snapshots_the_asset_only_plans(
    definitions: dg.Definitions, instance: dg.DagsterInstance, made: WrittenRoot, configuration: Path
) -> None:
    configuration.write_text(
        configuration.read_text().replace("[roots.counting]", '[roots.counting]\nmode = "snapshots"')
    )
    done = run(definitions, instance)
    assert done.success
    assert (shown(done, "sink_table")["phase"], shown(done, "sink_table")["planned_merges"]) == ("refused", 2 * FILES)
    assert len(made.opened().file_uris()) == 2 * FILES


def test_the_schedule_requests_one_run_for_each_query_with_sinks(
    tmp_path: Path, made: WrittenRoot, configuration: Path
) -> None:
    fleet = Fleet(config_file=str(configuration), scratch=str(configuration.parent), worker=Worker())
    time = datetime(2026, 3, 1, 6, tzinfo=UTC)
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        instance.add_dynamic_partitions(QUERY_SET, ["flights", "counting"])
        with dg.build_schedule_context(
            instance=instance, scheduled_execution_time=time, resources={"fleet": fleet}
        ) as context:
            [request] = schedule_of(fleet, "weekly_optimize")(context)
    assert isinstance(request, dg.RunRequest)
    assert (request.partition_key, request.run_key) == ("counting", "sink:counting@2026-03-01T06:00+00:00")
