"""Plans and makes drills: restores into scratch folders, timed and compared."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from msgspec import structs

from statekeeper.statestore.base.enum_codes import code
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import redacted
from statekeeper.statestore.checkpoint import catalog, rewrite_journal
from statekeeper.statestore.contents.rows import Contents, contents_at
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import EMPTY, StorePath
from statekeeper.statestore.maintenance.copies import clones
from statekeeper.statestore.maintenance.executors import LocalExecutor
from statekeeper.statestore.maintenance.records import drills, holds
from statekeeper.statestore.maintenance.records.drills import Measured, StoreDrill
from statekeeper.statestore.maintenance.records.history import (
    DrilledStore,
    FailedDrill,
    Json,
    PlannedDrill,
    recorded,
)
from statekeeper.statestore.maintenance.records.holds import Hold
from statekeeper.statestore.maintenance.upkeep import drill
from statekeeper.statestore.maintenance.upkeep.drill import (
    Against,
    Comparison,
    Drilled,
    DrillFacts,
    DrillPlan,
    DrillStore,
    Found,
    Verdict,
    sparks,
)
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.config import Mode
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Verb, Work
from statekeeper.statestore.maintenance.verbs.guards import Refusals
from statekeeper.statestore.maintenance.verbs.options import option
from statekeeper.statestore.maintenance.verbs.report import Figure, Report, Table, as_objects, when
from statekeeper.statestore.storage import Storage, open_storage
from statekeeper.statestore.store.engine.scratch import work_folder

Ended: TypeAlias = tuple[DrillStore, Drilled | StatekeeperError]
"""A store of the sample and its result."""

_WEEK_SECONDS = 7 * 86_400.0

_RECORDED_SECONDS = 60.0
"""The results of a killed drill are lost for this long at most."""

_COMPARE_NOW = ". To compare now, run: statekeeper drill ROOT --against-spark"

_MOST_FINDINGS = 50
"""Findings in the lines of a report."""


@dataclass(frozen=True, kw_only=True)
class PlannedRestores:
    """A plan of a drill, its facts, and the mode of the root."""

    mode: Mode
    gathered: DrillFacts
    plan: DrillPlan

    @property
    def oldest(self) -> int:
        """The oldest batch whose files the drill reads."""
        bases = [base.version for one in self.plan.drill for base in (one.facts.base, one.facts.older) if base]
        versions = [one.last.version for one in self.plan.drill if one.last is not None]
        return max(0, min([*bases, *versions], default=1) - 1)


@dataclass(frozen=True, kw_only=True)
class Drill(Verb[PlannedRestores, Ended, Found]):
    """Restore stores into scratch folders, time it, and compare the rows.

    The root is only read, also while its query runs. Unless its mode is `observe`, the results are recorded below
    `_statekeeper/`: the next sample, comparison and prediction use them. While the drill runs, a hold keeps retention from
    deleting what it reads.
    """

    name = "drill"
    stores: tuple[str, ...] = option(
        "Restore only this store, for example 0/3 (operator 0, partition 3). Repeatable. Default: a sample.",
        default=(),
        metavar="STORE",
    )
    sample: int | None = option(
        "Number of stores to restore. Half of them are those that drills restored the longest time ago, the others those "
        "with the longest predicted restore. Default: so many that weekly drills restore each store within a quarter.",
        default=None,
        least=1,
    )
    against_spark: bool = option(
        "Compare the rows also with those that Spark's own reader shows, in a local session of PySpark. Needs PySpark 4.0 "
        "or later and Java, and no cluster. Of a root that is not on a local disk, Spark reads a copy of the sample in "
        "--scratch.",
        default=False,
    )

    def plan(self, run: Run) -> PlannedRestores:
        """Raises as `drill.gather`, and `RefusedAsUnsafe` if the query is not stopped."""
        if run.stopped:
            run.require_stopped(confirmed=True)
        gathered = drill.gather(run.storage, stopped=run.stopped)
        mode = run.policies.mode_for(gathered.gathered.origin)
        turn = int(run.clock.now_seconds() / _WEEK_SECONDS) if mode is Mode.OBSERVE and not gathered.last else None
        planned = drill.plan(gathered, stores=self.stores, sample=self.sample, turn=turn)
        return PlannedRestores(mode=mode, gathered=gathered, plan=planned)

    def has_work(self, plan: PlannedRestores) -> bool:
        return bool(plan.plan.drill or plan.plan.refusals)

    def refusals(self, run: Run, plan: PlannedRestores) -> Iterable[StatekeeperError]:
        spark = sparks.refusal(is_on_cluster=run.cluster is not None) if self.against_spark else None
        return guards.refusals(*plan.plan.refusals, spark)

    def allowed(self, run: Run, plan: PlannedRestores) -> StatekeeperError | None:
        return None

    def unheld(self, run: Run, plan: PlannedRestores) -> Refusals:
        return guards.reads(run.storage, plan.mode, run.clock)

    def needs_stopped(self, plan: PlannedRestores) -> bool:
        return False

    def record(self, plan: PlannedRestores) -> Iterable[Json]:
        for one in plan.plan.drill:
            yield PlannedDrill(store=one.store, version=one.version, reason=code(one.reason)).encode()

    def record_step(self, step: Ended) -> Json:
        action, outcome = step
        if isinstance(outcome, StatekeeperError):
            return FailedDrill(store=action.store, code=outcome.code, error=redacted(str(outcome))).encode()
        return _line(outcome).encode()

    @contextmanager
    def work(self, run: Run, plan: PlannedRestores, told: Callable[[Ended], None]) -> Iterator[Work[Ended]]:
        """Hold the batches that the drill reads, and record plan and outcome. In mode `observe`, nothing is written."""
        rewrite_journal.require_none(run.storage)
        if plan.mode is Mode.OBSERVE:
            yield Work(run.storage, told)
            return
        hold, by = Hold(batch=plan.oldest, holder=run.by.holder, verb=self.name), run.by
        with ExitStack() as stack:
            stack.enter_context(
                holds.held(run.storage, hold, run=run.id, clock=by.clock, renew_seconds=by.beat_seconds)
            )
            done = stack.enter_context(recorded(run.storage, self.name, run.id, self.record(plan), run.clock))

            def tell(step: Ended) -> None:
                done.append(self.record_step(step))
                told(step)

            yield Work(run.storage, tell, done)

    def execute(self, run: Run, plan: PlannedRestores, work: Work[Ended]) -> Found:
        """Restore the stores of the sample. Raises `StorageError`."""
        facts = plan.gathered.gathered
        contents = contents_at(work.storage, any_encoding=True)
        outcomes: dict[StorePath, Ended] = {}
        record = _Record(run=run, storage=work.storage, plan=plan)

        def ended(action: DrillStore, outcome: Drilled | StatekeeperError) -> None:
            if isinstance(outcome, StatekeeperError):
                outcome.name_root(run.pasteable)
            outcomes[action.store] = (action, outcome)
            record.add(outcome)
            work.tell((action, outcome))

        with record.kept():
            drill.drill_all(
                drill.DrillEach(storage=work.storage, conf=facts.conf, contents=contents, is_shown=self.against_spark),
                plan.plan.drill,
                ended,
                executor=run.executor,
                again=lambda one: drill.again(work.storage, one, plan.gathered, stopped=run.stopped),
            )
        if self.against_spark:
            # A session of Spark may fail or be interrupted: the restores are on record before.
            with record.kept():
                outcomes = self._with_spark(run, work, plan, contents, outcomes, record)
        in_order = [outcomes[one.store] for one in plan.plan.drill if one.store in outcomes]
        return Found(
            drilled=tuple(outcome for _, outcome in in_order if isinstance(outcome, Drilled)),
            failed={one.store: outcome for one, outcome in in_order if isinstance(outcome, StatekeeperError)},
        )

    def _with_spark(
        self,
        run: Run,
        work: Work[Ended],
        plan: PlannedRestores,
        contents: Contents | None,
        outcomes: dict[StorePath, Ended],
        record: _Record,
    ) -> dict[StorePath, Ended]:
        """Add the comparisons with Spark's reader, and tell these results again."""
        restored = [one for _, one in outcomes.values() if isinstance(one, Drilled) and one.digest]
        if contents is None or not restored:
            return outcomes
        by_spark = sparks.compare(
            contents,
            [(one.action, one.shown) for one in restored],
            catalog.structure_at(work.storage, contents.batch),
            at=lambda batch, stores: _for_spark(run, work.storage, batch, stores),
            is_copy=not _is_local(work.storage),
        )
        found: dict[StorePath, Ended] = {}
        for store, (action, outcome) in outcomes.items():
            if isinstance(outcome, Drilled) and store in by_spark:
                outcome = replace(outcome, comparisons=(*outcome.comparisons, by_spark[store]))
                record.add(outcome)
                work.tell((action, outcome))
            found[store] = (action, outcome)
        return found

    def report(self, prepared: Prepared[PlannedRestores, Ended, Found]) -> Report:
        """Report the sample, or for each store of it the result, and the predicted and the measured seconds."""
        plan, made, facts = prepared.plan.plan, prepared.made, prepared.plan.gathered.gathered
        predicted = plan.predicted_seconds
        sample = f"{counted(len(plan.drill), 'store')} of {plan.stores:,}"
        if plan.batch is None or facts.stateless is not None:
            nothing = facts.stateless.value if facts.stateless is not None else "no batch is committed"
            return Report(
                record={**_record(plan, None, facts.measured), "refusals": as_objects(prepared.refusals)},
                phase="complete",
                lines=(f"nothing to restore: {nothing}",),
                done=(f"nothing to restore: {nothing}",),
            )
        rows = [
            (
                str(one.store),
                one.version.version - 1,
                f"{one.facts.predicted_seconds:.3f}",
                one.reason.value,
                " and ".join(against.value for against in one.compares) or f"nothing: {one.not_compared}",
            )
            for one in plan.drill
        ]
        title = f"{when(plan.batch)}: restore {sample}; predicted {predicted:,.2f} s"
        figures: dict[str, Figure] = {
            "version": plan.batch + 1,
            "stores": plan.stores,
            "sampled_stores": len(plan.drill),
            "predicted_seconds": round(predicted, 3),
        }
        made_tables: tuple[Table, ...] = ()
        done: tuple[str, ...] = ()
        if made is not None:
            figures |= {
                "restored_stores": len(made.drilled) - len(made.of(Verdict.LOST)),
                "equal_stores": len(made.of(Verdict.SAME)),
                "not_compared_stores": len(made.of(Verdict.NOT_COMPARED)),
                "findings": len(made.findings),
                "failed_stores": len(made.failed),
                "measured_seconds": round(made.seconds, 3),
                "rows": sum(one.rows for one in made.drilled),
            }
            made_tables = (_results(made, f"{when(plan.batch)}: {_verdict(plan, made)}"),)
            done = tuple(_done_lines(prepared.plan, made, prepared.run, is_with_spark=self.against_spark))
        return Report(
            record={**_record(plan, made, facts.measured), "refusals": as_objects(prepared.refusals)},
            phase=prepared.phase("restored"),
            facts={} if made is None else {"result": _verdict(plan, made)},
            figures=figures,
            tables=(Table("sample", title, ("store", "batch", "predicted s", "why", "compared with"), rows),),
            lines=_coverage(plan),
            made=made_tables,
            done=done,
        )


