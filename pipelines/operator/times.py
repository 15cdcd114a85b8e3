"""Declarations of time for an operator: event time, expiry of state, timers, and the times of a batch."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from statekeeper.statestore.base.durations import parse_duration
from statekeeper.statestore.base.errors import SchemaMismatch
from statekeeper.statestore.root.times import BatchTimes

TIMESTAMP = pa.timestamp("us", tz="UTC")
"""The type of all times in rows and state: Spark's TIMESTAMP."""


class TimeKind(StrEnum):
    """The clock of timers and of an expiry."""

    PROCESSING = "processing"
    """The time of the batch: when Spark planned it."""
    EVENT = "event"
    """The watermark of the batch. It needs `event_time`."""


@dataclass(frozen=True)
class Batch:
    """The batch of a call; the third argument of an update function, if it takes three.

    time       when Spark planned the batch, in UTC
    watermark  the latest event time of earlier batches less `allowed_lateness`; None until a batch follows the first event
               time

    The times come from the logs of the root. So they are the same if the batch runs again after a crash.
    """

    number: int
    time: dt.datetime
    watermark: dt.datetime | None

    @classmethod
    def of(cls, times: BatchTimes) -> Batch:
        """Convert the times of the logs."""
        watermark = _moment(times.watermark_ms) if times.watermark_ms else None
        return cls(times.batch, _moment(times.time_ms), watermark)


@dataclass(frozen=True)
class Ttl:
    """How long a key keeps its state (time to live). Expired state is invisible, and the batches delete it.

    By event time, a function sees a row until the watermark of the previous batch reaches its expiry. The batch deletes the
    row after its functions have run, if its own watermark has reached the expiry. By processing time, the time of the batch
    decides both.

    after   duration, such as "30d", "36h", "10m" or "5s", or a timedelta. None: state written from now on never expires
    by      see `TimeKind`
    column  the value column from which `after` counts, a timestamp; a null there means that the row never expires.
            Without a column, `after` counts from the last write of the row. By processing time, this is the time of the
            batch. By event time, it is the latest event time of the key's rows in the call; in `on_timer`, it is the
            watermark of the batch

    The expiry is in the state as a time. So a new `after` applies to the state that is written from then on.
    """

    after: str | dt.timedelta | None
    by: TimeKind | str = TimeKind.PROCESSING
    column: str | None = None

    def __post_init__(self) -> None:
        kind_of(self.by, "the `by` of a TTL")
        if self.after is not None and milliseconds(self.after, "the `after` of a TTL") <= 0 and self.column is None:
            raise SchemaMismatch(
                f"a TTL of {self.after} is not positive", hint='use a duration such as "30d", or None for no expiry'
            )

    @property
    def kind(self) -> TimeKind:
        """Return the clock."""
        return TimeKind(self.by)

    @property
    def after_ms(self) -> int | None:
        """Return the duration in ms; None for no expiry."""
        return None if self.after is None else milliseconds(self.after, "the `after` of a TTL")


def kind_of(given: TimeKind | str, what: str) -> TimeKind:
    """Return the kind. Raises `SchemaMismatch` for an unknown one."""
    if given not in list(TimeKind):
        raise SchemaMismatch(f"{what} is {given!r}", hint='use "processing" or "event"')
    return TimeKind(given)


def milliseconds(duration: str | dt.timedelta, what: str) -> int:
    """Convert a duration. Raises `SchemaMismatch` for other text and for a negative one."""
    try:
        seconds = duration.total_seconds() if isinstance(duration, dt.timedelta) else parse_duration(duration)
    except (ValueError, AttributeError) as error:
        raise SchemaMismatch(
            f"{what} is {duration!r}", hint='write a number and a unit, such as "90s", "10m", "36h" or "7d"'
        ) from error
    if seconds < 0:
        raise SchemaMismatch(f"{what} is {duration!r}, less than zero", hint="use a positive duration")
    return round(seconds * 1000)


def require_timestamp(kind: pa.DataType, what: str) -> None:
    """Raise `SchemaMismatch` for a column that is no time in UTC."""
    if kind != TIMESTAMP:
        raise SchemaMismatch(
            f"{what} is {kind}, not a time in UTC",
            hint='cast it to TIMESTAMP in Spark; in an Arrow schema, it is pa.timestamp("us", tz="UTC")',
        )


def _moment(time_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=time_ms)
