"""The fleet's verdict on a check: red while the newest evaluation of any query is red.

The page of a check shows its newest evaluation, whichever query it is of. Without the fleet's verdict the green of one
query would hide the red of another. The verdict is an evaluation without a partition, so that no query's status changes.

*Race*: the runs of two queries end at the same time. Dagster creates the row of a run's own evaluation when the run starts
and the row of the verdict when it is logged. So each run logs a verdict, red or green, and the newest verdict is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    AssetCheckExecutionRecordStatus,
)

from statekeeper.assets import metadata
from statekeeper.assets.names import Names

_RED_QUERIES = "red_queries"


@dataclass(frozen=True)
class Red:
    """A red evaluation: whether it is an ERROR, and its description, which names the file and the next command."""

    is_error: bool
    description: str


def with_fleet_verdicts(
    context: dg.AssetExecutionContext, results: Sequence[dg.AssetCheckResult], names: Names
) -> list[dg.AssetCheckResult]:
    """Log the fleet's verdict on the check of each result. Returns the results."""
    queries = names.queries_in(context)
    for result in results:
        assert result.check_name is not None
        key = dg.AssetCheckKey(context.asset_key, result.check_name)
        others = [name for name in queries if name != context.partition_key]
        found = dict(_red(context.instance, key, others))
        if not result.passed:
            is_error = result.severity is dg.AssetCheckSeverity.ERROR
            found[context.partition_key] = Red(is_error, result.description or "")
        context.log_event(verdict(key, found, queries=len(others) + 1))
    return list(results)


def verdict(key: dg.AssetCheckKey, found: Mapping[str, Red], *, queries: int) -> dg.AssetCheckEvaluation:
    """The evaluation of a check for a fleet of so many queries, of which these are red. It names the worst query."""
    worst_first = sorted(found.items(), key=lambda item: (not item[1].is_error, item[0]))
    description = f"The check passes for all queries ({queries:,})."
    if worst_first:
        name, worst = worst_first[0]
        description = f"Red queries: {len(found):,} of {queries:,}. Worst: {name}: {worst.description}"
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=not found,
        severity=dg.AssetCheckSeverity.ERROR
        if any(one.is_error for one in found.values())
        else dg.AssetCheckSeverity.WARN,
        description=description,
        metadata={
            "queries": dg.MetadataValue.int(queries),
            _RED_QUERIES: dg.MetadataValue.int(len(found)),
            "red": metadata.table(
                {"query": "string", "severity": "string", "description": "string"},
                ((name, "ERROR" if one.is_error else "WARN", one.description) for name, one in worst_first),
            ),
        },
        # A verdict never ends a run: the run's own evaluation does.
        blocking=False,
    )


def red_queries(evaluation: dg.AssetCheckEvaluation) -> int:
    """The number of red queries in a fleet's verdict; 0 for any other evaluation."""
    found = evaluation.metadata.get(_RED_QUERIES)
    return found.value or 0 if isinstance(found, dg.IntMetadataValue) else 0


def _red(instance: dg.DagsterInstance, key: dg.AssetCheckKey, queries: Sequence[str]) -> Iterator[tuple[str, Red]]:
    """The queries whose newest completed evaluation of the check is red."""
    storage = instance.event_log_storage
    for info in storage.get_asset_check_partition_info([key], partition_keys=queries):
        if info.partition_key is None or info.latest_execution_status is AssetCheckExecutionRecordStatus.SUCCEEDED:
            continue
        # The newest row may be of a run that has not evaluated the check yet; its query is still red.
        records = storage.get_asset_check_execution_history(
            key,
            limit=1,
            status=COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
            partition_filter=PartitionKeyFilter(key=info.partition_key),
        )
        evaluation = records[0].evaluation if records else None
        if evaluation is not None and not evaluation.passed:
            is_error = evaluation.severity is dg.AssetCheckSeverity.ERROR
            yield info.partition_key, Red(is_error, evaluation.description or "")
