"""The figures of a fleet for Prometheus: gauges of the newest visit of each query, and counters over all visits.

Names end in their unit. The labels of a query are `fleet`, `team` and `query`. All figures come from the memory of the
rounds, so a restart resets no counter, and a scrape makes no request.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from statekeeper.statestore.base.errors import LocalStateError, PortInUse
from statekeeper.statestore.base.extras import needed_by
from statekeeper.statestore.maintenance.rounds.visit import Status, Visit
from statekeeper.statestore.maintenance.upkeep.audit import Severity

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

    from statekeeper.statestore.maintenance.rounds.memory import Memory

GAUGES: Mapping[str, str] = {
    "version": "Newest committed version: batch N creates version N+1.",
    "stores": "Stores of the query.",
    "tail_changelogs": "Changelogs of the longest tail, which a restart replays.",
    "restore_seconds": "Predicted time of a restart, at the speed that the newest snapshots measured.",
    "audit_errors": "Findings of the newest audit with severity ERROR.",
    "audit_warnings": "Findings of the newest audit with severity WARNING.",
    "state_files": "Files of all stores.",
    "state_bytes": "Bytes of all stores.",
    "garbage_files": "Files that the next retention deletes.",
    "garbage_bytes": "Bytes that the next retention deletes.",
    "visit_seconds": "Duration of the newest visit.",
}
"""The gauges, by the end of their names."""

COUNTERS: Mapping[str, str] = {
    "visits": "Visits of the query.",
    "failed_visits": "Visits in which a step failed.",
    "snapshots": "Snapshots that were taken.",
    "failed_snapshots": "Snapshots that failed.",
    "uploaded_bytes": "Bytes of new snapshots.",
    "deleted_files": "Files that retention deleted.",
    "deleted_bytes": "Bytes that retention deleted.",
    "read_requests": "Requests at the price of a GET.",
    "write_requests": "Requests at the price of a PUT.",
}
"""The counters, by the middle of their names; they end in `_total`."""

_LABELS = ("fleet", "team", "query")


def gauges_of(done: Visit) -> dict[str, float]:
    """Return the gauges of a visit; without those of a step that failed."""
    found: dict[str, float] = {"visit_seconds": round(done.seconds, 3)}
    if done.after is not None:
        found |= {
            "version": 0 if done.after.batch is None else done.after.batch + 1,
            "stores": len(done.after.stores),
            "audit_errors": done.after.count(Severity.ERROR),
            "audit_warnings": done.after.count(Severity.WARNING),
            "state_files": sum(store.files for store in done.after.stores),
            "state_bytes": sum(store.bytes for store in done.after.stores),
        }
    if done.snapshots is not None:
        planned = done.snapshots.plan
        tails = done.taken.tails(planned)
        facts = planned.gathered
        left = (fact for fact in facts.stores if fact.load is not None and tails.get(fact.store))
        found |= {
            "tail_changelogs": max(tails.values(), default=0),
            "restore_seconds": round(sum(facts.restore_seconds(fact) for fact in left), 3),
        }
    if done.retention is not None:
        garbage = done.retention.plan.forecast.now
        found |= {
            "garbage_files": garbage.files - sum(step.files for step in done.deleted),
            "garbage_bytes": garbage.bytes - sum(step.size_bytes for step in done.deleted),
        }
    return found


def counters_of(done: Visit) -> dict[str, float]:
    """Return what a visit adds to the counters."""
    return {
        "visits": 1,
        "failed_visits": int(bool(done.errors)),
        "snapshots": len(done.taken.taken),
        "failed_snapshots": len(done.taken.failed),
        "uploaded_bytes": sum(one.uploaded_bytes for one in done.taken.taken),
        "deleted_files": sum(step.files for step in done.deleted),
        "deleted_bytes": sum(step.size_bytes for step in done.deleted),
        "read_requests": done.requests.reads,
        "write_requests": done.requests.writes,
    }


def registry(fleet: str, memory: Memory, command: tuple[str, ...] = ()) -> CollectorRegistry:
    """Return a registry that shows a memory. `command`: options before the verb of a pasted command."""
    with needed_by("the metrics of `statekeeper maintain`", "metrics"):
        from prometheus_client.registry import Collector, CollectorRegistry

    class OfMemory(Collector):
        def collect(self) -> Iterator[Metric]:
            return _families(fleet, memory, shlex.join(["statekeeper", *command]))

    made = CollectorRegistry(auto_describe=False)
    made.register(OfMemory())
    return made


def _families(fleet: str, memory: Memory, command: str) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    # The rounds replace the entries while another thread serves a scrape.
    queries, told = dict(memory.queries), dict(memory.told)
    info = GaugeMetricFamily(
        "statekeeper_fleet_info",
        "Start of a command for this fleet, before its verb. The value is 1.",
        labels=("fleet", "command"),
    )
    info.add_metric((fleet, command), 1)
    yield info
    status = GaugeMetricFamily(
        "statekeeper_query_status",
        "Status of the query: 0 OK, 1 WARN (needs attention), 2 ERROR (state is lost or wrong, or maintenance fails).",
        labels=_LABELS,
    )
    visited = GaugeMetricFamily(
        "statekeeper_query_visited_timestamp_seconds", "Time of the newest visit.", labels=_LABELS
    )
    due = GaugeMetricFamily(
        "statekeeper_query_due_timestamp_seconds",
        "Latest time at which the next visit becomes due, by --sweep and the schedule of the query.",
        labels=_LABELS,
    )
    for name, one in queries.items():
        status.add_metric((fleet, one.team, name), max(one.status, told[name].status if name in told else Status.OK))
        visited.add_metric((fleet, one.team, name), one.visited_seconds)
        if one.due_seconds is not None:
            due.add_metric((fleet, one.team, name), one.due_seconds)
    yield status
    yield visited
    yield due
    unhealthy = GaugeMetricFamily(
        "statekeeper_unhealthy",
        "Queries, roots and configurations of the fleet that people were told of and that are not OK.",
        labels=("fleet", "severity"),
    )
    for level in (Status.WARN, Status.ERROR):
        unhealthy.add_metric((fleet, level.name), sum(one.status is level for one in told.values()))
    yield unhealthy
    subjects = GaugeMetricFamily(
        "statekeeper_subject_status",
        "Status of each query, root or configuration that people were told of, also without a visit: 0, 1 or 2.",
        labels=("fleet", "team", "subject"),
    )
    for subject, known in told.items():
        subjects.add_metric((fleet, known.team, subject), known.status)
    yield subjects
    unsent = GaugeMetricFamily(
        "statekeeper_unsent_notices",
        "Notices that no channel of their team has accepted, or that PagerDuty has not. They are sent again.",
        labels=("fleet", "team"),
    )
    notices = Counter(known.unsent.team for known in told.values() if known.unsent is not None)
    teams = {*notices, *(one.team for one in queries.values()), *(one.team for one in told.values())}
    for team in sorted(teams):
        unsent.add_metric((fleet, team), notices[team])
    yield unsent
    for name, text in GAUGES.items():
        gauge = GaugeMetricFamily(f"statekeeper_query_{name}", text, labels=_LABELS)
        for query, one in queries.items():
            if name in one.figures:
                gauge.add_metric((fleet, one.team, query), one.figures[name])
        yield gauge
    for name, text in COUNTERS.items():
        counter = CounterMetricFamily(f"statekeeper_query_{name}", text, labels=_LABELS)
        for query, one in queries.items():
            counter.add_metric((fleet, one.team, query), one.totals.get(name, 0))
        yield counter


def write(file: Path, made: CollectorRegistry) -> None:
    """Replace a file for the textfile collector of Prometheus' node exporter. Raises `LocalStateError`."""
    from prometheus_client import write_to_textfile

    try:
        write_to_textfile(str(file), made)
    except OSError as error:
        hint = "give a file in an existing folder that this process may write, with --metrics"
        raise LocalStateError(
            f"the metrics cannot be written: {error.strerror or error}", path=str(file), hint=hint
        ) from error


def serve(address: str, port: int, made: CollectorRegistry) -> None:
    """Serve the metrics in a thread. Raises `PortInUse`."""
    from prometheus_client import start_http_server

    try:
        start_http_server(port, address, made)
    except OSError as error:
        raise PortInUse(
            f"cannot listen on {address}:{port}: {error.strerror or error}",
            hint="choose another address with --listen HOST:PORT",
        ) from error
