"""Feeds the flights into a Delta table: one day per commit, one data file per commit, each day exactly once.

What belongs here: writing the job's input, and knowing how much of it is in. Nothing about who reads it.

    <path>/_delta_log/00000000000000000000.json    the table, empty
    <path>/_delta_log/00000000000000000001.json    day 0: one data file, and `txn {flights-feeder, 0}`
    <path>/_delta_log/0000000000000000000N.json    day N-1
    <path>/part-….parquet                          named by no commit: what a killed feeder left; never read

The `txn` of a commit is the only memory of what is in. It is written by the same atomic step as the rows, so there is
no moment at which one is there without the other, whenever the feeder is killed.

Spark reads a commit per batch, in order, with `startingVersion` 1 and `maxFilesPerTrigger` 1: batch N is day N. One
day must be in before the query starts (`feed(1)`), as a version that is not there yet is refused; from version 0 a
query on the empty table would begin with a batch of no rows, and all batches would be one off. Without a starting
version it begins with a snapshot of the table, whose files it orders by modification time, not by commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from statekeeper.pipelines.flights.departures import SCHEMA, days, departures
from statekeeper.statestore.base.errors import SchemaMismatch, StorageError

APP_ID = "flights-feeder"

# A stream that was left alone for a month still finds the commits that it has not read.
_PROPERTIES = {"delta.enableExpiredLogCleanup": "false"}


class Feeder:
    """Appends days of flights to the Delta table at `path`, which is made when it is not there.

    `arrivals` are the flights to feed, with `departures.SCHEMA` and in its order; all of them by default.

    *Guarantee*: day N is appended by exactly one commit, after day N-1, whenever a feeder is killed and however many
    feeders work at one table. The table must be fed with the same `arrivals` throughout. Threads may share a feeder.

    Raises SchemaMismatch when the table at `path` is another one, StorageError when it cannot be read or written.
    """

    def __init__(self, path: str | Path, arrivals: pa.Table | None = None) -> None:
        self._path = str(path)
        self._days = days(departures() if arrivals is None else arrivals)
        table = self._made()
        if table.schema() != Schema.from_arrow(SCHEMA):
            raise SchemaMismatch(
                "the table exists, but its columns are not those of the flights",
                path=self._path,
                hint="move the table away, or choose another path",
            )

    @property
    def days(self) -> int:
        """How many days there are to feed."""
        return len(self._days)

    def fed(self) -> int:
        """How many days the table holds."""
        return _fed(self._opened())

    def feed(self, upto_day: int) -> int:
        """Append days until the table holds `upto_day` of them, or all; how many it holds then."""
        table = self._opened()
        while (day := _fed(table)) < min(upto_day, self.days):
            self._append(table, day)
            self._renew(table)
        return day

    def run_ahead(
        self, stop: threading.Event, consumed: Callable[[], int], ahead: int, poll_seconds: float = 0.2
    ) -> None:
        """Keep up to `ahead` days in the table that `consumed` does not count yet, until `stop` is set or all are fed.

        For a thread of the job: a reader that stands still is not buried, and `stop` is obeyed between two days.
        """
        fed = self.fed()
        while not stop.is_set() and fed < self.days:
            if fed < consumed() + ahead:
                fed = self.feed(fed + 1)
            else:
                stop.wait(poll_seconds)

    def _append(self, table: DeltaTable, day: int) -> None:
        # The commit goes through the handle that was asked for `day`, not through the path. Feeder A sees day 4 as the
        # last; feeder B appends day 5; A appends day 5 too. By path, A would build on B's commit and double the day.
        # By handle, A builds on day 4, meets B's commit with the same application id, and is refused.
        this_day = CommitProperties(app_transactions=[Transaction(APP_ID, day)])
        try:
            write_deltalake(table, self._days[day], mode="append", commit_properties=this_day)
        except CommitFailedError as cause:
            self._renew(table)
            if _fed(table) <= day:
                raise self._unusable(f"day {day} could not be committed", cause) from cause
        except (DeltaError, OSError) as cause:
            raise self._unusable(f"day {day} could not be written", cause) from cause

    def _made(self) -> DeltaTable:
        try:
            return DeltaTable.create(self._path, SCHEMA, mode="ignore", configuration=_PROPERTIES)
        except CommitFailedError:
            return self._opened()  # another feeder made it in the meantime
        except (DeltaError, OSError) as cause:
            raise self._unusable("the table cannot be made", cause) from cause

    def _opened(self) -> DeltaTable:
        try:
            return DeltaTable(self._path)
        except TableNotFoundError as cause:
            raise StorageError(
                "the input table of the example job was deleted",
                path=self._path,
                hint="to start over, delete the folder of the example job, which contained this table",
            ) from cause
        except (DeltaError, OSError) as cause:
            raise self._unusable("the table cannot be read", cause) from cause

    def _renew(self, table: DeltaTable) -> None:
        try:
            table.update_incremental()
        except (DeltaError, OSError) as cause:
            raise self._unusable("the table cannot be read", cause) from cause

    def _unusable(self, what: str, cause: Exception) -> StorageError:
        return StorageError(
            f"{what}: {cause}", path=self._path, hint="check the disk and its permissions, then start again"
        )


def _fed(table: DeltaTable) -> int:
    last_day: int | None = table.transaction_version(APP_ID)
    return 0 if last_day is None else last_day + 1
