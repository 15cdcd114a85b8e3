"""What the page of `fleet_health` shows: a sentence on the fleet, then a row for each query, the most urgent first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import dagster as dg

from statekeeper.assets import metadata
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.maintenance.upkeep.audit import Severity
from statekeeper.statestore.maintenance.verbs.config import Policies, is_part
from statekeeper.statestore.maintenance.verbs.fleet import Fleet
from statekeeper.statestore.maintenance.verbs.health import Health
from statekeeper.statestore.storage.query_metrics import Prices

EXAMINATIONS_A_DAY = 24.0
"""Of the default schedule of `fleet_health`."""

_MIB = 1024 * 1024
_COLUMNS = {
    # What a person must know comes first: Dagster cuts wide tables off.
    "query": "string",
    "status": "string",
    "team": "string",
    "restore_seconds": "float",
    "target_seconds": "float",
    "tail_changelogs": "int",
    "state_mib": "float",
    "reclaimable_mib": "float",
    "query_dollars_per_day": "float",
    "maintenance_dollars_per_day": "float",
    "errors": "int",
    "warnings": "int",
    "stores": "int",
    "version": "int",
    "reclaimed_mib": "float",
    "orphan_files": "int",
    "commits_left": "int",
    "hours_since_clean_audit": "float",
    "requests": "int",
}
_LINE = 46
"""Characters of a line of text. The wide table makes the column of the page wider than the page, so that nothing is
wrapped there."""
_LONGEST_TEXT = 400
"""Characters of a problem. Dagster shows Markdown of less than 1,000 characters in place, and a link otherwise."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A query on the page.

    status              OK, WARN or ERROR
    health              None if it could not be examined
    query_dollars       of the requests of the query in a day; None if it does not record them
    maintenance_dollars of the requests of its maintenance in a day; None if it could not be examined
    problem             with the next command; "" without one
    """

    name: str
    status: str
    team: str
    health: Health | None
    target_seconds: float | None
    query_dollars: float | None
    maintenance_dollars: float | None
    problem: str

    @property
    def is_slow(self) -> bool:
        """Whether a restart is predicted to take longer than the restore target."""
        if self.health is None or self.target_seconds is None:
            return False
        return self.health.restore_seconds > self.target_seconds


def rows(
    examined: Mapping[str, Health],
    found: Fleet,
    unhealthy: Mapping[str, str],
    *,
    examinations_a_day: float = EXAMINATIONS_A_DAY,
) -> list[Row]:
    """Return the queries, the most urgent first. `unhealthy`: the problem of each query, in that order."""
    order = {name: number for number, name in enumerate(unhealthy)}
    names = [*(name for name in unhealthy if not is_part(name)), *(name for name in examined if name not in unhealthy)]
    made = [_row(name, examined.get(name), found, unhealthy.get(name, ""), examinations_a_day) for name in names]

    def urgency(one: Row) -> tuple[object, ...]:
        seconds = one.health.restore_seconds if one.health else 0.0
        return _STATUSES.index(one.status), order.get(one.name, len(order)), -seconds, one.name

    return sorted(made, key=urgency)


_STATUSES = ("ERROR", "WARN", "OK")


def _row(name: str, one: Health | None, found: Fleet, problem: str, examinations_a_day: float) -> Row:
    query = found.queries.get(name)
    policies: Policies = query.root.policies if query else found.configuration.policies_of(name)
    prices = query.root.prices if query else Prices()
    query_dollars = maintenance_dollars = None
    if one is not None:
        query_dollars = one.job.dollars_a_day(prices) if one.job else None
        passes = examinations_a_day + one.runs_of_last_day
        maintenance_dollars = prices.dollars(one.counts.writes, one.counts.reads) * passes
    return Row(
        name=name,
        status="WARN" if name in found.empty else _status(one, problem),
        team=policies.team,
        health=one,
        target_seconds=policies.snapshot.restore_target_seconds,
        query_dollars=query_dollars,
        maintenance_dollars=maintenance_dollars,
        problem=problem,
    )


def _status(one: Health | None, problem: str) -> str:
    if one is None:
        return "ERROR"
    if one.worst is not None:
        return "ERROR" if one.worst.severity is Severity.ERROR else "WARN"
    return "WARN" if problem else "OK"


def summary(shown: list[Row]) -> dg.MarkdownMetadataValue:
    """Return the start of the page: how many queries, how many need a person, the worst one, and its next command."""
    ill = [one for one in shown if one.status != "OK"]
    if not ill:
        return _lines([f"{counted(len(shown), 'query')}: none needs a person." if shown else "No query was examined."])
    team = f" (team {ill[0].team})" if ill[0].team else ""
    needs = "needs" if len(ill) == 1 else "need"
    counts = f"{counted(len(shown), 'query')}: {len(ill):,} {needs} a person."
    return _lines([counts, f"The worst is {ill[0].name}{team}: {ill[0].problem}"])


def all_problems(unhealthy: Mapping[str, str]) -> dg.MarkdownMetadataValue:
    """Return the problems with their next commands."""
    return metadata.bullets(f"{name}: {problem}" for name, problem in islice(unhealthy.items(), metadata.ROWS))


def notes(found: Fleet, shown: list[Row], unhealthy: Mapping[str, str]) -> dg.MarkdownMetadataValue | None:
    """Return what else a person should know: what was not examined, is too slow, or is not known; None for nothing."""
    texts = list(_notes(found, shown, unhealthy))
    return _lines(texts) if texts else None


def _lines(texts: list[str]) -> dg.MarkdownMetadataValue:
    """Return the texts in short lines, and the next command after each as code, which can be copied."""
    lines: list[str] = []
    for text in texts:
        before, following, command = text.partition(" Next: ")
        shown = before if len(before) <= _LONGEST_TEXT else f"{before[:_LONGEST_TEXT]}..."
        lines += map(metadata.escaped, textwrap.wrap(shown, _LINE, break_long_words=False, break_on_hyphens=False))
        lines += ["Next: " + metadata.code(command)] if following else []
    return dg.MetadataValue.md("  \n".join(lines))


def _notes(found: Fleet, shown: list[Row], unhealthy: Mapping[str, str]) -> Iterator[str]:
    if slow := sum(one.is_slow for one in shown):
        yield f"The predicted restore of {counted(slow, 'query')} takes longer than the target."
    if found.waiting:
        yield f"{counted(len(found.waiting), 'query')} without a committed batch: not examined."
    examined = [one for one in shown if one.health is not None]
    if unknown := sum(one.query_dollars is None for one in examined):
        yield f"The cost of the requests of {counted(unknown, 'query')} is not known: only a Python job records them."
    parts = {subject: problem for subject, problem in unhealthy.items() if is_part(subject)}
    for subject, problem in parts.items():
        are = "part of the configuration is" if len(parts) == 1 else "parts of the configuration are"
        yield f"{len(parts):,} {are} not used. The first is {subject}: {problem}"
        break


def table(shown: list[Row], clean_ages: Mapping[str, float]) -> dg.TableMetadataValue:
    """Return the table of the queries. `clean_ages`: query -> seconds since its last clean audit."""
    return metadata.table(_COLUMNS, (_cells(one, clean_ages.get(one.name)) for one in shown))


def costs(shown: list[Row]) -> dict[str, float | int]:
    """Return the sums of what is known."""
    known = [one.query_dollars for one in shown if one.query_dollars is not None]
    return {
        "query_dollars_per_day": round(sum(known), 4),
        "queries_of_unknown_cost": len(shown) - len(known),
        "maintenance_dollars_per_day": round(sum(one.maintenance_dollars or 0.0 for one in shown), 4),
    }


def _cells(one: Row, clean_age_seconds: float | None) -> list[object]:
    found = one.health
    cells: dict[str, object] = {
        "query": one.name,
        "status": one.status,
        "team": one.team or None,
        "target_seconds": one.target_seconds,
        "query_dollars_per_day": _dollars(one.query_dollars),
        "maintenance_dollars_per_day": _dollars(one.maintenance_dollars),
        "hours_since_clean_audit": None if clean_age_seconds is None else round(clean_age_seconds / 3600, 1),
    }
    if found is not None:
        cells |= {
            "restore_seconds": round(found.restore_seconds, 3),
            "tail_changelogs": found.longest_tail,
            "state_mib": _mib(found.bytes),
            "reclaimable_mib": _mib(found.reclaimable_bytes),
            "reclaimed_mib": _mib(found.reclaimed_bytes),
            "errors": found.errors,
            "warnings": found.warnings,
            "stores": found.stores,
            "version": found.version,
            "orphan_files": found.orphan_files,
            "commits_left": found.least_commits_left,
            "requests": found.requests,
        }
    return [cells.get(name) for name in _COLUMNS]


def _mib(size: int) -> float:
    return round(size / _MIB, 3)


def _dollars(dollars: float | None) -> float | None:
    return None if dollars is None else round(dollars, 4)
