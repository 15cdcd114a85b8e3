"""Plans and executes the maintenance of a sink table: merges of small files, and deletions of unneeded ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from statekeeper.statestore.base.durations import duration_text
from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.origin import origin_of
from statekeeper.statestore.maintenance.records import useless_merges
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.upkeep import sink_tables
from statekeeper.statestore.maintenance.upkeep.sink_tables import (
    FileRule,
    Merged,
    Optimized,
    Outcome,
    Removed,
    SinkFacts,
    SinkPlan,
    SinkPolicy,
)
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.config import Mode, SinkTable
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Verb, Work
from statekeeper.statestore.maintenance.verbs.options import option
from statekeeper.statestore.maintenance.verbs.report import Figure, Report, Table, as_objects, decimal
from statekeeper.statestore.storage import Storage

_MIB = 1024 * 1024


MOST_SMALL_FILES = 1_000
"""A table with more small files is slow to read."""


@dataclass(frozen=True, kw_only=True)
class PlannedSink:
    """A plan of a sink table and its facts. `mode`: of the root."""

    mode: Mode
    destination: Storage
    gathered: SinkFacts
    plan: SinkPlan


PreparedSink: TypeAlias = "Prepared[PlannedSink, Merged | Removed, Optimized]"


def small_files_left(plan: SinkPlan, made: Optimized | None) -> int:
    """Return the most small files that the table has after a run; before one, those that it has."""
    committed = made.committed if made else ()
    return plan.small_files - sum(one.files - one.made for one in committed)


@dataclass(frozen=True, kw_only=True)
class Optimize(Verb[PlannedSink, Merged | Removed, Optimized]):
    """Merge the small files of the Delta table that the query writes, and delete the files that no version needs.

    *Danger*: it deletes without a prompt. *Guarantee*: as `sink_tables`.
    """

    name = "optimize"
    destination: str = option("The Delta table that the query writes: a URL or a path.", flag="")
    keep_readers_seconds: float = option(
        "How long a file stays after it left the table, for readers of former versions. A longer "
        "delta.deletedFileRetentionDuration of the table wins. Files of versions that a rewind to a retained batch "
        "restores stay in any case.",
        default=SinkTable.keep_readers_seconds,
        flag="--keep-readers",
    )
    file_mib: int = option(
        "Size of the files that a merge writes, in MiB. Files of less than half this size are small.",
        default=SinkTable.file_mib,
        least=1,
        most=2048,
    )
    no_compact: bool = option("Merge no files: only delete unneeded files.", default=False)
    no_vacuum: bool = option("Delete no files: only merge small files.", default=False)
    retired_queries: tuple[str, ...] = option(
        "Id of another query that wrote to the table and never will be rolled back. Its versions of the table may lose "
        "their files. Repeatable.",
        default=(),
        flag="--retired-query",
        metavar="UUID",
    )

    @property
    def _policy(self) -> SinkPolicy:
        return SinkPolicy(
            keep_readers_seconds=self.keep_readers_seconds,
            file_bytes=self.file_mib * _MIB,
            compacts=not self.no_compact,
            vacuums=not self.no_vacuum,
            retired=frozenset(self.retired_queries),
        )

    def plan(self, run: Run) -> PlannedSink:
        """Raises as `sink_tables.gather`."""
        table = run.open_other(self.destination)
        gathered = sink_tables.gather(run.storage, table, self._policy, clock=run.clock)
        return PlannedSink(
            mode=run.policies.mode_for(origin_of(run.storage)),
            destination=table,
            gathered=gathered,
            plan=sink_tables.plan(gathered, self._policy, stopped=run.stopped),
        )

    def has_work(self, plan: PlannedSink) -> bool:
        return bool(plan.plan.bins or plan.plan.deletions or plan.plan.refusals)

    def refusals(self, run: Run, plan: PlannedSink) -> Iterable[StatekeeperError]:
        return plan.plan.refusals

    def allowed(self, run: Run, plan: PlannedSink) -> StatekeeperError | None:
        return guards.deletes(run.storage, plan.mode)

    def needs_stopped(self, plan: PlannedSink) -> bool:
        return plan.plan.needs_stopped

    def record(self, plan: PlannedSink) -> list[Json]:
        planned = plan.plan
        return [
            {
                "table": plan.gathered.table,
                "table_version": plan.gathered.version,
                "kept_from": planned.kept_from,
                "oldest_batch": plan.gathered.oldest,
                "merges": planned.merged_files,
            },
            *({"delete": one.path, "bytes": one.size_bytes, "rule": code(one.rule)} for one in planned.deletions),
        ]

    def record_step(self, step: Merged | Removed) -> Json:
        return _of_step(step)

    def execute(self, run: Run, plan: PlannedSink, work: Work[Merged | Removed]) -> Optimized:
        """Plan again under the lease: the query may have committed batches, and a rewind may have ended meanwhile. Raises
        as `sink_tables.execute`, and the first refusal."""
        gathered = sink_tables.gather(work.storage, plan.destination, self._policy, clock=run.clock)
        planned = sink_tables.plan(gathered, self._policy, stopped=run.stopped)
        guards.require_none(planned.refusals)
        # The history has the files of the first plan.
        recorded = {one.path for one in plan.plan.deletions}
        kept = tuple(one for one in planned.verdicts if one.path in recorded)
        planned = replace(planned, verdicts=kept)
        if planned.needs_stopped and not plan.plan.needs_stopped:
            # Whether the query is stopped was not looked up, as the first plan did not need it.
            planned = replace(planned, bins=())
        made = sink_tables.execute(
            gathered,
            work.lease.guarded(plan.destination),
            planned,
            file_bytes=self._policy.file_bytes,
            scratch=run.scratch,
            clock=run.clock,
            ids=run.by.ids,
            told=work.tell,
        )
        # Merges of files that are gone are forgotten.
        useless = made.useless | {one.digest(self._policy.file_bytes) for one in planned.useless}
        if self._policy.compacts and useless != gathered.useless:
            useless_merges.replace(work.storage, gathered.table, useless)
        return made

    def report(self, prepared: PreparedSink) -> Report:
        """Report the files by their rule, the merges, and what a rewind needs."""
        facts, plan, made = prepared.plan.gathered, prepared.plan.plan, prepared.made
        files, sizes = Counter[FileRule](), Counter[FileRule]()
        for one in plan.verdicts:
            files[one.rule] += 1
            sizes[one.rule] += one.size_bytes
        deletions = plan.deletions
        merged_bytes = sum(one.size_bytes for one in plan.bins)
        figures: dict[str, Figure] = {
            "table_version": facts.version,
            "files": len(facts.live),
            "small_files": plan.small_files,
            "planned_merges": plan.merged_files,
            "planned_merge_bytes": merged_bytes,
            "planned_files": len(deletions),
            "planned_bytes": sizes[FileRule.UNNEEDED],
            "kept_from": plan.kept_from,
        }
        done: list[str] = []
        if made is not None:
            committed, removed = made.committed, made.removals
            figures |= {
                "merged_files": sum(one.files for one in committed),
                "made_files": sum(one.made for one in committed),
                "commits": len(committed),
                "dropped_merges": sum(one.bins for one in made.merges if one.outcome is not Outcome.COMMITTED),
                "deleted_files": sum(one.files for one in removed),
                "deleted_bytes": sum(one.size_bytes for one in removed),
                "spared_files": sum(len(one.spared) for one in removed),
            }
            done = list(_done_lines(made))
        elif not (plan.bins or deletions):
            done = ["nothing to merge or delete"]
        shown = _table(facts, files, sizes)
        notes = (*plan.findings, *plan.notes, *_kept_lines(facts, plan))
        return Report(
            record={
                "table": facts.table,
                "batches": {"oldest": facts.oldest, "newest": facts.newest},
                "restored_version": facts.restored,
                "readers_version": facts.for_readers,
                **figures,
                "rules": {
                    code(rule): {"files": files[rule], "bytes": sizes[rule], "deletes": rule.deletes}
                    for rule in FileRule
                },
                "merges": [
                    {"partition": dict(one.values), "files": len(one.files), "bytes": one.size_bytes}
                    for one in plan.bins
                ],
                "deletions": [{"path": one.path, "bytes": one.size_bytes} for one in deletions],
                "findings": list(plan.findings),
                "notes": list(plan.notes),
                "refusals": as_objects(prepared.refusals),
                "done": [] if made is None else [*map(_of_step, made.merges), *map(_of_step, made.removals)],
            },
            phase=prepared.phase("optimized"),
            facts={"table": facts.table, "mode": prepared.plan.mode.value},
            figures=figures,
            tables=shown,
            lines=(*notes, *_plan_lines(plan, merged_bytes, sizes[FileRule.UNNEEDED])),
            made=shown,
            done=(*notes, *done),
        )


def _table(facts: SinkFacts, files: Counter[FileRule], sizes: Counter[FileRule]) -> tuple[Table, ...]:
    if not files:
        return ()
    rules = sorted(files, key=lambda rule: (not rule.deletes, -sizes[rule]))
    rows = [("delete" if rule.deletes else "keep", files[rule], sizes[rule], rule.value) for rule in rules]
    title = f"version {facts.version} of the table, {counted(len(facts.live), 'data file')}"
    return (Table("reasons", title, ("action", "files", "bytes", "rule"), rows),)


def _kept_lines(facts: SinkFacts, plan: SinkPlan) -> Iterator[str]:
    if not plan.verdicts or facts.restored is None:
        return
    yield (
        f"version {plan.kept_from} and later ones stay readable: a rewind to batch {facts.oldest}, the oldest retained "
        f"one, restores version {facts.restored}, and readers may read version {facts.for_readers} for "
        f"{duration_text(facts.keep_seconds or 0.0)}"
    )


def _plan_lines(plan: SinkPlan, merged_bytes: int, deleted_bytes: int) -> Iterator[str]:
    if plan.bins:
        files, merges = counted(plan.merged_files, "small file"), counted(len(plan.bins), "merge")
        yield f"merges {files}, {decimal(merged_bytes)}, in {merges}"
    if deletions := plan.deletions:
        yield f"deletes {counted(len(deletions), 'file')}, {decimal(deleted_bytes)}"


def _done_lines(made: Optimized) -> Iterator[str]:
    if committed := made.committed:
        yield (
            f"merged {counted(sum(one.files for one in committed), 'small file')} into "
            f"{sum(one.made for one in committed):,}, in version {committed[-1].version} of the table"
        )
    for one in made.merges:
        if one.outcome is not Outcome.COMMITTED:
            merges = f"{counted(one.bins, 'merge')} of {counted(one.files, 'file')}"
            yield f"{merges}: {one.outcome.value}{'. Run the command again' if one.outcome.is_conflict else ''}"
    if made.removals:
        files, size_bytes = sum(one.files for one in made.removals), sum(one.size_bytes for one in made.removals)
        yield f"deleted {counted(files, 'file')}, {decimal(size_bytes)}"
    if spared := sum(len(one.spared) for one in made.removals):
        yield f"kept {counted(spared, 'file')}: another program has added them to the table again, or made the table again"


def _of_step(step: Merged | Removed) -> Json:
    if isinstance(step, Removed):
        # As the outcome of gc, so that the tables of history have both.
        return {"outcome": "done", "files": step.files, "bytes": step.size_bytes, "spared": list(step.spared)}
    return {
        "outcome": code(step.outcome),
        "merged": step.files,
        "bytes": step.size_bytes,
        "made": step.made,
        "made_bytes": step.made_bytes,
        "version": step.version,
    }
