"""The records of attempts at a batch, which its drivers write before the sink; see `root`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from statekeeper.statestore.base.errors import CorruptFile, ObjectMissing
from statekeeper.statestore.format import json_records, names
from statekeeper.statestore.format.untrusted import json_object
from statekeeper.statestore.storage import Storage, read_or_none
from statekeeper.statestore.storage.batch_logs import BatchLogs
from statekeeper.statestore.storage.query_metrics import QueryMetrics

Record = Mapping[str, Any]


def record_in(storage: Storage, path: str) -> Record | None:
    """Read the record in a batch log or in a file of its own; None if it is missing. Raises `CorruptFile`."""
    if names.parse_batch_log(path) is None:
        data = read_or_none(storage, path)
        return None if data is None else json_object(data, path)
    try:
        return BatchLogs(storage).head(path).record
    except ObjectMissing:
        return None


def records_at(storage: Storage, batch: int) -> Iterator[tuple[str, Record]]:
    """Read the records of all attempts at a batch, with their paths. Raises `CorruptFile`."""
    files = storage.list_after(names.PENDING, "", beginning=f"{batch}-")
    logs = storage.list_after(names.BATCH_LOGS, "", beginning=f"{batch + 1}-")
    paths = [entry.path for entry in files if names.parse_pending(entry.path)]
    paths += [entry.path for entry in logs if names.parse_batch_log(entry.path)]
    for path in paths:
        record = record_in(storage, path)
        if record is not None:
            yield path, record


def has_batch_log(storage: Storage, batch: int) -> bool:
    """Return whether an attempt at a batch has put its changelogs into a batch log."""
    logs = storage.list_after(names.BATCH_LOGS, "", beginning=f"{batch + 1}-")
    return any(names.parse_batch_log(entry.path) for entry in logs)


def metrics_at(storage: Storage, batch: int) -> QueryMetrics | None:
    """Read the figures of the query before a batch; None if no record has them."""
    try:
        found = [QueryMetrics.parse(record.get("metrics")) for _, record in records_at(storage, batch)]
    except CorruptFile:
        # The audit reports the file. The figures are only shown.
        return None
    return max((one for one in found if one is not None), key=lambda one: one.batches, default=None)


DEFAULT_OUTPUT = "output"
"""The name of the only output of a job that does not name its outputs."""


@dataclass(frozen=True)
class SinkPosition:
    """A table and its newest version before a batch."""

    table: str
    version: int


@dataclass(frozen=True, kw_only=True)
class OutputRecord:
    """One output of an attempt.

    columns   Spark's JSON of its columns
    sink      the position of its sink before the attempt; None if the sink has no history
    rows      number and digest of its rows; None if it has data files or is dropped
    files     its data files, which tasks have written; None if its rows went through Spark or are dropped
    """

    columns: str
    sink: SinkPosition | None = None
    rows: str | None = None
    files: tuple[Mapping[str, Any], ...] | None = None


def parsed_position(body: Mapping[str, Any] | None) -> SinkPosition | None:
    """Parse the JSON of a position; None if there is none. Raises `ValueError`."""
    return json_records.converted(SinkPosition, body) if body else None
