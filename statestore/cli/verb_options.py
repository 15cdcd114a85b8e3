"""Renders the options of a verb as options of its command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

import click

from statekeeper.statestore.cli.common import Duration, complete_root
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.verbs.contract import Verb
from statekeeper.statestore.maintenance.verbs.options import Option, options_of

Command = Callable[..., None]


_TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]


def verb_options(*verbs: type) -> Callable[[Command], Command]:
    """Add the options of a verb, or of several, to a command, which gets their values by the names of the fields. A value
    that is not given is that of the field; None for a required field, because other actions of the command do not need it.
    """
    options: dict[str, Option] = {}
    for verb in verbs:
        for one in options_of(verb):
            options.setdefault(one.name, one)

    def add(command: Command) -> Command:
        for one in reversed([one for one in options.values() if one.flag != ""]):
            command = _rendered(one)(command)
        return command

    return add


def undo_option(verb: type[Verb[Any, Any, Any]]) -> Callable[[Command], Command]:
    """The option --undo of a verb that moves files into quarantine."""
    return click.option(
        "--undo",
        metavar="RUN",
        help=f"Undo an earlier {verb.name}: put back all files that it quarantined. RUN is the id that {verb.name} --apply "
        "printed. Rejected if the query has committed a batch since. Runs immediately, without --apply.",
    )


def flag_of(one: Option) -> str:
    """The name of an option on the command line."""
    return one.flag or f"--{one.name.replace('_', '-')}"


def _rendered(one: Option) -> Callable[[Command], Command]:
    shown: dict[str, Any] = {"help": one.help, "metavar": one.metavar, "default": one.default}
    if one.kind is bool:
        shown |= {"is_flag": True}
    elif one.kind is int:
        shown |= {"type": click.IntRange(one.least, one.most)}
    elif one.kind is float:
        shown |= {"type": Duration()}
    elif one.kind is tuple:
        shown |= {"multiple": True, "default": ()}
    elif one.kind is Path:
        shown |= {"type": click.Path(dir_okay=False, exists=True, path_type=Path)}
    elif one.kind is datetime:
        shown |= {"type": click.DateTime(_TIMES)}
    elif one.is_location:
        shown |= {"shell_complete": complete_root}
    elif one.is_query_id:
        shown |= {"callback": _query_id}
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


def _query_id(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    if given is not None and not names.is_checkpoint_id(given):
        raise click.BadParameter(f"{given!r} is not a UUID")
    return given


def _equations(_: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not {option.metavar or 'COLUMN=VALUE'}")
        if name in found:
            more = ": to delete several keys, use --delete-keys TABLE" if option.name == "delete" else ""
            raise click.BadParameter(f"column {name} is given twice{more}")
        found[name] = value
    return found
