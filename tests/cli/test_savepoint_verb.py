"""`statekeeper savepoint` at a terminal and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.commands import shown_at_a_terminal, statekeeper
from tests.support.counted_state import SCHEMA, changes
from tests.support.s3_server import S3Server
from tests.support.savepoints import manifest, rows_of


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    made = Checkpoint(open_storage(str(tmp_path / "root")), tmp_path / "job", schema=SCHEMA)
    made.batch(changes(a=1, b=2), changes(z=9))
    made.batch(changes(a=None), changes())
    return made


def test_a_dry_run_shows_the_tables_and_a_run_writes_them(source: Checkpoint, tmp_path: Path) -> None:
    to = tmp_path / "to"
    verb = ("savepoint", tmp_path / "root", to, "--rows", "--scratch", tmp_path)
    shown = statekeeper(*verb, "--dry-run")
    assert (shown.exit_code, "rows/0/default" in shown.output, "typed" in shown.output) == (0, True, True)
    assert not to.exists()
    done = statekeeper(*verb)
    assert done.exit_code == 0, done.output
    assert f"saved batch 1 to file://{to}: 2 rows in 1 tables" in done.output
    assert [row["key"]["name"] for row in rows_of(to)] == ["b", "z"]
    assert "the savepoint is complete: nothing to do" in statekeeper(*verb, "--dry-run").output
    assert statekeeper(*verb).exit_code == 0


def test_json_has_the_plan_the_counts_and_the_refusals(source: Checkpoint, tmp_path: Path) -> None:
    verb = ("savepoint", tmp_path / "root", tmp_path / "to", "--rows", "--scratch", tmp_path, "--output", "json")
    planned = json.loads(statekeeper(*verb, "--dry-run", "--batch", "0").output)
    assert (planned["batch"], planned["newest_batch"], planned["stores"], planned["refusals"]) == (0, 1, 2, [])
    assert planned["bytes_read"] > 0
    done = json.loads(statekeeper(*verb, "--batch", "0", "--format", "delta").output)
    assert (done["saved"], done["rows"], done["untyped"]) == (True, 3, [])
    assert done["digest"] == manifest(tmp_path / "to")["digest"]
    refused = statekeeper(*verb, "--dry-run", "--batch", "1")
    assert refused.exit_code == 3
    assert json.loads(refused.output)["refusals"][0]["code"] == "destination_not_empty"
    failed = statekeeper(*verb, "--batch", "1")
    assert (failed.exit_code, json.loads(failed.stdout)["error"]["code"]) == (13, "destination_not_empty")
    assert "--rows --batch 0 --format delta" in json.loads(failed.stdout)["error"]["hint"]


@pytest.mark.slow
def test_a_terminal_shows_the_progress_of_the_rows(source: Checkpoint, tmp_path: Path) -> None:
    assert len(source.stores) == 2
    shown = shown_at_a_terminal("savepoint", tmp_path / "root", tmp_path / "to", "--rows", "--scratch", tmp_path)
    assert "stores (2 rows)" in shown
    assert "2/2" in shown


def test_a_labeled_savepoint_is_made_listed_and_deleted(source: Checkpoint, tmp_path: Path) -> None:
    root, to = tmp_path / "root", tmp_path / "to"
    verb = ("savepoint", root, to, "--label", "march", "--note", "before the upgrade", "--scratch", tmp_path)
    shown = statekeeper(*verb, "--dry-run")
    assert (shown.exit_code, "by the storage service" in shown.output) == (0, True)
    done = statekeeper(*verb)
    assert done.exit_code == 0, done.output
    assert f"saved batch 1 as march to file://{to}" in done.output
    for place in (root, to):
        [found] = json.loads(statekeeper("savepoint", place, "--list", "--output", "json").output)["savepoints"]
        assert (found["label"], found["note"], found["batch"]) == ("march", "before the upgrade", 1)
    assert "savepoint march: before the upgrade\n" in statekeeper("inspect", to).output
    line = statekeeper("savepoint", root, "--list").output
    assert "march: batch 1 as files" in line
    assert line.endswith(f"file://{to}: before the upgrade\n")
    planned = statekeeper("savepoint", root, "--delete", "march")
    assert (planned.exit_code, " --apply\n" in planned.output, (to / "metadata").exists()) == (0, True, True)
    deleted = json.loads(statekeeper("savepoint", root, "--delete", "march", "--apply", "--output", "json").output)
    assert (deleted["deleted"], deleted["files"] > 0) == (True, True)
    assert not list(to.rglob("*.*"))
    assert "savepoints: 0" in statekeeper("savepoint", root, "--list").output
    failed = statekeeper("savepoint", root, "--delete", "march")
    assert (failed.exit_code, "no savepoint has the label march" in failed.output) == (13, True)


def test_an_observed_source_is_named_in_the_result(source: Checkpoint, tmp_path: Path) -> None:
    verb = ("savepoint", tmp_path / "root", tmp_path / "to", "--label", "march", "--scratch", tmp_path)
    done = statekeeper(*verb, "--mode", "observe")
    assert done.exit_code == 0, done.output
    assert "the source does not list it" in done.output.replace("\n", " ")
    assert "savepoints: 0" in statekeeper("savepoint", tmp_path / "root", "--list").output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "Missing argument 'DESTINATION'"),
        (("to",), "give --label LABEL to keep the files, or --rows"),
        (("to", "--rows", "--note", "x"), "--note requires --label"),
        (("to", "--rows", "--location", "s3a://b/x"), "--location is only for a savepoint of files"),
        (("to", "--label", "../x"), "is not a valid label"),
        (("to", "--list"), "--list and --delete take only ROOT"),
        (("--list", "--delete", "x"), "--list and --delete take only ROOT"),
        (("--list", "--apply"), "--apply and --forget require --delete LABEL"),
    ],
)
def test_wrong_options_are_usage_errors(
    source: Checkpoint, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    result = statekeeper("savepoint", tmp_path / "root", *options)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_a_savepoint_in_a_bucket_has_the_options_of_its_configured_source(s3_server: S3Server, tmp_path: Path) -> None:
    url = f"s3://{s3_server.make_bucket()}/root"
    made = Checkpoint(open_storage(url, options=s3_server.options), tmp_path / "job", schema=SCHEMA)
    made.batch(changes(a=1), changes(z=9))
    configured = tmp_path / "statekeeper.toml"
    options = "".join(f'{name} = "{value}"\n' for name, value in s3_server.options.items())
    configured.write_text(f'[roots.query]\nurl = "{url}"\n[roots.query.storage]\n{options}')
    verb = ("--config", configured, "savepoint", "query")
    for number, how in enumerate((["--label", "files"], ["--label", "rows", "--rows", "--format", "delta"])):
        to = f"s3://{s3_server.make_bucket()}/savepoint-{number}"
        done = statekeeper(*verb, to, *how, "--scratch", tmp_path, "--output", "json")
        assert done.exit_code == 0, done.output
        assert len(json.loads(statekeeper(*verb, "--list", "--output", "json").output)["savepoints"]) == 1
        deleted = statekeeper(*verb, "--delete", how[1], "--apply", "--output", "json")
        assert (deleted.exit_code, json.loads(deleted.output)["files"] > 5) == (0, True)
        assert open_storage(to, options=s3_server.options).list("", hidden=True) == []
