"""Brings the tables of history to the newest runs of many roots: what was planned, done, found and paid.

    gather  ->  HistoryFacts  ->  plan  ->  HistoryPlan  ->  execute  ->  one commit of each table

A pass is of several roots, so it is no `Verb`: it holds no lease, because it writes nothing below a root. A root that
cannot be read is a problem of its own, and does not stop the others.

The steps are committed before the runs. A run in the table `runs` is complete, so that a pass after a crash reads only the
runs that are not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import ObjectMissing, StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import redacted
from statekeeper.statestore.format import names
from statekeeper.statestore.maintenance.copies import history_tables
from statekeeper.statestore.maintenance.copies.history_tables import (
    HEALTH,
    RUNS,
    STEPS,
    About,
    Addition,
    HistoryTable,
    HistoryWriter,
    KeptRun,
    Lines,
    RunFiles,
    RunKey,
    Written,
    addition,
    day_of,
    run_rows,
    runs_in,
)
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.verbs.config import (
    HISTORY_KEEP_SECONDS,
    Outputs,
    Policies,
    Root,
    place_of,
    with_options_of,
)
from statekeeper.statestore.maintenance.verbs.health import Health, look
from statekeeper.statestore.maintenance.verbs.report import Figure, Report, Table
from statekeeper.statestore.storage import Entry, Storage, StorageSpec, at_once, open_storage, read_lines
from statekeeper.statestore.storage.query_metrics import Prices
from statekeeper.statestore.store.engine.scratch import work_folder

UNFINISHED_AFTER_SECONDS = 86_400.0
"""A run without an outcome is recorded as unfinished after this time. Its outcome replaces it, however late it comes."""
_RUNS, _STEPS, _HEALTH = "runs", "steps", "health"
_SCHEMAS = {_STEPS: (STEPS, "run_outcome"), _RUNS: (RUNS, "outcome"), _HEALTH: (HEALTH, "outcome")}
"""The columns and the column with the outcome of each table, in the order of the commits."""
_READ_AT_ONCE, _BYTES_AT_ONCE = 200, 16 * 1024 * 1024
"""Runs whose records are in memory, and the bytes of these records. A larger record is on the local disk."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A root of a pass."""

    name: str
    storage: Storage
    policies: Policies
    prices: Prices = field(default_factory=Prices)

    @property
    def url(self) -> str:
        return redacted(self.storage.url)

    @property
    def about(self) -> About:
        return About(root=self.url, query=self.name, team=self.policies.team, prices=self.prices)


@dataclass(frozen=True, kw_only=True)
class HistoryFacts:
    """The roots and the tables.

    runs      of each root, by its name
    kept      the runs of each table in the months of `runs`, by the name of the table
    problems  why a root could not be read, by the name of the root
    """

    url: str
    sources: Mapping[str, Source]
    runs: Mapping[str, tuple[RunFiles, ...]]
    tables: Mapping[str, HistoryTable]
    kept: Mapping[str, Mapping[RunKey, KeptRun]]
    problems: Mapping[str, str]
    now_seconds: float


@dataclass(frozen=True, kw_only=True)
class HistoryPlan:
    """What a pass adds.

    runs      to read, by root
    waiting   number of runs that have not ended, and are left to a later pass
    examined  the roots whose health of today no table has
    """

    facts: HistoryFacts
    keep_seconds: float
    runs: Mapping[str, tuple[RunFiles, ...]]
    waiting: int
    examined: tuple[str, ...]
    additions: Mapping[str, Addition]

    @property
    def day(self) -> str:
        """The day of the rows of health: that on which the pass began, in UTC."""
        return day_of(self.facts.now_seconds)

    @property
    def count(self) -> int:
        """The number of runs to add."""
        return sum(map(len, self.runs.values()))

    @property
    def has_work(self) -> bool:
        is_new = any(one.table is None for one in self.facts.tables.values())
        return is_new or any(not one.is_nothing for one in self.additions.values())


@dataclass(frozen=True, kw_only=True)
class RecordedHistory:
    """The outcome of a pass: that of each table, and the problems of roots and of single records."""

    plan: HistoryPlan
    written: Mapping[str, Written]
    problems: Mapping[str, str]
    damaged: Sequence[str] = ()
    seconds: float = 0.0


