"""The history of a Delta table: which attempt of a batch it holds, and whether others replaced rows of earlier batches."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from statekeeper.pipelines.sinks.delta_log import KnownTable
from statekeeper.statestore.base.errors import SinkChanged, SinkConflict
from statekeeper.statestore.root.attempts import SinkPosition

_LOG = logging.getLogger("statekeeper")
_PAGE = 50
_REPLACING = ("RESTORE", "REPLACE TABLE", "CLONE")
"""Parts of the names of operations that replace the rows of a table."""

NO_TABLE = SinkPosition("", -1)
"""The position of a sink whose table does not exist yet."""


def application(query_id: str) -> str:
    """Return the application id of a query in the transactions of its table."""
    return f"statekeeper-{query_id}"


def note_of(attempt: Mapping[str, Any]) -> str:
    """Return the `userMetadata` of a commit, which names its attempt."""
    return json.dumps({"statekeeper": dict(attempt)})


def require_unchanged(
    path: str, table: KnownTable | None, query_id: str, batch: int, last: SinkPosition | None
) -> None:
    """Raise `SinkChanged` unless the table holds the rows of earlier batches, as far as its history shows."""
    if batch == 0:
        return
    if table is None:
        raise _changed(path, batch, "there is no Delta table: it was deleted or moved")
    newest = table.transaction_version(application(query_id))
    if newest is None or newest < batch - 1:
        held = "no batch of this query" if newest is None else f"no batch of this query after {newest}"
        raise _changed(path, batch, f"the table contains {held}: it was deleted, replaced or rolled back")
    if last is None:
        return  # Written by a release that did not record it. From this batch on it is recorded.
    if last != NO_TABLE and table.metadata().id != last.table:
        raise _changed(path, batch, f"the table was replaced: its id is {table.metadata().id} instead of {last.table}")
    since = table.version() - last.version
    if since < 0:
        what = f"the table was rolled back: its version is {table.version()}, but it was {last.version}"
        raise _changed(path, batch, what)
    history = table.history(since) if since else []
    for commit in history:
        if _replaces_rows(commit):
            what = f"{commit['operation']} in version {commit['version']} replaced rows of the table"
            raise _changed(path, batch, what)
    if len(history) < since:
        _LOG.warning(
            "%s: Delta has deleted the log of the %d versions before version %d; Statekeeper cannot check whether they "
            "replaced rows",
            path,
            since - len(history),
            table.version() - len(history) + 1,
        )


def attempt_of(path: str, table: KnownTable, query_id: str, batch: int) -> str | None:
    """Return the attempt of a batch that the table holds; None if it does not hold the batch.

    Raises `SinkConflict` if the table holds the batch, but its history does not name the attempt.
    """
    newest = table.transaction_version(application(query_id))
    if newest is None or newest < batch:
        return None
    limit = _PAGE
    while True:
        history = table.history(limit)
        for commit in history:
            found = _attempt_in(commit, query_id, batch)
            if found is not None:
                return found
        if len(history) < limit:
            break
        limit *= 4
    raise SinkConflict(
        f"the table contains batch {newest} of query {query_id}, but its log does not name the attempt that wrote "
        f"batch {batch}; the batch was not committed",
        path=path,
        hint="another program has changed or cleaned the log of the table. Compare the table with the state before "
        "you continue",
    )


def _changed(path: str, batch: int, what: str) -> SinkChanged:
    return SinkChanged(
        f"{what}. The state includes batch {batch - 1}; rows of committed batches may be missing from the table",
        path=path,
        hint=f"if the rows of the table are correct, start the query with DeltaSink(..., continue_at_batch={batch}). "
        f"If they are wrong, first restore the table to its version after batch {batch - 1}. If this is not possible, "
        "start over with a new root, checkpoint and table",
    )


def _replaces_rows(commit: Mapping[str, Any]) -> bool:
    """Return whether a commit replaced all rows. DELETE, UPDATE, MERGE and OPTIMIZE do not count: the owner of a table runs
    them on purpose, for some rows, and the sink itself merges with `merge_on`."""
    operation = str(commit.get("operation", "")).upper()
    if any(name in operation for name in _REPLACING):
        return True
    parameters = commit.get("operationParameters") or {}
    is_partial = (
        str(parameters.get("predicate") or "[]") != "[]"
        or str(parameters.get("isDynamicPartitionOverwrite") or "false").lower() == "true"
    )
    return str(parameters.get("mode", "")).lower() == "overwrite" and not is_partial


def _attempt_in(commit: Mapping[str, Any], query_id: str, batch: int) -> str | None:
    try:
        note = json.loads(commit["userMetadata"])["statekeeper"]
        return str(note["attempt"]) if (note["query_id"], note["batch"]) == (query_id, batch) else None
    except (KeyError, TypeError, ValueError):
        return None
