"""Declaration of a stateful operator: keys, order, state, output, and one vectorized function.

`driver` and `task` run its batches.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from enum import Enum
from typing import Any

import pyarrow as pa

from statekeeper.pipelines.operator.times import TimeKind, Ttl, kind_of, milliseconds, require_timestamp
from statekeeper.statestore.base.errors import SchemaMismatch
from statekeeper.statestore.format.names import DEFAULT_STORE
from statekeeper.statestore.format.types import check_supported
from statekeeper.statestore.root.attempts import DEFAULT_OUTPUT
from statekeeper.statestore.root.columns import ColumnMapping

_OUTPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class Frames(Enum):
    """Type of the tables that the update function receives and returns."""

    ARROW = "pyarrow.Table"
    PANDAS = "pandas.DataFrame"


INPUT_COLUMN = "input"
"""The column of the rows with the name of their input, if the query has several inputs."""

LATE_OUTPUT = "late"
"""The name of the output that has the late rows, if the query has a sink for them."""

TIMER_COLUMN = "at"
"""The column of a table of timers that has the time."""


@dataclass(frozen=True)
class Update:
    """Result of an update function.

    output    one table with the columns of the output schema, also without rows. With several named outputs a mapping with
              all names: name of the output -> table, or None for no rows
    state     key columns and value columns of the keys with new state; each key at most once
    deleted   key columns of the keys whose state is deleted
    timers    key columns and the column `at` of the keys with a new timer, a timestamp; null deletes the timer of the key.
              A key has at most one timer, and a new time replaces it. A key that is not in the table keeps its timer. In
              `on_timer`, the timer has fired, and a key that is not in the table has none

    All keys must be keys that the call got. A key can have new state or be deleted, not both.

    With several named stores, `state` and `deleted` are mappings: name of the store -> table.
    """

    output: Any
    state: Any = None
    deleted: Any = None
    timers: Any = None


UpdateFunction = Callable[..., Update]
"""`update(rows, state) -> Update` or `update(rows, state, batch) -> Update`.

rows    all rows of the batch of one or more keys. The rows of a key are adjacent and sorted by the order columns. The order
        of the keys is not defined
state   key and value columns of these keys, without keys that have no state; with several stores a mapping:
        name -> table
batch   a `Batch` with the times of the batch

The function must be deterministic: another attempt of the batch must compute the same result."""

TimerFunction = Callable[..., Update]
"""`on_timer(keys, state, batch) -> Update`. `keys`: the key columns and the time `at` of timers that are due, in no defined
order. `state`: their state, as for an update function. A timer fires once: it is deleted, unless the function returns a new
one. Each key gets its rows before its timer. The state and output of both are committed together."""


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Limits the rows of one call of the update function. A call holds whole keys, unless `split_hot_keys` is set.

    A larger single key is still one call. `rows` also limits the keys of a call of `on_timer`.

    A key is hot if a batch has more than `hot_key_rows` rows or `hot_key_bytes` bytes of this key. `split_hot_keys` passes
    its rows in several calls, in order; each call gets the state of the previous one. Otherwise the batch fails with
    `HotKey`.

    A batch deletes at most `expired_rows` expired rows of each partition and store. Later batches delete the others.

    Raises `SchemaMismatch` for a limit below 1.
    """

    rows: int = 65_536
    size_bytes: int = 32 * 1024 * 1024
    hot_key_rows: int = 500_000
    hot_key_bytes: int = 64 * 1024 * 1024
    expired_rows: int = 100_000
    split_hot_keys: bool = False

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not isinstance(value, bool) and value < 1:
                raise SchemaMismatch(f"Pieces({limit.name}={value}) is below 1", hint="give a limit of 1 or more")


