"""The sensors, called as the daemon calls them: what they ask for, what they remember, what they say."""

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

from assets import due, sensors
from assets.due import Asked, Cursor
from assets.partitions import QUERIES, QUERY_SET, QUERY_TAG
from assets.sensors import changelog_tail, dead_runs, notify_on_failure
from resources.fleet import Fleet
from resources.notifier import Notifier
from resources.worker import HOLDER_TAG, HOST_TAG, Worker
from statestore.clock import SystemClock
from statestore.format import names
from statestore.maintenance import lease
from tests.assets.conftest import grown
from tests.support.checkpoints import Checkpoint


@pytest.fixture
def fleet(configuration: Path, tmp_path: Path) -> Fleet:
    return Fleet(config_file=str(configuration), scratch=str(tmp_path / "scratch"), worker=Worker())


def tick(fleet: Fleet, instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    with dg.build_sensor_context(instance=instance, cursor=cursor, resources={"fleet": fleet}) as context:
        found = changelog_tail(context)
    assert isinstance(found, dg.SensorResult)
    return found


def a_run(instance: dg.DagsterInstance, status: DagsterRunStatus, query: str = "flights", **tags: str) -> str:
    run = instance.create_run_for_job(
        job_def=dg.GraphDefinition(name="maintain_query").to_job(), status=status, tags={QUERY_TAG: query, **tags}
    )
    return run.run_id


def remembered(result: dg.SensorResult) -> Cursor:
    cursor = due.parse(result.cursor)
    assert cursor is not None
    return cursor


def why(result: dg.SensorResult) -> str:
    assert result.skip_reason is not None
    return str(result.skip_reason.skip_message if isinstance(result.skip_reason, dg.SkipReason) else result.skip_reason)


def test_before_the_first_batch_it_says_what_it_waits_for(fleet: Fleet, instance: dg.DagsterInstance) -> None:
    result = tick(fleet, instance)
    assert result.run_requests == []
    assert "no query has a committed batch yet; 1 are waited for" in why(result)


def test_a_new_query_becomes_a_partition_and_a_run_in_the_same_tick(
    fleet: Fleet, configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    grown(configuration.parent, "jobs/orders/state", 2)
    result = tick(fleet, instance)
    assert [(r.partition_key, r.run_key) for r in result.run_requests or ()] == [
        ("flights", "maintain:flights@9#1"),
        ("jobs.orders", "maintain:jobs.orders@2#1"),
    ]
    (added,) = result.dynamic_partitions_requests or ()
    assert added == QUERIES.build_add_request(["jobs.orders"]), "flights is known"
    assert {name: one.version for name, one in remembered(result).asked.items()} == {"flights": 9, "jobs.orders": 2}


def test_a_tick_without_new_commits_asks_for_nothing_and_says_the_figures(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    first = tick(fleet, instance)
    a_run(instance, DagsterRunStatus.SUCCESS)
    flights.grow(3)
    second = tick(fleet, instance, first.cursor)
    assert not second.run_requests
    assert "1 queries, none is due; furthest is flights: 3 new versions of 4" in why(second)
    flights.grow(1)
    third = tick(fleet, instance, second.cursor)
    assert [request.run_key for request in third.run_requests or ()] == ["maintain:flights@13#1"]


def test_runs_do_not_pile_up_behind_one_that_is_at_work(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    cursor = Cursor({"flights": Asked(1, 1, 0.0)}).encoded()
    for status in (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED):
        run_id = a_run(instance, status)
        result = tick(fleet, instance, cursor)
        assert not result.run_requests
        assert "1 at work" in why(result)
        instance.delete_run(run_id)


def test_a_failed_run_of_a_query_that_stands_still_is_asked_for_again(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    a_run(instance, DagsterRunStatus.FAILURE)
    result = tick(fleet, instance, Cursor({"flights": Asked(9, 1, 0.0)}).encoded())
    assert [request.run_key for request in result.run_requests or ()] == ["maintain:flights@9#2"]


def test_no_more_runs_are_asked_for_in_a_tick_than_it_has_time_for_and_the_rest_comes_next(
    fleet: Fleet,
    configuration: Path,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grown(configuration.parent, "jobs/orders/state", 2)
    monkeypatch.setattr(sensors, "MOST_RUNS_A_TICK", 1)
    first = tick(fleet, instance)
    assert [request.partition_key for request in first.run_requests or ()] == ["flights"], "the furthest first"
    a_run(instance, DagsterRunStatus.SUCCESS)
    second = tick(fleet, instance, first.cursor)
    assert [request.partition_key for request in second.run_requests or ()] == ["jobs.orders"]


def test_a_cursor_of_another_release_begins_anew(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    assert tick(fleet, instance, '{"format": 99}').run_requests == tick(fleet, instance).run_requests


def test_a_query_that_is_gone_is_forgotten_after_its_delay_and_one_that_comes_back_is_not(
    fleet: Fleet, configuration: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = configuration.parent / "jobs/orders"
    grown(configuration.parent, "jobs/orders/state", 2)
    instance.add_dynamic_partitions(QUERY_SET, ["jobs.orders"])
    first = tick(fleet, instance)
    orders.rename(orders.with_name("hidden away"))
    second = tick(fleet, instance, first.cursor)
    assert "jobs.orders" in remembered(second).gone_since_seconds
    assert second.dynamic_partitions_requests == []
    orders.with_name("hidden away").rename(orders)
    assert remembered(tick(fleet, instance, second.cursor)).gone_since_seconds == {}
    shutil.rmtree(orders)
    gone = tick(fleet, instance, first.cursor)
    cursor = remembered(gone)
    long_ago = Cursor(cursor.asked, {"jobs.orders": cursor.gone_since_seconds["jobs.orders"] - 601})
    last = tick(fleet, instance, long_ago.encoded())
    assert last.dynamic_partitions_requests == [QUERIES.build_delete_request(["jobs.orders"])]
    assert "jobs.orders" not in remembered(last).asked


def test_a_parent_that_cannot_be_listed_makes_nobody_vanish(
    fleet: Fleet, configuration: Path, instance: dg.DagsterInstance
) -> None:
    configuration.write_text(configuration.read_text().replace('url = "jobs"', 'url = "ftp://nowhere/jobs"'))
    instance.add_dynamic_partitions(QUERY_SET, ["jobs.orders"])
    assert remembered(tick(fleet, instance)).gone_since_seconds == {}


def reaped(fleet: Fleet, instance: dg.DagsterInstance) -> str:
    with dg.build_sensor_context(instance=instance, resources={"fleet": fleet}) as context:
        return str(dead_runs(context))


def status_of(instance: dg.DagsterInstance, run_id: str) -> DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def test_a_run_whose_process_is_dead_is_reported_as_failed_and_no_other(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    dead = a_run(instance, DagsterRunStatus.STARTED, **{HOST_TAG: socket.gethostname()})
    elsewhere = a_run(instance, DagsterRunStatus.STARTED, **{HOST_TAG: "another machine"})
    starting = a_run(instance, DagsterRunStatus.STARTED)
    assert "3 runs were at work, of which 1 were dead" in reaped(fleet, instance)
    assert {run_id: status_of(instance, run_id) for run_id in (dead, elsewhere, starting)} == {
        dead: DagsterRunStatus.FAILURE,
        elsewhere: DagsterRunStatus.STARTED,
        starting: DagsterRunStatus.STARTED,
    }


def test_the_lease_of_a_dead_run_is_free_at_once_and_anybody_elses_stays(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    tags = {HOST_TAG: socket.gethostname(), HOLDER_TAG: "the dead one"}
    a_run(instance, DagsterRunStatus.STARTED, **tags)
    lease.acquire(flights.storage, "gc", run="x", holder="the dead one", clock=SystemClock())
    reaped(fleet, instance)
    with lease.held(flights.storage, "gc", run="y", holder="a person", clock=SystemClock()) as held:
        a_run(instance, DagsterRunStatus.STARTED, **tags)
        reaped(fleet, instance)
        held.require()


def test_a_lease_that_cannot_be_read_does_not_keep_a_dead_run_alive(
    fleet: Fleet, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    dead = a_run(instance, DagsterRunStatus.STARTED, **{HOST_TAG: socket.gethostname(), HOLDER_TAG: "the dead one"})
    flights.storage.create(names.lease(1), b"{")
    reaped(fleet, instance)
    assert status_of(instance, dead) is DagsterRunStatus.FAILURE


def test_a_failed_run_is_told_with_its_query_and_what_went_wrong(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
    webhook: tuple[str, list[dict[str, str]]],
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
    assert notify_on_failure(context) is None
    (message,) = told
    assert message["text"].startswith("maintain_query of flights failed")
    assert "lineage_is_gapless" in message["text"]


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that remembers what it was told."""
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


def test_a_person_is_told_by_the_webhook_and_always_in_the_log(
    webhook: tuple[str, list[dict[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    url, told = webhook
    assert Notifier(webhook=url).tell("it failed") is None
    assert told == [{"text": "it failed"}]
    assert Notifier().tell("only the log") is None
    assert "only the log" in caplog.text
    assert "could not be told" in (Notifier(webhook="http://127.0.0.1:1/").tell("nobody listens") or "")
    assert "no http URL" in (Notifier(webhook="file:///etc/passwd").tell("no URL") or "")
