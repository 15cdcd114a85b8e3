"""Plans and writes changelogs of batch logs as files that Spark reads."""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.origin import origin_of
from statekeeper.statestore.maintenance.copies import unpack
from statekeeper.statestore.maintenance.copies.unpack import Unpack as Unpacked
from statekeeper.statestore.maintenance.copies.unpack import UnpackPlan
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Unleased, Work
from statekeeper.statestore.maintenance.verbs.options import option
from statekeeper.statestore.maintenance.verbs.report import Report, as_objects, decimal


@dataclass(frozen=True, kw_only=True)
class Unpack(Unleased[UnpackPlan, Unpacked, tuple[Unpacked, ...]]):
    """Write the changelogs that Spark needs to read a batch, by default the newest one. It only adds files that no other
    verb changes, so that it needs no lease."""

    name = "unpack"
    batch: int | None = option(
        "The batch that Spark must be able to read. Default: the newest batch.", default=None, least=0
    )

    def plan(self, run: Run) -> UnpackPlan:
        """Raises as `unpack.gather`."""
        return unpack.plan(unpack.gather(run.storage, batch=self.batch))

    def has_work(self, plan: UnpackPlan) -> bool:
        return bool(plan.actions or plan.missing)

    def allowed(self, run: Run, plan: UnpackPlan) -> StatekeeperError | None:
        return guards.adds(run.storage, run.policies.mode_for(origin_of(run.storage)))

    def execute(self, run: Run, plan: UnpackPlan, work: Work[Unpacked]) -> tuple[Unpacked, ...]:
        """Return the written files. Raises as `unpack.execute`."""
        done: list[Unpacked] = []
        for one in unpack.execute(work.storage, plan):
            done.append(one)
            work.tell(one)
        return tuple(done)

    def report(self, prepared: Prepared[UnpackPlan, Unpacked, tuple[Unpacked, ...]]) -> Report:
        """Report the number and size of the files, and the objects that are missing or damaged."""
        plan, written = prepared.plan, len(prepared.made or ())
        size_bytes = sum(one.size_bytes for one in plan.actions)
        files = f"{counted(len(plan.actions), 'changelog')}"
        lines: list[str] = []
        done = "no batch is committed"
        if plan.batch is not None:
            if plan.actions:
                lines = [f"{files} to write, {decimal(size_bytes)}, so that Spark can read batch {plan.batch:,}"]
            for path in plan.missing:
                problem = plan.damaged[path].what if path in plan.damaged else "is missing"
                lines.append(f"{path} {problem}: Spark cannot read batch {plan.batch:,}")
            done = f"Spark can read batch {plan.batch:,}: no file to write"
        if written:
            done = f"wrote {files}, {decimal(size_bytes)}: Spark can read batch {plan.batch:,}"
        return Report(
            record={
                "batch": plan.batch,
                "missing": list(plan.missing),
                "files": [{"path": one.path, "from": one.log, "bytes": one.size_bytes} for one in plan.actions],
                "written": written,
                "refusals": as_objects(prepared.refusals),
            },
            phase=prepared.phase("written"),
            figures={"files": len(plan.actions), "bytes": size_bytes, "missing_files": len(plan.missing)},
            lines=tuple(lines),
            done=(done,),
        )
