"""The scripts of `examples/` run unchanged. `test_examples_of_inputs` runs those with several inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import deltalake
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from examples import native_query, stateful_operator
from statekeeper.statestore.cli import main
from tests.support.s3_server import CREDENTIALS, S3Server
from tests.support.streams import conf
from tests.support.unpacked import unpacked

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
FIXTURE = REPOSITORY / "tests" / "fixtures" / "checkpoints" / "spark-4.2.0-v1-aggregation.zip"


def _run(script: str, *arguments: object, environment: Mapping[str, str] | None = None) -> int:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, "PATH": path, **(environment or {})}, check=False).returncode


def test_each_example_has_a_test() -> None:
    found = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert found == {
        "enrichment.py",
        "join_of_streams.py",
        "join_with_expiry.py",
        "native_query.py",
        "silent_sensors.py",
        "stateful_operator.py",
        "test_silent_sensors.py",
        "test_stateful_operator.py",
        "maintain_on_s3.sh",
        "check_checkpoint.sh",
    }


def test_the_tests_of_the_operators_need_no_java() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *map(str, EXAMPLES.glob("test_*.py")),
    ]
    without = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    done = subprocess.run(command, env={**os.environ, **without}, cwd=REPOSITORY, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode()


def test_the_ci_check_passes_for_an_intact_checkpoint_and_fails_for_a_damaged_one(tmp_path: Path) -> None:
    checkpoint, report = unpacked(FIXTURE, tmp_path), tmp_path / "report.json"
    assert _run("check_checkpoint.sh", checkpoint, report) == 0
    assert not json.loads(report.read_text())["findings"]
    newest = max(checkpoint.glob("state/0/0/*.changelog"), key=lambda path: int(path.stem))
    newest.unlink()
    assert _run("check_checkpoint.sh", checkpoint, report) == 3
    assert newest.name in json.dumps(json.loads(report.read_text())["findings"])


def test_a_checkpoint_on_s3_is_maintained(tmp_path: Path, s3_server: S3Server) -> None:
    folder = f"{s3_server.make_bucket()}/orders/checkpoint"
    bucket = fsspec.filesystem(
        "s3",
        key=CREDENTIALS["key"],
        secret=CREDENTIALS["secret"],
        client_kwargs={"endpoint_url": s3_server.endpoint, "region_name": CREDENTIALS["region"]},
    )
    bucket.put(f"{unpacked(FIXTURE, tmp_path)}/", f"{folder}/", recursive=True)
    environment = {
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ACCESS_KEY_ID": CREDENTIALS["key"],
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS["secret"],
        "AWS_REGION": CREDENTIALS["region"],
    }
    assert _run("maintain_on_s3.sh", f"s3://{folder}", environment=environment) == 0
    assert bucket.ls(f"{folder}/_statekeeper", refresh=True), "both verbs keep a record"


@pytest.mark.spark
def test_a_native_query_with_the_settings_leaves_the_snapshots_to_statekeeper(
    delta_session: SparkSession, tmp_path: Path
) -> None:
    orders, checkpoint = tmp_path / "orders", tmp_path / "checkpoint"
    orders.mkdir()
    settings = {**native_query.SETTINGS, "spark.sql.streaming.stateStore.checkpointFormatVersion": "1"}
    with conf(delta_session, settings):
        query = native_query.start(delta_session, str(orders), str(checkpoint))
        for batch in range(12):
            pq.write_table(pa.table({"customer": ["a", "b"], "amount": [1.0, 2.0]}), orders / f"{batch}.parquet")
            query.processAllAvailable()
        query.stop()
    assert len(list(checkpoint.glob("state/0/0/*.changelog"))) == 12
    assert list(checkpoint.glob("state/0/0/*.zip")) == []
    arguments = ["snapshot", str(checkpoint), "--at-head", "--confirm-stopped", "--mode", "snapshots"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert [path.name for path in checkpoint.glob("state/0/0/*.zip")] == ["12.zip"]


@pytest.mark.spark
def test_the_stateful_operator_keeps_totals_over_batches(delta_session: SparkSession, tmp_path: Path) -> None:
    orders = str(tmp_path / "orders")
    first = pa.table({"customer": ["a", "b", "a"], "id": [1, 2, 3], "amount": [1.0, 2.0, 3.0]})
    deltalake.write_deltalake(orders, first)
    query = stateful_operator.run(delta_session, str(tmp_path))
    query.streaming_query.processAllAvailable()
    deltalake.write_deltalake(orders, pa.table({"customer": ["a"], "id": [4], "amount": [5.0]}), mode="append")
    query.streaming_query.processAllAvailable()
    query.stop()
    totals = deltalake.DeltaTable(str(tmp_path / "totals")).to_pyarrow_table().to_pylist()
    assert sorted((row["customer"], row["orders"], row["total"]) for row in totals) == [
        ("a", 2, 4.0),
        ("a", 3, 9.0),
        ("b", 1, 2.0),
    ]
