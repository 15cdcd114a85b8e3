"""Start of a stateful operator on a stream."""

from __future__ import annotations

import datetime as dt
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from statekeeper.pipelines.batch.driver import BatchDriver, StopWanted
from statekeeper.pipelines.batch.initial import Initial, InitialState
from statekeeper.pipelines.batch.outputs import columns_of_outputs, require_sinks
from statekeeper.pipelines.batch.progress import BatchReport, Observer, Phase
from statekeeper.pipelines.batch.snapshots import SnapshotWatch
from statekeeper.pipelines.batch.spark import is_active
from statekeeper.pipelines.operator.declaration import StatefulOperator
from statekeeper.pipelines.sinks.sink import DeltaSink, NoSink, Sink
from statekeeper.pipelines.startup import preflight
from statekeeper.pipelines.startup.inputs import columns_of_all, given_streams, require_sources, rows_of_all
from statekeeper.pipelines.startup.older_roots import as_in_root
from statekeeper.pipelines.startup.tick import with_ticks
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.pipelines.task.host import Host
from statekeeper.pipelines.task.stored import store_schemas
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import SparkDied, StatekeeperError, naming_root
from statekeeper.statestore.base.messages import of_job
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import StorageSpec, open_storage

_LOG = logging.getLogger("statekeeper")
_WATCH_SECONDS = 30.0
_IDLE_SECONDS = 0.3


class _Silent:
    def phase(self, batch: int, phase: Phase) -> None:
        del batch, phase

    def finished(self, report: BatchReport) -> None:
        del report


