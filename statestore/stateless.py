"""Queries without state: their checkpoints hold logs alone, and there is nothing to maintain.

A stateless query names the default state store in its offset log, whatever it runs; with asynchronous progress tracking
(SPARK-39591) its logs have gaps, and its offsets are ahead of its commits. A query in continuous processing writes offsets
without confs. Nothing is wrong with either.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from statestore.errors import CorruptFile, UnknownFormatVersion
from statestore.format import logs, names
from statestore.format.names import StorePath
from statestore.storage import Storage, read_or_none


class Stateless(Enum):
    """Why a checkpoint has no state, in a sentence for people."""

    MICRO_BATCHES = "the query has no stateful operator: there is no state to maintain"
    CONTINUOUS = "the query runs in continuous processing, which has no state: there is nothing to maintain"


def stateless(storage: Storage, batch: int, stores: Collection[StorePath]) -> Stateless | None:
    """Whether the query of a checkpoint has no state, by the stores that its newest batch committed; None when it has some.

    No request where there are stores, else a listing of `state/` and a read of the newest offsets. Of a query in structure
    V1 whose whole state was deleted nothing tells any more that it had some. Raises `StorageError`.
    """
    if stores or storage.list(names.STATE, hidden=True):
        return None
    return kind(_offsets(storage, batch))


def kind(offsets: logs.OffsetLog | None) -> Stateless:
    """Which kind of stateless query has written these offsets; None for ones that cannot be read."""
    return Stateless.CONTINUOUS if offsets is not None and offsets.is_continuous else Stateless.MICRO_BATCHES


def _offsets(storage: Storage, batch: int) -> logs.OffsetLog | None:
    path = names.offsets(batch)
    try:
        data = read_or_none(storage, path)
        return None if data is None else logs.parse_offsets(data, path)
    except (CorruptFile, UnknownFormatVersion):
        return None  # the audit's finding
