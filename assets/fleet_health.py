"""The asset `fleet_health`: one row for each query, and the sums that Dagster plots over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from statekeeper.assets import metadata, pictures
from statekeeper.assets.checks import describe
from statekeeper.assets.names import Check, Names
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import with_next
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.maintenance.upkeep.audit import Severity
from statekeeper.statestore.maintenance.verbs import health
from statekeeper.statestore.maintenance.verbs.health import Health
from statekeeper.statestore.storage import at_once

_LAST_CLEAN = "last_clean_audits"
_FLEET = "fleet"
_MATERIALIZATIONS = 20
"""The newest ones to examine, because those of another fleet can be among them."""
_LAST_CLEAN_BEFORE_RENAME = "clean_audits"
"""The label of the previous release, whose values are seconds since the epoch."""

ALL_QUERIES_HEALTHY = Check(
    "all_queries_healthy",
    "There is a query, the audit of each query is clean, and each query can be reached. Red: a query is broken "
    "*now*, and stays red until it is repaired; or no query was examined. The result names the query and its file, and the "
    "next command; `statekeeper audit QUERY` shows the actions.",
    of_each_query=False,
)


@dataclass(frozen=True)
class FleetFacts:
    """The health of each query, or the error that prevented the examination, by query. `waiting`: roots without a committed
    batch, which have nothing to examine."""

    rows: Mapping[str, Health]
    problems: Mapping[str, str]
    waiting: tuple[str, ...] = ()


def fleet_health(names: Names, retention: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Make the asset `fleet_health` of a fleet."""

    @names.asset(
        "fleet_health",
        deps=[retention],
        does="reads",
        checks=[ALL_QUERIES_HEALTHY],
        of_each_query=False,
        freshness_policy=dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=3), warn_window=timedelta(hours=2)),
    )
    def made(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """The health of all queries: head, tail, restore debt, live and reclaimable bytes, orphans, findings, and the time
        of the last clean audit.

        Reads only; the figure `requests` is its cost. A run each hour examines every query, also queries that
        `maintain_query` was not requested for.
        """
        fleet = names.fleet_in(context)
        facts, now = gather(fleet), SystemClock().now_seconds()
        context.log.info("examined %d queries; %d could not be examined", len(facts.rows), len(facts.problems))
        previous = _previous_last_clean(context.instance, context.asset_key, fleet)
        clean = last_clean(facts, previous, now)
        shown = {**of_fleet(facts, clean, now), _FLEET: fleet.label}
        lost = sorted(set(facts.waiting) & previous.keys())
        return dg.MaterializeResult(metadata=shown, check_results=[all_queries_healthy(facts, fleet, lost)])

    return made


def _previous_last_clean(instance: dg.DagsterInstance, key: dg.AssetKey, fleet: Fleet) -> Mapping[str, float]:
    """The times of the last clean audits, from the previous materialization of this fleet. Empty when Dagster's history was
    deleted."""
    records = instance.fetch_materializations(key, limit=_MATERIALIZATIONS).records
    all_shown = [record.asset_materialization.metadata for record in records if record.asset_materialization]
    shown = next((one for one in all_shown if _FLEET not in one or one[_FLEET].value == fleet.label), {})
    found = shown.get(_LAST_CLEAN) or shown.get(_LAST_CLEAN_BEFORE_RENAME)
    times = found.value if isinstance(found, dg.JsonMetadataValue) else None
    if not isinstance(times, dict):
        return {}
    return {str(name): metadata.parse_utc(at) if isinstance(at, str) else float(at) for name, at in times.items()}


def last_clean(facts: FleetFacts, previous: Mapping[str, float], now_seconds: float) -> dict[str, float]:
    """The time of the last clean audit of each query, in seconds since the epoch; no entry for a query without one."""
    known = {*facts.rows, *facts.problems, *facts.waiting}
    kept = {name: at for name, at in previous.items() if name in known}
    return kept | {name: now_seconds for name, one in facts.rows.items() if one.is_clean}


def gather(fleet: Fleet) -> FleetFacts:
    """Examine every query. A query that cannot be examined does not stop the others."""
    found = fleet.discover()
    rows: dict[str, Health] = {}
    problems = dict(found.problems)

    def examine(name: str) -> None:
        try:
            query = fleet.open(name)
            rows[name] = health.look(query.storage, query.policies, clock=SystemClock())
        except StatekeeperError as error:
            problems[name] = str(error)

    at_once(examine, list(found.queries))
    return FleetFacts(dict(sorted(rows.items())), problems, found.waiting)


def of_fleet(facts: FleetFacts, clean: Mapping[str, float], now_seconds: float) -> metadata.Metadata:
    """Sums and maxima under constant labels, the table and a picture. `clean`: see `last_clean`."""
    rows = facts.rows
    ages = {name: max(0, round(now_seconds - at)) for name, at in clean.items()}
    dates = {name: utc(at) for name, at in clean.items()}
    left = [one.least_commits_left for one in rows.values() if one.least_commits_left is not None]
    # Findings come first: Dagster cuts wide tables off.
    columns = {"query": "string", "version": "int", "errors": "int", "warnings": "int", "stores": "int"}
    columns |= {"longest_tail": "int", "restore_seconds": "float", "bytes": "int", "reclaimable_bytes": "int"}
    columns |= {"reclaimed_bytes": "int", "orphan_files": "int", "commits_left": "int"}
    columns |= {"last_clean_audit": "string", "requests": "int"}
    return {
        "health": metadata.table(columns, ((name, *_cells(one, dates.get(name))) for name, one in _worst_first(rows))),
        "picture": pictures.of_fleet(rows),
        "queries": len(rows),
        "unreachable_queries": len(facts.problems),
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
        "queries_never_clean": len({*rows, *facts.problems} - ages.keys()),
        _LAST_CLEAN: dg.MetadataValue.json(dates),
        "errors": sum(one.errors for one in rows.values()),
        "warnings": sum(one.warnings for one in rows.values()),
        "requests": sum(one.requests for one in rows.values()),
    }


def _worst_first(rows: Mapping[str, Health]) -> list[tuple[str, Health]]:
    return sorted(rows.items(), key=lambda row: (-row[1].errors, -row[1].warnings, -row[1].restore_seconds, row[0]))


def _cells(one: Health, last_clean_audit: str | None) -> tuple[object, ...]:
    findings = (one.version, one.errors, one.warnings, one.stores)
    restart = (one.longest_tail, round(one.restore_seconds, 3))
    sizes = (one.bytes, one.reclaimable_bytes, one.reclaimed_bytes, one.orphan_files)
    return (*findings, *restart, *sizes, one.least_commits_left, last_clean_audit, one.requests)


def all_queries_healthy(facts: FleetFacts, fleet: Fleet, lost: Sequence[str] = ()) -> dg.AssetCheckResult:
    """Check that there is a query, and that each one can be reached and has no finding. The description names up to five
    queries, worst first. `lost`: queries without a committed batch, which had a clean audit before."""
    unhealthy = {
        name: with_next(f"cannot be examined: {problem}", fleet.command("audit", name))
        for name, problem in facts.problems.items()
    }
    for name in lost:
        problem = "the checkpoint has no committed batch, although an earlier audit was clean: it was deleted or moved"
        unhealthy[name] = with_next(problem, fleet.command("inspect", name))
    for name, one in _worst_first(facts.rows):
        if one.worst:
            unhealthy[name] = describe([one.worst], fleet.command("audit", name))
    is_error = bool(facts.problems) or any(
        one.worst is not None and one.worst.severity is Severity.ERROR for one in facts.rows.values()
    )
    named = "; ".join(f"{name}: {problem}" for name, problem in list(unhealthy.items())[:5])
    waiting = [name for name in facts.waiting if name not in lost]
    if not named and not facts.rows:
        named = _nothing_examined(waiting, fleet)
    not_examined = f" Not examined, because they have no committed batch: {_first(waiting)}." if waiting else ""
    return dg.AssetCheckResult(
        check_name=ALL_QUERIES_HEALTHY.name,
        passed=not unhealthy and bool(facts.rows),
        severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
        description=printable(named or f"The audits of {len(facts.rows):,} queries have no finding.{not_examined}"),
        metadata={"queries": len(facts.rows), "queries_with_findings": len(unhealthy)},
    )


def _nothing_examined(waiting: Sequence[str], fleet: Fleet) -> str:
    """Why no query was examined, and the next step."""
    if waiting:
        problem = f"No query was examined: no root in {fleet.config_file} has a committed batch ({_first(waiting)})"
        return with_next(f"{problem}. Start the queries, or correct their URLs", fleet.command("inspect", waiting[0]))
    return (
        f"No query was examined: {fleet.config_file} names no root, and its parents have no folder with a checkpoint. Add "
        "a table [roots.NAME] with the url of a checkpoint"
    )


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