@dataclass(frozen=True)
class StatefulOperator:
    """Keeps state by key over the batches of a streaming query.

    keys       names of the key columns; null is a valid key
    order_by   names of the columns that sort the rows of a key
    state      value columns of the state; for several stores a mapping: name -> value columns
    output     columns of the output; for several outputs a mapping: name -> columns. Each has its own sink
    update     see `UpdateFunction`

    event_time         the column of the rows with their event time, a timestamp without nulls. It gives the watermark
    allowed_lateness   how far the event time of a row may be behind the latest event time, such as "10m". The watermark of
                       a batch is the latest event time of earlier batches less this, and never falls. With several inputs,
                       it is that of the input that is furthest behind. Rows up to the watermark of the previous batch are
                       late: they are dropped and counted, as Spark does (SPARK-40925)
    late_by            the column that is compared with the watermark, a timestamp or a window of Spark, whose end counts.
                       The default is `event_time`. A row with null in this column is not late
    ttl                how long keys keep their state; for several stores a mapping: name -> `Ttl`
    timers             the clock of the timers, see `TimeKind`; None without timers
    on_timer           called for the timers that are due, see `TimerFunction`
    timer_key          the key column with the time of each timer, such as the end of a window. Every key with state then
                       has a timer at this time. `update` returns no timers, and the state of a key is deleted when its
                       timer has fired. State and timers are one store, sorted by this time, which makes both faster. Needs
                       timers="event", `late_by` with the same column, a single state, no TTL, and accepts_initial=False
    accepts_initial    whether a job can start with initial rows. They have no timers, so False if only a timer ends a state
    column_mapping     the columns of the state that the code renames or widens, see `ColumnMapping`; for several stores a
                       mapping: name -> `ColumnMapping`

    `state` can declare nullable columns that an existing root does not have. The first batch after a start adds, renames
    and widens the columns in all rows. `planned_changes` shows these changes before the start.

    Raises `UnsupportedType` for a column that Spark's row encoding cannot hold, `SchemaMismatch` for duplicate names and
    for declarations of time that do not fit together.
    """

    keys: Sequence[str]
    order_by: Sequence[str]
    _: KW_ONLY
    state: pa.Schema | Mapping[str, pa.Schema]
    output: pa.Schema | Mapping[str, pa.Schema]
    update: UpdateFunction
    frames: Frames = Frames.ARROW
    pieces: Pieces = field(default_factory=Pieces)
    event_time: str | None = None
    allowed_lateness: str | dt.timedelta = "0s"
    late_by: str | None = None
    ttl: Ttl | Mapping[str, Ttl] | None = None
    timers: TimeKind | str | None = None
    on_timer: TimerFunction | None = None
    timer_key: str | None = None
    accepts_initial: bool = True
    column_mapping: ColumnMapping | Mapping[str, ColumnMapping] | None = None

    def __post_init__(self) -> None:
        if not self.keys:
            raise SchemaMismatch("the operator has no key columns", hint="name at least one key column")
        for name, values in self.stores.items():
            check_supported(values)
            clash = set(self.keys) & set(values.names)
            if clash:
                raise SchemaMismatch(f"store {name!r}: {sorted(clash)} are both key and value columns")
        if not self.outputs:
            raise SchemaMismatch("the operator has no outputs", hint="declare the columns of at least one output")
        for name, columns in self.outputs.items():
            if not _OUTPUT_NAME.fullmatch(name):
                raise SchemaMismatch(
                    f"the name of output {name!r} is not valid", hint="use letters, digits and underscores"
                )
            check_supported(columns)
        _require_times(self)
        _require_mappings(self)

    @property
    def stores(self) -> Mapping[str, pa.Schema]:
        """Return name of the store -> value columns, in the order of the operator ids."""
        return {DEFAULT_STORE: self.state} if self.has_one_store else dict(self.state)

    @property
    def has_one_store(self) -> bool:
        """Return whether `state` is a single schema, so that the update function gets tables instead of mappings."""
        return isinstance(self.state, pa.Schema)

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """Return name of the output -> its columns."""
        return {DEFAULT_OUTPUT: self.output} if isinstance(self.output, pa.Schema) else dict(self.output)

    @property
    def has_one_output(self) -> bool:
        """Return whether `output` is a single schema, so that the update function returns a table instead of a mapping."""
        return isinstance(self.output, pa.Schema)

    def key_columns(self, row_columns: pa.Schema) -> pa.Schema:
        """Return the key columns of the state. They are always nullable, because the source may become nullable later."""
        return pa.schema([row_columns.field(name).with_nullable(True) for name in self.keys])

    @property
    def lateness_ms(self) -> int:
        """Return `allowed_lateness` in ms."""
        return milliseconds(self.allowed_lateness, "allowed_lateness")

    @property
    def ttls(self) -> Mapping[str, Ttl]:
        """Return name of the store -> its TTL, for the stores with one, in the order of the stores."""
        given = {DEFAULT_STORE: self.ttl} if isinstance(self.ttl, Ttl) else self.ttl or {}
        return {name: given[name] for name in self.stores if name in given}

    @property
    def mappings(self) -> Mapping[str, ColumnMapping]:
        """Return name of the store -> the columns that are renamed or widened."""
        given = self.column_mapping
        return {DEFAULT_STORE: given} if isinstance(given, ColumnMapping) else given or {}


