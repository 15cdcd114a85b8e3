"""The sensors, called as by the daemon: their run requests, cursors and messages."""

from __future__ import annotations

import http.server
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from statekeeper.assets import metadata
from statekeeper.assets.partitions import QUERY_SET, QUERY_TAG, REASON_TAG
from statekeeper.resources.fleet import FLEET_TAG, Fleet
from statekeeper.resources.notifier import Notifier
from statekeeper.resources.worker import HOLDER_TAG, Worker
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rounds import due
from statekeeper.statestore.maintenance.rounds.due import Asked, Cursor
from tests.assets.conftest import QUERIES, grown, sensor_of
from tests.support.checkpoints import Checkpoint


@pytest.fixture
def fleet(configuration: Path, tmp_path: Path) -> Fleet:
    return Fleet(config_file=str(configuration), scratch=str(tmp_path / "scratch"), worker=Worker())


def tick(fleet: Fleet, instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    with dg.build_sensor_context(instance=instance, cursor=cursor, resources={"fleet": fleet}) as context:
        found = sensor_of(fleet, "changelog_tail")(context)
    assert isinstance(found, dg.SensorResult)
    return found


def runs_of(result: dg.SensorResult) -> list[dg.RunRequest]:
    """The requests of runs that maintain a query."""
    return [one for one in result.run_requests or () if one.job_name == "maintain_query"]


def examined(instance: dg.DagsterInstance) -> None:
    """Record a first examination of the fleet, so that no tick requests it."""
    instance.report_runless_asset_event(dg.AssetMaterialization("fleet_health"))


def a_holder(host: str) -> str:
    """The tag of a run on a machine, as the run sets it."""
    return f"{host}:17, Dagster run x"


def a_run(
    fleet: Fleet, instance: dg.DagsterInstance, status: DagsterRunStatus, query: str = "flights", **tags: str
) -> str:
    run = instance.create_run_for_job(
        job_def=dg.GraphDefinition(name="maintain_query").to_job(),
        status=status,
        tags={QUERY_TAG: query, FLEET_TAG: fleet.label, **tags},
    )
    return run.run_id


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
    assert [(r.partition_key, r.run_key) for r in runs_of(result)] == [
        ("flights", "maintain:flights@9#1"),
        ("jobs.orders", "maintain:jobs.orders@2#1"),
    ]
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
    assert request.tags == {REASON_TAG: "version 9: first run of the query", FLEET_TAG: fleet.config_file}


def test_a_tick_without_new_commits_requests_no_run_and_reports_figures(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    examined(instance)
    first = tick(fleet, instance)
    a_run(fleet, instance, DagsterRunStatus.SUCCESS)
    flights.grow(3)
    second = tick(fleet, instance, first.cursor)
    assert not runs_of(second)
    assert "1 queries, none is due; closest is flights: 3 new versions of 4" in why(second)
    flights.grow(1)
    third = tick(fleet, instance, second.cursor)
    assert [request.run_key for request in runs_of(third)] == ["maintain:flights@13#1"]


def test_no_run_is_requested_while_another_is_active(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    examined(instance)
    cursor = Cursor({"flights": Asked(1, 1, 0.0)}).encoded()
    for status in (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED):
        run_id = a_run(fleet, instance, status)
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


def test_a_tick_requests_a_limited_number_of_runs_and_the_next_tick_the_rest(
    fleet: Fleet,
    configuration: Path,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
) -> None:
    grown(configuration.parent, "jobs/orders/state", 2)
    fleet = Fleet(config_file=fleet.config_file, scratch=fleet.scratch, worker=Worker(), runs_per_tick=1)
    first = tick(fleet, instance)
    assert [request.partition_key for request in runs_of(first)] == ["flights"], "the furthest first"
    a_run(fleet, instance, DagsterRunStatus.SUCCESS)
    second = tick(fleet, instance, first.cursor)
    assert [request.partition_key for request in runs_of(second)] == ["jobs.orders"]


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


def reaped(fleet: Fleet, instance: dg.DagsterInstance) -> str:
    with dg.build_sensor_context(instance=instance, resources={"fleet": fleet}) as context:
        return str(sensor_of(fleet, "dead_runs")(context))


def status_of(instance: dg.DagsterInstance, run_id: str) -> DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def test_only_runs_with_a_dead_process_are_reported_as_failed(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    dead = a_run(fleet, instance, DagsterRunStatus.STARTED, **{HOLDER_TAG: a_holder(socket.gethostname())})
    elsewhere = a_run(fleet, instance, DagsterRunStatus.STARTED, **{HOLDER_TAG: a_holder("another machine")})
    starting = a_run(fleet, instance, DagsterRunStatus.STARTED)
    assert "2 runs of this fleet are started; 1 of them were dead" in reaped(fleet, instance)
    assert {run_id: status_of(instance, run_id) for run_id in (dead, elsewhere, starting)} == {
        dead: DagsterRunStatus.FAILURE,
        elsewhere: DagsterRunStatus.STARTED,
        starting: DagsterRunStatus.STARTED,
    }


def test_only_the_lease_of_a_dead_run_is_released(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    tags = {HOLDER_TAG: a_holder(socket.gethostname())}
    a_run(fleet, instance, DagsterRunStatus.STARTED, **tags)
    lease.acquire(flights.storage, "gc", run="x", holder=tags[HOLDER_TAG], clock=SystemClock())
    reaped(fleet, instance)
    with lease.held(flights.storage, "gc", run="y", holder="a person", clock=SystemClock()) as held:
        a_run(fleet, instance, DagsterRunStatus.STARTED, **tags)
        reaped(fleet, instance)
        held.require()


def test_an_unreadable_lease_does_not_keep_a_dead_run_active(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    dead = a_run(fleet, instance, DagsterRunStatus.STARTED, **{HOLDER_TAG: a_holder(socket.gethostname())})
    flights.storage.create(names.lease(1), b"{")
    reaped(fleet, instance)
    assert status_of(instance, dead) is DagsterRunStatus.FAILURE


def test_a_failed_run_is_reported_with_its_query_its_file_and_the_next_command(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
    webhook: tuple[str, list[dict[str, str]]],
    fleet: Fleet,
) -> None:
    url, told = webhook
    broken = flights.stores[0].changelog(flights.versions[9][0])
    flights.storage.delete([broken])
    result = definitions.resolve_job_def("maintain_query").execute_in_process(
        partition_key="flights", instance=instance, raise_on_error=False
    )
    context = dg.build_run_status_sensor_context(
        sensor_name="notify_on_failure",
        dagster_instance=instance,
        dagster_run=result.dagster_run,
        dagster_event=result.get_run_failure_event(),
        resources={"notifier": Notifier(webhook=url)},
    ).for_run_failure()
    assert sensor_of(fleet, "notify_on_failure")(context) is None
    (message,) = told
    assert message["text"].startswith("maintain_query of flights failed")
    assert f"lineage_is_gapless: {broken}" in message["text"], "the check and the file"
    assert message["text"].endswith(f"Next: statekeeper --config {fleet.config_file} audit flights")


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that records the messages that it receives."""
    told: list[dict[str, str]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", told
    server.shutdown()
    server.server_close()


def test_failures_are_sent_to_the_webhook_and_always_logged(
    webhook: tuple[str, list[dict[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    url, told = webhook
    assert Notifier(webhook=url).notify("it failed") is None
    assert told == [{"text": "it failed"}]
    assert Notifier().notify("only the log") is None
    assert "only the log" in caplog.text
    assert "could not be called" in (Notifier(webhook="http://127.0.0.1:1/").notify("nobody listens") or "")
    assert "not an http URL" in (Notifier(webhook="file:///etc/passwd").notify("no URL") or "")


def test_a_query_is_due_when_its_replay_exceeds_the_restore_target(
    fleet: Fleet, configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    examined(instance)
    configuration.write_text(f'{configuration.read_text()}\n[roots.flights.snapshot]\nrestore_target = "10s"\n')
    figures = {"changelogs_before": 20, "restore_seconds_before": 50.0, "restore_seconds_after": 1.0, "stores": 2}
    instance.report_runless_asset_event(
        dg.AssetMaterialization("snapshot", partition="flights", metadata={"figures": metadata.figures(figures)})
    )
    a_run(fleet, instance, DagsterRunStatus.SUCCESS)
    first = tick(fleet, instance, Cursor({"flights": Asked(9, 1, 0.0)}).encoded())
    assert runs_of(first) == []
    limit = remembered(first).asked["flights"].versions
    assert limit is not None
    flights.grow(limit - 1)
    assert runs_of(tick(fleet, instance, first.cursor)) == []
    flights.grow(1)
    (request,) = runs_of(tick(fleet, instance, first.cursor))
    assert "exceeds the restore target" in request.tags[REASON_TAG]
