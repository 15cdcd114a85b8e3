"""The driver of a Spark application that does the work of a step; see `spark_runs`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from dagster_pipes import open_dagster_pipes

from statekeeper.assets.clone import CLONE
from statekeeper.assets.deep_audit import DEEP_AUDIT
from statekeeper.assets.launches import run_by
from statekeeper.assets.mirror import MIRROR
from statekeeper.assets.restore_drill import DRILL
from statekeeper.assets.rewrites import REWRITES
from statekeeper.assets.savepoint import SAVEPOINT
from statekeeper.assets.spark_runs import GUIDE
from statekeeper.assets.visits import VISIT
from statekeeper.assets.work import Given, Paced, Work
from statekeeper.resources.fleet import Fleet
from statekeeper.resources.worker import Worker
from statekeeper.statestore.base.errors import StatekeeperError, UnsupportedEnvironment
from statekeeper.statestore.maintenance.executors import MEMORY_BYTES
from statekeeper.statestore.maintenance.executors.spark import connect

_ALL: tuple[Work[Any], ...] = (VISIT, DEEP_AUDIT, DRILL, MIRROR, CLONE, SAVEPOINT, *REWRITES)
_WORK = {one.name: one for one in _ALL}


def work_on_spark(**pipes_options: Any) -> None:
    """Do the work that a run of Dagster asks for, and send its result. `pipes_options`: as for `open_dagster_pipes`, for
    another client than the one that starts `submit` of `[spark]`."""
    with open_dagster_pipes(**pipes_options) as pipes:
        asked = pipes.extras
        try:
            _require_same_release(asked)
            fleet = Fleet(**asked["fleet"], worker=Worker())
            query, work = fleet.open(asked["query"]), _WORK[asked["work"]]
            cluster = connect(memory_bytes=MEMORY_BYTES)
            run = run_by(asked["holder"], fleet, query, workers=work.workers, cluster=cluster)
            given = Given(run=run, fleet=fleet, query=query, told=Paced(pipes.log.info))
            result = work.encode(work.do(given, asked["how"]))
        except StatekeeperError as error:
            pipes.report_custom_message({"error": str(error)})
        except KeyboardInterrupt:
            pipes.log.warning("interrupted: finished steps are kept; the next run continues")
            sys.exit(130)
        else:
            pipes.report_custom_message({"result": result})


def _require_same_release(asked: Mapping[str, Any]) -> None:
    """Require that Dagster has the release of this driver: another one may ask for work that the driver does not know, or
    does in another way. Raises `UnsupportedEnvironment`."""
    here, there = version("statekeeper"), asked.get("release", "of an unknown release")
    if there != here:
        raise UnsupportedEnvironment(
            f"the driver of Spark has Statekeeper {here}, and Dagster has Statekeeper {there}; nothing was changed",
            hint=f"give both the same release, see {GUIDE}",
        )
