"""Plans and executes rewinds, and undoes rewinds and repairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from statekeeper.statestore.base.errors import (
    LocalStateError,
    RefusedAsUnsafe,
    StatekeeperError,
    TaskLost,
    VersionNotLoadable,
)
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.checkpoint.origin import origin_of
from statekeeper.statestore.format.file_sink import LOG
from statekeeper.statestore.format.names import EMPTY, StorePath
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.records.history import Json
from statekeeper.statestore.maintenance.rollback import rewind, undo
from statekeeper.statestore.maintenance.rollback.rewind import (
    DeltaPosition,
    FileSinkLog,
    RewindAction,
    RewindFacts,
    RewindPlan,
    SourceLocations,
    SourceNeed,
    batch_at,
    client_properties,
)
from statekeeper.statestore.maintenance.verbs import guards
from statekeeper.statestore.maintenance.verbs.as_json import rollback as as_json
from statekeeper.statestore.maintenance.verbs.contract import Prepared, Run, Verb, Work
from statekeeper.statestore.maintenance.verbs.options import option
from statekeeper.statestore.maintenance.verbs.report import Report, Table, as_objects, decimal
from statekeeper.statestore.storage import Storage

_MOST_CHARACTERS = 300
"""Of the path of a missing file, or of the name of a source, in a line of the plan."""


@dataclass(frozen=True, kw_only=True)
class PlannedRewind:
    """A plan of a rewind and its facts.

    sink     the version of the Delta table that belongs to the target; None without a table
    sources  the data that each source must still have, and the data that it no longer has
    refusals all reasons that block the plan itself
    """

    gathered: RewindFacts
    plan: RewindPlan
    sink: DeltaPosition | None
    sources: tuple[SourceNeed, ...]
    file_sink: Storage | None
    has_no_file_sink: bool
    refusals: tuple[StatekeeperError, ...]


@dataclass(frozen=True, kw_only=True)
class Rewind(Verb[PlannedRewind, RewindAction, tuple[RewindAction, ...]]):
    """Roll a stopped query back to `batch`, or to the newest batch that was committed at `time`. `Revert` of the run
    reverses it.

    `has_no_file_sink`: the query has no file sink of Spark, although the checkpoint indicates one.
    """

    name = "rewind"
    batch: int | None = option(
        "Go back to this batch. Later batches are removed.", default=None, flag="--to-batch", least=0
    )
    time: datetime | None = option(
        'Go back to the newest batch that was committed at this time (UTC) or before, for example "2026-11-20 03:00". Give '
        "either --to-batch or --to.",
        default=None,
        flag="--to",
        metavar="TIME",
    )
    sink: str | None = option(
        "The Delta table that the query writes. The plan then shows the SQL command that restores the table to the same "
        "batch. Rewind does not change the table.",
        default=None,
        metavar="URL",
    )
    file_sink: str | None = option(
        "Output folder of the query, if it writes files with Spark's file sink (parquet, json, csv, orc or text, with a "
        "path). With --apply, rewind moves the entries of the later batches from _spark_metadata in this folder to "
        "quarantine. Without this option, the sink skips these batches, and the query fails.",
        default=None,
        metavar="URL",
    )
    has_no_file_sink: bool = option(
        "The query has no file sink of Spark, although the checkpoint indicates one.",
        default=False,
        flag="--no-file-sink",
    )
    folders: tuple[str, ...] = option(
        "A Delta table or a folder of files that the query reads. The plan then also shows which input of the later "
        "batches no longer exists. Repeatable.",
        default=(),
        flag="--source",
        metavar="URL",
    )
    kafka_config: Path | None = option(
        "File with the properties of a Kafka client. Write one property per line and use librdkafka's names, for example "
        "bootstrap.servers=host:9092. The plan then also shows which offsets of the later batches no longer exist. "
        "Requires the package statekeeper[kafka].",
        default=None,
    )
    query_id: str | None = option(
        "The new query id. Default: a random id.", default=None, metavar="UUID", is_query_id=True
    )
    keep_query_id: bool = option(
        "Keep the query id. Danger: if a Delta table already has later batches of this query, the table skips new batches "
        "with the same numbers, and their rows are lost.",
        default=False,
    )
    restored: Callable[[StorePath], None] = lambda store: None
    """Called after each store that the plan restores."""

    def plan(self, run: Run) -> PlannedRewind:
        """Restore each store at the batch below `run.scratch`.

        Raises as `rewind.batch_at`, `rewind.gather`, `rewind.file_sink_log`, `rewind.delta_position`, `rewind.look_up`;
        `RefusedAsUnsafe` if the query id is not a UUID, or if a state root of a Python job is given a file sink."""
        storage, by = run.storage, run.by
        guards.require_none(guards.refusals(guards.is_query_id(storage, self.query_id)))
        batch = self.batch
        if batch is None:
            assert self.time is not None, "a batch or a time is required"
            batch = batch_at(storage, self.time.replace(tzinfo=UTC).timestamp())
        gathered = rewind.gather(storage, batch)
        if self.file_sink is not None and gathered.binding is not None:
            raise RefusedAsUnsafe(
                "is a state root, and no file sink of Spark belongs to it; nothing was changed",
                path=storage.url,
                hint="run this command without --file-sink",
            )
        file_sink = None if self.file_sink is None else run.open_other(self.file_sink)
        sink = None if self.sink is None else run.open_other(self.sink)
        kafka = None if self.kafka_config is None else client_properties(self.kafka_config)
        sources = SourceLocations(folders=list(map(run.open_other, self.folders)), kafka=kafka)
        needs = rewind.look_up(gathered.sources, sources)
        chosen = None if self.keep_query_id else self.query_id or by.ids.fresh()
        planned = rewind.plan(gathered, query_id=chosen, sink=_log_of(file_sink, gathered))
        found: list[StatekeeperError] = list(planned.refusals)
        if not found:
            conf = origin_of(storage).state_conf(storage, gathered.heads, tuple(Provider))
            failed = rewind.prove(storage, gathered.heads, conf, executor=run.executor, restored=self.restored)
            # A full scratch disk says nothing about the checkpoint, and neither does a lost executor.
            found += [
                error if isinstance(error, LocalStateError | TaskLost) else _unproved(store, error)
                for store, error in sorted(failed.items())
            ]
        query_ids = {gathered.query_id, *gathered.former_ids}
        position = None if sink is None else rewind.delta_position(sink, query_ids, batch)
        if planned.actions and file_sink is None and not self.has_no_file_sink:
            found += guards.refusals(rewind.require_file_sink_named(gathered))
        return PlannedRewind(
            gathered=gathered,
            plan=planned,
            sink=position,
            sources=needs,
            file_sink=file_sink,
            has_no_file_sink=self.has_no_file_sink,
            refusals=tuple(found),
        )

    def plan_again(self, run: Run, first: PlannedRewind) -> PlannedRewind:
        """As `plan`, with the query id of the first plan. The stores are not restored again."""
        gathered = rewind.gather(run.storage, first.plan.batch)
        query_id = None if first.plan.query == gathered.query_id else first.plan.query
        again = rewind.plan(gathered, query_id=query_id, sink=_log_of(first.file_sink, gathered))
        return replace(first, gathered=gathered, plan=again, refusals=again.refusals)

    def has_work(self, plan: PlannedRewind) -> bool:
        return bool(plan.plan.actions)

    def refusals(self, run: Run, plan: PlannedRewind) -> Iterable[StatekeeperError]:
        return plan.refusals

    def record(self, plan: PlannedRewind) -> list[Json]:
        return as_json.of_rewind(plan.plan)

    def record_step(self, step: RewindAction) -> Json:
        return as_json.of_rewind_action(step)

    def execute(self, run: Run, plan: PlannedRewind, work: Work[RewindAction]) -> tuple[RewindAction, ...]:
        """Return the executed actions. Raises as `rewind.execute`."""
        done: list[RewindAction] = []
        sink = None if plan.file_sink is None else work.lease.guarded(plan.file_sink)
        for action in rewind.execute(work.storage, plan.plan, run=run.id, scratch=run.scratch, sink=sink):
            done.append(action)
            work.tell(action)
            work.lease.require()
        return tuple(done)

    def report(self, prepared: Prepared[PlannedRewind, RewindAction, tuple[RewindAction, ...]]) -> Report:
        """Report the files by the reason of their action, and what the query needs afterwards."""
        found, plan, sink, done = prepared.plan, prepared.plan.plan, prepared.plan.sink, prepared.made or ()
        files, sizes = Counter[str](), Counter[str]()
        for action in plan.actions:
            files[action.reason.value] += 1
            sizes[action.reason.value] += action.entry.size_bytes
        shown: tuple[Table, ...] = (
            Table(
                "reasons",
                f"rewind from batch {plan.newest:,} to {plan.batch:,}: {decimal(plan.size_bytes)}",
                ("files", "bytes", "reason"),
                [(number, sizes[reason], reason) for reason, number in files.items()],
            ),
        )
        if plan.actions:
            end = f"rewound to batch {plan.batch:,}: {len(done):,} files are in quarantine"
            lines = () if prepared.refusals else tuple(_notes(found, is_done=False))
            # What a person must still do comes last.
            after = (end, *_notes(found, is_done=True))
        else:
            nothing = (
                f"nothing to rewind: the newest batch is {plan.newest:,}, and no later batch has begun. If the query does "
                "not start from it, this names the batch to rewind to: statekeeper audit ROOT --deep"
            )
            shown, lines = (), ()
            after = (nothing, *_file_sink_notes(found, is_done=False), *_sink_notes(found, is_done=False))
        log = plan.file_sink
        return Report(
            record={
                "batch": plan.batch,
                "newest_batch": plan.newest,
                "former_query_id": plan.former_query,
                "query_id": plan.query,
                "provider": found.gathered.provider.option,
                "stores": len(found.gathered.heads.heads),
                "bytes": plan.size_bytes,
                "refusals": as_objects(prepared.refusals),
                "sources": [
                    {
                        "source": int(need.source) if need.source.isdecimal() else need.source,
                        "needs": need.needs,
                        "missing": None if need.missing is None else list(need.missing),
                        "unchecked": need.unchecked,
                    }
                    for need in found.sources
                ],
                "sink": None
                if sink is None
                else {
                    "table": sink.url,
                    "version": sink.version,
                    "newest_version": sink.newest,
                    "newest_batch": sink.holds,
                    "other_versions": list(sink.others),
                    "command": None if sink.holds is None else sink.command,
                },
                "file_sink": None
                if log is None
                else {"url": log.url, "entries": sorted(entry.path for entry in log.later)},
                "run": prepared.run.id if done else None,
                "done": len(done),
                "actions": list(map(as_json.of_rewind_action, plan.actions)),
            },
            phase=prepared.phase("rewound"),
            facts={
                "former_query_id": plan.former_query,
                "query_id": plan.query,
                **({"run": prepared.run.id} if done else {}),
            },
            figures={
                "batch": plan.batch,
                "newest_batch": plan.newest,
                "stores": len(found.gathered.heads.heads),
                "files": len(plan.actions),
                "bytes": plan.size_bytes,
            },
            tables=shown,
            lines=lines,
            made=shown,
            done=after,
        )


@dataclass(frozen=True, kw_only=True)
class Revert(Verb[str, str, list[str]]):
    """Restore all files that the repair or rewind `undone`, the id of its run, moved into quarantine.

    Its steps are the paths of the restored files.
    """

    of: Literal["repair", "rewind"]
    undone: str

    @property
    def name(self) -> str:
        return self.of

    def plan(self, run: Run) -> str:
        return self.undone

    def record(self, plan: str) -> list[Json]:
        return [{"undo": plan}]

    def record_step(self, step: str) -> Json:
        return {"put_back": step}

    def execute(self, run: Run, plan: str, work: Work[str]) -> list[str]:
        """Return the paths. Raises `RefusedAsUnsafe` if the query has committed since; as the functions of `undo`."""
        gathered = undo.gather(run.storage, plan, run.open_other)
        sink = None if gathered.sink is None else work.lease.guarded(gathered.sink)
        restored: list[str] = []
        for path in undo.execute(work.storage, plan, undo.plan(gathered), sink=sink):
            restored.append(path)
            work.tell(path)
            work.lease.require()
        return restored

    def report(self, prepared: Prepared[str, str, list[str]]) -> Report:
        """Report the restored files."""
        restored = prepared.made or []
        return Report(
            record={"put_back": restored},
            phase=prepared.phase("undone"),
            facts={"undone": self.undone},
            figures={"files": len(restored)},
            done=(f"put back {counted(len(restored), 'file')}",),
        )


def _log_of(file_sink: Storage | None, gathered: RewindFacts) -> FileSinkLog | None:
    return None if file_sink is None else rewind.file_sink_log(file_sink, gathered.batch, known=gathered.known)


def _unproved(store: StorePath, error: StatekeeperError) -> VersionNotLoadable:
    return VersionNotLoadable(
        f"{store} cannot be restored at this batch: {error.what}; nothing was changed",
        path=error.path,
        hint="to find a batch that can be loaded, run: statekeeper audit ROOT. Then give this batch with --to-batch",
    )


def source_line(need: SourceNeed) -> str:
    """What a source must still have, and what it no longer has."""
    parts = [f"source {_short(need.source)} must still have: {need.needs}"]
    if need.missing:
        more = f" and {len(need.missing) - 1:,} more (--output json lists them)" if len(need.missing) > 1 else ""
        parts.append(f"missing now: {_short(need.missing[0])}{more}")
    elif need.missing is not None:
        parts.append("nothing is missing")
    line = "; ".join(parts if need.unchecked is None else [*parts, need.unchecked])
    # Paths and offsets come from the checkpoint: a line break in one would look like a line of the plan.
    return printable(line)


def _short(text: str) -> str:
    """The text without its middle if it is long."""
    half = _MOST_CHARACTERS // 2
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:half]}...{text[-half:]}"


def _notes(found: PlannedRewind, *, is_done: bool) -> list[str]:
    planned, gathered = found.plan, found.gathered
    stores = sum(head != EMPTY for head in gathered.heads.heads.values())
    notes = [f"each of the {stores:,} stores was restored at batch {planned.batch:,}"] if stores else []
    notes += map(source_line, found.sources)
    if not is_done:
        notes.append("the query gets a new id" if planned.query != planned.former_query else "the query keeps its id")
    elif planned.query != planned.former_query:
        notes.append(f"query id: {planned.former_query} -> {planned.query}")
    if gathered.binding is not None:
        query_id = planned.query if is_done else "ID"
        notes.append(
            f"rewind the checkpoint of the query, too: statekeeper rewind CHECKPOINT --to-batch {planned.batch} "
            f"--query-id {query_id} --apply --confirm-stopped" + ("" if is_done else " (--apply prints the ID)")
        )
    if gathered.crosses_conversion:
        notes.append(
            f"at batch {planned.batch:,}, the state store provider is {gathered.provider.value}: start the query with its "
            "settings from before the conversion"
        )
    notes += _file_sink_notes(found, is_done=is_done)
    notes += _sink_notes(found, is_done=is_done)
    if gathered.binding is not None:
        notes.append(f"start the job once with DeltaSink(..., continue_at_batch={planned.batch + 1})")
    return notes


def _file_sink_notes(found: PlannedRewind, *, is_done: bool) -> list[str]:
    """What happens to the log of a file sink, or what was not checked."""
    log = found.plan.file_sink
    if log is None:
        if found.gathered.binding is not None or found.has_no_file_sink:
            return []
        return [
            "not checked: whether the query writes files with Spark's file sink (parquet, json, csv, orc or text, with a "
            "path), because a checkpoint does not name its sink. If it does, add --file-sink URL: otherwise the sink skips "
            "the later batches, and the query fails"
        ]
    if not log.later:
        return [f"the log of the file sink {log.url} has no entry of later batches"]
    first, last = min(log.later.values()), max(log.later.values())
    batches = f"batch {first:,}" if first == last else f"batches {first:,} to {last:,}"
    moves = f"of the file sink {log.url}, {'' if is_done else 'rewind moves '}the entries of {batches}"
    return [
        f"{moves} {'were moved ' if is_done else ''}from {LOG}/ to the quarantine of the checkpoint",
        f"the output files of {batches} stay in {log.url}. Spark no longer reads them. A reader that lists the folder "
        f"without {LOG}/ reads them in addition to the files of the repeated batches",
    ]


def _sink_notes(found: PlannedRewind, *, is_done: bool) -> list[str]:
    planned, gathered, sink = found.plan, found.gathered, found.sink
    if sink is not None and sink.holds is None:
        return [f"the table {sink.url} has no rows of later batches"]
    if sink is not None:
        restore = (
            f"the table {sink.url} has rows up to batch {sink.holds:,}, and the query writes the batches after "
            f"{planned.batch:,} again. To remove their rows before you start the query, run: {sink.command}"
        )
        return [restore, *(f"this also reverts version {text}" for text in sink.others)]
    if gathered.binding is None:
        return (
            _unknown_sink(planned, is_done=is_done)
            if planned.file_sink is None and planned.newest > planned.batch
            else []
        )
    return [
        f"the Delta table with id {table} was at version {version} after batch {planned.batch:,}. Restore it to this "
        "version before you start the job: the job writes the later batches again"
        for table, version in gathered.sinks.items()
        if version >= 0
    ]


def _unknown_sink(planned: RewindPlan, *, is_done: bool) -> list[str]:
    """What a checkpoint does not tell: the output of the later batches, which the query writes again."""
    first, last = planned.batch + 1, planned.newest
    batches = f"batch {first:,}" if first == last else f"batches {first:,} to {last:,}"
    if is_done:
        return [
            f"before you start the query, remove the rows of {batches} from its sink: the query writes them again. For a "
            f"Delta table at URL, this prints the command: statekeeper rewind ROOT --to-batch {planned.batch} --sink URL"
        ]
    return [
        f"not checked: the table or topic that the query writes. It keeps the rows of {batches}, which the query then "
        "writes again. For a Delta table, add --sink URL: the plan then has the command that removes these rows"
    ]
