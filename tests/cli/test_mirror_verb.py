"""`statekeeper mirror` at a terminal and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statekeeper.statestore.base.errors import MirrorStarted
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import names
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.maintained_query import maintained_query
from tests.support.maintainers import MAINTAINER
from tests.support.unpacked import unpacked

TRANSFORM_WITH_STATE = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "spark-4.2.0-v2-transformWithState.zip"


def statekeeper(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], obj=MAINTAINER)


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job")
    made.grow(4)
    return made


def test_a_dry_run_shows_the_files_and_runs_keep_the_mirror_up_to_date(source: Checkpoint, tmp_path: Path) -> None:
    verb = ("mirror", tmp_path / "root", tmp_path / "copy", "--scratch", tmp_path)
    shown = statekeeper(*verb, "--dry-run")
    assert (shown.exit_code, "by the storage service" in shown.output) == (0, True)
    assert not (tmp_path / "copy").exists()
    done = statekeeper(*verb)
    assert done.exit_code == 0, done.output
    assert f"file://{tmp_path}/copy mirrors batch 3" in done.output
    assert "lag: 0 batches" in done.output
    assert "the mirror has all files: nothing to copy" in statekeeper(*verb, "--dry-run").output
    source.grow(2)
    assert "lag before this run: 2 batches" in statekeeper(*verb, "--dry-run").output
    again = statekeeper(*verb)
    assert (
        "before you start a query from the mirror, remove the output of the batches after batch 5 from the sink"
        in again.output
    )
    about = statekeeper("inspect", tmp_path / "copy").output
    assert f"mirror of file://{tmp_path}/root at batch 5; before you start a query" in about
    inspected = json.loads(statekeeper("inspect", tmp_path / "copy", "--output", "json").output)
    assert inspected["mirror"] == {"source": f"file://{tmp_path}/root", "batch": 5, "first_batch": 0}
    twin = Checkpoint.__new__(Checkpoint)
    twin.__dict__.update(source.__dict__, storage=open_storage(str(tmp_path / "copy")))
    twin.assert_right(tmp_path / "host")


def test_json_has_the_lag_the_bytes_and_the_deletions(source: Checkpoint, tmp_path: Path) -> None:
    verb = ("mirror", tmp_path / "root", tmp_path / "copy", "--scratch", tmp_path, "--output", "json")
    first = json.loads(statekeeper(*verb, "--batch", "2").output)
    assert (first["mirrored"], first["batch"], first["lag"]["batches"]) == (True, 2, 1)
    assert first["lag"]["bytes"] > 0
    planned = json.loads(statekeeper(*verb, "--dry-run").output)
    assert planned["lag"] == first["lag"]
    assert planned["bytes"] == sum(
        planned[name] for name in ("bytes_by_service", "bytes_through_this_machine", "bytes_present")
    )
    assert planned["bytes_present"] > 0
    done = json.loads(statekeeper(*verb).output)
    assert (done["batch"], done["lag"]) == (3, {"batches": 0, "seconds": 0.0, "bytes": 0})
    assert done["delete"] == {"files": 0, "bytes": 0, "kept": {}, "list": []}
    open_storage(str(tmp_path / "copy")).create(names.offsets(4), b"v1\n{}")
    refused = statekeeper(*verb, "--dry-run")
    assert (refused.exit_code, json.loads(refused.output)["refusals"][0]["code"]) == (3, MirrorStarted.code)
    failed = statekeeper(*verb)
    assert (failed.exit_code, json.loads(failed.stdout)["error"]["code"]) == (13, "mirror_started")


def test_a_mirror_waits_for_batches_that_a_running_query_no_longer_replaces(tmp_path: Path) -> None:
    maintained_query(open_storage(str(tmp_path / "root")), tmp_path, Structure.V1, Origin.NATIVE, batches=2)
    verb = ("mirror", tmp_path / "root", tmp_path / "copy", "--scratch", tmp_path)
    done = statekeeper(*verb)
    assert (done.exit_code, "nothing to copy yet" in done.output) == (0, True)
    shown = json.loads(statekeeper(*verb, "--output", "json").output)
    assert (shown["mirrored"], shown["waiting"], shown["batch"], shown["lag"]["batches"]) == (False, True, None, 2)
    assert not (tmp_path / "copy").exists()


def test_the_location_of_a_configured_mirror_is_used(tmp_path: Path) -> None:
    source = unpacked(TRANSFORM_WITH_STATE, tmp_path / "source")
    configuration = tmp_path / "statekeeper.toml"
    configuration.write_text(
        f'[roots.orders]\nurl = "{source}"\nmirror = {{ url = "{tmp_path}/copy", location = "s3a://replica/orders" }}\n'
    )
    arguments = ("mirror", "orders", "--scratch", tmp_path, "--confirm-stopped")
    done = statekeeper("--config", configuration, *arguments)
    assert done.exit_code == 0, done.output
    (path,) = (tmp_path / "copy" / "state" / "0" / "_metadata" / "v2").glob("[0-9]*")
    assert b"s3a://replica/orders/state" in path.read_bytes()
