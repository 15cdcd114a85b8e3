"""What the tasks of a rewrite on a cluster hand to each other, as objects below the root: the spool of many hosts.

    source-<number>-<attempt>.rows      the rows of one source: a sorted run for each target, one after the other
    target-<number>-<attempt>.snapshot  the zip or the file of a new snapshot, which is not published yet
    ….json                              the result of the task: its object is complete, and the next run uses it

Two attempts at one item have different names, so that both may run at the same time; the driver chooses one of them. A run
is an Arrow stream of keys and values in the order of the keys. A task that builds a target reads its runs by ranges, and
merges them as the parts of a local spool.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

import pyarrow as pa
from msgspec import Meta

from statekeeper.statestore.base.errors import CorruptFile, StatekeeperError
from statekeeper.statestore.format import json_records, names
from statekeeper.statestore.format.json_records import About, CheckpointId, Count, TableName
from statekeeper.statestore.format.snapshot import SnapshotMetadata
from statekeeper.statestore.maintenance.rewrites.whole_stores.spool import OpenPart, Pairs
from statekeeper.statestore.storage import Storage, at_once

SOURCE, TARGET = "source", "target"
ROWS, SNAPSHOT, RECORD = "rows", "snapshot", "json"

_FORMAT: Literal[1] = 1
"""The format of records and runs. A run of another release with another format is made again."""
_ABOUT = About("result of a task of a rewrite")
_SCHEMA = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])
_FETCHED_BYTES = 4 * 1024 * 1024
"""Bytes of a request; several run at a time."""

RowsText = Annotated[str, Meta(pattern=r"\A[0-9]{1,19}:[0-9a-f]{32}\Z")]
"""A digest of rows, see `RowsDigest`."""


@dataclass(frozen=True, kw_only=True)
class SortedSource:
    """A source whose rows are sorted by target.

    lengths  the bytes of the run of each target, in the order of the targets; 0 without rows
    digest   of its rows
    base     the snapshot that names its column families, without its tables
    """

    attempt: CheckpointId
    lengths: tuple[Count, ...]
    digest: RowsText
    base: SnapshotMetadata | None

    @property
    def has_object(self) -> bool:
        """Whether it has rows."""
        return any(self.lengths)


@dataclass(frozen=True, kw_only=True)
class BuiltTarget:
    """A new snapshot that is not published yet. `digest`, `compared`: of its rows as they are stored, and as they are
    compared; `tables`: their names in storage."""

    attempt: CheckpointId
    digest: RowsText
    compared: RowsText
    tables: tuple[TableName, ...]
    has_object: ClassVar[bool] = True


Kind = TypeVar("Kind", SortedSource, BuiltTarget)


@dataclass(frozen=True, slots=True)
class Run:
    """The rows of one source for one target: a range of an object."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True)
class Handed:
    """The objects of one group of stores, in the folder `path` of the root `storage`."""

    storage: Storage
    path: str

    def file(self, part: str, number: int, attempt: str, suffix: str) -> str:
        """Return the path of an object of an attempt."""
        return f"{self.path}/{names.handed(part, number, attempt, suffix)}"

    def note(self, part: str, number: int, result: SortedSource | BuiltTarget) -> None:
        """Record the result of a task, after its object. Raises `StorageError`."""
        record = {"format": _FORMAT, **json_records.as_json(result)}
        path = self.file(part, number, result.attempt, RECORD)
        self.storage.create(path, json_records.encoded(record, compact=True))

    def noted(self, part: str, kind: type[Kind]) -> Mapping[int, Kind]:
        """Return the results that an interrupted run recorded, by the number of the item; of several attempts, any. One
        listing, and one request for each. Raises `StorageError`."""
        there = {
            parsed: entry.path for entry in self.storage.list(self.path) if (parsed := names.parse_handed(entry.path))
        }
        records = {
            number: (attempt, path)
            for (of, number, attempt, suffix), path in there.items()
            if (of, suffix) == (part, RECORD)
        }
        objects = {(number, attempt) for of, number, attempt, suffix in there if of == part and suffix != RECORD}
        found: dict[int, Kind] = {}

        def read(number: int) -> None:
            attempt, path = records[number]
            try:
                result = json_records.decoded(kind, self.storage.read(path), path, _ABOUT, only_format=_FORMAT)
            except CorruptFile:
                return  # of another release, or damaged: the task runs again
            if result.attempt == attempt and ((number, attempt) in objects or not result.has_object):
                found[number] = result

        at_once(read, list(records))
        return found

    def runs(self, sources: Sequence[SortedSource], targets: int) -> list[tuple[Run, ...]]:
        """Return the runs of each target, by its place among `targets`. `sources`: by their numbers."""
        found: list[list[Run]] = [[] for _ in range(targets)]
        for number, source in enumerate(sources):
            path = self.file(SOURCE, number, source.attempt, ROWS)
            begins = accumulate(source.lengths, initial=0)
            for of_target, begin, length in zip(found, begins, source.lengths, strict=False):
                if length:
                    of_target.append(Run(path, begin, length))
        return [tuple(of_target) for of_target in found]

    def clear(self) -> None:
        """Delete all objects. Raises `StorageError`."""
        self.storage.delete([entry.path for entry in self.storage.list(self.path)])