class StatefulQuery:
    """A running stateful query. `await_termination` raises the typed error that stopped it."""

    def __init__(self, query: StreamingQuery, driver: BatchDriver, watch: SnapshotWatch) -> None:
        self.streaming_query = query
        self.driver = driver
        self._watch = watch

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the query ends; return whether it ended in time. Raises the error that ended it."""
        waiting: Any = self.streaming_query
        self.driver.is_awaited = True
        try:
            # PySpark accepts only whole seconds, the JVM method milliseconds.
            ended = (
                waiting.awaitTermination()
                if timeout_seconds is None
                else waiting._jsq.awaitTermination(int(timeout_seconds * 1000))  # noqa: SLF001
            )
        except Exception as error:
            self._watch.stop()
            if is_active(self.streaming_query) is None:
                raise SparkDied(
                    "Spark's JVM ended while the query was running",
                    hint="read the end of Spark's log; a restarted query continues with the interrupted batch",
                ) from error
            failure = self.driver.failure
            if isinstance(failure, StatekeeperError | StopWanted):
                _LOG.debug("the query ended with an error", exc_info=error)
                raise failure.with_traceback(None) from None
            if failure is not None:
                raise failure from error
            raise
        ended = timeout_seconds is None or bool(ended)
        if ended:
            self._watch.stop()
        return ended

    def stop(self) -> None:
        """Finish the current batch, then stop the query. Returns when the query has ended."""
        self.driver.refuse_further_batches()
        while is_active(self.streaming_query):
            if not self.driver.is_in_batch and not self._ends_within(_IDLE_SECONDS) and not self.driver.is_in_batch:
                self.streaming_query.stop()
        self._watch.stop()

    def _ends_within(self, seconds: float) -> bool:
        try:
            return self.await_termination(seconds)
        except StopWanted:
            return True


def start(
    operator: StatefulOperator,
    stream: DataFrame | None = None,
    *,
    inputs: Mapping[str, DataFrame] | None = None,
    root: str | StorageSpec,
    checkpoint: str | StorageSpec,
    sink: Sink | Mapping[str, Sink],
    partitions: int | None = None,
    key_groups: int = 128,
    tasks: int | None = None,
    structure: Structure = Structure.V2,
    log: LogLayout | str | None = None,
    initial: Initial | None = None,
    tick: str | dt.timedelta | None = None,
    late: Sink | None = None,
    storage_timeout_seconds: float = 120.0,
    trigger: Mapping[str, Any] | None = None,
    host: Host | None = None,
    observer: Observer | None = None,
    name: str | None = None,
) -> StatefulQuery:
    """Run `operator` on a streaming DataFrame, or on several.

    stream       the input, unless there are several
    inputs       several inputs: name -> streaming DataFrame. The rows of all inputs come to the operator together, with
                 the name of their input in the column `input`. Each input needs the key columns; other columns that it
                 lacks are null. A root keeps the names of its inputs
    root         path or URL of the state; each query needs its own. A `StorageSpec` also has the options of the storage and
                 the `SizeLimits`: a batch that writes a larger value fails with `TooLarge`, before the sink
    checkpoint   checkpoint location of the streaming query, outside the root
    sink         takes the output; for several outputs a mapping: name -> sink. Each of them then supports exactly-once
                 writes, or is `NoSink`, and state and all sinks hold the same attempt of each batch
    partitions   number of partitions of a new root; the default is `spark.sql.shuffle.partitions` if the session sets it,
                 otherwise four for each slot of the cluster and at least 8; at most `key_groups`. An existing root keeps
                 its number; `statekeeper rescale` changes it
    key_groups   number of hash groups of the keys, fixed when the root is created; the maximum number of partitions
    tasks        number of Spark tasks of a batch, which process groups of partitions; the default is
                 `SparkContext.defaultParallelism`, the number of the cluster's slots. At most one task per partition starts
    structure    checkpoint structure of a new root. Use V1 only for readers that do not support V2: in V1 an update
                 function that is not deterministic can make versions unrecoverable. If the root has the other structure,
                 the query fails with `OtherStructure`; `statekeeper switch` changes the structure
    log          "stores": each changelog is an object, which Spark can read. "batch": the small changelogs of a batch are
                 one object, so that the requests per batch do not depend on the partitions (FLIP-158); structure V2 only.
                 Spark reads them after a snapshot, or after `statekeeper unpack`. By default, a root keeps its layout, and
                 a new root has "batch" if it is not on a local disk and has more than 4 stores, otherwise "stores"
    initial      first state of a new job: a DataFrame with exactly the key and value columns and one row for each key, for
                 several stores a dict from store name to DataFrame, or a function that returns one of them. Batch 0
                 writes these rows into the state before it processes its input. If batch 0 runs again, `initial` must
                 return the same rows. After batch 0 is committed, `initial` is ignored, and not called if it is a function
    tick         start a batch at least this often, also without input, so that timers fire and state expires: a duration
                 such as "10s". It is a further source of the query, so it cannot be added to an existing checkpoint or
                 removed from it; the duration can change
    late         sink for the late rows, which have the columns of the input. It and the other sinks must support
                 exactly-once. Without it, late rows are dropped and counted
    storage_timeout_seconds
                 how long a batch waits for unavailable storage. The query keeps the changes and sends the same request
                 again until it succeeds. After this time it fails with `StorageError`. 0: a few tries
    trigger      arguments of `DataStreamWriter.trigger`, such as {"processingTime": "10 seconds"}
    host         the folder and the limits of the local copies on each host
    observer     receives the phases of each batch, and its report
    name         name of the streaming query in `session.streams` and in Spark's metrics; the default is no name. Active
                 queries of a session have different names

    Checks everything that is known before the first batch. Raises `UnsupportedEnvironment` (Spark Connect, Delta not
    configured, more partitions than key groups, nested locations), `UnsupportedType`, `SchemaMismatch`,
    `UnusableFunction`, `ForeignRoot`, `RootLost`, `OtherStructure`, `HalfSwitched`, `WrongInitial`, `UnsafeSink`,
    `AccessDenied`, `StorageError`.
    """
    streams = given_streams(stream, inputs)
    session = streams[0].sparkSession
    for pattern in require_sources(streams):
        _LOG.warning("no folder matches the source %s yet: the query waits for its rows", pattern)
    layout = preflight.log_layout(log, structure)
    partitions = preflight.chosen_partitions(session, partitions, key_groups)
    schema = streams[0].schema
    rows = streams[0]
    if inputs is not None:
        schema = columns_of_all(operator, {name: frame.schema for name, frame in inputs.items()})
        rows = rows_of_all(inputs, schema)
    row_columns = preflight.row_columns(operator, schema)
    if tick is not None:
        rows = with_ticks(rows, tick)
    preflight.require_usable(operator)
    preflight.require_trigger(trigger)
    preflight.require_free_name(session, name)
    root_spec = StorageSpec(root) if isinstance(root, str) else root
    checkpoint_spec = StorageSpec(checkpoint) if isinstance(checkpoint, str) else checkpoint
    sinks = require_sinks(operator, sink, structure, late)
    places = {"root": root_spec.url, "checkpoint": checkpoint_spec.url}
    tables = {name: of.path for name, of in sinks.items() if isinstance(of, DeltaSink)}
    named = {"sink" if len(sinks) == 1 else f"sink of {name}": path for name, path in tables.items()}
    preflight.require_places_apart({**places, **named})
    clock, ids = SystemClock(), RandomIds()
    checkpoint_storage = open_storage(checkpoint_spec, clock=clock, ids=ids)
    root_storage = open_storage(root_spec, clock=clock, ids=ids)
    input_names = tuple(sorted(inputs or ()))
    with naming_root(lambda text: of_job(text, root_storage.url, checkpoint_storage.url)):
        operator = as_in_root(operator, root_storage)
        first = None if initial is None else InitialState(operator, row_columns, initial)
        changes = preflight.require_root(
            root_storage,
            checkpoint_storage,
            operator,
            row_columns,
            structure,
            first,
            input_names,
            ticks=tick is not None,
        )
    for output, of_output in sinks.items():
        if isinstance(of_output, preflight.CheckedSink):
            of_output.require_ready(session, columns_of_outputs(operator, row_columns, sinks)[output])
    if any(not one.supports_exactly_once and not isinstance(one, NoSink) for one in sinks.values()):
        _LOG.warning("the sink cannot report its batches: output is at-least-once, state is exactly-once")
    if layout is None:
        stores = partitions * len(store_schemas(operator, row_columns))
        layout = preflight.default_log(root_storage, structure, stores)
    # The checks above do not wait: an unreachable storage is a wrong URL more often than an outage.
    waiting_spec = replace(root_spec, timeout_seconds=storage_timeout_seconds)
    waiting_checkpoint = replace(checkpoint_spec, timeout_seconds=storage_timeout_seconds)
    driver = BatchDriver(
        operator,
        row_columns,
        root=waiting_spec,
        checkpoint=open_storage(waiting_checkpoint, clock=clock, ids=ids),
        sink=sinks,
        host=host or Host(tempfile.gettempdir()),
        partitions=partitions,
        key_groups=key_groups,
        tasks=preflight.chosen_tasks(tasks),
        structure=structure,
        log=layout,
        initial=first,
        inputs=input_names,
        ticks=tick is not None,
        clock=clock,
        ids=ids,
        observer=observer or _Silent(),
        warn=_LOG.warning,
    )
    for change in changes:
        _LOG.warning("the first batch changes the columns of all rows: %s", change)
    writer = rows.writeStream.foreachBatch(driver).option("checkpointLocation", checkpoint_spec.url)
    if name is not None:
        writer = writer.queryName(name)
    if trigger:
        writer = writer.trigger(**trigger)
    watch = SnapshotWatch(driver.look_for_snapshots, _WATCH_SECONDS, _LOG.warning)
    query = writer.start()
    watch.start()
    return StatefulQuery(query, driver, watch)
