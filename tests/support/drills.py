"""Drills of roots, and their results by store."""

from __future__ import annotations

from pathlib import Path

from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.upkeep.drill import Drilled, Found
from statekeeper.statestore.maintenance.verbs.config import Mode, Policies
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Prepared, perform, prepare
from statekeeper.statestore.maintenance.verbs.drill import Drill, Ended, PlannedRestores
from statekeeper.statestore.storage import Storage
from tests.support import verbs
from tests.support.maintainers import MAINTAINER

PreparedDrill = Prepared[PlannedRestores, Ended, Found]


def planned(
    storage: Storage,
    scratch: Path,
    *,
    mode: Mode = Mode.SNAPSHOTS,
    stopped: bool = True,
    by: Maintainer = MAINTAINER,
    **options: object,
) -> PreparedDrill:
    """Plan a drill. `options`: of the verb."""
    run = verbs.a_run(storage, Policies(mode=mode), by, scratch=scratch, stopped=stopped, workers=1)
    return prepare(Drill(**options), run)  # type: ignore[arg-type]


def drilled(storage: Storage, scratch: Path, **how: object) -> Found:
    """Drill the sample. `how`: as for `planned`."""
    made = perform(planned(storage, scratch, **how)).made  # type: ignore[arg-type]
    assert made is not None
    return made


def by_store(found: Found) -> dict[StorePath, Drilled]:
    """The results by store."""
    return {one.action.store: one for one in found.drilled}