def _is_local(storage: Storage) -> bool:
    return storage.url.startswith(sparks.FILE)


@contextmanager
def _for_spark(run: Run, storage: Storage, batch: int, stores: Collection[StorePath]) -> Iterator[Storage]:
    """A root on a local disk that has these stores at a batch: the root itself, or a copy.

    A copy needs no settings of Hadoop and no connector for the storage of the root. Raises as `clones.copy_stores`.
    """
    if _is_local(storage):
        yield storage
        return
    with work_folder(run.scratch, "drill") as folder:
        copy = open_storage(str(folder / "checkpoint"))
        executor = LocalExecutor(clock=run.clock, ids=run.by.ids, scratch=folder, workers=clones.AT_ONCE)
        clones.copy_stores(storage, copy, batch, stores, executor=executor, scratch=folder)
        # Spark requires a folder for each partition of an operator. Its tasks read only those of the sample.
        for operator in {store.operator for store in stores}:
            last = max(store.partition for store in stores if store.operator == operator)
            for partition in range(last + 1):
                (folder / "checkpoint" / names.STATE / str(operator) / str(partition)).mkdir(
                    parents=True, exist_ok=True
                )
        yield copy


def _workers(planned: PlannedRestores, run: Run) -> int:
    """The number of stores that are restored at the same time. On a cluster, other tasks run on the same hosts."""
    most = run.workers if run.cluster is None else max(2, run.workers)
    return max(1, min(most, len(planned.plan.drill)))


