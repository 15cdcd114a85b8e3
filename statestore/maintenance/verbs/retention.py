"""Plans retention, compares the plan with the audit, and executes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.base.errors import CorruptFile, StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.upkeep import audit, retention
from statekeeper.statestore.maintenance.upkeep.audit import Audit, AuditFacts
from statekeeper.statestore.maintenance.upkeep.retention import (
    Deleted,
    DeletionOutcome,
    Forecast,
    KeptBatchLogs,
    RetentionFacts,
    RetentionPlan,
    Rule,
)
from statekeeper.statestore.maintenance.verbs import contract, guards
from statekeeper.statestore.maintenance.verbs.as_json import upkeep as as_json
from statekeeper.statestore.maintenance.verbs.audit import judged
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Verb, Work, prepare
from statekeeper.statestore.maintenance.verbs.losses import Losses, losses
from statekeeper.statestore.maintenance.verbs.options import option
from statekeeper.statestore.maintenance.verbs.report import Figure, Report, Table, when


@dataclass(frozen=True, kw_only=True)
class PlannedRetention:
    """A retention plan and its facts.

    facts, before   the audit that must report no errors, and its facts
    losses          lost versions, and versions that the deletions would lose
    forecast        the files that the plan deletes now, and when the other files can be deleted
    needs_stopped   whether the plan deletes files that a running Spark query may still reference
    """

    mode: Mode
    facts: AuditFacts
    before: Audit
    losses: Losses
    gathered: RetentionFacts
    plan: RetentionPlan
    forecast: Forecast
    needs_stopped: bool


@dataclass(frozen=True, kw_only=True)
class Retention(Verb[PlannedRetention, Deleted, tuple[Deleted, ...]]):
    """Delete the files that no retained version needs.

    `everything`: gather all stores, not only the changed ones. If the query is stopped, the plan then also deletes tables
    that a running Spark query may still reference. `accept_loss`: errors of the audit do not block the plan; see `losses`.
    `retain` and `grace_seconds` override the policy of the root.

    *Danger*: it deletes without a prompt. *Guarantee*: as `retention.execute`.
    """

    name = "gc"
    retain: int | None = option(
        "Number of versions to retain: one for each batch. Default: the number in statekeeper.toml, otherwise 100.",
        default=None,
        least=1,
    )
    grace_seconds: float | None = option(
        "Minimum age of a file before gc deletes it, for example 90s, 10m, 1h or 7d. Default: the age in "
        "statekeeper.toml, otherwise 1h.",
        default=None,
        flag="--grace",
    )
    everything: bool = option(
        "Find all orphans. An orphan is a file that no committed version can reach. For a job on pipelines, the plan then "
        "also covers the stores without changes since the last gc, and multipart uploads to S3 that were begun more than "
        "one day ago and never finished. For a native query, add --confirm-stopped: the plan then also contains SST files "
        "that no snapshot references.",
        default=False,
        flag="--orphans",
    )
    accept_loss: bool = option(
        "Allow --apply although the audit reports errors. gc lists the errors, the batches that cannot be loaded now, and "
        "the batches that cannot be loaded after the deletion. Without --apply, gc only shows these lists.",
        default=False,
    )
    verbose: bool = option("List every file with its rule, including files that are kept.", default=False)

    def plan(self, run: Run) -> PlannedRetention:
        """Plan, and audit the checkpoint, because an earlier audit may be outdated. Raises as `audit.gather` and
        `retention.gather`."""
        given: dict[str, Any] = {"versions": self.retain, "grace_seconds": self.grace_seconds}
        policy = replace(run.policies.retention, **{name: value for name, value in given.items() if value is not None})
        stopped = self.everything and run.stopped
        facts = audit.gather(run.storage)
        before = judged(facts, replace(run.policies, retention=policy))
        gathered = retention.gather(run.storage, policy, clock=run.clock, everything=self.everything)
        planned = retention.plan(gathered, policy, stopped=stopped)
        return PlannedRetention(
            mode=run.policies.mode_for(planned.origin),
            facts=facts,
            before=before,
            losses=losses(facts, before, planned),
            gathered=gathered,
            plan=planned,
            forecast=retention.forecast(gathered, planned, policy),
            needs_stopped=stopped and planned.origin is Origin.NATIVE,
        )

    def refusals(self, run: Run, plan: PlannedRetention) -> Iterable[StatekeeperError]:
        return guards.refusals(None if self.accept_loss else guards.is_whole(plan.before))

    def allowed(self, run: Run, plan: PlannedRetention) -> StatekeeperError | None:
        return guards.deletes(run.storage, plan.mode)

    def needs_stopped(self, plan: PlannedRetention) -> bool:
        return plan.needs_stopped

    def record(self, plan: PlannedRetention) -> list[Json]:
        stores = plan.before.stores
        return as_json.of_retention_plan(
            plan.plan,
            stored_files=sum(store.files for store in stores),
            stored_bytes=sum(store.bytes for store in stores),
        )

    def record_step(self, step: Deleted) -> Json:
        return as_json.of_deleted(step)

    def execute(self, run: Run, plan: PlannedRetention, work: Work[Deleted]) -> tuple[Deleted, ...]:
        """Read the bases, delete the files, and tell each request. Raises as `retention.execute`."""
        done: list[Deleted] = []
        steps = retention.execute(
            work.storage,
            plan.plan,
            run=run.id,
            lease=work.lease,
            clock=run.clock,
            executor=run.executor,
        )
        for step in steps:
            done.append(step)
            work.tell(step)
        retention.remember(work.storage, plan.gathered, plan.plan, done)
        return tuple(done)

    def report(self, prepared: Prepared[PlannedRetention, Deleted, tuple[Deleted, ...]]) -> Report:
        """Report the files that each rule keeps or deletes, and the deletions that were made."""
        found, planned, done = prepared.plan, prepared.plan.plan, prepared.made or ()
        shown: tuple[Table, ...] = (_rules(planned),)
        if self.verbose:
            rows = [(_action(one.rule), one.path, one.rule.value) for one in planned.verdicts]
            shown = (*shown, Table("files", "all files", ("action", "path", "rule"), rows, is_whole=True))
        notes = tuple(_notes(planned))
        if planned.stateless is not None or planned.head is None:
            shown, notes = (), (planned.stateless.value if planned.stateless else when(None),)
        figures: dict[str, Figure] = {
            "version": planned.head or 0,
            "floor": planned.floor or 0,
            "stores_examined": len(planned.stores),
            "planned_files": len(planned.deletions),
            "planned_bytes": sum(verdict.size_bytes for verdict in planned.deletions),
            "deleted_files": sum(step.files for step in done),
            "deleted_bytes": sum(step.size_bytes for step in done),
            "spared_files": sum(len(step.spared) for step in done),
            "stores_skipped": sum(step.outcome is DeletionOutcome.CHANGED for step in done),
            "read_files": sum(step.read_files for step in done),
            "read_bytes": sum(step.read_bytes for step in done),
            "deferred_files": planned.left_out,
        }
        if planned.batch_logs is not None:
            kept = planned.batch_logs
            figures |= {
                "batch_logs": kept.files,
                "batch_log_bytes": kept.size_bytes,
                "batch_log_live_bytes": kept.live_bytes,
                **({} if kept.laggard is None else {"batch_log_laggard": str(kept.laggard)}),
            }
        return Report(
            record=self._record(prepared),
            phase=prepared.phase("deleted"),
            facts={"mode": found.mode.value},
            figures=figures,
            tables=shown,
            lines=(*notes, *(self._plan_lines(prepared) if shown else ())),
            made=shown,
            done=(*notes, *(_done_lines(found, done) if shown else ())),
        )

    def _record(self, prepared: Prepared[PlannedRetention, Deleted, tuple[Deleted, ...]]) -> Json:
        found, planned, losses = prepared.plan, prepared.plan.plan, prepared.plan.losses
        by_rule = {
            code(rule): {
                "files": sum(1 for verdict in planned.verdicts if verdict.rule is rule),
                "bytes": sum(verdict.size_bytes for verdict in planned.verdicts if verdict.rule is rule),
                "deletes": rule.deletes,
            }
            for rule in Rule
        }
        kept = planned.batch_logs
        return {
            "head": planned.head,
            "floor": planned.floor,
            "wanted_floor": planned.wanted_floor,
            "stores": len(planned.stores),
            "findings": list(planned.findings),
            "rules": by_rule,
            "left_out": planned.left_out,
            "holds": [{"batch": hold.batch, "holder": hold.holder, "verb": hold.verb} for hold in planned.holds],
            "batch_logs": None if kept is None else {**asdict(kept), "laggard": kept.laggard and str(kept.laggard)},
            "reads": [
                {
                    "store": str(read.store),
                    "snapshot": read.store.snapshot(read.version),
                    "files": len(read.files),
                    "bytes": read.size_bytes,
                    "reason": code(read.reason),
                }
                for read in planned.reads
            ],
            "deletable": {
                "now": asdict(found.forecast.now),
                "later": [
                    {"rule": code(one.rule), **asdict(one.kept), "when": one.when, "from_seconds": one.from_seconds}
                    for one in found.forecast.later
                ],
            },
            "refusals": [{"code": refusal.code, "error": str(refusal)} for refusal in prepared.refusals],
            "losses": {
                "errors": [{"file": finding.file, "problem": finding.problem} for finding in losses.findings],
                "stores": [
                    {
                        "store": str(one.store),
                        "already": [str(version) for version in one.already],
                        "by_deleting": [str(version) for version in one.by_deleting],
                    }
                    for one in losses.stores
                ],
            },
            "files": [
                {"path": verdict.path, "bytes": verdict.size_bytes, "rule": code(verdict.rule)}
                for verdict in planned.verdicts
                if self.verbose or verdict.rule.deletes
            ],
            "done": list(map(as_json.of_deleted, prepared.made or ())),
        }

    def _plan_lines(self, prepared: Prepared[PlannedRetention, Deleted, tuple[Deleted, ...]]) -> Iterator[str]:
        found, planned = prepared.plan, prepared.plan.plan
        if planned.reads:
            yield (
                f"--apply first reads {counted(len(planned.reads), 'snapshot')} in full ({planned.read_bytes:,} bytes): it "
                "verifies once each snapshot that replaces deleted files"
            )
        yield from _forecast_lines(found.forecast)
        if self.accept_loss:
            yield from found.losses.lines()
        deletions = len(planned.deletions)
        if not deletions:
            yield "nothing to delete"
        else:
            yield f"due for deletion: {counted(deletions, 'file')}"


def _action(rule: Rule) -> str:
    return "delete" if rule.deletes else "keep"


def _rules(planned: RetentionPlan) -> Table:
    """Count the files of each rule: first the rules that delete, by their bytes."""
    files: Counter[Rule] = Counter()
    sizes: Counter[Rule] = Counter()
    for verdict in planned.verdicts:
        files[verdict.rule] += 1
        sizes[verdict.rule] += verdict.size_bytes
    rules = sorted(files, key=lambda rule: (not rule.deletes, -sizes[rule]))
    floor = "none" if planned.floor is None else VersionId(planned.floor).in_words
    return Table(
        "reasons",
        f"newest batch {(planned.head or 0) - 1}, retention floor: {floor}, "
        f"{counted(len(planned.stores), 'store')} examined",
        ("action", "files", "bytes", "rule"),
        [(_action(rule), files[rule], sizes[rule], rule.value) for rule in rules],
    )


def _notes(planned: RetentionPlan) -> Iterator[str]:
    """The lines about a plan that also hold after its execution."""
    for hold in planned.holds:
        yield f"{when(hold.batch)} and later ones are kept, because {hold.holder} reads the batch ({hold.verb})"
    yield from planned.findings
    if planned.batch_logs is not None:
        yield from _batch_log_lines(planned.batch_logs)
    if planned.left_out:
        yield f"the next run deletes {planned.left_out:,} more files"


def _batch_log_lines(kept: KeptBatchLogs) -> Iterator[str]:
    yield (
        f"{kept.files:,} batch logs are kept with {kept.size_bytes:,} bytes; stores still need {kept.live_bytes:,} "
        "bytes of them"
    )
    if kept.laggard is not None:
        yield (
            f"store {kept.laggard} has the oldest base, and gc keeps {kept.of_laggard:,} batch logs because of it. To free "
            "them, run: statekeeper snapshot ROOT --all"
        )


def _forecast_lines(figures: Forecast) -> Iterator[str]:
    yield f"deletable now: {counted(figures.now.files, 'file')}, {figures.now.bytes:,} bytes"
    for one in figures.later:
        prefix = "not deletable" if one.rule is Rule.UNKNOWN else "deletable later"
        kept = f"{counted(one.kept.files, 'file')}, {one.kept.bytes:,} bytes, {one.when} ({one.rule.value})"
        yield f"{prefix}: {kept}"


def _done_lines(found: PlannedRetention, done: Sequence[Deleted]) -> Iterator[str]:
    if not done:
        yield from _forecast_lines(found.forecast)
        yield "nothing to delete"
        return
    read_files, read_bytes = sum(step.read_files for step in done), sum(step.read_bytes for step in done)
    if read_files:
        yield f"read {counted(read_files, 'file')} in full, {read_bytes:,} bytes"
    files, size_bytes = sum(step.files for step in done), sum(step.size_bytes for step in done)
    yield f"deleted {files:,} of {counted(len(found.plan.deletions), 'file')}, {size_bytes:,} bytes"
    for step in done:
        if step.outcome in (DeletionOutcome.CHANGED, DeletionOutcome.DAMAGED):
            yield f"{step.store}: {step.outcome.value}: {step.detail}"


def unattended(run: Run) -> Prepared[PlannedRetention, Deleted, tuple[Deleted, ...]]:
    """As `contract.unattended`; raises `CorruptFile` if a base is damaged, and then nothing is deleted."""
    finished = contract.unattended(prepare(Retention(), run))
    for step in finished.made or ():
        if step.outcome is DeletionOutcome.DAMAGED:
            raise CorruptFile(f"{step.outcome.value}: {step.detail}", path=str(step.store))
    return finished