def gather(url: str, sources: Iterable[Source], open_table: Callable[[str], Storage], *, clock: Clock) -> HistoryFacts:
    """Gather the runs of the roots, and those that the tables have. Reads only.

    Requests: a listing of the history of each root; of each table its log, a listing, and two or more for each data file
    of a month in which a root has runs. Raises as `history_tables.opened`, `CorruptFile`, `StorageError`.
    """
    # A root that is given twice, by its name and by its URL, is one root.
    known = {one.name: one for one in {one.url: one for one in sources}.values()}
    runs: dict[str, tuple[RunFiles, ...]] = {}
    problems: dict[str, str] = {}

    def listed(name: str) -> None:
        try:
            runs[name] = tuple(runs_in(known[name].storage.list(names.HISTORY)))
        except StatekeeperError as error:
            problems[name] = str(error)

    at_once(listed, list(known))
    now = clock.now_seconds()
    tables = {
        name: history_tables.opened(open_table(f"{url.rstrip('/')}/{name}"), name, schema, outcome)
        for name, (schema, outcome) in _SCHEMAS.items()
    }
    months = {run.month for of_root in runs.values() for run in of_root}
    kept: dict[str, Mapping[RunKey, KeptRun]] = {_RUNS: tables[_RUNS].kept(months)}
    new = {run.month for name, of_root in runs.items() for run in of_root if _is_new(known[name], run, kept[_RUNS])}
    kept[_STEPS] = tables[_STEPS].kept(new)
    kept[_HEALTH] = tables[_HEALTH].kept({day_of(now)[:7]})
    return HistoryFacts(
        url=url,
        sources={name: known[name] for name in sorted(runs)},
        runs=runs,
        tables=tables,
        kept=kept,
        problems=problems,
        now_seconds=now,
    )


def _is_new(source: Source, run: RunFiles, kept: Mapping[RunKey, KeptRun]) -> bool:
    """Whether the table of runs lacks the run, or its outcome."""
    known = kept.get((source.url, run.name))
    return known is None or (not known.is_final and run.outcome is not None)


def plan(facts: HistoryFacts, *, keep_seconds: float = HISTORY_KEEP_SECONDS) -> HistoryPlan:
    """Choose the runs to add, and what leaves the tables. Pure."""
    oldest = facts.now_seconds - keep_seconds
    runs: dict[str, tuple[RunFiles, ...]] = {}
    waiting = 0
    for name, source in facts.sources.items():
        chosen = []
        for run in facts.runs[name]:
            if run.month < day_of(oldest)[:7] or not _is_new(source, run, facts.kept[_RUNS]):
                continue
            if run.outcome is None and facts.now_seconds - run.started_seconds < UNFINISHED_AFTER_SECONDS:
                waiting += 1
                continue
            chosen.append(run)
        if chosen:
            runs[name] = tuple(chosen)
    today = day_of(facts.now_seconds)
    examined = tuple(name for name, source in facts.sources.items() if (source.url, today) not in facts.kept[_HEALTH])
    wanted = {
        (facts.sources[name].url, run.name): run.outcome is not None
        for name, of_root in runs.items()
        for run in of_root
    }
    days = {(facts.sources[name].url, today): True for name in examined}
    additions = {
        name: addition(
            table,
            days if name == _HEALTH else wanted,
            facts.kept[name],
            oldest_month=day_of(oldest)[:7],
            now_seconds=facts.now_seconds,
        )
        for name, table in facts.tables.items()
    }
    return HistoryPlan(
        facts=facts, keep_seconds=keep_seconds, runs=runs, waiting=waiting, examined=examined, additions=additions
    )