def _verdict(plan: DrillPlan, made: Found) -> str:
    """Answer in one sentence whether the stores restore."""
    same, lost, of = len(made.of(Verdict.SAME)), len(made.of(Verdict.LOST)), len(plan.drill)
    parts = []
    if lost:
        parts.append(f"{counted(lost, 'store')} of {of:,} cannot be restored")
    if differing := len(made.of(Verdict.DIFFERS)):
        parts.append(f"{counted(differing, 'store')} restored with other rows")
    if older := len(made.of(Verdict.OLDER_BASE)):
        parts.append(f"the newest snapshot of {counted(older, 'store')} is unusable")
    if made.failed:
        parts.append(f"{counted(len(made.failed), 'store')} could not be examined")
    without_spark = sum(bool(one.compared) for one in made.of(Verdict.NOT_COMPARED))
    if unknown := len(made.of(Verdict.NOT_COMPARED)) - without_spark:
        parts.append(f"{counted(unknown, 'store')} restored, rows not compared")
    if without_spark:
        parts.append(
            f"{counted(without_spark, 'store')} restored with equal rows, not completely compared with Spark's reader"
        )
    if same:
        parts.append(f"{counted(same, 'store')} restored with equal rows")
    return "; ".join(parts)


def _results(made: Found, title: str) -> Table:
    rows = [
        (
            str(one.action.store),
            one.action.version.version - 1,
            f"{one.action.facts.predicted_seconds:.3f}",
            f"{one.seconds:.3f}" if one.digest else "-",
            one.explained,
        )
        for one in made.drilled
    ]
    return Table("results", title, ("store", "batch", "predicted s", "measured s", "result"), rows)


