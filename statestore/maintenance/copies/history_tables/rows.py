"""The rows of the tables of history, from the records of a run below its root. Pure.

    runs     one row for each run of a verb
    steps    one row for each line of its plan and of its outcome
    health   one row for each root and day

The lines are untrusted, and a later release may write others. A value of another type than its column is left out. The
column `record` has the whole line, so that nothing is lost.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, TypeAlias

import pyarrow as pa

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import names
from statekeeper.statestore.format.untrusted import json_lines
from statekeeper.statestore.maintenance.records import history
from statekeeper.statestore.maintenance.records.history import EndedRun, Json
from statekeeper.statestore.storage import Entry
from statekeeper.statestore.storage.query_metrics import Prices

Row: TypeAlias = dict[str, Any]

_TIME = pa.timestamp("us", tz="UTC")
_OF_ROOT: list[tuple[str, pa.DataType]] = [("root", pa.string()), ("query", pa.string()), ("team", pa.string())]

RUNS = pa.schema(
    [
        *_OF_ROOT,
        ("run", pa.string()),
        ("run_id", pa.string()),
        ("verb", pa.string()),
        ("day", pa.date32()),
        ("started_at", _TIME),
        ("ended_at", _TIME),
        ("seconds", pa.float64()),
        ("outcome", pa.string()),
        ("error_code", pa.string()),
        ("error", pa.string()),
        ("batch", pa.int64()),
        ("planned_steps", pa.int64()),
        ("done_steps", pa.int64()),
        ("snapshots", pa.int64()),
        ("bytes_written", pa.int64()),
        ("files_deleted", pa.int64()),
        ("bytes_deleted", pa.int64()),
        ("stores_drilled", pa.int64()),
        ("drill_findings", pa.int64()),
        ("stores_not_compared", pa.int64()),
        ("restore_seconds", pa.float64()),
        ("predicted_seconds", pa.float64()),
        ("stored_files", pa.int64()),
        ("stored_bytes", pa.int64()),
        ("write_requests", pa.int64()),
        ("read_requests", pa.int64()),
        ("dollars", pa.float64()),
        ("month", pa.string()),
    ]
)
STEPS = pa.schema(
    [
        *_OF_ROOT,
        ("run", pa.string()),
        ("run_id", pa.string()),
        ("verb", pa.string()),
        ("day", pa.date32()),
        ("started_at", _TIME),
        ("run_outcome", pa.string()),
        ("part", pa.string()),
        ("number", pa.int64()),
        ("store", pa.string()),
        ("batch", pa.int64()),
        ("path", pa.string()),
        ("reason", pa.string()),
        ("outcome", pa.string()),
        ("error", pa.string()),
        ("files", pa.int64()),
        ("bytes", pa.int64()),
        ("rows", pa.int64()),
        ("seconds", pa.float64()),
        ("predicted_seconds", pa.float64()),
        ("record", pa.string()),
        ("month", pa.string()),
    ]
)
HEALTH = pa.schema(
    [
        *_OF_ROOT,
        ("run", pa.string()),
        ("day", pa.date32()),
        ("examined_at", _TIME),
        ("outcome", pa.string()),
        ("batch", pa.int64()),
        ("stores", pa.int64()),
        ("files", pa.int64()),
        ("bytes", pa.int64()),
        ("reclaimable_bytes", pa.int64()),
        ("longest_tail", pa.int64()),
        ("tail_bytes", pa.int64()),
        ("restore_seconds", pa.float64()),
        ("target_seconds", pa.float64()),
        ("errors", pa.int64()),
        ("warnings", pa.int64()),
        ("worst_finding", pa.string()),
        ("last_drill_at", _TIME),
        ("query_dollars", pa.float64()),
        ("examination_dollars", pa.float64()),
        ("month", pa.string()),
    ]
)
"""`run`: the day, which is the key of a row in its root."""

UNFINISHED, DAMAGED = "unfinished", "damaged"
"""The outcome of a run that has not recorded one, which a later pass replaces; and of a run with an unreadable record."""
_DONE, _PARTLY, _FAILED = "done", "partly", "failed"
CHANGES_STATE = (
    *("claim", "convert", "edit", "evolve", "load", "migrate"),
    *("repair", "rescale", "rewind", "switch"),
)
"""The verbs that change which state the query has, by hand. Each other one maintains, checks or copies it."""
_DELETES = ("gc", "mirror", "optimize")
"""The verbs whose plan names each file that they delete."""
_PATHS = ("delete", "path", "aside", "rewrite", "relocate", "rebuild")
_SAME = frozenset({"same", "not_compared"})
_MOST = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class About:
    """The root of a row: its URL, its name and team in the configuration, and the prices of its requests."""

    root: str
    query: str
    team: str
    prices: Prices

    @property
    def row(self) -> Row:
        return {"root": self.root, "query": self.query, "team": self.team}


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The records of a run below its root. `name`: the part of their names that they share; None: the file is missing."""

    name: str
    verb: str
    started_seconds: float
    plan: Entry | None = None
    outcome: Entry | None = None

    @property
    def run_id(self) -> str:
        return self.name[-36:]

    @property
    def month(self) -> str:
        return day_of(self.started_seconds)[:7]


