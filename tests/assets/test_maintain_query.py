"""The job `maintain_query` on real checkpoints: its metadata reports its actions, and damage stops it."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.checks import LINEAGE_CHECKS, RETENTION_FLOOR_IS_KEPT, TAIL_IS_SHORT
from statekeeper.assets.fleet_health import FleetFacts, last_clean, of_fleet
from statekeeper.assets.partitions import STORE_SET
from statekeeper.resources.fleet import FLEET_TAG
from statekeeper.resources.worker import BEAT_TAG, HOLDER_TAG
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.upkeep.audit import Finding, FindingKind, Severity
from statekeeper.statestore.maintenance.verbs import health
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.health import Health
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.storage.query_metrics import QueryMetrics
from tests.support.checkpoints import Checkpoint
from tests.support.dagster_runs import checks, maintained, materializations, shown
from tests.support.maintained_query import maintained_query
from tests.support.s3_server import S3Server
from tests.support.unpacked import unpacked

ODD_QUERIES = Path(__file__).parents[1] / "fixtures" / "odd_queries"


def paths(checkpoint: Checkpoint) -> set[str]:
    found = {entry.path for entry in checkpoint.storage.list("")}
    return {path for path in found if not path.startswith((names.LEASES, names.HISTORY))}


def test_a_run_takes_snapshots_audits_deletes_and_reports_figures(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, tmp_path: Path
) -> None:
    result = maintained(definitions, instance)
    assert result.success
    done = shown(result, "snapshot")
    assert (done["version"], done["snapshots_taken"], done["snapshots_failed"]) == (9, 2, 0)
    assert (done["longest_tail_before"], done["longest_tail_after"]) == (9, 0)
    assert shown(result, "lineage")["errors"] == 0
    flights.grow(4)
    before = paths(flights)
    again = maintained(definitions, instance)
    gone = shown(again, "retention")
    assert gone["deleted_files"] == gone["planned_files"] > 0
    assert len(before - paths(flights)) == gone["deleted_files"]
    assert {name: one.passed for name, one in checks(again).items()} == {
        "tail_is_short": True,
        "lineage_is_gapless": True,
        "commit_log_matches_files": True,
        "far_from_lineage_ceiling": True,
        "retention_floor_is_kept": True,
    }
    for batch in (10, 11, 12):
        flights.assert_right(tmp_path / f"host {batch}", batch)


def test_a_run_shows_the_figures_and_the_price_that_the_job_recorded(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, configuration: Path
) -> None:
    metrics = QueryMetrics(batches=9, seconds=86_400.0, writes=2_000, members=8, uploaded_bytes=10, early_bytes=8)
    record = json.dumps({"metrics": metrics.as_json()}).encode()
    flights.storage.create(names.pending(8, RandomIds().fresh()), record)
    configuration.write_text(f"{configuration.read_text()}\n[prices]\nper_1000_writes = 3\n")
    done = shown(maintained(definitions, instance), "snapshot", "job")
    assert (done["batches"], done["write_requests"], done["record_members"]) == (9, 2_000, 8)
    assert (done["dollars_a_day"], done["early_upload_percent"]) == (6.0, 80.0)


@pytest.mark.parametrize("form", ["asynchronous", "continuous"])
def test_a_stateless_query_is_green_and_unchanged(
    definitions: dg.Definitions, instance: dg.DagsterInstance, configuration: Path, form: str
) -> None:
    unpacked(ODD_QUERIES / f"spark-4.2.0-{form}.zip", configuration.parent).rename(configuration.parent / "flights")
    result = maintained(definitions, instance)
    assert result.success
    assert shown(result, "snapshot")["snapshots_taken"] == 0
    assert shown(result, "lineage")["errors"] == 0
    assert shown(result, "retention")["planned_files"] == 0
    assert {one.passed for one in checks(result).values()} == {True}


def test_each_check_is_recorded_for_its_query(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    found = maintained(definitions, instance).get_asset_check_evaluations()
    assert sorted(one.check_name for one in found if one.partition == "flights") == sorted(checks_of_a_run())
    assert sorted(one.check_name for one in found if one.partition is None) == sorted(checks_of_a_run()), "the fleet"


def checks_of_a_run() -> list[str]:
    return [spec.name for spec in (TAIL_IS_SHORT, *LINEAGE_CHECKS, RETENTION_FLOOR_IS_KEPT)]


def test_the_asset_of_stores_has_only_the_stores_with_an_action(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    maintained(definitions, instance)
    keys = ["flights:00-00000", "flights:00-00001"]
    assert instance.get_dynamic_partitions(STORE_SET) == keys
    touched = instance.get_materialized_partitions(dg.AssetKey("state_store"))
    assert touched == set(keys)
    records = instance.fetch_materializations(dg.AssetKey("state_store"), limit=10).records
    maintained(definitions, instance)
    assert len(instance.fetch_materializations(dg.AssetKey("state_store"), limit=10).records) == len(records)


def test_a_broken_lineage_turns_the_check_red_with_the_file_and_blocks_deletion_until_its_repair(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    maintained(definitions, instance)
    flights.grow(3)
    broken = flights.stores[1].changelog(flights.versions[12][1])
    kept = flights.storage.read(broken)
    flights.storage.delete([broken])
    before = paths(flights)
    result = maintained(definitions, instance)
    assert not result.success
    assert materializations(result, "retention") == []
    red = checks(result)["lineage_is_gapless"]
    assert not red.passed
    assert red.severity is dg.AssetCheckSeverity.ERROR
    assert broken in (red.description or "")
    assert paths(flights) == before
    flights.storage.create(broken, kept)
    mended = maintained(definitions, instance)
    assert mended.success
    assert checks(mended)["lineage_is_gapless"].passed


def test_lost_offsets_of_the_newest_batch_turn_the_check_of_the_logs_red(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    lost = names.offsets(len(flights.versions) - 2)
    flights.storage.delete([lost])
    result = maintained(definitions, instance)
    found = checks(result)
    assert found["lineage_is_gapless"].passed
    assert not found["commit_log_matches_files"].passed
    assert lost in (found["commit_log_matches_files"].description or "")
    assert not result.success


def test_a_gap_in_the_commit_log_is_a_warning_and_stops_no_maintenance(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    flights.storage.delete([names.commits(4)])
    result = maintained(definitions, instance)
    found = checks(result)["commit_log_matches_files"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert names.commits(4) in (found.description or "")
    assert result.success


def test_retention_without_the_lineage_asset_audits_before_it_deletes(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    flights.storage.delete([flights.stores[0].changelog(flights.versions[9][0])])
    before = paths(flights)
    job = definitions.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(
        partition_key="flights",
        instance=instance,
        raise_on_error=False,
        asset_selection=[dg.AssetKey("retention")],
    )
    assert not result.success
    assert materializations(result, "retention") == []
    assert "changelog" in str(result.failure_data_for_node("visit_query"))
    assert paths(flights) == before


def test_in_mode_observe_a_run_writes_nothing(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, configuration: Path
) -> None:
    configuration.write_text(configuration.read_text().replace("[defaults]", '[defaults]\nmode = "observe"'))
    before = paths(flights)
    result = maintained(definitions, instance)
    assert result.success
    assert shown(result, "snapshot")["mode"] == "observe"
    assert paths(flights) == before
    assert not checks(result)["tail_is_short"].passed, "its tail is long all the same, and that is said"


def test_a_run_fails_with_the_name_of_the_lease_holder(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    with lease.held(flights.storage, "gc", run="x", holder="host:1", clock=SystemClock()):
        result = maintained(definitions, instance)
    assert not result.success
    assert "process host:1 holds the lease of this root for the command gc" in str(
        result.failure_data_for_node("visit_query")
    )


def test_a_root_on_s3_is_maintained_in_the_same_way(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
    configuration: Path,
    s3_server: S3Server,
    tmp_path: Path,
) -> None:
    url = f"s3://{s3_server.make_bucket()}/flights"
    twin = flights.copied_to(open_storage(url, options=s3_server.options), tmp_path / "job on S3")
    options = ", ".join(f'{name} = "{value}"' for name, value in s3_server.options.items())
    as_spark_writes_it = url.replace("s3:", "s3a:")
    configuration.write_text(
        configuration.read_text().replace('url = "flights"', f'url = "{as_spark_writes_it}"\nstorage = {{ {options} }}')
    )
    assert maintained(definitions, instance).success
    twin.grow(4)
    result = maintained(definitions, instance)
    gone = shown(result, "retention")
    assert gone["deleted_files"] == gone["planned_files"] > 0
    assert all(check.passed for check in checks(result).values())
    twin.assert_right(tmp_path / "host")
    assert flights.storage.list(names.LEASES) == [], "the one on local disk was not touched"


def test_a_native_checkpoint_is_only_observed_until_its_mode_permits_maintenance(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    flights: Checkpoint,
    configuration: Path,
    tmp_path: Path,
) -> None:
    flights.storage.delete([names.BINDING])
    before = {entry.path for entry in flights.storage.list("")}
    looked_at = maintained(definitions, instance)
    assert looked_at.success
    assert {entry.path for entry in flights.storage.list("")} == before
    assert (shown(looked_at, "snapshot")["snapshots_taken"], shown(looked_at, "lineage")["errors"]) == (0, 0)
    assert not checks(looked_at)["tail_is_short"].passed, "nobody makes snapshots"
    configuration.write_text(configuration.read_text().replace('url = "flights"', 'url = "flights"\nmode = "full"'))
    assert shown(maintained(definitions, instance), "snapshot")["snapshots_taken"] == 2
    flights.grow(4)
    result = maintained(definitions, instance)
    gone = shown(result, "retention")
    assert gone["deleted_files"] == gone["planned_files"] > 0
    assert all(check.passed for check in checks(result).values())
    left = {path for path in paths(flights) if path.startswith(f"{names.COMMITS}/")}
    assert left == {names.commits(batch) for batch in (10, 11, 12)}, "the logs below the floor are purged"
    for batch in (10, 11, 12):
        flights.assert_right(tmp_path / f"host {batch}", batch)


def test_a_run_is_green_after_a_switch_of_a_native_checkpoint(
    definitions: dg.Definitions, instance: dg.DagsterInstance, configuration: Path, tmp_path: Path
) -> None:
    text = configuration.read_text().replace('url = "flights"', 'url = "flights"\nmode = "full"')
    configuration.write_text(text.replace("versions = 3", "versions = 100"))
    query = maintained_query(open_storage(str(tmp_path / "flights")), tmp_path, Structure.V1, Origin.NATIVE, batches=12)
    query.switch()
    query.grow(12)
    result = maintained(definitions, instance)
    assert result.success
    assert {name: one.passed for name, one in checks(result).items() if not one.passed} == {}
    assert query.is_right()


def test_fleet_health_has_a_row_per_query_and_names_the_broken_file_and_the_next_command(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint, configuration: Path
) -> None:
    # A parent without a folder would be a row, too.
    configuration.write_text(configuration.read_text().partition("[parents.jobs]")[0])
    job = definitions.resolve_job_def("refresh_fleet_health")
    green = job.execute_in_process(instance=instance)
    figures = shown(green, "fleet_health")
    whole = health.look(flights.storage, Policies(), clock=SystemClock())
    assert (figures["queries"], figures["longest_tail"], figures["bytes"]) == (1, 9, whole.bytes)
    (row,) = [record.data for record in figures["health"].records]
    assert (row["version"], row["errors"], row["stores"]) == (9, 0, 2)
    assert row["state_mib"] == round(whole.bytes / 1024 / 1024, 3)
    assert (row["orphan_files"], row["requests"]) == (0, whole.requests)
    assert row["hours_since_clean_audit"] == 0.0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", figures["last_clean_audits"]["flights"])
    assert figures["summary"].startswith("1 query: none needs a person.")
    assert checks(green)["all_queries_healthy"].passed
    broken = flights.stores[0].changelog(flights.versions[9][0])
    flights.storage.delete([broken])
    result = job.execute_in_process(instance=instance)
    red, figures = checks(result)["all_queries_healthy"], shown(result, "fleet_health")
    assert figures["summary"].startswith("1 query: 1 needs a person.  \nThe worst is flights:")
    assert figures["summary"].endswith(f"Next: `statekeeper --config {configuration} audit flights`")
    assert [record.data["status"] for record in figures["health"].records] == ["ERROR"]
    assert not red.passed
    assert broken in (red.description or "")
    assert (red.description or "").endswith(f"Next: statekeeper --config {configuration} audit flights")


def test_fleet_health_shows_the_age_of_the_last_clean_audit(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    job = definitions.resolve_job_def("refresh_fleet_health")
    green = shown(job.execute_in_process(instance=instance), "fleet_health")
    assert (green["oldest_clean_audit_seconds"], green["queries_never_clean"]) == (0, 0)
    broken = flights.stores[0].changelog(flights.versions[9][0])
    body = flights.storage.read(broken)
    flights.storage.delete([broken])
    red = shown(job.execute_in_process(instance=instance), "fleet_health")
    assert red["last_clean_audits"] == green["last_clean_audits"], "as it was when it was clean"
    flights.storage.create(broken, body)
    time.sleep(1.1)  # dates have a resolution of one second
    mended = shown(job.execute_in_process(instance=instance), "fleet_health")
    assert mended["last_clean_audits"]["flights"] > green["last_clean_audits"]["flights"]


def test_fleet_health_reads_the_epochs_that_the_previous_release_recorded(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    flights.storage.delete([flights.stores[0].changelog(flights.versions[9][0])])
    at = datetime.fromisoformat("2026-03-01T03:00:00Z").timestamp()
    old = {"clean_audits": dg.MetadataValue.json({"flights": at})}
    instance.report_runless_asset_event(dg.AssetMaterialization("fleet_health", metadata=old))
    red = shown(
        definitions.resolve_job_def("refresh_fleet_health").execute_in_process(instance=instance), "fleet_health"
    )
    assert red["last_clean_audits"] == {"flights": "2026-03-01T03:00:00Z"}


def test_the_age_of_a_clean_audit_is_kept_for_an_unreachable_query_and_dropped_for_a_removed_one() -> None:
    before = {"ill": 100.0, "unseen": 200.0, "gone": 300.0}
    facts = FleetFacts({"ill": _health(clean=False), "new": _health(clean=True)}, {"unseen": "access denied"})
    clean = last_clean(facts, before, 500.0)
    assert clean == {"ill": 100.0, "unseen": 200.0, "new": 500.0}
    figures = of_fleet(facts, clean, 500.0, {})
    assert (figures["oldest_clean_audit_seconds"], figures["queries_never_clean"]) == (400, 0)
    never = of_fleet(facts, {}, 500.0, {})
    assert ("oldest_clean_audit_seconds" in never, never["queries_never_clean"]) == (False, 3)


def _health(*, clean: bool) -> Health:
    worst = (
        None
        if clean
        else Finding(
            severity=Severity.ERROR,
            kind=FindingKind.CHANGELOG_MISSING,
            store=None,
            file="a file",
            problem="p",
            meaning="m",
            action="a",
        )
    )
    return Health(
        version=1,
        stores=1,
        longest_tail=0,
        tail_bytes=0,
        restore_seconds=0.0,
        files=0,
        bytes=0,
        reclaimable_files=0,
        reclaimable_bytes=0,
        orphan_files=0,
        orphan_bytes=0,
        reclaimed_bytes=0,
        least_commits_left=None,
        errors=int(not clean),
        warnings=0,
        worst=worst,
    )


def test_a_run_has_few_tags_besides_those_of_dagster(
    definitions: dg.Definitions, instance: dg.DagsterInstance, flights: Checkpoint
) -> None:
    run = instance.get_run_by_id(maintained(definitions, instance).run_id)
    assert run is not None
    own = {name for name in run.tags if not name.startswith(("dagster/", ".dagster/"))}
    assert own == {HOLDER_TAG, BEAT_TAG, FLEET_TAG}


@pytest.mark.parametrize("asset", ["streaming_query", "commit_log", "state_store"])
def test_assets_of_other_programs_have_a_description_group_kind_and_owner(
    definitions: dg.Definitions, asset: str
) -> None:
    spec = definitions.resolve_asset_graph().get(dg.AssetKey(asset))
    assert not spec.is_executable
    assert len(spec.description or "") > 100
    assert (spec.group_name, spec.kinds <= {"spark", "rocksdb"}, spec.owners) == ("queries", True, ["team:streaming"])
    assert spec.kinds
    assert spec.partitions_def is not None


@pytest.mark.parametrize("asset", ["snapshot", "lineage", "retention", "fleet_health"])
def test_an_asset_describes_itself(definitions: dg.Definitions, asset: str) -> None:
    spec = definitions.resolve_asset_graph().get(dg.AssetKey(asset))
    assert spec.description
    assert len(spec.description) > 100
    assert spec.group_name == "maintenance"
    assert spec.kinds
    assert spec.owners
    assert spec.tags["statekeeper/does"] in ("reads", "adds-files", "deletes-files")
