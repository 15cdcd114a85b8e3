"""A small stateful job for stress tests: it counts and sums the rows of each key, and stamps its output and state.

Each call of the update function uses a new stamp. It shows if the rows are of one attempt and the state of another,
although both have the same counts and sums.

    <folder>/input  output      Delta
    <folder>/checkpoint         of the streaming query
    <folder>/root               the state
    <folder>/local              the host's copies, unless a job takes another folder

`python -m tests.support.counting FOLDER ...` runs it in its own process, for another master or for a kill.
"""

from __future__ import annotations

import argparse
import os
import pickle
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader

from statekeeper.pipelines.batch.driver import BatchDriver
from statekeeper.pipelines.batch.initial import InitialState
from statekeeper.pipelines.batch.progress import BatchReport, Phase
from statekeeper.pipelines.batch.snapshots import SnapshotWatch
from statekeeper.pipelines.operator.declaration import Frames, StatefulOperator, Update
from statekeeper.pipelines.sinks.data_files import DataFile, OutputFiles
from statekeeper.pipelines.sinks.delta_writer import Writer
from statekeeper.pipelines.sinks.sink import Attempt, DeltaSink, Sink
from statekeeper.pipelines.startup.query import StatefulQuery
from statekeeper.pipelines.startup.session import spark_session
from statekeeper.pipelines.task.batch_log import LogLayout
from statekeeper.pipelines.task.host import Host
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.format.state_rows import decode_keys, decode_values
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.copies import unpack
from statekeeper.statestore.storage import StorageSpec, open_storage
from statekeeper.statestore.store.state_store import StateStore, StoreAddress
from tests.support import tasks
from tests.support.sparks_reader import state_rows

INPUT = pa.schema([("key", pa.int64()), ("number", pa.int64())])
VALUES = pa.schema([("count", pa.int64()), ("total", pa.int64()), ("stamp", pa.string())])
OUTPUT = pa.schema([*INPUT, *VALUES])
KEY_GROUPS = 32
RIGHT = ["key", "number", "count", "total"]


def count(rows: pd.DataFrame, state: pd.DataFrame) -> Update:
    """One output row for each row: how many its key had so far, this one included, and their sum."""
    rows = rows.reset_index(drop=True)
    before = rows[["key"]].merge(state, on="key", how="left")[["count", "total"]].fillna(0).astype("int64")
    of_key = rows.groupby("key")
    output = rows.assign(
        count=before["count"] + of_key.cumcount() + 1,
        total=before["total"] + of_key["number"].cumsum(),
        stamp=str(uuid.uuid4()),
    )
    return Update(output, output.groupby("key", as_index=False).last().drop(columns="number"))


def count_alike(rows: pd.DataFrame, state: pd.DataFrame) -> Update:
    """The same state and rows in each attempt, as structure V1 requires it."""
    update = count(rows, state)
    return Update(update.output.assign(stamp=""), update.state.assign(stamp=""))


def count_for_two(rows: pd.DataFrame, state: pd.DataFrame) -> Update:
    """The same rows for two outputs."""
    update = count(rows, state)
    return replace(update, output={"output": update.output, "again": update.output})


OPERATOR = StatefulOperator(["key"], ["number"], state=VALUES, output=OUTPUT, update=count, frames=Frames.PANDAS)
ALIKE = replace(OPERATOR, update=count_alike)
OF_TWO_OUTPUTS = replace(OPERATOR, output={"output": OUTPUT, "again": OUTPUT}, update=count_for_two)


def rows_of(batch: int, rows: int = 40, keys: int = 12) -> pd.DataFrame:
    """Return the rows of a batch: always the same, with each number once."""
    random = np.random.default_rng(batch)
    return pd.DataFrame({"key": random.integers(0, keys, rows), "number": batch * 1_000_000 + np.arange(rows)})


class Watching:
    """Records the reports of batches. `act` is called when a batch enters a phase."""

    def __init__(self, act: Callable[[int, Phase], None] = lambda batch, phase: None) -> None:
        self.reports: list[BatchReport] = []
        self._act = act

    def phase(self, batch: int, phase: Phase) -> None:
        self._act(batch, phase)

    def finished(self, report: BatchReport) -> None:
        self.reports.append(report)


def once(batch: int, phase: Phase, act: Callable[[], None]) -> Watching:
    """Does `act` when `batch` enters `phase` for the first time."""
    left = [act]
    return Watching(lambda b, p: left.pop()() if (b, p) == (batch, phase) and left else None)


