"""The group of all verbs: finds a verb by its name, and ends the command with the message and exit code of an error.

It is what `statekeeper --help` needs. The rest of the command line is imported when a verb runs or an error occurs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import click
from click.shell_completion import CompletionItem

from statekeeper.statestore.base.errors import StatekeeperError

AS_JSON = f"{__name__}.as_json"
"""Key of click's context, which the group and its verbs share."""


def errors_as_json(ctx: click.Context, *, wanted: bool) -> None:
    """Choose the format of errors on stdout."""
    ctx.meta[AS_JSON] = wanted


class LazyVerbs(MutableMapping[str, click.Command]):
    """The commands by their names. Reading a command imports its module."""

    def __init__(self, short_help: Mapping[str, str]) -> None:
        self.short_help = short_help
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            if name not in self.short_help:
                raise KeyError(name)
            command: click.Command = getattr(import_module(f"statekeeper.statestore.cli.{name}"), name)
            command.short_help = self.short_help[name]
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.short_help)

    def __len__(self) -> int:
        return len(self.short_help)


class Verbs(click.Group):
    """Ends the command with the message and exit code of an error, never with a traceback."""

    commands: LazyVerbs

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = {name: click.Command(name, short_help=text) for name, text in self.commands.short_help.items()}
        click.Group(commands=lines).format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        verbs = sorted((name, text) for name, text in self.commands.short_help.items() if name.startswith(incomplete))
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in verbs), *options]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
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


def _is_json_requested(args: Sequence[str]) -> bool:
    formats = [after for option, after in pairwise(args) if option == "--output"]
    formats += [value for arg in args if (value := arg.removeprefix("--output=")) != arg]
    return bool(formats) and formats[-1] in ("json", "jsonl")
