"""Starting a stateful operator on a stream."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from pipelines import preflight
from pipelines.driver import BatchDriver, StopWanted
from pipelines.host import Host
from pipelines.operator import StatefulOperator
from pipelines.progress import BatchReport, Observer, Phase
from pipelines.session import require_classic
from pipelines.sinks import DeltaSink, Sink
from pipelines.snapshot_watch import SnapshotWatch
from pipelines.spark_errors import is_active
from statestore.clock import RandomIds, SystemClock
from statestore.errors import SparkDied, StatekeeperError
from statestore.format.structure import Structure
from statestore.storage import StorageSpec, open_storage

_LOG = logging.getLogger("statekeeper")
_WATCH_SECONDS = 30.0
_IDLE_SECONDS = 0.3


class _Silent:
    def phase(self, batch: int, phase: Phase) -> None:
        del batch, phase

    def finished(self, report: BatchReport) -> None:
        del report


class StatefulQuery:
    """A running query with state. Stop it when done; `await_termination` raises what stopped it, by name."""

    def __init__(self, query: StreamingQuery, driver: BatchDriver, watch: SnapshotWatch) -> None:
        self.streaming_query = query
        self.driver = driver
        self._watch = watch

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the end; returns whether it came in time. Raises the library's own error when one ended it."""
        waiting: Any = self.streaming_query
        self.driver.is_awaited = True
        try:
            # PySpark takes whole seconds only; below it are milliseconds.
            ended = (
                waiting.awaitTermination()
                if timeout_seconds is None
                else waiting._jsq.awaitTermination(int(timeout_seconds * 1000))  # noqa: SLF001
            )
        except Exception as error:
            self._watch.stop()
            if is_active(self.streaming_query) is None:
                raise SparkDied(
                    "Spark's JVM ended while the query ran",
                    hint="see what it said last; started again, the query goes on where it stopped",
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
        """Stop after the batch that runs; returns when the query has ended."""
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
    stream: DataFrame,
    *,
    root: str | StorageSpec,
    checkpoint: str | StorageSpec,
    sink: Sink,
    partitions: int | None = None,
    key_groups: int = 128,
    structure: Structure = Structure.V2,
    trigger: Mapping[str, Any] | None = None,
    host: Host | None = None,
    observer: Observer | None = None,
    name: str | None = None,
) -> StatefulQuery:
    """Run `operator` on a streaming DataFrame.

    root         where the state lives: a path or URL, one for each query
    checkpoint   the streaming query's own checkpoint location, somewhere else than the root
    partitions   how many stores the state has, fixed when the root is made; by default `spark.sql.shuffle.partitions`, but
                 at most `key_groups`
    key_groups   into how many groups keys are hashed, fixed likewise; the most partitions that the state can ever have
    structure    how a new root names its files. V1 is for readers that know no other: there an update function that gives
                 this or that for the same input can cost versions, which V2 keeps apart. A root that has one keeps it:
                 another one is refused as `OtherStructure`, and `statekeeper switch` changes it
    trigger      arguments of `DataStreamWriter.trigger`

    Whatever can be known before the first batch is checked here. Raises `UnsupportedEnvironment` (Spark Connect, Delta
    not configured, more partitions than key groups, places inside of each other), `UnsupportedType`, `SchemaMismatch`,
    `UnusableFunction`, `ForeignRoot`, `RootLost`, `OtherStructure`, `HalfSwitched`, `UnsafeSink`, `AccessDenied`,
    `StorageError`.
    """
    session = stream.sparkSession
    require_classic(session)
    partitions = preflight.chosen_partitions(session, partitions, key_groups)
    row_columns = preflight.row_columns(operator, stream)
    preflight.require_usable(operator)
    preflight.require_trigger(trigger)
    root_spec = StorageSpec(root) if isinstance(root, str) else root
    checkpoint_spec = StorageSpec(checkpoint) if isinstance(checkpoint, str) else checkpoint
    places = {"root": root_spec.url, "checkpoint": checkpoint_spec.url}
    if isinstance(sink, DeltaSink):
        places["sink"] = sink.path
    preflight.require_places_apart(places)
    clock, ids = SystemClock(), RandomIds()
    checkpoint_storage = open_storage(checkpoint_spec, clock=clock, ids=ids)
    root_storage = open_storage(root_spec, clock=clock, ids=ids)
    preflight.require_root(root_storage, checkpoint_storage, operator, row_columns, structure)
    if isinstance(sink, preflight.CheckedSink):
        sink.require_ready(session, operator.output)
    if not sink.supports_exactly_once:
        _LOG.warning("the sink cannot say which batches it holds: output is at-least-once, state is exactly-once")
    driver = BatchDriver(
        operator,
        row_columns,
        root=root_spec,
        checkpoint=checkpoint_storage,
        sink=sink,
        host=host or Host(tempfile.gettempdir()),
        partitions=partitions,
        key_groups=key_groups,
        structure=structure,
        clock=clock,
        ids=ids,
        observer=observer or _Silent(),
        warn=_LOG.warning,
    )
    writer = stream.writeStream.foreachBatch(driver).option("checkpointLocation", checkpoint_spec.url)
    if name:
        writer = writer.queryName(name)
    if trigger:
        writer = writer.trigger(**trigger)
    watch = SnapshotWatch(driver.look_for_snapshots, _WATCH_SECONDS, _LOG.warning)
    query = writer.start()
    watch.start()
    return StatefulQuery(query, driver, watch)
