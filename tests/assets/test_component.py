"""The component in a project of a company that has packages `assets`, `resources` and `pipelines` of its own.

The commands of `dg` are real. A run is launched in the code server of the project.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster import DagsterRunStatus
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget

from statekeeper.assets.component import FleetScaffolder, ScaffoldOptions
from statekeeper.assets.partitions import QUERY_TAG
from statekeeper.dagster import FleetComponent, build_definitions
from statekeeper.resources.fleet import FLEET_TAG
from tests.support.companies import ASSETS, HOME, PIPELINES, RESOURCES, Company, files
from tests.support.entry_points import ROCKSDB
from tests.support.pages import Page
from tests.support.running import REPOSITORY
from tests.support.unpacked import unpacked

PYPROJECT = """
[project]
name = "cars"
version = "1"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "cars"
code_location_name = "company"
"""

DEFINITIONS = """
from pathlib import Path

import dagster as dg
from assets import clicks_stream, report, snapshot
from pipelines import changelog_tail, maintain_query, nightly_sweep, prune_history
from resources import Warehouse

@dg.definitions
def defs() -> dg.Definitions:
    own = dg.Definitions(
        assets=[clicks_stream, report, snapshot],
        jobs=[maintain_query, prune_history],
        schedules=[nightly_sweep],
        sensors=[changelog_tail],
        resources={"fleet": Warehouse(name="cars"), "notifier": Warehouse(name="mail")},
    )
    return dg.Definitions.merge(dg.load_from_defs_folder(path_within_project=Path(__file__)), own)
"""

ATTRIBUTES = """
  owners: [team:payments]
  streaming_query: kafka/clicks
  scratch: scratch
  translation:
    group_name: "{{ spec.key.path[0] }}"
    tags: {cost-center: 17}
    kinds: [spark]
"""

PAGE = Page.of("how-to/dagster-component.md")

OPTIONS = {"translation": "translate", "webhook_env": "webhook"}
"""The attributes of the component with another name than the option of `build_definitions`."""


@dataclass(frozen=True)
class Project:
    """The project of a company, for `dg`."""

    folder: Path

    @property
    def component(self) -> Path:
        """The folder of the component."""
        return self.folder / "src" / "cars" / "defs" / "payments"

    def dg(self, *arguments: str) -> str:
        """Run `dg` in the project, and return its output."""
        environment = os.environ | {"PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{REPOSITORY}"}
        command = [str(Path(sys.executable).with_name("dg")), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with a component that `dg scaffold defs` made, and with some attributes that a person added."""
    folder = tmp_path_factory.mktemp("company")
    for package, code in {"assets": ASSETS, "resources": RESOURCES, "pipelines": PIPELINES, "cars": ""}.items():
        (folder / "src" / package).mkdir(parents=True)
        (folder / "src" / package / "__init__.py").write_text(code)
    (folder / "src" / "cars" / "definitions.py").write_text(DEFINITIONS)
    (folder / "src" / "cars" / "defs").mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    unpacked(ROCKSDB, folder / "unpacked").rename(folder / "checkpoint")
    home = folder / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(f"{HOME}telemetry: {{enabled: false}}\n")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DAGSTER_HOME", str(home))
        made = Project(folder)
        scaffold = PAGE.command("dg scaffold defs")
        assert scaffold.endswith("payments --url s3://bucket/orders/checkpoint --query orders")
        made.dg(
            *scaffold.replace("s3://bucket/orders/checkpoint", "checkpoint").replace("orders", "clicks").split()[1:]
        )
        with (made.component / "defs.yaml").open("a") as file:
            file.write(ATTRIBUTES)
        yield made


def test_dg_scaffolds_a_component_that_only_reads_its_checkpoints(project: Project) -> None:
    written = yaml.safe_load((project.component / "defs.yaml").read_text().removesuffix(ATTRIBUTES))
    assert written == yaml.safe_load(PAGE.file("defs.yaml"))
    configuration = tomllib.loads((project.component / "statekeeper.toml").read_text())
    shown = tomllib.loads(PAGE.file("statekeeper.toml"))
    assert shown["roots"] == {"orders": {"url": "s3://bucket/orders/checkpoint"}}
    assert configuration == {**shown, "roots": {"clicks": {"url": str(project.folder / "checkpoint")}}}


