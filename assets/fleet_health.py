"""The asset `fleet_health`: one row a query, and sums that Dagster draws over time."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from assets import metadata, pictures
from assets.retention import retention
from assets.sources import GROUP, OWNERS
from resources.fleet import Fleet
from statestore.clock import SystemClock
from statestore.errors import StatekeeperError
from statestore.maintenance import health
from statestore.maintenance.health import Health
from statestore.storage import at_once

_CLEAN = "clean_audits"

EVERY_QUERY_IS_IN_ORDER = dg.AssetCheckSpec(
    "all_queries_healthy",
    asset="fleet_health",
    description="No query has a finding of its audit, and each could be looked at. Red: something is broken *now*, "
    "whatever was told when, until it is mended. The query and its file are named; `statekeeper audit QUERY` says what to "
    "do.",
)


@dataclass(frozen=True)
class Looked:
    """What was seen of the fleet: figures, or what kept them from being taken, by query."""

    rows: Mapping[str, Health]
    problems: Mapping[str, str]


@dg.asset(
    deps=[retention],
    group_name=GROUP,
    kinds={"rocksdb"},
    owners=OWNERS,
    tags={"statekeeper/does": "reads"},
    code_version="1",
    check_specs=[EVERY_QUERY_IS_IN_ORDER],
    freshness_policy=dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=3), warn_window=timedelta(hours=2)),
)
def fleet_health(context: dg.AssetExecutionContext, fleet: Fleet) -> dg.MaterializeResult:
    """The health of all queries: head, tail, what a restart would wait for, bytes live and reclaimable, orphans, findings,
    and for how long an audit was not clean.

    Reads only; what it costs is in `requests`. It runs each hour and looks at every query, so it also shows what no run of
    `maintain_query` was asked to look at.
    """
    looked, now = look(fleet), SystemClock().now_seconds()
    context.log.info("looked at %d queries, %d could not be", len(looked.rows), len(looked.problems))
    clean = last_clean(looked, _clean_before(context.instance), now)
    return dg.MaterializeResult(metadata=of_fleet(looked, clean, now), check_results=[all_queries_healthy(looked)])


def _clean_before(instance: dg.DagsterInstance) -> Mapping[str, float]:
    """What the materialization before says. When Dagster's history is gone, so is this, and nothing else."""
    event = instance.get_latest_materialization_event(dg.AssetKey("fleet_health"))
    found = event.asset_materialization.metadata.get(_CLEAN) if event and event.asset_materialization else None
    clean = found.value if isinstance(found, dg.JsonMetadataValue) else None
    return {str(name): float(at) for name, at in clean.items()} if isinstance(clean, dict) else {}


def last_clean(looked: Looked, before: Mapping[str, float], now_seconds: float) -> dict[str, float]:
    """When the audit of each query was last without a finding, in seconds since the epoch; none of one that never was."""
    there = {*looked.rows, *looked.problems}
    kept = {name: at for name, at in before.items() if name in there}
    return kept | {name: now_seconds for name, one in looked.rows.items() if one.is_clean}


def look(fleet: Fleet) -> Looked:
    """Look at every query. One that cannot be looked at does not keep the others from it."""
    found = fleet.discover()
    rows: dict[str, Health] = {}
    problems = dict(found.problems)

    def look_at(name: str) -> None:
        try:
            query = fleet.open(name)
            rows[name] = health.look(query.storage, query.policies, clock=SystemClock())
        except StatekeeperError as error:
            problems[name] = str(error)

    at_once(look_at, list(found.queries))
    return Looked(dict(sorted(rows.items())), problems)


def of_fleet(looked: Looked, clean: Mapping[str, float], now_seconds: float) -> metadata.Metadata:
    """Sums and maxima under constant names, the table, and a picture. `clean`: see `last_clean`."""
    rows = looked.rows
    ages = {name: max(0, round(now_seconds - at)) for name, at in clean.items()}
    worst_first = sorted(rows.items(), key=lambda row: (-row[1].errors, -row[1].restore_seconds, row[0]))
    left = [one.least_commits_left for one in rows.values() if one.least_commits_left is not None]
    # What is wrong first: Dagster cuts wide tables off.
    columns = {"query": "string", "version": "int", "errors": "int", "warnings": "int", "stores": "int"}
    columns |= {"longest_tail": "int", "restore_seconds": "float", "bytes": "int", "reclaimable_bytes": "int"}
    columns |= {"reclaimed_bytes": "int", "orphan_files": "int", "commits_left": "int"}
    columns |= {"clean_audit_age_seconds": "int", "requests": "int"}
    return {
        "health": metadata.table(columns, ((name, *_cells(one, ages.get(name))) for name, one in worst_first)),
        "picture": pictures.of_fleet(rows),
        "queries": len(rows),
        "queries_not_seen": len(looked.problems),
        "stores": sum(one.stores for one in rows.values()),
        "longest_tail": max((one.longest_tail for one in rows.values()), default=0),
        "restore_seconds": round(sum(one.restore_seconds for one in rows.values()), 3),
        "files": sum(one.files for one in rows.values()),
        "bytes": sum(one.bytes for one in rows.values()),
        "reclaimable_bytes": sum(one.reclaimable_bytes for one in rows.values()),
        "reclaimed_bytes": sum(one.reclaimed_bytes for one in rows.values()),
        "orphan_files": sum(one.orphan_files for one in rows.values()),
        "orphan_bytes": sum(one.orphan_bytes for one in rows.values()),
        **({"least_commits_left": min(left)} if left else {}),
        **({"oldest_clean_audit_seconds": max(ages.values())} if ages else {}),
        "queries_never_clean": len({*rows, *looked.problems} - ages.keys()),
        _CLEAN: dg.MetadataValue.json(dict(clean)),
        "errors": sum(one.errors for one in rows.values()),
        "warnings": sum(one.warnings for one in rows.values()),
        "requests": sum(one.requests for one in rows.values()),
    }


def _cells(one: Health, clean_age_seconds: int | None) -> tuple[object, ...]:
    findings = (one.version, one.errors, one.warnings, one.stores)
    restart = (one.longest_tail, round(one.restore_seconds, 3))
    sizes = (one.bytes, one.reclaimable_bytes, one.reclaimed_bytes, one.orphan_files)
    return (*findings, *restart, *sizes, one.least_commits_left, clean_age_seconds, one.requests)


def all_queries_healthy(looked: Looked) -> dg.AssetCheckResult:
    """Whether nothing is broken now."""
    broken = {name: f"{one.worst.file} {one.worst.problem}" for name, one in looked.rows.items() if one.worst}
    odd = {**looked.problems, **broken}
    errors = len(looked.problems) + sum(one.errors > 0 for one in looked.rows.values())
    said = "; ".join(f"{name}: {what}" for name, what in list(odd.items())[:5])
    return dg.AssetCheckResult(
        check_name=EVERY_QUERY_IS_IN_ORDER.name,
        passed=not odd,
        severity=dg.AssetCheckSeverity.ERROR if errors else dg.AssetCheckSeverity.WARN,
        description=said or f"{len(looked.rows):,} queries, no finding",
        metadata={"queries": len(looked.rows), "queries_with_findings": len(odd)},
    )