def write_runs(spool: OpenPart, targets: Sequence[int], sources: int, path: Path) -> tuple[int, ...]:
    """Write the rows of a spool as runs into a new local file. Return the bytes of each.

    `targets`: the numbers of the partitions; `sources`: the number of runs that are merged later.
    """
    ends = []
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as file:
        for target in targets:
            writer = None
            for keys, values in spool.rows_of(target, sources):
                writer = writer or pa.ipc.new_stream(file, _SCHEMA, options=options)
                columns = [pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary())]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
            if writer is not None:
                writer.close()
            ends.append(file.tell())
    return tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))


@contextmanager
def fetched(storage: Storage, runs: Sequence[Run], path: Path) -> Iterator[Sequence[FetchedRun]]:
    """Fetch runs into a new local file, and open it for the body of a `with` statement. Raises `CorruptFile`,
    `ObjectMissing`, `StorageError`."""
    begins = [*accumulate((run.length for run in runs), initial=0)]
    pieces = [
        (run, begin, at, min(_FETCHED_BYTES, run.length - at))
        for run, begin in zip(runs, begins, strict=False)
        for at in range(0, run.length, _FETCHED_BYTES)
    ]
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:

        def fetch(piece: tuple[Run, int, int, int]) -> None:
            run, begin, at, length = piece
            data = storage.read_range(run.path, run.offset + at, length)
            if len(data) != length:
                raise _damaged(run, f"ends after {run.offset + at + len(data):,} bytes")
            written = 0
            while written < length:
                written += os.pwrite(descriptor, data[written:], begin + at + written)

        at_once(fetch, pieces)
    finally:
        os.close(descriptor)
    with pa.OSFile(str(path), "rb") as file:
        yield [FetchedRun(file, run, begin) for run, begin in zip(runs, begins, strict=False)]


@dataclass(frozen=True)
class FetchedRun:
    """A run in an open local file, from the byte `begin` on."""

    file: pa.OSFile
    run: Run
    begin: int

    def reading(self) -> AbstractContextManager[FetchedRun]:
        """Return the run itself: its file is open."""
        return nullcontext(self)

    def rows_of(self, target: int, parts: int) -> Iterator[Pairs]:
        """Iterate over its rows, which all have this target. Raises `CorruptFile`."""
        del target, parts
        try:
            with pa.ipc.open_stream(self.file.get_stream(self.begin, self.run.length)) as batches:
                if batches.schema != _SCHEMA:
                    raise _damaged(self.run, "has other columns")
                for batch in batches:
                    keys, values = (column.to_pylist() for column in batch.columns)
                    yield keys, values
        except StatekeeperError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise _damaged(self.run, f"cannot be read as sorted rows: {error}") from error


def _damaged(run: Run, what: str) -> CorruptFile:
    return CorruptFile(
        f"is damaged: it {what}; no snapshot was published from it",
        path=run.path,
        hint="run this command again: it sorts the rows anew",
    )