def _coverage(plan: DrillPlan) -> tuple[str, ...]:
    """Say which stores are not in the sample."""
    left = plan.stores - len(plan.drill)
    if not left:
        return ()
    when_all = "" if plan.rounds is None else f"; {counted(plan.rounds, 'drill')} of this size restore each store"
    return (f"{counted(left, 'store')} not restored in this drill{when_all}",)


def _done_lines(planned: PlannedRestores, made: Found, run: Run, *, is_with_spark: bool) -> Iterator[str]:
    predicted = sum(one.action.facts.predicted_seconds for one in made.drilled if one.digest)
    yield f"restore: predicted {predicted:,.2f} s, measured {made.seconds:,.2f} s, one store after another"
    if run.cluster is not None:
        yield (
            "the stores were restored on the cluster, where other tasks ran on the same hosts: predictions do not use "
            "these seconds. To measure, run drill without --executor spark"
        )
    elif (workers := _workers(planned, run)) > 1:
        yield (
            f"{workers:,} stores were restored at the same time, which makes each of them slower: predictions do not use "
            "these seconds. To measure, run drill with --workers 1"
        )
    for one in list(made.findings)[:_MOST_FINDINGS]:
        yield f"{one.action.store}: {one.explained}. {_next_step(one)}"
    yield from (f"{store}: not examined: {error}" for store, error in list(made.failed.items())[:_MOST_FINDINGS])
    unknown = [one for one in made.of(Verdict.NOT_COMPARED) if not one.compared]
    if unknown and planned.mode is not Mode.OBSERVE:
        yield (
            f"the rows of {counted(len(unknown), 'store')} are on record now: the next drill finds a change of them, but "
            "without a change they are not proved. For a second load, take a snapshot later: statekeeper "
            f"snapshot ROOT --all{'' if is_with_spark else _COMPARE_NOW}"
        )
    if planned.mode is Mode.OBSERVE:
        yield (
            "nothing is recorded, because the mode of this root is observe: the next drill has no rows to compare with. To "
            "record drills, add --mode snapshots"
        )
    yield from _coverage(planned.plan)


