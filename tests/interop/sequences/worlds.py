"""The checkpoints on which sequences are played: of a native query, and of a job on `pipelines`.

A world can run batches of real Spark, save and restore its checkpoint, and knows what the twin has after each input file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from statekeeper.pipelines.operator.declaration import StatefulOperator, Update
from statekeeper.pipelines.sinks.sink import AtLeastOnceSink
from statekeeper.pipelines.startup.query import start
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.pipelines.task.host import Host
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.cli import main
from statekeeper.statestore.format.file_sink import INTERVAL_CONF
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.verbs.contract import Maintainer
from tests.interop.oracle import is_of_the_machine
from tests.interop.sequences.model import Entry, History, Moment
from tests.support.edited_keys import a_key_of
from tests.support.native import (
    CHANGELOGS,
    DEFAULT_PROVIDER,
    FORMAT,
    ONLY_CHANGELOGS,
    OPERATORS,
    NativeQuery,
    state,
)
from tests.support.s3_server import CREDENTIALS, S3Server
from tests.support.twins import SHUFFLE_PARTITIONS

Rows = Counter[str]
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
_PARTITION = re.compile(r", partition_id=\d+|partition_id=\d+, ")
_EXPIRES = re.compile(r'"(ttlExpirationMs|expirationMs)": \d+')
MAINTAINER = Maintainer("a sequence", SystemClock(), RandomIds(), quiet_seconds=0.0)
"""It does not wait before it treats a query as stopped: nothing runs beside a sequence."""


class Failure(Exception):
    """The system broke a promise. `kind`: a short name, so that a smaller sequence can be compared with it."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind


@dataclass(frozen=True)
class Told:
    """The end of a command."""

    arguments: tuple[str, ...]
    exit_code: int
    stdout: str
    output: str

    def __str__(self) -> str:
        return f"statekeeper {' '.join(self.arguments)}: exit {self.exit_code}\n{self.output.strip()}"


def called(*arguments: object) -> Told:
    """Run the command in this process. Raises `Failure` if it ends with a traceback."""
    given = tuple(str(argument) for argument in arguments)
    done = CliRunner().invoke(main, given, obj=MAINTAINER)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise Failure("traceback", f"{' '.join(given)}: {done.exception!r}") from done.exception
    return Told(given, done.exit_code, done.stdout, done.output)


def _patiently(run: Callable[[], None]) -> None:
    """Run Spark, and again if the machine was too busy to start its Python workers: the query continues."""
    for _ in range(3):
        try:
            run()
        except Exception as error:
            if not is_of_the_machine(error):
                raise
        else:
            return
    run()


class Tree:
    """A folder on disk, or a prefix of a bucket, that is saved and restored as a whole."""

    def __init__(self, url: str, server: S3Server | None) -> None:
        self.url = url
        self._client: Any = None
        if "://" in url:
            assert server is not None
            self._client = _client(server)
            split = urlsplit(url)
            self._bucket, self._prefix = split.netloc, split.path.strip("/") + "/"

    def save(self, to: Path) -> None:
        """Copy it to a new folder."""
        if self._client is None:
            shutil.copytree(self.url, to, symlinks=True)
            return
        to.mkdir(parents=True)
        for key in self._keys():
            if key.endswith("/"):
                continue
            path = to / key.removeprefix(self._prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())

    def restore(self, copy: Path) -> None:
        """Replace it by a saved copy."""
        self.delete()
        if self._client is None:
            shutil.copytree(copy, self.url, symlinks=True)
            return
        for path in sorted(copy.rglob("*")):
            if path.is_file():
                key = self._prefix + str(path.relative_to(copy))
                self._client.put_object(Bucket=self._bucket, Key=key, Body=path.read_bytes())

    def delete(self) -> None:
        if self._client is None:
            shutil.rmtree(self.url, ignore_errors=True)
            return
        for key in self._keys():
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def files(self) -> dict[str, bytes]:
        """The files but those about Statekeeper's own runs."""
        if self._client is None:
            paths = (path for path in Path(self.url).rglob("*") if path.is_file())
            found = {str(path.relative_to(self.url)): path.read_bytes() for path in paths}
        else:
            found = {
                key.removeprefix(self._prefix): self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
                for key in self._keys()
                if not key.endswith("/")
            }
        return {path: data for path, data in found.items() if not path.startswith("_statekeeper/")}

    def put(self, path: str, data: bytes | None, *, keeps_checksum: bool = False) -> None:
        """Write a file as another tool does, by default without the hidden checksum beside it; None: delete it."""
        folder, _, name = path.rpartition("/")
        hidden = f"{folder}/.{name}.crc"
        if self._client is None:
            if not keeps_checksum:
                (Path(self.url) / hidden).unlink(missing_ok=True)
            place = Path(self.url) / path
            place.unlink(missing_ok=True)
            if data is not None:
                place.write_bytes(data)
            return
        if not keeps_checksum:
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + hidden)
        self._client.delete_object(Bucket=self._bucket, Key=self._prefix + path)
        if data is not None:
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + path, Body=data)

    def _keys(self) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]


