"""`statekeeper audit`, called by a user or a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statekeeper.statestore.base.errors import ObjectMissing
from statekeeper.statestore.cli import main
from statekeeper.statestore.format import names
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint


def audit(root: Path, *arguments: object) -> Result:
    result = CliRunner().invoke(main, ["audit", str(root), *(str(argument) for argument in arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_clean_checkpoint_is_reported_in_three_lines_and_unchanged(root: Path, checkpoint: Checkpoint) -> None:
    before = files_of(root)
    result = audit(root)
    assert result.exit_code == 0
    first, read, forecast, *unproven = result.stdout.splitlines()
    assert first.startswith("batch 3: clean; every store has all files of the newest batch, 3")
    assert read.startswith("2 stores with 8 versions; ")
    assert forecast.startswith("the next gc deletes at most 0 files (0 bytes); it retains ")
    assert unproven == [
        "this audit did not verify 3 properties; to list them, add --verbose; to verify most of them, add --deep"
    ]
    unproven = audit(root, "--verbose").stdout.splitlines()[3:]
    assert "--deep reads every byte" in unproven[0]
    assert all(line.startswith("not proved: ") for line in unproven)
    assert files_of(root) == before


def test_a_deep_audit_reports_the_decoded_files_and_leaves_the_scratch_folder_empty(
    root: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    CliRunner().invoke(main, ["snapshot", str(root), "--all"])
    before = files_of(root)
    result = audit(root, "--deep", "--scratch", tmp_path / "a new" / "folder")
    assert result.exit_code == 0
    keys = sum(len(state) for state in checkpoint.states[-1])
    assert f"{keys} keys of snapshots decoded" in result.stdout
    assert list((tmp_path / "a new" / "folder").iterdir()) == []
    assert files_of(root) == before


def test_findings_are_shown_worst_first_with_consequence_and_action(root: Path, checkpoint: Checkpoint) -> None:
    gone = checkpoint.stores[0].changelog(checkpoint.versions[3][0])
    (root / gone).unlink()
    (root / "state/0/1/foo.zip").write_text("[/red] and [bold]")
    (root / "state/0/1/[bold]").write_text("")
    result = audit(root)
    assert result.exit_code == 3
    lines = result.stdout.splitlines()
    assert lines[:5] == [
        "ERROR: a changelog is missing",
        f"  {gone} (of batch 2): is missing",
        f"    batches 2 to 3 of store {checkpoint.stores[0]} cannot be restored; "
        "the newest batch of which every store has all files is 1",
        f"    -> restore the file from a backup, or roll back to batch 1: statekeeper rewind {root} --to-batch 1",
        "",
    ]
    assert lines[5] == "WARNING: an unrecognized file"
    assert lines[6].startswith("  state/0/1/[bold]: is an unrecognized file")
    assert lines[9].startswith("  state/0/1/foo.zip: is an unrecognized file")
    assert "1 error, 2 warnings" in result.stdout


def test_json_output_is_one_object(root: Path, checkpoint: Checkpoint) -> None:
    gone = checkpoint.stores[1].changelog(checkpoint.versions[4][1])
    (root / gone).unlink()
    result = audit(root, "--output", "json")
    assert result.exit_code == 3
    body = json.loads(result.stdout)
    assert (body["batch"], body["version"], body["restart"]["batch"]) == (3, 4, 2)
    [finding] = body["findings"]
    assert (finding["severity"], finding["code"], finding["store"], finding["file"]) == (
        "error",
        "changelog_missing",
        "state/0/1",
        gone,
    )
    assert [(store["store"], len(store["lost"])) for store in body["stores"]] == [("state/0/0", 0), ("state/0/1", 1)]
    totals = body["totals"]
    assert (totals["errors"], totals["warnings"], totals["stores"], totals["versions"]) == (1, 0, 2, 8)
    assert totals["requests"] > 0
    assert body["unproven"]


def test_old_versions_that_the_next_gc_deletes_are_no_findings(root: Path, checkpoint: Checkpoint) -> None:
    CliRunner().invoke(main, ["snapshot", str(root), "--all"])
    (root / checkpoint.stores[0].changelog(checkpoint.versions[1][0])).unlink()
    assert audit(root).exit_code == 3
    assert audit(root, "--retain", 1).exit_code == 0


def test_errors_are_a_line_on_stderr_with_their_exit_code(root: Path, checkpoint: Checkpoint, tmp_path: Path) -> None:
    result = audit(tmp_path / "nowhere")
    assert (result.exit_code, result.stdout) == (10, "")
    assert result.stderr.startswith("not_a_checkpoint: ")
    for batch in range(4):
        (root / names.commits(batch)).write_text("v9\n{}")
    result = audit(root, "--output", "json")
    assert result.exit_code == 12
    error = json.loads(result.stdout)["error"]
    assert (error["code"], error["exit_code"], error["path"]) == ("unknown_format_version", 12, "commits/3")
    assert result.stderr.startswith("unknown_format_version: commits/3: has log version v9")
    (tmp_path / "a file").write_text("x")
    for batch in range(4):
        (root / names.commits(batch)).write_text("")
    result = audit(root, "--deep", "--scratch", tmp_path / "a file" / "below")
    assert result.exit_code == 1
    assert "local_state: " in result.stderr


def test_many_findings_are_counted_and_the_worst_are_shown(root: Path, checkpoint: Checkpoint) -> None:
    for number in range(60):
        (root / f"state/0/0/{number}.bak").write_text("")
    (root / names.commits(3)).write_text("")
    result = audit(root)
    assert result.stdout.startswith("ERROR: a commit cannot be read\n  commits/3: is empty")
    assert "the worst 50 of 61 problems; --output json prints all" in result.stdout
    assert len(json.loads(audit(root, "--output", "json").stdout)["findings"]) == 61


def test_the_audit_of_a_checkpoint_without_a_batch_does_not_say_that_it_is_clean(root: Path, tmp_path: Path) -> None:
    Checkpoint(open_storage(str(root)), tmp_path)
    result = audit(root)
    assert result.exit_code == 0
    assert result.stdout.startswith("no batch is committed yet: nothing to audit")


@pytest.mark.parametrize("verb", ["audit", "inspect", "lease", "dump", "diff"])
def test_no_verb_succeeds_over_zero_checkpoints(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "empty.toml"
    config.write_text(f'[parents.jobs]\nurl = "{tmp_path}"\n')
    for before, problem in (
        (["--config", str(config)], f"{config}: configures no checkpoint"),
        ([], "statekeeper.toml: does not exist in the working directory"),
    ):
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(main, [*before, verb, "--all", "--output", "json"])
        assert result.exit_code == 2, result.output
        assert f"bad_configuration: {problem}" in result.stderr
        assert json.loads(result.stdout)["error"]["code"] == "bad_configuration"


def test_maintain_does_not_succeed_over_zero_checkpoints(tmp_path: Path) -> None:
    config = tmp_path / "empty.toml"
    for text, status, exit_code in (
        ("", "ERROR: empty: the configuration names no root, so nothing is maintained", 1),
        (f'[parents.jobs]\nurl = "{tmp_path}"\n', "WARN: jobs: ", 3),
    ):
        config.write_text(text)
        result = CliRunner().invoke(main, ["--config", str(config), "maintain", "--all"])
        assert result.exit_code == exit_code
        assert result.stdout.startswith(status)


def test_a_missing_object_names_the_next_command(root: Path, checkpoint: Checkpoint) -> None:
    with pytest.raises(
        ObjectMissing, match=r"99\.zip: does not exist -> to find the damage, run: statekeeper audit ROOT"
    ):
        open_storage(str(root)).read("state/0/0/99.zip")
