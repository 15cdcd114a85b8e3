"""What the pages on platforms say about errors and about executors. Nothing here runs on a platform."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.pages import Page
from tests.support.running import REPOSITORY

ARCHIVE = REPOSITORY / "tests" / "fixtures" / "checkpoints" / "spark-4.2.0-v1-aggregation.zip"
OF_SPARK = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
OF_DATABRICKS = "com.databricks.sql.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint whose offset log names the provider of Databricks."""
    zipfile.ZipFile(ARCHIVE).extractall(tmp_path)
    for offsets in (tmp_path / "checkpoint" / "offsets").iterdir():
        if offsets.name.startswith("."):
            offsets.unlink()
        else:
            offsets.write_text(offsets.read_text().replace(OF_SPARK, OF_DATABRICKS))
    return tmp_path / "checkpoint"


@pytest.mark.parametrize(
    "verb",
    [["audit"], ["inspect"], ["dump"], ["gc"], ["snapshot", "--mode", "snapshots"], ["rescale", "--partitions", "4"]],
)
def test_each_command_rejects_the_provider_of_databricks(checkpoint: Path, verb: list[str]) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in checkpoint.rglob("*"))
    done = run(verb[0], checkpoint, *verb[1:])
    assert done.exit_code == 12
    assert sorted((path, path.stat().st_mtime_ns) for path in checkpoint.rglob("*")) == before


def test_the_page_of_databricks_shows_the_error_of_its_provider(checkpoint: Path) -> None:
    (shown,) = (block for block in Page.of("platforms/databricks.md").blocks if "unsupported_provider" in block)
    assert run("audit", checkpoint).output.strip() == shown


def test_an_address_of_dbfs_is_rejected_with_the_addresses_that_are_supported() -> None:
    done = run("audit", "dbfs:/checkpoints/orders")
    assert done.exit_code == 1
    assert "s3://bucket/folder" in done.output
    assert "abfss://container@account.dfs.core.windows.net/folder" in done.output


JOB = """
import os, sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from statekeeper.pipelines import Frames, NoSink, StatefulOperator, Update, start

spark = SparkSession.builder.appName("orders").getOrCreate()


def update(rows, state):
    import statekeeper

    newest = rows.drop_duplicates("customer", keep="last")
    newest["module"] = statekeeper.__file__
    newest["folder"] = os.getcwd()
    return Update(output=newest, state=newest)


folder = sys.argv[1]
Path(folder, "input").mkdir()
pq.write_table(pa.Table.from_pylist([{"customer": f"C-{n}", "amount": n} for n in range(8)]), f"{folder}/input/0.parquet")
columns = pa.schema([("module", pa.string()), ("folder", pa.string())])
operator = StatefulOperator(
    keys=["customer"],
    order_by=["amount"],
    state=columns,
    output=pa.schema([("customer", pa.string()), *columns]),
    update=update,
    frames=Frames.PANDAS,
)
start(
    operator,
    spark.readStream.schema("customer string, amount bigint").parquet(f"{folder}/input"),
    root=f"{folder}/state",
    checkpoint=f"{folder}/checkpoint",
    sink=NoSink(),
    partitions=2,
    trigger={"availableNow": True},
).await_termination()
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_executors_import_the_package_from_the_wheel_that_the_page_gives_them(tmp_path: Path) -> None:
    """In processes of their own, as on a cluster. The page also shows an archive, which takes minutes to pack."""
    page = Page.of("platforms/index.md")
    programs = Path(sys.executable).parent
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable}
    build = [str(programs / "uv"), "build", "--quiet", "--wheel", "--out-dir", str(tmp_path / "dist")]
    subprocess.run(build, cwd=REPOSITORY, env=environment, check=True, timeout=300)
    (tmp_path / "job.py").write_text(JOB)
    submit = page.command("spark-submit --py-files").replace(
        "spark-submit ", "spark-submit --master 'local-cluster[1,1,1024]' --conf spark.log.level=ERROR ", 1
    )
    for command in (page.command("cp dist/statekeeper"), f"{submit} {tmp_path}"):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    shown = run("dump", tmp_path / "state", "--output", "jsonl")
    values = [json.loads(line)["value"] for line in shown.stdout.splitlines()]
    folders = {Path(value["folder"]).parent for value in values}
    for folder in folders:
        assert folder.name.startswith("app-"), "the folder of the executors"
        shutil.rmtree(folder)
    assert len(values) == 8
    assert all("statekeeper.zip/statekeeper/" in value["module"] for value in values)
