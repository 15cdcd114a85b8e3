"""The job `maintain_queries` on real checkpoints: one run for many queries, and each query has its own result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from statekeeper.assets import memory, visits
from statekeeper.assets.definitions import build
from statekeeper.assets.maintenance import run_config
from statekeeper.assets.names import Names
from statekeeper.assets.partitions import QUERY_SET, STORE_SET
from statekeeper.assets.progress import UNFINISHED_TAG
from statekeeper.assets.visits import LEFT_TO_SPARK
from statekeeper.resources.fleet import FLEET_TAG, Fleet
from statekeeper.resources.worker import TOLD_TAG, Worker
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.rounds import delivery
from statekeeper.statestore.maintenance.rounds.due import Asked, Cursor
from statekeeper.statestore.maintenance.rounds.notices import REMINDER_SECONDS
from statekeeper.statestore.storage import open_storage
from tests.assets.conftest import grown, reaped, sensor_of
from tests.support.checkpoints import Checkpoint
from tests.support.running import REPOSITORY
from tests.support.s3_server import S3Server
from tests.support.webhooks import Webhook
from tests.support.written import Written, written_checkpoints

ASSETS = ("snapshot", "lineage", "retention")
EVERY = ["flights", "jobs.clicks", "jobs.orders"]


@pytest.fixture
def fleet(configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint) -> dict[str, Checkpoint]:
    """Three queries."""
    instance.add_dynamic_partitions(QUERY_SET, EVERY)
    folder = configuration.parent
    return {
        "flights": flights,
        **{f"jobs.{name}": grown(folder, f"jobs/{name}/state", 9) for name in ("clicks", "orders")},
    }


def run(
    definitions: dg.Definitions, instance: dg.DagsterInstance, *queries: str, succeeds: bool = True
) -> dg.ExecuteInProcessResult:
    config = run_config(Names(fleet=""), queries) if queries else None
    done = definitions.resolve_job_def("maintain_queries").execute_in_process(
        config, instance=instance, raise_on_error=False
    )
    assert done.success is succeeds
    return done


def broken(checkpoint: Checkpoint) -> tuple[str, bytes]:
    """Delete the newest changelog of a store. Returns its path and its bytes."""
    path = checkpoint.stores[0].changelog(checkpoint.versions[-1][0])
    body = checkpoint.storage.read(path)
    checkpoint.storage.delete([path])
    return path, body


def mended(checkpoint: Checkpoint, lost: tuple[str, bytes]) -> None:
    checkpoint.storage.create(*lost)


def materialized(result: dg.ExecuteInProcessResult) -> dict[str, list[str | None]]:
    """The assets that the run materialized, by query, in the order of the events."""
    found: dict[str, list[str | None]] = {}
    for event in result.all_events:
        if (
            event.is_step_materialization
            and (made := event.step_materialization_data.materialization).partition in EVERY
        ):
            found.setdefault(str(made.partition), []).append(made.asset_key.path[-1])
    return found


def red(result: dg.ExecuteInProcessResult) -> set[tuple[str | None, str]]:
    """The query, None for the fleet, and the name of each red check."""
    evaluated = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    events = [one.asset_check_evaluation_data for one in result.all_events if one.event_type is evaluated]
    return {(one.partition, one.check_name) for one in events if not one.passed}


def tags(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> dict[str, str]:
    found = instance.get_run_by_id(result.run_id)
    assert found is not None
    return dict(found.tags)


def with_webhook(configuration: Path, webhook: Webhook) -> None:
    configuration.write_text(f'{configuration.read_text()}\n[teams.default]\nwebhook = "{webhook.url}"\n')


def changes(webhook: Webhook) -> list[tuple[str, str, str]]:
    return [(one["subject"], one["before"], one["status"]) for one in webhook.bodies]


def test_a_run_fetches_no_sst_file_that_an_earlier_run_on_the_same_disk_has_kept(
    definitions: dg.Definitions,
    configuration: Path,
    instance: dg.DagsterInstance,
    s3_server: S3Server,
    tmp_path: Path,
) -> None:
    bucket, options = s3_server.make_bucket(), {**s3_server.options, "hedge": "false"}
    checkpoint = Checkpoint(open_storage(f"s3://{bucket}/root", options=options), tmp_path / "job")
    storage = ", ".join(f'{key} = "{value}"' for key, value in options.items())
    configuration.write_text(
        f'[defaults]\nsnapshot = {{ changelogs = 3 }}\n[roots.flights]\nurl = "s3://{bucket}/root"\n'
        f"storage = {{ {storage} }}\n"
    )
    fetched = []
    for _ in range(2):
        checkpoint.grow(3)
        fetched.append(s3_server.fetched(bucket, lambda: run(definitions, instance, "flights")))
    assert fetched[1]["sst"] == 0
    assert len(list((tmp_path / "scratch").rglob("kept-tables/*/*.sst"))) == 2 * len(checkpoint.stores)
    checkpoint.assert_snapshots_are_right(tmp_path / "fresh")


def test_one_run_maintains_many_queries_and_each_has_its_materializations_and_checks(
    definitions: dg.Definitions, instance: dg.DagsterInstance, fleet: dict[str, Checkpoint], tmp_path: Path
) -> None:
    result = run(definitions, instance, *EVERY)
    assert materialized(result) == {name: list(ASSETS) for name in EVERY}
    assert red(result) == set()
    assert tags(instance, result)[UNFINISHED_TAG] == "none"
    for asset in ASSETS:
        assert instance.get_materialized_partitions(dg.AssetKey(asset)) == set(EVERY)
    stores = set(instance.get_dynamic_partitions(STORE_SET))
    assert stores == {f"{query}:00-0000{number}" for query in EVERY for number in (0, 1)}
    assert instance.get_materialized_partitions(dg.AssetKey("state_store")) == stores
    evaluations = result.get_asset_check_evaluations() or [
        one.asset_check_evaluation_data
        for one in result.all_events
        if one.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ]
    of_fleet = {one.check_name: one.description for one in evaluations if one.partition is None}
    assert set(of_fleet.values()) == {"The check passes for all queries (3)."}
    assert len(of_fleet) == 5
    for name, checkpoint in fleet.items():
        checkpoint.assert_right(tmp_path / name)


def test_a_broken_query_blocks_its_own_retention_and_the_others_are_maintained(
    definitions: dg.Definitions, instance: dg.DagsterInstance, fleet: dict[str, Checkpoint]
) -> None:
    run(definitions, instance, *EVERY)
    for checkpoint in fleet.values():
        checkpoint.grow(4)
    lost = broken(fleet["jobs.clicks"])
    before = {name: len(one.storage.list("state")) for name, one in fleet.items()}
    result = run(definitions, instance, *EVERY)
    assert materialized(result)["jobs.clicks"] == ["snapshot", "lineage"]
    assert materialized(result)["flights"] == materialized(result)["jobs.orders"] == list(ASSETS)
    assert red(result) >= {("jobs.clicks", "lineage_is_gapless"), (None, "lineage_is_gapless")}
    assert {query for query, _ in red(result)} == {"jobs.clicks", None}
    assert tags(instance, result)[UNFINISHED_TAG] == "1"
    assert len(fleet["jobs.orders"].storage.list("state")) < before["jobs.orders"], "retention deleted files"
    mended(fleet["jobs.clicks"], lost)
    again = run(definitions, instance, "jobs.clicks")
    assert red(again) == set(), "the verdict counts the queries of other runs, and they are green"


def test_the_verdict_of_a_run_names_a_red_query_of_an_earlier_run(
    definitions: dg.Definitions, instance: dg.DagsterInstance, fleet: dict[str, Checkpoint]
) -> None:
    broken(fleet["flights"])
    run(definitions, instance, "flights")
    assert {one for one in red(run(definitions, instance, "jobs.orders")) if one[1] == "lineage_is_gapless"} == {
        (None, "lineage_is_gapless")
    }


@pytest.mark.parametrize("where", ["visit", "shown"])
def test_a_defect_in_one_visit_leaves_the_results_of_the_others(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    fleet: dict[str, Checkpoint],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    kept = getattr(visits, where)

    def defective(first: object, *given: object, **named: object) -> object:
        if getattr(first, "name", first) == "jobs.clicks":
            raise ZeroDivisionError("a defect")
        return kept(first, *given, **named)

    monkeypatch.setattr(visits, where, defective)
    result = run(definitions, instance, *EVERY)
    assert set(materialized(result)) == {"flights", "jobs.orders"}
    assert tags(instance, result)[UNFINISHED_TAG] == "1"


def test_a_query_that_another_maintainer_holds_is_left_to_the_next_run(
    definitions: dg.Definitions, instance: dg.DagsterInstance, fleet: dict[str, Checkpoint]
) -> None:
    with lease.held(fleet["flights"].storage, "gc", run="x", holder="host:1", clock=SystemClock()):
        result = run(definitions, instance, *EVERY)
    assert materialized(result)["flights"] == ["lineage"]
    assert tags(instance, result)[UNFINISHED_TAG] == "0"


def test_without_a_list_a_run_maintains_all_queries(
    definitions: dg.Definitions, instance: dg.DagsterInstance, fleet: dict[str, Checkpoint]
) -> None:
    assert set(materialized(run(definitions, instance))) == set(EVERY)


def test_a_run_with_many_failed_queries_has_a_short_tag(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    queries = [f"{'a' * 100}{number}" for number in range(100)]
    found = tags(instance, run(definitions, instance, *queries))
    assert len(found[UNFINISHED_TAG]) < 300


# -- what people are told -------------------------------------------------------------------------------------------------


def test_each_change_of_the_status_of_a_query_is_told_once_with_its_command_and_its_run(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    configuration: Path,
    fleet: dict[str, Checkpoint],
    webhook: Webhook,
) -> None:
    with_webhook(configuration, webhook)
    lost = broken(fleet["jobs.clicks"])
    first = run(definitions, instance, *EVERY)
    (told,) = webhook.bodies
    assert (told["subject"], told["before"], told["status"]) == ("jobs.clicks", "OK", "ERROR")
    assert lost[0] in told["problem"]
    assert told["problem"].endswith(f"Next: statekeeper --config {configuration} audit jobs.clicks")
    assert told["run"] == first.run_id
    for _ in range(2):
        run(definitions, instance, *EVERY)
    assert len(webhook.bodies) == 1, "not at each attempt"
    mended(fleet["jobs.clicks"], lost)
    run(definitions, instance, "jobs.clicks")
    run(definitions, instance, "jobs.clicks")
    assert changes(webhook)[1:] == [("jobs.clicks", "ERROR", "OK")]


def test_a_query_that_stays_broken_is_told_again_once_a_day(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    configuration: Path,
    fleet: dict[str, Checkpoint],
    webhook: Webhook,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_webhook(configuration, webhook)
    broken(fleet["flights"])
    run(definitions, instance, "flights")
    # The second night begins with this query earlier than the first.
    ahead = SystemClock().now_seconds() + REMINDER_SECONDS - 600
    monkeypatch.setattr(memory.SystemClock, "now_seconds", lambda _: ahead)
    for _ in range(2):
        run(definitions, instance, "flights")
    assert changes(webhook) == [("flights", "OK", "ERROR"), ("flights", "ERROR", "ERROR")]
    assert [one["is_reminder"] for one in webhook.bodies] == [False, True]


def test_a_notice_that_no_channel_accepted_is_sent_again_at_the_next_visit(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    configuration: Path,
    fleet: dict[str, Checkpoint],
    webhook: Webhook,
) -> None:
    with_webhook(configuration, webhook)
    broken(fleet["flights"])
    webhook.status = 503
    run(definitions, instance, "flights")
    webhook.status = 200
    for _ in range(2):
        run(definitions, instance, "flights")
    assert changes(webhook) == [("flights", "OK", "ERROR")] * 2


def test_a_webhook_that_hangs_costs_one_wait_in_a_run(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    configuration: Path,
    fleet: dict[str, Checkpoint],
    webhook: Webhook,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "_TIMEOUT_SECONDS", 0.1)
    with_webhook(configuration, webhook)
    webhook.hangs = True
    for name in ("jobs.clicks", "jobs.orders"):
        broken(fleet[name])
    for runs in (1, 2):
        run(definitions, instance, "jobs.clicks", "jobs.orders")
        assert len(webhook.bodies) == runs


def test_a_query_that_spark_maintains_is_audited_and_its_run_succeeds(
    definitions: dg.Definitions, instance: dg.DagsterInstance, configuration: Path
) -> None:
    (archive,) = (one for one in written_checkpoints("hdfs") if one.stem.endswith("hdfs-aggregation"))
    written = Written.unpacked(archive, configuration.parent / "spark")
    written.checkpoint.rename(configuration.parent / "flights")
    by_hand = definitions.resolve_job_def("maintain_query")
    runs = (
        run(definitions, instance, "flights"),
        by_hand.execute_in_process(instance=instance, partition_key="flights", raise_on_error=False),
    )
    for result in runs:
        assert result.success
        assert materialized(result) == {"flights": ["lineage"]}
        assert red(result) == set()
    assert tags(instance, runs[0])[UNFINISHED_TAG] == "none"
    (shown,) = instance.fetch_materializations(dg.AssetKey("lineage"), limit=1).records
    assert shown.asset_materialization is not None
    assert shown.asset_materialization.metadata["maintained_by"].value == LEFT_TO_SPARK


def test_an_error_that_may_pass_is_told_if_two_consecutive_visits_find_it(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    configuration: Path,
    fleet: dict[str, Checkpoint],
    webhook: Webhook,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_webhook(configuration, webhook)

    def unreachable(*_: object) -> None:
        raise StorageError("does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Fleet, "open", unreachable)
        run(definitions, instance, "flights")
        assert webhook.bodies == []
        run(definitions, instance, "flights")
    assert changes(webhook) == [("flights", "OK", "ERROR")]


@pytest.mark.parametrize("asset", ASSETS)
def test_a_person_who_materializes_one_asset_gets_only_its_events_and_nobody_is_told(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    configuration: Path,
    fleet: dict[str, Checkpoint],
    webhook: Webhook,
    asset: str,
) -> None:
    with_webhook(configuration, webhook)
    flights = fleet["flights"]
    run(definitions, instance, "flights")
    flights.grow(5)
    before = {entry.path for entry in flights.storage.list("state")}
    job = definitions.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(partition_key="flights", instance=instance, asset_selection=[dg.AssetKey(asset)])
    assert materialized(result) == {"flights": [asset]}
    after = {entry.path for entry in flights.storage.list("state")}
    assert bool(after - before) == (asset == "snapshot"), "only snapshot adds files"
    assert bool(before - after) == (asset == "retention"), "only retention deletes files"
    assert webhook.bodies == []


def test_a_launch_by_hand_and_a_run_for_many_queries_share_what_people_know(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    configuration: Path,
    fleet: dict[str, Checkpoint],
    webhook: Webhook,
) -> None:
    with_webhook(configuration, webhook)
    broken(fleet["flights"])
    run(definitions, instance, *EVERY)
    by_hand = definitions.resolve_job_def("maintain_query")
    assert not by_hand.execute_in_process(partition_key="flights", instance=instance, raise_on_error=False).success
    assert changes(webhook) == [("flights", "OK", "ERROR")]


def test_a_memory_of_another_release_is_ignored(instance: dg.DagsterInstance) -> None:
    for value in ({"format": 99}, {"format": 1, "told": 3}, [1]):
        shown = {"memory": dg.MetadataValue.json(value)}
        instance.report_runless_asset_event(dg.AssetObservation("commit_log", partition="flights", metadata=shown))
        assert memory.read(instance, dg.AssetKey("commit_log"), "flights") == memory.Known()


def examine(definitions: dg.Definitions, instance: dg.DagsterInstance, *, succeeds: bool = True) -> None:
    job = definitions.resolve_job_def("refresh_fleet_health")
    assert job.execute_in_process(instance=instance, raise_on_error=False).success is succeeds


def test_a_checkpoint_that_is_gone_is_told_once_and_so_is_its_return_or_its_removal(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    configuration: Path,
    fleet: dict[str, Checkpoint],
    webhook: Webhook,
) -> None:
    with_webhook(configuration, webhook)
    examine(definitions, instance)
    assert webhook.bodies == []
    flights = configuration.parent / "flights"
    flights.rename(flights.with_name("hidden"))
    for _ in range(2):
        examine(definitions, instance)
    (told,) = webhook.bodies
    assert (told["subject"], told["status"], "was deleted or moved" in told["problem"]) == ("flights", "ERROR", True)
    assert told["problem"].endswith(f"Next: statekeeper --config {configuration} config check flights")
    flights.with_name("hidden").rename(flights)
    for _ in range(2):
        examine(definitions, instance)
    assert changes(webhook)[1:] == [("flights", "ERROR", "OK")]
    flights.rename(flights.with_name("hidden"))
    examine(definitions, instance)
    configuration.write_text(configuration.read_text().replace('[roots.flights]\nurl = "flights"', ""))
    instance.delete_dynamic_partition(QUERY_SET, "flights")  # the sensor does this
    for _ in range(2):
        examine(definitions, instance)
    assert changes(webhook)[2:] == [("flights", "OK", "ERROR"), ("flights", "ERROR", "OK")]


def test_an_expected_query_without_a_batch_is_a_warning_until_a_visit_finds_it_healthy(
    definitions: dg.Definitions, instance: dg.DagsterInstance, configuration: Path, webhook: Webhook
) -> None:
    with_webhook(configuration, webhook)
    # The parent has a folder, so it is no subject of a message.
    (configuration.parent / "jobs" / "new").mkdir(parents=True)
    for _ in range(2):
        examine(definitions, instance)
    assert changes(webhook) == [("flights", "OK", "WARN")]
    grown(configuration.parent, "flights", 9)
    run(definitions, instance, "flights")
    examine(definitions, instance)
    assert changes(webhook)[1:] == [("flights", "WARN", "OK")]


def test_a_root_that_cannot_be_reached_is_told_at_the_second_look(
    definitions: dg.Definitions, instance: dg.DagsterInstance, configuration: Path, webhook: Webhook
) -> None:
    with_webhook(configuration, webhook)
    (configuration.parent / "jobs" / "new").mkdir(parents=True)
    configuration.write_text(configuration.read_text().replace('url = "flights"', 'url = "ftp://nowhere/flights"'))
    examine(definitions, instance)
    assert webhook.bodies == []
    for _ in range(2):
        examine(definitions, instance)
    assert changes(webhook) == [("flights", "OK", "ERROR")]


def test_an_invalid_configuration_is_told_once_to_the_webhook_and_the_run_fails(
    instance: dg.DagsterInstance,
    configuration: Path,
    fleet: dict[str, Checkpoint],
    webhook: Webhook,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STATEKEEPER_WEBHOOK", webhook.url)
    definitions = build({"STATEKEEPER_CONFIG": str(configuration), "STATEKEEPER_WEBHOOK": webhook.url})
    valid = configuration.read_text()
    configuration.write_text("[roots")
    for _ in range(2):
        examine(definitions, instance, succeeds=False)
    (text,) = webhook.texts
    assert text.startswith(f"{configuration} (run: ")
    assert "): OK -> ERROR: " in text.replace("&gt;", ">")
    (newest, _) = instance.get_runs()
    assert TOLD_TAG in newest.tags, "the sensor of failed runs does not tell it again"
    configuration.write_text(valid)
    examine(definitions, instance)
    assert webhook.texts[1:] == [
        text for text in webhook.texts[1:] if "ERROR -> OK: the configuration is valid" in text
    ]
    assert len(webhook.texts) == 2


# -- a killed run ---------------------------------------------------------------------------------------------------------

RUN = """
import sys
from statekeeper.assets import maintenance
from statekeeper.assets.definitions import build
import dagster as dg

