"""The records of attempts at a batch, which its drivers write before the sink; see `root`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from statekeeper.statestore.errors import CorruptFile, ObjectMissing
from statekeeper.statestore.format import names
from statekeeper.statestore.format.json_object import json_object
from statekeeper.statestore.query_metrics import QueryMetrics
from statekeeper.statestore.storage import Storage, read_or_none
from statekeeper.statestore.storage.batch_logs import BatchLogs

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


def metrics_at(storage: Storage, batch: int) -> QueryMetrics | None:
    """Read the figures of the query before a batch; None if no record has them."""
    try:
        found = [QueryMetrics.parse(record.get("metrics")) for _, record in records_at(storage, batch)]
    except CorruptFile:
        # The audit reports the file. The figures are only shown.
        return None
    return max((one for one in found if one is not None), key=lambda one: one.batches, default=None)
