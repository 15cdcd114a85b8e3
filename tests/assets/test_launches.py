"""A message in Dagster names the job and the configuration of a launch, or a command for a verb without a job."""

from __future__ import annotations

import json
import re
from pathlib import Path

import dagster as dg
import pytest

from statekeeper.assets.definitions import build
from statekeeper.assets.launches import for_launchpad
from statekeeper.resources.fleet import OpenedQuery
from statekeeper.statestore.base.messages import with_root
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.storage.query_metrics import Prices


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return build({})


def _query(folder: Path, **of_fleet: object) -> OpenedQuery:
    storage = open_storage(str(folder / "root of orders"))
    fields = {"name": "orders", "storage": storage, "policies": Policies(), "prices": Prices(), "config_file": "f.toml"}
    return OpenedQuery(**fields, **of_fleet)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "job", "config"),
    [
        (
            "stop the query, then run: statekeeper convert ROOT --to rocksdb",
            "convert_checkpoint",
            {"convert": {"to": "ROCKSDB"}},
        ),
        (
            "run: statekeeper rescale ROOT --partitions 4 --file-sink 's3://b/a sink' --apply --confirm-stopped; wait",
            "rescale_checkpoint",
            {"rescale": {"partitions": 4, "file_sink": "s3://b/a sink", "do": "APPLY", "confirm_stopped": True}},
        ),
        (
            "run: statekeeper switch ROOT --abort --confirm-stopped. Then start the query",
            "switch_checkpoint",
            {"checkpoint_format": {"do": "ABORT", "confirm_stopped": True}},
        ),
        (
            "statekeeper load s3://backup/x ROOT --replace-state --for-spark 4.2 --apply",
            "load_checkpoint",
            {"load": {"savepoint": "s3://backup/x", "replace_state": True, "for_spark": "V4_2", "do": "APPLY"}},
        ),
        (
            "statekeeper edit ROOT --operator 0 --delete user=ann --delete day=1 --apply",
            "edit_checkpoint",
            {"edit": {"operator": 0, "delete": {"user": "ann", "day": "1"}, "do": "APPLY"}},
        ),
        (
            "statekeeper evolve ROOT --undo a-run --confirm-stopped",
            "evolve_checkpoint",
            {"evolve": {"do": "UNDO", "undo_run": "a-run", "confirm_stopped": True}},
        ),
        (
            "statekeeper migrate ROOT s3://b/blueprint s3://b/new --map 1=0 --map 0=none --allow-dropped-state --apply",
            "migrate_checkpoint",
            {
                "migrate": {
                    "blueprint": "s3://b/blueprint",
                    "destination": "s3://b/new",
                    "map": {"1": "0", "0": "none"},
                    "allow_dropped_state": True,
                    "do": "APPLY",
                }
            },
        ),
    ],
)
def test_a_command_becomes_a_launch_that_its_job_accepts(
    text: str, job: str, config: dict[str, object], definitions: dg.Definitions, tmp_path: Path
) -> None:
    told = for_launchpad(text, _query(tmp_path))
    found = re.search(rf"launch the job {job} for orders with (?P<ops>{{.*}})(?P<rest>.*)", told)
    assert found is not None, told
    ops = json.loads(found["ops"])
    assert {name: one["config"] for name, one in ops["ops"].items()} == config
    given = {name: {"ops": {name: {"config": one}}} for name, one in config.items()}
    assert [ops] == list(given.values())
    assert dg.validate_run_config(definitions.resolve_job_def(job), ops)
    assert "statekeeper " not in told


def test_a_verb_without_a_job_stays_a_command_with_the_name_of_the_query(tmp_path: Path) -> None:
    query = _query(tmp_path)
    expected = "run: statekeeper --config f.toml rewind orders --to-batch 7. Then wait"
    assert for_launchpad("run: statekeeper rewind ROOT --to-batch 7. Then wait", query) == expected
    of_audit = with_root("run: statekeeper rewind ROOT --to-batch 7. Then wait", query.storage.url)
    assert for_launchpad(of_audit, query) == expected
    guarded = for_launchpad("run: statekeeper rescale ROOT --partitions 4", _query(tmp_path, has_rewrites=False))
    assert guarded == "run: statekeeper --config f.toml rescale orders --partitions 4"
    of_destination = "run: statekeeper migrate ROOT --abort --confirm-stopped"
    assert for_launchpad(of_destination, query) == of_destination.replace(
        "migrate ROOT", "--config f.toml migrate orders"
    )
    finishing = "run: statekeeper migrate s3://b/old s3://b/blueprint ROOT --apply --confirm-stopped"
    assert "launch the job" not in for_launchpad(finishing, query)
    prefixed = for_launchpad("run: statekeeper rescale ROOT --partitions 4", _query(tmp_path, job_prefix="etl_"))
    assert prefixed.startswith('launch the job etl_rescale_checkpoint for orders with {"ops": {"etl_rescale": ')
