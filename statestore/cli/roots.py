"""Runs a verb that only reads for several roots, and reports all results together."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from statestore.cli.common import (
    FAILED,
    FINDINGS,
    TALK,
    Output,
    complete_root,
    configuration_of,
    endpoint_option,
    error_object,
    open_root,
    say,
)
from statestore.cli.tables import as_json, plain
from statestore.errors import StatekeeperError
from statestore.maintenance import fleet

Verb = Callable[..., int]


def several_roots(verb: Verb) -> Callable[..., None]:
    """Give a verb the arguments ROOT... and the option --all. The verb takes one root and returns its exit code."""

    @functools.wraps(verb)
    def of_all(roots: tuple[str, ...], all_roots: bool, output: Output, **options: Any) -> None:
        ctx = click.get_current_context()
        if all_roots == bool(roots):
            raise click.UsageError("give one or more ROOTs, or --all")
        if len(roots) == 1:
            sys.exit(verb(root=open_root(ctx, roots[0]), output=output, **options))
        results: list[dict[str, Any]] = []
        codes: list[int] = []
        for name in _discovered(ctx, codes) if all_roots else roots:
            shown: list[dict[str, Any]] = []
            if not output.as_json:
                click.echo(f"== {name}")
            try:
                codes.append(verb(root=open_root(ctx, name), output=Output(output.as_json, shown), **options))
            except StatekeeperError as error:
                say(error)
                shown = [{"error": error_object(error)}]
                codes.append(error.exit_code)
            results.append({"root": name, "exit_code": codes[-1], **(shown[0] if shown else {})})
        if output.as_json:
            click.echo(as_json({"roots": results}))
        elif not results and not codes:
            click.echo("no checkpoints: statekeeper.toml configures none")
        sys.exit(max(codes, key=_severity, default=0))

    of_all = click.option(
        "--all",
        "all_roots",
        is_flag=True,
        help="All roots in statekeeper.toml. If it names a parent directory, all checkpoints below this directory.",
    )(of_all)
    argument = click.argument("roots", metavar="ROOT...", nargs=-1, shell_complete=complete_root)
    return argument(endpoint_option(of_all))


def _discovered(ctx: click.Context, codes: list[int]) -> Iterator[str]:
    """Yield the names of all checkpoints; print the locations that cannot be listed and count them as failures."""
    configuration = configuration_of(ctx)
    found = fleet.discover(configuration)
    for name, problem in found.problems.items():
        TALK.print(plain(f"{name}: {problem}"), soft_wrap=True)
        codes.append(FAILED)
    names = {*found.queries, *found.waiting}
    for name, parent in configuration.parents.items():
        if not found.is_unseen(name) and not any(child.startswith(f"{name}.") for child in names):
            TALK.print(plain(f"{name}: there is no folder below {parent.spec.url}"), soft_wrap=True)
    yield from sorted(names - found.problems.keys())


def _severity(code: int) -> tuple[bool, int]:
    """Order exit codes: success, findings, then errors."""
    return (code not in (0, FINDINGS), code)
