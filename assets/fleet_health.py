"""The asset `fleet_health`: one row for each query, and the sums that Dagster plots over time."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import dagster as dg

from statekeeper.assets import fleet_page, memory, metadata, pictures
from statekeeper.assets.checks import describe
from statekeeper.assets.maintenance import Maintenance
from statekeeper.assets.memory import Look
from statekeeper.assets.names import Check, Names
from statekeeper.assets.visits import RETENTION
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import TOLD_TAG, tag_run
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.base.errors import BadConfiguration, StatekeeperError
from statekeeper.statestore.base.messages import counted, with_next
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.maintenance.rounds import rounds
from statekeeper.statestore.maintenance.rounds.visit import Problem, Status
from statekeeper.statestore.maintenance.upkeep.audit import Severity
from statekeeper.statestore.maintenance.verbs import fleet as fleets
from statekeeper.statestore.maintenance.verbs import health
from statekeeper.statestore.maintenance.verbs.config import Configuration, is_part
from statekeeper.statestore.maintenance.verbs.health import Health
from statekeeper.statestore.storage import at_once

_LAST_CLEAN = "last_clean_audits"
_FLEET = "fleet"
_DAY_SECONDS = 86_400.0
_LEAST_AGE_SECONDS = 900.0
"""A person may examine the fleet several times in a row, which is no rate."""
_WATCHED = "told"
_STATUSES = {Severity.ERROR: Status.ERROR, Severity.WARNING: Status.WARN}
_MATERIALIZATIONS = 20
"""The newest ones to examine, because those of another fleet can be among them."""
_LAST_CLEAN_BEFORE_RENAME = "clean_audits"
"""The label of the previous release, whose values are seconds since the epoch."""

ALL_QUERIES_HEALTHY = Check(
    "all_queries_healthy",
    "There is a query, the audit of each query is clean, and each query can be reached. Red: a query is broken "
    "*now*, and stays red until it is repaired; or no query was examined. The result names each query with its file and "
    "the next command; `statekeeper audit QUERY` shows the actions.",
    of_each_query=False,
)


@dataclass(frozen=True)
class FleetFacts:
    """The health of each query, or the error that prevented the examination, by query. `found`: the discovered queries.

    Roots without a committed batch have nothing to examine: they are waiting."""

    rows: Mapping[str, Health]
    problems: Mapping[str, str]
    found: fleets.Fleet = field(default_factory=lambda: fleets.Fleet({}, (), {}))

    @property
    def waiting(self) -> tuple[str, ...]:
        return self.found.waiting


def fleet_health(names: Names, maintained: Maintenance) -> dg.AssetsDefinition:
    """Make the asset `fleet_health` of a fleet."""

    @names.asset(
        "fleet_health",
        deps=[dg.AssetDep(maintained.keys[RETENTION])],
        does="reads",
        checks=[ALL_QUERIES_HEALTHY],
        of_each_query=False,
        freshness_policy=dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=3), warn_window=timedelta(hours=2)),
    )
    def made(context: dg.AssetExecutionContext) -> Iterator[Any]:
        """The health of all queries: who must act, the predicted restore time and its target, sizes, the cost of requests,
        findings, and the time of the last clean audit.

        `query_dollars_per_day` comes from the requests that a Python job recorded with its newest batch.
        `maintenance_dollars_per_day` is an estimate: the price of this examination, times the examinations of a day and the
        runs of maintenance in the history of the last day. Storage and traffic are not included.

        Reads only; the figure `requests` is its cost. A run each hour examines every query, also queries that no run was
        requested for. It tells the teams of queries that are expected and absent, and of an invalid configuration.
        """
        fleet = names.fleet_in(context)
        yield from of_configuration(context, names, fleet)
        facts, now = gather(fleet), SystemClock().now_seconds()
        context.log.info("examined %d queries; %d could not be examined", len(facts.rows), len(facts.problems))
        before = _previous(context.instance, context.asset_key, fleet)
        previous = _previous_last_clean(before)
        watch = Watch(context, names, maintained.memory, facts)
        yield from watch.tell(before, visited=previous)
        clean = last_clean(facts, previous, now)
        lost = sorted(set(facts.waiting) & previous.keys())
        problems = unhealthy(facts, fleet, lost)
        often = _examinations_a_day(context.instance, context.asset_key, now)
        shown = {**of_fleet(facts, clean, now, problems, examinations_a_day=often), _FLEET: fleet.label}
        shown[_WATCHED] = watch.remembered(before)
        memory.tell_run(context, names, maintained.memory, context.run, None)
        yield dg.MaterializeResult(metadata=shown, check_results=[all_queries_healthy(facts, fleet, lost)])

    return made


def of_configuration(context: dg.AssetExecutionContext, names: Names, fleet: Fleet) -> Iterator[dg.AssetObservation]:
    """Tell whether the configuration is valid. Raises `dg.Failure` if it is not.

    The notice of an invalid file goes to the team that the tables before the error name; without such a team, to the
    channels of the fleet.
    """
    try:
        configuration = fleet.configuration()
        status, text = rounds.of_configuration(configuration)
        error = None
    except BadConfiguration as found:
        configuration, status, text, error = fleet.people(), Status.ERROR, str(found), found
    known = memory.read(context.instance, context.asset_key, fleet.label)
    look = Look(fleet.label, status, text)
    yield from memory.tell(context, names, context.asset_key, known, look, configuration.defaults, configuration)
    if error is not None:
        tag_run(context.instance, context.run.run_id, {TOLD_TAG: "true"})
        raise dg.Failure(text) from error


@dataclass(frozen=True)
class Watch:
    """Tells of queries that no visit can tell of, because they cannot be visited. `memory`: the asset that remembers
    them."""

    context: dg.AssetExecutionContext
    names: Names
    memory: dg.AssetKey
    facts: FleetFacts

    @property
    def configuration(self) -> Configuration:
        return self.facts.found.configuration

    def tell(self, before: Mapping[str, Any], *, visited: Collection[str]) -> Iterator[dg.AssetObservation]:
        """Tell what changed. `before`: the metadata of the previous materialization; `visited`: queries that had a
        committed batch."""
        found, configuration = self.facts.found, self.configuration
        for name, problem in self._absent(visited).items():
            yield from self._told(
                Look(name, problem.status, problem.text, is_certain=is_part(name) or name not in found.problems)
            )
        earlier = _watched(before)
        for name in set(earlier.get("absent", ())) & self.facts.rows.keys():
            row = self.facts.rows[name]
            text = describe([row.worst], self._command("audit", name)) if row.worst else "it can be read again"
            yield from self._told(Look(name, _STATUSES[row.worst.severity] if row.worst else Status.OK, text))
        known = set(self.context.instance.get_dynamic_partitions(self.names.query_set))
        here = {*found.queries, *found.problems, *found.waiting, *found.empty, *configuration.roots, *known}
        for name in set(earlier.get("told", ())) - here:
            if is_part(name) or not found.is_unseen(name):
                yield from self._told(Look(name, Status.OK, rounds.why_gone(name, configuration)))

    def remembered(self, before: Mapping[str, Any]) -> dg.JsonMetadataValue:
        """What the next run must know: the absent queries, and the subjects whose newest notice is no OK, or is unsent."""
        found = self.facts.found
        absent = [*found.problems, *found.waiting, *found.empty]
        subjects = {*absent, *found.queries, *_watched(before).get("told", ())}
        told = [name for name in subjects if memory.read(self.context.instance, self.memory, name).told]
        return dg.MetadataValue.json({"absent": sorted(absent), "told": sorted(told)})

    def _absent(self, visited: Collection[str]) -> dict[str, Problem]:
        command = ("--config", self.names.fleet_in(self.context).config_file)
        return dict(rounds.absent_in(self.facts.found, self.configuration, visited=visited, command=command))

    def _command(self, verb: str, name: str) -> str:
        return self.names.fleet_in(self.context).command(verb, name)

    def _told(self, look: Look) -> Iterator[dg.AssetObservation]:
        known = memory.read(self.context.instance, self.memory, look.subject)
        policies = self.configuration.policies_if_named(look.subject)
        return memory.tell(self.context, self.names, self.memory, known, look, policies, self.configuration)


def _watched(shown: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the previous run remembered, from the metadata of its materialization."""
    found = shown.get(_WATCHED)
    return found.value if isinstance(found, dg.JsonMetadataValue) and isinstance(found.value, dict) else {}