@dataclass
class Job:
    """The counting job in its own folder, and its expected result."""

    folder: Path
    partitions: int = 2
    local_folder: str = ""
    sink: Sink | dict[str, Sink] | None = None
    driver: type[BatchDriver] = BatchDriver
    warnings: list[str] = field(default_factory=list)
    structure: Structure = Structure.V2
    log: LogLayout = LogLayout.STORES
    writer: Writer = Writer.SPARK
    merges: bool = False
    """Whether the sink merges the rows by their number, which each row has once."""
    has_two_outputs: bool = False
    """Whether a second table, whose files the tasks write, gets the same rows."""
    is_alike: bool = False
    """Whether each attempt of a batch has the same state and rows."""
    initial: str = ""
    """Parquet files of the first state, if there are any."""

    def __post_init__(self) -> None:
        if not DeltaTable.is_deltatable(str(self.input)):
            write_deltalake(str(self.input), INPUT.empty_table())

    @property
    def input(self) -> Path:
        return self.folder / "input"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def query_id(self) -> str:
        return logs.parse_metadata((self.checkpoint / "metadata").read_bytes(), "metadata")

    @property
    def fed(self) -> int:
        """How many batches are in the input."""
        return int(DeltaTable(str(self.input)).version())

    def feed(self, batches: int, rows: Callable[[int], pd.DataFrame] = rows_of) -> Job:
        """Append batches: one commit with one file each."""
        for _ in range(batches):
            table = pa.Table.from_pandas(rows(self.fed), schema=INPUT, preserve_index=False)
            write_deltalake(str(self.input), table, mode="append")
        return self

    def batch_driver(self, columns: pa.Schema, observer: Watching) -> BatchDriver:
        initial = InitialState(OPERATOR, columns, lambda: SparkSession.active().read.parquet(self.initial))
        return self.driver(
            OF_TWO_OUTPUTS if self.has_two_outputs else ALIKE if self.is_alike else OPERATOR,
            columns,
            root=StorageSpec(str(self.root)),
            checkpoint=open_storage(str(self.checkpoint)),
            sink=self.sink or self.sinks(),
            host=Host(self.local_folder or str(self.folder / "local")),
            partitions=self.partitions,
            key_groups=KEY_GROUPS,
            structure=self.structure,
            log=self.log,
            initial=initial if self.initial else None,
            clock=SystemClock(),
            ids=RandomIds(),
            observer=observer,
            warn=self.warnings.append,
        )

    def sinks(self) -> Sink | dict[str, Sink]:
        merge_on = ["number"] if self.merges else None
        sink = DeltaSink(str(self.folder / "output"), writer=self.writer, merge_on=merge_on)
        again = DeltaSink(str(self.folder / "again"), writer=Writer.TASKS)
        return {"output": sink, "again": again} if self.has_two_outputs else sink

    def reader(self, session: SparkSession) -> DataStreamReader:
        """One file of the input in each batch."""
        return session.readStream.format("delta").option("startingVersion", 1).option("maxFilesPerTrigger", 1)

    def start(self, session: SparkSession, observer: Watching | None = None) -> StatefulQuery:
        stream = self.reader(session).load(str(self.input))
        driver = self.batch_driver(to_arrow_schema(stream.schema, timezone="UTC"), observer or Watching())
        writer = stream.writeStream.foreachBatch(driver).option("checkpointLocation", str(self.checkpoint))
        watch = SnapshotWatch(driver.look_for_snapshots, 1000.0, self.warnings.append)
        query = writer.trigger(availableNow=True).start()
        watch.start()
        return StatefulQuery(query, driver, watch)

    def run(self, session: SparkSession, observer: Watching | None = None) -> list[BatchReport]:
        """Process the whole input. Raises the error that ended the query."""
        observer = observer or Watching()
        self.start(session, observer).await_termination()
        return observer.reports

    def run_one(self, driver: BatchDriver, rows: DataFrame, batch: int, query_id: str) -> None:
        """Hand one batch to a driver as Spark would, where two queries of one id cannot run in one context."""
        rows.sparkSession.sparkContext.setLocalProperty("sql.streaming.queryId", query_id)
        outer = logs.OffsetLog(watermark_ms=0, timestamp_ms=0, conf={}, sources=(f'{{"batch":{batch}}}',))
        open_storage(str(self.checkpoint)).create(names.offsets(batch), logs.encode_offsets(outer))
        driver(rows, batch)

    def ids(self, batch: int) -> tuple[str, ...]:
        """The checkpoint ids of the partitions in the root's commit log; in structure V1 their digests."""
        path = names.commits(batch)
        log = logs.parse_commit((self.root / path).read_bytes(), path)
        ids = log.digests if self.structure is Structure.V1 else log.ids
        assert ids is not None
        return tuple(of_partition[0] for of_partition in ids[0])

    def committed(self) -> int:
        """How many batches the root has committed."""
        return max(int(path.name) for path in (self.root / "commits").iterdir() if path.name.isdecimal()) + 1

    def store(self, batch: int, partition: int, folder: Path) -> StateStore:
        """The store of a partition as batch `batch` left it, loaded into `folder`."""
        mark = self.ids(batch)[partition]
        is_v1 = self.structure is Structure.V1
        return StateStore.load(
            StoreAddress(StorePath(0, partition), folder),
            VersionId(batch + 1, None if is_v1 else mark, mark if is_v1 else None),
            storage=open_storage(str(self.root)),
            clock=SystemClock(),
            ids=RandomIds(),
            structure=self.structure,
        )

    def state(self) -> pd.DataFrame:
        """The newest committed state, loaded from the root alone."""
        batch = self.committed() - 1
        found = []
        for partition in range(len(self.ids(batch))):
            with self.store(batch, partition, self.folder / f"audit-{uuid.uuid4()}") as store:
                pairs = list(store.scan())
            keys = decode_keys(pa.array([key for key, _ in pairs], pa.large_binary()), pa.schema([INPUT.field("key")]))
            values = decode_values(pa.array([value for _, value in pairs], pa.large_binary()), VALUES)
            found.append(pd.concat([keys.to_pandas(), values.to_pandas()], axis=1))
        return pd.concat(found).sort_values("key", ignore_index=True)

    def state_by_spark(self, session: SparkSession) -> pd.DataFrame:
        """The newest committed state, as Spark's own reader finds it. Batch logs are unpacked first."""
        storage = open_storage(str(self.root))
        list(unpack.execute(storage, unpack.plan(unpack.gather(storage))))
        rows = state_rows(session, str(self.root), structure=self.structure).selectExpr("key.key", "value.*")
        return rows.toPandas().sort_values("key", ignore_index=True)

    def output(self, table: str = "output") -> pd.DataFrame:
        rows = DeltaTable(str(self.folder / table)).to_pandas()
        return rows.sort_values("number", ignore_index=True)

    def expected(self, batches: int) -> pd.DataFrame:
        rows = pd.concat([rows_of(batch) for batch in range(batches)], ignore_index=True)
        of_key = rows.groupby("key")
        rows = rows.assign(count=of_key.cumcount() + 1, total=of_key["number"].cumsum())
        if self.initial:
            first = rows[["key"]].merge(self.initial_rows(), on="key", how="left").fillna({"count": 0, "total": 0})
            rows = rows.assign(count=rows["count"] + first["count"], total=rows["total"] + first["total"])
        return rows.sort_values("number", ignore_index=True)

    def initial_rows(self) -> pd.DataFrame:
        return pd.read_parquet(self.initial)

    def assert_right(self, batches: int, session: SparkSession | None = None) -> None:
        """Output and state are those of `batches` batches, each row once, and of the same attempts."""
        expected = self.expected(batches)
        output = self.output()
        pd.testing.assert_frame_equal(output[RIGHT], expected[RIGHT], check_dtype=False)
        if self.has_two_outputs:
            pd.testing.assert_frame_equal(self.output("again"), output)
        state = self.state()
        last = output.groupby("key", as_index=False).last()[["key", "count", "total", "stamp"]]
        if self.initial:
            first = self.initial_rows()
            kept = first[~first["key"].isin(last["key"])]
            last = pd.concat([last, kept]).sort_values("key", ignore_index=True)
        pd.testing.assert_frame_equal(state, last, check_dtype=False)
        if session is not None:
            pd.testing.assert_frame_equal(self.state_by_spark(session), last, check_dtype=False)


