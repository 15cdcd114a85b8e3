"""Shows the result of a pass as Dagster metadata: tables, texts and figures under labels that do not change.

Dagster plots each number in metadata. For a partitioned asset it draws one line through the numbers of all queries. So the
figures of a query are a table, which Dagster does not plot; only `fleet_health` and the fleet's verdicts have numbers.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import ParamSpec, TypeAlias

import dagster as dg

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.contents.differences import Change
from statekeeper.statestore.maintenance.copies.clones import Way
from statekeeper.statestore.maintenance.copies.mirrors import CleanupPlan
from statekeeper.statestore.maintenance.copies.savepoints.manifest import Summary
from statekeeper.statestore.maintenance.rewrites.engine import EvolutionPreview
from statekeeper.statestore.maintenance.rewrites.switchover import Begun
from statekeeper.statestore.maintenance.upkeep.audit import Finding, Severity
from statekeeper.statestore.maintenance.upkeep.retention import Amount, Deleted, DeletionOutcome, KeptBatchLogs, Rule
from statekeeper.statestore.maintenance.upkeep.snapshot import LeaveAlone, Taken, TakeSnapshot
from statekeeper.statestore.maintenance.verbs import (
    PreparedClone,
    PreparedEdit,
    PreparedFiles,
    PreparedMirror,
    PreparedRewrite,
    PreparedRows,
    PreparedSwitch,
    RetentionPass,
    SnapshotPass,
    as_json,
)
from statekeeper.statestore.maintenance.verbs.audit import Looked
from statekeeper.statestore.storage.query_metrics import Prices, QueryMetrics

Figure: TypeAlias = str | int | float
Metadata: TypeAlias = dict[str, dg.MetadataValue | Figure]
Arguments = ParamSpec("Arguments")

_PUNCTUATION = re.compile(r"[\\`*_{}\[\]<>()#+!|~&]")
"""Characters with a meaning in Markdown or HTML. Markdown shows one with a backslash before it as it is."""

ROWS = 50
"""Most rows of a table. Dagster stores them with the event and sends them with every list of events."""


def table(columns: Mapping[str, str], rows: Iterable[Sequence[object]]) -> dg.TableMetadataValue:
    """The first `ROWS` rows. `columns`: name -> "string", "int" or "float"."""
    shown = [dg.TableRecord(dict(zip(columns, map(_cell, row), strict=True))) for row in islice(rows, ROWS)]
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.TableMetadataValue(shown, schema)


def figures(values: Mapping[str, Figure]) -> dg.TableMetadataValue:
    """A table with one row per figure. Labels end in the unit; a label without a unit is a count."""
    return table({"figure": "string", "value": "number"}, values.items())


def parse_utc(text: str) -> float:
    """Seconds since the epoch of a time that `durations.utc` wrote. Raises ValueError."""
    return datetime.fromisoformat(text).timestamp()


def _cell(value: object) -> str | int | float | bool | None:
    return value if value is None or isinstance(value, int | float | bool) else printable(str(value))


def bullets(texts: Iterable[str]) -> dg.MarkdownMetadataValue:
    """A list in Markdown. The texts are no Markdown: a name in them could look like a link, an image or HTML."""
    return dg.MetadataValue.md("\n".join(f"* {_PUNCTUATION.sub(_escaped, printable(text))}" for text in texts))


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found.group()}"


def _shown(of: Callable[Arguments, Metadata]) -> Callable[Arguments, Metadata]:
    """Make each text of the metadata printable: names, notes and URLs come from the checkpoint."""

    @functools.wraps(of)
    def shown(*args: Arguments.args, **named: Arguments.kwargs) -> Metadata:
        found = of(*args, **named)
        return {label: printable(value) if isinstance(value, str) else value for label, value in found.items()}

    return shown


@_shown
def of_snapshots(done: SnapshotPass) -> Metadata:
    """The snapshots that the pass took, the reasons, and the tails before and after it."""
    before, after = done.tails_before, done.tails_after
    actions: list[TakeSnapshot | LeaveAlone] = [*done.plan.take, *done.plan.leave]
    shown: dict[str, Figure] = {
        "version": 0 if done.plan.batch is None else done.plan.batch + 1,
        "stores": len(done.gathered.stores),
        "snapshots_taken": len(done.taken),
        "snapshots_failed": len(done.failed),
        "longest_tail_before": max(before.values(), default=0),
        "longest_tail_after": max(after.values(), default=0),
        "changelogs_before": sum(before.values()),
        "changelogs_after": sum(after.values()),
        "restore_seconds_before": round(sum(done.gathered.restore_seconds(fact) for fact in done.gathered.stores), 3),
        "restore_seconds_after": round(done.plan.seconds_after, 3),
        "uploaded_bytes": sum(one.uploaded_bytes for one in done.taken),
        "keys": sum(one.keys for one in done.taken),
    }
    reasons = table(
        {"store": "string", "version": "int", "action": "string", "reason": "string"},
        (
            (one.store, one.version.version, "snapshot" if isinstance(one, TakeSnapshot) else "none", one.explained)
            for one in actions
        ),
    )
    return {"figures": figures(shown), "mode": done.mode.value, "reasons": reasons}


@_shown
def of_job(metrics: QueryMetrics | None, prices: Prices) -> Metadata:
    """The figures that the job recorded: its requests, its batch logs, their latency and price. Nothing without them."""
    if metrics is None:
        return {}
    p50, p99, p999 = metrics.record_milliseconds
    shown: dict[str, Figure] = {
        "batches": metrics.batches,
        "seconds": round(metrics.seconds, 1),
        "write_requests": metrics.writes,
        "read_requests": metrics.reads,
        "dollars_a_day": round(metrics.dollars_a_day(prices), 4),
        "record_bytes": metrics.record_bytes,
        "record_members": metrics.members,
        "record_milliseconds_p50": round(p50, 1),
        "record_milliseconds_p99": round(p99, 1),
        "record_milliseconds_p999": round(p999, 1),
        "hedges_sent": metrics.hedges_sent,
        "hedges_won": metrics.hedges_won,
        "wait_seconds": round(metrics.wait_seconds, 1),
        "back_pressure_seconds": round(metrics.back_pressure_seconds, 1),
        **({} if metrics.early_share is None else {"early_upload_percent": round(100 * metrics.early_share, 1)}),
    }
    return {"job": figures(shown)}


@_shown
def of_taken(one: Taken) -> Metadata:
    """The ledger's entry of a store that got a snapshot."""
    shown = {name: value for name, value in as_json.of_taken(one).items() if isinstance(value, str | int | float)}
    return {"figures": figures(shown)}


