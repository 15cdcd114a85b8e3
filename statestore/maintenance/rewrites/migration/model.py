"""The types of a migration: the goal, the facts, what each operator takes over, and the plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from statekeeper.statestore.checkpoint.rewrite_journal import RewriteJournal
from statekeeper.statestore.format import names
from statekeeper.statestore.format.families import Family
from statekeeper.statestore.format.logs import OffsetLog, parse_commit, parse_offsets
from statekeeper.statestore.maintenance.rewrites.migration.rows import MappedColumn, value_columns
from statekeeper.statestore.maintenance.rewrites.whole_stores.model import OperatorFacts, RewriteFacts, RewritePlan
from statekeeper.statestore.root.binding import Binding, encode_binding
from statekeeper.statestore.root.times import TIMERS_DUE, index_of
from statekeeper.statestore.storage import Entry

NONE = "none"
"""The old side of `--map` for an operator or a source that starts empty."""

ONLY_INPUT, TICK = "input", "tick"
"""The source of a job with one stream, and its source of ticks."""

SOURCE = "source."
"""What precedes the number or the name of a source in `--map`."""


@dataclass(frozen=True, kw_only=True)
class Migrate:
    """The goal: the state of one checkpoint for the changed query of another one.

    old, blueprint  the URLs of both checkpoints, as the command names them
    maps            new -> old: operators, value columns and sources
    defaults        new value column -> value
    drops           whether state of the old checkpoint may be lost
    partitions      None: those of the blueprint
    new_query       whether the query gets a new id
    location        the URL that Spark uses for the destination; None derives it
    """

    old: str
    blueprint: str
    maps: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    drops: bool = False
    partitions: int | None = None
    new_query: bool = False
    location: str | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments of the command that state this goal."""
        return (
            self.old,
            self.blueprint,
            *(text for new, old in self.maps.items() for text in ("--map", f"{new}={old}")),
            *(text for new, value in self.defaults.items() for text in ("--default", f"{new}={value}")),
            *(("--allow-dropped-state",) if self.drops else ()),
            *(() if self.partitions is None else ("--partitions", str(self.partitions))),
            *(("--new-query",) if self.new_query else ()),
            *(() if self.location is None else ("--location", self.location)),
        )


