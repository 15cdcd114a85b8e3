"""Plans and writes changelogs of batch logs as files that Spark reads."""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.checkpoint.origin import origin_of
from statekeeper.statestore.maintenance.copies import unpack
from statekeeper.statestore.maintenance.copies.unpack import Unpack as Unpacked
from statekeeper.statestore.maintenance.copies.unpack import UnpackPlan
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.contract import Run, Unleased, Work


@dataclass(frozen=True, kw_only=True)
class Unpack(Unleased[UnpackPlan, Unpacked, None]):
    """Write the changelogs that Spark needs to read a batch, by default the newest one. It only adds files that no other
    verb changes, so that it needs no lease."""

    name = "unpack"
    batch: int | None = None

    def plan(self, run: Run) -> UnpackPlan:
        """Raises as `unpack.gather`."""
        return unpack.plan(unpack.gather(run.storage, batch=self.batch))

    def has_work(self, plan: UnpackPlan) -> bool:
        return bool(plan.actions or plan.missing)

    def allowed(self, run: Run, plan: UnpackPlan) -> StatekeeperError | None:
        return guards.adds(run.storage, run.policies.mode_for(origin_of(run.storage)))

    def execute(self, run: Run, plan: UnpackPlan, work: Work[Unpacked]) -> None:
        """Raises as `unpack.execute`."""
        for one in unpack.execute(work.storage, plan):
            work.tell(one)