def _client(server: S3Server) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=CREDENTIALS["region"],
        aws_access_key_id=CREDENTIALS["key"],
        aws_secret_access_key=CREDENTIALS["secret"],
    )


class World(ABC):
    """A stopped query with its checkpoint at `root`.

    history    what the checkpoint must contain
    undo       the commands that reverse the newest change, with the history before it
    label      what is played, for a person
    """

    label: str

    def __init__(self, spark: SparkSession, folder: Path, root: str, server: S3Server | None, entry: Entry) -> None:
        self.spark = spark
        self.folder = folder
        self.root = root
        self.server = server
        self.first = entry
        self.history = History()
        self.undo: tuple[list[list[str]], History] | None = None
        self.savepoints: list[tuple[str, Entry]] = []
        self.mirror: str | None = None
        self.mirror_is_behind = False
        self._places = 0

    @property
    @abstractmethod
    def is_job(self) -> bool: ...

    @property
    def sink(self) -> str | None:
        """The folder of Spark's file sink, if the query writes files."""
        return None

    @abstractmethod
    def trees(self) -> list[Tree]:
        """Everything that a run of Spark changes."""

    @abstractmethod
    def run_spark(self, entry: Entry, batches: int) -> dict[int, Rows]:
        """Run Spark on the checkpoint with so many further input files. Return the rows of each batch."""

    @abstractmethod
    def expected_rows(self, moment: Moment) -> Rows:
        """The rows of the batch that ends in the moment."""

    @abstractmethod
    def expected_state(self, moment: Moment) -> Rows: ...

    @abstractmethod
    def forked(self, entry: Entry, change: Mapping[str, Any]) -> Moment:
        """Return the moment of the checkpoint as it is now: its state was changed on purpose."""

    @abstractmethod
    def a_key(self) -> tuple[int, dict[str, Any]] | None:
        """An operator with a grouping key, and a key in its state; None if there is none."""

    @abstractmethod
    def at(self, root: str) -> None:
        """Continue with a copy of the checkpoint at another place."""

    def tree(self, root: str | None = None) -> Tree:
        return Tree(root or self.root, self.server)

    def another(self, what: str) -> Path:
        """A new path on local disk."""
        self._places += 1
        return self.folder / f"{what}-{self._places}"

    def another_root(self, what: str) -> str:
        """A new path beside the checkpoint."""
        self._places += 1
        if self.server is None or "://" not in self.root:
            return str(self.folder / f"{what}-{self._places}")
        return f"{self.root.rpartition('/')[0]}/{what}-{self._places}"

    @property
    def sink_options(self) -> list[str]:
        """The options of a verb that appends or removes batches."""
        return ["--file-sink", self.sink] if self.sink else []

    @property
    def options(self) -> list[str]:
        """The options of every verb that works on local disk."""
        return ["--scratch", str(self.folder / "scratch")]

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Restore the checkpoint, its copies and the model after the block."""
        trees = [*self.trees(), *([Tree(self.mirror, self.server)] if self.mirror else [])]
        before = dict(self.__dict__)
        copies = [self.another("saved") for _ in trees]
        for tree, copy in zip(trees, copies, strict=True):
            tree.save(copy)
        try:
            yield
        finally:
            places = self._places
            for tree, copy in zip(trees, copies, strict=True):
                tree.restore(copy)
                shutil.rmtree(copy)
            self.__dict__.update(before)
            self._places = places

    def state(self, root: str | None = None) -> Rows:
        """Every row as text, with operator, store and family, without its partition and its expiry."""
        told = called("dump", root or self.root, "--output", "jsonl", *self.options)
        if told.exit_code:
            raise Failure("dump", str(told))
        return rows_of(told.stdout)

    def run(self, batches: int) -> None:
        """Run batches on the checkpoint, and require the rows and the state of the twin."""
        history = self.history
        if not history.batches:
            history = History({-1: self.first})
        for _ in range(batches):
            history = history.appended(history.entry.next())
        found = self.run_spark(self.history.entry if self.history.batches else self.first, batches)
        self.undo = None
        self.history = replace(history, batches={n: one for n, one in history.batches.items() if n >= 0})
        before = self.history.newest - batches
        self.require_rows(found, {n: one for n, one in self.history.batches.items() if n > before})

    def require_rows(self, found: Mapping[int, Rows], batches: Mapping[int, Entry]) -> None:
        if {*found} != {*batches}:
            raise Failure("batches", f"Spark ran the batches {sorted(found)} and not {sorted(batches)}")
        for batch, entry in batches.items():
            expected = self.expected_rows(entry.moment)
            if found[batch] != expected:
                raise Failure("rows", f"batch {batch}: {difference(found[batch], expected)}")

    def require_state(self, entry: Entry, found: Rows | None = None) -> None:
        expected = self.expected_state(entry.moment)
        found = self.state() if found is None else found
        if found != expected:
            raise Failure("state", difference(found, expected))


def rows_of(lines: str) -> Rows:
    """The rows of `dump --output jsonl` as `World.state` shows them."""
    found: Rows = Counter()
    for line in lines.splitlines():
        row = json.loads(line)
        _, operator, _, *name = row["store"].split("/")
        text = json.dumps([operator, name, row["family"], row["key"], row["value"]], sort_keys=True)
        found[_EXPIRES.sub("", text)] += 1
    return found


def difference(found: Rows, expected: Rows) -> str:
    more, less = found - expected, expected - found
    few = [*(f"+ {row}" for row in list(more)[:3]), *(f"- {row}" for row in list(less)[:3])]
    return f"{more.total()} rows more, {less.total()} fewer than the twin: {'; '.join(few)}"


class NativeTwin:
    """The untouched query: its rows and its state after each input file, as far as a sequence has asked."""

    def __init__(self, spark: SparkSession, name: str, folder: Path) -> None:
        operator = OPERATORS[name]
        self._query = NativeQuery(spark, folder, operator, {FORMAT: "2", NO_DATA: "false", SHUFFLE_PARTITIONS: "2"})
        self._rows: list[Rows] = []
        self._states: list[Rows] = [Counter()]
        self._by_spark: dict[int, Mapping[str, Rows]] = {}

    def _advance(self, files: int) -> None:
        while len(self._rows) < files:
            batch = len(self._rows)
            self._query.run(1)
            told = called("dump", self._query.root, "--output", "jsonl")
            self._rows.append(self._query.outputs[batch])
            self._states.append(rows_of(told.stdout))

    def rows(self, files: int) -> Rows:
        self._advance(files)
        return self._rows[files - 1]

    def state(self, files: int) -> Rows:
        self._advance(files)
        return self._states[files]

    def state_by_spark(self, files: int) -> Mapping[str, Rows]:
        """The state as Spark's own reader shows it, without partitions."""
        self._advance(files)
        if files not in self._by_spark:
            self._by_spark[files] = without_partitions(state(self._query, batch=files - 1))
        return self._by_spark[files]


