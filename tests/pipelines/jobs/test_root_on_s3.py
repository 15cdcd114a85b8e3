"""A job with its state root in a bucket, behind a real HTTP server."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from statekeeper.pipelines import DeltaSink, Host, NoSink, StatefulOperator, Update, start
from statekeeper.pipelines.batch.progress import Phase
from statekeeper.pipelines.operator.declaration import Pieces
from statekeeper.pipelines.sinks.data_files import DroppedRows, TaskFiles
from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage
from statekeeper.statestore.store.state_store import StoreLimits
from tests.support.s3_server import CREDENTIALS, S3Server, Wire
from tests.support.streams import Seen
from tests.support.task_files import attempt, simple, written

pytestmark = pytest.mark.spark

COUNT = pa.schema([("n", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
BATCHES = 5


def count(rows: pa.Table, state: pa.Table) -> Update:
    joined = pa.concat_tables([rows.group_by("k").aggregate([("x", "count")]).rename_columns(["k", "n"]), state])
    total = joined.group_by("k").aggregate([("n", "sum")]).rename_columns(["k", "n"])
    return Update(output=total, state=total)


def _append(path: Path, batch: int) -> None:
    keys = [f"key {i % (3 + batch)}" for i in range(20)]
    deltalake.write_deltalake(path, pa.table({"k": keys, "x": list(range(20))}), mode="append")


def test_a_batch_waits_for_unavailable_storage_and_computes_nothing_again(
    delta_session: SparkSession, s3_server: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = s3_server.make_bucket()
    spec = StorageSpec(f"s3://{bucket}/state", tuple(s3_server.options.items()))
    _append(tmp_path / "source", 0)
    # More tries than a request has without a time limit; the objects of batch 0 carry version 1.
    s3_server.next("PUT", f"{bucket}/state/_statekeeper/log/1-", Wire.REFUSE, times=7)
    seen = Seen()
    query = start(
        StatefulOperator(keys=["k"], order_by=["x"], state=COUNT, output=OUTPUT, update=count),
        delta_session.readStream.format("delta").load(str(tmp_path / "source")),
        root=spec,
        checkpoint=str(tmp_path / "checkpoint"),
        sink=DeltaSink(str(tmp_path / "sink")),
        partitions=2,
        log="batch",
        host=Host(str(tmp_path / "host")),
        observer=seen,
        trigger={"availableNow": True},
    )
    query.await_termination()
    assert [report.attempts for report in seen.batches] == [1]
    assert "is available again" in caplog.text
    facts = deltalake.DeltaTable(str(tmp_path / "sink")).to_pyarrow_table()
    assert pc.sum(facts["n"]).as_py() == 20


def test_a_task_uploads_a_large_changelog_before_its_commit(
    delta_session: SparkSession, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part_bytes = 64 * 1024
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", part_bytes)
    bucket = s3_server.make_bucket()
    spec = StorageSpec(f"s3://{bucket}/state", tuple(s3_server.options.items()))
    keys = [random.Random(number).randbytes(100).hex() for number in range(10_000)]
    deltalake.write_deltalake(tmp_path / "source", pa.table({"k": keys, "x": list(range(len(keys)))}))
    seen = Seen()
    query = start(
        StatefulOperator(keys=["k"], order_by=["x"], state=COUNT, output=OUTPUT, update=count, pieces=Pieces(rows=500)),
        delta_session.readStream.format("delta").load(str(tmp_path / "source")),
        root=spec,
        checkpoint=str(tmp_path / "checkpoint"),
        sink=DeltaSink(str(tmp_path / "sink")),
        partitions=2,
        log="batch",
        host=Host(str(tmp_path / "host"), limits=StoreLimits(part_bytes=part_bytes)),
        observer=seen,
        trigger={"availableNow": True},
    )
    query.await_termination()
    (report,) = seen.batches
    assert report.early_upload_share is not None
    assert report.early_upload_share >= 0.8
    assert s3_server.open_uploads(bucket) == 0
    _copied(open_storage(spec), tmp_path / "copy")
    held = delta_session.read.format("statestore").load(str(tmp_path / "copy"))
    assert {row.key.k for row in held.collect()} == set(keys), "Spark reads an object of several parts"


def _copied(root: Storage, folder: Path) -> None:
    for entry in root.list(""):
        target = folder / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(root.read(entry.path))


def test_another_host_continues_from_a_root_in_a_bucket(
    delta_session: SparkSession, s3_server: S3Server, tmp_path: Path
) -> None:
    spec = StorageSpec(f"s3://{s3_server.make_bucket()}/state", tuple(s3_server.options.items()))
    operator = StatefulOperator(keys=["k"], order_by=["x"], state=COUNT, output=OUTPUT, update=count)
    source = tmp_path / "source"
    _append(source, 0)
    for batch in range(BATCHES):
        if batch:
            _append(source, batch)
        stream = delta_session.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source))
        query = start(
            operator,
            stream,
            root=spec,
            checkpoint=str(tmp_path / "checkpoint"),
            sink=DeltaSink(str(tmp_path / "sink")),
            partitions=2,
            # Each run is on a host that has never seen the state.
            host=Host(str(tmp_path / f"host {batch}")),
            trigger={"availableNow": True},
        )
        query.await_termination()
    _copied(open_storage(spec), tmp_path / "copy")
    held = delta_session.read.format("statestore").load(str(tmp_path / "copy"))
    expected = deltalake.DeltaTable(str(source)).to_pyarrow_table().group_by("k").aggregate([("x", "count")])
    assert {(row.key.k, row.value.n) for row in held.collect()} == {
        (row["k"], row["x_count"]) for row in expected.to_pylist()
    }
    facts = deltalake.DeltaTable(str(tmp_path / "sink")).to_pyarrow_table()
    assert pc.sum(facts["n"]).as_py() > 0


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A server in a process of its own: `deltalake` holds the interpreter's lock while it waits for a reply."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as tried:
                if not tried.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def made_bucket(endpoint: str) -> str:
    bucket = RandomIds().fresh()
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")):
        return bucket


def delta_options(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": CREDENTIALS["key"],
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS["secret"],
        "AWS_REGION": CREDENTIALS["region"],
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.mark.slow
def test_a_column_is_added_to_a_table_in_a_bucket_and_lost_files_are_detected(endpoint: str) -> None:
    options = delta_options(endpoint)
    path = f"s3://{made_bucket(endpoint)}/table"
    sink = DeltaSink(path, writer="tasks", partition_by=["region"], add_columns=True, storage_options=options)
    written(sink, simple("a"), 0)
    rows = simple("b", None)
    rows = rows.append_column("day", pa.array([1, 2], pa.int64()))
    plan = sink.plan_files(rows.schema)
    assert plan is not None
    with plan.open(0, RandomIds()) as files:
        files.write(rows)
        complete = files.complete()
    lost = replace(complete[0], path=f"part-00000-{RandomIds().fresh()}.snappy.parquet")
    assert plan.missing([*complete, lost]) == [lost.path]
    sink.commit_files(plan, complete, attempt(1))
    found = deltalake.DeltaTable(path, storage_options=options).to_pyarrow_table().to_pylist()
    assert {(row["region"], row["day"]) for row in found} == {("a", None), ("b", 1), (None, 2)}


def test_a_task_without_access_to_the_table_names_the_table_and_the_way_out(endpoint: str) -> None:
    sink = DeltaSink(f"s3://{made_bucket(endpoint)}/table", storage_options=delta_options(endpoint), writer="tasks")
    plan = sink.plan_files(simple().schema)
    assert plan is not None
    denied = replace(plan, path="s3://bucket-without-access/table")
    files = denied.open(0, RandomIds())
    with pytest.raises(StorageError, match=r"s3://bucket-without-access/table: a task cannot write .*storage_options="):
        _written_at_once(files, simple("a"))


def _written_at_once(files: TaskFiles | DroppedRows, rows: pa.Table) -> None:
    files.write(rows)
    files.complete()


@pytest.mark.parametrize("dies_at", [pytest.param(Phase.PENDING_WRITTEN, marks=pytest.mark.slow), Phase.SINK_WRITTEN])
def test_tasks_write_the_files_of_a_table_in_a_bucket(
    delta_session: SparkSession, endpoint: str, tmp_path: Path, dies_at: Phase
) -> None:
    bucket = made_bucket(endpoint)
    spec = StorageSpec(f"s3://{bucket}/state", (*CREDENTIALS.items(), ("endpoint_url", endpoint)))
    options = delta_options(endpoint)
    sink = DeltaSink(f"s3://{bucket}/facts", storage_options=options, writer="tasks")
    source = tmp_path / "source"
    for batch in range(3):
        _append(source, batch)

    def run(seen: Seen) -> None:
        query = start(
            StatefulOperator(keys=["k"], order_by=["x"], state=COUNT, output=OUTPUT, update=count),
            delta_session.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source)),
            root=spec,
            checkpoint=str(tmp_path / "checkpoint"),
            sink=sink,
            partitions=2,
            log="batch",
            host=Host(str(tmp_path / "host")),
            observer=seen,
            trigger={"availableNow": True},
        )
        query.await_termination()

    def died(batch: int, phase: Phase) -> None:
        if (batch, phase) == (1, dies_at):
            raise RuntimeError("the driver died")

    with pytest.raises(Exception, match="the driver died"):
        run(Seen(died))
    run(Seen())
    facts = deltalake.DeltaTable(f"s3://{bucket}/facts", storage_options=options).to_pyarrow_table()
    rows = deltalake.DeltaTable(str(source)).to_pyarrow_table()
    counts: dict[str, int] = {}
    expected = []
    for batch in range(3):
        found = [f"key {number % (3 + batch)}" for number in range(20)]
        for key in sorted(set(found)):
            counts[key] = counts.get(key, 0) + found.count(key)
            expected.append((key, counts[key]))
    assert rows.num_rows == 60
    assert sorted((row["k"], row["n"]) for row in facts.to_pylist()) == sorted(expected)


@pytest.mark.parametrize(
    ("partitions", "first", "layout"),
    [(5, None, "batch"), (4, None, "stores"), (4, "batch", "batch"), (5, "stores", "stores")],
    ids=["many stores", "few stores", "batch logs were asked for", "objects of stores were asked for"],
)
def test_a_new_root_in_a_bucket_gets_batch_logs_and_an_existing_one_keeps_its_layout(
    delta_session: SparkSession, endpoint: str, tmp_path: Path, *, partitions: int, first: str | None, layout: str
) -> None:
    spec = StorageSpec(f"s3://{made_bucket(endpoint)}/state", (*CREDENTIALS.items(), ("endpoint_url", endpoint)))
    storage = open_storage(spec)
    for batch, log in enumerate((first, None)):
        _append(tmp_path / "source", batch)
        query = start(
            StatefulOperator(keys=["k"], order_by=["x"], state=COUNT, output=OUTPUT, update=count),
            delta_session.readStream.format("delta").load(str(tmp_path / "source")),
            root=spec,
            checkpoint=str(tmp_path / "checkpoint"),
            sink=NoSink(),
            partitions=partitions,
            log=log,
            host=Host(str(tmp_path / "host")),
            trigger={"availableNow": True},
        )
        query.await_termination()
        objects = [entry.path for entry in storage.list("")]
        in_logs = any(path.startswith(f"_statekeeper/log/{batch + 1}-") for path in objects)
        own = [path for path in objects if f"/{batch + 1}_" in path and path.endswith(".changelog")]
        assert (in_logs, len(own)) == ((True, 0) if layout == "batch" else (False, partitions))