def _next_step(one: Drilled) -> str:
    """Return what to do about a finding."""
    if one.verdict is not Verdict.DIFFERS:
        return "To list the damaged files and the next step, run: statekeeper audit ROOT --deep"
    wrong = next(comparison for comparison in one.comparisons if comparison.is_equal is False)
    if wrong.against is not Against.REPLAY:
        return "Keep the older files: do not run gc. To verify all files, run: statekeeper audit ROOT --deep"
    newest, before = one.base.version - 1, one.base.version - 2
    show = _dump(one, wrong, one.action.version.version - 1)
    return " ".join(
        [
            f"Either side may be wrong: the snapshot of batch {newest:,}, which a restart uses, or the older base or a "
            "changelog up to that batch. Keep the older files: do not run gc.",
            f"First compare what a restart gets for the key with the source of the data: {show}.",
            f"If that is wrong, stop the query and go back to batch {before:,}, before this snapshot: statekeeper rewind "
            f"ROOT --to-batch {before}."
            if before >= 0
            else "If that is wrong, no batch is before this snapshot: restore the snapshot from a backup.",
            f"If it is right, do not go back to a batch before {newest:,}: the older files are wrong. Take a snapshot, "
            "with which later drills compare: statekeeper snapshot ROOT --all",
        ]
    )


def _dump(one: Drilled, wrong: Comparison, batch: int) -> str:
    """The command that shows the first row that differs, as a restart gets it."""
    store = str(one.action.store).removeprefix(f"{names.STATE}/")
    conditions = () if wrong.differences is None else wrong.differences.conditions
    keys = [word for condition in conditions if condition.isprintable() for word in ("--key", condition)]
    return f"statekeeper dump ROOT --batch {batch} {shlex.join(['--store', store, *keys])}"


def _line(one: Drilled) -> DrilledStore:
    return DrilledStore(
        store=one.action.store,
        version=one.action.version,
        verdict=code(one.verdict),
        rows=one.rows,
        compared=tuple(code(comparison.against) for comparison in one.compared),
        predicted_seconds=round(one.action.facts.predicted_seconds, 3),
        seconds=round(one.seconds, 3),
        detail=redacted(_without_keys(one)),
    )


def _without_keys(one: Drilled) -> str:
    """A sentence about the result that shows no key and no value of the state."""
    comparisons = tuple(
        comparison
        if comparison.differences is None
        else replace(comparison, differences=replace(comparison.differences, key=None, conditions=()))
        for comparison in one.comparisons
    )
    return replace(one, comparisons=comparisons).explained


