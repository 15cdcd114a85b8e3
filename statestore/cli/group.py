"""The group of all verbs: finds a verb by its name, and ends the command with the message and exit code of an error.

It is what `statekeeper --help` needs. The rest of the command line is imported when a verb runs or an error occurs.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from inspect import cleandoc
from itertools import pairwise
from typing import Any

import click
from click.shell_completion import CompletionItem

from statekeeper.statestore.base.errors import StatekeeperError

AS_JSON, _ARGUMENTS = (f"{__name__}.{key}" for key in ("as_json", "arguments"))
"""Keys of click's context, which the group and its verbs share."""


def errors_as_json(ctx: click.Context, *, wanted: bool) -> None:
    """Choose the format of errors on stdout."""
    ctx.meta[AS_JSON] = wanted


def arguments_of(ctx: click.Context) -> list[str]:
    """The arguments of this command as they were given, without the name of the program."""
    return list(ctx.meta[_ARGUMENTS])


class Group(Enum):
    """The groups of verbs, in the order of the help."""

    LOOK = "Look (they only read)"
    KEEP_HEALTHY = "Keep healthy (the query may be running)"
    RECOVER = "Recover (the query is stopped, and cannot or must not continue as it is)"
    CHANGE = "Change (the query is stopped, and continues with other state)"
    MOVE = "Move (the original stays)"
    SET_UP = "Set up"


@dataclass(frozen=True)
class VerbEntry:
    """A verb in the help. Verb `x` is the click command `x` of the module `cli.x`.

    line       what tells the verb apart from the others of its group
    example    a command that can be pasted, without the name of the program
    """

    name: str
    group: Group
    line: str
    example: str


class LazyVerbs(MutableMapping[str, click.Command]):
    """The commands by their names. Reading a command imports its module."""

    def __init__(self, entries: Sequence[VerbEntry]) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            entry = self.entries[name]
            command: click.Command = getattr(import_module(f"statekeeper.statestore.cli.{name}"), name)
            command.short_help = entry.line
            # `\b`: click keeps the line as it is.
            command.help = f"\b\n    statekeeper {entry.example}\n\n{cleandoc(command.help or '')}"
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class Verbs(click.Group):
    """Ends the command with the message and exit code of an error, never with a traceback."""

    commands: LazyVerbs

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs first: a reader looks for one, and then for the rules of all of them."""
        first, _, rules = cleandoc(self.help or "").partition("\n\n")
        self.format_usage(ctx, formatter)
        _write_paragraphs(formatter, first)
        self.format_commands(ctx, formatter)
        _write_paragraphs(formatter, rules)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        entries = self.commands.entries.values()
        width = max(len(entry.name) for entry in entries)
        for group in Group:
            lines = [(entry.name.ljust(width), entry.line) for entry in entries if entry.group is group]
            if lines:
                with formatter.section(group.value):
                    formatter.write_dl(lines)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        entries = sorted(self.commands.entries.values(), key=lambda entry: entry.name)
        verbs = [(entry.name, entry.line) for entry in entries if entry.name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in verbs), *options]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = tuple(args)
        # A usage error can precede --output, so that its callback is not called.
        errors_as_json(ctx, wanted=_is_json_requested(args))
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            from statekeeper.statestore.cli.common import end_with_usage_error

            end_with_usage_error(ctx, error)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            from statekeeper.statestore.cli.common import end_with_usage_error

            end_with_usage_error(ctx, error)
        except (StatekeeperError, MemoryError, KeyboardInterrupt) as error:
            from statekeeper.statestore.cli.common import end_with_error

            end_with_error(ctx, error)


def _write_paragraphs(formatter: click.HelpFormatter, text: str) -> None:
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(text)


def _is_json_requested(args: Sequence[str]) -> bool:
    formats = [after for option, after in pairwise(args) if option == "--output"]
    formats += [value for arg in args if (value := arg.removeprefix("--output=")) != arg]
    return bool(formats) and formats[-1] in ("json", "jsonl")