@_shown
def of_audit(looked: Looked) -> Metadata:
    """The scope of the audit, its findings, and the files that the next retention run deletes."""
    found, garbage = looked.audit, looked.forecast.now if looked.forecast else Amount()
    left = [store.commits_left for store in found.stores if store.commits_left is not None]
    shown: dict[str, Figure] = {
        "version": 0 if found.batch is None else found.batch + 1,
        "stores": len(found.stores),
        "versions_audited": found.versions,
        "errors": found.count(Severity.ERROR),
        "warnings": found.count(Severity.WARNING),
        "longest_tail": max((store.tail for store in found.stores), default=0),
        **({"least_commits_left": min(left)} if left else {}),
        "garbage_files": garbage.files,
        "garbage_bytes": garbage.bytes,
        "requests": looked.requests.total,
    }
    return {
        "figures": figures(shown),
        "restart": found.restart.explained,
        "findings": of_findings(found.findings),
        "not_verified": bullets(found.unproven),
    }


def of_findings(findings: Sequence[Finding]) -> dg.TableMetadataValue:
    """The findings in the order of the audit, which is worst first."""
    return table(
        {"severity": "string", "file": "string", "problem": "string", "meaning": "string", "action": "string"},
        ((one.severity.name, one.file, one.problem, one.meaning, one.action) for one in findings),
    )


