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
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.format import names
from statekeeper.statestore.format.untrusted import json_object
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


Lines: TypeAlias = Callable[[], Iterable[bytes]]
"""Gives the lines of a record, as often as it is called."""


def run_rows(
    about: About, run: RunFiles, plan: Lines | None, outcome: Lines | None
) -> tuple[Row, Iterator[Row], list[Unreadable]]:
    """Return the row of a run, the rows of its steps, and what is unreadable. `plan`, `outcome`: its records; None for a
    missing one.

    A plan may have a line for each file of a root, so that one line is in memory at a time: the records are read here, and
    once more for the rows of the steps.
    """
    problems: list[Unreadable] = []
    done, of_outcome = _added(_Done, outcome, run.outcome, problems)
    # Whether a planned file was deleted depends on the outcome.
    planned, of_plan = _added(lambda: _Planned(verb=run.verb, spared=done.spared), plan, run.plan, problems)
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
    fate = _fates(planned, done) if run.verb in _DELETES and outcome is not None else None
    head = {**row, "run_outcome": of_run["outcome"]}
    return row | of_run, _steps(head, of_plan, of_outcome, fate), problems


def _steps(
    head: Row, planned: Iterable[Json], done: Iterable[Json], fate: Callable[[Json], str] | None
) -> Iterator[Row]:
    for part, lines in (("plan", planned), ("outcome", done)):
        for number, line in enumerate(lines):
            step = {**head, "part": part, "number": number, **_step(line)}
            if fate is not None and part == "plan" and "delete" in line:
                step["outcome"] = fate(line)
            yield step


class _Sums(Protocol):
    def add(self, line: Json) -> None:
        """Add a line of a record."""


_Summed = TypeVar("_Summed", bound=_Sums)


def _added(
    begin: Callable[[], _Summed], lines: Lines | None, entry: Entry | None, problems: list[Unreadable]
) -> tuple[_Summed, Iterable[Json]]:
    """Return the sums of a record, and its lines; those of an empty one if the record is missing or damaged."""
    found = begin()
    if entry is None:
        return found, ()
    if lines is None:
        problems.append(Unreadable(f"{entry.path}: was deleted before it was read"))
        return found, ()
    try:
        for line in lines():
            found.add(json_object(line, entry.path))
    except CorruptFile as error:
        problems.append(Unreadable(str(error)))
        return begin(), ()
    return found, (json_object(line, entry.path) for line in lines())


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Planned:
    """Sums of the lines of a plan. `spared`: the files that the outcome names as spared.

    head    the first line with the size of the stores
    files   the number of files to delete; `left`: of each store, without spared ones
    """

    verb: str
    spared: AbstractSet[str]
    lines: int = 0
    batch: int | None = None
    head: Json = field(default_factory=dict)
    files: int = 0
    left: Counter[str | None] = field(default_factory=Counter)

    def add(self, line: Json) -> None:
        self.lines += 1
        self.batch = _later(self.batch, _batch(line))
        if "head" in line and not self.head:
            self.head = line
        if "delete" in line:
            self.files += 1
            if _path(line) not in self.spared:
                self.left[self.store_of(line)] += 1

    def store_of(self, line: Json) -> str | None:
        """The store of a file to delete; None for a file of no store."""
        place = None if self.verb == "optimize" else names.parse_place(str(line["delete"]))
        return None if place is None else str(place[0])


@dataclass(kw_only=True)
class _Done:
    """Sums of the lines of an outcome, without that of its end.

    failed, error  the line with the error of the run, and the first one with the error of a step
    deleted        the number of deleted files of each store
    drilled        the verdict, the measured and the predicted seconds of each store, from its last line: a comparison with
                   Spark's reader adds a second one
    """

    lines: int = 0
    batch: int | None = None
    end: Json | None = None
    failed: Json | None = None
    error: Json | None = None
    errors: int = 0
    deleted: Counter[str | None] = field(default_factory=Counter)
    files: int = 0
    bytes: int = 0
    spared: set[str] = field(default_factory=set)
    taken: int = 0
    uploaded_bytes: int = 0
    drilled: dict[str, tuple[object, float, float]] = field(default_factory=dict)
    not_started: int = 0

    def add(self, line: Json) -> None:
        if "ended" in line:
            self.end = line
            return
        self.lines += 1
        self.batch = _later(self.batch, _batch(line))
        if "failed" in line and self.failed is None:
            self.failed = line
        if "error" in line:
            self.errors += 1
            self.error = self.error or line
        if line.get("outcome") == "done":
            self.files += _whole(line.get("files")) or 0
            self.bytes += _whole(line.get("bytes")) or 0
        if _outcome(line) == "done":
            self.deleted[_text(line.get("store"))] += _whole(line.get("files")) or 0
            named = line.get("spared")
            self.spared |= {one for one in named if isinstance(one, str)} if isinstance(named, list) else set()
        if "outcome" in line:
            self.taken += 1
            self.uploaded_bytes += _whole(line.get("uploaded_bytes")) or 0
        if "verdict" in line:
            seconds, predicted = (_number(line.get(name)) or 0.0 for name in ("seconds", "predicted_seconds"))
            self.drilled[str(line.get("store"))] = (line["verdict"], seconds, predicted)
        self.not_started += line.get("is_green") is False


def _later(batch: int | None, other: int | None) -> int | None:
    return max((one for one in (batch, other) if one is not None), default=None)


def _figures(run: RunFiles, planned: _Planned, done: _Done, prices: Prices) -> Row:
    end = _end(done)
    error = done.failed or done.error
    row: Row = {
        "outcome": _FAILED if done.failed else _PARTLY if done.errors else _DONE,
        "error_code": _text((error or {}).get("code")),
        "error": _text(done.failed["failed"] if done.failed else done.error["error"] if done.error else None),
        "planned_steps": planned.lines,
        "done_steps": done.lines - done.errors - (done.failed is not None),
        "batch": _later(planned.batch, done.batch),
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
        row |= {"files_deleted": min(done.files, _MOST), "bytes_deleted": min(done.bytes, _MOST)}
        row |= {name: _whole(planned.head.get(name)) for name in ("stored_files", "stored_bytes")}
    if run.verb == "snapshot":
        row |= {"snapshots": done.taken, "bytes_written": min(done.uploaded_bytes, _MOST)}
    if run.verb == "drill":
        verdicts = [verdict for verdict, _, _ in done.drilled.values()]
        row |= {
            "stores_drilled": len(verdicts),
            "drill_findings": sum(one not in _SAME for one in verdicts) + done.not_started,
            "stores_not_compared": sum(one == "not_compared" for one in verdicts),
            "restore_seconds": sum(seconds for _, seconds, _ in done.drilled.values()),
            "predicted_seconds": sum(predicted for _, _, predicted in done.drilled.values()),
        }
    return row


def _end(done: _Done) -> EndedRun | None:
    try:
        return None if done.end is None else EndedRun.decode(done.end)
    except ValueError:
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


def _fates(planned: _Planned, done: _Done) -> Callable[[Json], str]:
    """Return what says of the line of a planned file whether it was deleted.

    The outcome has the number of deleted files of each store, and the names of spared files. So `deleted` is certain only
    if the numbers agree, and `unknown` otherwise.
    """
    is_all = done.deleted.total() == planned.files - len(done.spared)

    def fate(line: Json) -> str:
        if _path(line) in done.spared:
            return "spared"
        store = planned.store_of(line)
        return "deleted" if is_all or done.deleted[store] == planned.left[store] else "unknown"

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


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
