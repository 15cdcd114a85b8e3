"""The commands in messages: they can be pasted, and do what the message says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statekeeper.statestore.base.messages import with_name
from statekeeper.statestore.cli import main
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.keyed_roots import KeyedRoot
from tests.support.maintainers import MAINTAINER
from tests.support.structures import as_sparks


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], obj=MAINTAINER)


def paste(command: str) -> Result:
    program, *arguments = shlex.split(command)
    assert program == "statekeeper"
    return run(*arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run: statekeeper audit ROOT --deep. Then wait", "run: statekeeper -c f audit 'a b' -e u --deep. Then wait"),
        ("statekeeper load 's3://x/y.z' ROOT --apply", "statekeeper -c f load 's3://x/y.z' 'a b' -e u --apply"),
        ("statekeeper audit SOURCE. Then", "statekeeper -c f audit 'a b' -e u. Then"),
        ("statekeeper finds it. Give ROOT a path", "statekeeper finds it. Give ROOT a path"),
        ("run statekeeper audit to see; ROOT is bad", "run statekeeper audit to see; ROOT is bad"),
        ("statekeeper lease s3://bucket/x --break", "statekeeper lease s3://bucket/x --break"),
    ],
)
def test_a_command_gets_the_root_and_other_texts_stay(text: str, expected: str) -> None:
    assert with_name(text, "a b", before=["-c", "f"], after=["-e", "u"]) == expected


def six_changelogs(folder: Path) -> Checkpoint:
    made = Checkpoint(open_storage(str(folder / "root of orders")), folder / "job")
    made.grow(6)
    return made


def test_snapshot_of_short_tails_says_why_it_takes_none_and_prints_the_command_that_does(tmp_path: Path) -> None:
    root = tmp_path / "root of orders"
    as_sparks(six_changelogs(tmp_path))
    told = run("snapshot", root, "--mode", "snapshots")
    assert told.exit_code == 0
    assert "the longest tail has 6 changelogs (state/0/" in told.output
    assert "and the limit is 50" in told.output
    assert run("snapshot", root, "--dry-run").output.splitlines()[-1].replace(" --mode snapshots", "") in told.output
    observed = run("snapshot", root)
    assert observed.output.splitlines()[-1].endswith("--all --mode snapshots"), "the mode of a native query is observe"
    done = paste(observed.output.splitlines()[-1].partition("run: ")[2])
    assert (done.exit_code, "2 taken" in done.output) == (0, True), done.output
    again = run("snapshot", root)
    assert "each one has a snapshot of its head" in again.output


def test_a_printed_command_has_the_configuration_and_the_name_that_were_given(tmp_path: Path) -> None:
    six_changelogs(tmp_path)
    configuration = tmp_path / "statekeeper.toml"
    configuration.write_text('[roots.orders]\nurl = "root of orders"\nmode = "full"\n')
    told = json.loads(run("--config", configuration, "snapshot", "orders", "--output", "json").stdout)
    command = told["next_step"].partition("run: ")[2]
    assert command == f"statekeeper --config {configuration} snapshot orders --all"
    assert "2 taken" in paste(command).output


def test_a_blocked_dry_run_says_what_blocks_it(tmp_path: Path) -> None:
    root = tmp_path / "root of orders"
    as_sparks(six_changelogs(tmp_path))
    shown = run("snapshot", root, "--all", "--dry-run")
    assert shown.exit_code == 0
    assert "blocked: " in shown.output
    assert "the mode of this root is observe" in shown.output


def test_the_plan_of_a_rescale_prints_commands_with_the_root(tmp_path: Path) -> None:
    KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path / "job", partitions=2, key_groups=16).grow(2)
    shown = run("rescale", tmp_path / "root", "--partitions", "3", "--scratch", tmp_path / "scratch")
    assert f"run: statekeeper rescale {tmp_path / 'root'} --partitions 2" in shown.output
    assert not re.search(r"statekeeper .*\bROOT\b", shown.output)


def _executes(told: Result) -> str:
    """The command in the last line of a plan."""
    found = re.fullmatch(
        r"to execute(, stop the query and run)?: (?P<command>statekeeper .*)", told.output.splitlines()[-1]
    )
    assert found is not None, told.output
    return found["command"]


def test_a_plan_ends_with_the_command_that_executes_it_with_the_options_as_given(tmp_path: Path) -> None:
    root = tmp_path / "root"
    KeyedRoot(open_storage(str(root)), tmp_path / "job", partitions=2, key_groups=16).grow(2)
    given = ["rescale", root, "--partitions", "3", "--scratch", tmp_path / "a folder"]
    command = _executes(run(*given))
    assert shlex.split(command) == ["statekeeper", *map(str, given), "--apply", "--confirm-stopped"]
    done = paste(command)
    assert (done.exit_code, "rescaled to 3 partitions" in done.output) == (0, True), done.output
    assert "to execute" not in done.output
    told = run("rescale", root, "--abort", "--confirm-stopped").output
    assert f"run: statekeeper rewind {root} --to-batch 1" in told, told


def test_a_dry_run_ends_with_the_same_command_without_dry_run(tmp_path: Path) -> None:
    root, copy = six_changelogs(tmp_path) and tmp_path / "root of orders", tmp_path / "copy"
    for given in (["snapshot", root, "--all"], ["clone", root, copy], ["savepoint", root, copy, "--label", "a"]):
        assert shlex.split(_executes(run(*given, "--dry-run"))) == ["statekeeper", *map(str, given)]
    done = paste(_executes(run("snapshot", root, "--all", "--dry-run")))
    assert "2 taken" in done.output
    assert "to execute" not in run("snapshot", root, "--all", "--dry-run").output, "nothing is left to execute"


def test_the_plan_of_gc_ends_with_the_command_that_deletes(tmp_path: Path) -> None:
    root = tmp_path / "root of orders"
    six_changelogs(tmp_path)
    assert run("snapshot", root, "--all").exit_code == 0
    command = _executes(run("gc", root, "--retain", "1", "--grace", "0s"))
    assert command == f"statekeeper gc '{root}' --retain 1 --grace 0s --apply"
    assert paste(command).exit_code == 0


def test_the_findings_of_an_audit_name_the_root_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = six_changelogs(tmp_path)
    store, version = made.stores[0], made.versions[6][0]
    (tmp_path / "root of orders" / store.changelog(version)).unlink()
    (tmp_path / "statekeeper.toml").write_text('[roots.orders]\nurl = "root of orders"\n')
    monkeypatch.chdir(tmp_path)
    assert "roll back to batch 4: statekeeper rewind orders --to-batch 4\n" in run("audit", "orders").output
    found = json.loads(run("audit", "orders", "--output", "json").stdout)["findings"][0]
    assert found["action"].endswith("statekeeper rewind orders --to-batch 4")
    command = found["action"].partition("batch 4: ")[2]
    assert "each of the 2 stores was restored at batch 4" in paste(command).output


def test_repair_without_work_names_the_verb_that_helps(tmp_path: Path) -> None:
    six_changelogs(tmp_path)
    told = run("repair", tmp_path / "root of orders").output
    command = told.strip().partition("run: ")[2]
    assert command == f"statekeeper audit '{tmp_path / 'root of orders'}' --deep"
    assert paste(command).exit_code == 0