class _Record:
    """Records drills while stores are restored, so that an interrupted drill is not made again from its beginning."""

    def __init__(self, *, run: Run, storage: Storage, plan: PlannedRestores) -> None:
        self._run = run
        self._storage = storage
        self._plan = plan
        self._new: dict[StorePath, StoreDrill] = {}
        self._written: set[StorePath] = set()
        self._written_at = run.clock.monotonic_seconds()

    def add(self, outcome: Drilled | StatekeeperError) -> None:
        """Add a result. Rows with a finding are not recorded: the next drill compares with the last right ones. Raises
        `StorageError`."""
        if isinstance(outcome, StatekeeperError):
            return
        store = outcome.action.store
        if not outcome.verdict.is_finding:
            self._new[store] = self._as_drill(outcome)
        elif store in self._written:
            # Spark's rows differ: the drill before counts again. Without one, these rows are not proved.
            made = structs.replace(self._as_drill(outcome), is_proved=False)
            self._new[store] = self._plan.gathered.last.get(store, made)
        if self._run.clock.monotonic_seconds() - self._written_at >= _RECORDED_SECONDS:
            self._write()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Record all results at the end of the block, also after an error of it. Raises `StorageError`."""
        try:
            yield
        except BaseException:
            # Report the error of the block, not that of its record.
            with suppress(StatekeeperError):
                self._write()
            raise
        self._write()

    def _write(self) -> None:
        if self._plan.mode is Mode.OBSERVE or not self._new:
            return
        drills.add(self._storage, self._new, {one.store for one in self._plan.gathered.stores})
        self._written |= self._new.keys()
        self._new.clear()
        self._written_at = self._run.clock.monotonic_seconds()

    def _as_drill(self, one: Drilled) -> StoreDrill:
        return StoreDrill(
            version=one.action.version.version,
            mark=one.action.version.mark,
            past=one.action.facts.past,
            digest=one.digest,
            is_proved=one.is_proved,
            verdict=code(one.verdict),
            workers=_workers(self._plan, self._run),
            drilled_at_seconds=self._run.clock.now_seconds(),
            has_base=one.base != EMPTY,
            base_seconds=round(one.base_seconds, 4),
            replay_seconds=round(one.replay_seconds, 4),
            predicted_seconds=round(one.action.facts.predicted_seconds, 4),
            tail_bytes=one.action.facts.tail_bytes,
            changelogs=one.action.facts.changelogs,
        )


def _record(plan: DrillPlan, made: Found | None, measured: Measured | None) -> Json:
    """The drill as one JSON object."""
    record: Json = {
        "batch": plan.batch,
        "stores": plan.stores,
        "drills_for_all_stores": plan.rounds,
        "predicted_seconds": round(plan.predicted_seconds, 3),
        "prediction_from_drills": measured is not None,
        "sample": [
            {
                "store": str(one.store),
                "version": str(one.version),
                "reason": code(one.reason),
                "predicted_seconds": round(one.facts.predicted_seconds, 3),
                "compares": [code(against) for against in one.compares],
            }
            for one in plan.drill
        ],
    }
    if made is None:
        return record
    return record | {
        "is_green": made.is_green,
        "result": _verdict(plan, made),
        "measured_seconds": round(made.seconds, 3),
        "restored": [_as_object(one) for one in made.drilled],
        "failed": [{"store": str(store), "code": one.code, "error": str(one)} for store, one in made.failed.items()],
    }


def _as_object(one: Drilled) -> Json:
    return {
        "store": str(one.action.store),
        "version": str(one.action.version),
        "verdict": code(one.verdict),
        "explained": one.explained,
        "base": str(one.base),
        "rows": one.rows,
        "digest": one.digest,
        "predicted_seconds": round(one.action.facts.predicted_seconds, 3),
        "seconds": round(one.seconds, 3),
        "base_seconds": round(one.base_seconds, 3),
        "replay_seconds": round(one.replay_seconds, 3),
        "compared": [
            {
                "against": code(comparison.against),
                "equal": comparison.is_equal,
                "proves": comparison.is_decided,
                "what": comparison.what or comparison.why,
            }
            for comparison in one.comparisons
        ],
    }
