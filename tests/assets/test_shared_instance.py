"""A Dagster instance that other teams and a second fleet use, too: maintenance touches only what is of its own fleet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from statekeeper.assets.definitions import build
from statekeeper.assets.maintenance import run_config
from statekeeper.assets.names import Names
from statekeeper.assets.partitions import QUERY_SET, QUERY_TAG
from statekeeper.resources.fleet import FLEET_TAG, Fleet
from statekeeper.resources.worker import BEAT_TAG, Worker
from statekeeper.statestore.maintenance.rounds.due import Asked, Cursor, parse
from tests.assets.conftest import QUERIES, grown, job_of, reaped, schedule_of, sensor_of
from tests.support.maintainers import QUIET_SECONDS

PRUNE = {"ops": {"delete_old_runs": {"config": {"keep_days": 1}}}}


class Team:
    """A fleet with a configuration of its own, and the cursor of its sensor."""

    def __init__(self, folder: Path, name: str, roots: str) -> None:
        folder.mkdir()
        self.folder, self.name = folder, name
        self.configuration = folder / "statekeeper.toml"
        self.configuration.write_text(roots)
        self.cursor: str | None = None

    @property
    def fleet(self) -> Fleet:
        return Fleet(
            config_file=str(self.configuration), scratch=str(self.folder / "scratch"), worker=Worker(), name=self.name
        )

    @property
    def definitions(self) -> dg.Definitions:
        environment = {"STATEKEEPER_CONFIG": str(self.configuration), "STATEKEEPER_FLEET": self.name}
        return build({**environment, "STATEKEEPER_SCRATCH": str(self.folder / "scratch")}, quiet_seconds=QUIET_SECONDS)

    def tick(self, instance: dg.DagsterInstance) -> dg.SensorResult:
        """Evaluate the sensor and apply its requests of partitions, as the daemon does."""
        with dg.build_sensor_context(instance=instance, cursor=self.cursor, resources={"fleet": self.fleet}) as context:
            found = sensor_of(self.fleet, "changelog_tail")(context)
        assert isinstance(found, dg.SensorResult)
        for request in found.dynamic_partitions_requests or ():
            if isinstance(request, dg.AddDynamicPartitionsRequest):
                instance.add_dynamic_partitions(QUERY_SET, list(request.partition_keys))
            else:
                for key in request.partition_keys:
                    instance.delete_dynamic_partition(QUERY_SET, key)
        self.cursor = found.cursor
        return found

    def maintain(self, instance: dg.DagsterInstance, query: str) -> str:
        job = self.definitions.resolve_job_def("maintain_query")
        done = job.execute_in_process(partition_key=query, instance=instance, raise_on_error=False)
        return done.run_id

    def prune(self, instance: dg.DagsterInstance) -> None:
        assert self.definitions.resolve_job_def("prune_history").execute_in_process(PRUNE, instance=instance).success


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """A schedule opens the instance by its reference, and a deleted run has files."""
    (tmp_path / "dagster").mkdir()
    with dg.instance_for_test(temp_dir=str(tmp_path / "dagster")) as made:
        yield made


@pytest.fixture
def orders(tmp_path: Path) -> Team:
    return Team(tmp_path / "orders", "orders", '[roots.orders]\nurl = "orders"\n\n[parents.jobs]\nurl = "jobs"\n')


@pytest.fixture
def payments(tmp_path: Path) -> Team:
    return Team(tmp_path / "payments", "payments", '[roots.payments]\nurl = "payments"\n')


def known(instance: dg.DagsterInstance) -> set[str]:
    return set(instance.get_dynamic_partitions(QUERY_SET))


def an_ended_run(instance: dg.DagsterInstance, name: str, **tags: str) -> str:
    job = dg.GraphDefinition(name=name).to_job()
    return instance.create_run_for_job(job_def=job, status=DagsterRunStatus.SUCCESS, tags=tags).run_id


def make_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all runs so far have ended a month ago: the process that prunes has a clock that is ahead."""
    ahead = datetime.now(UTC) + timedelta(days=30)
    monkeypatch.setattr("statekeeper.assets.history.SystemClock.now_seconds", lambda _: ahead.timestamp())


def test_a_tick_deletes_no_partition_that_another_fleet_or_team_added(
    instance: dg.DagsterInstance, orders: Team, payments: Team
) -> None:
    instance.add_dynamic_partitions(QUERY_SET, ["a partition of a stranger"])
    for team in (orders, payments):
        grown(team.folder, team.name, 2)
        team.tick(instance)
    everything = {"orders", "payments", "a partition of a stranger"}
    assert known(instance) == everything
    for _ in range(2):
        for team in (orders, payments):
            assert team.tick(instance).dynamic_partitions_requests == []
    assert known(instance) == everything


