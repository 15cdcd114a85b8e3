"""The sensors, called as by the daemon: their run requests, cursors and messages."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from statekeeper.assets import metadata
from statekeeper.assets.definitions import build
from statekeeper.assets.maintenance import run_config
from statekeeper.assets.names import Names
from statekeeper.assets.partitions import QUERY_SET, QUERY_TAG, REASON_TAG
from statekeeper.assets.progress import UNFINISHED_TAG
from statekeeper.resources.fleet import FLEET_TAG, Fleet
from statekeeper.resources.notifier import Notifier
from statekeeper.resources.worker import BEAT_TAG, HOLDER_TAG, Worker
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rounds import due
from statekeeper.statestore.maintenance.rounds.due import Asked, Cursor
from tests.assets.conftest import QUERIES, grown, job_of, reaped, sensor_of
from tests.support.checkpoints import Checkpoint
from tests.support.dagster_runs import maintained
from tests.support.webhooks import Webhook


@pytest.fixture
def fleet(configuration: Path, tmp_path: Path) -> Fleet:
    return Fleet(config_file=str(configuration), scratch=str(tmp_path / "scratch"), worker=Worker())


def tick(fleet: Fleet, instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    with dg.build_sensor_context(instance=instance, cursor=cursor, resources={"fleet": fleet}) as context:
        found = sensor_of(fleet, "changelog_tail")(context)
    assert isinstance(found, dg.SensorResult)
    return found


def runs_of(result: dg.SensorResult) -> list[dg.RunRequest]:
    """The requests of runs that maintain queries."""
    return [one for one in result.run_requests or () if one.job_name == "maintain_queries"]


def queries_of(result: dg.SensorResult) -> list[list[str]]:
    """The queries of each requested run."""
    return [one.run_config["ops"]["visit_queries"]["config"]["queries"] for one in runs_of(result)]


def examined(instance: dg.DagsterInstance) -> None:
    """Record a first examination of the fleet, so that no tick requests it."""
    instance.report_runless_asset_event(dg.AssetMaterialization("fleet_health"))


def a_holder(host: str) -> str:
    """The tag of a run on a machine, as the run sets it."""
    return f"{host}:17, Dagster run x"


def a_run(
    fleet: Fleet,
    instance: dg.DagsterInstance,
    status: DagsterRunStatus,
    *queries: str,
    unfinished: str | None = None,
    **tags: str,
) -> str:
    """Record a run of `maintain_queries`, which no process runs."""
    left = {} if unfinished is None else {UNFINISHED_TAG: unfinished}
    run = instance.create_run_for_job(
        job_def=job_of(fleet, "maintain_queries"),
        status=status,
        tags={FLEET_TAG: fleet.label, **left, **tags},
        run_config=run_config(Names(fleet=fleet.label), queries or ["flights"]),
    )
    return run.run_id


def a_run_of_one(fleet: Fleet, instance: dg.DagsterInstance, status: DagsterRunStatus) -> str:
    """Record a run of `maintain_query`, as a person launches it."""
    job = dg.GraphDefinition(name="maintain_query").to_job()
    tags = {QUERY_TAG: "flights", FLEET_TAG: fleet.label}
    return instance.create_run_for_job(job_def=job, status=status, tags=tags).run_id


def remembered(result: dg.SensorResult) -> Cursor:
    cursor = due.parse(result.cursor)
    assert cursor is not None
    return cursor


def why(result: dg.SensorResult) -> str:
    assert result.skip_reason is not None
    return str(result.skip_reason.skip_message if isinstance(result.skip_reason, dg.SkipReason) else result.skip_reason)


def test_before_the_first_batch_the_tick_is_skipped_with_a_reason(fleet: Fleet, instance: dg.DagsterInstance) -> None:
    result = tick(fleet, instance)
    assert result.run_requests == []
    assert "no query has a committed batch; 1 wait for their first batch" in why(result)


def test_a_new_query_becomes_a_partition_and_a_run_in_the_same_tick(
    fleet: Fleet, configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    grown(configuration.parent, "jobs/orders/state", 2)
    result = tick(fleet, instance)
    assert queries_of(result) == [["flights", "jobs.orders"]], "one run, the furthest first"
    (request,) = runs_of(result)
    assert (request.run_key or "").startswith("maintain:flights@9#1+1:")
    (added,) = result.dynamic_partitions_requests or ()
    assert added == QUERIES.build_add_request(["jobs.orders"]), "flights is known"
    assert {name: one.version for name, one in remembered(result).asked.items()} == {"flights": 9, "jobs.orders": 2}


def test_the_first_tick_that_finds_a_query_requests_the_health_of_the_fleet_once(
    definitions: dg.Definitions, fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    def health_requests(cursor: str | None = None) -> list[str | None]:
        found = tick(fleet, instance, cursor).run_requests or ()
        return [one.run_key for one in found if one.job_name == "refresh_fleet_health"]

    first = tick(fleet, instance)
    assert health_requests() == ["first_fleet_health"]
    queued = instance.create_run_for_job(
        definitions.resolve_job_def("refresh_fleet_health"), tags={FLEET_TAG: fleet.label}
    )
    assert health_requests(first.cursor) == []
    instance.delete_run(queued.run_id)
    assert health_requests(first.cursor) == ["first_fleet_health"]
    examined(instance)
    assert health_requests(first.cursor) == []


def test_a_request_has_tags_with_its_reason_and_its_fleet(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    (request,) = runs_of(tick(fleet, instance))
    assert request.tags == {REASON_TAG: "flights: batch 8: first run of the query", FLEET_TAG: fleet.config_file}


def test_a_tick_without_new_commits_requests_no_run_and_reports_figures(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    examined(instance)
    first = tick(fleet, instance)
    a_run(fleet, instance, DagsterRunStatus.SUCCESS, unfinished="none")
    flights.grow(3)
    second = tick(fleet, instance, first.cursor)
    assert not runs_of(second)
    assert "1 queries, none is due; closest is flights: 3 new batches of 4" in why(second)
    flights.grow(1)
    third = tick(fleet, instance, second.cursor)
    assert [request.run_key for request in runs_of(third)] == ["maintain:flights@13#1"]


def test_no_run_is_requested_while_another_is_active(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    examined(instance)
    cursor = Cursor({"flights": Asked(1, 1, 0.0)}).encoded()
    for status in (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED):
        for run_id in (a_run(fleet, instance, status), a_run_of_one(fleet, instance, status)):
            result = tick(fleet, instance, cursor)
            assert not runs_of(result)
            assert "1 have a queued or running run" in why(result)
            instance.delete_run(run_id)


def test_a_failed_run_of_an_idle_query_is_requested_again(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    a_run(fleet, instance, DagsterRunStatus.FAILURE)
    result = tick(fleet, instance, Cursor({"flights": Asked(9, 1, 0.0)}).encoded())
    assert [request.run_key for request in runs_of(result)] == ["maintain:flights@9#2"]


def test_a_run_that_a_person_launched_and_that_failed_is_retried(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    a_run_of_one(fleet, instance, DagsterRunStatus.FAILURE)
    result = tick(fleet, instance, Cursor({"flights": Asked(9, 0, 0.0)}).encoded())
    assert queries_of(result) == [["flights"]]


def test_only_the_queries_that_a_run_has_not_finished_are_requested_again(
    fleet: Fleet, configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    for name in ("orders", "clicks"):
        grown(configuration.parent, f"jobs/{name}/state", 2)
    every = ("flights", "jobs.clicks", "jobs.orders")
    asked = Cursor({"flights": Asked(9, 1, 0.0), "jobs.clicks": Asked(2, 1, 0.0), "jobs.orders": Asked(2, 1, 0.0)})
    failed = a_run(fleet, instance, DagsterRunStatus.SUCCESS, *every, unfinished="1")
    first = tick(fleet, instance, asked.encoded())
    assert queries_of(first) == [["jobs.clicks"]], "whose visit failed"
    assert runs_of(first)[0].run_key == "maintain:jobs.clicks@2#2"
    assert {name: one.attempts for name, one in remembered(first).asked.items()} == {
        "flights": 0,
        "jobs.clicks": 2,
        "jobs.orders": 0,
    }
    instance.delete_run(failed)
    a_run(fleet, instance, DagsterRunStatus.FAILURE, *every, unfinished="0,2")
    assert queries_of(tick(fleet, instance, asked.encoded())) == [["flights", "jobs.orders"]], (
        "which it had not visited"
    )


def test_a_run_that_died_before_it_began_has_failed_for_each_of_its_queries(
    fleet: Fleet, configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    grown(configuration.parent, "jobs/orders/state", 2)
    a_run(fleet, instance, DagsterRunStatus.FAILURE, "flights", "jobs.orders")
    asked = Cursor({"flights": Asked(9, 1, 0.0), "jobs.orders": Asked(2, 1, 0.0)})
    result = tick(fleet, instance, asked.encoded())
    assert queries_of(result) == [["flights", "jobs.orders"]]
    assert remembered(result).died == {"flights": 1, "jobs.orders": 1}


def test_a_failure_is_remembered_until_the_query_is_requested_again(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    examined(instance)
    now = SystemClock().now_seconds()
    failed = a_run(fleet, instance, DagsterRunStatus.SUCCESS, unfinished="0")
    first = tick(fleet, instance, Cursor({"flights": Asked(9, 0, now)}).encoded())
    assert not runs_of(first), "its pause is not over"
    assert "failed runs: 1; next attempt in" in why(first)
    instance.delete_run(failed)
    cursor = remembered(first)
    assert cursor.asked["flights"].attempts == 1
    later = replace(cursor, asked={"flights": replace(cursor.asked["flights"], at_seconds=now - 61)})
    assert queries_of(tick(fleet, instance, later.encoded())) == [["flights"]], "also if its run is no longer read"


def test_a_tick_reads_only_the_runs_that_ended_since_the_previous_one(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    a_run(fleet, instance, DagsterRunStatus.SUCCESS, unfinished="0")
    ahead = Cursor({"flights": Asked(9, 0, 0.0)}, looked_seconds=SystemClock().now_seconds() + 700)
    assert queries_of(tick(fleet, instance, ahead.encoded())) == []
    assert queries_of(tick(fleet, instance, replace(ahead, looked_seconds=None).encoded())) == [["flights"]]


def test_a_run_has_a_limited_number_of_queries_and_the_next_tick_requests_the_rest(
    fleet: Fleet,
    configuration: Path,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
) -> None:
    grown(configuration.parent, "jobs/orders/state", 2)
    fleet = Fleet(config_file=fleet.config_file, scratch=fleet.scratch, worker=Worker(), queries_per_run=1)
    first = tick(fleet, instance)
    assert queries_of(first) == [["flights"]], "the furthest first"
    a_run(fleet, instance, DagsterRunStatus.SUCCESS, unfinished="none")
    second = tick(fleet, instance, first.cursor)
    assert queries_of(second) == [["jobs.orders"]]


def test_a_cursor_of_another_release_is_ignored(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    assert runs_of(tick(fleet, instance, '{"format": 99}')) == runs_of(tick(fleet, instance))


def test_a_missing_query_is_forgotten_after_its_delay_unless_it_returns(
    fleet: Fleet, configuration: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = configuration.parent / "jobs/orders"
    grown(configuration.parent, "jobs/orders/state", 2)
    first = tick(fleet, instance)
    instance.add_dynamic_partitions(QUERY_SET, ["jobs.orders"])
    orders.rename(orders.with_name("hidden away"))
    second = tick(fleet, instance, first.cursor)
    assert "jobs.orders" in remembered(second).gone_since_seconds
    assert second.dynamic_partitions_requests == []
    orders.with_name("hidden away").rename(orders)
    assert remembered(tick(fleet, instance, second.cursor)).gone_since_seconds == {}
    shutil.rmtree(orders)
    gone = tick(fleet, instance, first.cursor)
    cursor = remembered(gone)
    gone_since = {"jobs.orders": cursor.gone_since_seconds["jobs.orders"] - 601}
    long_ago = Cursor(cursor.asked, gone_since, cursor.added)
    last = tick(fleet, instance, long_ago.encoded())
    assert last.dynamic_partitions_requests == [QUERIES.build_delete_request(["jobs.orders"])]
    assert "jobs.orders" not in remembered(last).asked


def test_no_query_is_forgotten_while_its_parent_cannot_be_listed(
    fleet: Fleet, configuration: Path, instance: dg.DagsterInstance
) -> None:
    configuration.write_text(configuration.read_text().replace('url = "jobs"', 'url = "ftp://nowhere/jobs"'))
    instance.add_dynamic_partitions(QUERY_SET, ["jobs.orders"])
    added = Cursor(added=frozenset({"jobs.orders"}))
    assert remembered(tick(fleet, instance, added.encoded())).gone_since_seconds == {}


def status_of(instance: dg.DagsterInstance, run_id: str) -> DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def a_beat(host: str = "host") -> dict[str, str]:
    """The tags of a run that has begun, on a machine."""
    return {HOLDER_TAG: a_holder(host), BEAT_TAG: "2026-03-01T03:00:00Z"}


def test_only_runs_without_a_sign_of_life_are_reported_as_failed_on_any_machine(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = [a_run(fleet, instance, DagsterRunStatus.STARTED, **a_beat(host)) for host in ("here", "another machine")]
    dead.append(a_run(fleet, instance, DagsterRunStatus.STARTED))  # killed before its first beat
    of_earlier_build = a_run(fleet, instance, DagsterRunStatus.STARTED, **{HOLDER_TAG: a_holder("here")})
    starting = a_run(fleet, instance, DagsterRunStatus.STARTING)
    assert "4 runs of this fleet are started; 0 of them were dead" in reaped(fleet, instance, monkeypatch, seconds=119)
    assert "4 runs of this fleet are started; 3 of them were dead" in reaped(fleet, instance, monkeypatch)
    assert [status_of(instance, run_id) for run_id in dead] == [DagsterRunStatus.FAILURE] * 3
    assert status_of(instance, of_earlier_build) is DagsterRunStatus.STARTED
    assert status_of(instance, starting) is DagsterRunStatus.STARTING
    assert "1 of them were dead" in reaped(fleet, instance, monkeypatch, seconds=600)
    assert status_of(instance, starting) is DagsterRunStatus.FAILURE, "it would keep its queries from being maintained"


def test_only_the_leases_of_a_dead_run_are_released(
    fleet: Fleet,
    configuration: Path,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders = grown(configuration.parent, "jobs/orders/state", 2)
    for checkpoint in (flights, orders):
        lease.acquire(checkpoint.storage, "gc", run="x", holder=a_holder("host"), clock=SystemClock())
    queries = ("flights", "jobs.orders")
    a_run(fleet, instance, DagsterRunStatus.STARTED, *queries, unfinished="0,1", **a_beat())
    reaped(fleet, instance, monkeypatch)
    with lease.held(flights.storage, "gc", run="y", holder="a person", clock=SystemClock()) as held:
        with lease.held(orders.storage, "gc", run="z", holder="a person", clock=SystemClock()):
            a_run(fleet, instance, DagsterRunStatus.STARTED, *queries, **a_beat())
            reaped(fleet, instance, monkeypatch)
        held.require()


def test_an_unreadable_lease_does_not_keep_a_dead_run_active(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = a_run(fleet, instance, DagsterRunStatus.STARTED, **a_beat())
    flights.storage.create(names.lease(1), b"{")
    reaped(fleet, instance, monkeypatch)
    assert status_of(instance, dead) is DagsterRunStatus.FAILURE


def notified(
    fleet: Fleet, instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult, url: str
) -> dg.SkipReason | None:
    """Call the sensor of failed runs, as the daemon does."""
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    context = dg.build_run_status_sensor_context(
        sensor_name="notify_on_failure",
        dagster_instance=instance,
        dagster_run=run,
        dagster_event=result.get_run_failure_event(),
        resources={"notifier": Notifier(webhook=url, ui_url="https://dagster.example.com/")},
    ).for_run_failure()
    found: dg.SkipReason | None = sensor_of(fleet, "notify_on_failure")(context)
    return found


def test_a_run_that_ends_with_an_error_of_its_own_is_reported_with_its_link(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    configuration: Path,
    webhook: Webhook,
    fleet: Fleet,
) -> None:
    configuration.write_text("[roots")
    result = definitions.resolve_job_def("maintain_queries").execute_in_process(instance=instance, raise_on_error=False)
    for _ in range(2):
        assert notified(fleet, instance, result, webhook.url) is None
    (text,) = webhook.texts
    link = f"https://dagster.example.com/runs/{result.run_id}"
    assert text.startswith(f"job maintain_queries (run: {link}): OK -> ERROR: ")
    assert "statekeeper.toml" in text


def test_the_next_run_that_succeeds_tells_the_end_of_a_failed_job_once(
    instance: dg.DagsterInstance, configuration: Path, webhook: Webhook, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATEKEEPER_WEBHOOK", webhook.url)
    definitions = build({"STATEKEEPER_CONFIG": str(configuration), "STATEKEEPER_WEBHOOK": webhook.url})
    valid = configuration.read_text()
    configuration.write_text("[roots")
    job = definitions.resolve_job_def("maintain_queries")
    notified(fleet, instance, job.execute_in_process(instance=instance, raise_on_error=False), webhook.url)
    configuration.write_text(valid)
    for _ in range(2):
        assert job.execute_in_process(instance=instance).success
    [_, over] = webhook.texts
    assert over.startswith("job maintain_queries (run: ")
    assert "ERROR -> OK: its newest run succeeded" in over.replace("&gt;", ">")


def test_a_failed_run_is_not_reported_if_the_notice_of_its_query_has_told_it(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, webhook: Webhook, fleet: Fleet
) -> None:
    flights.storage.delete([flights.stores[0].changelog(flights.versions[9][0])])
    result = maintained(definitions, instance)
    assert not result.success
    skipped = notified(fleet, instance, result, webhook.url)
    assert "the notice of its query" in str(skipped)
    assert webhook.texts == []


def test_a_query_is_due_when_its_replay_exceeds_the_restore_target(
    fleet: Fleet, configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    examined(instance)
    configuration.write_text(f'{configuration.read_text()}\n[roots.flights.snapshot]\nrestore_target = "10s"\n')
    figures = {"changelogs_before": 20, "restore_seconds_before": 50.0, "restore_seconds_after": 1.0, "stores": 2}
    instance.report_runless_asset_event(
        dg.AssetMaterialization("snapshot", partition="flights", metadata={"figures": metadata.figures(figures)})
    )
    a_run(fleet, instance, DagsterRunStatus.SUCCESS, unfinished="none")
    first = tick(fleet, instance, Cursor({"flights": Asked(9, 1, 0.0)}).encoded())
    assert runs_of(first) == []
    limit = remembered(first).asked["flights"].versions
    assert limit is not None
    flights.grow(limit - 1)
    assert runs_of(tick(fleet, instance, first.cursor)) == []
    flights.grow(1)
    (request,) = runs_of(tick(fleet, instance, first.cursor))
    assert "exceeds the restore target" in request.tags[REASON_TAG]
