"""Steps of Dagster whose work a Spark application does, through Dagster Pipes."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster import DagsterRunStatus
from dagster._core.test_utils import poll_for_finished_run
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import PythonFileTarget
from dagster_pipes import PipesContext

from statekeeper.assets import mirror, spark_driver, spark_runs
from statekeeper.assets.definitions import build
from statekeeper.assets.factory import build_definitions
from statekeeper.assets.metadata import bullets, figures, table
from statekeeper.assets.names import StartSpark
from statekeeper.assets.partitions import QUERY_SET
from statekeeper.assets.visits import Part, Shown
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records import drills, lease
from statekeeper.statestore.maintenance.rounds.visit import Status
from statekeeper.statestore.storage import TEMP_FOLDER, Kind, open_storage
from tests.assets.conftest import sensor_of
from tests.support.checkpoints import Checkpoint
from tests.support.companies import HOME, Company
from tests.support.dagster_runs import checks, description, materializations, stored_checks
from tests.support.faulty_storage import Fault, FaultyStorage, Request
from tests.support.keyed_roots import KeyedRoot
from tests.support.maintainers import QUIET_SECONDS
from tests.support.on_a_cluster import on_a_cluster
from tests.support.rescales import all_rows
from tests.support.submitted import spark_table, submit
from tests.support.switching import WRITES, take_snapshots
from tests.support.unpacked import unpacked

ARCHIVES = Path(__file__).parents[1] / "fixtures" / "checkpoints"
ASSETS = ("snapshot", "lineage", "retention")
VOLATILE = ("seconds", "bytes", "MiB", "requests", "uploaded", "s")


def on_spark(configuration: Path, table: str) -> None:
    """Let Spark work for `flights`."""
    text = configuration.read_text()
    configuration.write_text(text.replace('url = "flights"', 'url = "flights"\nexecutor = "spark"') + table)


def built(configuration: Path) -> dg.Definitions:
    environment = {
        "STATEKEEPER_CONFIG": str(configuration),
        "STATEKEEPER_SCRATCH": str(configuration.parent / "scratch"),
    }
    return build(environment, quiet_seconds=QUIET_SECONDS)


def run(configuration: Path, instance: dg.DagsterInstance, job: str = "maintain_query") -> dg.ExecuteInProcessResult:
    found = built(configuration).resolve_job_def(job)
    return found.execute_in_process(partition_key="flights", instance=instance, raise_on_error=False)


def recorded(result: dg.ExecuteInProcessResult, *assets: str) -> dict[str, Any]:
    """The metadata and the checks that a run has recorded, without times and sizes."""
    of_assets = {name: materializations(result, name)[0].metadata for name in assets}
    of_checks = {name: (one.passed, one.severity, one.description) for name, one in checks(result).items()}
    ledger = sorted(str(one.partition) for one in materializations(result, "state_store"))
    return {"assets": stable(of_assets), "checks": of_checks, "ledger": ledger}


def said(failed: dg.ExecuteInProcessResult) -> str:
    """The error of the step of a run."""
    (event,) = [one for one in failed.all_events if one.is_step_failure]
    return str(event.step_failure_data.error_display_string)


def without_ids(text: str) -> str:
    return re.sub(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", "ID", text)


def stable(found: Any) -> Any:
    if isinstance(found, dict):
        pictures = ("picture", "partitions", "sizes")
        return {name: stable(one) for name, one in sorted(found.items()) if name not in (*pictures, "seconds")}
    if isinstance(found, dg.TableMetadataValue):
        rows = [one.data for one in found.records]
        return [
            {name: cell for name, cell in sorted(row.items()) if not is_volatile(name)}
            for row in rows
            if not is_volatile(str(row.get("figure", "")))
        ]
    return found


def is_volatile(name: str) -> bool:
    return name in VOLATILE or any(name.endswith(f"_{one}") or f"_{one}_" in name for one in VOLATILE)


def test_what_a_driver_sends_is_decoded_as_it_was() -> None:
    metadata = {"text": "a", "note": bullets(["b", "c"]), "figures": figures({"x": 1, "y": 0.5, "z": "w"})}
    metadata["rows"] = table({"store": "string", "batch": "int"}, [("state/0/1", 7)])
    check = dg.AssetCheckResult(
        check_name="tail_is_short",
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description="too long",
        metadata={"figures": figures({"longest_tail": 9})},
    )
    one = Shown(
        name="flights",
        status=Status.WARN,
        text="a tail is long",
        why="a tail is long",
        is_certain=True,
        is_undecided=False,
        is_held=False,
        is_left_to_spark=False,
        has_failed=False,
        parts=(Part("snapshot", metadata, (check,)), Part("retention", None)),
        ledger=(("flights:0-1", {"outcome": "deleted"}),),
    )
    sent = one.as_sent()
    found = Shown.of_sent(sent)
    assert found.as_sent() == sent
    as_recorded = dg.AssetMaterialization("x", metadata=metadata).metadata
    assert found.parts[0].metadata == as_recorded
    assert (found.parts[0].checks, found.parts[1]) == ((check,), Part("retention", None))
    assert (found.name, found.status, found.ledger[0][0]) == ("flights", Status.WARN, "flights:0-1")


def test_a_query_on_spark_without_a_command_that_starts_it_fails_with_the_table_to_add(
    configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    on_spark(configuration, "")
    before = [one.path for one in flights.storage.list("", hidden=True)]
    failed = run(configuration, instance)
    assert 'nothing was changed -> add [spark] and submit = ["spark-submit", "--master", "yarn"]' in said(failed)
    assert [one.path for one in flights.storage.list("", hidden=True)] == before


def test_the_sensor_requests_a_run_of_its_own_for_a_query_on_spark_and_a_run_of_many_leaves_it(
    configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    on_spark(configuration, "")
    fleet = Fleet(config_file=str(configuration), scratch=str(configuration.parent), worker=Worker())
    with dg.build_sensor_context(instance=instance, resources={"fleet": fleet}) as context:
        found = sensor_of(fleet, "changelog_tail")(context)
    requests = [one for one in found.run_requests if one.job_name != "refresh_fleet_health"]
    assert [(one.job_name, one.partition_key) for one in requests] == [("maintain_query", "flights")]
    many = built(configuration).resolve_job_def("maintain_queries").execute_in_process(instance=instance)
    assert materializations(many, "snapshot") == []


@pytest.mark.spark
def test_a_run_on_spark_records_what_a_run_on_this_machine_records(
    configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint, tmp_path: Path
) -> None:
    copy = flights.copied_to(open_storage(str(tmp_path / "here" / "flights")), tmp_path / "job here")
    here = tmp_path / "here" / configuration.name
    here.write_text(configuration.read_text())
    on_this_machine = run(here, instance)
    on_spark(configuration, spark_table())
    on_the_cluster = run(configuration, instance)
    assert on_this_machine.success
    assert on_the_cluster.success
    assert recorded(on_the_cluster, *ASSETS) == recorded(on_this_machine, *ASSETS)
    assert recorded(on_the_cluster, *ASSETS)["ledger"], "the stores that changed"
    (done,) = instance.get_runs(dg.RunsFilter(run_ids=[on_the_cluster.run_id]))
    assert done.tags["dagster/max_runtime"] == "0"
    flights.assert_snapshots_are_right(tmp_path / "host")
    copy.assert_snapshots_are_right(tmp_path / "host of the copy")


@pytest.mark.slow
@pytest.mark.spark
def test_a_drill_on_a_cluster_records_what_a_drill_on_this_machine_records(
    configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    take_snapshots(flights.storage, configuration.parent / "scratch")
    flights.grow(1)
    here = run(configuration, instance, "drill_restore")
    on_spark(configuration, spark_table("local-cluster[2,1,512]"))
    there = run(configuration, instance, "drill_restore")
    assert here.success
    assert there.success
    found, expected = (recorded(one, "restore_drill") for one in (there, here))
    assert found["checks"] == expected["checks"]
    of_drill = [one["assets"]["restore_drill"] for one in (found, expected)]
    assert of_drill[0].keys() == of_drill[1].keys()
    assert of_drill[0]["result"] == of_drill[1]["result"]
    assert drills.read(flights.storage).keys() == set(flights.stores)


@pytest.mark.slow
@pytest.mark.spark
def test_a_spark_application_that_does_not_start_fails_the_run_with_the_way_out(
    configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    on_spark(configuration, spark_table("nothing://here"))
    failed = run(configuration, instance)
    assert "the Spark application of flights ended without a result" in said(failed)
    assert "correct submit of [spark]" in said(failed)


@pytest.mark.slow
@pytest.mark.spark
def test_another_client_of_pipes_starts_the_application_without_a_command_in_the_file(
    configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    on_spark(configuration, "")

    def start_spark(context: dg.AssetExecutionContext, extras: Mapping[str, Any]) -> dg.PipesClientCompletedInvocation:
        command = [*submit(), str(spark_runs.APPLICATION)]
        return dg.PipesSubprocessClient().run(
            context=context, command=command, extras=dict(extras), env={"PYSPARK_DRIVER_PYTHON": sys.executable}
        )

    definitions = build_definitions(configuration, name="streams", start_spark=start_spark)
    instance.add_dynamic_partitions(f"streams_{QUERY_SET}", ["flights"])
    job = definitions.resolve_job_def("streams_drill_restore")
    assert job.execute_in_process(partition_key="flights", instance=instance).success
    assert drills.read(flights.storage).keys() == set(flights.stores)


@contextmanager
def session(context: dg.AssetExecutionContext, extras: Mapping[str, Any]) -> Iterator[dg.PipesSession]:
    with dg.open_pipes_session(
        context=context,
        extras=dict(extras),
        context_injector=dg.PipesTempFileContextInjector(),
        message_reader=dg.PipesTempFileMessageReader(),
    ) as opened:
        yield opened


@dataclass
class Shared:
    """Lets the application that the tests share do the work: its start costs ten seconds. `jobs`: of Spark."""

    jobs: int = 0

    def __call__(
        self, context: dg.AssetExecutionContext, extras: Mapping[str, Any]
    ) -> dg.PipesClientCompletedInvocation:
        with session(context, extras) as opened:
            [ran] = on_a_cluster({"pipes": opened.get_bootstrap_env_vars()})
        self.jobs += ran.printed["jobs"]
        return dg.PipesClientCompletedInvocation(opened)


@dataclass(frozen=True)
class Launch:
    """A launch of an asset, once on this machine and once on a cluster, each for a root of its own."""

    asset: str
    config: Mapping[str, Any]
    archive: str = "v1-aggregation"
    job: str = ""

    def run(
        self, configuration: Path, instance: dg.DagsterInstance, start_spark: StartSpark, **config: Any
    ) -> dg.ExecuteInProcessResult:
        # With the asset keys of this repository's own fleet.
        definitions = build_definitions(
            configuration,
            name="streams",
            key_prefix=(),
            start_spark=start_spark,
            quiet_seconds=QUIET_SECONDS,
            scratch=configuration.parent / "scratch",
        )
        instance.add_dynamic_partitions(f"streams_{QUERY_SET}", ["flights"])
        job = definitions.resolve_job_def(f"streams_{self.job or f'{self.asset}_checkpoint'}")
        given = {
            key: value.format(folder=configuration.parent) if isinstance(value, str) else value
            for key, value in {**self.config, **config}.items()
        }
        ops = {"ops": {f"streams_{self.asset}": {"config": given}}} if given else {}
        return job.execute_in_process(ops, partition_key="flights", instance=instance, raise_on_error=False)


STOPPED = {"do": "APPLY", "confirm_stopped": True}
LAUNCHES = [
    Launch("rescale", {"partitions": 5, **STOPPED}),
    Launch("deep_audit", {}, job="audit_deep"),
    Launch("checkpoint_format", {"to": "V2", **STOPPED}, job="switch_checkpoint"),
    Launch("convert", {"for_spark": "V4_2", **STOPPED}, archive="hdfs-aggregation"),
    Launch("edit", {"delete": {"k": "key 3"}, **STOPPED}),
    Launch("clone", {"destination": "{folder}/copy", "do": "APPLY"}),
    Launch("savepoint", {"destination": "{folder}/copy", "do": "APPLY", "label": "before"}),
    Launch("savepoint", {"destination": "{folder}/copy", "do": "APPLY", "keep": "PARQUET"}),
    Launch("mirror", {}),
]


def named(launch: Launch) -> str:
    return f"{launch.asset} {launch.config.get('keep', '')}".strip()


@pytest.mark.spark
@pytest.mark.parametrize(
    "launch", [*LAUNCHES[:2], *(pytest.param(one, marks=pytest.mark.slow) for one in LAUNCHES[2:])], ids=named
)
def test_a_launch_on_a_cluster_records_what_a_launch_on_this_machine_records(
    launch: Launch, configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "MOST_FILES_HERE", 0)
    found, shared = {}, Shared()
    for place in ("here", "away"):  # of one length: files with their paths have one size
        root = unpacked(ARCHIVES / f"spark-4.2.0-{launch.archive}.zip", tmp_path / place)
        mine = root.parent / configuration.name
        text = configuration.read_text().replace('url = "flights"', f'url = "{root}"\nmirror = {{ url = "copy" }}')
        mine.write_text(text)
        if place == "away":
            mine.write_text(text.replace("[roots.flights]", '[roots.flights]\nexecutor = "spark"'))
        with dg.DagsterInstance.ephemeral() as instance:
            refused = []
            if "confirm_stopped" in launch.config:
                failed = launch.run(mine, instance, shared, confirm_stopped=False)
                assert not failed.success
                refused = [description(failed)]
            done = launch.run(mine, instance, shared)
            assert done.success
            written = sorted(one.path for one in open_storage(str(mine.parent / "copy")).list("", hidden=True))
        shown = [refused, recorded(done, launch.asset), written]
        found[place] = [without_ids(repr(one).replace(str(mine.parent), "FOLDER")) for one in shown], all_rows(root)
        assert (shared.jobs > 0) == (place == "away")
    assert found["away"] == found["here"]


def test_a_rewrite_and_a_mirror_are_checked_although_the_application_has_ended_without_a_result(
    configuration: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpacked(ARCHIVES / "spark-4.2.0-v1-aggregation.zip", configuration.parent)
    text = configuration.read_text().replace('url = "flights"', f'url = "{root}"\nmirror = {{ url = "copy" }}')
    away = text.replace("[roots.flights]", '[roots.flights]\nexecutor = "spark"')
    storage, rescale, mirrors = open_storage(str(root)), LAUNCHES[0], LAUNCHES[-1]

    class Dying(FaultyStorage):
        def _fault_of(self, request: Request) -> Fault | None:
            return Fault.LOST_REPLY if request.kind in WRITES and "made-" in request.path else None

    def killed(context: dg.AssetExecutionContext, extras: Mapping[str, Any]) -> dg.PipesClientCompletedInvocation:
        raise RuntimeError("the driver was killed")

    def terminated(context: dg.AssetExecutionContext, extras: Mapping[str, Any]) -> dg.PipesClientCompletedInvocation:
        signal.raise_signal(signal.SIGINT)  # as Dagster does in the process of a run
        raise AssertionError("Dagster raises a termination")

    configuration.write_text(away)
    with monkeypatch.context() as patched:
        patched.setattr(mirror, "MOST_FILES_HERE", 0)
        failed = mirrors.run(configuration, instance, killed)
    assert "ended without a result: the driver was killed" in description(failed)
    assert not checks(failed)["mirror_is_fresh"].passed, "there is no mirror yet"
    configuration.write_text(text)
    with monkeypatch.context() as patched:
        patched.setattr("statekeeper.resources.fleet.open_storage", lambda *_, **__: Dying(storage))
        assert not rescale.run(configuration, instance, killed).success
    configuration.write_text(away)
    ended = rescale.run(configuration, instance, terminated)
    assert "DagsterExecutionInterruptedError" in said(ended)
    assert not checks(ended)["nothing_left_half_switched"].passed
    failed = rescale.run(configuration, instance, killed)
    assert "ended without a result: the driver was killed" in description(failed)
    red = checks(failed)["nothing_left_half_switched"]
    assert not red.passed
    assert 'with {"ops": {"streams_rescale"' in (red.description or "")


def test_the_machine_of_the_run_mirrors_a_query_on_spark_if_few_files_are_missing_or_the_plan_is_refused(
    configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = configuration.read_text().replace('url = "flights"', 'url = "flights"\nmirror = { url = "copy" }')
    configuration.write_text(text)
    on_spark(configuration, "")
    assert run(configuration, instance, "mirror_checkpoint").success
    copy = open_storage(str(configuration.parent / "copy"))
    assert catalog.newest_batch(copy) == catalog.newest_batch(flights.storage)
    with_spark = listed(configuration, instance, monkeypatch)
    away = configuration.read_text()
    configuration.write_text(text)
    assert listed(configuration, instance, monkeypatch) == with_spark, "it plans once"
    configuration.write_text(away)
    monkeypatch.setattr(mirror, "MOST_FILES_HERE", -1)
    assert "[spark]" in description(run(configuration, instance, "mirror_checkpoint")), "it asks for an application"
    copy.create(names.offsets(9), b"v1\n{}")
    refused = run(configuration, instance, "mirror_checkpoint")
    assert "[spark]" not in description(refused)
    assert not checks(refused)["mirror_is_fresh"].passed


def listed(configuration: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run of a mirror that has nothing to copy lists of the source and the destination."""
    opened = list[FaultyStorage]()

    def opening(*args: Any, **how: Any) -> FaultyStorage:
        opened.append(FaultyStorage(open_storage(*args, **how)))
        return opened[-1]

    with monkeypatch.context() as patched:
        patched.setattr("statekeeper.resources.fleet.open_storage", opening)
        assert run(configuration, instance, "mirror_checkpoint").success
    return sorted(f"{one.url} {of.path}" for one in opened for of in one.trace if of.kind is Kind.LIST)