V2, V1, ONE_JOB, MERGING, TWO_OUTPUTS = "v2", "v1", "one job", "merging", "two outputs"
MERGING_AND_FILES = "merging and files, batch logs"


def variant(folder: Path, name: str) -> Job:
    """Return a job that writes rows through Spark, in either structure, that merges them, that writes files and batch
    logs from its tasks, or that does both for two outputs, also with merges and batch logs."""
    if name == ONE_JOB:
        return Job(folder, writer=Writer.TASKS, log=LogLayout.BATCH)
    if name == MERGING:
        return Job(folder, merges=True)
    if name == TWO_OUTPUTS:
        return Job(folder, has_two_outputs=True)
    if name == MERGING_AND_FILES:
        return Job(folder, merges=True, has_two_outputs=True, log=LogLayout.BATCH)
    return Job(folder, structure=Structure(name))


@dataclass(frozen=True)
class ReadsTwice(DeltaSink):
    """Reads the operator's output twice before it writes it: each time the same, or nothing may be written."""

    def write(self, rows: DataFrame, attempt: Attempt) -> None:
        first, again = (sorted(tuple(row) for row in rows.collect()) for _ in range(2))
        assert first == again, "two readings of the operator's output differ"
        super().write(rows, attempt)


@dataclass(frozen=True)
class DiesBetweenSinks(DeltaSink):
    """Kills the driver before it commits the files of a batch: another sink has the batch already."""

    batch: int = -1

    def commit_files(self, plan: OutputFiles, files: Sequence[DataFile], attempt: Attempt) -> None:
        if attempt.batch == self.batch:
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit_files(plan, files, attempt)


