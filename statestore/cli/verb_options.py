"""Renders the options of a verb as options of its command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import click

from statekeeper.statestore.maintenance.verbs.options import Option, options_of

Command = Callable[..., None]


def verb_options(verb: type) -> Callable[[Command], Command]:
    """Add the options of a verb to a command, which gets their values by the names of the fields. A value that is not given
    is that of the field; None for a required field, because other actions of the command do not need it."""

    def add(command: Command) -> Command:
        for one in reversed([one for one in options_of(verb) if one.flag != ""]):
            command = _rendered(one)(command)
        return command

    return add


def flag_of(one: Option) -> str:
    """The name of an option on the command line."""
    return one.flag or f"--{one.name.replace('_', '-')}"


def _rendered(one: Option) -> Callable[[Command], Command]:
    shown: dict[str, Any] = {"help": one.help, "metavar": one.metavar, "default": one.default}
    if one.kind is bool:
        shown |= {"is_flag": True}
    elif one.kind is int:
        shown |= {"type": click.IntRange(one.least, one.most)}
    elif issubclass(one.kind, Mapping):
        shown |= {"multiple": True, "callback": _equations, "default": None}
    elif one.choices is not None:
        shown |= _choice(one.choices, one.default)
    return click.option(flag_of(one), one.name, **shown)


def _choice(choices: Mapping[str, Enum], default: Enum | None) -> dict[str, Any]:
    name = next((name for name, value in choices.items() if value is default), None)
    return {
        "type": click.Choice(list(choices)),
        "default": name,
        "show_default": name is not None,
        "callback": lambda _, __, value: None if value is None else choices[value],
    }


def _equations(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not COLUMN=VALUE")
        if name in found:
            raise click.BadParameter(f"column {name} is given twice: to delete several keys, use --delete-keys TABLE")
        found[name] = value
    return found