def test_a_fleet_forgets_its_own_query_and_only_that(
    instance: dg.DagsterInstance, orders: Team, payments: Team
) -> None:
    for team in (orders, payments):
        grown(team.folder, team.name, 2)
        team.tick(instance)
    orders.configuration.write_text('[parents.jobs]\nurl = "jobs"\n')
    assert orders.tick(instance).dynamic_partitions_requests == [QUERIES.build_delete_request(["orders"])]
    assert known(instance) == {"payments"}


def test_a_query_of_the_same_name_is_deleted_only_by_the_fleet_that_added_it(
    instance: dg.DagsterInstance, orders: Team, payments: Team
) -> None:
    payments.configuration.write_text(orders.configuration.read_text())
    for team in (orders, payments):
        grown(team.folder, "orders", 2)
        team.tick(instance)
    payments.configuration.write_text('[roots.payments]\nurl = "payments"\n')
    assert payments.tick(instance).dynamic_partitions_requests == []
    assert known(instance) == {"orders"}


def test_a_sensor_without_its_cursor_deletes_nothing(instance: dg.DagsterInstance, orders: Team) -> None:
    grown(orders.folder, "orders", 2)
    orders.tick(instance)
    orders.cursor = None
    orders.configuration.write_text("")
    assert orders.tick(instance).dynamic_partitions_requests == []
    assert known(instance) == {"orders"}


def test_the_queries_that_an_earlier_build_requested_are_its_own() -> None:
    before = Cursor({"orders": Asked(1, 1, 0.0)}).encoded().replace('"added": [], ', "")
    assert "added" not in before
    found = parse(before)
    assert found is not None
    assert found.added == {"orders"}