def killing(batch: str, phase: str, process: Callable[[], int]) -> Watching:
    """Ends a process when the batch enters the phase, as a power cut would."""
    return once(int(batch), Phase[phase], lambda: os.kill(process(), signal.SIGKILL))


def stopping(batch: str, phase: str) -> Watching:
    """Stops this process when the batch enters the phase.

    Sent to the process, the signal goes to any of its threads, and until that one runs, the batch can go on to its end.
    """
    return once(int(batch), Phase[phase], lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP))


def in_a_process(
    job: Job, *options: str, timeout_seconds: float = 400, code: int = 0
) -> tuple[list[BatchReport], list[str]]:
    """Process the input in a separate process. Return its reports and warnings if it ends normally."""
    ended = subprocess.run(command_of(job, *options), timeout=560, check=False, capture_output=True, text=True)
    if ended.returncode != code:
        # Executors that are stopped fill the end of it with their own complaints.
        pytest.fail(f"exit code {ended.returncode}: {ended.stderr[ended.stderr.find('Traceback') :][:6000]}")
    return pickle.loads((job.folder / "reports").read_bytes()) if code == 0 else ([], [])


def command_of(job: Job, *options: str) -> list[str]:
    """Return the command that processes the input of a job."""
    # Executors do not get the path of the driver by themselves.
    options += ("--conf", f"spark.executorEnv.PYTHONPATH={Path(__file__).parents[2]}")
    options += ("--partitions", str(job.partitions), "--structure", job.structure.value)
    options += ("--writer", job.writer.value, "--log", job.log.value, "--initial", job.initial)
    options += ("--local-folder", job.local_folder) if job.local_folder else ()
    options += ("--merges",) if job.merges else ()
    options += ("--two-outputs",) if job.has_two_outputs else ()
    options += ("--alike",) if job.is_alike else ()
    return [sys.executable, "-m", "tests.support.counting", str(job.folder), *options]


def conf(**values: str) -> list[str]:
    """Return command-line options that set confs. Underscores replace dots."""
    return [text for name, value in values.items() for text in ("--conf", f"spark.{name.replace('_', '.')}={value}")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--local-folder", default="")
    parser.add_argument("--structure", type=Structure, default=Structure.V2)
    parser.add_argument("--writer", type=Writer, default=Writer.SPARK)
    parser.add_argument("--log", type=LogLayout, default=LogLayout.STORES)
    parser.add_argument("--initial", default="")
    parser.add_argument("--merges", action="store_true")
    parser.add_argument("--two-outputs", action="store_true")
    parser.add_argument("--alike", action="store_true", help="each attempt of a batch has the same state and rows")
    parser.add_argument("--kill-at", nargs=2, metavar=("BATCH", "PHASE"))
    parser.add_argument("--kill-between-sinks-of", type=int, metavar="BATCH")
    parser.add_argument("--stop-at", nargs=2, metavar=("BATCH", "PHASE"), help="SIGSTOP: another process continues it")
    parser.add_argument("--kill-an-executor-at", nargs=2, metavar=("BATCH", "PHASE"))
    parser.add_argument("--driver", default="BatchDriver", help="a class of tests.support.tasks")
    parser.add_argument("--read-twice", action="store_true")
    options = parser.parse_args(arguments)
    session = spark_session("counting", master=options.master, conf=dict(c.split("=", 1) for c in options.conf))
    job = Job(options.folder, options.partitions, options.local_folder, driver=getattr(tasks, options.driver))
    job.structure, job.writer, job.log, job.initial = options.structure, options.writer, options.log, options.initial
    job.merges, job.has_two_outputs, job.is_alike = options.merges, options.two_outputs, options.alike
    if options.read_twice:
        job.sink = None if job.has_two_outputs else ReadsTwice(str(job.folder / "output"))
    if options.kill_between_sinks_of is not None:
        first, second = job.sinks().values()
        dies = DiesBetweenSinks(second.path, writer=Writer.TASKS, batch=options.kill_between_sinks_of)
        job.sink = {"output": first, "again": dies}
    observer = Watching()
    if options.kill_at:
        observer = killing(*options.kill_at, lambda: os.getpid())
    if options.stop_at:
        observer = stopping(*options.stop_at)
    if options.kill_an_executor_at:
        executors = Path(tasks.executors_folder(str(job.root)))
        observer = killing(*options.kill_an_executor_at, lambda: int(min(executors.iterdir()).name))
    reports = job.run(session, observer)
    (job.folder / "reports").write_bytes(pickle.dumps((reports, job.warnings)))
    session.stop()


if __name__ == "__main__":
    main()