Place = tuple[int, str, str | None]
"""Operator, store, and column family; None for a store without families."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of both checkpoints.

    facts       as a rewrite gathers them
    watermarks  by place, the columns of keys and values with a watermark, and its delay in milliseconds
    variables   by operator and name, the kind of each state variable of transformWithState, such as ListState
    time_modes  by operator, the clock of a transformWithState, such as ProcessingTime
    binding     of a job root, with the stores of its newest batch; None for a native checkpoint
    """

    url: str
    facts: RewriteFacts
    watermarks: Mapping[Place, Mapping[str, int]] = field(default_factory=dict)
    variables: Mapping[tuple[int, str], str] = field(default_factory=dict)
    time_modes: Mapping[int, str] = field(default_factory=dict)
    binding: Binding | None = None

    @property
    def numbers(self) -> Mapping[str, int]:
        """Name of a store -> its operator, for a job root. `--map` and `--default` use these names."""
        stores = () if self.binding is None else self.binding.stores
        return {store.name: number for number, store in enumerate(stores)}

    def named(self, number: int) -> str:
        """The operator as options name it."""
        return str(number) if self.binding is None else self.binding.stores[number].name

    def index_of(self, number: int) -> int | None:
        """Of a job root: the index of the times of a store, which only the job writes; None for a store without one, and
        for an index."""
        if self.binding is None:
            return None
        name = self.binding.stores[number].name
        index = index_of(self.binding.stores, name)
        return None if index is None or index == name else self.numbers[index]

    def is_timers(self, number: int) -> bool:
        """Of a job root: whether a store has the timers, with their index. Another store may be called so, too."""
        index = self.index_of(number) if number in self.numbers.values() else None
        return index is not None and index == self.numbers.get(TIMERS_DUE)

    def has_times(self, number: int) -> bool:
        """Of a job root: whether the rows of a store have the times of timers or of a TTL. An index has none of its own."""
        if self.binding is None or number in self.indexes:
            return False
        return index_of(self.binding.stores, self.binding.stores[number].name) is not None

    def prefix_of(self, number: int) -> int | None:
        """Of a job root: how the keys of a store begin, see `prefix_columns`."""
        return None if self.binding is None else self.binding.stores[number].prefix_columns

    @property
    def indexes(self) -> frozenset[int]:
        """Of a job root: the indexes of times."""
        return frozenset(found for number in self.numbers.values() if (found := self.index_of(number)) is not None)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Of a job root: the names of the sources, in their order; empty if the binding does not show them."""
        if self.binding is None:
            return ()
        found = (*(self.binding.inputs or (ONLY_INPUT,)), *((TICK,) if self.binding.ticks else ()))
        is_of_each = len(found) == len(self.offsets.sources) and len(set(found)) == len(found)
        return found if is_of_each else ()

    @property
    def offsets(self) -> OffsetLog:
        """The newest offset log. Raises `CorruptFile`."""
        return parse_offsets(self.facts.offsets.encode(), names.offsets(self.facts.stopped.batch or 0))

    @property
    def watermark_ms(self) -> int:
        """The watermark of the next batch; 0 without one. Raises `CorruptFile`."""
        stopped = self.facts.stopped
        after = parse_commit(stopped.commit.encode(), names.commits(stopped.batch or 0)).next_watermark_ms
        return max(after, self.offsets.watermark_ms)

    def operator(self, number: int) -> OperatorFacts | None:
        """Return an operator by its number."""
        return next((one for one in self.facts.operators if one.operator == number), None)


@dataclass(frozen=True, kw_only=True)
class MigrationFacts:
    """The facts about the old checkpoint, the blueprint and the destination.

    query_id       of the old checkpoint
    before         the offset log of the batch before the newest one of the old checkpoint; None for batch 0
    sources        the files of the old sources that the newest batch has read
    new_folders    the folders of the blueprint's sources
    lost_logs      why logs that a start needs are missing
    described      the files of the blueprint that describe its operators, by path
    existing       a file of the destination that no migration wrote; None if there is none
    half_done      the open journal of the destination
    completed      its newest journal, if it has ended in a migration
    newest         the newest batch of the destination
    overlaps       why the three locations are not separate
    free_at_destination  free bytes; None if unlimited
    """

    old: Side
    blueprint: Side
    destination: str
    query_id: str
    before: str | None
    sources: Mapping[str, Entry]
    new_folders: frozenset[str]
    lost_logs: tuple[str, ...]
    described: Mapping[str, bytes]
    existing: str | None
    half_done: RewriteJournal | None
    completed: RewriteJournal | None
    newest: int | None
    overlaps: tuple[str, ...] = ()
    free_at_destination: int | None = None

    @property
    def folders(self) -> frozenset[str]:
        """The folders of the old sources."""
        return frozenset(path.split("/")[1] for path in self.sources)

    def digest(self, goal: Migrate) -> str:
        """A digest of all inputs of the migration, by which a later run recognizes it."""
        stopped = self.old.facts.stopped
        described = {path: hashlib.sha256(body).hexdigest() for path, body in self.described.items()}
        new = self.blueprint
        inputs = [goal.options, self.old.url, stopped.batch, stopped.commit, new.url, new.facts.offsets, described]
        inputs += [encode_binding(side.binding).decode() for side in (self.old, new) if side.binding is not None]
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A store or column family of the blueprint, and the old one whose rows it takes.

    columns   None if the rows keep their value columns
    added     the new columns with their defaults
    dropped   the old columns, and the fields of structs, that the blueprint lacks
    """

    store: str
    family: str | None
    before: Family | None = None
    after: Family
    columns: tuple[MappedColumn, ...] | None = None
    added: tuple[MappedColumn, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The store or family for display."""
        return self.store if self.family is None else self.family


@dataclass(frozen=True, kw_only=True)
class Matched:
    """An operator of the blueprint with the old operator whose state it takes.

    old       None if it starts empty
    stores    its stores and families
    dropped   the old families that it lacks
    """

    new: OperatorFacts
    old: OperatorFacts | None
    stores: tuple[Taken, ...]
    dropped: tuple[str, ...] = ()

    @property
    def described(self) -> str:
        """Return the state that the operator takes over, as text."""
        name = f"operator {self.new.operator} ({self.new.name or 'unnamed'})"
        if self.old is None:
            return f"{name} starts empty"
        changes = list(self._changes())
        text = "; ".join(changes) if changes else "all columns as they are"
        return f"{name} takes the state of operator {self.old.operator}: {text}"

    def _changes(self) -> Iterator[str]:
        is_one = len(self.stores) == 1
        for one in self.stores:
            where = "" if is_one else f"{one.place}: "
            if one.before is None:
                yield f"{where}starts empty"
                continue
            for column in one.added:
                yield f"{where}added {column.field.name} = {shown(column.default)}"
            yield from (f"{where}dropped {name}" for name in one.dropped)
            for column in one.columns or ():
                if column.source is None:
                    continue
                old = value_columns(one.before).field(column.source)
                if (old.name, old.type) != (column.field.name, column.field.type):
                    yield f"{where}{old.name} {old.type} becomes {column.field.name} {column.field.type}"
            kept = [column.source for column in one.columns or () if column.source is not None]
            if kept != sorted(kept):
                yield f"{where}value columns in another order"
        yield from (f"dropped {name}" for name in self.dropped)


@dataclass(frozen=True, kw_only=True)
class SourceMap:
    """The sources of the changed query: for each of its source ids the id of the old source; None if it starts at its own
    beginning. `dropped`: the old sources that are gone."""

    sources: Mapping[str, str | None]
    dropped: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether the sources are those of the old query, in their order."""
        return not self.dropped and all(new == old for new, old in self.sources.items())

    @property
    def lines(self) -> Iterator[str]:
        """What happens to each source that does not simply continue."""
        for new, old in self.sources.items():
            if old is None:
                yield f"source {new} is new: it starts at its own beginning"
            elif old != new:
                yield f"source {new} continues source {old}"
        for old in self.dropped:
            yield f"source {old} of the old query is gone: its position is dropped"


@dataclass(frozen=True, kw_only=True)
class NewFile:
    """A file of the destination: bytes, or a copy of a file of the old checkpoint."""

    path: str
    body: bytes | None = None
    copied: Entry | None = None


@dataclass(frozen=True, kw_only=True)
class DroppedOperator:
    """An old operator that no operator of the blueprint takes. `rows`: None if they were not counted."""

    operator: OperatorFacts
    rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class MigrationPlan(RewritePlan):
    """The steps of a migration, in order: make the snapshots of all groups in the destination, write `files`, then the
    commit, and last `metadata`, which makes it a checkpoint.

    goal         what a person asks for
    digest       of all inputs
    operators    what each operator of the blueprint takes over
    dropped      the old operators that nothing takes
    source_map   the sources
    files        all files but snapshots, the commit and `metadata`, in their order
    query_id     that of `metadata`: of the old query; None for a new one. A job root has the id of the root there
    binding      of a job root, without its id
    reads_files  of a job root: a source reads files, whose list only the checkpoint of the old query has
    notes        what a person should know
    """

    goal: Migrate
    digest: str
    operators: tuple[Matched, ...] = ()
    dropped: tuple[DroppedOperator, ...] = ()
    source_map: SourceMap
    files: tuple[NewFile, ...] = ()
    query_id: str | None = None
    binding: Binding | None = None
    reads_files: bool = False
    notes: tuple[str, ...] = ()


def shown(value: pa.Scalar | None) -> str:
    """A default for display."""
    return "null" if value is None or not value.is_valid else str(value.as_py())
