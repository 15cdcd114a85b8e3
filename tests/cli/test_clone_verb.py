"""`statekeeper clone` at a terminal and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statekeeper.statestore.cli import main
from statekeeper.statestore.format import names
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.commands import shown_at_a_terminal
from tests.support.maintainers import MAINTAINER
from tests.support.s3_server import S3Server


def statekeeper(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], obj=MAINTAINER)


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job")
    made.grow(4)
    return made


def test_a_dry_run_shows_the_files_and_a_run_copies_them(source: Checkpoint, tmp_path: Path) -> None:
    verb = ("clone", tmp_path / "root", tmp_path / "copy", "--scratch", tmp_path)
    shown = statekeeper(*verb, "--dry-run")
    assert (shown.exit_code, "by the storage service" in shown.output) == (0, True)
    assert not (tmp_path / "copy").exists()
    done = statekeeper(*verb)
    assert done.exit_code == 0, done.output
    assert f"cloned batch 3 to file://{tmp_path}/copy" in done.output
    twin = Checkpoint.__new__(Checkpoint)
    twin.__dict__.update(source.__dict__, storage=open_storage(str(tmp_path / "copy")))
    twin.assert_right(tmp_path / "host")
    assert f"cloned from file://{tmp_path}/root at batch 3" in statekeeper("inspect", tmp_path / "copy").output
    again = statekeeper(*verb, "--dry-run")
    assert "the clone is complete: nothing to do" in again.output
    assert statekeeper(*verb).exit_code == 0


def test_json_has_the_plan_the_bytes_and_the_refusals(source: Checkpoint, tmp_path: Path) -> None:
    verb = ("clone", tmp_path / "root", tmp_path / "copy", "--scratch", tmp_path, "--output", "json")
    planned = json.loads(statekeeper(*verb, "--dry-run", "--batch", "2").output)
    assert (planned["batch"], planned["newest_batch"], planned["stores"], planned["refusals"]) == (2, 3, 2, [])
    assert planned["bytes"] == sum(file["bytes"] for file in planned["list"])
    assert planned["bytes"] == planned["bytes_by_service"] + planned["bytes_through_this_machine"]
    done = json.loads(statekeeper(*verb, "--batch", "2", "--new-query").output)
    assert (done["cloned"], done["query_id"] != planned["query_id"]) == (True, True)
    refused = statekeeper(*verb, "--batch", "3", "--dry-run")
    assert refused.exit_code == 3
    assert json.loads(refused.output)["refusals"][0]["code"] == "destination_not_empty"
    failed = statekeeper(*verb, "--batch", "3")
    assert (failed.exit_code, json.loads(failed.stdout)["error"]["code"]) == (13, "destination_not_empty")


def test_the_destination_has_the_options_of_a_configured_source(s3_server: S3Server, tmp_path: Path) -> None:
    url = f"s3://{s3_server.make_bucket()}/root"
    made = Checkpoint(open_storage(url, options=s3_server.options), tmp_path / "job")
    made.grow(2)
    configured = tmp_path / "statekeeper.toml"
    options = "".join(f'{name} = "{value}"\n' for name, value in s3_server.options.items())
    configured.write_text(f'[roots.query]\nurl = "{url}"\n[roots.query.storage]\n{options}')
    other = f"s3://{s3_server.make_bucket()}/clone"
    done = statekeeper("--config", configured, "clone", "query", other, "--scratch", tmp_path, "--output", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["bytes_by_service"] > 0
    assert open_storage(other, options=s3_server.options).stat(names.commits(1)) is not None


@pytest.mark.parametrize(
    "verb",
    [
        ("clone",),
        pytest.param(("mirror",), marks=pytest.mark.slow),
        pytest.param(("savepoint", "--label", "march"), marks=pytest.mark.slow),
    ],
    ids=lambda verb: str(verb[0]),
)
def test_a_terminal_shows_the_progress_of_the_copy_in_bytes(
    source: Checkpoint, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    assert source.stores
    arguments = [verb[0], str(tmp_path / "root"), str(tmp_path / "copy"), *verb[1:]]
    size = json.loads(statekeeper(*arguments, "--dry-run", "--output", "json").output)["bytes"]
    shown = shown_at_a_terminal(*arguments, "--scratch", tmp_path)
    number = f"{size / 1000:.1f}"
    assert f"{number}/{number} kB" in shown
