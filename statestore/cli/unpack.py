"""`statekeeper unpack`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
from rich import filesize
from rich.console import Console

from statekeeper.statestore.cli.common import Opened, Output, mode_option, output_option, root_argument, run_of
from statekeeper.statestore.maintenance.copies.unpack import Unpack as Unpacked
from statekeeper.statestore.maintenance.copies.unpack import UnpackPlan
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.unpack import Unpack


@click.command()
@root_argument
@click.option(
    "--batch", type=click.IntRange(0), help="The batch that Spark must be able to read. Default: the newest batch."
)
@mode_option("unpack requires snapshots or full, except with --dry-run.")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@output_option
def unpack(root: Opened, batch: int | None, mode: str | None, dry_run: bool, output: Output) -> None:
    """Write changelogs as separate files, so that Spark's data source `statestore` can read the state after a batch.

    A job with log="batch" writes all changelogs of a batch as one object, a batch log. Spark cannot read batch logs.

    unpack only adds files, so it runs immediately, without --apply. gc deletes the new files later, like other
    changelogs.

    If you need only the newest batch, you can also run:

    \b
        statekeeper snapshot ROOT --at-head
    """
    policies = replace(root.policies, mode=Mode(mode)) if mode else root.policies
    prepared = prepare(Unpack(batch=batch), run_of(root, policies=policies))
    planned = prepared.plan
    done: list[Unpacked] = []
    if not dry_run:
        perform(prepared, done.append)
    output.show(_object(planned, done), lambda console: _print(console, planned, done))


def _object(planned: UnpackPlan, done: Sequence[Unpacked]) -> dict[str, Any]:
    return {
        "batch": planned.batch,
        "missing": list(planned.missing),
        "files": [{"path": one.path, "from": one.log, "bytes": one.size_bytes} for one in planned.actions],
        "written": len(done),
    }


def _print(console: Console, planned: UnpackPlan, done: Sequence[Unpacked]) -> None:
    if planned.batch is None:
        console.print("no batch is committed")
        return
    size = filesize.decimal(sum(one.size_bytes for one in planned.actions))
    if not planned.actions and not planned.missing:
        console.print(f"Spark can read batch {planned.batch:,}: no file to write")
    elif done:
        console.print(f"wrote {len(done):,} changelogs, {size}: Spark can read batch {planned.batch:,}")
    else:
        console.print(
            f"{len(planned.actions):,} changelogs to write, {size}, so that Spark can read batch {planned.batch:,}"
        )
    for path in planned.missing:
        problem = planned.damaged[path].what if path in planned.damaged else "is missing"
        console.print(f"{path} {problem}: Spark cannot read batch {planned.batch:,}", soft_wrap=True)