def _of_batch_logs(kept: KeptBatchLogs | None) -> dict[str, Figure]:
    if kept is None:
        return {}
    shown: dict[str, Figure] = {
        "batch_logs": kept.files,
        "batch_log_bytes": kept.size_bytes,
        "batch_log_live_bytes": kept.live_bytes,
    }
    return shown if kept.laggard is None else {**shown, "batch_log_laggard": str(kept.laggard)}


@_shown
def of_retention(done: RetentionPass) -> Metadata:
    """The files that each rule keeps or deletes, and the deletions that the pass made."""
    planned = done.planned
    files: Counter[Rule] = Counter()
    sizes: Counter[Rule] = Counter()
    for verdict in planned.verdicts:
        files[verdict.rule] += 1
        sizes[verdict.rule] += verdict.size_bytes
    rules = sorted(files, key=lambda rule: (not rule.deletes, -sizes[rule]))
    shown: dict[str, Figure] = {
        "version": planned.head or 0,
        "floor": planned.floor or 0,
        "stores_examined": len(planned.stores),
        "planned_files": len(planned.deletions),
        "planned_bytes": sum(verdict.size_bytes for verdict in planned.deletions),
        "deleted_files": sum(step.files for step in done.done),
        "deleted_bytes": sum(step.size_bytes for step in done.done),
        "spared_files": sum(len(step.spared) for step in done.done),
        "stores_skipped": sum(step.outcome is DeletionOutcome.CHANGED for step in done.done),
        "read_files": sum(step.read_files for step in done.done),
        "read_bytes": sum(step.read_bytes for step in done.done),
        "deferred_files": planned.left_out,
        **_of_batch_logs(planned.batch_logs),
    }
    reasons = table(
        {"action": "string", "files": "int", "bytes": "int", "rule": "string"},
        (("delete" if rule.deletes else "keep", files[rule], sizes[rule], rule.value) for rule in rules),
    )
    return {"figures": figures(shown), "mode": done.mode.value, "reasons": reasons}


@_shown
def of_deleted(steps: Sequence[Deleted]) -> Metadata:
    """The ledger's entry of a store from which retention deleted files."""
    shown = {
        "deleted_files": sum(step.files for step in steps),
        "deleted_bytes": sum(step.size_bytes for step in steps),
    }
    return {"figures": figures(shown), "outcome": steps[-1].outcome.value}


def _refusal(refusals: Sequence[StatekeeperError]) -> str:
    """The first of the reasons that block a verb. The figure `refusals` is their number."""
    return str(refusals[0]) if refusals else "none"


@_shown
def of_switch(prepared: PreparedSwitch, *, is_done: bool) -> Metadata:
    """The phase of a switchover, its reasons to refuse, and its step for each store."""
    planned, refusals = prepared.plan, prepared.refusals
    phase = "refused" if refusals else "switched" if is_done else "half done" if planned.half_done else "planned"
    shown: dict[str, Figure] = {
        "version": 0 if planned.batch is None else planned.batch + 1,
        "stores": len(planned.stores),
        "read_bytes": planned.read_bytes,
        "write_bytes": planned.write_bytes,
        "local_bytes": planned.local_bytes,
        "quarantined_files": len(planned.first) + len(planned.last),
        "remaining_files": planned.stays_files,
        "refusals": len(refusals),
    }
    return {
        "phase": phase,
        "to": planned.to.value,
        "figures": figures(shown),
        "refusal": _refusal(refusals),
        "start_with": planned.start_with,
        "steps": table(
            {"store": "string", "head": "string", "snapshot source": "string", "bytes": "int"},
            ((step.store, step.head, step.explained, step.read_bytes) for step in planned.stores),
        ),
    }


@_shown
def of_aborted_switch(begun: Begun) -> Metadata:
    """The switchover that was aborted, and the structure that the checkpoint has again."""
    return {
        "phase": "aborted",
        "to": begun.to.value,
        "figures": figures({"version": begun.batch + 1, "stores": len(begun.stores), "refusals": 0}),
        "structure": begun.to.other.value,
    }


