"""`statekeeper snapshot`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statekeeper.statestore.base.errors import DAMAGES, StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    FAILED,
    FINDINGS,
    PARTLY_DONE,
    Duration,
    Opened,
    Output,
    error_object,
    for_spark_of_checkpoint_option,
    memory_option,
    mode_option,
    output_option,
    pasteable,
    progress_bar,
    root_argument,
    run_of,
    say,
    say_skipped,
    scratch_option,
    stopped_option,
    workers_option,
)
from statekeeper.statestore.cli.reports import blockers
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.upkeep import snapshot as snapshots
from statekeeper.statestore.maintenance.upkeep.snapshot import LeaveAlone, SkipReason, SnapshotPlan, Taken, TakeSnapshot
from statekeeper.statestore.maintenance.verbs import as_json
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.snapshot import Ended, PlannedSnapshots, Snapshot, Snapshots

_FIND_THE_FIX = "for the damaged or missing files and the next step, run: statekeeper audit ROOT"
_AUDIT_DEEP = (
    "to list the corrupt files and the next step, run: statekeeper audit ROOT --deep. Then run this command again"
)


@click.command()
@root_argument
@click.option(
    "--all",
    "take_all",
    is_flag=True,
    help="Take snapshots of all stores of ROOT, also of those with short tails. A store is skipped only if a new "
    "snapshot would not shorten its tail.",
)
@click.option(
    "--at-head",
    is_flag=True,
    help="Take a snapshot of every store at its head. A restart then replays no changelogs. In structure V1, a native "
    "query must be stopped. Every other query may be running.",
)
@stopped_option("Required for --at-head for a native query in structure V1.")
@for_spark_of_checkpoint_option
@mode_option("snapshot requires snapshots or full, except with --dry-run.")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@click.option(
    "--changelogs",
    type=click.IntRange(1),
    help="Take a snapshot of a store if its tail has at least this many changelogs. Default: the number in "
    "statekeeper.toml, otherwise 50.",
)
@click.option(
    "--restore-target",
    "restore_target_seconds",
    type=Duration(),
    help="Maximum for the total replay time of all tails, for example 30s. If the predicted total is longer, "
    "snapshot also takes snapshots of stores that are below the other two limits: --changelogs and `restore`. It "
    "begins with the longest tail, and stops when the total is within the maximum. Default: the time in "
    "statekeeper.toml, otherwise no maximum.",
)
@scratch_option
@workers_option
@memory_option
@output_option
def snapshot(
    root: Opened,
    take_all: bool,
    at_head: bool,
    stopped: bool,
    spark: Spark | None,
    mode: str | None,
    dry_run: bool,
    changelogs: int | None,
    restore_target_seconds: float | None,
    scratch: Path,
    workers: int,
    memory_bytes: int,
    output: Output,
) -> None:
    """Take snapshots of the stores with long tails.

    A tail is the changelogs after the newest snapshot: a restart replays them. A store gets a snapshot if its tail has many
    changelogs (--changelogs), or if the predicted replay time of this tail is at least 10 s. To change the limit of 10 s,
    set `restore` in statekeeper.toml. The limit for all tails together is --restore-target.

    snapshot only adds files, so it runs immediately, without --apply. The query may be running. For a running native query
    in structure V1, it takes snapshots of the state two batches before the head. The store with the longest tail comes
    first. If one store fails, the others continue.
    """
    policy = root.policies.snapshot
    if changelogs is not None:
        policy = replace(policy, changelogs=changelogs)
    if restore_target_seconds is not None:
        policy = replace(policy, restore_target_seconds=restore_target_seconds)
    policies = replace(root.policies, snapshot=policy, mode=Mode(mode) if mode else root.policies.mode)
    run = run_of(root, policies=policies, stopped=stopped, scratch=scratch, workers=workers, memory_bytes=memory_bytes)
    prepared = prepare(Snapshot(take_all=take_all, at_head=at_head, for_spark=spark), run)
    found = prepared.plan
    plan = found.plan
    if dry_run:
        step = _next_step_of_plan(found)
        refusals = [error_object(error) for error in prepared.refusals]
        shown = {**as_json.of_snapshot_plan(plan), "next_step": step, "refusals": refusals}
        output.show(shown, lambda console: _print_plan(console, plan, blockers(prepared), step))
        sys.exit(_exit_code(plan, (), ()))
    ended: list[Ended] = []
    progress = progress_bar()
    bar = progress.add_task("snapshots", total=len(plan.take))

    def told(one: Ended) -> None:
        ended.append(one)
        action, outcome = one
        if isinstance(outcome, StatekeeperError):
            say(outcome, of=action.store)
        else:
            say_skipped(action.store, outcome.skipped_snapshots)
        progress.advance(bar)

    try:
        with progress:
            perform(prepared, told)
    except BaseException:
        # Also after an interruption: the finished snapshots exist.
        if ended:
            _show(output, found, Snapshots.of(ended, plan))
        raise
    made = Snapshots.of(ended, plan)
    _show(output, found, made)
    sys.exit(_exit_code(plan, made.taken, made.failed))


def _show(output: Output, found: PlannedSnapshots, made: Snapshots) -> None:
    taken, failed = made.taken, made.failed
    step = _next_step(found, taken, failed)
    output.show(
        _taken_object(found.plan, taken, failed, step),
        lambda console: _print_taken(console, found.plan, taken, failed, step),
    )


def _exit_code(plan: snapshots.SnapshotPlan, taken: Sequence[snapshots.Taken], failed: Sequence[object]) -> int:
    if failed:
        return PARTLY_DONE if taken else FAILED
    return FINDINGS if _findings(plan) else 0


def _findings(plan: SnapshotPlan) -> list[LeaveAlone]:
    """The stores that are skipped because of a problem."""
    return [action for action in plan.leave if action.reason.is_finding]


def _next_step(
    prepared: PlannedSnapshots, taken: Sequence[Taken], failed: Sequence[tuple[TakeSnapshot, StatekeeperError]]
) -> str | None:
    """Return the command to run next and its purpose; None if there is nothing to do."""
    if any(isinstance(error, DAMAGES) for _, error in failed):
        return pasteable(_AUDIT_DEEP)
    if failed:
        return "run it again: finished snapshots are not taken twice"
    return None if taken and not _findings(prepared.plan) else _next_step_of_plan(prepared)


def _next_step_of_plan(prepared: PlannedSnapshots) -> str | None:
    """Return why a plan has no snapshot, and the command that takes one; None for a plan with snapshots."""
    plan, tails = prepared.plan, prepared.tails
    if plan.batch is None:
        return pasteable(
            "no batch is committed yet. If the query has committed batches, find the missing files: statekeeper audit ROOT"
        )
    if plan.stateless is not None:
        return plan.stateless.value
    if _findings(plan):
        return pasteable(_FIND_THE_FIX)
    if plan.take:
        return None
    mode = " --mode snapshots" if prepared.mode is Mode.OBSERVE else ""
    short = [action for action in plan.leave if action.reason is SkipReason.SHORT_TAIL]
    if short:
        longest = max(short, key=lambda action: tails[action.store])
        return pasteable(
            f"no store needs a snapshot by the policy: the longest tail has {counted(tails[longest.store], 'changelog')} "
            f"({longest.store}), and the limit is {prepared.policy.changelogs:,}. A restart replays all tails in about "
            f"{plan.seconds_before:,.1f} s. To take snapshots of all stores now, run: statekeeper snapshot ROOT --all{mode}"
        )
    if any(action.reason is SkipReason.NEAR_HEAD for action in plan.leave):
        return pasteable(
            "no store can get a snapshot now: in structure V1, a running query may still replace its newest versions. To "
            f"take snapshots of them, stop the query and run: statekeeper snapshot ROOT --at-head --confirm-stopped{mode}"
        )
    return "no store needs a snapshot: each one has a snapshot of its head, and a restart replays nothing"


def _print_plan(console: Console, plan: SnapshotPlan, blocked: Sequence[str], step: str | None) -> None:
    tables.show(console, _plan_table(plan))
    for refusal in blocked:
        console.print(Text.assemble(("blocked: ", "red"), refusal), soft_wrap=True)
    if step is not None:
        console.print(tables.plain(step), soft_wrap=True)


def _plan_table(plan: SnapshotPlan) -> Table:
    """The plan as a table."""
    table = tables.table(
        f"{tables.when(plan.batch)}: {len(plan.take)} snapshots to take, {len(plan.leave)} stores to skip; replay of "
        f"all tails {plan.seconds_before:,.1f} s before, {plan.seconds_after:,.1f} s after",
        "store",
        "action",
        "reason",
    )
    actions: list[TakeSnapshot | LeaveAlone] = [*plan.take, *plan.leave]
    for action in actions[: tables.ROWS]:
        what = f"snapshot of version {action.version.version}" if isinstance(action, TakeSnapshot) else "skip"
        tables.add(table, action.store, what, action.explained)
    if len(actions) > tables.ROWS:
        table.caption = f"the first {tables.ROWS}"
    return table


def _taken_object(
    plan: SnapshotPlan,
    taken: Sequence[Taken],
    failed: Sequence[tuple[TakeSnapshot, StatekeeperError]],
    step: str | None,
) -> dict[str, Any]:
    """The results as one JSON object."""
    return {
        **as_json.of_snapshot_plan(plan),
        "taken": [as_json.of_taken(one) for one in taken],
        "failed": [as_json.of_failed(action, error) for action, error in failed],
        "next_step": step,
    }


def _print_taken(
    console: Console,
    plan: SnapshotPlan,
    taken: Sequence[Taken],
    failed: Sequence[tuple[TakeSnapshot, StatekeeperError]],
    step: str | None,
) -> None:
    """Print the results and the next step."""
    if taken:
        table = tables.table(
            f"{tables.when(plan.batch)}: {len(taken)} snapshots",
            "store",
            "version",
            "keys",
            "tables",
            "new",
            "uploaded",
            "s",
        )
        for one in taken[: tables.ROWS]:
            tables.add(
                table,
                one.action.store,
                one.action.version.version,
                f"{one.keys:,}",
                one.tables,
                one.new_tables,
                f"{one.uploaded_bytes:,}",
                f"{one.seconds:.2f}",
            )
        tables.show(console, table)
    for action in _findings(plan)[: tables.ROWS]:
        console.print(tables.plain(f"{action.store}: {action.explained}"), soft_wrap=True)
    console.print(f"{len(taken)} taken, {len(failed)} failed, {len(plan.leave)} skipped")
    if step is not None:
        console.print(tables.plain(step), soft_wrap=True)
