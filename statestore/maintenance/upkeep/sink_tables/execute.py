"""Executes the plan of a sink table: merges files in commits that change no row, then deletes unneeded files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import AlreadyExists
from statekeeper.statestore.contents import delta_logs
from statekeeper.statestore.format import delta_log
from statekeeper.statestore.format.delta_log import DataFile, TableHistory
from statekeeper.statestore.maintenance.upkeep.sink_tables.files import merged
from statekeeper.statestore.maintenance.upkeep.sink_tables.model import MergeBin, SinkFacts, SinkPlan
from statekeeper.statestore.storage import DELETE_BATCH, Storage, read_or_none
from statekeeper.statestore.store.engine.scratch import work_folder

_Item = TypeVar("_Item")

OPERATION = "OPTIMIZE"
_BINS = 16
"""A commit has at most so many merges, so that an interrupted run loses little work."""


class Outcome(Enum):
    """What became of a merge."""

    COMMITTED = "committed"
    CHANGED = "another program removed some of its files, so that it was dropped"
    OTHER_TABLE = "another program changed the columns or the protocol of the table, so that it was dropped"
    REPLACED = "another program made the table again, or overwrote a commit of it, so that it was dropped"
    USELESS = "its files have different columns, and would not become fewer, so that it was dropped"

    @property
    def is_conflict(self) -> bool:
        """Return whether another program caused it: the next run plans the files again."""
        return self in (Outcome.CHANGED, Outcome.OTHER_TABLE, Outcome.REPLACED)


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Merges that ended together. `version`: of the table after their commit; None without one; `digests`: of useless
    ones."""

    outcome: Outcome
    bins: int
    files: int
    size_bytes: int
    made: int
    made_bytes: int
    version: int | None
    digests: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Removed:
    """A request that deleted files. `spared`: planned files that a later commit has added again, or all of them if another
    program made the table again."""

    files: int
    size_bytes: int
    spared: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """What a run did."""

    merges: tuple[Merged, ...]
    removals: tuple[Removed, ...]

    @property
    def committed(self) -> tuple[Merged, ...]:
        """The merges that are in the table."""
        return tuple(one for one in self.merges if one.outcome is Outcome.COMMITTED)

    @property
    def useless(self) -> frozenset[str]:
        """The digests of the merges that would have left as many files."""
        return frozenset(digest for one in self.merges for digest in one.digests)

    @property
    def conflicts(self) -> tuple[Merged, ...]:
        """The merges that were dropped because of another program."""
        return tuple(one for one in self.merges if one.outcome.is_conflict)


def execute(
    facts: SinkFacts,
    table: Storage,
    planned: SinkPlan,
    *,
    file_bytes: int,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    told: Callable[[Merged | Removed], None] = lambda step: None,
) -> Optimized:
    """Execute a plan. `table`: for requests under the lease; `told`: called after each commit and each deletion.

    *Guarantee*: a crash at any request leaves each version of the table as it was. The next run plans the rest. Files of a
    merge that was not committed are garbage, which a later run deletes.

    Raises `CorruptFile`, `ObjectMissing`, `UnsupportedTable`, `StorageError`.
    """
    merges, removals = list[Merged](), list[Removed]()
    log = _Tail(table, facts)
    with work_folder(scratch, "optimize") as folder:
        for some in _parts(planned.bins, _BINS):
            made = [(one, merged(table, one, folder, file_bytes=file_bytes, clock=clock, ids=ids)) for one in some]
            for step in chain(
                _useless(table, made, file_bytes), _commit(log, [one for one in made if _is_useful(*one)], clock)
            ):
                merges.append(step)
                told(step)
    for deletions in _parts(planned.deletions, DELETE_BATCH):
        # A RESTORE adds files again that a former version had.
        log.follow()
        left = [one for one in deletions if one.path not in log.added] if not log.is_replaced else []
        if left:
            table.delete([one.path for one in left])
        kept = {one.path for one in left}
        spared = tuple(one.path for one in deletions if one.path not in kept)
        size_bytes = sum(one.size_bytes for one in left)
        removals.append(Removed(files=len(left), size_bytes=size_bytes, spared=spared))
        told(removals[-1])
    return Optimized(merges=tuple(merges), removals=tuple(removals))


