"""The fleet's verdict on a check: red while the newest evaluation of any query is red.

The page of a check shows its newest evaluation, whichever query it is of. Without the fleet's verdict the green of one
query would hide the red of another. The verdict is an evaluation without a partition, so that no query's status changes.

*Race*: two runs end at the same time. Dagster creates the row of a run's own evaluation when the run starts and the row of
the verdict when it is logged. So each run logs a verdict, red or green, and the newest verdict is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import dagster as dg

from statekeeper.assets import metadata
from statekeeper.assets.memory import Known, Look, Red, observation, read
from statekeeper.assets.names import Names


def with_fleet_verdicts(
    context: dg.AssetExecutionContext, results: Sequence[dg.AssetCheckResult], names: Names
) -> list[dg.AssetCheckResult]:
    """Log the fleet's verdict on the check of each result, for an asset that is its own memory. Returns the results."""
    if not results:
        return []
    red, key, query = red_in(results), context.asset_key, context.partition_key
    context.log_event(observation(key, Known(None, red), Look.of_checks(query, red)))
    known = {name: read(context.instance, key, name).red for name in names.queries_in(context) if name != query}
    keys = [dg.AssetCheckKey(key, str(result.check_name)) for result in results]
    for one in verdicts(keys, {**known, query: red}):
        context.log_event(one)
    return list(results)


def verdicts(
    keys: Iterable[dg.AssetCheckKey], red: Mapping[str, Mapping[str, Red]]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the verdict on each check. `red`: the red checks of each query of the fleet."""
    for key in keys:
        found = {query: checks[key.name] for query, checks in red.items() if key.name in checks}
        yield verdict(key, found, queries=len(red))


def red_in(results: Iterable[dg.AssetCheckResult]) -> dict[str, Red]:
    """The red ones among results, by their checks."""
    return {
        str(one.check_name): Red(one.severity is dg.AssetCheckSeverity.ERROR, one.description or "")
        for one in results
        if not one.passed
    }


def verdict(key: dg.AssetCheckKey, found: Mapping[str, Red], *, queries: int) -> dg.AssetCheckEvaluation:
    """The evaluation of a check for a fleet of so many queries, of which these are red. It names the worst query."""
    worst_first = sorted(found.items(), key=lambda item: (not item[1].is_error, item[0]))
    description = f"The check passes for all queries ({queries:,})."
    if worst_first:
        name, worst = worst_first[0]
        description = f"Red queries: {len(found):,} of {queries:,}. Worst: {name}: {worst.description}"
    elif not queries:
        description = "No query was examined: the configuration names no checkpoint with a committed batch."
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=queries > 0 and not found,
        severity=dg.AssetCheckSeverity.ERROR
        if any(one.is_error for one in found.values())
        else dg.AssetCheckSeverity.WARN,
        description=description,
        metadata={
            "queries": dg.MetadataValue.int(queries),
            "red_queries": dg.MetadataValue.int(len(found)),
            "red": metadata.table(
                {"query": "string", "severity": "string", "description": "string"},
                ((name, "ERROR" if one.is_error else "WARN", one.description) for name, one in worst_first),
            ),
        },
        # A verdict never ends a run: the run's own evaluation does.
        blocking=False,
    )
