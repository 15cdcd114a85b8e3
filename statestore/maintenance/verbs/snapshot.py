"""Plans and makes snapshots of stores with long tails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.base.errors import DAMAGES, RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.executors import LocalExecutor
from statekeeper.statestore.maintenance.records.history import History, Json
from statekeeper.statestore.maintenance.upkeep import snapshot
from statekeeper.statestore.maintenance.upkeep.snapshot import (
    LeaveAlone,
    SkipReason,
    SnapshotFacts,
    SnapshotPlan,
    SnapshotPolicy,
    Taken,
    TakeSnapshot,
)
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.as_json import upkeep as as_json
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Verb, Work
from statekeeper.statestore.maintenance.verbs.options import FOR_SPARK, option
from statekeeper.statestore.maintenance.verbs.report import Report, Table, as_objects, when
from statekeeper.statestore.storage import Storage

Ended: TypeAlias = tuple[TakeSnapshot, Taken | StatekeeperError]
"""A planned snapshot and its result. A verb tells them from one thread at a time."""


_MOST_FINDINGS = 50
"""Findings in the lines of a report."""


@dataclass(frozen=True, kw_only=True)
class PlannedSnapshots:
    """A snapshot plan by a policy, its facts, and the mode of the root."""

    mode: Mode
    policy: SnapshotPolicy
    gathered: SnapshotFacts
    plan: SnapshotPlan

    @property
    def tails(self) -> Mapping[StorePath, int]:
        """Number of changelogs that a restart replays, for each loadable store."""
        return {fact.store: len(fact.load.replay) for fact in self.gathered.stores if fact.load is not None}

    @property
    def findings(self) -> list[LeaveAlone]:
        """The stores that are skipped because of a problem."""
        return [action for action in self.plan.leave if action.reason.is_finding]


@dataclass(frozen=True)
class Snapshots:
    """The results of the planned snapshots. `taken` and `failed` have the order of the plan."""

    taken: tuple[Taken, ...] = ()
    failed: tuple[tuple[TakeSnapshot, StatekeeperError], ...] = ()

    @classmethod
    def of(cls, ended: Sequence[Ended], planned: SnapshotPlan) -> Snapshots:
        """Sort results into the order of the plan. A store without a result is left out."""
        outcomes = {action.store: outcome for action, outcome in ended}
        in_order = [(action, outcomes[action.store]) for action in planned.take if action.store in outcomes]
        return cls(
            tuple(outcome for _, outcome in in_order if isinstance(outcome, Taken)),
            tuple((action, outcome) for action, outcome in in_order if isinstance(outcome, StatekeeperError)),
        )

    def tails(self, planned: PlannedSnapshots) -> Mapping[StorePath, int]:
        """The tails after the run, at the same head: batches that were committed during the run do not count."""
        return {**planned.tails, **{one.action.store: 0 for one in self.taken}}


def long_tail(found: PlannedSnapshots, made: Snapshots, allowed: int) -> str | None:
    """Describe the longest tail after the run if it has at least `allowed` changelogs, or a store that cannot be loaded;
    None if all tails are shorter and all stores can be loaded."""
    if found.findings:
        return f"store {found.findings[0].store}: {found.findings[0].explained}"
    after = made.tails(found)
    longest = max(after.values(), default=0)
    return None if longest < allowed else described_tail(after, allowed)


def described_tail(tails: Mapping[StorePath, int], allowed: int) -> str:
    """Describe the longest tail, and the limit of the policy."""
    longest = max(tails.values(), default=0)
    worst = next((store for store, tail in tails.items() if tail == longest), None)
    of_store = f" (store {worst})" if worst else ""
    return f"The longest tail has {counted(longest, 'changelog')}{of_store}; the policy's limit is {allowed:,}."


@dataclass(frozen=True, kw_only=True)
class Snapshot(Verb[PlannedSnapshots, Ended, Snapshots]):
    """Take the snapshots that the policy requires, or with `take_all` or `at_head` those of all stores.

    `at_head`: snapshots of the head even if a running query may replace it (a Spark query in structure V1). That query must
    be stopped. The query may be running otherwise, and the run only adds files. A failure does not stop the other stores.
    `changelogs` and `restore_target_seconds` override the policy of the root.
    """

    name = "snapshot"
    take_all: bool = option(
        "Take snapshots of all stores of ROOT, also of those with short tails. A store is skipped only if a new snapshot "
        "would not shorten its tail.",
        default=False,
        flag="--all",
    )
    at_head: bool = option(
        "Take a snapshot of every store at its head. A restart then replays no changelogs. In structure V1, a native query "
        "must be stopped. Every other query may be running.",
        default=False,
    )
    for_spark: Spark | None = option(**FOR_SPARK)
    changelogs: int | None = option(
        "Take a snapshot of a store if its tail has at least this many changelogs. Default: the number in "
        "statekeeper.toml, otherwise 50.",
        default=None,
        least=1,
    )
    restore_target_seconds: float | None = option(
        "Maximum for the total replay time of all tails, for example 30s. If the predicted total is longer, snapshot also "
        "takes snapshots of stores that are below the other two limits: --changelogs and `restore`. It begins with the "
        "longest tail, and stops when the total is within the maximum. Default: the time in statekeeper.toml, otherwise no "
        "maximum.",
        default=None,
        flag="--restore-target",
    )

    def plan(self, run: Run) -> PlannedSnapshots:
        """Raises `RefusedAsUnsafe` for `at_head` while the query runs; `NotACheckpoint`, `CorruptFile`, `StorageError`."""
        gathered = snapshot.gather(run.storage)
        if self.at_head and gathered.replaces_versions:
            run.require_stopped(confirmed=run.stopped)
            gathered = snapshot.gather(run.storage, at_head=True)
        given: dict[str, Any] = {"changelogs": self.changelogs, "restore_target_seconds": self.restore_target_seconds}
        policy = replace(run.policies.snapshot, **{name: value for name, value in given.items() if value is not None})
        planned = snapshot.plan(gathered, policy, take_all=self.take_all or self.at_head, spark=self.for_spark)
        left = (replace(one, detail=run.pasteable(one.detail)) for one in planned.leave)
        planned = replace(planned, leave=tuple(left))
        return PlannedSnapshots(
            mode=run.policies.mode_for(gathered.origin), policy=policy, gathered=gathered, plan=planned
        )

    def has_work(self, plan: PlannedSnapshots) -> bool:
        return bool(plan.plan.take)

    def allowed(self, run: Run, plan: PlannedSnapshots) -> StatekeeperError | None:
        return guards.adds(run.storage, plan.mode)

    def needs_stopped(self, plan: PlannedSnapshots) -> bool:
        return False

    def record(self, plan: PlannedSnapshots) -> list[Json]:
        return [as_json.of_action(action) for action in plan.plan.take]

    def record_step(self, step: Ended) -> Json:
        return as_json.of_outcome(*step)

    def execute(self, run: Run, plan: PlannedSnapshots, work: Work[Ended]) -> Snapshots:
        """Make the planned snapshots. *Guarantee*: as `snapshot.execute`. Raises `RefusedAsUnsafe` if the structure of the
        checkpoint has changed since the plan."""
        _require_no_ids_in_v1(run.storage, plan.plan.take)
        ended: list[Ended] = []

        def record(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> None:
            if isinstance(outcome, StatekeeperError):
                outcome.name_root(run.pasteable)
            ended.append((action, outcome))
            work.tell((action, outcome))

        snapshot.execute_all(
            work.storage,
            plan.plan.take,
            record,
            executor=run.executor,
            kept_bytes=run.kept_bytes,
        )
        return Snapshots.of(ended, plan.plan)

    def report(self, prepared: Prepared[PlannedSnapshots, Ended, Snapshots]) -> Report:
        """Report the decision for each store, and the snapshots that were taken."""
        found, plan, made = prepared.plan, prepared.plan.plan, prepared.made or Snapshots()
        before, after, step = found.tails, made.tails(found), _next_step(found, made)
        actions: list[TakeSnapshot | LeaveAlone] = [*plan.take, *plan.leave]
        facts = found.gathered
        reasons = Table(
            "reasons",
            f"{when(plan.batch)}: {len(plan.take)} snapshots to take, {len(plan.leave)} stores to skip; replay of all "
            f"tails {plan.seconds_before:,.1f} s before, {plan.seconds_after:,.1f} s after",
            ("store", "batch", "action", "reason"),
            [
                (
                    one.store,
                    one.version.version - 1,
                    "snapshot" if isinstance(one, TakeSnapshot) else "none",
                    one.explained,
                )
                for one in actions
            ],
        )
        taken = Table(
            "taken",
            f"{when(plan.batch)}: {len(made.taken)} snapshots",
            ("store", "batch", "keys", "tables", "new", "uploaded", "s"),
            [
                (
                    one.action.store,
                    one.action.version.version - 1,
                    one.keys,
                    one.tables,
                    one.new_tables,
                    one.uploaded_bytes,
                    round(one.seconds, 2),
                )
                for one in made.taken
            ],
        )
        steps = () if step is None else (step,)
        return Report(
            record={
                **as_json.of_snapshot_plan(plan),
                "taken": list(map(as_json.of_taken, made.taken)),
                "failed": [as_json.of_failed(action, error) for action, error in made.failed],
                "next_step": step,
                "refusals": as_objects(prepared.refusals),
            },
            phase=prepared.phase("taken"),
            facts={"mode": found.mode.value},
            figures={
                "version": 0 if plan.batch is None else plan.batch + 1,
                "stores": len(facts.stores),
                "snapshots_taken": len(made.taken),
                "snapshots_failed": len(made.failed),
                "longest_tail_before": max(before.values(), default=0),
                "longest_tail_after": max(after.values(), default=0),
                "changelogs_before": sum(before.values()),
                "changelogs_after": sum(after.values()),
                "restore_seconds_before": round(sum(facts.restore_seconds(fact) for fact in facts.stores), 3),
                "restore_seconds_after": round(plan.seconds_after, 3),
                "uploaded_bytes": sum(one.uploaded_bytes for one in made.taken),
                "keys": sum(one.keys for one in made.taken),
            },
            tables=(reasons,),
            lines=steps,
            made=(taken,) if made.taken else (),
            done=(
                *(f"{action.store}: {action.explained}" for action in found.findings[:_MOST_FINDINGS]),
                f"{len(made.taken)} taken, {len(made.failed)} failed, {len(plan.leave)} skipped",
                *steps,
            ),
        )


def _next_step(found: PlannedSnapshots, made: Snapshots) -> str | None:
    """Return the command to run next and its purpose; None if there is nothing to do."""
    if any(isinstance(error, DAMAGES) for _, error in made.failed):
        return (
            "to list the corrupt files and the next step, run: statekeeper audit ROOT --deep. Then run this command "
            "again"
        )
    if made.failed:
        return "run it again: finished snapshots are not taken twice"
    return None if made.taken and not found.findings else _next_step_of_plan(found)


def _next_step_of_plan(found: PlannedSnapshots) -> str | None:
    """Return why a plan has no snapshot, and the command that takes one; None for a plan with snapshots."""
    plan, tails = found.plan, found.tails
    if plan.batch is None:
        return (
            "no batch is committed yet. If the query has committed batches, find the missing files: statekeeper audit "
            "ROOT"
        )
    if plan.stateless is not None:
        return plan.stateless.value
    if found.findings:
        return "for the damaged or missing files and the next step, run: statekeeper audit ROOT"
    if plan.take:
        return None
    mode = " --mode snapshots" if found.mode is Mode.OBSERVE else ""
    short = [action for action in plan.leave if action.reason is SkipReason.SHORT_TAIL]
    if short:
        longest = max(short, key=lambda action: tails[action.store])
        return (
            f"no store needs a snapshot by the policy: the longest tail has {counted(tails[longest.store], 'changelog')} "
            f"({longest.store}), and the limit is {found.policy.changelogs:,}. A restart replays all tails in about "
            f"{plan.seconds_before:,.1f} s. To take snapshots of all stores now, run: statekeeper snapshot ROOT --all{mode}"
        )
    if any(action.reason is SkipReason.NEAR_HEAD for action in plan.leave):
        return (
            "no store can get a snapshot now: in structure V1, a running query may still replace the files of its newest "
            "batches. To take snapshots of them, stop the query and run: statekeeper snapshot ROOT --at-head "
            f"--confirm-stopped{mode}"
        )
    return "no store needs a snapshot: each one has a snapshot of its head, and a restart replays nothing"


def _require_no_ids_in_v1(storage: Storage, actions: Sequence[TakeSnapshot]) -> None:
    """Require that no planned snapshot has an id if the checkpoint has structure V1.

    Race: the snapshots are planned; a switchover to structure V1 starts, ends, and releases the lease; a snapshot with an
    id is published, and no query starts beside it. A snapshot without an id does no harm in structure V2.
    """
    newest = catalog.newest_batch(storage)
    with_id = next((action for action in actions if action.version.id is not None), None)
    if with_id and newest is not None and catalog.structure_at(storage, newest) is Structure.V1:
        raise RefusedAsUnsafe(
            "the checkpoint was switched to structure V1 after the plan was made; no snapshot was made",
            path=with_id.path,
            hint="run this command again",
        )


def take_emergency_snapshots(
    storage: Storage,
    actions: Sequence[TakeSnapshot],
    ended: Callable[[TakeSnapshot, Taken | StatekeeperError], None],
    unrecorded: Callable[[StatekeeperError], None],
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
) -> None:
    """Make the snapshots that a running job cannot wait for: one at a time, and without the lease.

    An error of the record does not stop them; `unrecorded` is called with it. A failure does not stop the others.
    """
    history = History.begin(storage, "snapshot", ids.fresh(), clock)
    done: list[Json] = []

    def record(action: TakeSnapshot, outcome: Taken | StatekeeperError) -> None:
        done.append(as_json.of_outcome(action, outcome))
        ended(action, outcome)

    _reported(unrecorded, lambda: history.plan(map(as_json.of_action, actions)))
    one_at_a_time = LocalExecutor(clock=clock, ids=ids, scratch=scratch, workers=1)
    snapshot.execute_all(storage, actions, record, executor=one_at_a_time)
    _reported(unrecorded, lambda: history.outcome(done))


def _reported(report: Callable[[StatekeeperError], None], work: Callable[[], None]) -> None:
    try:
        work()
    except StatekeeperError as error:
        report(error)
