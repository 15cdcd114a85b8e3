"""Runs a verb that only reads for several roots, and reports all results together.

Most verbs return one result per root. `dump` and `diff` return any number of rows per root, so their output is a stream.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from statekeeper.statestore.base.errors import (
    BadConfiguration,
    NotACheckpoint,
    RefusedAsUnsafe,
    RootHeld,
    StatekeeperError,
    UnknownFormatVersion,
)
from statekeeper.statestore.base.messages import CONFIGURATION_FILE
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.cli.common import (
    FAILED,
    FINDINGS,
    TALK,
    Output,
    complete_root,
    configuration_of,
    error_object,
    open_root,
    say,
    start_spark_for,
    storage_options,
)
from statekeeper.statestore.cli.tables import as_json, plain
from statekeeper.statestore.maintenance.verbs import fleet

Verb = Callable[..., int]


def several_roots(verb: Verb) -> Callable[..., None]:
    """Give a verb the arguments ROOT... and the option --all. The verb takes one root and returns its exit code."""

    @functools.wraps(verb)
    def of_all(roots: tuple[str, ...], all_roots: bool, output: Output, **options: Any) -> None:
        ctx = click.get_current_context()
        if _is_one(roots, all_roots):
            sys.exit(verb(root=open_root(ctx, roots[0]), output=output, **options))
        if options.get("deep"):
            # Of these verbs, only an audit with --deep has tasks.
            start_spark_for(ctx, roots)
        results: list[dict[str, Any]] = []
        codes: list[int] = []
        for name in _discovered(ctx, codes) if all_roots else roots:
            shown: list[dict[str, Any]] = []
            if not output.as_json:
                click.echo(f"== {printable(name)}")
            try:
                codes.append(verb(root=open_root(ctx, name), output=Output(output.as_json, shown), **options))
            except StatekeeperError as error:
                say(error)
                shown = [{"error": error_object(error)}]
                codes.append(error.exit_code)
            results.append({"root": name, "exit_code": codes[-1], **(shown[0] if shown else {})})
        if not codes:
            raise no_checkpoints(ctx)
        if output.as_json:
            click.echo(as_json({"roots": results}))
        sys.exit(worst(codes))

    return roots_options(of_all)


def rows_of_several_roots(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the arguments ROOT... and the option --all. The verb takes one root and writes its rows to `rows`."""
    # Imported on demand: only `dump` and `diff` have rows.
    from statekeeper.statestore.cli.rows import ListOfRoots, RowOutput

    @functools.wraps(verb)
    def of_all(roots: tuple[str, ...], all_roots: bool, form: str, **options: Any) -> None:
        ctx = click.get_current_context()
        if _is_one(roots, all_roots):
            verb(root=open_root(ctx, roots[0]), rows=RowOutput(form), **options)
            return
        codes: list[int] = []
        list_of_roots = ListOfRoots(form)
        for name in _discovered(ctx, codes) if all_roots else roots:
            rows = list_of_roots.next(name)
            try:
                verb(root=open_root(ctx, name), rows=rows, **options)
                codes.append(0)
            except StatekeeperError as error:
                if rows.is_cut_short:
                    raise
                list_of_roots.failed(rows, error)
                codes.append(error.exit_code)
        if not codes:
            raise no_checkpoints(ctx)
        list_of_roots.end()
        sys.exit(worst(codes))

    return roots_options(of_all)


def no_checkpoints(ctx: click.Context) -> BadConfiguration:
    """The error of --all if there is no checkpoint: a result of nothing must not look like success."""
    chosen = ctx.find_root().params.get("config")
    file = CONFIGURATION_FILE if chosen is None else str(chosen)
    is_there = chosen is not None or Path(file).exists()
    return BadConfiguration(
        "configures no checkpoint, and its parents have no folder with one; nothing was examined"
        if is_there
        else "does not exist in the working directory, so --all has no checkpoint; nothing was examined",
        path=file,
        hint='name a checkpoint instead of --all, or add one to the file: [roots.orders] and url = "s3://bucket/orders"',
    )


def worst(codes: Iterable[int]) -> int:
    """The exit code for several roots: that of the root with the worst result."""
    return max(codes, key=lambda code: _WORST_LAST.index(code if code in _WORST_LAST else FAILED))


_WORST_LAST = (
    0,
    NotACheckpoint.exit_code,
    RootHeld.exit_code,
    UnknownFormatVersion.exit_code,
    RefusedAsUnsafe.exit_code,
    FAILED,
    FINDINGS,
)
"""A finding is the worst: state is lost or at risk. After an error, nothing of the root is known."""


def _is_one(roots: tuple[str, ...], all_roots: bool) -> bool:
    if all_roots == bool(roots):
        raise click.UsageError("give one or more ROOTs, or --all")
    return len(roots) == 1


def chosen_roots(ctx: click.Context, codes: list[int], roots: tuple[str, ...], *, all_roots: bool) -> Iterable[str]:
    """Return the names of the given roots, or of all checkpoints as `several_roots`. Raises `click.UsageError`."""
    _is_one(roots, all_roots)
    return _discovered(ctx, codes) if all_roots else roots


def roots_options(command: Callable[..., None]) -> Callable[..., None]:
    """The arguments ROOT..., and the option --all."""
    command = click.option(
        "--all",
        "all_roots",
        is_flag=True,
        help="Use all checkpoints that statekeeper.toml configures: those in [roots], and those below the folders in "
        "[parents]. Give either ROOT or --all.",
    )(command)
    argument = click.argument("roots", metavar="ROOT...", nargs=-1, shell_complete=complete_root)
    return argument(storage_options(command))


def _discovered(ctx: click.Context, codes: list[int]) -> Iterator[str]:
    """Yield the names of all checkpoints; print the locations that cannot be listed and count them as failures."""
    configuration = configuration_of(ctx)
    found = fleet.discover(configuration)
    for name, problem in found.problems.items():
        TALK.print(plain(f"{name}: {problem}"), soft_wrap=True)
        codes.append(FAILED)
    for name in found.empty:
        TALK.print(plain(f"{name}: there is no folder at {configuration.parents[name].url}"), soft_wrap=True)
    yield from sorted({*found.queries, *found.waiting} - found.problems.keys())
