"""Numbers, tables and texts of a pass, under names that never change: Dagster draws each name as a plot.

Here belongs how a result is shown, nothing of how it came about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

import dagster as dg

from statestore.maintenance import records
from statestore.maintenance.audit import Finding, Severity
from statestore.maintenance.passes import RetentionPass, SnapshotPass
from statestore.maintenance.passes.audit import Looked
from statestore.maintenance.retention import Amount, Deleted, DeletionOutcome, Rule
from statestore.maintenance.snapshot import LeaveAlone, Taken, TakeSnapshot
from statestore.maintenance.switchover import Begun, SwitchPlan

Value: TypeAlias = dg.MetadataValue | str | int | float
Metadata: TypeAlias = dict[str, Value]

ROWS = 50
"""Rows are stored with the event and sent with every list of events: the worst are enough, the rest is counted."""


def table(columns: Mapping[str, str], rows: Iterable[Sequence[object]]) -> dg.TableMetadataValue:
    """The first `ROWS` rows. `columns`: name -> "string", "int" or "float"."""
    shown = [dg.TableRecord(dict(zip(columns, map(_cell, row), strict=True))) for row in islice(rows, ROWS)]
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.TableMetadataValue(shown, schema)


def _cell(value: object) -> str | int | float | bool | None:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def of_snapshots(done: SnapshotPass) -> Metadata:
    """What was snapshotted and why, and how much shorter a restart became."""
    before, after = done.tails_before, done.tails_after
    actions: list[TakeSnapshot | LeaveAlone] = [*done.plan.take, *done.plan.leave]
    return {
        "version": 0 if done.plan.batch is None else done.plan.batch + 1,
        "stores": len(done.gathered.stores),
        "snapshots_taken": len(done.taken),
        "snapshots_failed": len(done.failed),
        "longest_tail_before": max(before.values(), default=0),
        "longest_tail_after": max(after.values(), default=0),
        "changelogs_before": sum(before.values()),
        "changelogs_after": sum(after.values()),
        "restore_seconds_before": round(sum(done.gathered.restore_seconds(fact) for fact in done.gathered.stores), 3),
        "uploaded_bytes": sum(one.uploaded_bytes for one in done.taken),
        "keys": sum(one.keys for one in done.taken),
        "mode": done.mode.value,
        "why": table(
            {"store": "string", "version": "int", "what": "string", "why": "string"},
            (
                (one.store, one.version.version, "snapshot" if isinstance(one, TakeSnapshot) else "-", one.explained)
                for one in actions
            ),
        ),
    }


def of_taken(one: Taken) -> Metadata:
    """What the ledger says of a store that got a snapshot."""
    return {name: value for name, value in records.of_taken(one).items() if isinstance(value, str | int | float)}


def of_audit(looked: Looked) -> Metadata:
    """What was proven, of how much, what is wrong, and what the next retention run deletes."""
    found, garbage = looked.audit, looked.forecast.now if looked.forecast else Amount()
    left = [store.commits_left for store in found.stores if store.commits_left is not None]
    return {
        "version": 0 if found.batch is None else found.batch + 1,
        "stores": len(found.stores),
        "versions_proven": found.versions,
        "errors": found.count(Severity.ERROR),
        "warnings": found.count(Severity.WARNING),
        "longest_tail": max((store.tail for store in found.stores), default=0),
        # A plot wants a number each time: where nothing bounds the lineage there is no end to it.
        **({"least_commits_left": min(left)} if left else {}),
        "garbage_files": garbage.files,
        "garbage_bytes": garbage.bytes,
        "requests": looked.requests.total,
        "restart": found.restart.explained,
        "findings": of_findings(found.findings),
        "not_proven": dg.MetadataValue.md("\n".join(f"* {text}" for text in found.unproven)),
    }


def of_findings(findings: Sequence[Finding]) -> dg.TableMetadataValue:
    """Findings, worst first."""
    return table(
        {"severity": "string", "file": "string", "problem": "string", "meaning": "string", "action": "string"},
        ((one.severity.name, one.file, one.problem, one.meaning, one.action) for one in findings),
    )


def of_retention(done: RetentionPass) -> Metadata:
    """What was planned, by rule, and what was deleted."""
    planned = done.planned
    files: Counter[Rule] = Counter()
    sizes: Counter[Rule] = Counter()
    for verdict in planned.verdicts:
        files[verdict.rule] += 1
        sizes[verdict.rule] += verdict.size_bytes
    rules = sorted(files, key=lambda rule: (not rule.deletes, -sizes[rule]))
    return {
        "version": planned.head or 0,
        "floor": planned.floor or 0,
        "stores_looked_at": len(planned.stores),
        "planned_files": len(planned.deletions),
        "planned_bytes": sum(verdict.size_bytes for verdict in planned.deletions),
        "deleted_files": sum(step.files for step in done.done),
        "deleted_bytes": sum(step.size_bytes for step in done.done),
        "spared_files": sum(len(step.spared) for step in done.done),
        "stores_left_alone": sum(step.outcome is DeletionOutcome.CHANGED for step in done.done),
        "read_files": sum(step.read_files for step in done.done),
        "read_bytes": sum(step.read_bytes for step in done.done),
        "left_for_the_next_run": planned.left_out,
        "mode": done.mode.value,
        "why": table(
            {"what": "string", "files": "int", "bytes": "int", "why": "string"},
            (("delete" if rule.deletes else "keep", files[rule], sizes[rule], rule.value) for rule in rules),
        ),
    }


def of_deleted(steps: Sequence[Deleted]) -> Metadata:
    """What the ledger says of a store from which files were deleted."""
    return {
        "deleted_files": sum(step.files for step in steps),
        "deleted_bytes": sum(step.size_bytes for step in steps),
        "outcome": steps[-1].outcome.value,
    }


def of_switch(planned: SwitchPlan, *, is_done: bool) -> Metadata:
    """What a switchover does with each store, or why it does nothing, and how far it is."""
    phase = (
        "refused" if planned.refusals else "switched" if is_done else "half done" if planned.half_done else "planned"
    )
    return {
        "phase": phase,
        "to": planned.to.value,
        "version": 0 if planned.batch is None else planned.batch + 1,
        "stores": len(planned.stores),
        "read_bytes": planned.read_bytes,
        "write_bytes": planned.write_bytes,
        "local_bytes": planned.local_bytes,
        "files_put_aside": len(planned.first) + len(planned.last),
        "files_that_stay": planned.stays_files,
        "refusals": len(planned.refusals),
        "refusal": planned.refusals[0] if planned.refusals else "none",
        "start_it_with": planned.start_with,
        "why": table(
            {"store": "string", "head": "string", "snapshot from": "string", "bytes": "int"},
            ((step.store, step.head, step.explained, step.read_bytes) for step in planned.stores),
        ),
    }


def of_aborted_switch(begun: Begun) -> Metadata:
    """What a switchover was that was taken back."""
    return {
        "phase": "aborted",
        "to": begun.to.value,
        "version": begun.batch + 1,
        "stores": len(begun.stores),
        "refusals": 0,
        "structure": begun.to.other.value,
    }
