"""Queries without state. Their checkpoints contain only logs and need no maintenance.

A stateless query also names the default state store in its offset log. With asynchronous progress tracking (SPARK-39591)
its logs have gaps, and its offsets are ahead of its commits. A query in continuous processing writes offsets without confs.
Both are normal.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from statekeeper.statestore.base.errors import CorruptFile, UnknownFormatVersion
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.storage import Storage, read_or_none


class Stateless(Enum):
    """The reason why a checkpoint has no state, for display."""

    MICRO_BATCHES = "the query has no stateful operator: there is no state to maintain"
    CONTINUOUS = "the query runs in continuous processing, which has no state: there is nothing to maintain"


def stateless(storage: Storage, batch: int, stores: Collection[StorePath]) -> Stateless | None:
    """Find out why the query of a checkpoint has no state; None if it has state.

    `stores`: those that its newest batch committed. If there are none, two requests: a listing of `state/` and a read of
    the newest offsets. A query in structure V1 whose whole state was deleted looks stateless. Raises `StorageError`.
    """
    if stores or storage.list(names.STATE, hidden=True):
        return None
    return kind(_offsets(storage, batch))


def kind(offsets: logs.OffsetLog | None) -> Stateless:
    """The kind of stateless query that wrote these offsets. `offsets`: None if they cannot be read."""
    return Stateless.CONTINUOUS if offsets is not None and offsets.is_continuous else Stateless.MICRO_BATCHES


def _offsets(storage: Storage, batch: int) -> logs.OffsetLog | None:
    path = names.offsets(batch)
    try:
        data = read_or_none(storage, path)
        return None if data is None else logs.parse_offsets(data, path)
    except (CorruptFile, UnknownFormatVersion):
        return None  # the audit reports the file