def test_dg_checks_and_lists_the_definitions(project: Project) -> None:
    project.dg(*PAGE.command("dg check defs").split()[1:])
    found = json.loads(project.dg(*PAGE.command("dg list defs").split()[1:], "--json"))
    assets = {one["asset_key"]: one for one in found["assets"]}
    assert {"snapshot", "payments/snapshot", "payments/retention"} <= set(assets)
    ours = assets["payments/lineage"]
    assert (ours["group_name"], ours["owners"], ours["kinds"]) == ("payments", [{"team": "payments"}], ["spark"])
    assert ours["dependency_keys"] == ["payments/snapshot"]
    assert {"key": "cost-center", "value": "17"} in ours["tags"]
    assert assets["payments/commit_log"]["dependency_keys"] == ["kafka/clicks"]
    assert "payments_maintain_query" in {one["name"] for one in found["jobs"]}


def test_a_run_of_the_component_audits_its_query_and_writes_nothing_below_the_checkpoint(project: Project) -> None:
    before = files(project.folder / "checkpoint")
    source = project.folder / "src"
    target = ModuleTarget("cars.definitions", None, str(source), "company")
    with (
        dg.DagsterInstance.from_config(str(project.folder / "home")) as instance,
        WorkspaceProcessContext(instance, target) as workspace,
    ):
        company = Company(project.folder, instance, workspace)
        (found,) = company.sensed("payments_changelog_tail")["dynamicPartitionsRequests"]
        assert found == {"partitionKeys": ["clicks"], "partitionsDefName": "payments_streaming_query"}
        instance.add_dynamic_partitions("payments_streaming_query", ["clicks"])
        run = company.launched("payments_maintain_query", {QUERY_TAG: "clicks"})
        assert (run.status, run.tags[FLEET_TAG]) == (DagsterRunStatus.SUCCESS, "payments")
        lineage = dg.AssetKey(["payments", "lineage"])
        assert instance.get_materialized_partitions(lineage) == {"clicks"}
    assert files(project.folder / "checkpoint") == before


# -- in this process -----------------------------------------------------------------------------------------------------


def specs_of(component: FleetComponent) -> dict[str, dg.AssetSpec]:
    """The assets of a component, by key."""
    definitions = component.build_defs(dg.ComponentTree.for_test().load_context)
    dg.Definitions.validate_loadable(definitions)
    return {one.key.to_user_string(): one for one in definitions.resolve_all_asset_specs()}


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "statekeeper.toml"
    path.write_text("[roots.clicks]\nurl = 'clicks'\n")
    return path


def test_dg_finds_the_component_by_an_entry_point_of_the_package() -> None:
    (found,) = (one for one in entry_points(group="dagster_dg_cli.registry_modules") if one.name == "statekeeper")
    assert found.load().FleetComponent is FleetComponent


def test_the_component_has_every_option_of_build_definitions_with_the_same_default() -> None:
    options = inspect.signature(build_definitions).parameters
    attributes = {OPTIONS.get(one.name, one.name): one.default for one in fields(FleetComponent)}
    assert set(attributes) == set(options)
    differing = {name for name, option in options.items() if attributes[name] != option.default}
    assert differing == {"name", "config", "webhook"}


def test_the_schema_describes_every_attribute() -> None:
    schema = FleetComponent.get_model_cls().model_json_schema()
    assert set(schema["properties"]) == {one.name for one in fields(FleetComponent)}
    assert [name for name, one in schema["properties"].items() if not one.get("description")] == []
    assert schema["required"] == ["name"]


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        ("{key: 'cars/{{ spec.key.path[-1] }}'}", {"key": "cars/lineage"}),
        ("{key_prefix: [cars, streams]}", {"key": "cars/streams/payments/lineage"}),
        ("{group_name: cars}", {"group_name": "cars"}),
        ("{owners: ['team:cars', a@b.com]}", {"owners": ["team:cars", "a@b.com"]}),
        ("{tags: {cost-center: 17}}", {"tags": {"cost-center": "17", "statekeeper/does": "reads"}}),
        ("{kinds: [spark, s3]}", {"kinds": {"spark", "s3"}}),
        ("{description: 'Audit: {{ spec.key.path[0] }}'}", {"description": "Audit: payments"}),
        ("{metadata: {runbook: a}}", {"metadata": {"runbook": "a"}}),
        ("'{{ spec.replace_attributes(group_name=\"cars\") }}'", {"group_name": "cars"}),
    ],
)
def test_a_translation_changes_an_asset(configuration: Path, translation: str, expected: dict[str, Any]) -> None:
    text = f"name: payments\nconfig: {configuration}\ntranslation: {translation}\n"
    (found,) = (
        one for key, one in specs_of(FleetComponent.resolve_from_yaml(text)).items() if key.split("/")[-1] == "lineage"
    )
    (dependency,) = found.deps
    assert dependency.asset_key.path[:-1] == found.key.path[:-1]
    shown = {"key": found.key.to_user_string(), "tags": {k: v for k, v in found.tags.items() if "kind" not in k}}
    assert {name: shown.get(name, getattr(found, name)) for name in expected} == expected