def without_partitions(views: Mapping[str, Rows]) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for view, shown in views.items():
        found[view] = Counter()
        for row, times in shown.items():
            found[view][_PARTITION.sub("", row)] += times
    return found


class FileSinkQuery(NativeQuery):
    """A query that writes files with Spark's file sink. The log of the sink tells the rows of each batch."""

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def with_sink(self, rows: DataFrame) -> DataStreamWriter:
        self._schema = rows.schema
        return rows.writeStream.format("parquet").option("path", str(self.output))

    def run(self, batches: int) -> None:
        before = self._logs()
        super().run(batches)
        known: set[str] = set()
        for batch, files in self._logs().items():
            if batch not in before:
                added = [path for path in files if path not in known]
                frame = self.spark.read.schema(self._schema).parquet(*added) if added else None
                self.outputs[batch] = Counter() if frame is None else Counter(map(str, frame.collect()))
            known.update(files)

    def _logs(self) -> dict[int, list[str]]:
        """The files that each entry of the log names; those of a compaction name the earlier ones, too."""
        found = {}
        for path in (self.output / "_spark_metadata").glob("[0-9]*"):
            files = [json.loads(line)["path"] for line in path.read_text().splitlines()[1:] if line]
            found[int(path.name.removesuffix(".compact"))] = [unquote(urlsplit(file).path) for file in files]
        return dict(sorted(found.items()))

    def visible_rows(self) -> Rows:
        """The rows that a reader of the folder finds."""
        return Counter(map(str, self.spark.read.schema(self._schema).parquet(str(self.output)).collect()))


