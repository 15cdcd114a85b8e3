"""What a verb shows of its plan or its execution: data, which each interface lays out in its own way.

The command line prints the tables and lines, or the record as JSON; Dagster shows the phase, the facts, the figures and the
tables as metadata. Tables and lines do not contain the refusals of a plan: each interface adds those of `Prepared`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TypeAlias

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.records.history import Json

Figure: TypeAlias = str | int | float


@dataclass(frozen=True)
class Table:
    """A table. `name`: its label in Dagster; `title`: the line above it in a terminal; `is_whole`: a terminal shows all
    rows, however many."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    _: KW_ONLY
    is_whole: bool = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report.

    record   the JSON object
    phase    what happened: "planned" or, for example, "rewritten"
    facts    texts by label
    figures  numbers by label
    tables, lines  the plan for a person; `lines`: its consequences and the next commands
    made, done     the tables and lines about a plan that was executed, or that has no work
    """

    record: Json
    phase: str
    facts: Mapping[str, Figure] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    lines: tuple[str, ...] = ()
    made: tuple[Table, ...] = ()
    done: tuple[str, ...] = ()

    def named(self, pasteable: Callable[[str], str]) -> Report:
        """Return the report with complete commands. `pasteable`: returns a text with complete commands."""
        texts = {name: pasteable(value) for name, value in self.record.items() if isinstance(value, str)}
        lines, done = tuple(map(pasteable, self.lines)), tuple(map(pasteable, self.done))
        return replace(self, record={**self.record, **texts}, lines=lines, done=done)


def as_objects(refusals: Iterable[StatekeeperError]) -> list[Json]:
    """Encode the refusals of a plan for its record."""
    return list(map(as_object, refusals))


def as_object(error: StatekeeperError) -> Json:
    """Encode an error for a JSON object."""
    return {
        "code": error.code,
        "exit_code": error.exit_code,
        "message": error.what,
        "path": error.path,
        "hint": error.hint,
    }


def way_back(verb: str, url: str, run: str) -> str:
    """Return the line with the command that reverses a run."""
    return f"to undo this run: statekeeper {verb} {shlex.quote(url)} --undo {run} --confirm-stopped"


def start_lines(structure: Structure) -> tuple[str, ...]:
    """The lines with the settings of a native query in this structure: for `spark-submit`, and in code."""
    wrong = "without it the query fails with CANNOT_LOAD_STATE_STORE"
    if structure is Structure.V1:
        wrong = "with the value 2 the query fails with None.get"
    return (
        "start the query with this setting, as an option of spark-submit or in its code before it starts. Before Spark "
        f"4.3, {wrong}, and no state is lost:",
        *(f"  --conf {name}={value}" for name, value in structure.conf.items()),
        *(f'  spark.conf.set("{name}", "{value}")' for name, value in structure.conf.items()),
    )


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
    """The position of a query in a result."""
    if batch is None:
        return "no batch is committed yet"
    return "before the first batch" if batch < 0 else f"batch {batch}"
