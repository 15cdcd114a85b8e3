"""The help of the command and of its verbs: what a user reads first."""

from __future__ import annotations

import shlex

import click
import pytest
from click.testing import CliRunner

from statekeeper.statestore.cli.group import Group, VerbEntry
from statekeeper.statestore.cli.main import VERBS, main

COLUMNS = 80


def _help(*arguments: str) -> list[str]:
    result = CliRunner().invoke(main, [*arguments, "--help"], env={"COLUMNS": str(COLUMNS)})
    assert result.exit_code == 0
    return result.stdout.splitlines()


def test_the_help_of_the_command_shows_each_verb_with_one_line_below_its_group() -> None:
    shown, below = _help(), ""
    places = {}
    for line in shown:
        if line.endswith(":") and not line.startswith(" "):
            below = line.removesuffix(":")
        elif line[:2] == "  " and line.split()[0] in main.commands:
            places[line.split()[0]] = (below, line.split(maxsplit=1)[1].strip())
    assert places == {entry.name: (entry.group.value, entry.line) for entry in VERBS}
    assert list(places) == [entry.name for entry in sorted(VERBS, key=lambda entry: list(Group).index(entry.group))]


def test_the_help_of_the_command_names_the_verbs_before_the_rules_and_fits_a_screen() -> None:
    shown = _help()
    assert all(len(line) <= COLUMNS for line in shown)
    rules = shown[max(n for n, line in enumerate(shown) if line.strip().startswith(VERBS[-1].name)) + 1 :]
    rules = [line for line in rules[: rules.index("Options:")] if line]
    assert 5 <= len(rules) <= 10, rules
    assert len(shown) < 68
    assert not any(line.endswith("-") for line in shown), "no option is cut at its hyphen"


@pytest.mark.parametrize("entry", VERBS, ids=lambda entry: entry.name)
def test_the_help_of_a_verb_starts_with_an_example_that_can_be_pasted(entry: VerbEntry) -> None:
    shown = [line.strip() for line in _help(entry.name) if line]
    usage = next(number for number, line in enumerate(shown) if line.startswith("Usage:"))
    assert f"statekeeper {entry.example}" in shown[usage + 1 : usage + 3]
    name, *arguments = shlex.split(entry.example)
    assert name == entry.name
    command, ctx = main.commands[name], click.Context(main.commands[name])
    if isinstance(command, click.Group):
        command, arguments = command.commands[arguments[0]], arguments[1:]
        ctx = click.Context(command)
    # Options that do not exist or lack their value end it.
    _, rest, _ = command.make_parser(ctx).parse_args(list(arguments))
    assert rest == []