@dataclass
class _Fork:
    """A plain copy of a checkpoint whose state was changed on purpose, which only Spark runs."""

    entry: Entry
    root: str
    saved: Path
    rows: dict[int, Rows] = field(default_factory=dict)
    states: dict[int, Rows] = field(default_factory=dict)


class NativeWorld(World):
    """A query of Spark's own operators."""

    is_job = False

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        operator: str,
        entry: Entry,
        twin: NativeTwin,
        *,
        server: S3Server | None = None,
        confs: Mapping[str, str] | None = None,
        has_file_sink: bool = False,
    ) -> None:
        kind = FileSinkQuery if has_file_sink else NativeQuery
        more = {INTERVAL_CONF: "3"} if has_file_sink else {}
        self.query = kind(spark, folder / "query", OPERATORS[operator], {NO_DATA: "false", **more, **(confs or {})})
        # Of a fork, which has no files of its own.
        self._without_sink = NativeQuery(spark, folder / "query", OPERATORS[operator], {})
        root = str(self.query.checkpoint)
        if server is not None:
            root = f"s3://{server.make_bucket()}/jobs/checkpoint"
            # A URL and no Path: Spark gets its text.
            self.query.checkpoint = root.replace("s3://", "s3a://")  # type: ignore[assignment]
        super().__init__(spark, folder, root, server, entry)
        self.operator = operator
        self.twin = twin
        self._confs = dict(self.query.confs)
        self._forks: dict[int, _Fork] = {}
        place = "S3" if server else "disk"
        mode = ", a zip per version" if self._confs.get(CHANGELOGS) == "false" else ""
        mode += ", file sink" if has_file_sink else ""
        self.label = (
            f"{operator}, {entry.provider.option} {entry.structure.value}, {entry.partitions} partitions, {place}{mode}"
        )

    @property
    def sink(self) -> str | None:
        return str(self.query.output) if isinstance(self.query, FileSinkQuery) else None

    def trees(self) -> list[Tree]:
        return [self.tree(), *([Tree(self.sink, None)] if self.sink else [])]

    def confs_of(self, entry: Entry) -> dict[str, str]:
        confs = {**self._confs, FORMAT: entry.structure.value[1:], SHUFFLE_PARTITIONS: str(entry.partitions)}
        if entry.provider is Provider.HDFS_BACKED:
            confs = {**{key: one for key, one in confs.items() if key not in ONLY_CHANGELOGS}, **DEFAULT_PROVIDER}
        return confs

    def run_spark(self, entry: Entry, batches: int) -> dict[int, Rows]:
        return self._run(self.query, entry, batches)

    def _run(self, query: NativeQuery, entry: Entry, batches: int) -> dict[int, Rows]:
        query.checkpoint = self.query.checkpoint
        query.confs = self.confs_of(entry)
        for side in ("left", "right"):
            for path in (query.folder / side).glob("*.parquet"):
                if int(path.stem) >= entry.consumed:
                    path.unlink()
        query.outputs = {}

        def run() -> None:
            query.batches = entry.consumed
            query.run(batches)

        _patiently(run)
        return dict(query.outputs)

    def expected_rows(self, moment: Moment) -> Rows:
        if not moment.lineage:
            return self.twin.rows(moment.files)
        return self._fork(moment).rows[moment.files]

    def expected_state(self, moment: Moment) -> Rows:
        if not moment.lineage:
            return self.twin.state(moment.files)
        return self._fork(moment).states[moment.files]

    def _fork(self, moment: Moment) -> _Fork:
        fork = self._forks[moment.lineage]
        while moment.files not in fork.states:
            with self._elsewhere(fork.root), self.trial():
                self.tree().restore(fork.saved)
                [rows] = self._run(self._without_sink, fork.entry, 1).values()
                fork.entry = fork.entry.next()
                fork.rows[fork.entry.moment.files] = rows
                fork.states[fork.entry.moment.files] = self.state()
                shutil.rmtree(fork.saved)
                self.tree().save(fork.saved)
        return fork

    def forked(self, entry: Entry, change: Mapping[str, Any]) -> Moment:
        del change
        lineage = len(self._forks) + 1
        moment = Moment(lineage, 0)
        saved = self.another("fork")
        self.tree().save(saved)
        rows = {0: self.expected_rows(entry.moment)}
        self._forks[lineage] = _Fork(replace(entry, moment=moment), self.root, saved, rows, {0: self.state()})
        return moment

    @contextmanager
    def _elsewhere(self, root: str) -> Iterator[None]:
        """The place where the checkpoint was: schemas contain its path."""
        before = self.root
        self.at(root)
        try:
            yield
        finally:
            self.at(before)

    def at(self, root: str) -> None:
        self.root = root
        self.query.checkpoint = root.replace("s3://", "s3a://") if "://" in root else Path(root)  # type: ignore[assignment]

    def a_key(self) -> tuple[int, dict[str, Any]] | None:
        return a_key_of(self.root)  # type: ignore[arg-type]

    def require_visible_rows(self) -> None:
        """Require that a reader of the file sink finds the rows of each batch once."""
        if not isinstance(self.query, FileSinkQuery):
            return
        expected: Rows = Counter()
        consumed = 0
        for _, entry in sorted(self.history.batches.items()):
            if entry.consumed > consumed:
                expected += self.expected_rows(entry.moment)
            consumed = entry.consumed
        if (found := self.query.visible_rows()) != expected:
            raise Failure("rows of the file sink", difference(found, expected))

    def state_by_spark(self) -> Mapping[str, Rows]:
        self.query.confs = self.confs_of(self.history.entry)
        return without_partitions(state(self.query))


