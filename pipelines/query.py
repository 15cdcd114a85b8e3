"""Starting a stateful operator on a stream."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType, VariantType

from pipelines.driver import BatchDriver, StopWanted
from pipelines.host import Host
from pipelines.operator import StatefulOperator
from pipelines.progress import BatchReport, Observer, Phase
from pipelines.session import require_classic
from pipelines.sinks import Sink
from pipelines.snapshot_watch import SnapshotWatch
from pipelines.spark_errors import is_active
from statestore.clock import RandomIds, SystemClock
from statestore.errors import SchemaMismatch, SparkDied, UnsupportedEnvironment, UnsupportedType
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
            if self.driver.failure is not None:
                raise self.driver.failure from error
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
    partitions   how many stores the state has, fixed when the root is made; by default `spark.sql.shuffle.partitions`
    key_groups   into how many groups keys are hashed, fixed likewise; the most partitions that the state can ever have
    structure    how a new root names its files. V1 is for readers that know no other: there an update function that gives
                 this or that for the same input can cost versions, which V2 keeps apart. A root that has one keeps it:
                 another one is refused as `OtherStructure`, and `statekeeper switch` changes it
    trigger      arguments of `DataStreamWriter.trigger`

    Raises `UnsupportedEnvironment` (Spark Connect, more partitions than key groups), `UnsupportedType`, `SchemaMismatch`.
    """
    session = stream.sparkSession
    require_classic(session)
    partitions = partitions or int(session.conf.get("spark.sql.shuffle.partitions") or 1)
    if partitions > key_groups:
        raise UnsupportedEnvironment(
            f"{partitions} partitions and only {key_groups} key groups", hint="ask for fewer partitions or more groups"
        )
    missing = [column for column in (*operator.keys, *operator.order_by) if column not in stream.columns]
    if missing:
        raise SchemaMismatch(f"the stream has no columns {missing}", hint=f"it has {stream.columns}")
    if len(set(stream.columns)) < len(stream.columns):
        raise SchemaMismatch("the stream has two columns of one name", hint=f"it has {stream.columns}")
    row_columns = _arrow_columns(operator, stream)
    # Here and not with the first batch: what cannot work is said by `start`.
    operator.store_schemas(row_columns)
    root_spec = StorageSpec(root) if isinstance(root, str) else root
    checkpoint_spec = StorageSpec(checkpoint) if isinstance(checkpoint, str) else checkpoint
    clock, ids = SystemClock(), RandomIds()
    if not sink.can_be_asked:
        _LOG.warning("the sink cannot say which batches it holds: output is at-least-once, state is exactly-once")
    driver = BatchDriver(
        operator,
        row_columns,
        root=root_spec,
        checkpoint=open_storage(checkpoint_spec, clock=clock, ids=ids),
        sink=sink,
        host=host or Host(str(Path(tempfile.gettempdir()) / "statekeeper")),
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


def _arrow_columns(operator: StatefulOperator, stream: DataFrame) -> pa.Schema:
    """The stream's columns as tasks get them. Raises `UnsupportedType`."""
    fields: list[pa.Field] = []
    for column in stream.schema:
        if column.name in operator.keys:
            _require_bytes_tell_equality(column)
        try:
            fields.extend(to_arrow_schema(StructType([column]), timezone="UTC"))
        except PySparkException as error:
            raise UnsupportedType(
                f"column {column.name} has Spark's type {column.dataType.simpleString()}, which Arrow does not have",
                hint="cast or drop it before the operator",
            ) from error
    return pa.schema(fields)


def _require_bytes_tell_equality(key: StructField) -> None:
    # Losing schedule: strings that are equal under a collation have unequal bytes. They stand mixed in a sorted
    # partition, so that one key would come in two pieces and be two keys in the state.
    for kind in _leaves(key.dataType):
        if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            raise UnsupportedType(f"key column {key.name} has a collation", hint="collate it to UTF8_BINARY")
        if isinstance(kind, VariantType):
            raise UnsupportedType(f"key column {key.name} holds {kind.simpleString()}", hint="cast it to a string")


def _leaves(kind: DataType) -> Iterator[DataType]:
    if isinstance(kind, StructType):
        for field in kind:
            yield from _leaves(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _leaves(kind.elementType)
    else:
        yield kind
