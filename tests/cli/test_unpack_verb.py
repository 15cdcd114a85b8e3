"""`statekeeper unpack` writes the changelogs of batch logs as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statestore.cli import main
from statestore.format import batch_log
from statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.maintainers import MAINTAINER


def statekeeper(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["unpack", *map(str, arguments)], obj=MAINTAINER)


@pytest.fixture
def logged(tmp_path: Path) -> Checkpoint:
    made = Checkpoint(open_storage(str(tmp_path / "logged")), tmp_path / "job", in_batch_logs=True)
    made.grow(4)
    return made


def test_a_dry_run_shows_the_files_and_a_run_writes_them(logged: Checkpoint, tmp_path: Path) -> None:
    root = tmp_path / "logged"
    shown = statekeeper(root, "--dry-run", "--output", "json")
    assert shown.exit_code == 0, shown.output
    assert len(json.loads(shown.stdout)["files"]) == 8
    assert list(root.glob("state/0/*/*.changelog")) == []
    assert statekeeper(root, "--mode", "observe").exit_code == 13
    done = statekeeper(root, "--mode", "snapshots")
    assert done.exit_code == 0, done.output
    assert "wrote 8 changelogs" in done.output
    assert "Spark can read batch 3" in done.output
    assert len(list(root.glob("state/0/*/*.changelog"))) == 8
    assert "no file to write" in statekeeper(root).output


def test_an_older_batch_needs_fewer_files(logged: Checkpoint, tmp_path: Path) -> None:
    shown = statekeeper(tmp_path / "logged", "--batch", "1", "--dry-run", "--output", "json")
    assert len(json.loads(shown.stdout)["files"]) == 4
    assert statekeeper(tmp_path / "logged", "--batch", "9").exit_code == 1


def test_a_lost_batch_log_is_named(logged: Checkpoint, tmp_path: Path) -> None:
    log = batch_log.path_of(logged.versions[2][0])
    assert log is not None
    logged.storage.delete([log])
    failed = statekeeper(tmp_path / "logged", "--mode", "snapshots")
    assert failed.exit_code == 1
    assert log in failed.output