ROWS = pa.schema([("key", pa.int64()), ("number", pa.int64())])
VALUES = pa.schema([("count", pa.int64()), ("total", pa.int64())])
OUTPUT = pa.schema([*ROWS, *VALUES])
KEY_GROUPS = 16


def _count(rows: pa.Table, state: pa.Table) -> Update:
    """One output row for each row: how many its key had so far, this one included, and their sum."""
    held = {row["key"]: (row["count"], row["total"]) for row in state.to_pylist()}
    output = []
    for row in rows.to_pylist():
        count, total = held.get(row["key"], (0, 0))
        held[row["key"]] = count + 1, total + row["number"]
        output.append({**row, "count": count + 1, "total": total + row["number"]})
    new = [{"key": key, "count": count, "total": total} for key, (count, total) in held.items()]
    return Update(
        pa.Table.from_pylist(output, OUTPUT), pa.Table.from_pylist(new, pa.schema([ROWS.field("key"), *VALUES]))
    )


COUNTING = StatefulOperator(["key"], ["number"], state=VALUES, output=OUTPUT, update=_count)


def _given(file: int) -> list[tuple[int, int]]:
    return [((n * (file + 3)) % 17, file * 1000 + n) for n in range(20)]


class JobWorld(World):
    """A job on `pipelines`: a state root, and the checkpoint of the query. A recomputation takes the place of a twin."""

    is_job = True

    def __init__(
        self, spark: SparkSession, folder: Path, entry: Entry, log: LogLayout, *, server: S3Server | None = None
    ) -> None:
        root = str(folder / "root") if server is None else f"s3://{server.make_bucket()}/jobs/root"
        super().__init__(spark, folder, root, server, entry)
        self.log = log
        self.checkpoint = str(folder / "checkpoint")
        self.input = folder / "input"
        self.input.mkdir(parents=True)
        self._states: dict[Moment, dict[int, tuple[int, int]]] = {Moment(0, 0): {}}
        self._rows: dict[Moment, Rows] = {}
        self._consumed: dict[int, int] = {0: 0}
        place = "S3" if server else "disk"
        self.label = f"job, {log.value} {entry.structure.value}, {entry.partitions} partitions, {place}"

    def trees(self) -> list[Tree]:
        return [self.tree(), Tree(self.checkpoint, None)]

    def run_spark(self, entry: Entry, batches: int) -> dict[int, Rows]:
        for path in self.input.glob("*.parquet"):
            if int(path.stem) >= entry.consumed:
                path.unlink()
        for file in range(entry.consumed, entry.consumed + batches):
            path = self.input / f"{file:05}.parquet"
            pq.write_table(
                pa.Table.from_pylist([dict(zip(ROWS.names, one, strict=True)) for one in _given(file)], ROWS), path
            )
            os.utime(path, (file, file))
        found: dict[int, Rows] = {}

        def keep(rows: DataFrame, batch: int) -> None:
            found[batch] = Counter(str(tuple(row)) for row in rows.collect())

        stream = self.spark.readStream.schema("key bigint, number bigint").option("maxFilesPerTrigger", 1)

        def run() -> None:
            query = start(
                COUNTING,
                stream.parquet(str(self.input)),
                root=self.root,
                checkpoint=self.checkpoint,
                sink=AtLeastOnceSink(keep),
                partitions=entry.partitions,
                key_groups=KEY_GROUPS,
                tasks=1,
                structure=entry.structure,
                log=self.log if entry.structure is Structure.V2 else LogLayout.STORES,
                host=Host(str(self.folder / "local")),
                trigger={"availableNow": True},
            )
            query.await_termination()

        _patiently(run)
        return found

    def expected_rows(self, moment: Moment) -> Rows:
        self._compute(moment)
        return self._rows[moment]

    def expected_state(self, moment: Moment) -> Rows:
        self._compute(moment)
        found: Rows = Counter()
        for key, (count, total) in self._states[moment].items():
            found[f"{key}: {count}, {total}"] += 1
        return found

    def state(self, root: str | None = None) -> Rows:
        told = called("dump", root or self.root, "--output", "jsonl", *self.options)
        if told.exit_code:
            raise Failure("dump", str(told))
        rows = [json.loads(line) for line in told.stdout.splitlines()]
        return Counter(f"{row['key']['key']}: {row['value']['count']}, {row['value']['total']}" for row in rows)

    def _compute(self, moment: Moment) -> None:
        if moment in self._states:
            return
        before = Moment(moment.lineage, moment.files - 1)
        self._compute(before)
        held = dict(self._states[before])
        rows: Rows = Counter()
        for key, number in _given(self._consumed[moment.lineage] + before.files):
            count, total = held.get(key, (0, 0))
            held[key] = count + 1, total + number
            rows[str((key, number, *held[key]))] += 1
        self._states[moment], self._rows[moment] = held, rows

    def forked(self, entry: Entry, change: Mapping[str, Any]) -> Moment:
        """`change`: {"delete": key}, or {"load": the moment of a savepoint}."""
        lineage = len(self._consumed)
        self._consumed[lineage] = entry.consumed
        source = change.get("load", entry.moment)
        self._compute(source)
        held = dict(self._states[source])
        if "delete" in change:
            del held[change["delete"]]
        moment = Moment(lineage, 0)
        self._states[moment] = held
        return moment

    def at(self, root: str) -> None:
        self.root = root

    def a_key(self) -> tuple[int, dict[str, Any]] | None:
        held = sorted(self.state())
        return (0, {"key": int(held[0].partition(":")[0])}) if held else None
