"""`statekeeper gc` and `statekeeper lease`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import RefusedAsUnsafe, RootHeld
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.hosts import column
from tests.support.structures import as_sparks

NOW = ("--retain", "3", "--grace", "0s")


@pytest.fixture
def checkpoint(root: Path, checkpoint: Checkpoint) -> Checkpoint:
    """Twelve versions, with a snapshot of each fourth."""
    for batches in (0, 4, 4):
        checkpoint.grow(batches)
        assert run("snapshot", root, "--all").exit_code == 0
    return checkpoint


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_a_plan_shows_the_files_to_delete_with_reasons_and_deletes_nothing(root: Path, checkpoint: Checkpoint) -> None:
    before = files(root)
    shown = run("gc", root, *NOW)
    assert shown.exit_code == 0
    assert "older than the snapshot from which" in shown.output
    assert shown.output.splitlines()[-1].endswith(" --apply")
    assert files(root) == before


def test_apply_deletes_the_planned_files_and_records_plan_and_outcome(root: Path, checkpoint: Checkpoint) -> None:
    planned = json.loads(run("gc", root, *NOW, "--output", "json").stdout)
    going = {file["path"] for file in planned["files"]}
    assert going
    before = files(root)
    done = run("gc", root, *NOW, "--apply", "--output", "json")
    assert done.exit_code == 0, done.output
    assert {path for path in before - files(root) if not path.startswith(f"{names.LEASES}/")} == going
    outcome = json.loads(done.stdout)["done"]
    assert sum(step["files"] for step in outcome) == len(going)
    history = {path.name.split(".", 1)[1]: path.read_text() for path in (root / names.HISTORY).glob("*-gc-*")}
    assert set(history) == {"plan.jsonl", "outcome.jsonl"}
    lines = [json.loads(line) for line in history["plan.jsonl"].splitlines()]
    assert {line["delete"] for line in lines if "delete" in line} == going
    checkpoint.assert_right(root.parent / "host")
    again = json.loads(run("gc", root, *NOW, "--apply", "--output", "json").stdout)
    assert again["files"] == again["done"] == []


def test_an_option_shows_every_file_with_its_rule(root: Path, checkpoint: Checkpoint) -> None:
    shown = json.loads(run("gc", root, *NOW, "--verbose", "--output", "json").stdout)
    rules = {file["rule"] for file in shown["files"]}
    assert {"restores", "superseded", "log", "old_log"} <= rules


def test_a_damaged_store_is_a_finding(root: Path, checkpoint: Checkpoint) -> None:
    (root / checkpoint.stores[0].snapshot(checkpoint.versions[8][0])).unlink()
    (root / checkpoint.stores[0].changelog(checkpoint.versions[9][0])).unlink()
    shown = run("gc", root, *NOW)
    assert shown.exit_code == 3
    assert "does not load" in shown.output


def test_while_the_audit_reports_errors_gc_deletes_nothing(root: Path, checkpoint: Checkpoint) -> None:
    missing = root / checkpoint.stores[0].changelog(checkpoint.versions[11][0])
    missing.unlink()
    before = files(root)
    shown = run("gc", root, *NOW)
    assert shown.exit_code == 3
    assert "blocked: " in shown.output
    assert "gc deletes nothing while the audit reports errors" in " ".join(shown.output.split())
    audited = run("audit", root)
    assert "gc deletes nothing until the errors are fixed (" in audited.output
    young = run("gc", root, "--retain", "100", "--grace", "7d")
    assert "nothing to delete" in young.output
    assert young.output.splitlines()[-1].startswith("blocked: ")
    refused = run("gc", root, *NOW, "--apply")
    assert refused.exit_code == RefusedAsUnsafe.exit_code
    assert f"{checkpoint.stores[0].changelog(checkpoint.versions[11][0])}: is missing" in refused.output
    assert files(root) == before


def test_an_override_lists_the_lost_versions_and_deletes_only_the_plan(
    root: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    (root / checkpoint.stores[0].changelog(checkpoint.versions[11][0])).unlink()
    before = files(root)
    planned = json.loads(run("gc", root, *NOW, "--accept-loss", "--output", "json").stdout)
    assert files(root) == before, "without --apply it only lists"
    assert planned["refusals"] == []
    assert [error["file"] for error in planned["losses"]["errors"]] == [
        checkpoint.stores[0].changelog(checkpoint.versions[11][0])
    ]
    damaged, whole = planned["losses"]["stores"]
    assert damaged["already"] == [str(checkpoint.versions[11][0])]
    assert whole["already"] == []
    assert whole["by_deleting"] == [str(checkpoint.versions[number][1]) for number in range(1, 8)]
    shown = run("gc", root, *NOW, "--accept-loss")
    assert (shown.exit_code, files(root)) == (3, before)
    lines = shown.stdout.splitlines()
    missing = checkpoint.stores[0].changelog(checkpoint.versions[11][0])
    assert f"error: {missing} (of batch 10): is missing" in lines
    assert "state/0/0: these batches already cannot be loaded: batch 10" in lines
    assert "state/0/1: these batches cannot be loaded after the deletion: batches 0 to 6" in lines
    assert lines[-2] == f"due for deletion: {len(planned['files'])} files"
    assert lines[-1].endswith(" --accept-loss --apply")
    assert "cannot be loaded" not in run("gc", root, *NOW).stdout, "the losses are shown only if they are accepted"
    done = run("gc", root, *NOW, "--accept-loss", "--apply")
    assert done.exit_code == 3, done.output
    assert "state/0/0: these batches already cannot be loaded: batch 10" in done.stderr
    assert "state/0/1: these batches cannot be loaded after the deletion: batches 0 to 6" in done.stderr
    gone = {path for path in before - files(root) if not path.startswith(f"{names.LEASES}/")}
    assert gone == {file["path"] for file in planned["files"]} != set()
    checkpoint.assert_right(tmp_path / "host")
    checkpoint.assert_right(tmp_path / "another host", batch=9)


@pytest.mark.parametrize("of_spark", [False, True], ids=["own", "native"])
def test_gc_audit_and_inspect_agree_after_any_earlier_gc(
    root: Path, checkpoint: Checkpoint, tmp_path: Path, of_spark: bool
) -> None:
    if of_spark:
        as_sparks(checkpoint)
    config = tmp_path / "own.toml"
    assert run("gc", root, *NOW, "--apply", "--mode", "full").exit_code == 0
    checkpoint.grow(4)
    assert run("snapshot", root, "--all", "--mode", "snapshots").exit_code == 0
    for versions, deletes in ((100, False), (7, False), (3, True)):
        config.write_text(f"[roots.counting]\nurl = '{root}'\nretention = {{versions = {versions}, grace = '0s'}}\n")
        gc, audit, lineage = (
            run("--config", config, *verb, "--output", "json")
            for verb in (("gc", "counting"), ("audit", "counting"), ("inspect", "counting", "--lineage", "0/0"))
        )
        assert (gc.exit_code, audit.exit_code, lineage.exit_code) == (0, 0, 0), gc.output
        plan, found, drawn = json.loads(gc.stdout), json.loads(audit.stdout), json.loads(lineage.stdout)
        assert plan["floor"] == found["floor"] is not None
        assert plan["findings"] == []
        now = plan["deletable"]["now"]
        assert now == {"files": len(plan["files"]), "bytes": sum(file["bytes"] for file in plan["files"])}
        assert (now["files"], now["bytes"]) == (found["totals"]["garbage_files"], found["totals"]["garbage_bytes"])
        assert (now["files"] > 0) is deletes
        assert {one["problem"] for one in drawn["versions"]} == {None}
        going = [rule for one in drawn["versions"] for rule in one["files"].values() if rule == "superseded"]
        assert len(going) == sum(file["path"].startswith("state/0/0/") for file in plan["files"])
        shown = run("--config", config, "inspect", "counting", "--lineage", "0/0")
        assert "missing" not in shown.output
        assert "not there" not in shown.output


def test_a_plan_shows_the_bytes_to_delete_now_and_the_time_for_the_rest(root: Path, checkpoint: Checkpoint) -> None:
    plan = json.loads(run("gc", root, "--retain", "3", "--grace", "1h", "--output", "json").stdout)
    [young] = [one for one in plan["deletable"]["later"] if one["rule"] == "restores"]
    assert plan["deletable"]["now"] == {"files": 0, "bytes": 0}, "all versions are retained for an hour"
    assert young["bytes"] == sum(rule["bytes"] for name, rule in plan["rules"].items() if name == "restores")
    assert (
        young["when"] == "when the retention floor reaches the snapshot of batch 3, after batch 5 and the grace period"
    )
    shown = run("gc", root, *NOW)
    assert "now: " in shown.output
    assert "when the retention floor reaches the snapshot of batch 11" in " ".join(shown.output.split())
    log = root / names.COMMITS / "11"
    young_files = root / checkpoint.stores[0].changelog(checkpoint.versions[1][0])
    for path in (root / names.COMMITS).iterdir():
        os.utime(path, (1, 1))
    assert log.stat().st_mtime == 1
    plan = json.loads(run("gc", root, "--retain", "3", "--grace", "1h", "--output", "json").stdout)
    [young] = [one for one in plan["deletable"]["later"] if one["rule"] == "young"]
    assert young["when"].startswith("from 20")
    for path in root.rglob("*"):
        seconds = 1 if "_statekeeper" in path.parts or path.parent.name == names.COMMITS else 2_000_000_000.2
        os.utime(path, (seconds, seconds))
    os.utime(young_files, (2_000_000_000.7, 2_000_000_000.7))
    plan = json.loads(run("gc", root, "--retain", "3", "--grace", "1h", "--output", "json").stdout)
    [young] = [one for one in plan["deletable"]["later"] if one["rule"] == "young"]
    assert young["when"] == "from 2033-05-18T04:33:20Z", "two times in one second are shown once"
    assert young["from_seconds"] <= young_files.stat().st_mtime + 3600


def test_a_mode_that_forbids_deletion_is_obeyed(root: Path, checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = tmp_path / "own.toml"
    config.write_text(f"[roots.counting]\nurl = '{root}'\nmode = 'snapshots'\nretention = {{versions = 3}}\n")
    before = files(root)
    refused = run("--config", config, "gc", "counting", "--grace", "0s", "--apply")
    assert refused.exit_code == RefusedAsUnsafe.exit_code
    assert "the mode of this root is snapshots, which allows no deletions" in refused.output
    assert files(root) == before
    assert run("--config", config, "gc", "counting", "--grace", "0s", "--apply", "--mode", "full").exit_code == 0
    checkpoint.grow(1)
    config.write_text(config.read_text().replace("snapshots", "observe"))
    refused = run("--config", config, "snapshot", "counting", "--all")
    assert refused.exit_code == RefusedAsUnsafe.exit_code
    assert "the mode of this root is observe" in refused.output
    assert files(root) != before


def test_a_held_lease_is_shown_blocks_gc_and_can_be_broken(root: Path, checkpoint: Checkpoint) -> None:
    assert "the lease is free" in run("lease", root).output
    held = lease.acquire(open_storage(str(root)), "gc", run="one", holder="host:1", clock=SystemClock())
    assert "host:1: gc" in run("lease", root).output
    refused = run("gc", root, *NOW, "--apply")
    assert refused.exit_code == RootHeld.exit_code
    assert "host:1 holds the lease of this root for the command gc" in refused.output
    broken = run("lease", root, "--break")
    assert "released the lease of host:1: gc" in broken.output
    assert run("gc", root, *NOW, "--apply").exit_code == 0
    with pytest.raises(Exception, match="because it lost the lease"):
        held.require()


def test_a_duration_without_a_unit_is_a_usage_error(root: Path, checkpoint: Checkpoint) -> None:
    shown = run("gc", root, "--grace", "60")
    assert shown.exit_code == 2
    assert "write a number and a unit, for example 90s, 10m, 1h or 7d" in shown.output


def test_a_drawn_lineage_shows_snapshots_dead_branches_and_the_next_deletions(
    root: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    store = checkpoint.stores[0]
    with checkpoint.load(store, checkpoint.versions[9][0], tmp_path / "zombie") as opened:
        opened.put(column([b"of a zombie"]), column([b"x"]))
        dead = opened.commit()
    config = tmp_path / "own.toml"
    config.write_text(f"[roots.counting]\nurl = '{root}'\nretention = {{versions = 3, grace = '0s'}}\n")
    shown = run("--config", config, "inspect", "counting", "--lineage", "0/0")
    assert shown.exit_code == 0, shown.output
    lines = [" ".join(line.split()) for line in shown.output.splitlines()]
    assert lines[0] == (
        "state/0/0: the newest batch is 11, a restore of the retention floor starts at: batch 7. "
        "Below, each line begins with its batches; the files of batch N have the number N + 1"
    )
    assert lines[1].startswith("11 changelog and snapshot, ")
    assert any(line.startswith(f"9 changelog (next gc deletes it) of a dead branch, {dead.id}, ") for line in lines)
    assert any(line.startswith("7 changelog (next gc deletes it) and snapshot, ") for line in lines)
    assert any(line.startswith("0 .. 2 changelog (next gc deletes it), older than the lineage, ") for line in lines)
    body = json.loads(run("--config", config, "inspect", "counting", "--lineage", "0/0", "--output", "json").stdout)
    [of_dead] = [one for one in body["versions"] if one["version"] == str(dead)]
    assert (of_dead["committed"], of_dead["files"]) == (False, {"changelog": "dead_branch"})
    assert run("inspect", root, "--lineage", "7/7").exit_code == 2
    assert run("--config", config, "gc", "counting", "--apply").exit_code == 0
    shown = run("--config", config, "inspect", "counting", "--lineage", "0/0")
    assert "state/0/0: the newest batch is 11" in shown.output
    assert dead.id not in shown.output
