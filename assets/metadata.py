"""Shows the result of a pass as Dagster metadata: tables, texts and figures under labels that do not change.

Dagster plots each number in metadata. For a partitioned asset it draws one line through the numbers of all queries. So the
figures of a query are a table, which Dagster does not plot; only `fleet_health` and the fleet's verdicts have numbers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import ParamSpec, TypeAlias

import dagster as dg

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.contents.sizes import SnapshotSizes
from statekeeper.statestore.maintenance.upkeep.audit import Finding, Severity
from statekeeper.statestore.maintenance.upkeep.retention import Amount, Deleted
from statekeeper.statestore.maintenance.upkeep.snapshot import Taken
from statekeeper.statestore.maintenance.verbs.as_json import upkeep as as_json
from statekeeper.statestore.maintenance.verbs.audit import Looked
from statekeeper.statestore.maintenance.verbs.report import Figure, Report, Table
from statekeeper.statestore.storage.query_metrics import Prices, QueryMetrics

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
    return dg.MetadataValue.md("\n".join(f"* {escaped(text)}" for text in texts))


def escaped(text: str) -> str:
    """The text in Markdown as it is, in one line."""
    return _PUNCTUATION.sub(lambda found: f"\\{found.group()}", printable(text))


def code(text: str) -> str:
    """The text in Markdown as code, in one line."""
    text = printable(text)
    return escaped(text) if "`" in text else f"`{text}`"


def _shown(of: Callable[Arguments, Metadata]) -> Callable[Arguments, Metadata]:
    """Make each text of the metadata printable: names, notes and URLs come from the checkpoint."""

    @functools.wraps(of)
    def shown(*args: Arguments.args, **named: Arguments.kwargs) -> Metadata:
        found = of(*args, **named)
        return {label: printable(value) if isinstance(value, str) else value for label, value in found.items()}

    return shown


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


@_shown
def of_deep_audit(looked: Looked) -> Metadata:
    """The scope of an audit that has read every byte, its findings, and what it has read."""
    read = looked.audit.decoded.values()
    shown: dict[str, Figure] = {
        "changelogs": sum(one.changelogs for one in read),
        "records": sum(one.records for one in read),
        "snapshots": sum(one.snapshots for one in read),
        "keys": sum(one.keys for one in read),
        "bytes": looked.requests.bytes_read,
    }
    return {**of_audit(looked), "read": figures(shown)}


def of_sizes(sizes: Sequence[SnapshotSizes]) -> dg.TableMetadataValue:
    """The sizes of the stores by their snapshots: keys, bytes, skew, and growth per day."""
    columns = {
        "store": "string",
        "keys": "int",
        "MiB": "float",
        "skew": "float",
        "keys_per_day": "int",
        "counted": "string",
    }
    return table(
        columns,
        (
            (
                f"{one.operator}/{one.store}",
                one.keys,
                round(one.size_bytes / 2**20, 1),
                round(one.skew or 0.0, 2),
                0 if one.growth is None else round(one.growth.keys_per_day),
                f"{len(one.partitions)} of {counted(one.of, 'partition')}",
            )
            for one in sorted(sizes, key=lambda one: -one.keys)
        ),
    )


def of_findings(findings: Sequence[Finding]) -> dg.TableMetadataValue:
    """The findings in the order of the audit, which is worst first."""
    return table(
        {"severity": "string", "file": "string", "problem": "string", "meaning": "string", "action": "string"},
        ((one.severity.name, one.file, one.problem, one.meaning, one.action) for one in findings),
    )


@_shown
def of_deleted(steps: Sequence[Deleted]) -> Metadata:
    """The ledger's entry of a store from which retention deleted files."""
    shown = {
        "deleted_files": sum(step.files for step in steps),
        "deleted_bytes": sum(step.size_bytes for step in steps),
    }
    return {"figures": figures(shown), "outcome": steps[-1].outcome.value}


@_shown
def of_report(report: Report, refusals: Sequence[str]) -> Metadata:
    """The report of a verb, and the first of the reasons that block it. The figure `refusals` is their number."""
    return {
        "phase": report.phase,
        **report.facts,
        "figures": figures({**report.figures, "refusals": len(refusals)}),
        "refusal": refusals[0] if refusals else "none",
        **{one.name: _of_table(one) for one in (*report.tables, *report.made)},
    }


def _of_table(shown: Table) -> dg.TableMetadataValue:
    """A table of a report. A column is of numbers if each of its cells is one."""
    columns = {name: [row[place] for row in shown.rows] for place, name in enumerate(shown.columns)}
    return table({name: _kind(cells) for name, cells in columns.items()}, shown.rows)


def _kind(cells: Sequence[object]) -> str:
    if all(isinstance(cell, int) for cell in cells):
        return "int"
    return "float" if all(isinstance(cell, int | float) for cell in cells) else "string"
