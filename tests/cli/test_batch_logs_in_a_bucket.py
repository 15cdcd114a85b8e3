"""Verbs that read the state of a Python job whose changelogs are batch logs in a bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from statekeeper.statestore.cli import main
from statekeeper.statestore.format import names
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.counted_state import SCHEMA, changes
from tests.support.maintainers import MAINTAINER
from tests.support.s3_server import S3Server


@pytest.fixture
def job(s3_server: S3Server, tmp_path: Path) -> Checkpoint:
    """A root with one store and two versions: the keys a and b, then also c; b is deleted."""
    storage = open_storage(f"s3://{s3_server.make_bucket()}/root", options=s3_server.options)
    made = Checkpoint(storage, tmp_path / "job", schema=SCHEMA, partitions=1, in_batch_logs=True)
    made.batch(changes(a=1, b=2))
    made.batch(changes(b=None, c=3))
    assert not [entry for entry in storage.list(names.STATE) if entry.path.endswith(".changelog")]
    return made


def json_of(job: Checkpoint, s3_server: S3Server, folder: Path, verb: str, *arguments: str) -> dict:
    """The JSON output of a verb for the root."""
    options = "".join(f'{name} = "{value}"\n' for name, value in s3_server.options.items())
    configured = folder / "statekeeper.toml"
    configured.write_text(f'[roots.query]\nurl = "{job.storage.url}"\n[roots.query.storage]\n{options}')
    command = ["--config", str(configured), verb, "query", *arguments, "--output", "json"]
    result = CliRunner().invoke(main, command, obj=MAINTAINER)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_dump_shows_the_rows_of_batch_logs(job: Checkpoint, s3_server: S3Server, tmp_path: Path) -> None:
    rows = json_of(job, s3_server, tmp_path, "dump", "--batch", "0")["rows"]
    assert sorted(row["key"]["name"] for row in rows) == ["a", "b"]


def test_diff_shows_the_changes_of_a_batch_log(job: Checkpoint, s3_server: S3Server, tmp_path: Path) -> None:
    rows = json_of(job, s3_server, tmp_path, "diff", "--from", "1")["changes"]
    assert sorted((row["change"], row["key"]["name"]) for row in rows) == [("added", "c"), ("removed", "b")]


def test_a_snapshot_at_the_head_replaces_the_replay_of_batch_logs(
    job: Checkpoint, s3_server: S3Server, tmp_path: Path
) -> None:
    before = json_of(job, s3_server, tmp_path, "dump")["rows"]
    [taken] = json_of(job, s3_server, tmp_path, "snapshot", "--at-head")["taken"]
    assert (taken["version"].split("_")[0], taken["keys"]) == ("2", 2)
    job.storage.delete([entry.path for entry in job.storage.list(names.BATCH_LOGS)])
    assert json_of(job, s3_server, tmp_path, "dump")["rows"] == before
