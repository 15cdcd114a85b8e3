"""`statekeeper explain` knows each code that the tool prints, and its commands can be pasted."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from statekeeper.statestore.base.errors import error_classes
from statekeeper.statestore.cli.main import main
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind
from statekeeper.statestore.maintenance.upkeep.audit.explanations import EXPLANATIONS
from tests.support.checkpoints import Checkpoint


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def test_explain_lists_each_code_of_a_finding_and_of_an_error() -> None:
    listed = json.loads(_run("explain", "--output", "json").stdout)
    assert {one["code"] for one in listed["findings"]} == {kind.code for kind in FindingKind}
    assert {(one["code"], one["exit_code"]) for one in listed["errors"]} == {
        (kind.code, kind.exit_code) for kind in error_classes()
    }
    shown = _run("explain").stdout
    assert all(f"  {one['code']} " in shown for one in (*listed["findings"], *listed["errors"]))


@pytest.mark.parametrize("kind", FindingKind, ids=lambda kind: kind.code)
def test_explain_tells_meaning_causes_what_works_and_the_next_command_of_a_finding(kind: FindingKind) -> None:
    shown = " ".join(_run("explain", kind.code).stdout.split())
    one = EXPLANATIONS[kind]
    for part in (
        one.meaning,
        *one.causes,
        one.works,
        one.action,
        *one.commands,
        f"docs/checks/{one.check}.md#{kind.code}",
    ):
        assert part.replace("`", "") in shown


@pytest.mark.parametrize("code", [kind.code for kind in error_classes()])
def test_explain_tells_meaning_and_action_of_an_error(code: str) -> None:
    found = json.loads(_run("explain", code, "--output", "json").stdout)["explanations"]
    [one] = [one for one in found if one["of"] == "error"]
    assert one["meaning"]
    assert one["action"].partition(".")[0]


@pytest.mark.parametrize("command", sorted({command for one in EXPLANATIONS.values() for command in one.commands}))
def test_each_command_of_an_explanation_has_a_verb_and_options_that_exist(command: str) -> None:
    program, name, *arguments = shlex.split(re.sub("BATCH|NUMBER", "7", command))
    assert program == "statekeeper"
    verb = main.commands[name]
    verb.make_parser(click.Context(verb)).parse_args(arguments)


def test_an_unknown_code_names_the_nearest_codes() -> None:
    result = _run("explain", "Changelog-Mising")
    assert result.exit_code == 2
    assert "the nearest codes are changelog_missing" in result.stderr
    assert "no code is like it" in _run("explain", "qqqqqqqqqqqqqqqq").stderr
    assert _run("explain", "Changelog-Missing").exit_code == 0


def test_the_audit_ends_with_the_command_that_explains_its_worst_finding(root: Path, checkpoint: Checkpoint) -> None:
    assert "explain" not in _run("audit", root).stdout
    store, version = checkpoint.stores[0], checkpoint.versions[2][0]
    (root / store.changelog(version)).unlink()
    last = _run("audit", root).stdout.splitlines()[-1]
    command = last.partition("explained by: ")[2]
    assert command == f"statekeeper explain changelog_missing {root}"
    explained = _run(*shlex.split(command)[1:]).stdout
    assert f"    statekeeper rewind {root} --to-batch 0\n" in explained, (
        "the batch before the lost changelog of batch 1"
    )
    assert "BATCH" not in explained.partition("Next: ")[2].partition("    ")[2]


def test_explain_names_no_batch_whose_damage_only_a_deep_audit_sees(root: Path, checkpoint: Checkpoint) -> None:
    file = root / checkpoint.stores[0].changelog(checkpoint.versions[2][0])
    data = bytearray(file.read_bytes())
    data[-1] ^= 0xFF
    file.write_bytes(data)
    assert _run("audit", root).exit_code == 0
    explained = _run("explain", "changelog_unreadable", root).stdout
    assert f"    statekeeper rewind {root} --to-batch BATCH\n" in explained
    assert f"BATCH is the batch that the audit names: statekeeper audit {root} --deep" in explained


def test_explain_says_where_the_number_comes_from_that_it_does_not_know(tmp_path: Path) -> None:
    told = "BATCH is the batch that the audit names: statekeeper audit"
    assert f"{told} ROOT" in _run("explain", "changelog_missing").stdout
    gone = _run("explain", "changelog_missing", tmp_path / "gone")
    assert gone.exit_code == 0
    assert "not_a_checkpoint: " in gone.stderr
    assert f"{told} {tmp_path}/gone" in gone.stdout
    assert f"{told} ROOT --deep" in _run("explain", "changelog_unreadable").stdout
    assert "NUMBER is the number of partitions" in _run("explain", "partitions_changed").stdout
    assert "BATCH is" not in _run("explain", "store_undescribed").stdout
