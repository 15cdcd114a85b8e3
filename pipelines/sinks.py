"""Where a batch's output goes, and how the sink is asked what it holds.

A sink that can be asked makes state and output agree whatever dies when: the attempt's name is in the sink's own commit,
and the ids of that attempt go into the commit log. One that cannot be asked is at-least-once, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pyspark.sql import DataFrame

from statestore.errors import SinkConflict

_HISTORY_PAGE = 50


@dataclass(frozen=True)
class Attempt:
    """Who writes to the sink: one try at one batch of one query."""

    query_id: str
    root_id: str
    batch: int
    attempt: str


class Sink(Protocol):
    """Takes the output of batches."""

    can_be_asked: ClassVar[bool]

    def held(self, query_id: str, batch: int) -> str | None:
        """The attempt that the sink holds of a batch; None when it does not hold the batch. Asked before each batch
        and after each write. Raises `SinkConflict` when it holds the batch but cannot say from which attempt."""

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        """Write all rows and the attempt's name in one atomic commit, or, when the batch is held already, nothing."""


@dataclass(frozen=True)
class DeltaSink:
    """Appends to a Delta table, exactly once: the query and batch are the commit's txn (Delta's idempotent writes), the
    attempt its `userMetadata`. `storage_options` are for reading the table's log where its files are not local."""

    path: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    can_be_asked: ClassVar[bool] = True

    def held(self, query_id: str, batch: int) -> str | None:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.path, dict(self.storage_options) or None):
            return None
        # Read by its log, without a Spark job: milliseconds instead of a second, twice a batch.
        table = DeltaTable(self.path, storage_options=dict(self.storage_options) or None)
        newest = table.transaction_version(_app_id(query_id))
        if newest is None or newest < batch:
            return None
        limit = _HISTORY_PAGE
        while True:
            history = table.history(limit)
            for commit in history:
                found = _attempt_in(commit)
                if found is not None and found.query_id == query_id and found.batch == batch:
                    return found.attempt
            if len(history) < limit:
                break
            limit *= 4
        raise SinkConflict(
            f"the table holds batch {newest} of query {query_id}, and no commit says which attempt made batch {batch}",
            path=self.path,
            hint="the table's log was cleaned or written by something else: compare table and state before going on",
        )

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", _app_id(attempt.query_id))
            .option("txnVersion", attempt.batch)
            .option("userMetadata", json.dumps({"statekeeper": vars(attempt)}))
            .save(self.path)
        )


@dataclass(frozen=True)
class AtLeastOnceSink:
    """Hands each batch to a function; after a crash a batch may come again, from another attempt.

    `function(rows, batch)` has to read `rows` to the end.
    """

    function: Callable[[DataFrame, int], None]
    can_be_asked: ClassVar[bool] = False

    def held(self, query_id: str, batch: int) -> str | None:
        del query_id, batch
        return None

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        self.function(rows, attempt.batch)


def _app_id(query_id: str) -> str:
    return f"statekeeper-{query_id}"


def _attempt_in(commit: Mapping[str, Any]) -> Attempt | None:
    try:
        return Attempt(**json.loads(commit["userMetadata"])["statekeeper"])
    except (KeyError, TypeError, ValueError):
        return None
