"""Two fleets as guests in a company's Dagster: the company's project and instance, and no daemon.

The company has packages `assets`, `resources` and `pipelines`, and definitions with the names that the fleets have in this
repository's own Dagster. Both fleets have a query `clicks`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml  # type: ignore[import-untyped]
from dagster import DagsterRunStatus
from dagster._core.scheduler.instigation import InstigatorType, TickData, TickStatus
from dagster._core.test_utils import create_run_for_test
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import PythonFileTarget

from statekeeper.assets import host
from statekeeper.assets.partitions import QUERY_TAG
from statekeeper.dagster import build, build_definitions
from statekeeper.resources.fleet import FLEET_TAG
from statekeeper.resources.worker import BEAT_TAG, HOLDER_TAG, holder
from tests.assets.conftest import grown, ticked
from tests.support import companies
from tests.support.checkpoints import Checkpoint
from tests.support.companies import ASSETS, HOME, PIPELINES, RESOURCES, files
from tests.support.entry_points import ROCKSDB
from tests.support.running import REPOSITORY
from tests.support.unpacked import unpacked

CONFIGURATION = """
[defaults]
snapshot = { changelogs = 4 }
retention = { versions = 3, grace = "0s" }

[roots.clicks]
url = "clicks"
"""

PROJECT = """
from pathlib import Path

import dagster as dg
from assets import clicks_stream, report, snapshot
from pipelines import changelog_tail, maintain_query, nightly_sweep, prune_history
from resources import Warehouse

from statekeeper.dagster import build_definitions

HERE = Path(__file__).parent

def translated(spec: dg.AssetSpec) -> dg.AssetSpec:
    return spec.replace_attributes(key=spec.key.with_prefix("streams")).merge_attributes(tags={"cost-center": "17"})