def _previous(instance: dg.DagsterInstance, key: dg.AssetKey, fleet: Fleet) -> Mapping[str, Any]:
    """The metadata of the previous materialization of this fleet; empty when Dagster's history was deleted."""
    records = instance.fetch_materializations(key, limit=_MATERIALIZATIONS).records
    all_shown = [record.asset_materialization.metadata for record in records if record.asset_materialization]
    return next((one for one in all_shown if _FLEET not in one or one[_FLEET].value == fleet.label), {})


def _previous_last_clean(shown: Mapping[str, Any]) -> Mapping[str, float]:
    """The times of the last clean audits, from the metadata of the previous materialization."""
    found = shown.get(_LAST_CLEAN) or shown.get(_LAST_CLEAN_BEFORE_RENAME)
    times = found.value if isinstance(found, dg.JsonMetadataValue) else None
    if not isinstance(times, dict):
        return {}
    return {str(name): metadata.parse_utc(at) if isinstance(at, str) else float(at) for name, at in times.items()}


def _examinations_a_day(instance: dg.DagsterInstance, key: dg.AssetKey, now_seconds: float) -> float:
    """How often the fleet was examined lately, as a rate; that of the default schedule if all examinations are recent."""
    records = instance.fetch_materializations(key, limit=_MATERIALIZATIONS).records
    ages = [now_seconds - record.timestamp for record in records]
    longest = max(ages, default=0.0)
    return len(ages) * _DAY_SECONDS / longest if longest > _LEAST_AGE_SECONDS else fleet_page.EXAMINATIONS_A_DAY


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
    return FleetFacts(dict(sorted(rows.items())), problems, found)


