"""`statekeeper rewind`."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich import filesize
from rich.console import Console
from rich.text import Text

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import (
    FINDINGS,
    TALK,
    Opened,
    Output,
    error_object,
    open_destination,
    output_option,
    pasteable,
    progress_bar,
    root_argument,
    run_of,
    scratch_option,
    stopped_option,
)
from statekeeper.statestore.format import names
from statekeeper.statestore.format.file_sink import LOG
from statekeeper.statestore.format.names import EMPTY, StorePath
from statekeeper.statestore.maintenance.rollback.rewind import (
    RewindAction,
    SourceLocations,
    SourceNeed,
    batch_at,
    client_properties,
)
from statekeeper.statestore.maintenance.verbs import as_json
from statekeeper.statestore.maintenance.verbs.contract import perform, prepare
from statekeeper.statestore.maintenance.verbs.guards import Refusals
from statekeeper.statestore.maintenance.verbs.rewind import PlannedRewind, Rewind, Undo
from statekeeper.statestore.storage import Storage

_FORMS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]
_MOST_CHARACTERS = 300
"""Of the path of a missing file, or of the name of a source, in a line of the plan."""


@click.command()
@root_argument
@click.option("--to-batch", "batch", type=click.IntRange(0), help="Go back to this batch. Later batches are removed.")
@click.option(
    "--to",
    "time",
    type=click.DateTime(_FORMS),
    metavar="TIME",
    help='Go back to the newest batch that was committed at this time (UTC) or before, for example "2026-11-20 03:00". '
    "Give "
    "either --to-batch or --to.",
)
@click.option(
    "--sink",
    metavar="URL",
    help="The Delta table that the query writes. The plan then shows the SQL command that restores the table to the "
    "same batch. Rewind does not change the table.",
)
@click.option(
    "--file-sink",
    metavar="URL",
    help="Output folder of the query, if it writes files with Spark's file sink (parquet, json, csv, orc or text, with a "
    "path). With --apply, rewind moves the entries of the later batches from _spark_metadata in this folder to "
    "quarantine. Without this option, the sink skips these batches, and the query fails.",
)
@click.option(
    "--no-file-sink",
    is_flag=True,
    help="The query has no file sink of Spark, although the checkpoint indicates one.",
)
@click.option(
    "--source",
    "folders",
    multiple=True,
    metavar="URL",
    help="A Delta table or a folder of files that the query reads. The plan then also shows which input of the later "
    "batches no longer exists. Repeatable.",
)
@click.option(
    "--kafka-config",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="File with the properties of a Kafka client. Write one property per line and use librdkafka's names, for example "
    "bootstrap.servers=host:9092. The plan then also shows which offsets of the later batches no longer exist. "
    "Requires the package statekeeper[kafka].",
)
@click.option("--query-id", metavar="UUID", help="The new query id. Default: a random id.")
@click.option(
    "--keep-query-id",
    is_flag=True,
    help="Keep the query id. Danger: if a Delta table already has later batches of this query, the table skips new "
    "batches with the same numbers, and their rows are lost.",
)
@click.option(
    "--apply", is_flag=True, help="Execute the plan. Each file that rewind removes or changes is kept in quarantine."
)
@click.option(
    "--undo",
    metavar="RUN",
    help="Undo an earlier rewind: put back all files that it quarantined. RUN is the id that rewind --apply printed. "
    "Rejected if the query has committed a batch since. Runs immediately, without --apply.",
)
@scratch_option
@stopped_option("Required for --apply and --undo.")
@output_option
@click.pass_context
def rewind(
    ctx: click.Context,
    root: Opened,
    batch: int | None,
    time: datetime | None,
    sink: str | None,
    file_sink: str | None,
    no_file_sink: bool,
    folders: tuple[str, ...],
    kafka_config: Path | None,
    query_id: str | None,
    keep_query_id: bool,
    apply: bool,
    undo: str | None,
    scratch: Path,
    stopped: bool,
    output: Output,
) -> None:
    """Show the plan to roll a stopped query back to an earlier batch; with --apply, roll it back.

    First, rewind restores the state of that batch into the directory --scratch. This proves that the state can be loaded.

    After a rewind, the query reads the input of the later batches again. The plan lists the data that the sources must
    still have, for example offsets of Kafka topics. To look up whether it still exists, add --source or --kafka-config.
    Files on this machine are always looked up.

    With --apply, rewind moves the state, offsets and commits of later batches to quarantine. The query gets a new id unless
    you add --keep-query-id.

    A job on pipelines has two folders: the checkpoint of Spark and the state root. Rewind both folders to the same
    batch. The first command prints the new query id: give it to the second with --query-id.
    """
    run = run_of(root, scratch=scratch, stopped=stopped)
    if undo is not None:
        others = (batch, time, sink, file_sink, no_file_sink, folders, kafka_config, query_id, keep_query_id, apply)
        if any(given not in (None, (), False) for given in others):
            raise click.UsageError("with --undo, give no other option than --confirm-stopped")
        back = perform(prepare(Undo(of="rewind", undone=undo), run)).made or []
        output.show({"put_back": back}, lambda console: console.print(f"put back {counted(len(back), 'file')}"))
        return
    target = _target(root.storage, batch, time)
    if query_id is not None and keep_query_id:
        raise click.UsageError("--query-id and --keep-query-id exclude each other")
    if query_id is not None and not names.is_checkpoint_id(query_id):
        raise click.BadParameter(f"{query_id!r} is not a UUID", param_hint="--query-id")
    if file_sink is not None and no_file_sink:
        raise click.UsageError("--file-sink and --no-file-sink exclude each other")
    sources = SourceLocations(
        folders=[open_destination(ctx, folder).storage for folder in folders],
        kafka=None if kafka_config is None else client_properties(kafka_config),
    )
    with progress_bar() as bar:
        task = bar.add_task("restored stores", total=None)

        def restored(store: StorePath) -> None:
            del store
            bar.advance(task)

        verb = Rewind(
            batch=target,
            query_id=query_id,
            keep_query_id=keep_query_id,
            sink=sink,
            file_sink=file_sink,
            has_no_file_sink=no_file_sink,
            sources=sources,
            restored=restored,
        )
        prepared = prepare(verb, run)
    done: list[RewindAction] = []
    if apply:
        way_back = f"to undo this run: statekeeper rewind {root.storage.url} --undo {run.id} --confirm-stopped"
        prepared = perform(prepared, done.append, starting=lambda: TALK.print(way_back, soft_wrap=True))
    found, refusals = prepared.plan, prepared.refusals
    is_partly_done = apply and len(done) < len(found.plan.actions)
    output.show(
        _object(found, refusals, run.id, done),
        lambda console: _print(console, found, refusals, done),
    )
    sys.exit(FINDINGS if is_partly_done or refusals else 0)


def _target(storage: Storage, batch: int | None, time: datetime | None) -> int:
    if (batch is None) == (time is None):
        raise click.UsageError("give one of --to-batch, --to or --undo")
    if batch is not None:
        return batch
    assert time is not None
    return batch_at(storage, time.replace(tzinfo=UTC).timestamp())


def _object(prepared: PlannedRewind, refusals: Refusals, run: str, done: list[RewindAction]) -> dict[str, Any]:
    planned, sink = prepared.plan, prepared.sink
    return {
        "batch": planned.batch,
        "newest_batch": planned.newest,
        "former_query_id": planned.former_query,
        "query_id": planned.query,
        "provider": prepared.gathered.provider.option,
        "stores": len(prepared.gathered.heads.heads),
        "bytes": planned.size_bytes,
        "refusals": [error_object(error) for error in refusals],
        "sources": [
            {
                "source": int(need.source) if need.source.isdecimal() else need.source,
                "needs": need.needs,
                "missing": None if need.missing is None else list(need.missing),
                "unchecked": need.unchecked,
            }
            for need in prepared.sources
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
        if planned.file_sink is None
        else {"url": planned.file_sink.url, "entries": sorted(entry.path for entry in planned.file_sink.later)},
        "run": run if done else None,
        "done": len(done),
        "actions": [as_json.of_rewind_action(action) for action in planned.actions],
    }


def _print(console: Console, prepared: PlannedRewind, refusals: Refusals, done: list[RewindAction]) -> None:
    planned = prepared.plan
    if not planned.actions:
        console.print(f"nothing to rewind: the newest batch is {planned.newest:,}, and no later batch has begun")
        for line in (*_file_sink_notes(prepared, is_done=False), *_sink_notes(prepared)):
            console.print(tables.plain(line), soft_wrap=True)
        return
    files, sizes = Counter[str](), Counter[str]()
    for action in planned.actions:
        files[action.reason.value] += 1
        sizes[action.reason.value] += action.entry.size_bytes
    heading = f"rewind from batch {planned.newest:,} to {planned.batch:,}: {filesize.decimal(planned.size_bytes)}"
    table = tables.table(heading, "files", "bytes", "reason")
    for reason, number in files.items():
        tables.add(table, f"{number:,}", f"{sizes[reason]:,}", reason)
    tables.show(console, table)
    for refusal in refusals:
        console.print(Text.assemble(("blocked: ", "red"), pasteable(str(refusal))), soft_wrap=True)
    if refusals:
        return
    for line in _notes(prepared, is_done=bool(done)):
        console.print(tables.plain(line), soft_wrap=True)
    if done:
        console.print(f"rewound to batch {planned.batch:,}: {len(done):,} files are in quarantine")
    else:
        console.print("to execute: --apply --confirm-stopped")


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


def _notes(prepared: PlannedRewind, *, is_done: bool) -> list[str]:
    planned, gathered = prepared.plan, prepared.gathered
    stores = sum(head != EMPTY for head in gathered.heads.heads.values())
    notes = [f"each of the {stores:,} stores was restored at batch {planned.batch:,}"] if stores else []
    notes += map(source_line, prepared.sources)
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
    notes += _file_sink_notes(prepared, is_done=is_done)
    notes += _sink_notes(prepared)
    if gathered.crosses_conversion:
        notes.append(
            f"at batch {planned.batch:,}, the state store provider is {gathered.provider.value}: start the query with its "
            "settings from before the conversion"
        )
    if gathered.binding is not None:
        notes.append(f"start the job once with DeltaSink(..., continue_at_batch={planned.batch + 1})")
    return notes


def _file_sink_notes(prepared: PlannedRewind, *, is_done: bool) -> list[str]:
    """What happens to the log of a file sink, or what was not checked."""
    log = prepared.plan.file_sink
    if log is None:
        if prepared.gathered.binding is not None or prepared.has_no_file_sink:
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


def _sink_notes(prepared: PlannedRewind) -> list[str]:
    planned, gathered, sink = prepared.plan, prepared.gathered, prepared.sink
    if sink is not None and sink.holds is None:
        return [f"the table {sink.url} has no rows of later batches"]
    if sink is not None:
        restore = f"the table {sink.url} has rows up to batch {sink.holds:,}. To remove them, run: {sink.command}"
        return [restore, *(f"this also reverts version {text}" for text in sink.others)]
    return [
        f"the Delta table with id {table} was at version {version} after batch {planned.batch:,}"
        for table, version in gathered.sinks.items()
        if version >= 0
    ]
