"""Plans and executes the migration of a query's state to a changed query."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.rewrite_journal import Begun
from statekeeper.statestore.format import names
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.maintenance.records.history import Json, recorded
from statekeeper.statestore.maintenance.rewrites import migration
from statekeeper.statestore.maintenance.rewrites.engine import Progress
from statekeeper.statestore.maintenance.rewrites.migration import Migrate as Goal
from statekeeper.statestore.maintenance.rewrites.migration import MigrationPlan
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.as_json import rewrites as as_json
from statekeeper.statestore.maintenance.verbs.audit import policy_of
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Work
from statekeeper.statestore.maintenance.verbs.guards import Refusals
from statekeeper.statestore.maintenance.verbs.options import FOR_SPARK, LOCATION, option
from statekeeper.statestore.maintenance.verbs.report import Report, Table, when
from statekeeper.statestore.maintenance.verbs.rewrite import OfStoppedQuery


@dataclass(frozen=True, kw_only=True)
class Migrate(OfStoppedQuery[MigrationPlan]):
    """Write a new checkpoint with the state of the root for a changed query, or complete an interrupted migration.

    The root and the blueprint are only read: no lease, hold or history is written there. The lease, the journal and the
    history are those of the destination. `for_spark`: the release that continues, if the blueprint does not show it.
    """

    name = "migrate"
    noun = "a migration"
    reverses = "removes what it wrote"
    blueprint: str = option(
        "The checkpoint that the changed query wrote on a few rows: a URL, a path, or a name in statekeeper.toml.",
        flag="",
        is_location=True,
        launch="",
    )
    destination: str = option(
        "The empty location of the new checkpoint: a URL, a path, or a name in statekeeper.toml.", flag="", launch=""
    )
    map: Mapping[str, str] = option(
        "What a part of the changed query takes over, if the schemas do not show it. An operator: 1=0. A value column: "
        "1.total=sum. A source: source.1=0. The stores and inputs of a job have names: orders=purchases. "
        "The new side comes first; `none` in place of the old side lets it start empty. "
        "Repeatable.",
        default=dict,
        metavar="NEW=OLD",
    )
    default: Mapping[str, str] = option(
        "The value of an added column in all present rows: 1.count=0. Write `null` for null. Default: what Spark's own "
        "aggregate holds before its first row; null for other columns. Repeatable.",
        default=dict,
        metavar="COLUMN=VALUE",
    )
    allow_dropped_state: bool = option(
        "Also drop state that the changed query does not have: an operator, a state variable, or a value column.",
        default=False,
    )
    partitions: int | None = option(
        "Number of partitions of the new checkpoint. Default: that of the blueprint; of a job: that of the old root.",
        default=None,
        least=1,
        most=names.MOST_PARTITIONS,
    )
    new_query: bool = option(
        "Give the changed query a new query id. Use it if the old query continues and both write to the same Delta table. "
        "Default: the id of the old query, so that a Delta sink skips no batch and repeats none. Not for a job: see claim.",
        default=False,
    )
    location: str | None = option(**LOCATION)
    for_spark: Spark | None = option(**FOR_SPARK)

    def goal(self, run: Run) -> Goal:
        """Return the goal."""
        return Goal(
            old=run.storage.url,
            blueprint=self.blueprint,
            maps=self.map,
            defaults=self.default,
            drops=self.allow_dropped_state,
            partitions=self.partitions,
            new_query=self.new_query,
            location=self.location,
        )

    def plan(self, run: Run) -> MigrationPlan:
        """Restores the stores of dropped operators in the scratch folder, to count their rows. Raises as `migration.gather`
        and `migration.counted`."""
        goal = self.goal(run)
        blueprint, destination = run.open_other(self.blueprint), run.open_other(self.destination)
        policy = policy_of(run.policies)
        facts = migration.gather(run.storage, blueprint, destination, scratch=run.scratch, policy=policy)
        matched = migration.match(facts, goal)
        dropped = tuple(migration.DroppedOperator(operator=one) for one in matched.dropped)
        if dropped and facts.old.facts.stopped.batch is not None and facts.half_done is None and not facts.completed:
            dropped = migration.counted(run.storage, facts.old.facts, matched.dropped, run.executor)
        return migration.plan(facts, goal, matched, dropped, run.storage, self.for_spark)

    def run_of_journal(self, run: Run) -> Run:
        return replace(run, storage=run.open_other(self.destination))

    def allowed(self, run: Run, plan: MigrationPlan) -> StatekeeperError | None:
        return None  # nothing in the root changes

    def no_rewrite_begun(self, run: Run) -> StatekeeperError | None:
        return guards.half_switched(run.storage)

    def unheld(self, run: Run, plan: MigrationPlan) -> Refusals:
        held = (guards.unheld(one, run.clock) for one in (run.storage, run.open_other(self.destination)))
        return guards.refusals(*held)

    @contextmanager
    def work(self, run: Run, plan: MigrationPlan, told: Callable[[Progress], None]) -> Iterator[Work[Progress]]:
        """Hold the lease of the destination, and record plan and outcome in its history."""
        destination = run.open_other(self.destination)
        with (
            # The commands of an error are for the destination: the old checkpoint has nothing to reverse.
            self.run_of_journal(run).naming_root(),
            run.lease_of(destination, self.name) as held,
            recorded(destination, self.name, run.id, self.record(plan), run.clock) as done,
        ):

            def tell(step: Progress) -> None:
                done.append(self.record_step(step))
                held.beat()
                told(step)

            yield Work(held.storage, tell, done, held)

    def record(self, plan: MigrationPlan) -> list[Json]:
        return [as_json.of_migration(plan)]

    def report(self, prepared: Prepared[MigrationPlan, Progress, Begun]) -> Report:
        """Report what each operator takes over, what is lost, and the stores before and after."""
        plan, made = prepared.plan, prepared.is_done
        place = prepared.run.open_other(self.destination).url
        lines = [*self.unfinished(plan), *(one.described for one in plan.operators), *_of_dropped(plan)]
        lines += [*plan.source_map.lines, *plan.notes]
        if not plan.refusals and plan.batch is not None:
            lines += [
                f"reads {plan.read_bytes:,} bytes and writes about as many; it needs about {plan.seconds:,.0f} s and at "
                f"most {plan.local_bytes:,} bytes of local disk",
                f"writes a new checkpoint of batch {plan.batch} to {place}; the old checkpoint and the blueprint do not "
                "change",
                _way_back(plan, place),
            ]
        done: tuple[str, ...] = (f"the migration to {place} is complete already: nothing to do",)
        if not plan.is_there:
            done = (f"migrated {when(plan.batch)} to {place}; {_to_start(plan, place)}", _way_back(plan, place))
        groups = Table(
            "groups",
            f"{when(plan.batch)}, to {migration.names_provider(plan)} with {counted(plan.partitions or 0, 'partition')}",
            ("operator", "store", "from operator", "partitions before", "after", "bytes read"),
            [
                (
                    str(group.operator),
                    group.name,
                    str(group.sources[0].store.operator) if group.sources else "none",
                    len(group.sources),
                    len(group.targets),
                    group.read_bytes,
                )
                for group in plan.groups
            ],
        )
        return Report(
            record={**as_json.of_migration(plan), "destination": place, **({"migrated": True} if made else {})},
            phase=self.phase(prepared, "migrated"),
            facts={"destination": place, "blueprint": self.blueprint},
            figures={
                "version": 0 if plan.batch is None else plan.batch + 1,
                "partitions_after": plan.partitions or 0,
                "stores": len(plan.targets),
                "dropped_operators": len(plan.dropped),
                "read_bytes": plan.read_bytes,
                "local_bytes": plan.local_bytes,
                "estimated_seconds": round(plan.seconds, 1),
            },
            tables=(groups,) if plan.groups else (),
            lines=tuple(lines),
            done=done,
        )


def _to_start(plan: MigrationPlan, place: str) -> str:
    """How the changed query continues."""
    if plan.binding is None:
        never = "Do not run the old query again while this checkpoint exists"
        one_id = ": the sink knows both by one query id, so rows of one of them would be lost"
        both = ", or both write to the sink" if plan.goal.new_query else one_id
        return f"start the changed query with this checkpoint location and the sink of the old query. {never}{both}"
    never = (
        "Do not run the old job again while this root exists: the sink knows both by one query id, so rows of one of them "
        f"would be lost. A new output or a new table needs one start with {_accepting(plan)}. The first batch takes the "
        "table of each other output as it is then: a RESTORE or overwrite since the newest batch of the old job is not "
        "recognized"
    )
    if plan.reads_files:
        return (
            "copy the checkpoint of the old job, which has the list of the files that the job has read: statekeeper clone "
            "CHECKPOINT NEW_FOLDER --confirm-stopped; then start the changed job with this root, the copy and the "
            f"sink of the old job. If it continues in the old checkpoint itself, the old job cannot go back. {never}"
        )
    return (
        f"make a checkpoint for the changed job: statekeeper claim {shlex.quote(place)} --checkpoint NEW_FOLDER --apply "
        f"--confirm-stopped; then start the job with this root, this checkpoint and the sink of the old job. {never}"
    )


def _accepting(plan: MigrationPlan) -> str:
    return f"DeltaSink(..., continue_at_batch={0 if plan.batch is None else plan.batch + 1})"


def _way_back(plan: MigrationPlan, place: str) -> str:
    """How the old query continues after the changed one has run, or has not."""
    old, what = shlex.quote(plan.goal.old), "query" if plan.binding is None else "job"
    start = (
        f"the way back: stop the changed {what} and delete {place}. Before its first batch, start the old {what} again"
    )
    rolled = f"{start}. Otherwise first roll the sink back to batch {plan.batch}"
    if plan.goal.new_query:
        return rolled
    following = 0 if plan.batch is None else plan.batch + 1
    rolled += (
        f", and give the old {what} a new query id: a Delta table knows batch {following} of the present id, also after "
        f"RESTORE, {'and would skip rows without an error' if plan.binding is None else 'so the job would stop'}."
    )
    if plan.binding is None:
        return (
            f"{rolled} Run: statekeeper clone {old} NEW_FOLDER --new-query --confirm-stopped, and start it from there"
        )
    then = f"start the old job once with this checkpoint and {_accepting(plan)}"
    if plan.reads_files:
        return (
            f"{rolled} Run: statekeeper clone CHECKPOINT NEW_FOLDER --new-query --confirm-stopped; statekeeper claim {old} "
            f"--checkpoint NEW_FOLDER --apply --confirm-stopped; and {then}"
        )
    return (
        f"{rolled} Run: statekeeper claim {old} --checkpoint NEW_FOLDER --query-id NEW_UUID --apply --confirm-stopped; and "
        f"{then}"
    )


def _of_dropped(plan: MigrationPlan) -> Iterator[str]:
    for one in plan.dropped:
        rows = "" if one.rows is None else f": {counted(one.rows, 'row')}"
        name = one.operator.name or "unnamed"
        yield f"the state of operator {one.operator.operator} ({name}) of the old query is dropped{rows}"