def day_of(seconds: float) -> str:
    """Return the day of a time in UTC: `2026-11-28`."""
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def runs_in(listed: Iterable[Entry]) -> list[RunFiles]:
    """Return the runs in a listing of the history of a root, the oldest first."""
    found: dict[str, Row] = {}
    for entry in listed:
        parsed, started = names.parse_history(entry.path), history.started_seconds(entry.path)
        if parsed is None or started is None or parsed[1] not in ("plan", "outcome"):
            continue
        verb, part = parsed
        name = entry.path.removeprefix(f"{names.HISTORY}/").partition(".")[0]
        found.setdefault(name, {"verb": verb, "started_seconds": started})[part] = entry
    return [RunFiles(name=name, **found[name]) for name in sorted(found)]


@dataclass(frozen=True)
class Unreadable:
    """A record that cannot be read: it is missing, or no JSON."""

    problem: str


def run_rows(
    about: About, run: RunFiles, plan: bytes | None, outcome: bytes | None
) -> tuple[Row, Iterator[Row], list[Unreadable]]:
    """Return the row of a run, the rows of its steps, and what is unreadable. `plan`, `outcome`: the bytes of its records;
    None for a missing one. A row of a step has several times the size of its line, so that they are made one by one."""
    problems: list[Unreadable] = []
    planned, done = (_lines(data, entry, problems) for data, entry in ((plan, run.plan), (outcome, run.outcome)))
    row = {
        **about.row,
        "run": run.name,
        "run_id": run.run_id,
        "verb": run.verb,
        "day": date.fromisoformat(day_of(run.started_seconds)),
        "started_at": _time(run.started_seconds),
        "month": run.month,
    }
    of_run = _figures(run, planned, done, about.prices)
    if problems:
        of_run |= {"outcome": DAMAGED, "error_code": CorruptFile.code, "error": problems[0].problem}
    elif outcome is None:
        of_run["outcome"] = UNFINISHED
    fate = None
    if run.verb in _DELETES and outcome is not None:
        fate = _fates(planned, done, by_store=run.verb != "optimize")
    head = {**row, "run_outcome": of_run["outcome"]}
    return row | of_run, _steps(head, planned, done, fate), problems


def _steps(
    head: Row, planned: Iterable[Json], done: Iterable[Json], fate: Callable[[Json], str] | None
) -> Iterator[Row]:
    for part, lines in (("plan", planned), ("outcome", done)):
        for number, line in enumerate(lines):
            step = {**head, "part": part, "number": number, **_step(line)}
            if fate is not None and part == "plan" and "delete" in line:
                step["outcome"] = fate(line)
            yield step


def _lines(data: bytes | None, entry: Entry | None, problems: list[Unreadable]) -> list[Json]:
    if entry is None:
        return []
    if data is None:
        problems.append(Unreadable(f"{entry.path}: was deleted before it was read"))
        return []
    try:
        return json_lines(data, entry.path)
    except CorruptFile as error:
        problems.append(Unreadable(str(error)))
        return []


# -- runs --------------------------------------------------------------------------------------------------------------


