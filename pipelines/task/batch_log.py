"""Where tasks leave the changelogs of a batch: an object per store, or one batch log for all of them (FLIP-158)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from statekeeper.pipelines.task.reports import PartitionReport
from statekeeper.statestore.format import batch_log
from statekeeper.statestore.format.batch_log import Place
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.store.state_store import BatchLogPart

MOST_MEMBER_BYTES = 256 * 1024
"""A larger changelog is uploaded by its task, as its own file."""

MOST_BYTES = 64 * 1024 * 1024
"""Limit for the changelogs that the driver holds for one attempt."""


class LogLayout(StrEnum):
    """The objects that hold the changelogs of a batch."""

    STORES = "stores"
    """One object per store. Spark's `statestore` source reads every version."""
    BATCH = "batch"
    """One object per batch, and one for each large changelog. Requests per batch do not depend on the partitions."""


def part_of(layout: LogLayout, attempt: str, stores: int) -> BatchLogPart | None:
    """Return the part of the attempt's batch log that each of `stores` stores may fill; None without batch logs."""
    if layout is LogLayout.STORES:
        return None
    return BatchLogPart(batch_log.tag_of(attempt), min(MOST_MEMBER_BYTES, MOST_BYTES // max(stores, 1)))


def changelogs_of(reports: Sequence[PartitionReport]) -> Mapping[Place, bytes]:
    """Collect the changelogs that the tasks returned with their reports."""
    return {
        (StorePath(store.operator, report.partition), store.new): store.member
        for report in reports
        for store in report.stores
        if store.member is not None
    }