def execute(
    planned: HistoryPlan,
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    told: Callable[[str], None] = lambda name: None,
) -> RecordedHistory:
    """Read the runs, examine the roots, and commit. `told` is called after each root with its name.

    Raises `RefusedAsUnsafe` if another program commits meanwhile; `LocalDiskFull`, `StorageError` of a table. An error of
    a root is a problem of it: its runs are added by a later pass.
    """
    started, facts = clock.monotonic_seconds(), planned.facts
    problems, damaged = dict(facts.problems), list[str]()
    with ExitStack() as stack:
        writers = {
            name: HistoryWriter(
                found=table,
                planned=planned.additions[name],
                folder=stack.enter_context(work_folder(scratch, "history")),
                clock=clock,
                ids=ids,
            )
            for name, table in facts.tables.items()
        }
        for name, source in facts.sources.items():
            try:
                for run, row, steps, unreadable in _read(source, planned.runs.get(name, ()), scratch):
                    key = (source.url, run.name)
                    writers[_STEPS].add(key, steps)
                    writers[_RUNS].add(key, [row])
                    damaged += (f"{name}: {one.problem}" for one in unreadable)
                if name in planned.examined:
                    day = planned.day
                    writers[_HEALTH].add((source.url, day), [_of_day(source, day, clock)])
            except StatekeeperError as error:
                problems[name] = str(error)
            told(name)
        written = {name: writer.commit() for name, writer in writers.items()}
    return RecordedHistory(
        plan=planned,
        written=written,
        problems=problems,
        damaged=damaged,
        seconds=clock.monotonic_seconds() - started,
    )


def _read(
    source: Source, runs: Sequence[RunFiles], scratch: Path
) -> Iterator[tuple[RunFiles, dict[str, Any], Iterator[dict[str, Any]], Sequence[history_tables.Unreadable]]]:
    for some in read_together(runs):
        found: dict[str, Lines | None] = {}
        with work_folder(scratch, "history") as folder:
            here = open_storage(str(folder))

            def read(entry: Entry, found: dict[str, Lines | None] = found, here: Storage = here) -> None:
                found[entry.path] = None
                with suppress(ObjectMissing):
                    if entry.size_bytes <= _BYTES_AT_ONCE:
                        found[entry.path] = source.storage.read(entry.path).splitlines
                    else:
                        name = entry.path.rpartition("/")[2]
                        source.storage.download(entry.path, folder / name)
                        found[entry.path] = partial(read_lines, here, name)

            at_once(read, [one for run in some for one in (run.plan, run.outcome) if one is not None])
            for run in some:
                plan, outcome = (None if one is None else found.pop(one.path) for one in (run.plan, run.outcome))
                yield run, *run_rows(source.about, run, plan, outcome)


def read_together(runs: Sequence[RunFiles]) -> Iterator[list[RunFiles]]:
    """Divide runs into those that are read at once. Pure."""
    block, size = list[RunFiles](), 0
    for run in runs:
        of_run = sum(one.size_bytes for one in (run.plan, run.outcome) if one is not None)
        if block and (len(block) >= _READ_AT_ONCE or size + of_run > _BYTES_AT_ONCE):
            yield block
            block, size = [], 0
        block.append(run)
        size += of_run
    if block:
        yield block


def _of_day(source: Source, day: str, clock: Clock) -> dict[str, Any]:
    """Examine a root and return its row for `day`, the day of the plan, even if it is past midnight now."""
    now = clock.now_seconds()
    health: Health = look(source.storage, source.policies, clock=clock)
    return {
        **source.about.row,
        "run": day,
        "day": date.fromisoformat(day),
        "examined_at": datetime.fromtimestamp(now, UTC),
        "outcome": "ERROR" if health.errors else "WARN" if health.warnings else "OK",
        "batch": health.version - 1 if health.version else None,
        "stores": health.stores,
        "files": health.files,
        "bytes": health.bytes,
        "reclaimable_bytes": health.reclaimable_bytes,
        "longest_tail": health.longest_tail,
        "tail_bytes": health.tail_bytes,
        "restore_seconds": health.restore_seconds,
        "target_seconds": source.policies.snapshot.restore_target_seconds,
        "errors": health.errors,
        "warnings": health.warnings,
        "worst_finding": None if health.worst is None else f"{health.worst.file} {health.worst.problem}",
        "last_drill_at": None
        if health.drilled_at_seconds is None
        else datetime.fromtimestamp(health.drilled_at_seconds, UTC),
        "query_dollars": None if health.job is None else health.job.dollars_a_day(source.prices),
        "examination_dollars": source.prices.dollars(health.counts.writes, health.counts.reads),
        "month": day[:7],
    }