@_shown
def of_rewrite(prepared: PreparedRewrite, *, is_done: bool) -> Metadata:
    """The phase of a rewrite, its partitions before and after, its estimates, and its reasons to refuse."""
    planned, refusals = prepared.plan, prepared.refusals
    phase = "refused" if refusals else "rewritten" if is_done else "half done" if planned.half_done else "planned"
    sink = planned.file_sink
    shown: dict[str, Figure] = {
        "version": 0 if planned.batch is None else planned.batch + 1,
        "partitions_before": max((len(group.sources) for group in planned.groups), default=planned.partitions or 0),
        "partitions_after": planned.partitions or 0,
        "stores": len(planned.targets),
        "read_bytes": planned.read_bytes,
        "local_bytes": planned.local_bytes,
        "estimated_seconds": round(planned.seconds, 1),
        "refusals": len(refusals),
    }
    return {
        "phase": phase,
        "rewrite": planned.rewrite.value,
        "figures": figures(shown),
        "refusal": _refusal(refusals),
        "file_sink": "none" if sink is None else f"{sink.entry.url}/{sink.entry.path}",
        "groups": table(
            {"operator": "int", "store": "string", "partitions before": "int", "after": "int", "bytes": "int"},
            (
                (group.operator, group.name, len(group.sources), len(group.targets), group.read_bytes)
                for group in planned.groups
            ),
        ),
    }


@_shown
def of_load(prepared: PreparedRewrite, *, is_done: bool) -> Metadata:
    """The metadata of a rewrite, and the savepoint with its rows."""
    planned = prepared.plan
    assert planned.load is not None
    saved = planned.load.saved
    return {
        **of_rewrite(prepared, is_done=is_done),
        "savepoint": saved.url,
        "savepoint_batch": saved.batch,
        "watermark_ms": saved.watermark_ms,
        "rows": planned.rows,
    }


@_shown
def of_evolution(prepared: PreparedRewrite, found: EvolutionPreview | None) -> Metadata:
    """As `of_rewrite`, for a plan of a schema evolution, and the first rows before and after."""
    first = () if found is None else found.first
    return {
        **of_rewrite(prepared, is_done=False),
        "rows": table(
            {"store": "string", "key": "string", "before": "string", "after": "string"},
            ((str(store), str(row.key), str(row.before), str(row.after)) for store, row in first),
        ),
        "columns": "; ".join(f"{name}: {change.after_columns}" for name, change in prepared.plan.schemas.items())
        or "none",
        "changed_rows": 0 if found is None else found.total,
    }


@_shown
def of_edit(prepared: PreparedEdit, *, is_done: bool) -> Metadata:
    """The phase of an edit, its changed rows, its estimates, and its reasons to refuse."""
    planned, refusals = prepared.plan, prepared.refusals
    phase = "refused" if refusals else "edited" if is_done else "half done" if planned.half_done else "planned"
    shown: dict[str, Figure] = {
        "version": 0 if planned.batch is None else planned.batch + 1,
        "operator": planned.edit.operator,
        "stores": len(planned.stores),
        **{f"{change.value}_rows": planned.totals[change] for change in Change},
        "read_bytes": planned.read_bytes,
        "local_bytes": planned.local_bytes,
        "estimated_seconds": round(planned.seconds, 1),
        "refusals": len(refusals),
    }
    return {
        "phase": phase,
        "rewrite": planned.rewrite.value,
        "figures": figures(shown),
        "refusal": _refusal(refusals),
        "runs_batch_again": str(planned.begun) if planned.is_in_batch else "none",
        "rows": table(
            {"store": "string", "change": "string", "key": "string", "before": "string", "after": "string"},
            ((store, row.change.value, row.key, row.before or "-", row.after or "-") for store, row in planned.first),
        ),
    }


@_shown
def of_aborted_rewrite(begun: Begun) -> Metadata:
    """The rewrite that was reversed, and the version that the checkpoint has again."""
    return {
        "phase": "aborted",
        "rewrite": begun.rewrite.value,
        "figures": figures({"version": begun.batch + 1, "stores": len(begun.stores), "refusals": 0}),
    }


