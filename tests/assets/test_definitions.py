"""The definitions that Dagster loads from any directory, and the schedules."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml  # type: ignore[import-untyped]

from statekeeper.assets.history import delete_ended_runs
from statekeeper.assets.maintenance import run_config
from statekeeper.assets.names import Names, OwnRuns
from statekeeper.assets.partitions import QUERY_SET
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.maintenance.rounds.due import Asked, Cursor
from tests.assets.conftest import grown, schedule_of, sensor_of
from tests.support.checkpoints import Checkpoint

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_definitions_load(definitions: dg.Definitions) -> None:
    dg.Definitions.validate_loadable(definitions)


def test_each_sensor_and_schedule_runs_by_default(definitions: dg.Definitions) -> None:
    repository = definitions.get_repository_def()
    assert {one.name for one in repository.sensor_defs} == {"changelog_tail", "dead_runs", "notify_on_failure"}
    assert {one.default_status for one in repository.sensor_defs} == {dg.DefaultSensorStatus.RUNNING}
    assert {one.name for one in repository.schedule_defs} == {
        *("nightly_sweep", "mirror_queries", "publish_queries", "nightly_deep_audit", "weekly_drill"),
        "weekly_optimize",
        *("hourly_fleet_health", "daily_history", "weekly_report", "weekly_prune"),
    }
    assert {one.default_status for one in repository.schedule_defs} == {dg.DefaultScheduleStatus.RUNNING}


def test_a_failed_run_of_a_job_that_reads_for_hours_is_reported_too(definitions: dg.Definitions) -> None:
    found: Any = definitions.get_repository_def().get_sensor_def("notify_on_failure")
    assert {job.name for job in found._monitored_jobs} >= {"audit_deep", "drill_restore", "maintain_query"}
    tags = definitions.resolve_job_def("audit_deep").tags
    limits = yaml.safe_load((REPOSITORY / "dagster.yaml").read_text())["concurrency"]["runs"]["tag_concurrency_limits"]
    assert {one["key"] for one in limits} == {"dagster/partition", "statekeeper/alone"}
    assert "statekeeper/alone" in tags


def test_only_jobs_of_short_work_have_a_limit_on_their_runtime(definitions: dg.Definitions) -> None:
    """Run monitoring in dagster.yaml ends a run without the tag after an hour."""
    jobs = {job.name: job.tags.get("dagster/max_runtime") for job in definitions.jobs or ()}
    limited = {"maintain_queries", "maintain_query", "refresh_fleet_health", "write_report", "prune_history"}
    assert {name for name, seconds in jobs.items() if seconds != "0"} == limited
    assert None not in jobs.values()


CHECKS = [
    "tail_is_short",
    "lineage_is_gapless",
    "commit_log_matches_files",
    "far_from_lineage_ceiling",
    "retention_floor_is_kept",
    "nothing_left_half_switched",
    "mirror_is_fresh",
    "newest_snapshot_restores",
    "deep_audit_has_no_finding",
    "sink_tables_are_healthy",
    "all_queries_healthy",
]


def test_the_set_of_checks(definitions: dg.Definitions) -> None:
    assert {key.name for key in definitions.resolve_asset_graph().asset_check_keys} == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_describes_green_red_and_the_next_step(definitions: dg.Definitions, name: str) -> None:
    graph = definitions.resolve_asset_graph()
    keys = [key for key in graph.asset_check_keys if key.name == name]
    (description,) = {graph.get_check_spec(key).description or "" for key in keys}
    statement, _, red = description.partition(" Red: ")
    assert statement.endswith("."), "a statement"
    meaning, _, what_to_do = red.partition(". ")
    assert len(meaning) > 20
    assert len(what_to_do) > 40
    page = (REPOSITORY / "docs" / "checks" / f"{name}.md").read_text()
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert titles[:3] == ["Scope", "Meaning of a failed check", "Next steps"]
    for key in keys:
        assets = f"| `{key.asset_key.to_user_string()}` |"
        (row,) = [line for line in page.splitlines() if line.startswith(assets)]
        assert row.endswith("| yes |" if graph.get_check_spec(key).blocking else "| no |"), "of its page"


def test_the_job_audits_before_it_deletes(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    job = definitions.resolve_job_def("maintain_query")
    assert {key.to_user_string() for key in job.asset_layer.selected_asset_keys} == {"snapshot", "lineage", "retention"}
    assert graph.get(dg.AssetKey("retention")).parent_keys == {dg.AssetKey("lineage")}
    assert graph.get(dg.AssetKey("lineage")).parent_keys == {dg.AssetKey("snapshot")}


@pytest.mark.parametrize("started_in", ["repository", "elsewhere"])
def test_a_fresh_interpreter_loads_the_workspace_from_any_directory(tmp_path: Path, started_in: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text((REPOSITORY / "dagster.yaml").read_text())
    environment = {**os.environ, "DAGSTER_HOME": str(home)}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", str(REPOSITORY / "workspace.yaml")],
        cwd=REPOSITORY if started_in == "repository" else tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("folder", ["assets", "resources"])
def test_only_the_public_api_of_dagster_is_used(folder: str) -> None:
    code = {path.name: path.read_text() for path in (REPOSITORY / folder).rglob("*.py")}
    assert [
        name
        for name, text in code.items()
        if re.search(r"\b(dagster|dg)\._|\b(event_log|run|schedule)_storage\b", text)
    ] == []


def test_a_run_imports_neither_spark_nor_pandas_nor_a_plotting_library() -> None:
    code = (
        "import sys, statekeeper.dagster; print([m for m in ('pyspark', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """One on disk: a schedule opens it by its reference."""
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        made.add_dynamic_partitions(QUERY_SET, ["flights"])
        yield made


def swept(instance: dg.DagsterInstance, fleet: Fleet) -> list[dg.RunRequest | dg.SkipReason]:
    at = datetime(2026, 3, 1, 3, tzinfo=UTC)
    with dg.build_schedule_context(
        instance=instance, scheduled_execution_time=at, resources={"fleet": fleet}
    ) as context:
        return list(schedule_of(fleet, "nightly_sweep")(context))


def test_each_night_requests_few_runs_for_all_known_queries(
    configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint, tmp_path: Path
) -> None:
    known = ["flights", "jobs.a", "jobs.b"]
    for name in ("a", "b", "unknown"):
        grown(configuration.parent, f"jobs/{name}/state", 1)
    instance.add_dynamic_partitions(QUERY_SET, known)
    fleet = Fleet(config_file=str(configuration), scratch=str(tmp_path), worker=Worker(), queries_per_run=2)
    requests = [one for one in swept(instance, fleet) if isinstance(one, dg.RunRequest)]
    assert [(one.run_key, one.run_config) for one in requests] == [
        ("nightly:2026-03-01#1", run_config(Names(fleet=""), known[:2])),
        ("nightly:2026-03-01#2", run_config(Names(fleet=""), known[2:])),
    ]


def test_a_query_with_a_window_is_maintained_once_a_day_in_its_window_and_not_at_night(
    configuration: Path,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    window = 'schedule = { window = "22:00-02:00" }'
    configuration.write_text(configuration.read_text().replace("[roots.flights]", f"[roots.flights]\n{window}"))
    fleet = Fleet(config_file=str(configuration), scratch=str(tmp_path), worker=Worker())
    (skipped,) = swept(instance, fleet)
    assert isinstance(skipped, dg.SkipReason)
    asked = datetime(2026, 3, 1, 23, tzinfo=UTC)
    cursor = Cursor({"flights": Asked(9, 0, asked.timestamp())}).encoded()
    due = {}
    for hours in (1, 20, 23, 24):
        now = (asked + timedelta(hours=hours)).timestamp()
        monkeypatch.setattr("statekeeper.assets.sensors.SystemClock.now_seconds", lambda _, now=now: now)
        with dg.build_sensor_context(instance=instance, cursor=cursor, resources={"fleet": fleet}) as context:
            found = sensor_of(fleet, "changelog_tail")(context).run_requests
        due[hours] = "maintain_queries" in [one.job_name for one in found]
    assert due == {1: False, 20: False, 23: False, 24: True}


def test_a_night_without_queries_is_skipped_with_a_reason(
    configuration: Path, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    fleet = Fleet(config_file=str(configuration), scratch=str(tmp_path), worker=Worker())
    (skipped,) = swept(instance, fleet)
    assert isinstance(skipped, dg.SkipReason)


def test_old_runs_are_deleted_with_their_files_and_recent_ones_stay(
    definitions: dg.Definitions, configuration: Path, flights: Checkpoint, instance: dg.DagsterInstance
) -> None:
    run = definitions.resolve_job_def("maintain_query").execute_in_process(partition_key="flights", instance=instance)
    files = set(Path(instance.root_directory).glob(f"history/runs/{run.run_id}.db*"))
    pruning = definitions.resolve_job_def("prune_history")
    assert pruning.execute_in_process(instance=instance).output_for_node("delete_old_runs") == 0
    now = datetime.now(UTC)
    runs = OwnRuns(Names(fleet=str(configuration)), frozenset({"maintain_query", "prune_history"}), frozenset())
    of_fleet: dict[str, Any] = {"like": run.dagster_run, "of": runs}
    assert delete_ended_runs(instance, now - timedelta(days=1), 100, **of_fleet) == 0
    assert delete_ended_runs(instance, now + timedelta(days=1), 100, **of_fleet) == 2
    assert instance.get_run_by_id(run.run_id) is None
    assert not any(file.exists() for file in files)
