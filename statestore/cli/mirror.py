"""`statekeeper mirror`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich import filesize
from rich.console import Console
from rich.text import Text

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    BATCH_DEFAULT,
    FINDINGS,
    Opened,
    Output,
    complete_root,
    copy_location_option,
    error_object,
    open_destination,
    output_option,
    pasteable,
    root_argument,
    scratch_option,
    stopped_for_copy_option,
    this_process,
)
from statekeeper.statestore.cli.copy_progress import copy_progress
from statekeeper.statestore.maintenance import verbs
from statekeeper.statestore.maintenance.copies.clones import Way
from statekeeper.statestore.maintenance.copies.mirrors import CleanupPlan, Lag
from statekeeper.statestore.maintenance.verbs import PreparedMirror


@click.command()
@root_argument
@click.argument("destination", required=False, shell_complete=complete_root)
@click.option(
    "--batch", type=click.IntRange(0), help=f"The last batch that the mirror contains after the run. {BATCH_DEFAULT}"
)
@copy_location_option
@stopped_for_copy_option
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@scratch_option
@output_option
@click.pass_context
def mirror(
    ctx: click.Context,
    root: Opened,
    destination: str | None,
    batch: int | None,
    location: str | None,
    stopped: bool,
    dry_run: bool,
    scratch: Path,
    output: Output,
) -> None:
    """Copy the new batches of a checkpoint to its mirror. If the source is lost, a query can start from the mirror.

    The first run copies the state of one batch into an empty DESTINATION. Each later run copies only new files. Then it
    deletes old copies from the mirror: files that the source has deleted and that no batch of the mirror needs.

    mirror runs immediately, without --apply. The query of the source may be running. mirror changes no file of the
    source. In the mirror, it deletes only files that it has copied before.

    After each complete run, a query can start from the mirror. If a run is interrupted, run the same command again.

    Default of DESTINATION: the `mirror` of ROOT in statekeeper.toml.

    In structure V1, a running native query can overwrite the changelogs of its two newest
    batches. So its mirror stays two batches behind. To copy these batches, stop the query and add --confirm-stopped.
    """
    by = this_process()
    if destination is None and root.mirror is None:
        raise click.UsageError("DESTINATION is missing, and statekeeper.toml has no mirror for this root")
    if destination is None and root.mirror is not None:
        destination, location = root.mirror.url, location or root.mirror.location
    other = open_destination(ctx, destination or "").storage
    prepared = verbs.mirror.plan(
        root.storage, other, root.policies, by, batch=batch, stopped=stopped, location=location
    )
    planned = prepared.plan
    if dry_run:
        output.show(_object(prepared), lambda console: _print_plan(console, prepared))
        sys.exit(FINDINGS if prepared.refusals else 0)
    before = by.clock.monotonic_seconds()
    with copy_progress(planned.files) as copied:
        cleanup = verbs.mirror.execute(root.storage, other, prepared, by, scratch=scratch, copied=copied)
    seconds = by.clock.monotonic_seconds() - before
    output.show(
        {
            **_object(prepared),
            "mirrored": not prepared.is_waiting,
            "seconds": round(seconds, 3),
            "lag": _lag_object(planned.left),
            "delete": _cleanup_object(cleanup),
        },
        lambda console: _print_done(console, prepared, cleanup, other.url, seconds),
    )


def _object(prepared: PreparedMirror) -> dict[str, Any]:
    planned = prepared.plan
    return {
        "batch": None if prepared.is_waiting else planned.record.batch,
        "first_batch": None if prepared.is_waiting else planned.record.first,
        "waiting": prepared.is_waiting,
        "newest_batch": planned.lag.newest,
        "structure": planned.structure.value,
        "query_id": planned.record.query,
        "current": planned.is_current,
        "stores": planned.stores,
        "files": len(planned.files),
        "bytes": planned.size_bytes(),
        "bytes_by_service": planned.size_bytes(Way.SERVICE),
        "bytes_through_this_machine": planned.size_bytes(Way.STREAM, Way.REWRITE),
        "bytes_present": planned.size_bytes(Way.PRESENT),
        "lag": _lag_object(planned.lag),
        "delete": _cleanup_object(prepared.cleanup),
        "refusals": [error_object(error) for error in prepared.refusals],
        "list": [
            {"path": file.path, "bytes": file.size_bytes, "part": file.part.value, "way": file.way.value}
            for file in planned.files
            if file.way is not Way.PRESENT
        ],
    }


def _lag_object(lag: Lag) -> dict[str, Any]:
    return {"batches": lag.batches, "seconds": lag.seconds, "bytes": lag.size_bytes}


def _cleanup_object(cleanup: CleanupPlan) -> dict[str, Any]:
    return {
        "files": len(cleanup.obsolete),
        "bytes": cleanup.size_bytes,
        "kept": {reason.name.lower(): number for reason, number in cleanup.kept.items()},
        "list": [
            {"path": file.path, "bytes": file.size_bytes, "reason": file.reason.value} for file in cleanup.obsolete
        ],
    }


def _in_words(lag: Lag) -> str:
    seconds = "an unknown time" if lag.seconds is None else f"{lag.seconds:,.0f} s"
    return f"{counted(lag.batches, 'batch')}, {seconds}, {filesize.decimal(lag.size_bytes)} of changelogs"


_WAITING = (
    "nothing to copy yet: in structure V1, the running query may still replace the files of its newest two batches. The "
    "mirror begins with the third batch; with --confirm-stopped it begins at once"
)


def _print_plan(console: Console, prepared: PreparedMirror) -> None:
    planned = prepared.plan
    if prepared.is_waiting:
        console.print(_WAITING, soft_wrap=True)
        return
    table = tables.table(
        f"{tables.when(planned.record.batch)} (newest batch of the source: {planned.lag.newest:,}): {planned.stores:,} "
        "stores, "
        f"{counted(len(planned.files), 'file')}, {filesize.decimal(planned.size_bytes())}",
        "part",
        "copied",
        "files",
        "bytes",
    )
    files, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for file in planned.files:
        files[file.part.value, file.way.value] += 1
        sizes[file.part.value, file.way.value] += file.size_bytes
    for (part, way), number in files.items():
        tables.add(table, part, way, f"{number:,}", f"{sizes[part, way]:,}")
    tables.show(console, table)
    if planned.before is not None and planned.before.batch >= 0:
        console.print(f"lag before this run: {_in_words(planned.lag)}")
    if planned.is_current:
        console.print("the mirror has all files: nothing to copy")
    _print_cleanup(console, prepared.cleanup, "to delete")
    for refusal in prepared.refusals:
        console.print(Text.assemble(("blocked: ", "red"), pasteable(str(refusal))), soft_wrap=True)


def _print_cleanup(console: Console, cleanup: CleanupPlan, label: str) -> None:
    if cleanup.obsolete:
        why = cleanup.obsolete[0].reason.value
        size = filesize.decimal(cleanup.size_bytes)
        console.print(f"{label}: {counted(len(cleanup.obsolete), 'file')}, {size}: {why}", soft_wrap=True)
    for reason, number in cleanup.kept.items():
        console.print(f"kept: {number:,} files that the source does not have: {reason.value}", soft_wrap=True)


def _print_done(console: Console, prepared: PreparedMirror, cleanup: CleanupPlan, url: str, seconds: float) -> None:
    planned = prepared.plan
    if prepared.is_waiting:
        console.print(_WAITING, soft_wrap=True)
        return
    new = [file for file in planned.files if file.way is not Way.PRESENT] if not planned.is_current else []
    size, through = (
        filesize.decimal(sum(file.size_bytes for file in new if file.way in ways))
        for ways in (tuple(Way), (Way.STREAM, Way.REWRITE))
    )
    console.print(
        tables.plain(
            f"{url} mirrors {tables.when(planned.record.batch)}: copied {counted(len(new), 'file')}, {size} in "
            f"{seconds:,.1f} s, of which {through} went through this machine"
        ),
        soft_wrap=True,
    )
    _print_cleanup(console, cleanup, "deleted")
    console.print(f"lag: {_in_words(planned.left)}")
    console.print(
        f"before you start a query from the mirror, remove the output of the batches after batch {planned.record.batch:,} "
        "from the sink",
        soft_wrap=True,
    )
