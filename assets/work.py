"""The work of a step: what a person or a schedule asks for, and what it leaves in Dagster.

The process of the run does it. For a query with `executor = "spark"`, the driver of a Spark application does it with the
same code: see `spark_runs`. So what is asked for, and the result, are values that JSON can have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeVar

import dagster as dg

from statekeeper.assets import spark_runs
from statekeeper.assets.launches import run_of
from statekeeper.assets.metadata import Metadata
from statekeeper.assets.names import Names
from statekeeper.assets.verdicts import with_fleet_verdicts
from statekeeper.resources.fleet import Fleet, OpenedQuery
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.maintenance.verbs.contract import Run

R = TypeVar("R")

_TOLD_SECONDS = 10.0
"""Shortest time between two messages of progress: each is an event in Dagster's storage."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What any work gets. `run`: of its verbs; `told`: called with the progress."""

    run: Run
    fleet: Fleet
    query: OpenedQuery
    told: Callable[[str], None]


def _not_at_once(given: Given) -> None:
    del given


def _no_checks(fleet: Fleet, query: OpenedQuery) -> Sequence[dg.AssetCheckResult]:
    del fleet, query
    return ()


@dataclass(frozen=True, kw_only=True)
class Work(Generic[R]):
    """A kind of work.

    name            unique in a fleet
    do              does it. Gets what is asked for, and returns the result. Raises `StatekeeperError`
    encode, decode  the result as JSON
    workers         its share of the machine
    at_once         does it on this machine for a query on Spark, if it is done before an application would have started;
                    None if not, without a change
    without_result  evaluates its checks if it has ended without a result
    """

    name: str
    do: Callable[[Given, Mapping[str, Any]], R]
    encode: Callable[[R], Any]
    decode: Callable[[Any], R]
    workers: int = WORKERS
    at_once: Callable[[Given], R | None] = _not_at_once
    without_result: Callable[[Fleet, OpenedQuery], Sequence[dg.AssetCheckResult]] = _no_checks


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of the work of an asset. `errors`: of what failed, by its name. The step fails with the first."""

    metadata: Metadata = field(default_factory=dict)
    checks: Sequence[dg.AssetCheckResult] = ()
    errors: Mapping[str, str] = field(default_factory=dict)

    def as_sent(self) -> dict[str, Any]:
        """Encode it."""
        checks = list(map(spark_runs.check_as_sent, self.checks))
        return {
            "metadata": spark_runs.metadata_as_sent(self.metadata),
            "checks": checks,
            "errors": dict(self.errors),
        }

    @classmethod
    def of_sent(cls, sent: Mapping[str, Any]) -> Outcome:
        """Decode it."""
        checks = tuple(map(spark_runs.check_in, sent["checks"]))
        return cls(metadata=spark_runs.metadata_in(sent["metadata"]), checks=checks, errors=sent["errors"])


def of_asset(
    name: str,
    do: Callable[[Given, Mapping[str, Any]], Outcome],
    **given: Any,
) -> Work[Outcome]:
    """Return the work of an asset. `given`: as for `Work`."""
    return Work(name=name, do=do, encode=Outcome.as_sent, decode=Outcome.of_sent, **given)


def done(
    context: dg.AssetExecutionContext, names: Names, query: OpenedQuery, work: Work[R], how: Mapping[str, Any]
) -> R:
    """Do the work where the policies of the query say. `how`: what is asked for. Raises `StatekeeperError`, and
    `dg.Failure` if a Spark application has no result."""
    fleet = names.fleet_in(context)
    run = run_of(context, fleet, query, workers=work.workers)
    given = Given(run=run, fleet=fleet, query=query, told=Paced(context.log.info))
    if not query.is_on_spark:
        return work.do(given, how)
    found = work.at_once(given)
    return work.decode(spark_runs.answer(context, names, query, work.name, how)) if found is None else found


def recorded(
    context: dg.AssetExecutionContext, names: Names, work: Work[Outcome], launch: dg.Config | None = None
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """Do the work of an asset for the query of this step, and yield its checks and its materialization. `launch`: the
    configuration of the launchpad, which is what is asked for. However the work ends, the checks are evaluated. Raises
    `dg.Failure`."""
    fleet = names.fleet_in(context)
    query = fleet.open(context.partition_key)
    try:
        found = done(context, names, query, work, {} if launch is None else launch.model_dump(mode="json"))
    except BaseException:  # also a termination, which is no Exception
        yield from with_fleet_verdicts(context, _checks_without_result(work, fleet, query), names)
        raise
    if len(found.errors) > 1:
        for name, error in found.errors.items():
            context.log.error(printable(f"{name}: {error}"))
    yield from with_fleet_verdicts(context, found.checks, names)
    for name, error in found.errors.items():
        raise dg.Failure(
            printable(error if name == query.name else f"{name}: {error}"),
            metadata=found.metadata,
        )
    yield dg.MaterializeResult(metadata=found.metadata)


def _checks_without_result(work: Work[Outcome], fleet: Fleet, query: OpenedQuery) -> Sequence[dg.AssetCheckResult]:
    try:
        return work.without_result(fleet, query)
    except StatekeeperError:
        return ()


class Paced:
    """Tells progress from time to time. Several threads may call it."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._clock, self._lock = tell, SystemClock(), Lock()
        self._next = self._clock.monotonic_seconds() + _TOLD_SECONDS

    def __call__(self, text: str) -> None:
        with self._lock:
            now = self._clock.monotonic_seconds()
            if now >= self._next:
                self._next = now + _TOLD_SECONDS
                self._tell(printable(text))