def _figures(run: RunFiles, planned: Sequence[Json], done: Sequence[Json], prices: Prices) -> Row:
    end = _end(done)
    steps = [line for line in done if "ended" not in line]
    failed = next((line for line in steps if "failed" in line), None)
    errors = [line for line in steps if "error" in line]
    row: Row = {
        "outcome": _FAILED if failed else _PARTLY if errors else _DONE,
        "error_code": _text((failed or (errors[0] if errors else {})).get("code")),
        "error": _text(failed["failed"] if failed else errors[0]["error"] if errors else None),
        "planned_steps": len(planned),
        "done_steps": len(steps) - len(errors) - (failed is not None),
        "batch": max((one for one in map(_batch, (*planned, *steps)) if one is not None), default=None),
    }
    if end is not None:
        row |= {
            "ended_at": _time(end.ended),
            "seconds": end.seconds,
            "write_requests": end.writes,
            "read_requests": end.reads,
            "dollars": prices.dollars(end.writes, end.reads),
        }
    elif run.outcome is not None and run.outcome.modified_at_seconds is not None:
        # A record of an earlier release: by the clock of the storage, and without requests.
        row |= {"ended_at": _time(run.outcome.modified_at_seconds)}
    if run.verb in _DELETES:
        deleted = [line for line in steps if line.get("outcome") == "done"]
        row |= {"files_deleted": _sum(deleted, "files"), "bytes_deleted": _sum(deleted, "bytes")}
        head = next((line for line in planned if "head" in line), {})
        row |= {name: _whole(head.get(name)) for name in ("stored_files", "stored_bytes")}
    if run.verb == "snapshot":
        taken = [line for line in steps if "outcome" in line]
        row |= {"snapshots": len(taken), "bytes_written": _sum(taken, "uploaded_bytes")}
    if run.verb == "drill":
        # The comparison with Spark's reader gives a store a second line.
        drilled = {str(line.get("store")): line for line in steps if "verdict" in line}.values()
        row |= {
            "stores_drilled": len(drilled),
            "drill_findings": sum(line["verdict"] not in _SAME for line in drilled)
            + sum(line.get("is_green") is False for line in steps),
            "stores_not_compared": sum(line["verdict"] == "not_compared" for line in drilled),
            "restore_seconds": sum(_number(line.get("seconds")) or 0.0 for line in drilled),
            "predicted_seconds": sum(_number(line.get("predicted_seconds")) or 0.0 for line in drilled),
        }
    return row


def _end(done: Sequence[Json]) -> EndedRun | None:
    for line in reversed(done):
        if "ended" in line:
            try:
                return EndedRun.decode(line)
            except ValueError:
                return None
    return None


# -- steps -------------------------------------------------------------------------------------------------------------


def _step(line: Json) -> Row:
    return {
        "store": _text(line.get("store")),
        "batch": _batch(line),
        "path": _path(line),
        "reason": _first_text(line, "rule", "reason"),
        "outcome": _outcome(line),
        "error": _first_text(line, "failed", "error", "detail"),
        "files": _whole(line.get("files", line.get("merged"))),
        "bytes": _whole(line.get("bytes", line.get("uploaded_bytes"))),
        "rows": _whole(line.get("rows", line.get("keys"))),
        "seconds": _number(line.get("seconds")),
        "predicted_seconds": _number(line.get("predicted_seconds")),
        "record": json.dumps(line, ensure_ascii=False),
    }


def _path(line: Json) -> str | None:
    return next((_text(line[name]) for name in _PATHS if isinstance(line.get(name), str)), None)


def _outcome(line: Json) -> str | None:
    return _first_text(line, "verdict", "outcome", "does")


def _batch(line: Json) -> int | None:
    """The batch of a line: as written, or of the version of its store."""
    if (batch := _whole(line.get("batch"))) is not None:
        return batch
    if (head := _whole(line.get("head"))) is not None:
        return head - 1 if head else None
    if "version" not in line:
        return None
    place = names.parse_store_path(f"{line.get('store')}/{line['version']}.zip")
    return None if place is None or place[1].version.version < 1 else place[1].version.version - 1


def _fates(planned: Sequence[Json], done: Sequence[Json], *, by_store: bool) -> Callable[[Json], str]:
    """Return what says of the line of a planned file whether it was deleted. `by_store`: False if the files belong to no
    store.

    The outcome has the number of deleted files of each store, and the names of spared files. So `deleted` is certain only
    if the numbers agree, and `unknown` otherwise.
    """
    deleted, left = Counter[str | None](), Counter[str | None]()
    spared: set[str] = set()
    for line in done:
        if _outcome(line) == "done":
            deleted[_text(line.get("store"))] += _whole(line.get("files")) or 0
            named = line.get("spared")
            spared |= {one for one in named if isinstance(one, str)} if isinstance(named, list) else set()

    def store_of(line: Json) -> str | None:
        place = names.parse_place(str(line["delete"])) if by_store else None
        return None if place is None else str(place[0])

    files = [line for line in planned if "delete" in line]
    left.update(store_of(line) for line in files if _path(line) not in spared)
    is_all = deleted.total() == len(files) - len(spared)

    def fate(line: Json) -> str:
        if _path(line) in spared:
            return "spared"
        store = store_of(line)
        return "deleted" if is_all or deleted[store] == left[store] else "unknown"

    return fate


# -- values ------------------------------------------------------------------------------------------------------------


def table_of(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as Arrow has them. A missing column is null, and a column of another table is left out."""
    chosen = [{name: row.get(name) for name in schema.names} for row in rows]
    return pa.RecordBatch.from_pylist(chosen, schema=schema)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _first_text(line: Json, *keys: str) -> str | None:
    return next((text for key in keys if (text := _text(line.get(key)))), None)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _MOST else None  # not for infinity and NaN


def _sum(lines: Iterable[Json], key: str) -> int:
    return min(sum(_whole(line.get(key)) or 0 for line in lines), _MOST)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
