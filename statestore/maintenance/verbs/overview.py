"""A checkpoint on one page: its health, findings, restores, lineages, sizes, growth, costs, drills, changes and runs. Reads
only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing, StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.contents.top import TopOfState
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StoreFileKind, StorePath
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.untrusted import json_object
from statekeeper.statestore.maintenance.copies.history_tables import CHANGES_STATE, About, RunFiles, run_rows, runs_in
from statekeeper.statestore.maintenance.records import drills, history
from statekeeper.statestore.maintenance.records.drills import Drills
from statekeeper.statestore.maintenance.records.history import (
    DeletedFiles,
    DrilledStore,
    FailedRun,
    Json,
    RetentionHead,
)
from statekeeper.statestore.maintenance.upkeep.audit import AuditFacts, Finding
from statekeeper.statestore.maintenance.upkeep.audit.facts import StoreAuditFacts
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.health import Health, examined
from statekeeper.statestore.maintenance.verbs.lineage import PicturedLineage, pictured
from statekeeper.statestore.maintenance.verbs.report import decimal
from statekeeper.statestore.storage import Entry, Storage, at_once
from statekeeper.statestore.storage.query_metrics import Prices

_MOST_RUNS = 30
"""Newest runs of the history on the page: one request for each."""
_MOST_COLLECTIONS = 100
"""Newest runs of gc whose deletions are summed: one request for each."""
_MOST_SIZES = 30
"""Sizes that the growth is computed from: one request for each."""
_MOST_CHANGES = 10
"""Newest runs of verbs that change the state: two requests for each."""
_PICTURED = 3
"""Stores whose lineage is drawn: those that do not load, and then those with the longest restores."""
_LEAST_DAYS = 2.0
"""Sizes of a shorter time say nothing about growth."""
_HEAD_BYTES = 64 * 1024
"""The first lines of a plan, and the last ones of an outcome, are in so many bytes. A plan may name 100,000 files."""
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, kw_only=True)
class StoreOverview:
    """A store. `predicted_seconds`: of its next restore; None if it does not load."""

    store: StorePath
    predicted_seconds: float | None
    changelogs: int
    tail_bytes: int
    size_bytes: int
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class RunOverview:
    """A run in the history. `records`: lines of its outcome; `failed`: the error that ended it.

    Of a drill, `stores` were restored in `seconds`, which were predicted as `predicted_seconds`.
    """

    started_seconds: float
    verb: str
    records: int
    failed: str | None = None
    stores: int = 0
    predicted_seconds: float = 0.0
    seconds: float = 0.0
    findings: int = 0


@dataclass(frozen=True)
class Growth:
    """The size of all stores over time, oldest first: (Unix time, bytes). Each but the last is the size before a run of
    gc, as its plan recorded it; the last one is the size now."""

    sizes: tuple[tuple[float, int], ...]

    @property
    def days(self) -> float:
        """The days that the sizes span."""
        return (self.sizes[-1][0] - self.sizes[0][0]) / _DAY_SECONDS if self.sizes else 0.0

    @property
    def bytes_per_day(self) -> float | None:
        """The median of the slopes between all pairs of sizes (Theil and Sen): a single large deletion does not change it.
        None for fewer than three sizes, or for less than two days."""
        if len(self.sizes) < 3 or self.days < _LEAST_DAYS:
            return None
        pairs = combinations(self.sizes, 2)
        slopes = [(b[1] - a[1]) / (b[0] - a[0]) * _DAY_SECONDS for a, b in pairs if b[0] > a[0]]
        return median(slopes) if slopes else None

    def in_days(self, days: float) -> int | None:
        """Return the size in so many days, if it grows as it did; None if that is unknown."""
        slope = self.bytes_per_day
        return None if slope is None else max(0, round(self.sizes[-1][1] + slope * days))


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What the newest runs of gc in the history deleted.

    since_seconds   of the oldest of these runs; None without one
    """

    runs: int = 0
    since_seconds: float | None = None
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ChangeOverview:
    """A run of a verb that changed the state. `details`: a description of its plan."""

    started_seconds: float
    verb: str
    outcome: str
    batch: int | None
    details: str
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A checkpoint.

    kinds           bytes by kind of file
    runs            the newest ones of the history, oldest first
    lineages        of the worst stores
    target_seconds  of a restore of all stores; None without a target
    top             the largest and the most changed keys, or why they are unknown; None if they were not looked for
    """

    url: str
    batch: int | None
    health: Health
    findings: tuple[Finding, ...]
    stores: tuple[StoreOverview, ...]
    kinds: Mapping[str, int]
    drills: Drills
    runs: tuple[RunOverview, ...]
    lineages: tuple[PicturedLineage, ...] = ()
    growth: Growth = field(default_factory=lambda: Growth(()))
    collected: Collected = field(default_factory=Collected)
    changes: tuple[ChangeOverview, ...] = ()
    target_seconds: float | None = None
    prices: Prices = field(default_factory=Prices)
    top: TopOfState | StatekeeperError | None = None

    @property
    def lost(self) -> int:
        """The number of stores that do not load."""
        return sum(one.predicted_seconds is None for one in self.stores)

    @property
    def sentence(self) -> str:
        """The health in a sentence, and what was not examined."""
        health = self.health
        if self.batch is None:
            return "No batch is committed yet."
        if self.lost:
            start = f"The query cannot restart: {counted(self.lost, 'store')} of {health.stores:,} cannot be restored"
        else:
            start = f"All {counted(health.stores, 'store')} have the files for a restart"
        size = f"The checkpoint has {decimal(health.bytes)} at batch {self.batch:,}."
        numbers = {"error": health.errors, "warning": health.warnings}
        problems = " and ".join(counted(number, what) for what, number in numbers.items() if number) or "no finding"
        if self.lost:
            return f"{start}, with {problems}. {size}"
        by = "no drill has measured this"
        if health.drilled_at_seconds is not None:
            by = f"predicted from drills, the newest of {utc(health.drilled_at_seconds)}"
        seconds = f"A restore of all stores, one after another, takes about {health.restore_seconds:,.1f} s ({by})."
        return f"{start}, with {problems}. {seconds} {size}"

    @property
    def skew(self) -> float | None:
        """The size of the largest store, divided by the mean; None without bytes."""
        sizes = [one.size_bytes for one in self.stores]
        total = sum(sizes)
        return max(sizes) * len(sizes) / total if total else None

    def named(self, pasteable: Callable[[str], str]) -> Overview:
        """Return the overview with commands that can be pasted."""
        findings = (replace(one, meaning=pasteable(one.meaning), action=pasteable(one.action)) for one in self.findings)
        stores = (replace(one, problem=one.problem and pasteable(one.problem)) for one in self.stores)
        if isinstance(self.top, StatekeeperError):
            self.top.name_root(pasteable)
        return replace(self, findings=tuple(findings), stores=tuple(stores))

    @property
    def drill_runs(self) -> Sequence[RunOverview]:
        """The drills that restored a store, oldest first."""
        return [one for one in self.runs if one.verb == "drill" and one.stores]


def overview(storage: Storage, policies: Policies, *, clock: Clock, prices: Prices | None = None) -> Overview:
    """Look at a checkpoint. Requests: those of `health.examined`, one listing of the root, and at most 180 for runs in the
    history. Raises as `health.examined`. Without `top`, which restores the stores: see `contents.top`."""
    found = examined(storage, policies, clock=clock)
    gathered = found.gathered
    in_history = runs_in(found.history)
    now = clock.now_seconds()
    stores = tuple(
        StoreOverview(
            store=fact.store,
            predicted_seconds=None if fact.load is None else gathered.restore_seconds(fact),
            changelogs=0 if fact.load is None else len(fact.load.replay),
            tail_bytes=fact.tail_bytes,
            size_bytes=fact.size_bytes,
            problem=fact.problem,
        )
        for fact in gathered.stores
    )
    return Overview(
        url=storage.url,
        batch=gathered.batch,
        health=found.health,
        findings=tuple(found.looked.audit.findings),
        stores=stores,
        kinds=_kinds(storage.list("")),
        drills=drills.read(storage),
        runs=tuple(_runs(storage, found.history)),
        lineages=tuple(_lineages(found.looked.facts, stores)),
        growth=_growth(storage, in_history, (now, found.health.bytes)),
        collected=_collected(storage, in_history),
        changes=tuple(_changes(storage, in_history)),
        target_seconds=policies.snapshot.restore_target_seconds,
        prices=prices or Prices(),
    )


def _lineages(facts: AuditFacts, stores: Sequence[StoreOverview]) -> Iterator[PicturedLineage]:
    """Choose the stores that do not load, and then those with the longest restores."""
    of_store = {one.store: one for one in facts.stores if isinstance(one, StoreAuditFacts)}
    worst = sorted(
        stores, key=lambda one: (one.predicted_seconds is not None, -(one.predicted_seconds or 0), one.store)
    )
    chosen = [one.store for one in worst if one.store in of_store]
    for store in chosen[:_PICTURED]:
        yield pictured(of_store[store].chain)


def _growth(storage: Storage, runs: Sequence[RunFiles], now: tuple[float, int]) -> Growth:
    """Read the sizes before runs of gc: some of them, spread over the history."""
    plans = [run for run in runs if run.verb == "gc" and run.plan is not None]
    step = max(1, -(-len(plans) // _MOST_SIZES))
    sizes: dict[float, int] = {}

    def read(run: RunFiles) -> None:
        assert run.plan is not None
        with suppress(CorruptFile, ObjectMissing, ValueError):
            head = storage.read_range(run.plan.path, 0, min(run.plan.size_bytes, _HEAD_BYTES)).partition(b"\n")[0]
            record = history.decode("gc", "plan", json_object(head, run.plan.path))
            if isinstance(record, RetentionHead) and record.stored_bytes is not None:
                sizes[run.started_seconds] = record.stored_bytes

    at_once(read, [run for run in plans[::-1][::step] if run.plan and run.plan.size_bytes])
    return Growth((*sorted(sizes.items()), now))


def _collected(storage: Storage, runs: Sequence[RunFiles]) -> Collected:
    """Sum the deletions of the newest runs of gc."""
    ended = [run for run in runs if run.verb == "gc" and run.outcome is not None][-_MOST_COLLECTIONS:]
    found: dict[str, tuple[int, int]] = {}

    def read(run: RunFiles) -> None:
        assert run.outcome is not None
        with suppress(CorruptFile):
            files = size_bytes = 0
            for line in history.records(storage, run.outcome.path):
                if isinstance(line, DeletedFiles):
                    files, size_bytes = files + line.files, size_bytes + line.bytes
            found[run.name] = (files, size_bytes)

    at_once(read, ended)
    return Collected(
        runs=len(ended),
        since_seconds=ended[0].started_seconds if ended else None,
        files=sum(files for files, _ in found.values()),
        bytes=sum(size_bytes for _, size_bytes in found.values()),
    )


def _changes(storage: Storage, runs: Sequence[RunFiles]) -> Iterator[ChangeOverview]:
    """Read the first and the last lines of the newest runs of verbs that change the state, oldest first."""
    about = About(root=storage.url, query="", team="", prices=Prices())
    for run in [run for run in runs if run.verb in CHANGES_STATE][-_MOST_CHANGES:]:
        plan = None if run.plan is None else _first_lines(storage, run.plan)
        outcome = None if run.outcome is None else _last_lines(storage, run.outcome)
        row, steps, _ = run_rows(about, run, *(None if data is None else data.splitlines for data in (plan, outcome)))
        first: Json = next((json.loads(step["record"]) for step in steps if step["part"] == "plan"), {})
        yield ChangeOverview(
            started_seconds=run.started_seconds,
            verb=run.verb,
            outcome=row["outcome"],
            batch=row["batch"],
            details=", ".join(f"{name} {first[name]}" for name in _DETAILS if isinstance(first.get(name), str | int)),
            error=row.get("error"),
        )


def _first_lines(storage: Storage, entry: Entry) -> bytes | None:
    """Read the whole lines in the first bytes of a record; None if it was deleted."""
    with suppress(ObjectMissing):
        data = storage.read_range(entry.path, 0, min(entry.size_bytes, _HEAD_BYTES))
        return data if entry.size_bytes <= _HEAD_BYTES else data[: data.rfind(b"\n") + 1]
    return None


def _last_lines(storage: Storage, entry: Entry) -> bytes | None:
    """Read the whole lines in the last bytes of a record, where its error and its end are; None if it was deleted."""
    with suppress(ObjectMissing):
        first = max(0, entry.size_bytes - _HEAD_BYTES)
        data = storage.read_range(entry.path, first, entry.size_bytes - first)
        return data if first == 0 else data[data.find(b"\n") + 1 :]
    return None


_DETAILS = ("to", "rewrite", "partitions", "provider", "structure", "newest_batch", "operator", "old", "blueprint")
"""What the first line of a plan says about the change."""


def _kinds(entries: Iterable[Entry]) -> Mapping[str, int]:
    """Sum the bytes by kind of file, largest first. Pure."""
    sizes: Counter[str] = Counter()
    for entry in entries:
        sizes[_kind(entry.path)] += entry.size_bytes
    return dict(sizes.most_common())


def _kind(path: str) -> str:
    if path.startswith(f"{names.BATCH_LOGS}/"):
        return "batch logs"
    if path.startswith(f"{names.CONTROL}/"):
        return "records of Statekeeper"
    if path.startswith((f"{names.OFFSETS}/", f"{names.COMMITS}/", f"{names.SOURCES}/")):
        return "logs of the query"
    place = next(filter(None, (names.parse_store_path(path, provider) for provider in Provider)), None)
    if place is not None:
        return "changelogs" if place[1].kind is StoreFileKind.CHANGELOG else "snapshots"
    of_store = names.parse_place(path)
    if of_store is not None and names.parse_shared_file(of_store[1]) is not None:
        return "SST files of snapshots"
    return "other files"


def _runs(storage: Storage, listed: Iterable[Entry]) -> Iterable[RunOverview]:
    outcomes = sorted(one.path for one in listed if (names.parse_history(one.path) or ("", ""))[1] == "outcome")
    for path in outcomes[-_MOST_RUNS:]:
        started, (verb, _) = history.started_seconds(path), names.parse_history(path) or ("", "")
        if started is None:
            continue
        lines, failed, stores = 0, None, dict[StorePath, DrilledStore]()
        try:
            for line in history.records(storage, path):
                lines += 1
                if isinstance(line, FailedRun):
                    failed = failed or line.failed
                elif isinstance(line, DrilledStore):
                    # The comparison with Spark's reader gives a store a second line.
                    stores[line.store] = line
        except CorruptFile:
            lines, failed, stores = 0, None, {}
        drilled = stores.values()
        yield RunOverview(
            started_seconds=started,
            verb=verb,
            records=lines,
            failed=failed,
            stores=len(drilled),
            predicted_seconds=sum(line.predicted_seconds for line in drilled),
            seconds=sum(line.seconds for line in drilled),
            findings=sum(line.verdict not in ("same", "not_compared") for line in drilled),
        )