class _Tail:
    """The commits of a table after the planned version.

    added           the files that the newest of them needs
    touched         all files that they name
    is_other_table  one of them changes columns, properties or protocol
    is_replaced     a commit that was read is gone or has other bytes: another program made the table again
    """

    def __init__(self, table: Storage, facts: SinkFacts) -> None:
        self.table, self.version = table, facts.version
        self.added: set[str] = set()
        self.touched: set[str] = set()
        self.is_other_table = self.is_replaced = False
        self._last = facts.newest_commit

    def follow(self) -> None:
        """Read the commits since the last call. A request for the last one that was read, one for each, and one that finds
        no next one."""
        if read_or_none(self.table, delta_log.commit_path(self.version)) != self._last:
            self.is_replaced = True
        if self.is_replaced:
            return
        while (data := read_or_none(self.table, path := delta_log.commit_path(self.version + 1))) is not None:
            self.version, self._last = self.version + 1, data
            actions = delta_log.parse_commit(data, path)
            history = TableHistory(self.version)
            history.add(actions, self.version, path)
            self.added |= {name for name, needed in history.last_versions.items() if needed == self.version}
            self.touched |= history.last_versions.keys()
            self.is_other_table = self.is_other_table or bool(history.metadata or history.protocol)

    def create(self, actions: Sequence[Mapping[str, Any]]) -> bool:
        """Commit the next version. Returns False if another program has committed it."""
        data = delta_log.encode_commit(actions)
        try:
            self.table.create(delta_log.commit_path(self.version + 1), data)
        except AlreadyExists:
            return False
        self.version, self._last = self.version + 1, data
        return True


_Made = Sequence[tuple[MergeBin, Sequence[DataFile]]]


def _is_useful(one: MergeBin, files: Sequence[DataFile]) -> bool:
    return len(files) < len(one.files)


def _useless(table: Storage, made: _Made, file_bytes: int) -> Iterator[Merged]:
    """Drop the merges after which the table would not have fewer files."""
    dropped = [(one, files) for one, files in made if not _is_useful(one, files)]
    if dropped:
        table.delete([file.path for _, files in dropped for file in files])
        digests = tuple(one.digest(file_bytes) for one, _ in dropped)
        yield replace(_step(Outcome.USELESS, dropped, None), digests=digests)


def _commit(log: _Tail, made: _Made, clock: Clock) -> Iterator[Merged]:
    """Commit merges; drop those whose files another program has removed meanwhile. A batch of the query that is first does
    not remove files, so that the merge is committed after it."""
    while True:
        log.follow()
        is_other = log.is_other_table or log.is_replaced
        kept = [(one, files) for one, files in made if not is_other and not _is_changed(one, log)]
        dropped = [(one, files) for one, files in made if (one, files) not in kept]
        if dropped:
            # No commit names these files.
            log.table.delete([file.path for _, files in dropped for file in files])
            outcome = Outcome.OTHER_TABLE if log.is_other_table else Outcome.CHANGED
            outcome = Outcome.REPLACED if log.is_replaced else outcome
            yield _step(outcome, dropped, None)
        made = kept
        if not made:
            return
        if log.create(list(_actions(made, log.version, int(clock.now_seconds() * 1000)))):
            yield _step(Outcome.COMMITTED, made, log.version)
            return


def _is_changed(one: MergeBin, log: _Tail) -> bool:
    return any(file.file.path in log.touched for file in one.files)


def _step(outcome: Outcome, made: _Made, version: int | None) -> Merged:
    return Merged(
        outcome=outcome,
        bins=len(made),
        files=sum(len(one.files) for one, _ in made),
        size_bytes=sum(one.size_bytes for one, _ in made),
        made=sum(len(files) for _, files in made),
        made_bytes=sum(file.size_bytes for _, files in made for file in files),
        version=version,
    )


def _actions(made: _Made, read_version: int, now_ms: int) -> Iterator[dict[str, Any]]:
    step = _step(Outcome.COMMITTED, made, None)
    yield {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": OPERATION,
            "operationParameters": {"predicate": "[]", "zOrderBy": "[]", "clusterBy": "[]", "auto": "false"},
            "operationMetrics": {
                "numRemovedFiles": str(step.files),
                "numRemovedBytes": str(step.size_bytes),
                "numAddedFiles": str(step.made),
                "numAddedBytes": str(step.made_bytes),
            },
            "readVersion": read_version,
            "isolationLevel": "SnapshotIsolation",
            "isBlindAppend": False,
            "engineInfo": delta_logs.ENGINE,
        }
    }
    for one, files in made:
        yield from (file.remove(now_ms) for file in one.files)
        yield from (file.add(changes_data=False) for file in files)


def _parts(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    return (items[first : first + size] for first in range(0, len(items), size))
