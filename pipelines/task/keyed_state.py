"""The state of the keys of one call of a function: read before it, and changed by its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statekeeper.pipelines.operator.declaration import TIMER_COLUMN, StatefulOperator, Update
from statekeeper.pipelines.operator.times import TIMESTAMP, TimeKind
from statekeeper.pipelines.task.group_stores import GroupStores, PlacedKeys
from statekeeper.pipelines.task.results import as_table
from statekeeper.pipelines.task.stored import stored_values
from statekeeper.pipelines.task.timers_and_expiry import (
    END_US,
    FIRST_US,
    NEVER,
    Expiry,
    TimedState,
    Timers,
    Times,
    settled_ms,
    times_of,
    timestamps,
)
from statekeeper.statestore.base.errors import TooLarge, WrongResult
from statekeeper.statestore.format.due_keys import decode_due_keys
from statekeeper.statestore.format.state_rows import (
    bare_keys,
    decode_keys,
    decode_values,
    encode_bare_keys,
    encode_values,
)
from statekeeper.statestore.root.times import BatchTimes


@dataclass(frozen=True)
class Read:
    """The state of keys. `tables`: store -> key and value columns, without keys that have no state. `held`: store with a
    TTL -> the expiries of the rows in the store; shape (keys,). `placed`: the keys as they are in the stores."""

    tables: Mapping[str, pa.Table]
    held: Mapping[str, Times]
    placed: PlacedKeys


class KeyedState:
    """The stores of a group of partitions, as the functions of the operator see them."""

    def __init__(
        self,
        operator: StatefulOperator,
        key_columns: pa.Schema,
        stores: GroupStores,
        *,
        key_groups_of: Callable[[int], range],
        times: BatchTimes,
    ) -> None:
        self._operator = operator
        self._key_columns = key_columns
        self._stores = stores
        self._stored = {name: stored_values(operator, name, values) for name, values in operator.stores.items()}
        self._is_by_event = operator.timers == TimeKind.EVENT
        earliest_ms = times.late_watermark_ms if self._is_by_event else times.time_ms
        self._earliest_us = earliest_ms * 1000 if earliest_ms else FIRST_US
        self._timer_columns = pa.schema([*key_columns, pa.field(TIMER_COLUMN, TIMESTAMP)])
        now_us = None if operator.timers is None else _now_us(operator, times)
        after_ms = settled_ms(times) if self._is_by_event else None
        self.timers = (
            None
            if operator.timers is None or operator.timer_key is not None
            else Timers(stores, key_groups_of, batch=times.batch, now_us=now_us, after_ms=after_ms)
        )
        self.timed = (
            None
            if operator.timer_key is None
            else TimedState(
                stores,
                *next(iter(self._stored.items())),
                keys=key_columns,
                timer_key=operator.timer_key,
                key_groups_of=key_groups_of,
                now_us=now_us,
                after_ms=after_ms,
            )
        )
        self.expiries = {
            name: Expiry(
                name,
                ttl,
                self._stored[name],
                stores,
                key_groups_of=key_groups_of,
                times=times,
                most_rows=operator.pieces.expired_rows,
            )
            for name, ttl in operator.ttls.items()
        }

    def read(self, keys: PlacedKeys, key_rows: pa.Table) -> Read:
        """Read the state of keys. `key_rows`: their key columns."""
        held: dict[str, Times] = {}
        placed = keys if self.timed is None else self.timed.placed(keys, key_rows)
        tables = {name: self._table_of(name, placed, key_rows, held) for name in self._operator.stores}
        return Read(tables, held, placed)

    def fired(self, partition: int) -> int:
        """Count the timers of a partition that were due."""
        of_kind = self.timers or self.timed
        return 0 if of_kind is None else of_kind.fired[partition]

    def _table_of(self, name: str, keys: PlacedKeys, key_rows: pa.Table, held: dict[str, Times]) -> pa.Table:
        values = self._stores.get(name, keys)
        present = values.is_valid()
        decoded = decode_values(values.filter(present), self._stored[name])
        state = key_rows.filter(present)
        expiry = self.expiries.get(name)
        if expiry is not None:
            times = times_of(decoded.column(0))
            held[name] = np.full(len(keys), NEVER)
            held[name][present.to_numpy(zero_copy_only=False)] = times
            decoded = decoded.remove_column(0)
            visible = expiry.is_visible(times)
            if not pc.all(visible).as_py():
                state, decoded = state.filter(visible), decoded.filter(visible)
        for column, field in zip(decoded.columns, decoded.schema, strict=True):
            state = state.append_column(field, column)
        return state

    def apply(
        self,
        update: Update,
        keys: PlacedKeys,
        read: Read,
        *,
        latest_us: Times | None = None,
        fired: Times | None = None,
    ) -> None:
        """Write the results of a call to the stores. Raises `WrongResult`, `TooLarge`.

        latest_us  the latest event time of each key in the call; None for a call without rows, or without event time
        fired      the time of each key's timer, if the call is for timers
        """
        for name in self._operator.stores:
            self._apply_to(name, update, keys, read, latest_us)
        if update.timers is not None:
            self._apply_timers(update.timers, keys, fired)

    def put_new(self, name: str, keys: PlacedKeys, rows: pa.Table) -> None:
        """Write the rows of keys that have no state. Raises `WrongResult` for an expiry that cannot be stored."""
        self._put(name, keys, rows, held=np.full(len(keys), NEVER), latest_us=None)

    def _put(self, name: str, keys: PlacedKeys, rows: pa.Table, *, held: Times | None, latest_us: Times | None) -> None:
        expiry = self.expiries.get(name)
        if expiry is not None and held is not None:
            times = expiry.of_rows(rows, latest_us)
            expiry.schedule(keys, times, held)
            rows = rows.add_column(0, self._stored[name].field(0), timestamps(times))
        try:
            self._stores.put(name, keys, encode_values(rows))
        except TooLarge as error:
            raise self._of_key(error, name) from error

    def _of_key(self, error: TooLarge, name: str) -> TooLarge:
        """Return the error with the key as the job knows it."""
        if error.key is None:
            return error
        decode = decode_keys if self.timed is None else decode_due_keys
        key = decode(pa.array([error.key], pa.large_binary()), self._key_columns).to_pylist()[0]
        return TooLarge(f"the new state of key {key} in store {name!r}: {error.what}", path=error.path, hint=error.hint)

    def _apply_to(self, name: str, update: Update, keys: PlacedKeys, read: Read, latest_us: Times | None) -> None:
        values_schema = self._operator.stores[name]
        new = self._part_of(update.state, name, pa.schema([*self._key_columns, *values_schema]), "state")
        gone = self._part_of(update.deleted, name, self._key_columns, "deleted")
        written = keys.keys.slice(0, 0)
        held = read.held.get(name)
        if new is not None and new.num_rows:
            new, places = self._placed(keys, new, f"store {name!r}: the function returned", "state")
            new_keys = read.placed.take(places)
            written = new_keys.keys
            self._put(
                name,
                new_keys,
                new.select(values_schema.names),
                held=held[places] if held is not None else None,
                latest_us=None if latest_us is None else latest_us[places],
            )
        if gone is not None and gone.num_rows:
            _, places = self._placed(keys, gone, f"store {name!r}: the function returned", "state")
            gone_keys = read.placed.take(places)
            if pc.any(pc.is_in(gone_keys.keys, value_set=written)).as_py():
                raise WrongResult(
                    f"store {name!r}: the function returned new state of a key and deleted the same key",
                    hint="for each key, return either new state or a deletion",
                )
            if held is not None:
                self.expiries[name].forget(gone_keys, held[places])
            self._stores.delete(name, gone_keys)

    def _apply_timers(self, given: Any, keys: PlacedKeys, fired: Times | None) -> None:
        if self.timed is not None:
            raise WrongResult(
                f"the function returned timers, but the key column {self._operator.timer_key!r} has the timer of each key",
                hint="return no timers, or omit `timer_key`",
            )
        if self.timers is None:
            raise WrongResult(
                "the function returned timers, but the operator declares none",
                hint='declare `timers`, such as timers="event", and `on_timer`',
            )
        timers = as_table(given, self._timer_columns, "timers")
        table, places = self._placed(keys, timers, "the function returned", "timers")
        times = times_of(table.column(TIMER_COLUMN))
        self._require_future(table, times, None if fired is None else fired[places])
        self.timers.put(keys.take(places), times)

    def _require_future(self, table: pa.Table, times: Times, fired: Times | None) -> None:
        """Raise `WrongResult` for a timer in the past. One that is set for a row can be before the watermark: the row is
        compared with that of the previous batch. Such a timer fires in this batch."""
        floor = np.full(len(times), self._earliest_us) if fired is None else fired
        wrong = (times != NEVER) & ((times <= floor) | (times >= END_US))
        if not wrong.any():
            return
        row = int(wrong.argmax())
        of_batch = "the watermark of the previous batch" if self._is_by_event else "the time of the batch"
        since = of_batch if fired is None else "the time of the timer that fired"
        key = table.select(self._key_columns.names).slice(row, 1).to_pylist()[0]
        raise WrongResult(
            f"a new timer is at {timestamps(times[row : row + 1])[0]}, in the past or after the year 9999, for key {key}; "
            f"{since} is {timestamps(floor[row : row + 1])[0]}",
            hint=f"set timers after {since}. To act at once, return output instead of a timer",
        )

    def _part_of(self, part: Any, name: str, schema: pa.Schema, what: str) -> pa.Table | None:
        if part is not None and not self._operator.has_one_store:
            if not isinstance(part, Mapping):
                raise WrongResult(
                    f"{what} is a {type(part).__name__}",
                    hint="an operator with several stores must return a dict from store name to table",
                )
            unknown = set(part) - set(self._operator.stores)
            if unknown:
                raise WrongResult(
                    f"the function returned {what} of stores that are not declared: {', '.join(map(str, sorted(unknown)))}",
                    hint=f"use the store names of the operator: {', '.join(self._operator.stores)}",
                )
            part = part.get(name)
        return None if part is None else as_table(part, schema, f"{what} of store {name!r}")

    def _placed(self, keys: PlacedKeys, named: pa.Table, who: str, what: str) -> tuple[pa.Table, Times]:
        """Return the rows in the order of their partitions, and the place of each in `keys`.

        Raises `WrongResult` for an unknown or a repeated key.
        """
        known = bare_keys(keys.keys)
        asked = encode_bare_keys(named.select(list(self._operator.keys)))
        if asked.equals(known):
            return named, np.arange(len(keys))
        places = pc.index_in(asked, value_set=known)
        if places.null_count:
            stranger = named.filter(places.is_null()).slice(0, 1).select(list(self._operator.keys)).to_pylist()[0]
            raise WrongResult(
                f"{who} {what} of a key that is not in the rows: {stranger}",
                hint=f"return {what} of the keys that were given, with their key columns unchanged",
            )
        if len(places.unique()) != len(places):
            raise WrongResult(f"{who} one key twice", hint="return each key at most once")
        found = places.to_numpy().astype(np.int64)
        order = np.argsort(keys.partitions[found], kind="stable")
        return named.take(order), found[order]


def _now_us(operator: StatefulOperator, times: BatchTimes) -> int | None:
    """The time of the operator's timers; None before the first watermark."""
    if operator.timers == TimeKind.EVENT:
        return times.watermark_ms * 1000 if times.watermark_ms else None
    return times.time_ms * 1000