# -- report ------------------------------------------------------------------------------------------------------------


def report(planned: HistoryPlan, made: RecordedHistory | None) -> Report:
    """Report a plan, or a pass."""
    facts = planned.facts
    problems = facts.problems if made is None else made.problems
    damaged = () if made is None else made.damaged
    rows = [
        _table_row(name, planned.additions[name], None if made is None else made.written[name]) for name in facts.tables
    ]
    record: Json = {
        "url": redacted(facts.url),
        "roots": len(facts.sources),
        "runs": planned.count,
        "waiting": planned.waiting,
        "examined": list(planned.examined),
        "tables": {str(row["table"]): {name: one for name, one in row.items() if name != "table"} for row in rows},
        "problems": dict(problems),
        "damaged": list(damaged),
    }
    figures: dict[str, Figure] = {
        "roots": len(facts.sources),
        "runs": planned.count,
        "runs_without_outcome": planned.waiting,
    }
    if made is not None:
        record["seconds"] = round(made.seconds, 3)
        figures |= {f"{name}_rows": one.rows for name, one in made.written.items()}
    columns = tuple(rows[0])
    shown = Table(
        "tables", f"tables of history at {redacted(facts.url)}", columns, [tuple(row.values()) for row in rows]
    )
    counts = f"{counted(planned.count, 'run')} of {counted(len(facts.sources), 'root')}"
    lines = tuple(f"{name}: {problem}" for name, problem in problems.items()) + tuple(damaged)
    if planned.waiting:
        lines += (f"{counted(planned.waiting, 'run')} without an outcome: left to a later run of this command",)
    return Report(
        record=record,
        phase="planned" if made is None else "recorded",
        facts={"table": redacted(facts.url)},
        figures=figures,
        tables=(shown,),
        lines=(f"would add {counts}", *lines),
        made=(shown,),
        done=(f"added {counts}", *lines),
    )


def _table_row(name: str, planned: Addition, written: Written | None) -> dict[str, object]:
    if written is None:
        return {
            "table": name,
            "new_runs": len(planned.added),
            "replaced_runs": len(planned.replaced),
            "expired_files": len(planned.expired),
            "merged_files": len(planned.merged),
            "deleted_files": len(planned.garbage),
        }
    return {
        "table": name,
        "rows": written.rows,
        "replaced_runs": written.replaced_runs,
        "expired_rows": written.expired_rows,
        "merged_files": written.merged_files,
        "deleted_files": written.deleted_files,
        "version": written.version,
    }


# -- configuration -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Destination:
    """A place that the files of these roots name. `keep_seconds`: of tables of history."""

    spec: StorageSpec
    keep_seconds: float
    roots: tuple[Root, ...]

    def table(self, url: str) -> StorageSpec:
        """Return the spec of one of its tables."""
        return replace(self.spec, url=url)


def destinations(
    roots: Iterable[Root], *, of: Callable[[Outputs], StorageSpec | None] = lambda outputs: outputs.history
) -> tuple[list[Destination], list[Root]]:
    """Return the places that the files of the roots name, and the roots without one. Pure. `of`: chooses the place.

    A place without options of its own has those of its first root, if both URLs have one scheme. Of several retentions,
    the longest one applies.
    """
    found: dict[tuple[object, ...], Destination] = {}
    without = []
    for root in roots:
        spec = of(root.outputs)
        if spec is None:
            without.append(root)
            continue
        place = place_of(spec)
        known = found.get(place) or Destination(
            spec=with_options_of(root.spec, spec), keep_seconds=root.outputs.keep_seconds, roots=()
        )
        keep = max(known.keep_seconds, root.outputs.keep_seconds)
        found[place] = replace(known, keep_seconds=keep, roots=(*known.roots, root))
    return list(found.values()), without


def source_of(root: Root, storage: Storage) -> Source:
    """Return the source of a configured root."""
    return Source(name=root.name, storage=storage, policies=root.policies, prices=root.prices)
