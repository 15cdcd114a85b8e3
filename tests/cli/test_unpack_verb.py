"""`statekeeper unpack` writes the changelogs of batch logs as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import batch_log, names
from statekeeper.statestore.storage import open_storage
from statekeeper.statestore.storage.query_metrics import QueryMetrics
from tests.support.checkpoints import Checkpoint
from tests.support.maintainers import MAINTAINER
from tests.support.stores import overwrite

ATTEMPT = "00000000-0000-4000-8000-000000000000"


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


def test_inspect_shows_the_batch_logs_and_the_command_for_spark(logged: Checkpoint, tmp_path: Path) -> None:
    root = tmp_path / "logged"
    sizes = [path.stat().st_size for path in root.glob("_statekeeper/log/*")]
    shown = CliRunner().invoke(main, ["inspect", str(root), "--output", "json"], obj=MAINTAINER)
    expected = {"files": 4, "size_bytes": sum(sizes), "oldest": 1, "newest": 4}
    assert json.loads(shown.stdout)["batch_logs"] == expected
    text = CliRunner().invoke(main, ["inspect", str(root)], obj=MAINTAINER).output
    assert f"batch logs: 4 with {sum(sizes):,} bytes, batches 0 to 3" in text
    assert f"Spark reads their changelogs after: statekeeper unpack {root}" in text


def test_inspect_shows_the_figures_of_the_job(logged: Checkpoint, tmp_path: Path) -> None:
    metrics = QueryMetrics(
        batches=4,
        seconds=60.0,
        writes=12,
        reads=5,
        hedges_sent=3,
        hedges_won=2,
        record_bytes=4_096,
        members=8,
        record_milliseconds=(40.0, 90.0, 300.0),
        uploaded_bytes=1_000,
        early_bytes=800,
    )
    logged.storage.create(names.pending(3, ATTEMPT), json.dumps({"metrics": metrics.as_json()}).encode())
    root = str(tmp_path / "logged")
    shown = CliRunner().invoke(main, ["inspect", root, "--output", "json"], obj=MAINTAINER)
    assert QueryMetrics.parse(json.loads(shown.stdout)["metrics"]) == metrics
    text = CliRunner().invoke(main, ["inspect", root], obj=MAINTAINER).output
    assert "the newest 4 batches of the job took 60 s and sent 12 write requests and 5 read requests" in text
    assert "record of a batch: 4,096 bytes with 8 changelogs, written in 40 ms (p99 90 ms, p999 300 ms)" in text
    assert "slow requests sent twice: 3, the second reply was first for 2" in text
    assert "changelogs uploaded by tasks: 1,000 bytes, of which 80% before the commit" in text


def test_gc_names_the_store_that_keeps_batch_logs(logged: Checkpoint, tmp_path: Path) -> None:
    root = tmp_path / "logged"
    options = ["--retain", "1", "--grace", "0s"]
    run = [["snapshot", str(root), "--at-head"], ["gc", str(root), *options]]
    CliRunner().invoke(main, run[0], obj=MAINTAINER)
    logged.grow(2)
    laggard = logged.stores[1]
    [snapshot] = root.glob(f"{laggard.folder}/*.zip")
    snapshot.unlink()
    shown = CliRunner().invoke(main, run[1], obj=MAINTAINER).output
    assert f"{laggard} has the oldest base, and gc keeps" in shown, shown
    assert f"run: statekeeper snapshot {root} --all" in shown
    kept = json.loads(CliRunner().invoke(main, [*run[1], "--output", "json"], obj=MAINTAINER).stdout)["batch_logs"]
    assert (kept["laggard"], kept["of_laggard"]) == (str(laggard), 4)
    assert kept["live_bytes"] < kept["size_bytes"]


def test_an_older_batch_needs_fewer_files(logged: Checkpoint, tmp_path: Path) -> None:
    shown = statekeeper(tmp_path / "logged", "--batch", "1", "--dry-run", "--output", "json")
    assert len(json.loads(shown.stdout)["files"]) == 4
    assert statekeeper(tmp_path / "logged", "--batch", "9").exit_code == 1


@pytest.mark.parametrize("kept_bytes", [0, 10, -1])
def test_a_damaged_batch_log_is_not_reported_as_missing(logged: Checkpoint, tmp_path: Path, kept_bytes: int) -> None:
    log = batch_log.path_of(logged.versions[2][0])
    assert log is not None
    data = logged.storage.read(log)
    overwrite(logged.storage, log, data[:kept_bytes])
    failed = statekeeper(tmp_path / "logged", "--mode", "snapshots")
    assert failed.exit_code == CorruptFile.exit_code
    assert f"corrupt_file: {tmp_path / 'logged'}" in failed.output or f"corrupt_file: {log}" in failed.output
    assert "missing" not in failed.output
    shown = statekeeper(tmp_path / "logged", "--dry-run")
    assert log in shown.output
    assert "is missing" not in shown.output
    assert list((tmp_path / "logged").glob("state/0/*/*.changelog")) == []


def test_a_lost_batch_log_is_named(logged: Checkpoint, tmp_path: Path) -> None:
    log = batch_log.path_of(logged.versions[2][0])
    assert log is not None
    logged.storage.delete([log])
    failed = statekeeper(tmp_path / "logged", "--mode", "snapshots")
    assert failed.exit_code == 1
    assert log in failed.output
