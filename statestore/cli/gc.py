"""`statekeeper gc`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.base.errors import RootHeld, StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    FINDINGS,
    PARTLY_DONE,
    TALK,
    Duration,
    Opened,
    Output,
    mode_option,
    output_option,
    pasteable,
    progress_bar,
    root_argument,
    run_of,
    say,
    scratch_option,
    stopped_option,
    workers_option,
)
from statekeeper.statestore.maintenance.upkeep.audit.view import ranges
from statekeeper.statestore.maintenance.upkeep.retention import Deleted, DeletionOutcome, KeptBatchLogs, Rule
from statekeeper.statestore.maintenance.verbs import as_json
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.guards import Refusals
from statekeeper.statestore.maintenance.verbs.losses import Losses
from statekeeper.statestore.maintenance.verbs.retention import PlannedRetention, Retention


@click.command()
@root_argument
@click.option("--apply", is_flag=True, help="Delete the files of the plan.")
@click.option(
    "--retain",
    type=click.IntRange(1),
    help="Number of versions to retain. Default: the number in statekeeper.toml, otherwise 100.",
)
@click.option(
    "--grace",
    type=Duration(),
    help="Minimum age of a file before gc deletes it, for example 90s, 10m, 1h or 7d. Default: the age in "
    "statekeeper.toml, otherwise 1h.",
)
@mode_option("--apply requires full.")
@click.option(
    "--orphans",
    "everything",
    is_flag=True,
    help="Find all orphans. An orphan is a file that no committed version can reach. For a job on pipelines, the "
    "plan then also covers the stores without changes since the last gc, and multipart uploads to S3 that were begun "
    "more than one day ago and never finished. For a native query, add --confirm-stopped: the plan then also "
    "contains SST files that no snapshot references.",
)
@stopped_option("Used only with --orphans, for a native query.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Allow --apply although the audit reports errors. gc lists the errors, the versions that cannot be loaded "
    "now, and the versions that cannot be loaded after the deletion. Without --apply, gc only shows these lists.",
)
@scratch_option
@workers_option
@click.option("--verbose", is_flag=True, help="List every file with its rule, including files that are kept.")
@output_option
def gc(
    root: Opened,
    apply: bool,
    retain: int | None,
    grace: float | None,
    mode: str | None,
    everything: bool,
    stopped: bool,
    accept_loss: bool,
    scratch: Path,
    workers: int,
    verbose: bool,
    output: Output,
) -> None:
    """Show which files are no longer needed, with reasons; with --apply, delete them.

    gc deletes a file only if it is older than --grace and no retained version needs it (--retain). gc makes sure that
    all stores can be loaded at the oldest version that it retains. If a store cannot be loaded at the oldest of the
    --retain versions, gc also retains older versions, back to the nearest one at which all stores can be loaded.

    gc first audits the checkpoint, like the command audit. If the audit reports an error (lost or wrong state), gc deletes
    nothing. To delete files nevertheless, add --accept-loss.

    gc --apply reads a snapshot in full before it deletes the older files that this snapshot replaces. If the snapshot is
    corrupt, gc deletes nothing.
    """
    policy = root.policies.retention
    policy = replace(
        policy,
        versions=policy.versions if retain is None else retain,
        grace_seconds=policy.grace_seconds if grace is None else grace,
    )
    policies = replace(root.policies, retention=policy, mode=Mode(mode) if mode else root.policies.mode)
    run = run_of(root, policies=policies, stopped=stopped, scratch=scratch, workers=workers)
    ready = prepare(Retention(everything=everything, accept_loss=accept_loss), run)
    prepared, refusals = ready.plan, ready.refusals
    planned = prepared.plan
    done: list[Deleted] = []
    if not apply:
        _show(output, prepared, refusals, done, verbose, shows_losses=accept_loss)
        sys.exit(FINDINGS if planned.findings or prepared.before.breaks else 0)
    if accept_loss:
        losses = prepared.losses
        for line in (*_loss_lines(losses), f"deletes {counted(losses.files, 'file')}, {counted(losses.bytes, 'byte')}"):
            TALK.print(tables.plain(line), soft_wrap=True)
    failure: StatekeeperError | None = None
    try:
        with progress_bar() as progress:
            bar = progress.add_task("deleting", total=len(planned.deletions))

            def show(step: Deleted) -> None:
                done.append(step)
                progress.advance(bar, step.files)

            perform(ready, show)
    except StatekeeperError as error:
        if isinstance(error, RootHeld) or error in refusals:
            raise
        failure = error
        say(error)
    except BaseException:
        _show(output, prepared, refusals, done, verbose)
        raise
    _show(output, prepared, refusals, done, verbose)
    if failure is not None:
        sys.exit(PARTLY_DONE if done else failure.exit_code)
    changed = any(step.outcome in (DeletionOutcome.CHANGED, DeletionOutcome.DAMAGED) for step in done)
    sys.exit(FINDINGS if planned.findings or prepared.before.breaks or changed else 0)


def _show(
    output: Output,
    prepared: PlannedRetention,
    refusals: Refusals,
    done: Sequence[Deleted],
    verbose: bool,
    *,
    shows_losses: bool = False,
) -> None:
    def show(console: Console) -> None:
        _print(console, prepared, refusals, done, verbose, shows_losses=shows_losses)

    output.show(_object(prepared, refusals, done, verbose), show)


def _loss_lines(found: Losses) -> Iterator[str]:
    """List the errors of the audit, the versions that are lost already and those that the deletion adds."""
    for finding in found.findings:
        yield f"error: {finding.file}: {finding.problem}"
    for store in found.stores:
        if store.already:
            yield f"{store.store}: these versions already cannot be loaded: {ranges(store.already)}"
        if store.by_deleting:
            lost = ranges(store.by_deleting)
            yield f"{store.store}: these versions cannot be loaded after the deletion: {lost}"


def _object(prepared: PlannedRetention, refusals: Refusals, done: Sequence[Deleted], verbose: bool) -> dict[str, Any]:
    planned, losses = prepared.plan, prepared.losses
    by_rule = {
        code(rule): {
            "files": sum(1 for verdict in planned.verdicts if verdict.rule is rule),
            "bytes": sum(verdict.size_bytes for verdict in planned.verdicts if verdict.rule is rule),
            "deletes": rule.deletes,
        }
        for rule in Rule
    }
    return {
        "head": planned.head,
        "floor": planned.floor,
        "wanted_floor": planned.wanted_floor,
        "stores": len(planned.stores),
        "findings": list(planned.findings),
        "rules": by_rule,
        "left_out": planned.left_out,
        "holds": [{"batch": hold.batch, "holder": hold.holder, "verb": hold.verb} for hold in planned.holds],
        "batch_logs": _batch_logs_object(planned.batch_logs),
        "reads": [
            {
                "store": str(read.store),
                "snapshot": read.store.snapshot(read.version),
                "files": len(read.files),
                "bytes": read.size_bytes,
                "reason": code(read.reason),
            }
            for read in planned.reads
        ],
        "deletable": {
            "now": asdict(prepared.forecast.now),
            "later": [
                {"rule": code(one.rule), **asdict(one.kept), "when": one.when, "from_seconds": one.from_seconds}
                for one in prepared.forecast.later
            ],
        },
        "refusals": [{"code": refusal.code, "error": pasteable(str(refusal))} for refusal in refusals],
        "losses": {
            "errors": [{"file": finding.file, "problem": finding.problem} for finding in losses.findings],
            "stores": [
                {
                    "store": str(one.store),
                    "already": [str(version) for version in one.already],
                    "by_deleting": [str(version) for version in one.by_deleting],
                }
                for one in losses.stores
            ],
        },
        "files": [
            {"path": verdict.path, "bytes": verdict.size_bytes, "rule": code(verdict.rule)}
            for verdict in planned.verdicts
            if verbose or verdict.rule.deletes
        ],
        "done": [as_json.of_deleted(step) for step in done],
    }


def _batch_logs_object(kept: KeptBatchLogs | None) -> dict[str, Any] | None:
    if kept is None:
        return None
    return {**asdict(kept), "laggard": kept.laggard and str(kept.laggard)}


def _batch_log_lines(kept: KeptBatchLogs) -> Iterator[str]:
    yield (
        f"{kept.files:,} batch logs are kept with {kept.size_bytes:,} bytes; stores still need {kept.live_bytes:,} "
        "bytes of them"
    )
    if kept.laggard is not None:
        yield (
            f"store {kept.laggard} has the oldest base, and gc keeps {kept.of_laggard:,} batch logs because of it. "
            + pasteable("To free them, run: statekeeper snapshot ROOT --all")
        )


def _print(
    console: Console,
    prepared: PlannedRetention,
    refusals: Refusals,
    done: Sequence[Deleted],
    verbose: bool,
    *,
    shows_losses: bool,
) -> None:
    planned = prepared.plan
    if planned.stateless is not None or planned.head is None:
        text = planned.stateless.value if planned.stateless else tables.when(None)
        console.print(tables.plain(text), soft_wrap=True)
        return
    counts: Counter[Rule] = Counter()
    sizes: Counter[Rule] = Counter()
    for verdict in planned.verdicts:
        counts[verdict.rule] += 1
        sizes[verdict.rule] += verdict.size_bytes
    floor = "none" if planned.floor is None else f"version {planned.floor}"
    looked_at = f"{counted(len(planned.stores), 'store')} examined"
    table = tables.table(
        f"head version {planned.head}, floor {floor}, {looked_at}", "action", "files", "bytes", "reason"
    )
    for rule in sorted(counts, key=lambda rule: (not rule.deletes, -sizes[rule])):
        what = "delete" if rule.deletes else "keep"
        tables.add(table, what, f"{counts[rule]:,}", f"{sizes[rule]:,}", rule.value)
    tables.show(console, table)
    if verbose:
        files = tables.table("all files", "action", "path", "reason")
        for verdict in planned.verdicts:
            tables.add(files, "delete" if verdict.rule.deletes else "keep", verdict.path, verdict.rule.value)
        tables.show(console, files)
    for hold in planned.holds:
        text = f"{tables.when(hold.batch)} and later ones are kept, because {hold.holder} reads the batch ({hold.verb})"
        console.print(tables.plain(text), soft_wrap=True)
    for finding in planned.findings:
        console.print(tables.plain(finding), soft_wrap=True)
    for line in _batch_log_lines(planned.batch_logs) if planned.batch_logs else ():
        console.print(tables.plain(line), soft_wrap=True)
    if planned.left_out:
        console.print(f"the next run deletes {planned.left_out:,} more files")
    if planned.reads and not done:
        console.print(
            f"--apply first reads {counted(len(planned.reads), 'snapshot')} in full ({planned.read_bytes:,} bytes): it "
            f"verifies once each snapshot that replaces deleted files",
            soft_wrap=True,
        )
    deletions, figures = len(planned.deletions), prepared.forecast
    if not done:
        console.print(f"deletable now: {counted(figures.now.files, 'file')}, {figures.now.bytes:,} bytes")
        for one in figures.later:
            prefix = "not deletable" if one.rule is Rule.UNKNOWN else "deletable later"
            kept = (
                f"{prefix}: {counted(one.kept.files, 'file')}, {one.kept.bytes:,} bytes, {one.when} ({one.rule.value})"
            )
            console.print(tables.plain(kept), soft_wrap=True)
    for line in _loss_lines(prepared.losses) if shows_losses else ():
        console.print(tables.plain(line), soft_wrap=True)
    if done:
        read_files, read_bytes = sum(step.read_files for step in done), sum(step.read_bytes for step in done)
        if read_files:
            console.print(f"read {counted(read_files, 'file')} in full, {read_bytes:,} bytes")
        files_gone, bytes_gone = sum(step.files for step in done), sum(step.size_bytes for step in done)
        console.print(f"deleted {files_gone:,} of {counted(deletions, 'file')}, {bytes_gone:,} bytes")
        for step in done:
            if step.outcome in (DeletionOutcome.CHANGED, DeletionOutcome.DAMAGED):
                console.print(tables.plain(f"{step.store}: {step.outcome.value}: {step.detail}"), soft_wrap=True)
    elif deletions and refusals:
        for refusal in refusals:
            console.print(Text.assemble(("blocked: ", "red"), pasteable(str(refusal))), soft_wrap=True)
        console.print(f"due for deletion: {counted(deletions, 'file')}")
    elif deletions:
        console.print(f"to delete {counted(deletions, 'file')}, add --apply")
    else:
        console.print("nothing to delete")
        if prepared.losses.findings:
            console.print(
                pasteable("the audit reports errors; to list them, run: statekeeper audit ROOT"),
                soft_wrap=True,
                markup=False,
            )
