"""The command line, called by a user or a program."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.cli import main, tables
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.commands import at_a_terminal, json_output, run
from tests.support.entry_points import ARCHIVES
from tests.support.s3_server import S3Server

KINDS = (".changelog", ".zip", ".sst")
COMMAND = Path(sys.executable).parent / "statekeeper"


def test_a_dry_run_shows_actions_with_reasons_and_writes_nothing(root: Path, checkpoint: Checkpoint) -> None:
    plan = json_output("snapshot", root, "--all", "--dry-run")
    assert [(action["store"], action["reason"]) for action in plan["take"]] == [
        ("state/0/1", "asked"),
        ("state/0/0", "asked"),
    ]
    assert not list(root.glob("state/*/*/*.zip"))
    shown = run("snapshot", root, "--dry-run", "--changelogs", 4).output
    assert "2 snapshots to take, 0 stores to skip" in shown
    short = json_output("snapshot", root, "--dry-run")
    assert [action["reason"] for action in short["leave"]] == ["short_tail", "short_tail"]
    assert short["leave"][0]["explained"].startswith("the tail is short: 4 changelogs, ")


def test_snapshots_are_taken_and_the_next_run_takes_none(root: Path, checkpoint: Checkpoint, tmp_path: Path) -> None:
    done = json_output("snapshot", root, "--all")
    assert [one["outcome"] for one in done["taken"]] == ["new", "new"]
    assert [one["keys"] for one in done["taken"]] == [len(state) for state in reversed(checkpoint.states[-1])]
    assert len(list(root.glob("state/*/*/*.zip"))) == 2
    assert json_output("snapshot", root, "--all")["taken"] == []
    assert "0 taken, 0 failed, 2 skipped" in run("snapshot", root).output
    checkpoint.assert_right(tmp_path / "fresh")


def test_inspect_shows_base_and_tail_of_each_store(root: Path, checkpoint: Checkpoint) -> None:
    run("snapshot", root, "--all")
    checkpoint.grow(2)
    seen = json_output("inspect", root)
    assert (seen["batch"], seen["version"]) == (5, 6)
    for store, version in zip(seen["stores"], checkpoint.versions[4], strict=True):
        assert (store["base"], store["tail_changelogs"]) == (str(version), 2)
        assert store["restore_seconds"] >= 0
        folder = root / store["store"]
        assert store["bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in KINDS)
    table = run("inspect", root).output
    assert "batch 5, structure V2: 2 stores" in table
    assert "restore s" in table


@pytest.mark.parametrize("structure", ["v1", "v2"])
@pytest.mark.parametrize("log", ["commits", "offsets"])
def test_inspect_shows_the_stores_at_the_batch_before_a_damaged_log_and_names_the_log(
    tmp_path: Path, log: str, structure: str
) -> None:
    with zipfile.ZipFile(ARCHIVES / f"spark-4.2.0-{structure}-aggregation.zip") as archive:
        archive.extractall(tmp_path)
    root = tmp_path / "checkpoint"
    before = json_output("inspect", root)
    newest, damaged = before["batch"], f"{log}/{before['batch']}"
    (root / damaged).write_text("v1")
    seen = run("inspect", root)
    assert seen.exit_code == 1
    assert f"{damaged} is damaged: the query cannot restart from it" in seen.stdout
    assert f"batch {newest - 1}, structure {structure.upper()}" in seen.stdout
    assert "restore time after a rewind to it" in seen.stdout
    assert f"corrupt_file: {damaged}: " in seen.stderr
    assert f"run: statekeeper audit {root}" in seen.stderr
    told = run("inspect", root, "--output", "json")
    body = json.loads(told.stdout)
    assert (told.exit_code, body["error"]["code"], body["error"]["path"]) == (1, "corrupt_file", damaged)
    assert body["batch"] == newest - 1
    assert [store["store"] for store in body["stores"]] == [store["store"] for store in before["stores"]]
    assert {store["head"].split("_")[0] for store in body["stores"]} == {str(newest)}


def test_inspect_shows_no_stores_if_no_commit_can_be_read(root: Path, checkpoint: Checkpoint) -> None:
    for commit in (root / "commits").iterdir():
        commit.write_text("v1")
    told = run("inspect", root, "--output", "json")
    assert (told.exit_code, list(json.loads(told.stdout))) == (1, ["error"])


def test_a_store_that_cannot_be_loaded_is_a_finding(root: Path, checkpoint: Checkpoint) -> None:
    gone = checkpoint.stores[0].changelog(checkpoint.versions[-1][0])
    (root / gone).unlink()
    result = run("inspect", root, "--output", "json")
    assert result.exit_code == 3
    assert gone in json.loads(result.stdout)["stores"][0]["problem"]
    result = run("snapshot", root, "--all", "--output", "json")
    assert result.exit_code == 3
    body = json.loads(result.stdout)
    assert [one["store"] for one in body["taken"]] == ["state/0/1"]
    assert body["next_step"].endswith(f"run: statekeeper audit {root}")
    planned = run("snapshot", root, "--all", "--dry-run", "--output", "json")
    assert (planned.exit_code, json.loads(planned.stdout)["next_step"]) == (3, body["next_step"])


def test_errors_are_a_line_on_stderr_with_their_exit_code(root: Path) -> None:
    for verb in ("snapshot", "inspect"):
        result = run(verb, root)
        assert (result.exit_code, result.stdout) == (10, "")
        assert result.stderr.startswith("not_a_checkpoint: ")
        assert "Traceback" not in result.stderr
    assert run("snapshot").exit_code == 2
    assert run("inspect", "s3://bucket/../else").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit"], "give one or more ROOTs, or --all"),
        (["lease"], "give one or more ROOTs, or --all"),
        (["audit", "ROOT", "--nope"], "--nope"),
        (["gc", "ROOT", "--grace", "7"], "7"),
        (["dump", "ROOT", "--key", "7"], "'7' is not COLUMN=VALUE"),
        (["inspect", "s3://bucket/../else"], ".."),
        (["nope"], "nope"),
        (["--nope", "audit"], "--nope"),
    ],
)
def test_usage_errors_are_json_too_when_json_is_requested(
    root: Path, checkpoint: Checkpoint, arguments: list[str], message: str
) -> None:
    named = [str(root) if argument == "ROOT" else argument for argument in arguments]
    for output in (["--output", "json"], ["--output=json"]):
        result = run(*named, *output)
        assert result.exit_code == 2
        error = json.loads(result.stdout)["error"]
        assert (error["code"], error["exit_code"], error["path"]) == ("usage", 2, None)
        assert message in error["message"]
        assert message in result.stderr
    assert run(*named).stdout == ""


def test_the_help_of_each_verb_says_what_runs_immediately() -> None:
    for name, verb in main.commands.items():
        text = " ".join(run(name, "--help").output.split())
        options = {option for param in verb.params for option in param.opts}
        if "--apply" in options:
            assert "; with --apply, " in text, name
        else:
            assert any(said in text for said in ("only reads", "writes nothing below ROOT", "runs immediately")), name
        for option in options & {"--undo", "--abort", "--break"}:
            assert re.search(rf"{option} .*?Runs immediately", text), (name, option)


def test_a_failed_snapshot_does_not_stop_the_others_and_sets_the_exit_code(root: Path, checkpoint: Checkpoint) -> None:
    def spoil(partition: int) -> None:
        store, version = checkpoint.stores[partition], checkpoint.versions[2][partition]
        path = root / store.changelog(version)
        data = bytearray(path.read_bytes())
        data[-30] ^= 1
        path.write_bytes(data)

    spoil(1)
    result = run("snapshot", root, "--all", "--output", "json")
    assert result.exit_code == 4
    body = json.loads(result.stdout)
    assert [one["store"] for one in body["taken"]] == ["state/0/0"]
    assert [(one["store"], one["code"]) for one in body["failed"]] == [("state/0/1", "version_not_loadable")]
    assert f"the corrupt files and the next step, run: statekeeper audit {root} --deep" in body["next_step"]
    again = run("snapshot", root, "--all")
    assert again.exit_code == 1, "nothing was done"
    assert f"statekeeper audit {root} --deep" in again.output


def test_with_any_number_of_workers_all_stores_are_taken_and_reported_worst_first(root: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint(open_storage(str(root)), tmp_path, partitions=6)
    checkpoint.grow(2)
    gone = root / checkpoint.stores[4].changelog(checkpoint.versions[1][4])
    gone.write_bytes(gone.read_bytes()[:-30])
    result = run("snapshot", root, "--all", "--workers", 3, "--output", "json")
    assert result.exit_code == 4
    body = json.loads(result.stdout)
    assert [one["store"] for one in body["taken"]] == [f"state/0/{partition}" for partition in (5, 3, 2, 1, 0)]
    assert "state/0/4: " in result.stderr
    for one in body["taken"]:
        folder = root / one["store"]
        assert one["uploaded_bytes"] == sum(
            file.stat().st_size for file in folder.rglob("*") if file.suffix in (".zip", ".sst")
        )


def test_an_interrupted_run_ends_cleanly_and_reports_completed_snapshots(root: Path, tmp_path: Path) -> None:
    partitions = 120  # not so few that all are done before the signal comes
    checkpoint = Checkpoint(open_storage(str(root)), tmp_path, partitions=partitions)
    checkpoint.grow(1)
    command = [COMMAND, "snapshot", root, "--all", "--output", "json", "--workers", "1"]
    command += ["--scratch", tmp_path / "scratch"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs with SIGINT ignored, and their children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        while not list(root.rglob("*.zip")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert not list((tmp_path / "scratch").iterdir())
    taken = [one["store"] for one in json.loads(stdout)["taken"]]
    assert sorted(taken) == sorted(str(zip_file.parent.relative_to(root)) for zip_file in root.rglob("*.zip"))
    assert 1 <= len(taken) < partitions
    assert len(json_output("snapshot", root, "--all")["taken"]) == partitions - len(taken)
    checkpoint.assert_snapshots_are_right(tmp_path / "fresh")


@pytest.mark.parametrize("columns", [80, 200])
def test_a_terminal_breaks_lines_between_words_and_never_in_a_command(
    root: Path, checkpoint: Checkpoint, columns: int
) -> None:
    (root / checkpoint.stores[0].changelog(checkpoint.versions[-1][0])).unlink()
    whole = run("audit", root).stdout.splitlines()
    code, shown = at_a_terminal("audit", root, stream="stdout", columns=columns)
    assert code == 3
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]
    commands = [found[0] for line in whole for found in re.finditer(r"statekeeper (?:rewind|explain) .*", line)]
    assert len(commands) == 2
    for command in commands:
        assert any(line.endswith(command) for line in lines), "it can be pasted"
    assert all(len(line) <= columns or line.strip() in commands for line in lines)
    assert any(len(line) > 80 for line in lines if line.strip() not in commands) == (columns == 200)
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(whole).split())
    further = [line for line in lines if not any(one.startswith(line) for one in whole)]
    assert further or columns == 200
    assert all(line.startswith("  ") for line in further), "a further line is indented"


def test_names_with_markup_characters_are_shown_unchanged(root: Path, checkpoint: Checkpoint) -> None:
    commit = root / "commits" / "3"
    commit.write_text("[/red] and [bold]")
    result = run("inspect", root)
    assert result.exit_code == 1
    assert "starts with '[/red] and [bold]'" in result.stderr


def test_a_scratch_folder_is_created_or_the_error_names_it(root: Path, checkpoint: Checkpoint) -> None:
    (root / "a file").write_text("x")
    result = run("snapshot", root, "--all", "--scratch", root / "a file" / "below")
    assert result.exit_code == 1
    assert "local_state: " in result.stderr
    assert run("snapshot", root, "--all", "--scratch", root.parent / "new" / "folder").exit_code == 0


def test_a_checkpoint_without_a_batch_needs_no_snapshot(root: Path, tmp_path: Path) -> None:
    Checkpoint(open_storage(str(root)), tmp_path)
    seconds = {"restore_seconds_before": 0, "restore_seconds_after": 0}
    expected = {"batch": None, "take": [], "leave": [], "taken": [], "failed": [], "refusals": [], **seconds}
    shown = json_output("snapshot", root, "--all")
    assert shown.pop("next_step").startswith("no batch is committed yet")
    assert shown == expected
    nothing = {"batch": None, "version": None, "written_by": [], "restore_seconds": 0, "stores": [], "advice": []}
    assert json_output("inspect", root) == {
        **nothing,
        "stateless": None,
        "structure": None,
        "provider": None,
        "operators": {},
        "batch_logs": None,
        "cloned": None,
        "owner": None,
        "columns": {},
        "restore_measured": None,
        "mirror": None,
        "savepoint": None,
        "metrics": None,
    }
    assert "no batch is committed yet" in run("inspect", root).output
    assert "no batch is committed yet" in run("snapshot", root, "--all").output


def test_snapshots_are_made_without_pandas(root: Path, checkpoint: Checkpoint) -> None:
    """Its import takes longer than the command."""
    checkpoint.batch({b"long" * 50: b"1", b"long" * 40: b"2"}, {b"long" * 50: b"3"})
    tell = "import atexit, sys; atexit.register(lambda: print(sorted(sys.modules)))"
    command = [
        sys.executable,
        "-c",
        f"{tell}; from statekeeper.statestore.cli import main; main()",
        "snapshot",
        root,
        "--all",
    ]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "2 taken" in shown
    assert "'numpy'" in shown
    assert "'pandas'" not in shown


def test_the_command_is_installed_and_lists_its_verbs() -> None:
    shown = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
    for verb in main.commands:
        assert verb in shown


def test_only_cells_of_tables_are_wrapped_to_the_width_of_the_terminal(root: Path, checkpoint: Checkpoint) -> None:
    def lines(columns: int, *arguments: str) -> list[str]:
        result = CliRunner().invoke(main, [*arguments, str(root)], env={"COLUMNS": str(columns)})
        return [re.sub("[0-9.,]+", "", line) for line in result.stdout.splitlines() if line[:1] not in "┏┃┡│└"]

    for arguments in (["audit"], ["inspect"], ["snapshot", "--dry-run"], ["snapshot"], ["gc"], ["repair"]):
        assert lines(40, *arguments) == lines(1000, *arguments) != [], arguments


def test_an_error_for_a_path_near_a_checkpoint_suggests_the_checkpoint(
    root: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for near in (root.parent, root / "state"):
        result = run("inspect", near)
        assert result.exit_code == 10
        assert f"did you mean {root}" in result.stderr
    monkeypatch.chdir(root / "state")
    for near in (".", "0", "0/.."):
        assert (f"did you mean {root}?" in run("inspect", near).stderr) is (near != "0"), near
    error = said_error("inspect", root.parent)
    assert (error["code"], error["exit_code"]) == ("not_a_checkpoint", 10)
    assert str(root) in error["hint"]


def said_error(*arguments: object) -> dict[str, Any]:
    """The only JSON object on stdout of a command that fails."""
    body = json.loads(run(*arguments, "--output", "json").stdout)
    assert list(body) == ["error"]
    return body["error"]


def test_an_inspection_shows_structure_operators_and_keys(root: Path, checkpoint: Checkpoint) -> None:
    assert run("snapshot", root, "--all").exit_code == 0
    body = json_output("inspect", root)
    assert (body["structure"], body["operators"]) == ("v2", {"0": "counting"})
    assert all(store["base_keys"] > 0 for store in body["stores"])
    assert "operators: 0 counting" in run("inspect", root).stdout


def test_a_root_on_s3_is_read_from_the_endpoint_on_the_command_line(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{s3_server.make_bucket()}/orders"
    Checkpoint(open_storage(url, options=s3_server.options), tmp_path).grow(2)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.options["secret"])
    assert json_output("inspect", url, "--endpoint-url", s3_server.endpoint)["batch"] == 1
    error = said_error("inspect", url, "--endpoint-url", "http://127.0.0.1:1")
    assert error["code"] == "storage"


def test_several_roots_are_audited_in_one_call_and_the_worst_exit_code_wins(
    root: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    broken = root.parent / "broken"
    shutil.copytree(root, broken)
    gone = sorted(broken.glob("state/0/0/*.changelog"))[-1]
    gone.unlink()
    assert run("audit", root, root).exit_code == 0
    shown = run("audit", root, broken)
    assert shown.exit_code == 3
    assert shown.stdout.index(f"== {root}\n") < shown.stdout.index("clean") < shown.stdout.index(f"== {broken}\n")
    assert gone.name in shown.stdout
    failed = run("audit", broken, tmp_path / "nowhere", "--output", "json")
    assert failed.exit_code == 3, "an error of one root does not hide the findings of another"
    bodies = json.loads(failed.stdout)["roots"]
    assert [body["exit_code"] for body in bodies] == [3, 10]
    assert bodies[0]["findings"]
    assert bodies[1]["error"]["code"] == "not_a_checkpoint"


def test_the_leases_of_several_roots_are_shown_in_one_call(root: Path, checkpoint: Checkpoint) -> None:
    other = root.parent / "other"
    shutil.copytree(root, other)
    assert run("lease", root, other).stdout == f"== {root}\nthe lease is free\n== {other}\nthe lease is free\n"
    assert json_output("lease", root) == {"held": False, "broken": False}
    refused = run("lease", root, other, "--break")
    assert (refused.exit_code, "--break requires exactly one ROOT" in refused.stderr) == (2, True)
    assert not (root / "_statekeeper" / "lease").exists()


def test_all_configured_roots_and_those_below_their_parents_are_inspected(
    root: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    parent = tmp_path / "queries"
    shutil.copytree(root, parent / "orders")
    config = tmp_path / "own.toml"
    config.write_text(f"[roots.counting]\nurl = '{root}'\n[parents.queries]\nurl = '{parent}'\n")
    body = json.loads(run("--config", config, "inspect", "--all", "--output", "json").stdout)
    assert {one["root"]: one["structure"] for one in body["roots"]} == {"counting": "v2", "queries.orders": "v2"}
    assert run("--config", config, "inspect").exit_code == 2
    assert run("--config", config, "inspect", "--all", root).exit_code == 2
    config.write_text(f"[parents.queries]\nurl = '{parent}-misspelt'\n")
    assert f"queries: there is no folder at {parent}-misspelt" in run("--config", config, "audit", "--all").output


def test_a_table_wraps_a_long_path_and_does_not_shorten_it() -> None:
    path = "state/0/12/default/" + "0123456789abcdef" * 8 + ".zip"
    table = tables.table("1 file to repair", "action", "file", "reason")
    tables.add(table, "quarantine", path, "belongs to a corrupt snapshot that the head of the store does not need")
    console = Console(file=StringIO(), width=80)
    tables.show(console, table)
    assert isinstance(console.file, StringIO)
    rows = [line.split("│") for line in console.file.getvalue().splitlines() if line.startswith("│")]
    assert "".join(row[2].strip() for row in rows) == path


def test_a_count_of_one_has_a_singular_noun() -> None:
    assert [counted(number, "file") for number in (0, 1, 1_000)] == ["0 files", "1 file", "1,000 files"]
    assert [counted(number, "batch") for number in (1, 2)] == ["1 batch", "2 batches"]