def test_pruning_deletes_only_runs_of_its_own_fleet(
    on_disk: dg.DagsterInstance, orders: Team, payments: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    for team in (orders, payments):
        grown(team.folder, team.name, 2)
        team.tick(on_disk)
    ours, theirs = orders.maintain(on_disk, "orders"), payments.maintain(on_disk, "payments")
    foreign = an_ended_run(on_disk, "nightly_report")
    never_started = an_ended_run(on_disk, "maintain_query")
    tags = {run: on_disk.get_run_by_id(run).tags for run in (ours, theirs)}  # type: ignore[union-attr]
    assert [tags[run][FLEET_TAG] for run in (ours, theirs)] == ["orders", "payments"]
    make_old(monkeypatch)
    orders.prune(on_disk)
    left = {run for run in (ours, theirs, foreign, never_started) if on_disk.get_run_by_id(run) is not None}
    assert left == {theirs, foreign, never_started}
    payments.prune(on_disk)
    assert on_disk.get_run_by_id(theirs) is None
    assert on_disk.get_run_by_id(foreign) is not None


def test_pruning_continues_after_a_page_of_runs_of_another_code_location(
    instance: dg.DagsterInstance, orders: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [an_ended_run(instance, "maintain_query", **{FLEET_TAG: "orders"}) for _ in range(5)]
    foreign = set(runs[1:4])
    monkeypatch.setattr("statekeeper.assets.history._AT_A_TIME", 2)
    monkeypatch.setattr(
        "statekeeper.assets.history._code_location", lambda run: "other" if run.run_id in foreign else None
    )
    make_old(monkeypatch)
    orders.prune(instance)
    assert {run for run in runs if instance.get_run_by_id(run) is not None} == foreign


def test_each_run_that_the_fleet_requests_has_its_tag(on_disk: dg.DagsterInstance, orders: Team) -> None:
    grown(orders.folder, "orders", 2)
    requests = orders.tick(on_disk).run_requests or ()
    assert {request.job_name for request in requests} == {"maintain_queries", "refresh_fleet_health"}
    pruning = schedule_of(orders.fleet, "weekly_prune")()
    assert isinstance(pruning, dg.RunRequest)
    assert {request.tags[FLEET_TAG] for request in (*requests, pruning)} == {"orders"}


def test_the_runs_of_a_query_of_the_same_name_do_not_count(instance: dg.DagsterInstance, orders: Team) -> None:
    grown(orders.folder, "orders", 2)
    tags, config = {FLEET_TAG: "another"}, run_config(Names(fleet="another"), ["orders"])
    job = job_of(orders.fleet, "maintain_queries")
    instance.create_run_for_job(job_def=job, status=DagsterRunStatus.STARTED, tags=tags, run_config=config)
    orders.cursor = Cursor({"orders": Asked(1, 1, 0.0)}).encoded()
    requested = orders.tick(instance).run_requests or ()
    assert "maintain_queries" in {request.job_name for request in requested}


def test_a_dead_run_of_another_fleet_stays(
    instance: dg.DagsterInstance, orders: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = dg.GraphDefinition(name="maintain_query").to_job()
    tags = {QUERY_TAG: "payments", FLEET_TAG: "payments", BEAT_TAG: "2026-03-01T03:00:00Z"}
    run = instance.create_run_for_job(job_def=job, status=DagsterRunStatus.STARTED, tags=tags)
    reaped(orders.fleet, instance, monkeypatch)
    assert instance.get_run_by_id(run.run_id).status is DagsterRunStatus.STARTED  # type: ignore[union-attr]


def test_a_mirror_is_requested_only_for_the_queries_of_the_fleet(
    on_disk: dg.DagsterInstance, orders: Team, payments: Team
) -> None:
    on_disk.add_dynamic_partitions(QUERY_SET, ["orders", "payments", "../payments"])
    orders.configuration.write_text('[roots.orders]\nurl = "orders"\nmirror = { url = "mirror" }\n')
    with dg.build_schedule_context(
        instance=on_disk, scheduled_execution_time=datetime(2026, 3, 1, tzinfo=UTC), resources={"fleet": orders.fleet}
    ) as context:
        requested = [
            one for one in schedule_of(orders.fleet, "mirror_queries")(context) if isinstance(one, dg.RunRequest)
        ]
    assert [one.partition_key for one in requested] == ["orders"]


def test_the_verdict_of_a_fleet_does_not_count_the_red_queries_of_another(
    instance: dg.DagsterInstance, orders: Team, payments: Team
) -> None:
    for team in (orders, payments):
        made = grown(team.folder, team.name, 9)
        team.tick(instance)
        if team is payments:
            made.storage.delete([made.stores[0].changelog(made.versions[9][0])])
    payments.maintain(instance, "payments")
    run = orders.maintain(instance, "orders")
    events = instance.all_logs(run, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    verdicts = [event.get_dagster_event().asset_check_evaluation_data for event in events]
    of_fleet = [one for one in verdicts if one.check_name == "lineage_is_gapless" and one.partition is None]
    assert [(one.passed, one.description) for one in of_fleet] == [(True, "The check passes for all queries (1).")]


def health_of(team: Team, instance: dg.DagsterInstance) -> dg.AssetCheckEvaluation:
    job = team.definitions.resolve_job_def("refresh_fleet_health")
    (check,) = job.execute_in_process(instance=instance).get_asset_check_evaluations()
    return check


def test_a_fleet_without_an_examined_query_is_not_healthy(instance: dg.DagsterInstance, orders: Team) -> None:
    waiting = health_of(orders, instance)
    assert (waiting.passed, waiting.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "there is no folder at" in (waiting.description or "")
    assert (waiting.description or "").endswith(f"Next: statekeeper --config {orders.configuration} config check")
    orders.configuration.write_text('[roots.orders]\nurl = "orders"\n')
    waiting = health_of(orders, instance)
    assert "No query was examined" in (waiting.description or "")
    command = f"Next: statekeeper --config {orders.configuration} inspect orders"
    assert (waiting.description or "").endswith(command)
    orders.configuration.write_text("")
    empty = health_of(orders, instance)
    assert not empty.passed
    assert "names no root" in (empty.description or "")


def test_a_query_whose_checkpoint_is_gone_is_not_healthy_until_it_returns(
    instance: dg.DagsterInstance, orders: Team, payments: Team
) -> None:
    for team in (orders, payments):
        grown(team.folder, team.name, 2)
    grown(orders.folder, "jobs/invoices", 2)
    assert health_of(orders, instance).passed
    assert health_of(payments, instance).passed, "and its materialization is the newest of the asset"
    hidden = orders.folder / "hidden"
    shutil.move(orders.folder / "orders", hidden)
    for _ in range(2):
        lost = health_of(orders, instance)
        assert not lost.passed
        assert "orders: the checkpoint has no committed batch" in (lost.description or "")
    shutil.move(hidden, orders.folder / "orders")
    assert health_of(orders, instance).passed