def test_the_dependencies_of_a_translation_are_added_to_those_of_the_fleet(configuration: Path) -> None:
    text = f"name: payments\nconfig: {configuration}\ntranslation: {{deps: [kafka/clicks]}}\n"
    found = specs_of(FleetComponent.resolve_from_yaml(text))["payments/lineage"]
    assert {one.asset_key.to_user_string() for one in found.deps} == {"payments/snapshot", "kafka/clicks"}


def test_a_translation_cannot_change_the_partitions(configuration: Path) -> None:
    translation = "{partitions_def: {type: static, partition_keys: [a]}}"
    component = FleetComponent.resolve_from_yaml(
        f"name: payments\nconfig: {configuration}\ntranslation: {translation}\n"
    )
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="remove partitions_def"):
        specs_of(component)


def test_a_subclass_changes_the_assets_in_python(configuration: Path) -> None:
    class Cars(FleetComponent):
        def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
            return super().get_asset_spec(spec).merge_attributes(tags={"domain": "cars"})

    text = f"name: payments\nconfig: {configuration}\ntranslation: {{key_prefix: cars}}\n"
    found = specs_of(Cars.resolve_from_yaml(text))
    assert {one.tags["domain"] for one in found.values()} == {"cars"}
    assert found["cars/payments/lineage"].deps == [dg.AssetDep(["cars", "payments", "snapshot"])]


def test_relative_paths_start_at_the_folder_of_the_component_and_the_webhook_stays_a_variable() -> None:
    context = dg.ComponentTree.for_test().load_context
    component = FleetComponent(name="payments", config="fleet.toml", scratch="scratch", webhook_env="PAYMENTS_WEBHOOK")
    resources: Any = component.build_defs(context).resources
    fleet, notifier = resources["payments_fleet"], resources["payments_notifier"]
    assert (fleet.config_file, fleet.scratch) == (str(context.path / "fleet.toml"), str(context.path / "scratch"))
    assert notifier.webhook == dg.EnvVar("PAYMENTS_WEBHOOK")


def test_alerts_and_automation_of_a_component(configuration: Path) -> None:
    text = f"name: payments\nconfig: {configuration}\n"
    context = dg.ComponentTree.for_test().load_context

    def built(more: str) -> dg.Definitions:
        return FleetComponent.resolve_from_yaml(text + more).build_defs(context)

    assert not built("automation: false").sensors
    condition = "automation: \"{{ dg.AutomationCondition.on_cron('0 2 * * *') }}\""
    component = FleetComponent.resolve_from_yaml(text + condition)
    found = {key for key, one in specs_of(component).items() if one.automation_condition is not None}
    assert found == {f"payments/{name}" for name in ("snapshot", "lineage", "retention", "fleet_health")}
    notifier: Any = (built("alerts: {slack: 'env:A', pagerduty: 'env:B'}").resources or {})["payments_notifier"]
    assert (notifier.webhook, notifier.alert_pagerduty) == (dg.EnvVar("A"), dg.EnvVar("B"))


def test_the_page_of_the_component_lists_every_attribute() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "dagster-component.md").read_text()
    schema = FleetComponent.get_model_cls().model_json_schema()
    missing = [name for name, one in schema["properties"].items() if f"| `{name}` | {one['description']}" not in page]
    assert missing == []


def test_the_scaffolder_keeps_an_existing_configuration_and_makes_a_valid_name(tmp_path: Path) -> None:
    folder = tmp_path / "pay-ments"
    folder.mkdir()
    (folder / "statekeeper.toml").write_text("# of a person\n")
    FleetScaffolder().scaffold(
        dg.ScaffoldRequest(
            type_name="statekeeper.dagster.FleetComponent",
            target_path=folder,
            scaffold_format="yaml",
            project_root=tmp_path,
            params=ScaffoldOptions(url="s3://bucket/orders"),
        )
    )
    assert (folder / "statekeeper.toml").read_text() == "# of a person\n"
    assert yaml.safe_load((folder / "defs.yaml").read_text())["attributes"]["name"] == "pay_ments"
