"""Checks before a query starts. Each of these errors would otherwise stop the first batch or a later one.

The checks write nothing; the first batch creates the root.
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, VariantType

from statekeeper.pipelines.batch.initial import InitialState
from statekeeper.pipelines.operator.declaration import Frames, StatefulOperator
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.pipelines.task.event_time import require_event_time
from statekeeper.pipelines.task.partition_group import takes_batch
from statekeeper.pipelines.task.partitioning import GROUP_COLUMN
from statekeeper.pipelines.task.stored import require_free_stores, store_schemas
from statekeeper.pipelines.task.task_outputs import MARKER_COLUMN, TAG_COLUMN
from statekeeper.statestore.base.errors import (
    AccessDenied,
    SchemaMismatch,
    StorageError,
    UnsupportedEnvironment,
    UnsupportedType,
    UnusableFunction,
)
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import MOST_PARTITIONS
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.root import attempts
from statekeeper.statestore.root.binding import Binding
from statekeeper.statestore.root.columns import ColumnChange
from statekeeper.statestore.root.state_root import require_startable
from statekeeper.statestore.storage import Storage, read_or_none

_FEW_STORES = 4
FEWEST_PARTITIONS = 8
PARTITIONS_OF_A_SLOT = 4
"""Measured by `benchmarks/defaults.py`: small and large batches are near their fastest, and the job can grow to four times
the slots before it needs a `rescale`."""
_RESERVED = (GROUP_COLUMN, TAG_COLUMN, MARKER_COLUMN)


@runtime_checkable
class CheckedSink(Protocol):
    """A sink that can check the output schema before the query starts."""

    def require_ready(self, session: SparkSession, output: pa.Schema) -> None:
        """Check the sink. Raises `UnsafeSink`, `SchemaMismatch`, `UnsupportedEnvironment`."""


def chosen_partitions(session: SparkSession, asked: int | None, key_groups: int) -> int:
    """Return the number of partitions of a new root: what the job names, else what its session sets for all shuffles, else
    a few for each slot. Raises `UnsupportedEnvironment`."""
    if asked is None:
        conf: Any = session
        shuffle = session.conf.get(logs.SHUFFLE_PARTITIONS)
        # Spark's own default of 200 does not depend on the cluster, and costs a small batch several times its time.
        is_set = conf._jsparkSession.sessionState().conf().contains(logs.SHUFFLE_PARTITIONS)  # noqa: SLF001
        few = max(FEWEST_PARTITIONS, PARTITIONS_OF_A_SLOT * session.sparkContext.defaultParallelism)
        asked = min(int(shuffle or 1) if is_set else few, key_groups)
    require_partitions(asked, key_groups)
    return asked


def require_partitions(asked: int, key_groups: int) -> None:
    """Raise `UnsupportedEnvironment` for more partitions than key groups or than `MOST_PARTITIONS`, and for none."""
    if not 0 < asked <= key_groups:
        raise UnsupportedEnvironment(
            f"partitions={asked} is not between 1 and the number of key groups ({key_groups})",
            hint=f"use 1 to {min(key_groups, MOST_PARTITIONS)} partitions",
        )
    if asked > MOST_PARTITIONS:
        raise UnsupportedEnvironment(
            f"partitions={asked} is more than the {MOST_PARTITIONS:,} partitions that a root can have",
            hint=f"use 1 to {MOST_PARTITIONS} partitions",
        )


def chosen_tasks(asked: int | None) -> int | None:
    """Return the number of tasks of a batch; None for the number of slots. Raises `UnsupportedEnvironment`."""
    if asked is not None and asked < 1:
        raise UnsupportedEnvironment(f"tasks={asked} is less than 1", hint="use at least 1 task, or omit `tasks`")
    return asked


def log_layout(asked: LogLayout | str | None, structure: Structure) -> LogLayout | None:
    """Return the layout of the changelogs; None if the job does not name one. Raises `UnsupportedEnvironment`."""
    if asked is None:
        return None
    if asked not in list(LogLayout):
        raise UnsupportedEnvironment(f"log={asked!r} is unknown", hint='use log="stores" or log="batch"')
    if LogLayout(asked) is LogLayout.BATCH and structure is Structure.V1:
        raise UnsupportedEnvironment(
            'log="batch" with structure V1: a batch log needs the checkpoint ids of structure V2',
            hint='use structure V2, or log="stores"',
        )
    return LogLayout(asked)


def default_log(root: Storage, structure: Structure, stores: int) -> LogLayout:
    """Return the layout of a job that names none. A root keeps its layout. A new root with many stores has batch logs where
    each object costs a request. `stores`: number of stores of a new root."""
    if structure is Structure.V1:
        return LogLayout.STORES
    newest = catalog.newest_batch(root)
    if newest is not None:
        return LogLayout.BATCH if attempts.has_batch_log(root, newest) else LogLayout.STORES
    return LogLayout.BATCH if not _is_local(root.url) and stores > _FEW_STORES else LogLayout.STORES


def row_columns(operator: StatefulOperator, stream: StructType) -> pa.Schema:
    """Return the columns of the stream for tasks. Raises `UnsupportedType`, `SchemaMismatch`."""
    missing = [column for column in (*operator.keys, *operator.order_by) if column not in stream.names]
    if missing:
        near = [one for name in missing for one in difflib.get_close_matches(name, stream.names, 1)]
        meant = f"did you mean {near}? " if near else ""
        raise SchemaMismatch(f"the stream has no columns {missing}", hint=f"{meant}it has {stream.names}")
    if len(set(stream.names)) < len(stream.names):
        raise SchemaMismatch("the stream has two columns of one name", hint=f"it has {stream.names}")
    _require_free_names("the stream", stream.names)
    fields: list[pa.Field] = []
    for column in stream:
        if column.name in operator.keys:
            _require_bytes_tell_equality(column)
        if column.name in operator.order_by:
            _require_order(column)
        try:
            fields.extend(to_arrow_schema(StructType([column]), timezone="UTC"))
        except PySparkException as error:
            raise UnsupportedType(
                f"column {column.name} has Spark's type {column.dataType.simpleString()}, which Arrow does not have",
                hint="cast or drop it before the operator",
            ) from error
    columns = pa.schema(fields)
    require_event_time(operator, columns)
    store_schemas(operator, columns)
    return columns


def require_usable(operator: StatefulOperator) -> None:
    """Raise `UnusableFunction`, `SchemaMismatch`, `UnsupportedEnvironment` for an operator that tasks cannot run."""
    for name, columns in operator.outputs.items():
        what = "the output" if operator.has_one_output else f"output {name!r}"
        _require_distinct(f"{what} has duplicate column names", columns.names)
        _require_free_names(what, columns.names)
    _require_distinct("the operator has duplicate names of outputs", list(operator.outputs))
    for name, values in operator.stores.items():
        if len(set(values.names)) < len(values.names):
            raise SchemaMismatch(f"store {name!r} has two columns of one name", hint=f"it has {values.names}")
    if operator.frames is Frames.PANDAS:
        try:
            import pandas  # noqa: F401
        except ImportError as error:
            raise UnsupportedEnvironment(
                "Frames.PANDAS needs pandas, which is not installed", hint="install pandas, or use Frames.ARROW"
            ) from error
    require_free_stores(operator)
    if not takes_batch(operator.update):
        _require_arguments(operator.update, 2, "the update function", "update(rows, state)")
    if operator.on_timer is not None:
        _require_arguments(operator.on_timer, 3, "on_timer", "on_timer(keys, state, batch)")
    try:
        cloudpickle.dumps(operator)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise UnusableFunction(
            f"the update function cannot be sent to Spark's workers: {' '.join(str(error).split())}",
            hint="create objects that cannot be pickled (session, lock, connection, open file) inside the function",
        ) from error


def _require_arguments(function: Callable[..., Any], count: int, what: str, declared: str) -> None:
    try:
        inspect.signature(function).bind(*(None,) * count)
    except TypeError as error:
        number = {2: "two", 3: "three"}[count]
        raise UnusableFunction(
            f"{what} does not take {number} arguments: {error}", hint=f"declare it as {declared}"
        ) from error
    except ValueError:
        pass  # functions written in C can lack a signature


def require_trigger(trigger: Mapping[str, Any] | None) -> None:
    """Raise `UnsupportedEnvironment` for a trigger that runs no batches."""
    if trigger and "continuous" in trigger:
        raise UnsupportedEnvironment(
            "a continuous trigger runs no batches", hint="use trigger={'processingTime': '0 seconds'}"
        )


def require_free_name(session: SparkSession, name: str | None) -> None:
    """Raise `UnsupportedEnvironment` for the name of an active query of the session."""
    active = next((one for one in session.streams.active if name is not None and one.name == name), None)
    if active is not None:
        raise UnsupportedEnvironment(
            f"a query with the name {name!r} is active in this session (id {active.id}); the query was not started",
            hint="choose another name, or first stop that query",
        )


def require_places_apart(places: Mapping[str, str]) -> None:
    """Raise `UnsupportedEnvironment` if two of the places (name -> URL) are equal or nested."""
    parts = {name: _parts(url) for name, url in places.items()}
    for name, mine in parts.items():
        for other, theirs in parts.items():
            if name != other and mine[: len(theirs)] == theirs:
                raise UnsupportedEnvironment(
                    f"the folder of the {name} ({places[name]}) is equal to or inside the folder of the {other} "
                    f"({places[other]})",
                    hint="choose a separate folder for each",
                )


def require_root(
    root: Storage,
    checkpoint: Storage,
    operator: StatefulOperator,
    columns: pa.Schema,
    structure: Structure,
    initial: InitialState | None = None,
    inputs: tuple[str, ...] = (),
    *,
    ticks: bool = False,
) -> tuple[ColumnChange, ...]:
    """Check that root and checkpoint belong together, and the columns of the initial rows if batch 0 will read them.
    Returns the changes of value columns that the next computed batch makes.

    Raises `ForeignRoot`, `RootLost`, `SchemaMismatch`, `OtherStructure`, `HalfSwitched`, `WrongInitial`, and `AccessDenied`
    for a folder that cannot be created.
    """
    for storage in (root, checkpoint):
        _require_writable(storage.url)
    metadata = read_or_none(checkpoint, names.QUERY_METADATA)
    query_id = None if metadata is None else logs.parse_metadata(metadata, names.QUERY_METADATA)
    wanted = Binding(
        root_id="",
        query_id=query_id or "a new query",
        partitions=1,
        key_groups=1,
        stores=store_schemas(operator, columns),
        initial=initial is not None,
        inputs=inputs,
        ticks=ticks,
    )
    committed = catalog.newest_batch(checkpoint)
    changes = require_startable(root, wanted, committed=committed, structure=structure, mappings=operator.mappings)
    if initial is not None and catalog.newest_batch(root) is None:
        _ = initial.frames
    return changes


def _require_writable(url: str) -> None:
    """Raise for a local folder that cannot be created or written. The permissions of a bucket show at the first write."""
    if not _is_local(url):
        return
    place = Path(*_parts(url))
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise StorageError(f"{place} is a file", path=url, hint="name a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise AccessDenied(f"{place} is not writable for this user", path=url, hint="correct its owner or its mode")


def _is_local(url: str) -> bool:
    return _parts(url)[0].startswith("/")


def _parts(url: str) -> tuple[str, ...]:
    scheme, found, rest = url.partition("://")
    if found and scheme != "file":
        return (f"{'s3' if scheme in ('s3a', 's3n') else scheme}:", *rest.strip("/").split("/"))
    return Path((rest if found else url).removeprefix("file:")).absolute().resolve().parts


def _require_distinct(problem: str, names: list[str]) -> None:
    # Spark and the sink's table resolve column names case-insensitively.
    counts = Counter(name.lower() for name in names)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise SchemaMismatch(f"{problem}: {twice}", hint="names that differ only in case are duplicates")


def _require_free_names(what: str, columns: list[str]) -> None:
    taken = sorted(set(columns) & set(_RESERVED))
    if taken:
        raise SchemaMismatch(f"{what} has columns that the operator adds itself: {taken}", hint="rename them")


def _require_order(column: StructField) -> None:
    for kind in _leaves(column.dataType):
        if isinstance(kind, MapType | VariantType):
            raise UnsupportedType(
                f"order column {column.name} holds {kind.simpleString()}, which has no order",
                hint="choose another order column",
            )


def _require_bytes_tell_equality(key: StructField) -> None:
    # Under a collation, equal strings can have different bytes. They are mixed in a sorted partition, so that one key
    # would be split into two pieces and become two keys in the state.
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