def test_a_driver_of_another_release_than_dagster_changes_nothing_and_names_both(
    configuration: Path, instance: dg.DagsterInstance, flights: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_spark(configuration, "")
    before = [one.path for one in flights.storage.list("", hidden=True)]

    def of_later_release(
        context: dg.AssetExecutionContext, extras: Mapping[str, Any]
    ) -> dg.PipesClientCompletedInvocation:
        unknown = {"fleet": {**extras["fleet"], "unknown": 1}, "work": "unknown", "release": "99.0"}
        with session(context, {**extras, **unknown}) as opened, monkeypatch.context() as patched:
            for name, value in opened.get_bootstrap_env_vars().items():
                patched.setenv(name, value)
            try:
                spark_driver.work_on_spark()
            finally:
                PipesContext._instance = None
        return dg.PipesClientCompletedInvocation(opened)

    failed = LAUNCHES[0].run(configuration, instance, of_later_release)
    assert re.match(
        r"the driver of Spark has Statekeeper \d\S+, and Dagster has Statekeeper 99.0; ", description(failed)
    )
    assert "-> give both the same release" in description(failed)
    assert [one.path for one in flights.storage.list("", hidden=True)] == before


PROJECT = """
from pathlib import Path

from statekeeper.dagster import build_definitions

defs = build_definitions(Path(__file__).parent / "statekeeper.toml", name="streams")
"""


@pytest.fixture
def company(tmp_path: Path) -> Iterator[Company]:
    home, project = tmp_path / "home", tmp_path / "project"
    for folder in (home, project):
        folder.mkdir()
    (home / "dagster.yaml").write_text(HOME)
    (project / "project.py").write_text(PROJECT)
    target = PythonFileTarget(str(project / "project.py"), None, str(project), "company")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DAGSTER_HOME", str(home))
        with (
            dg.DagsterInstance.from_config(str(home)) as instance,
            WorkspaceProcessContext(instance, target) as workspace,
        ):
            yield Company(project, instance, workspace)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_terminated_run_ends_its_spark_application_and_releases_the_lease(company: Company, tmp_path: Path) -> None:
    root = Checkpoint(open_storage(str(company.folder / "large")), tmp_path / "job", partitions=80)
    root.grow(5)
    text = '[defaults]\nsnapshot = { changelogs = 4 }\n[roots.large]\nurl = "large"\nexecutor = "spark"\n'
    (company.folder / "statekeeper.toml").write_text(text + spark_table("local[1]"))
    company.instance.add_dynamic_partitions(f"streams_{QUERY_SET}", ["large"])
    run_id = company.begun("streams_maintain_query", {"dagster/partition": "large"})
    deadline = time.monotonic() + 120
    while not [one for one in root.storage.list("state") if one.path.endswith(".zip")]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (held,) = [one for one in [lease.current(root.storage)] if one is not None]
    assert run_id in str(held), "the lease names the run of Dagster"
    started = [one for one in psutil.process_iter() if spark_runs.APPLICATION.name in " ".join(words_of(one))]
    assert len(started) >= 3, "this launcher, the JVM, and the driver"
    assert company.instance.run_launcher.terminate(run_id)
    run = poll_for_finished_run(company.instance, run_id, timeout=120)
    assert run.status is DagsterRunStatus.CANCELED
    assert not psutil.wait_procs(started, timeout=60)[1]
    lease.require_free(root.storage, clock=SystemClock())
    taken = [one.path for one in root.storage.list("state") if one.path.endswith(".zip")]
    assert 0 < len(taken) < len(root.stores)
    (company.folder / "statekeeper.toml").write_text(text.replace('executor = "spark"', ""))
    assert company.launched("streams_maintain_query", {"dagster/partition": "large"}).status is DagsterRunStatus.SUCCESS
    root.assert_snapshots_are_right(tmp_path / "host")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_rescale_that_is_terminated_during_its_snapshots_turns_its_check_red_and_the_same_launch_completes_it(
    company: Company, tmp_path: Path
) -> None:
    root = KeyedRoot(open_storage(str(company.folder / "large")), tmp_path / "job", partitions=40)
    root.grow(3)
    text = '[roots.large]\nurl = "large"\nmode = "full"\nexecutor = "spark"\n'
    (company.folder / "statekeeper.toml").write_text(text + spark_table("local[1]"))
    company.instance.add_dynamic_partitions(f"streams_{QUERY_SET}", ["large"])
    tags, config = {"dagster/partition": "large"}, {"partitions": 20, **STOPPED}
    launch = {"ops": {"streams_rescale": {"config": config}}}
    run_id = company.begun("streams_rescale_checkpoint", tags, launch)
    deadline = time.monotonic() + 120
    while not root.storage.list(TEMP_FOLDER):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert company.instance.run_launcher.terminate(run_id)
    assert poll_for_finished_run(company.instance, run_id, timeout=120).status is DagsterRunStatus.CANCELED
    lease.require_free(root.storage, clock=SystemClock())
    begun = rewrite_journal.open_journal(root.storage)
    assert begun is not None, "it was terminated after its end"
    assert len(begun.made) < len(begun.begun.built)
    assert [one.passed for one in stored_checks(company.instance, run_id)] == [False, False], (
        "of the fleet, and its own"
    )
    root.assert_right(40)
    run = company.launched("streams_rescale_checkpoint", tags, launch)
    assert run.status is DagsterRunStatus.SUCCESS
    assert rewrite_journal.open_journal(root.storage) is None
    assert [one.passed for one in stored_checks(company.instance, run.run_id)] == [True, True]
    root.assert_right(20)


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