def _require_mappings(operator: StatefulOperator) -> None:
    """Raise `SchemaMismatch` for a mapping of a store or of a column that the operator does not declare."""
    if isinstance(operator.column_mapping, ColumnMapping) and not operator.has_one_store:
        raise SchemaMismatch(
            "`column_mapping` is one ColumnMapping, but the operator has several stores",
            hint="use a dict from store name to ColumnMapping",
        )
    for store, mapping in operator.mappings.items():
        if store not in operator.stores:
            raise SchemaMismatch(
                f"`column_mapping` names the store {store!r}, which the operator does not have",
                hint=f"its stores are: {', '.join(operator.stores)}",
            )
        names, new_names = operator.stores[store].names, list(mapping.renamed.values())
        for column in (*new_names, *mapping.widened):
            if column not in names and column not in mapping.renamed:
                raise SchemaMismatch(
                    f"store {store!r}: `column_mapping` names the column {column!r}, which `state` does not declare",
                    hint=f"the columns of `state` are: {', '.join(names)}. `renamed` is a dict from current to new name, "
                    "and `widened` has new names. Key columns cannot change",
                )
        for old, new in mapping.renamed.items():
            if old in names:
                raise SchemaMismatch(
                    f"store {store!r}: `column_mapping` renames {old!r} to {new!r}, but `state` also declares {old!r}",
                    hint="if all roots have this change, remove the entry. Otherwise give the new column another name",
                )
            if new_names.count(new) > 1:
                both = sorted(one for one, name in mapping.renamed.items() if name == new)
                raise SchemaMismatch(
                    f"store {store!r}: `column_mapping` renames {' and '.join(both)} to {new!r}",
                    hint="give each column a different new name",
                )


def _require_times(operator: StatefulOperator) -> None:
    """Raise `SchemaMismatch` for declarations of time that do not fit together."""
    _ = operator.lateness_ms
    if operator.timers is not None:
        kind_of(operator.timers, "`timers`")
    if (operator.timers is None) != (operator.on_timer is None):
        raise SchemaMismatch(
            "the operator has only one of `timers` and `on_timer`", hint='declare both, such as timers="event"'
        )
    if operator.timers is not None and TIMER_COLUMN in operator.keys:
        raise SchemaMismatch(
            f"a key column is named {TIMER_COLUMN!r}, the column of a timer's time", hint="rename the key column"
        )
    if operator.timer_key is not None:
        _require_timer_key(operator, operator.timer_key)
    if operator.late_by is not None and operator.event_time is None:
        raise SchemaMismatch(
            "the operator has `late_by`, but no `event_time`", hint="declare the column of the event time"
        )
    _require_ttls(operator)
    if operator.event_time is None and TimeKind.EVENT in [
        operator.timers,
        *(ttl.kind for ttl in operator.ttls.values()),
    ]:
        raise SchemaMismatch(
            "timers or a TTL by event time, but the operator has no `event_time`",
            hint="declare the column of the event time",
        )


def _require_timer_key(operator: StatefulOperator, timer_key: str) -> None:
    needs = {
        f"{timer_key!r} is a key column": timer_key in operator.keys,
        'timers="event"': operator.timers == TimeKind.EVENT,
        f"late_by={timer_key!r}": operator.late_by == timer_key,
        "a single state": operator.has_one_store,
        "no TTL": not operator.ttls,
        "accepts_initial=False": not operator.accepts_initial,
    }
    missing = [need for need, is_met in needs.items() if not is_met]
    if missing:
        raise SchemaMismatch(
            f"timer_key={timer_key!r} needs: {', '.join(missing)}", hint="otherwise return timers and omit `timer_key`"
        )


def _require_ttls(operator: StatefulOperator) -> None:
    if isinstance(operator.ttl, Mapping):
        unknown = sorted(set(operator.ttl) - set(operator.stores))
        if unknown:
            raise SchemaMismatch(
                f"`ttl` names the stores {unknown}, which the operator does not have",
                hint=f"its stores are: {', '.join(operator.stores)}",
            )
    elif isinstance(operator.ttl, Ttl) and not operator.has_one_store:
        raise SchemaMismatch(
            "`ttl` is one TTL, but the operator has several stores", hint="use a dict from store name to Ttl"
        )
    for name, ttl in operator.ttls.items():
        values = operator.stores[name]
        if ttl.column is None:
            continue
        if ttl.column not in values.names:
            raise SchemaMismatch(
                f"store {name!r} has no column {ttl.column!r}, from which its TTL counts",
                hint=f"its columns are: {', '.join(values.names)}",
            )
        require_timestamp(values.field(ttl.column).type, f"store {name!r}: the column {ttl.column!r} of the TTL")
