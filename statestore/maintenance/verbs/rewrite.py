"""Plans, executes and reverses the rewrites of the state of a stopped query.

`Rewrite` is a rescale, a conversion, a load or a schema evolution, as its goal states. `Rollback` reverses an interrupted
rewrite of any kind, also a switchover or an edit; `Revert` reverses a completed edit, load or schema evolution.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.checkpoint.origin import Origin, origin_of
from statekeeper.statestore.checkpoint.rewrite_journal import Begun, Ending, RewriteJournal, RewriteKind
from statekeeper.statestore.format import file_sink, names
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies.savepoints.saved import read_saved
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.rewrites import engine, whole_stores
from statekeeper.statestore.maintenance.rewrites.engine import Machine, Plan, Progress
from statekeeper.statestore.maintenance.rewrites.evolution import read_schema_file
from statekeeper.statestore.maintenance.rewrites.kinds import STEPS
from statekeeper.statestore.maintenance.rewrites.whole_stores import FileSinkPlan, Goal, RewritePlan
from statekeeper.statestore.maintenance.rewrites.whole_stores import file_sink as file_sinks
from statekeeper.statestore.maintenance.verbs.as_json import rewrites as as_json
from statekeeper.statestore.maintenance.verbs.audit import policy_of
from statekeeper.statestore.maintenance.verbs.contract import CompletesRewrites, Prepared, Run, Verb, Work
from statekeeper.statestore.maintenance.verbs.options import FILE_SINK, FOR_SPARK, option
from statekeeper.statestore.maintenance.verbs.report import Report, Table, start_lines, when
from statekeeper.statestore.storage import Storage

P = TypeVar("P", bound=Plan)


class OfStoppedQuery(CompletesRewrites[P, Progress, Begun]):
    """A verb that rewrites the state of a stopped query, or completes an interrupted rewrite of its kind.

    noun, reverses   the rewrite with its article, and what --abort does, for the lines of a report
    """

    shows_refused_plans = True
    name = ""
    noun: ClassVar[str]
    reverses: ClassVar[str] = "reverses it"

    def run_of_journal(self, run: Run) -> Run:
        """Return the run on the root that has the journal of the rewrite."""
        return run

    def has_work(self, plan: P) -> bool:
        return not plan.is_there

    def refusals(self, run: Run, plan: P) -> Iterable[StatekeeperError]:
        return map(RefusedAsUnsafe, plan.refusals)

    def record_step(self, step: Progress) -> Json:
        return as_json.of_progress(step)

    def execute(self, run: Run, plan: P, work: Work[Progress]) -> Begun:
        """Raises as `engine.execute`."""
        return engine.execute(
            STEPS[plan.rewrite],
            work.storage,
            plan,
            work.tell,
            run=run.id,
            machine=_machine(run),
            still_held=work.lease.require,
            open_sink=_sinks(run, work),
            policy=policy_of(run.policies),
        )

    def phase(self, prepared: Prepared[P, Progress, Begun], done: str) -> str:
        """Return the phase of a report. `done`: that of an executed plan."""
        plan = prepared.plan
        if prepared.refusals:
            return "refused"
        return done if prepared.is_done or plan.is_there else "half done" if plan.half_done else "planned"

    def unfinished(self, plan: P) -> tuple[str, ...]:
        """Return the line of a report about an interrupted run."""
        line = f"{self.noun} is incomplete: --apply finishes it, --abort {self.reverses}"
        return () if plan.half_done is None else (line,)

    def run_id(self, prepared: Prepared[P, Progress, Begun]) -> str:
        """Return the run that `Revert` reverses: that of the journal, if the execution completed one."""
        half_done = prepared.plan.half_done
        return prepared.run.id if half_done is None else half_done.begun.run

    def way_back(self, prepared: Prepared[P, Progress, Begun]) -> str:
        """Return the command that reverses the executed plan."""
        url, run = prepared.run.storage.url, self.run_id(prepared)
        return f"to undo this run: statekeeper {self.name} {url} --undo {run} --confirm-stopped"


def _sinks(run: Run, work: Work[Progress]) -> Callable[[str], Storage]:
    """Return how to open the output folder of a file sink under the lease."""
    return lambda url: work.lease.guarded(run.open_other(url))


def _machine(run: Run) -> Machine:
    """Return what one execution may use, with the clock and the ids of the process."""
    return Machine(
        scratch=run.scratch,
        clock=run.by.clock,
        ids=run.by.ids,
        workers=run.workers,
        memory_bytes=run.memory_bytes,
        process_bytes=run.process_bytes,
        cluster=run.cluster,
    )


class Rewrite(OfStoppedQuery[RewritePlan]):
    """Rewrite all stores.

    `for_spark`: the release that continues, if the checkpoint does not show it. `file_sink`: the output folder, if the
    query writes files with Spark's file sink; not needed to complete an interrupted rewrite.
    """

    for_spark: Spark | None
    file_sink: str | None

    @abstractmethod
    def goal(self, run: Run) -> Goal:
        """Return the goal. May read."""

    @abstractmethod
    def report(self, prepared: Prepared[RewritePlan, Progress, Begun]) -> Report: ...

    def report_of(
        self,
        prepared: Prepared[RewritePlan, Progress, Begun],
        *,
        title: str,
        after: Sequence[str] = (),
        done: Sequence[str] = (),
        is_there: str = "",
        with_run: bool = False,
    ) -> Report:
        """Report the groups of stores before and after.

        `title`: the end of the title; `after`: lines about the time afterwards; `done`: those about the executed plan;
        `is_there`: that the goal is reached; `with_run`: `Revert` reverses the run.
        """
        plan, sink = prepared.plan, prepared.plan.file_sink
        made: Json = {"rewritten": True, **({"run": self.run_id(prepared)} if with_run else {})}
        return Report(
            record={**as_json.of_rewrite_plan(plan), **(made if prepared.is_done else {})},
            phase=self.phase(prepared, "rewritten"),
            facts={
                "rewrite": plan.rewrite.value,
                "file_sink": "none" if sink is None else f"{sink.entry.url}/{sink.entry.path}",
                **({"run": self.run_id(prepared)} if with_run and prepared.is_done else {}),
            },
            figures={
                "version": 0 if plan.batch is None else plan.batch + 1,
                "partitions_before": max((len(group.sources) for group in plan.groups), default=plan.partitions or 0),
                "partitions_after": plan.partitions or 0,
                "stores": len(plan.targets),
                "read_bytes": plan.read_bytes,
                "local_bytes": plan.local_bytes,
                "estimated_seconds": round(plan.seconds, 1),
            },
            tables=(
                Table(
                    "groups",
                    f"{when(plan.batch)}, {title}",
                    ("operator", "store", "partitions now", "after", "bytes read"),
                    [
                        (str(group.operator), group.name, len(group.sources), len(group.targets), group.read_bytes)
                        for group in plan.groups
                    ],
                ),
            )
            if plan.groups and plan.batch is not None
            else (),
            lines=(
                *self.unfinished(plan),
                f"reads {plan.read_bytes:,} bytes and writes about as many; it needs about {plan.seconds:,.0f} s and at "
                f"most {plan.local_bytes:,} bytes of local disk",
                _of_commit(plan),
                *_of_file_sink(plan),
                *after,
            )
            if plan.groups and plan.batch is not None
            else (),
            done=(f"{is_there}: nothing to do",) if plan.is_there else tuple(done),
        )

    def plan(self, run: Run) -> RewritePlan:
        """Raises as `whole_stores.gather` and `file_sink.plan`; `RefusedAsUnsafe` if the interrupted rewrite has another
        file sink."""
        goal = self.goal(run)
        policy, of_load = policy_of(run.policies), isinstance(goal, whole_stores.Load)
        facts = whole_stores.gather(run.storage, scratch=run.scratch, policy=policy, of_load=of_load)
        planned = whole_stores.plan(facts, goal, self.for_spark)
        return replace(planned, file_sink=self._plan_sink(run, planned))

    def _plan_sink(self, run: Run, planned: RewritePlan) -> FileSinkPlan | None:
        """Plan the entry in the log of the file sink; None without a sink, and for a plan that must not start."""
        url = self.file_sink
        if url is not None and planned.origin is Origin.OWN:
            raise RefusedAsUnsafe(
                "a job on `pipelines` has no file sink of Spark, and a rewrite of its state root appends no batch; nothing "
                "was changed",
                path=url,
                hint="run this command again without --file-sink",
            )
        if planned.half_done is not None:
            begun = planned.half_done.begun
            expected = None if begun.file_sink is None else begun.file_sink.url
            if url is not None and run.open_other(url).url != expected:
                option = "without --file-sink" if expected is None else f"with --file-sink {expected}"
                raise RefusedAsUnsafe(
                    f"the interrupted {begun.described} was started {option}; nothing was changed",
                    path=url,
                    hint=f"to finish it, run: {begun.finishing}; to reverse it, run: {begun.reversing}",
                )
            url = expected
        if url is None or planned.batch is None or planned.is_there or planned.refusals:
            return None
        begun_entry = None if planned.half_done is None else planned.half_done.begun.file_sink
        return file_sinks.plan(run.open_other(url), planned.batch + 1, begun=begun_entry)

    def record(self, plan: RewritePlan) -> list[Json]:
        return [as_json.of_rewrite_plan(plan)]


@dataclass(frozen=True, kw_only=True)
class Rescale(Rewrite):
    """Change the number of partitions."""

    name = "rescale"
    noun = "a rescale"
    partitions: int = option(
        "Number of partitions of each stateful operator after the rescale. Exception: the operators of limit() and of an "
        "aggregation without grouping keys keep their single partition.",
        least=1,
        most=names.MOST_PARTITIONS,
        launch=0,
    )
    file_sink: str | None = option(**FILE_SINK)
    for_spark: Spark | None = option(**FOR_SPARK)

    def goal(self, run: Run) -> Goal:
        return whole_stores.Rescale(self.partitions)

    def report(self, prepared: Prepared[RewritePlan, Progress, Begun]) -> Report:
        plan, after = prepared.plan, []
        if plan.groups:
            before, back = len(plan.groups[0].sources), "afterwards, to return to"
            again = f"statekeeper rescale ROOT --partitions {before}"
            after = [f"{back} {before} partitions and keep later batches, run: {again}"]
            if plan.origin is Origin.NATIVE:
                after.append(f"{back} batch {plan.batch}, run: statekeeper rewind ROOT --to-batch {plan.batch}")
        return self.report_of(
            prepared,
            title=f"to {plan.partitions} partitions",
            after=after,
            done=(f"rescaled to {plan.partitions} partitions; start the query as before",),
            is_there=f"the checkpoint already has {plan.partitions} partitions",
        )


@dataclass(frozen=True, kw_only=True)
class Convert(Rewrite):
    """Move the state to the other state store provider."""

    name = "convert"
    noun = "a conversion"
    to: Provider = option(
        "New provider of the checkpoint. hdfs is Spark's default provider, which keeps the state in memory.",
        choices={provider.option: provider for provider in Provider},
        launch=Provider.ROCKSDB,
    )
    structure: Structure = option(
        "Structure of the converted checkpoint. hdfs supports only v1.",
        default=Structure.V1,
        choices={structure.value: structure for structure in Structure},
    )
    file_sink: str | None = option(**FILE_SINK)
    for_spark: Spark | None = option(**FOR_SPARK)

    def goal(self, run: Run) -> Goal:
        return whole_stores.Convert(self.to, self.structure)

    def report(self, prepared: Prepared[RewritePlan, Progress, Begun]) -> Report:
        plan = prepared.plan
        start: tuple[str, ...] = ("start the query as before",)
        if plan.provider is not Provider.HDFS_BACKED:
            start = start_lines(plan.structure)
        provider, structure = plan.provider.value, plan.structure.value
        return self.report_of(
            prepared,
            title=f"to {provider} in structure {structure}",
            after=(f"afterwards, {start[0]}", *start[1:]),
            done=(f"converted to {provider}", *start),
            is_there=f"the checkpoint already has {provider} in structure {structure}",
        )


@dataclass(frozen=True, kw_only=True)
class Load(Rewrite):
    """Replace the state by the rows of a savepoint. `Revert` of the run reverses it."""

    name = "load"
    noun = "a load"
    savepoint: str = option("The folder that statekeeper savepoint --rows wrote.", flag="", launch="")
    replace_state: bool = option(
        "Also load into a checkpoint whose stores have rows. All its rows are replaced.", default=False
    )
    file_sink: str | None = option(**FILE_SINK)
    for_spark: Spark | None = option(**FOR_SPARK)

    def goal(self, run: Run) -> Goal:
        source = run.open_other(self.savepoint)
        return whole_stores.Load(read_saved(source), source, self.replace_state)

    def report(self, prepared: Prepared[RewritePlan, Progress, Begun]) -> Report:
        plan = prepared.plan
        assert plan.load is not None
        saved = plan.load.saved
        done = (
            f"loaded {plan.rows:,} rows after batch {plan.batch}; start the query as before",
            self.way_back(prepared),
        )
        watermark = f"sets the watermark to that of the savepoint: {saved.watermark_ms} ms"
        found = self.report_of(prepared, title="", done=done, with_run=True)
        record = {name: value for name, value in found.record.items() if name != "rewritten"}
        run = {"loaded": True, "run": self.run_id(prepared)} if prepared.is_done else {}
        groups = Table(
            "groups",
            f"{when(plan.batch)}, from batch {saved.batch:,} of the savepoint",
            ("operator", "store", "partitions saved", "here", "rows", "bytes read"),
            [
                (
                    str(group.operator),
                    group.name,
                    group.incoming[0].table.partitions if group.incoming else "-",
                    len(group.targets),
                    group.incoming_rows,
                    group.read_bytes,
                )
                for group in plan.groups
            ],
        )
        lines = (
            *self.unfinished(plan),
            f"loads {plan.rows:,} rows from {plan.read_bytes:,} bytes; it needs about {plan.seconds:,.1f} s and at most "
            f"{plan.local_bytes:,} bytes of local disk",
            _of_commit(plan, binding=False),
            *(() if plan.origin is Origin.OWN else (watermark,)),
            *_of_file_sink(plan),
        )
        return replace(
            found,
            record={**record, **run},
            facts={
                **found.facts,
                "savepoint": saved.url,
                "savepoint_batch": saved.batch,
                "watermark_ms": saved.watermark_ms,
                "rows": plan.rows,
            },
            tables=(groups,) if found.tables else (),
            lines=() if plan.refusals else lines,
        )


@dataclass(frozen=True, kw_only=True)
class Evolve(Rewrite):
    """Change the value columns of a state root, as a schema file states. `Revert` of the run reverses it."""

    name = "evolve"
    noun = "a schema evolution"
    file_sink = None
    schema_file: str = option(
        "The changes of value columns by store: a TOML or JSON file.", flag="--schema", metavar="FILE", launch=""
    )
    for_spark: Spark | None = option(**FOR_SPARK)

    def goal(self, run: Run) -> Goal:
        return read_schema_file(self.schema_file)

    def report(self, prepared: Prepared[RewritePlan, Progress, Begun]) -> Report:
        """Of a plan: also the first rows before and after, for which it restores each store below `run.scratch`."""
        plan, run = prepared.plan, prepared.run
        done = (
            f"changed the columns of the state after batch {plan.batch}; start the job with the new columns",
            self.way_back(prepared),
        )
        found = self.report_of(prepared, title="", done=done, with_run=True)
        if prepared.is_done:
            return found
        shown = whole_stores.preview(
            run.storage, plan, scratch=run.scratch, clock=run.clock, ids=run.by.ids, workers=run.workers
        )
        columns = [f"{name}: {change.after_columns}" for name, change in plan.schemas.items()]
        tables = []
        if plan.groups and plan.batch is not None:
            stores = [
                (
                    name,
                    len(group.targets),
                    "-" if shown is None else sum(shown.rows[store] for store in group.targets),
                    group.read_bytes,
                )
                for name, group in zip(plan.schemas, plan.groups, strict=True)
            ]
            tables.append(Table("groups", when(plan.batch), ("store", "partitions", "rows", "bytes read"), stores))
        if shown is not None:
            title = f"the first rows ({len(shown.first):,} of {shown.total:,})"
            first = [(store, row.key, row.before, row.after) for store, row in shown.first]
            tables.append(Table("rows", title, ("store", "key", "before", "after"), first))
        lines = [f"store {name}, columns afterwards: {change.after_columns}" for name, change in plan.schemas.items()]
        if not plan.refusals:
            lines += [
                *self.unfinished(plan),
                f"reads {plan.read_bytes:,} bytes and writes about as many; it needs about {plan.seconds:,.0f} s and at "
                f"most {plan.local_bytes:,} bytes of local disk",
                f"rewrites the newest commit, of batch {plan.batch}, and the state schema: it appends no batch",
            ]
        return replace(
            found,
            record=found.record if shown is None else {**found.record, **as_json.of_preview(shown)},
            facts={
                **found.facts,
                "columns": "; ".join(columns) or "none",
                "changed_rows": 0 if shown is None else shown.total,
            },
            tables=tuple(tables),
            lines=tuple(lines),
        )


def _of_commit(plan: RewritePlan, *, binding: bool = True) -> str:
    assert plan.batch is not None
    if plan.origin is Origin.OWN:
        also = " and the binding of the root" if binding else ""
        return f"rewrites the newest commit, of batch {plan.batch}{',' if binding else ''}{also}: it appends no batch"
    return f"appends batch {plan.batch + 1}, which has no rows: a sink never receives this batch"


def _of_file_sink(plan: RewritePlan) -> list[str]:
    """Return the lines of a plan about the file sink of the query."""
    if plan.file_sink is None:
        if plan.origin is Origin.OWN:
            return []  # no batch is appended
        return [
            "if the query writes files with Spark's file sink (parquet, json, csv, orc or text, with a path), add "
            "--file-sink URL: otherwise its log lacks this batch, and the sink and all readers of the output fail"
        ]
    entry, read_bytes = plan.file_sink.entry, plan.file_sink.read_bytes
    lines = [f"adds {entry.path} to the file sink {entry.url}; reads {read_bytes:,} bytes for it"]
    if (interval := plan.file_sink.interval) is not None and interval < file_sink.DEFAULT_INTERVAL:
        lines.append(
            f"from now on, Spark compacts the log of this sink after every {interval} batches, because this entry is its "
            f"first compaction. To keep the value of {file_sink.INTERVAL_CONF} (default {file_sink.DEFAULT_INTERVAL}), "
            "first run the query until it writes a compacted entry"
        )
    return lines


@dataclass(frozen=True)
class Rollback(CompletesRewrites[RewriteJournal, Progress, Begun]):
    """Reverse an interrupted rewrite of this kind."""

    kind: RewriteKind

    @property
    def name(self) -> str:
        return self.kind.value

    def plan(self, run: Run) -> RewriteJournal:
        """Read the journal. Raises `RefusedAsUnsafe` if no rewrite is half done, `HalfSwitched` if one of another kind."""
        journal = rewrite_journal.open_journal(run.storage)
        if journal is None:
            problem = f"no {self.kind.noun} is interrupted"
            raise RefusedAsUnsafe(problem, path=run.storage.url, hint=_way_back(run.storage, self.kind))
        if journal.begun.rewrite is not self.kind:
            rewrite_journal.require_none(run.storage)
        return journal

    def plan_again(self, run: Run, first: RewriteJournal) -> RewriteJournal:
        return first

    def is_confirmed(self, run: Run, plan: RewriteJournal) -> bool:
        is_own = self.kind is RewriteKind.SWITCH and origin_of(run.storage) is Origin.OWN
        return run.stopped or is_own

    def record(self, plan: RewriteJournal) -> list[Json]:
        return [{"abort": plan.begun.number}]

    def execute(self, run: Run, plan: RewriteJournal, work: Work[Progress]) -> Begun:
        """Raises as `engine.rollback`; `RefusedAsUnsafe` if the rewrite has ended."""
        begun = plan.begun
        # Race: another maintainer completes it while this run waits for quiet; the journal read before is old.
        now = rewrite_journal.open_journal(run.storage)
        if now is None or now.begun.number != begun.number:
            raise RefusedAsUnsafe(
                f"another process has ended the {begun.described} in the meantime; nothing was changed",
                path=names.switchover(begun.number, "ended"),
                hint=_way_back(run.storage, begun.rewrite),
            )
        lease, sinks = work.lease, _sinks(run, work)
        engine.rollback(STEPS[begun.rewrite], work.storage, now, work.tell, still_held=lease.require, open_sink=sinks)
        work.done.append({"aborted": begun.number})
        return begun

    def report(self, prepared: Prepared[RewriteJournal, Progress, Begun]) -> Report:
        return _reversed(prepared.plan.begun, "aborted")


@dataclass(frozen=True)
class Revert(Verb[str, Progress, Begun]):
    """Reverse the completed edit, load or schema evolution of the run `undone`. If this is interrupted, the rewrite is half
    done again."""

    kind: RewriteKind
    undone: str

    @property
    def name(self) -> str:
        return self.kind.value

    def plan(self, run: Run) -> str:
        return self.undone

    def record(self, plan: str) -> list[Json]:
        return [{"undo": plan}]

    def execute(self, run: Run, plan: str, work: Work[Progress]) -> Begun:
        """Raises as `engine.revert`."""
        begun = engine.revert(
            STEPS[self.kind],
            work.storage,
            plan,
            self.kind,
            work.tell,
            still_held=work.lease.require,
            open_sink=_sinks(run, work),
        )
        work.done.append({"undone": begun.number})
        return begun

    def report(self, prepared: Prepared[str, Progress, Begun]) -> Report:
        assert prepared.made is not None
        return _reversed(prepared.made, "undone")


def _way_back(storage: Storage, kind: RewriteKind) -> str:
    """The command that reverses the newest rewrite, if it is a completed one of this kind."""
    newest = rewrite_journal.newest_journal(storage)
    if newest is None or rewrite_journal.ending(storage, newest.begun) is not Ending.SWITCHED:
        return "there is nothing to reverse: the checkpoint has no completed rewrite, or the newest one is reversed already"
    begun = newest.begun
    if begun.rewrite is not kind:
        return f"there is nothing to reverse: the newest rewrite of the checkpoint is the {begun.described}"
    match kind:
        case RewriteKind.SWITCH:
            command = f"statekeeper switch ROOT --to {begun.to.other.value}"
        case RewriteKind.RESCALE:
            command = f"statekeeper rewind ROOT --to-batch {begun.batch}"
        case RewriteKind.CONVERT:
            former = Provider.HDFS_BACKED if begun.provider is Provider.ROCKSDB else Provider.ROCKSDB
            command = f"statekeeper convert ROOT --to {former.option}"
        case RewriteKind.EDIT | RewriteKind.LOAD | RewriteKind.EVOLVE:
            command = f"statekeeper {kind.value} ROOT --undo {begun.run} --confirm-stopped"
        case RewriteKind.MIGRATE:
            return (
                "the migration is complete, and the checkpoint is one of its own: to go back, start the old query again"
            )
    return f"to reverse the {begun.described}, which is complete, run: {command}"


def _reversed(begun: Begun, phase: str) -> Report:
    """Report the rewrite that was reversed, and what the checkpoint has again."""
    done = {
        RewriteKind.SWITCH: f"rolled back: the checkpoint has structure {begun.to.other.value} again",
        RewriteKind.RESCALE: f"reversed: the checkpoint is as it was after batch {begun.batch}",
        RewriteKind.CONVERT: f"reversed: the checkpoint is as it was after batch {begun.batch}",
        RewriteKind.EDIT: f"reversed: the state is as it was after batch {begun.batch}",
        RewriteKind.LOAD: f"reversed: the state is as it was after batch {begun.batch}",
        RewriteKind.EVOLVE: f"reversed: the state and its columns are as they were after batch {begun.batch}",
        RewriteKind.MIGRATE: "reversed: what the migration wrote is deleted, and the location is empty again",
    }
    of_switch = {"to": begun.to.value, "structure": begun.to.other.value}
    return Report(
        record={phase: begun.number},
        phase=phase,
        facts=of_switch if begun.rewrite is RewriteKind.SWITCH else {"rewrite": begun.rewrite.value},
        figures={"version": begun.batch + 1, "stores": len(begun.stores)},
        done=(done[begun.rewrite],),
    )
