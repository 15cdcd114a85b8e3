"""A checkpoint on one page: its health, findings, restores, sizes, drills and runs. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StoreFileKind, StorePath
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.records import drills, history
from statekeeper.statestore.maintenance.records.drills import Drills
from statekeeper.statestore.maintenance.records.history import DrilledStore, FailedRun
from statekeeper.statestore.maintenance.upkeep.audit import Finding
from statekeeper.statestore.maintenance.verbs.config import Policies
from statekeeper.statestore.maintenance.verbs.health import Health, examined
from statekeeper.statestore.maintenance.verbs.report import decimal
from statekeeper.statestore.storage import Entry, Storage

_MOST_RUNS = 30
"""Newest runs of the history on the page: one request for each."""


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


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A checkpoint. `kinds`: bytes by kind of file; `runs`: the newest ones of the history, oldest first."""

    url: str
    batch: int | None
    health: Health
    findings: tuple[Finding, ...]
    stores: tuple[StoreOverview, ...]
    kinds: Mapping[str, int]
    drills: Drills
    runs: tuple[RunOverview, ...]

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
        return replace(self, findings=tuple(findings))

    @property
    def drill_runs(self) -> Sequence[RunOverview]:
        """The drills that restored a store, oldest first."""
        return [one for one in self.runs if one.verb == "drill" and one.stores]


def overview(storage: Storage, policies: Policies, *, clock: Clock) -> Overview:
    """Look at a checkpoint. Requests: those of `health.examined`, one listing of the root, and one for each of the newest
    runs. Raises as `health.examined`."""
    found = examined(storage, policies, clock=clock)
    gathered = found.gathered
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
    )


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
        try:
            lines = history.read(storage, path)
        except CorruptFile:
            lines = []
        # The comparison with Spark's reader gives a store a second line.
        drilled = list({line.store: line for line in lines if isinstance(line, DrilledStore)}.values())
        yield RunOverview(
            started_seconds=started,
            verb=verb,
            records=len(lines),
            failed=next((line.failed for line in lines if isinstance(line, FailedRun)), None),
            stores=len(drilled),
            predicted_seconds=sum(line.predicted_seconds for line in drilled),
            seconds=sum(line.seconds for line in drilled),
            findings=sum(line.verdict not in ("same", "not_compared") for line in drilled),
        )