defs = dg.Definitions.merge(
    dg.Definitions(
        assets=[clicks_stream, report, snapshot],
        jobs=[maintain_query, prune_history],
        schedules=[nightly_sweep],
        sensors=[changelog_tail],
        resources={"fleet": Warehouse(name="cars"), "notifier": Warehouse(name="mail")},
    ),
    build_definitions(HERE / "payments" / "statekeeper.toml", name="payments", streaming_query="kafka/clicks"),
    build_definitions(
        HERE / "ads" / "statekeeper.toml",
        name="ads",
        key_prefix=["marketing", "ads"],
        group="marketing",
        owners=["team:ads"],
        translate=translated,
        rewrites=False,
    ),
)
"""


@dataclass
class Company(companies.Company):
    """A company with two fleets. `payments`: the checkpoint of one of them."""

    payments: Checkpoint

    def partitions(self) -> dict[str, list[str]]:
        """The partition sets that could be of a fleet or of the company."""
        prefixes, sets = ("", "payments_", "ads_"), ("streaming_query", "state_store")
        named = [f"{prefix}{name}" for prefix in prefixes for name in sets]
        return {name: found for name in named if (found := sorted(self.instance.get_dynamic_partitions(name)))}


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    folder = tmp_path_factory.mktemp("company")
    for package, code in {"assets": ASSETS, "resources": RESOURCES, "pipelines": PIPELINES}.items():
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text(code)
    (folder / "project.py").write_text(PROJECT)
    for fleet in ("payments", "ads"):
        (folder / fleet).mkdir()
        (folder / fleet / "statekeeper.toml").write_text(CONFIGURATION)
    payments = grown(folder / "payments", "clicks", 9)
    unpacked(ROCKSDB, folder / "ads" / "unpacked").rename(folder / "ads" / "clicks")
    home = folder / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(HOME)
    target = PythonFileTarget(str(folder / "project.py"), None, str(folder), "company")
    with (
        pytest.MonkeyPatch.context() as environment,
        dg.DagsterInstance.from_config(str(home)) as instance,
    ):
        environment.setenv("DAGSTER_HOME", str(home))
        with WorkspaceProcessContext(instance, target) as workspace:
            yield Company(folder, instance, workspace, payments)


def test_all_definitions_load_with_their_own_names_and_nothing_of_a_fleet_is_started(company: Company) -> None:
    found = company.ask(
        """query($s: RepositorySelector!) { repositoryOrError(repositorySelector: $s) { __typename
        ... on PythonError { message } ... on Repository { jobs { name } sensors { name sensorState { status } }
        schedules { name scheduleState { status } } allTopLevelResourceDetails { name }
        assetNodes { assetKey { path } groupName owners { ... on TeamAssetOwner { team } } tags { key value }
        opNames dependencyKeys { path } partitionDefinition { name } } } } }""",
        s=company.selector(),
    )
    jobs = {one["name"] for one in found["jobs"] if not one["name"].startswith("__")}
    assert {"maintain_query", "payments_maintain_query", "ads_maintain_query", "payments_rescale_checkpoint"} <= jobs
    assert "ads_rescale_checkpoint" not in jobs, "without rewrites"
    of_company = {"maintain_query", "prune_history"}
    assert all(name.startswith(("payments_", "ads_")) for name in jobs - of_company)
    sensors = {one["name"]: one["sensorState"]["status"] for one in found["sensors"]}
    schedules = {one["name"]: one["scheduleState"]["status"] for one in found["schedules"]}
    assert len(sensors) == 1 + 2 * 3
    assert len(schedules) == 1 + 2 * 10
    assert {name for name, status in (sensors | schedules).items() if status == "RUNNING"} == {"nightly_sweep"}
    resources = {one["name"] for one in found["allTopLevelResourceDetails"]}
    assert resources == {
        "fleet",
        "notifier",
        *(f"{of}_{name}" for of in ("ads", "payments") for name in ("fleet", "notifier")),
    }
    nodes = {"/".join(one["assetKey"]["path"]): one for one in found["assetNodes"]}
    assert {"snapshot", "report", "kafka/clicks", "payments/snapshot", "streams/marketing/ads/snapshot"} <= set(nodes)
    ours = nodes["streams/marketing/ads/lineage"]
    assert (ours["groupName"], ours["owners"]) == ("marketing", [{"team": "ads"}])
    assert {"key": "cost-center", "value": "17"} in ours["tags"]
    assert ours["dependencyKeys"] == [{"path": ["streams", "marketing", "ads", "snapshot"]}]
    assert nodes["payments/lineage"]["groupName"] == "payments"
    assert nodes["payments/commit_log"]["dependencyKeys"] == [{"path": ["kafka", "clicks"]}]
    assert "payments/streaming_query" not in nodes
    sets = {key: one["partitionDefinition"]["name"] for key, one in nodes.items() if one["partitionDefinition"]}
    assert sets["snapshot"] == "streaming_query"
    assert sets["payments/snapshot"] == "payments_streaming_query"
    assert sets["streams/marketing/ads/state_store"] == "ads_state_store"
    ops: dict[str, set[str]] = {}
    for key, one in nodes.items():
        for op in one["opNames"]:
            ops.setdefault(op, set()).add(key.rpartition("/")[0])
    assert {len(prefixes) for prefixes in ops.values()} == {1}, "no op is of two fleets"


def test_a_run_of_one_fleet_maintains_its_query_and_touches_nothing_of_the_others(company: Company) -> None:
    company.instance.add_dynamic_partitions("streaming_query", ["clicks", "north"])
    foreign = {name: a_run(company.instance, "maintain_query", status) for name, status in ENDED_AND_STARTED.items()}
    tick = TickData("company", "changelog_tail", InstigatorType.SENSOR, TickStatus.SKIPPED, 1.0, selector_id="theirs")
    company.instance.create_tick(tick)
    before = files(company.folder / "ads" / "clicks")

    found = company.sensed("payments_changelog_tail")
    assert found["dynamicPartitionsRequests"] == [
        {"partitionKeys": ["clicks"], "partitionsDefName": "payments_streaming_query"}
    ]
    requests = {one["jobName"]: one for one in found["runRequests"]}
    assert set(requests) == {"payments_maintain_queries", "payments_refresh_fleet_health"}
    request = requests["payments_maintain_queries"]
    assert {"key": FLEET_TAG, "value": "payments"} in request["tags"]
    config = yaml.safe_load(request["runConfigYaml"])
    assert config == {"ops": {"payments_visit_queries": {"config": {"queries": ["clicks"]}}}}
    assert company.scheduled("payments_nightly_sweep")["runRequests"] == [], "no partition is known"
    company.ask(
        """mutation($s: RepositorySelector!) { addDynamicPartition(partitionsDefName: "payments_streaming_query",
        partitionKey: "clicks", repositorySelector: $s) { __typename ... on PythonError { message } } }""",
        s=company.selector(),
    )
    (swept,) = company.scheduled("payments_nightly_sweep")["runRequests"]
    assert {"key": FLEET_TAG, "value": "payments"} in swept["tags"]
    assert yaml.safe_load(swept["runConfigYaml"]) == config

    runs = [
        company.launched("payments_maintain_queries", config=config),
        company.launched("payments_maintain_query", {QUERY_TAG: "clicks"}),
    ]
    assert [run.status for run in runs] == [DagsterRunStatus.SUCCESS] * 2
    assert [run.tags[FLEET_TAG] for run in runs] == ["payments"] * 2
    company.payments.assert_right(company.folder / "host")
    clicks = company.instance.get_materialized_partitions(dg.AssetKey(["payments", "retention"]))
    assert clicks == {"clicks"}
    for prefix, statuses in {("payments",): ["OK"] * 2, ("streams", "marketing", "ads"): []}.items():
        of_clicks = dg.AssetRecordsFilter(dg.AssetKey([*prefix, "commit_log"]), asset_partitions=["clicks"])
        looks = [one.asset_observation for one in company.instance.fetch_observations(of_clicks, limit=9).records]
        assert [one.metadata["status"].value for one in looks if one] == statuses, "what is known of the query"
    stores = company.partitions().pop("payments_state_store")
    assert len(stores) == len(company.payments.stores)
    assert company.partitions() == {
        "streaming_query": ["clicks", "north"],
        "payments_streaming_query": ["clicks"],
        "payments_state_store": stores,
    }

    for key in ("snapshot", "streams/marketing/ads/snapshot"):
        assert company.instance.get_latest_materialization_event(dg.AssetKey(key.split("/"))) is None
    assert files(company.folder / "ads" / "clicks") == before
    (other,) = [one for one in company.sensed("ads_changelog_tail")["runRequests"] if "maintain" in one["jobName"]]
    assert (other["jobName"], other["runKey"].startswith("maintain:clicks@")) == ("ads_maintain_queries", True)
    assert "0 runs of this fleet are started" in company.sensed("payments_dead_runs")["skipReason"]
    statuses = {name: company.instance.get_run_by_id(run_id).status for name, run_id in foreign.items()}  # type: ignore[union-attr]
    assert statuses == ENDED_AND_STARTED
    assert len(company.instance.get_ticks("company", "theirs")) == 1


ENDED_AND_STARTED = {"ended": DagsterRunStatus.SUCCESS, "started": DagsterRunStatus.STARTED}


def a_run(instance: dg.DagsterInstance, job: str, status: DagsterRunStatus, **given: Any) -> str:
    """Record a run of a job, which no process runs."""
    tags = {QUERY_TAG: "clicks", **given.pop("tags", {})}
    return create_run_for_test(instance, job, status=status, tags=tags, **given).run_id


# -- in this process -----------------------------------------------------------------------------------------------------


@pytest.fixture
def guest(tmp_path: Path) -> dg.Definitions:
    """A fleet with the query `clicks`."""
    (tmp_path / "statekeeper.toml").write_text(CONFIGURATION)
    return build_definitions(tmp_path / "statekeeper.toml", name="payments", scratch=tmp_path / "scratch")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@dataclass(frozen=True)
class Runs:
    """The runs of an instance that a fleet and others use, by their owners."""

    own: set[str]
    foreign: set[str]


def runs_of_all(instance: dg.DagsterInstance, status: DagsterRunStatus) -> Runs:
    """Runs of the fleet, of the company, of another fleet, and of a job of the company that also materializes an asset of
    the fleet. They have the tags of a process that is dead."""
    dead = {HOLDER_TAG: holder("dead"), BEAT_TAG: "2026-03-01T03:00:00Z"}
    made = partial(a_run, instance, status=status)
    mine, others = dg.AssetKey(["payments", "snapshot"]), dg.AssetKey("snapshot")
    tags = {FLEET_TAG: "payments", **dead}
    own = {
        made(job="payments_maintain_query", tags=tags),
        made(job="__ASSET_JOB", tags=tags, asset_selection=frozenset({mine})),
    }
    foreign = {
        made(job="payments_maintain_query", tags=dead),
        made(job="ads_maintain_query", tags={FLEET_TAG: "ads", **dead}),
        made(job="report", tags=tags),
        made(job="__ASSET_JOB", tags=tags, asset_selection=frozenset({mine, others})),
        made(job="__ASSET_JOB", asset_selection=frozenset({others})),
    }
    return Runs(own, foreign)


def test_pruning_deletes_only_runs_of_the_fleet(
    guest: dg.Definitions, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of_all(instance, DagsterRunStatus.SUCCESS)
    ahead = datetime.now(UTC) + timedelta(days=60)
    monkeypatch.setattr("statekeeper.assets.history.SystemClock.now_seconds", lambda _: ahead.timestamp())
    assert guest.resolve_job_def("payments_prune_history").execute_in_process(instance=instance).success
    left = {run.run_id for run in instance.get_runs()}
    assert left & runs.own == set()
    assert runs.foreign <= left


def test_only_dead_runs_of_the_fleet_are_reported(
    guest: dg.Definitions, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of_all(instance, DagsterRunStatus.STARTED)
    sensor = guest.resolve_sensor_def("payments_dead_runs")
    ticked(sensor.evaluate_tick, instance, dict(guest.resources or {}), monkeypatch)
    failed = {run.run_id for run in instance.get_runs(dg.RunsFilter(statuses=[DagsterRunStatus.FAILURE]))}
    assert failed == runs.own


def test_a_fleet_loads_beside_another_and_beside_this_repositorys_own(tmp_path: Path, guest: dg.Definitions) -> None:
    configuration = tmp_path / "statekeeper.toml"
    ads = build_definitions(configuration, name="ads", streaming_query=dg.AssetKey(["payments", "streaming_query"]))
    own = build({"STATEKEEPER_CONFIG": str(configuration)})
    merged = dg.Definitions.merge(guest, ads, own)
    dg.Definitions.validate_loadable(merged)
    assert {one.op.pool for one in guest.assets or () if isinstance(one, dg.AssetsDefinition)} == {
        "payments_maintenance"
    }
    assert {one.op.pool for one in own.assets or () if isinstance(one, dg.AssetsDefinition)} == {None}


def test_the_code_in_the_documentation_loads(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "add-to-your-dagster.md").read_text()
    definitions, *all_changes = (part.partition("```")[0] for part in page.split("```python\n")[1:])
    assert len(all_changes) == 3
    imports = definitions.partition("defs =")[0]
    changed = (f"{imports}{one}".replace("\nbuild_definitions(", "\ndefs = build_definitions(") for one in all_changes)
    for code in (definitions, *changed):
        namespace: dict[str, Any] = {}
        exec(code.replace("/etc/statekeeper", str(tmp_path)), namespace)
        dg.Definitions.validate_loadable(namespace["defs"])


def names_of(built: dg.Definitions) -> set[str]:
    return {one.name for one in (*(built.sensors or ()), *(built.schedules or ()))}


def test_a_fleet_without_automation_has_no_sensor_and_no_schedule(tmp_path: Path) -> None:
    assert names_of(build_definitions(tmp_path / "fleet.toml", name="payments"))
    assert not names_of(build_definitions(tmp_path / "fleet.toml", name="payments", automation=False))


def test_a_condition_is_of_the_assets_that_may_run_without_a_person(tmp_path: Path) -> None:
    condition = dg.AutomationCondition.on_cron("0 2 * * *")
    built = build_definitions(tmp_path / "fleet.toml", name="payments", automation=condition)
    specs = built.resolve_all_asset_specs()
    automated = {one.key.path[-1] for one in specs if one.automation_condition == condition}
    assert automated == {"snapshot", "lineage", "retention", "fleet_health"}
    assert {one.automation_condition for one in specs} == {condition, None}


def test_the_former_name_of_rewrites_works_for_one_more_release(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="is now rewrites"):
        built = build_definitions(tmp_path / "fleet.toml", name="payments", with_rewrites=False)
    assert "rewind" not in {one.key.path[-1] for one in built.resolve_all_asset_specs()}


def test_alerts_have_the_keys_of_a_team_and_keep_secrets(tmp_path: Path) -> None:
    def notifier(**given: Any) -> Any:
        resources = build_definitions(tmp_path / "fleet.toml", name="payments", **given).resources or {}
        return resources["payments_notifier"]

    found = notifier(alerts={"slack": "env:SLACK", "pagerduty": dg.EnvVar("PD"), "webhook": "https://example.com/x"})
    assert (found.webhook, found.alert_pagerduty) == (dg.EnvVar("SLACK"), dg.EnvVar("PD"))
    assert "example.com" not in repr(found)
    assert notifier(webhook=dg.EnvVar("OLD")).webhook == dg.EnvVar("OLD")
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="alerts has no channel 'slak'"):
        notifier(alerts={"slak": "x"})
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="remove webhook"):
        notifier(alerts={"slack": "x"}, webhook="y")


@pytest.mark.parametrize("name", ["", "two words", "pay-ments", "1st", "a/b", "a" * 41])
def test_a_name_that_dagster_rejects_is_an_error_at_load(tmp_path: Path, name: str) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="is no name of a fleet"):
        build_definitions(tmp_path / "statekeeper.toml", name=name)


def test_a_translation_cannot_change_the_partitions(tmp_path: Path) -> None:
    def translated(spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(partitions_def=dg.StaticPartitionsDefinition(["clicks"]))

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="changed the partitions of payments/streaming_query"):
        build_definitions(tmp_path / "statekeeper.toml", name="payments", translate=translated)


COMPLETE = "run_monitoring: {enabled: true}\nconcurrency: {pools: {default_limit: 2}}\n"


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (COMPLETE, []),
        (
            "run_monitoring: {enabled: false}\nconcurrency: {pools: {granularity: run}}\n",
            ["run_monitoring", "payments"],
        ),
        ("concurrency: {pools: {default_limit: 0}}\n", ["run_monitoring"]),
        ("", ["run_monitoring", "payments_maintenance"]),
        (None, ["run_monitoring", "payments_maintenance"]),
        ("storage: [", ["were not checked"]),
    ],
)
def test_each_missing_setting_of_the_instance_is_a_warning_once_with_the_lines_to_add(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    settings: str | None,
    missing: list[str],
) -> None:
    host.warn_of_missing_settings.cache_clear()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    if settings is not None:
        (tmp_path / "dagster.yaml").write_text(settings)
    with caplog.at_level(logging.WARNING, "statekeeper.dagster"):
        for _ in range(2):
            build_definitions(tmp_path / "statekeeper.toml", name="payments")
    assert [word in message for word, message in zip(missing, caplog.messages, strict=True)] == [True] * len(missing)
    assert not (tmp_path / "history").exists(), "no storage is opened at load"


def test_the_process_of_a_run_logs_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host.warn_of_missing_settings.cache_clear()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_RUN_JOB_NAME", "payments_maintain_query")
    build_definitions(tmp_path / "statekeeper.toml", name="payments")
    assert caplog.messages == []
