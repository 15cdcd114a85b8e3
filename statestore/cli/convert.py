"""`statekeeper convert`."""

from __future__ import annotations

import click

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.cli.common import Opened, Output, root_argument
from statekeeper.statestore.cli.execution import Execution
from statekeeper.statestore.cli.rewrites import Wording, rewrite_options, run_rewrite
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine import Convert, RewritePlan

_PROVIDERS = {provider.option: provider for provider in Provider}


def _start_with(planned: RewritePlan) -> str:
    if planned.provider is Provider.HDFS_BACKED:
        return "start the query as before"
    settings = " ".join(f"{name}={value}" for name, value in planned.structure.conf.items())
    return f"start the query with {settings}"


_WORDING = Wording(
    noun="conversion",
    is_there=lambda planned: (
        f"the checkpoint already has {planned.provider.value} in structure {planned.structure.value}"
    ),
    done=lambda planned: f"converted to {planned.provider.value}; {_start_with(planned)}",
    title=lambda planned: f"{planned.provider.value} in structure {planned.structure.value}",
    after=lambda planned: [f"afterwards, {_start_with(planned)}"],
)


@click.command()
@root_argument
@click.option(
    "--to",
    type=click.Choice(list(_PROVIDERS)),
    callback=lambda _, __, value: None if value is None else _PROVIDERS[value],
    help="New provider of the checkpoint. hdfs is Spark's default provider, which keeps the state in memory.",
)
@click.option(
    "--structure",
    type=click.Choice([structure.value for structure in Structure]),
    default=Structure.V1.value,
    show_default=True,
    callback=lambda _, __, value: Structure(value),
    help="Structure of the converted checkpoint. hdfs supports only v1.",
)
@rewrite_options("conversion")
@click.pass_context
def convert(
    ctx: click.Context,
    root: Opened,
    to: Provider | None,
    structure: Structure,
    file_sink: str | None,
    execution: Execution,
    output: Output,
) -> None:
    """Show the plan for another state store provider; with --apply, execute it.

    Stop the query first. convert encodes each row of the state for the other provider. It writes one snapshot for each
    store, reads it back and compares all rows. Then it appends one batch without rows to the offset log and the commit log.
    The query continues after this batch with the other provider. Spark reads the provider from the offset log, so you do
    not set it in the query.

    If the query writes files with Spark's file sink, add --file-sink: the output needs an entry for the appended batch.

    The files of the former provider remain until gc deletes them. The provider hdfs does not support operators with column
    families, such as transformWithState.
    """
    if execution.abort == (to is not None) or (execution.abort and (execution.apply or file_sink)):
        raise click.UsageError("give --to (with or without --apply and --file-sink), or --abort")
    goal = None if to is None else Convert(to, structure)
    run_rewrite(ctx, root, goal, RewriteKind.CONVERT, _WORDING, file_sink=file_sink, execution=execution, output=output)