def of_fleet(
    facts: FleetFacts,
    clean: Mapping[str, float],
    now_seconds: float,
    problems: Mapping[str, str],
    *,
    examinations_a_day: float = fleet_page.EXAMINATIONS_A_DAY,
) -> metadata.Metadata:
    """A summary, the table and a picture, and sums and maxima under constant labels. `clean`: see `last_clean`; `problems`:
    see `unhealthy`."""
    rows = facts.rows
    ages = {name: max(0, round(now_seconds - at)) for name, at in clean.items()}
    dates = {name: utc(at) for name, at in clean.items()}
    left = [one.least_commits_left for one in rows.values() if one.least_commits_left is not None]
    shown = fleet_page.rows(rows, facts.found, problems, examinations_a_day=examinations_a_day)
    notes = fleet_page.notes(facts.found, shown, problems)
    return {
        "summary": fleet_page.summary(shown),
        **({"problems": fleet_page.all_problems(problems)} if problems else {}),
        **({"notes": notes} if notes else {}),
        "health": fleet_page.table(shown, ages),
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
        **fleet_page.costs(shown),
        "queries_over_restore_target": sum(one.is_slow for one in shown),
        "queries_that_need_a_person": sum(one.status != "OK" for one in shown),
    }


def _worst_first(rows: Mapping[str, Health]) -> list[tuple[str, Health]]:
    return sorted(rows.items(), key=lambda row: (-row[1].errors, -row[1].warnings, -row[1].restore_seconds, row[0]))


def unhealthy(facts: FleetFacts, fleet: Fleet, lost: Sequence[str] = ()) -> dict[str, str]:
    """The problem of each query that needs a person, and of each broken part of the configuration, with the next command,
    by the name of the query; the most urgent first. `lost`: queries without a committed batch after a clean audit."""
    found: dict[str, str] = {}
    for name, problem in sorted(facts.problems.items(), key=lambda one: is_part(one[0])):
        if is_part(name):
            found[name] = with_next(problem, fleet.command("config", "check"))
        else:
            found[name] = with_next(f"cannot be examined: {problem}", fleet.command("audit", name))
    for name in lost:
        problem = "the checkpoint has no committed batch, although an earlier audit was clean: it was deleted or moved"
        found[name] = with_next(problem, fleet.command("inspect", name))
    for name, one in _worst_first(facts.rows):
        if one.worst:
            found[name] = describe([one.worst], fleet.command("audit", name))
    for name in facts.found.empty:
        url = facts.found.configuration.parents[name].url
        problem = f"there is no folder at {url}. Start a query there, or correct the url"
        found[name] = with_next(problem, fleet.command("config", "check"))
    return found


def all_queries_healthy(facts: FleetFacts, fleet: Fleet, lost: Sequence[str] = ()) -> dg.AssetCheckResult:
    """Check that there is a query, and that each one can be reached and has no finding. The description has the worst
    problem, and the metadata all of them. `lost`: see `unhealthy`."""
    problems = unhealthy(facts, fleet, lost)
    is_error = bool(facts.problems) or any(
        one.worst is not None and one.worst.severity is Severity.ERROR for one in facts.rows.values()
    )
    named = next((f"{name}: {problem}" for name, problem in problems.items()), "")
    if len(problems) > 1:
        named = f"The worst of {len(problems):,} problems is {named}"
    waiting = [name for name in facts.waiting if name not in lost]
    if not named and not facts.rows:
        named = _nothing_examined(waiting, fleet)
    not_examined = f" Not examined, because they have no committed batch: {_first(waiting)}." if waiting else ""
    return dg.AssetCheckResult(
        check_name=ALL_QUERIES_HEALTHY.name,
        passed=not problems and bool(facts.rows),
        severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
        description=printable(
            named or f"The audit of {counted(len(facts.rows), 'query')} has no finding.{not_examined}"
        ),
        metadata={
            "queries": len(facts.rows),
            "queries_with_findings": sum(not is_part(name) for name in problems),
            **({"problems": fleet_page.all_problems(problems)} if problems else {}),
        },
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