@_shown
def of_clone(prepared: PreparedClone, destination: str) -> Metadata:
    """The phase of a clone, its bytes by way, and the reasons that block it."""
    planned = prepared.plan
    refusals = prepared.refusals
    phase = "refused" if refusals else "complete" if planned.is_complete else "planned"
    shown: dict[str, Figure] = {
        "batch": planned.record.batch,
        "newest_batch": planned.newest,
        "stores": planned.stores,
        "files": len(planned.files),
        "bytes": planned.size_bytes(),
        "bytes_by_service": planned.size_bytes(Way.SERVICE),
        "bytes_through_this_machine": planned.size_bytes(Way.STREAM, Way.REWRITE),
        "refusals": len(refusals),
    }
    return {
        "phase": phase,
        "destination": destination,
        "query_id": planned.record.query,
        "figures": figures(shown),
        "refusal": _refusal(refusals),
    }


@_shown
def of_mirror(prepared: PreparedMirror, destination: str, cleanup: CleanupPlan | None = None) -> Metadata:
    """The phase of a mirror, its bytes by way, its lag and the reasons that block it. `cleanup`: the deletions after a
    run."""
    planned = prepared.plan
    refusals = prepared.refusals
    lag, deleted = (planned.lag, prepared.cleanup) if cleanup is None else (planned.left, cleanup)
    shown: dict[str, Figure] = {
        "batch": planned.record.batch,
        "newest_batch": lag.newest,
        "lag_batches": lag.batches,
        "lag_bytes": lag.size_bytes,
        **({} if lag.seconds is None else {"lag_seconds": lag.seconds}),
        "stores": planned.stores,
        "files": len(planned.files),
        "bytes": planned.size_bytes(),
        "bytes_by_service": planned.size_bytes(Way.SERVICE),
        "bytes_through_this_machine": planned.size_bytes(Way.STREAM, Way.REWRITE),
        "deletions": len(deleted.obsolete),
        "deleted_bytes": deleted.size_bytes,
        "refusals": len(refusals),
    }
    done = "planned" if cleanup is None else "mirrored"
    phase = "refused" if refusals else "waiting" if prepared.is_waiting else done
    return {
        "phase": phase,
        "destination": destination,
        "query_id": planned.record.query,
        "figures": figures(shown),
        "refusal": _refusal(refusals),
    }


@_shown
def of_savepoint_with_files(prepared: PreparedFiles) -> Metadata:
    """The phase of a savepoint with files, its label, its bytes by way, and the reasons that block it."""
    whole = replace(prepared.clone, refusals=prepared.refusals)
    return {**of_clone(whole, prepared.label.destination), "label": prepared.label.label, "note": prepared.label.note}


@_shown
def of_savepoint_with_rows(prepared: PreparedRows, destination: str, made: Summary | None = None) -> Metadata:
    """The phase of a savepoint with rows, the bytes to read, its counts, and the reasons that block it."""
    planned = prepared.plan
    refusals = prepared.refusals
    shown: dict[str, Figure] = {
        "batch": planned.begun.batch,
        "newest_batch": planned.newest,
        "stores": len(planned.stores),
        "finished_stores": len(planned.finished),
        "bytes_read": planned.read_bytes,
        "refusals": len(refusals),
    }
    saved: Metadata = {}
    if made is not None:
        shown |= {"rows": made.rows, "bytes": made.bytes}
        untyped = ", ".join(f"{path}: {problem}" for path, problem in made.untyped.items())
        saved = {"digest": made.digest, "untyped": untyped or "none"}
    return {
        **saved,
        "phase": "refused" if refusals else "complete" if planned.is_complete else "planned",
        "destination": destination,
        "format": planned.begun.tables,
        "figures": figures(shown),
        "refusal": _refusal(refusals),
        "tables": table(
            {"table": "string", "operator": "string", "rows": "string"},
            ((one.folder, one.operator_name, "bytes" if one.rows is None else "typed") for one in planned.all_tables()),
        ),
    }
