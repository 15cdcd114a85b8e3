"""The driver of a Spark application that does the work of a step; see `spark_runs`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from dagster_pipes import open_dagster_pipes

from statekeeper.assets.launches import run_by
from statekeeper.assets.restore_drill import drilled
from statekeeper.assets.spark_runs import DRILL, VISIT, as_sent
from statekeeper.assets.visits import Steps, visited
from statekeeper.resources.fleet import Fleet, OpenedQuery
from statekeeper.resources.worker import Worker
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.maintenance.executors import MEMORY_BYTES
from statekeeper.statestore.maintenance.executors.spark import connect
from statekeeper.statestore.maintenance.verbs.contract import Run

_TOLD_SECONDS = 10.0
"""Shortest time between two messages of progress: each is an event in Dagster's storage."""


def _visit(run: Run, fleet: Fleet, query: OpenedQuery, how: Mapping[str, Any], told: Callable[[str], None]) -> Any:
    del fleet
    return as_sent(visited(run, query, Steps(**how), told=told))


def _drill(run: Run, fleet: Fleet, query: OpenedQuery, how: Mapping[str, Any], told: Callable[[str], None]) -> Any:
    del how
    # Each task has a slot of its own, so the measured seconds are those of one store after another.
    return drilled(replace(run, workers=1), fleet, query, told=told).as_sent()


_WORK = {VISIT: _visit, DRILL: _drill}


def work_on_spark(**pipes_options: Any) -> None:
    """Do the work that a run of Dagster asks for, and send its result. `pipes_options`: as for `open_dagster_pipes`, for
    another client than the one that starts `submit` of `[spark]`."""
    with open_dagster_pipes(**pipes_options) as pipes:
        asked = pipes.extras
        log = _Paced(lambda text: pipes.log.info(printable(text)))
        try:
            fleet = Fleet(**asked["fleet"], worker=Worker())
            query = fleet.open(asked["query"])
            run = run_by(asked["holder"], fleet, query, cluster=connect(memory_bytes=MEMORY_BYTES))
            result = _WORK[asked["work"]](run, fleet, query, asked["how"], log)
        except StatekeeperError as error:
            pipes.report_custom_message({"error": str(error)})
        except KeyboardInterrupt:
            pipes.log.warning("interrupted: finished steps are kept; the next run continues")
            sys.exit(130)
        else:
            pipes.report_custom_message({"release": version("statekeeper"), "result": result})


class _Paced:
    """Tells progress from time to time."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._clock = tell, SystemClock()
        self._next = self._clock.monotonic_seconds() + _TOLD_SECONDS

    def __call__(self, text: str) -> None:
        now = self._clock.monotonic_seconds()
        if now >= self._next:
            self._next = now + _TOLD_SECONDS
            self._tell(text)