maintenance.WORKERS = 1  # the queries one after the other
configuration, home, *queries = sys.argv[1:]
names = maintenance.Names(fleet="")
job = build({"STATEKEEPER_CONFIG": configuration}).resolve_job_def("maintain_queries")
with dg.DagsterInstance.from_config(home) as instance:
    job.execute_in_process(maintenance.run_config(names, queries), instance=instance)
"""


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(home)) as made:
        made.add_dynamic_partitions(QUERY_SET, EVERY)
        yield made


def test_after_a_run_is_killed_only_its_unfinished_queries_are_requested_and_its_notice_is_sent_again_with_its_id(
    definitions: dg.Definitions,
    on_disk: dg.DagsterInstance,
    configuration: Path,
    fleet: dict[str, Checkpoint],
    webhook: Webhook,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_webhook(configuration, webhook)
    broken(fleet["jobs.clicks"])
    webhook.hangs = True
    arguments = (str(configuration), on_disk.root_directory, *EVERY)
    process = subprocess.Popen([sys.executable, "-c", RUN, *arguments], cwd=REPOSITORY, start_new_session=True)
    assert webhook.received.wait(60), "the notice of the second query"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    webhook.hangs = False

    resource = Fleet(config_file=str(configuration), scratch=str(tmp_path / "scratch"), worker=Worker())
    reaped(resource, on_disk, monkeypatch)
    (dead,) = on_disk.get_runs()
    assert (dead.status, dead.tags[FLEET_TAG]) == (DagsterRunStatus.FAILURE, str(configuration))
    asked = Cursor({name: Asked(9, 1, 0.0) for name in EVERY})
    with dg.build_sensor_context(instance=on_disk, cursor=asked.encoded(), resources={"fleet": resource}) as context:
        requests = sensor_of(resource, "changelog_tail")(context).run_requests
    (request,) = [one for one in requests if one.job_name == "maintain_queries"]
    assert request.run_config == run_config(Names(fleet=""), ["jobs.clicks", "jobs.orders"]), "flights is finished"
    result = definitions.resolve_job_def("maintain_queries").execute_in_process(request.run_config, instance=on_disk)
    assert materialized(result) == {"jobs.clicks": ["snapshot", "lineage"], "jobs.orders": list(ASSETS)}
    assert changes(webhook) == [("jobs.clicks", "OK", "ERROR")] * 2
    assert [one["is_repeated"] for one in webhook.bodies] == [False, True]
    assert len({one["id"] for one in webhook.bodies}) == 1
    job = definitions.resolve_job_def("maintain_queries")
    job.execute_in_process(run_config(Names(fleet=""), ["jobs.clicks"]), instance=on_disk)
    assert len(webhook.bodies) == 2
