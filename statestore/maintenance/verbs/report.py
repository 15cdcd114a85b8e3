"""What a verb shows of its plan or its execution: data, which each interface lays out in its own way.

The command line prints the tables and lines, or the record as JSON; Dagster shows the phase, the facts, the figures and the
tables as metadata. The refusals of a plan are no part of it: each interface adds those of `Prepared`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from statekeeper.statestore.maintenance.records.history import Json

Figure: TypeAlias = str | int | float


@dataclass(frozen=True)
class Table:
    """A table. `name`: its label in Dagster; `title`: the line above it in a terminal."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report.

    record   the JSON object
    phase    what happened: "planned" or, for example, "rewritten"
    facts    texts by label
    figures  numbers by label
    tables, lines  the plan for a person; `lines`: its consequences and the next commands
    done     the lines about a plan that was executed, or that has no work
    """

    record: Json
    phase: str
    facts: Mapping[str, Figure] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    lines: tuple[str, ...] = ()
    done: tuple[str, ...] = ()


def decimal(size_bytes: int) -> str:
    """The size in decimal units, such as "1.5 kB"."""
    if size_bytes < 1_000:
        return "1 byte" if size_bytes == 1 else f"{size_bytes:,} bytes"
    size, units = float(size_bytes), ("kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
    for unit in units:
        size /= 1_000
        if size < 1_000 or unit == units[-1]:
            break
    return f"{size:,.1f} {unit}"


def when(batch: int | None) -> str:
    """The batch and version of a result."""
    if batch is None:
        return "no batch is committed yet"
    return "version 0, before the first batch" if batch < 0 else f"batch {batch}, version {batch + 1}"
