"""The built wheel works in environments that hold nothing else, on each supported Python that is found.

Without an extra: no checkout, no Spark, no Dagster, no client of a cloud. With `spark` and `platform`: an operator on Spark
and the definitions of Dagster, beside packages of a company.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURE = REPOSITORY / "tests" / "fixtures" / "checkpoints" / "spark-4.2.0-v2-aggregation.zip"
UV = Path(sys.executable).with_name("uv")
MINORS = (11, 12, 13)
"""The supported Pythons: 3.11 to 3.13."""

# One process builds the wheel and the environment for all tests of this module.
pytestmark = pytest.mark.xdist_group("wheel")


def _run(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command outside the checkout, without its import path."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the files that git tracks."""
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (REPOSITORY / name).exists() and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, source / name, follow_symlinks=False)
    folder = tmp_path_factory.mktemp("wheel")
    done = _run([UV, "build", "--quiet", "--wheel", "--out-dir", folder, source], folder)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_adds_only_the_package_statekeeper(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"statekeeper"}


def _found(minor: int) -> Path | None:
    """Find a Python 3.x that runs: as a command, or below pyenv, whose commands run only its chosen versions."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    commands = [shutil.which(f"python3.{minor}"), *sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python3.{minor}"))]
    for command in filter(None, commands):
        if subprocess.run([command, "-c", "pass"], capture_output=True, check=False).returncode == 0:
            return Path(command)
    return None


def _interpreter(minor: int) -> Path:
    found = _found(minor)
    return found or pytest.skip(f"there is no python3.{minor}")


def _installed(wheel: Path, folder: Path, python: Path, extras: str = "") -> Path:
    """Make an environment with the wheel, and with the versions of dependencies that the lock file pins."""
    locked = REPOSITORY / "requirements.lock"
    install = (UV, "pip", "install", "--quiet", "--python", folder / "bin" / "python", "--link-mode", "symlink")
    made = _run([UV, "venv", "--quiet", "--python", python, folder], folder.parent)
    assert made.returncode == 0, made.stderr
    if "spark" in extras:
        # uv may build Spark again, for a minute, unless it takes it from its cache alone. An empty cache is no error here.
        _run([*install, "--offline", "--no-deps", "--constraints", locked, "pyspark"], folder.parent)
    done = _run([*install, "--constraints", locked, f"statekeeper{extras} @ {wheel.as_uri()}"], folder.parent)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module", params=MINORS, ids=lambda minor: f"python3.{minor}")
def environment(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment that holds the wheel and its required dependencies."""
    return _installed(wheel, tmp_path_factory.mktemp("empty") / "env", _interpreter(request.param))


def test_the_wheel_names_the_versions_on_which_it_is_tested(wheel: Path) -> None:
    (name,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA"))
    lines = zipfile.ZipFile(wheel).read(name).decode().splitlines()
    shown = [line.removeprefix("Classifier: Programming Language :: Python :: 3.") for line in lines]
    assert [line for line in shown if line.isdigit()] == [str(minor) for minor in MINORS]
    assert f"Requires-Python: <3.{MINORS[-1] + 1},>=3.{MINORS[0]}" in lines


def test_the_wheel_contains_the_license_and_typed_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"statekeeper/{package}/py.typed" for package in ("statestore", "pipelines")} <= set(names)
    assert "statekeeper/resources/launcher/dagster.yaml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_installed_command_prints_its_version(environment: Path) -> None:
    for command in (
        [environment / "bin" / "statekeeper", "--version"],
        [environment / "bin" / "python", "-m", "statekeeper", "--version"],
    ):
        done = _run(command, environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("statekeeper, version ")


def test_the_installed_command_audits_a_checkpoint_without_spark(environment: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(FIXTURE).extractall(tmp_path / "checkpoint")
    (root,) = (path.parent for path in (tmp_path / "checkpoint").rglob("commits") if path.is_dir())
    done = _run([environment / "bin" / "statekeeper", "audit", root, "--deep", "--output", "json"], environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["totals"]["errors"] == 0


def test_without_an_extra_there_is_no_spark_no_dagster_and_no_client_of_a_cloud(environment: Path) -> None:
    installed = {path.name.partition("-")[0] for path in (environment / "lib").glob("*/site-packages/*.dist-info")}
    assert {"statekeeper", "pyarrow", "rocksdict"} <= installed
    assert len(installed) < 20
    absent = {"pyspark", "pandas", "deltalake", "dagster", "fsspec", "s3fs", "botocore", "aiohttp", "adlfs", "gcsfs"}
    assert installed & absent == set()


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("s3://bucket/orders", "s3"),
        ("abfss://c@account.dfs.core.windows.net/orders", "azure"),
        ("gs://bucket/orders", "google"),
        ("webhdfs://namenode:9870/orders", "hdfs"),
    ],
)
def test_a_missing_extra_is_an_error_with_the_command_that_installs_it(environment: Path, url: str, extra: str) -> None:
    done = _run([environment / "bin" / "statekeeper", "audit", url, "--output", "json"], environment)
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["path"]) == ("storage", url)
    assert error["hint"] == f"run: pip install 'statekeeper[{extra}]'"


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("statekeeper.pipelines", "pyspark", "spark"), ("statekeeper.dagster", "dagster", "platform")],
)
def test_a_part_whose_extra_is_missing_names_it_on_import(
    environment: Path, module: str, package: str, extra: str
) -> None:
    done = _run([environment / "bin" / "python", "-c", f"import {module}"], environment)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {module} needs the package {package}, which is not installed; "
        f"run: pip install 'statekeeper[{extra}]'"
    )


def test_the_launcher_names_the_extra_that_brings_dagster(environment: Path) -> None:
    done = _run([environment / "bin" / "python", "-m", "statekeeper.resources.launcher.platform"], environment)
    assert done.returncode == 1
    assert done.stderr == "the package dagster is not installed; run: pip install 'statekeeper[platform]'\n"


_JOB = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
import pyarrow as pa
from pyspark.sql import SparkSession
import assets.orders, pipelines.orders, resources.orders
from statekeeper.pipelines import NoSink, StatefulOperator, Update, start

def keep(rows, state):
    return Update(output=rows.select(["key"]), state=rows.select(["key", "total"]))

KEY, TOTAL = pa.schema([("key", pa.int64())]), pa.schema([("total", pa.int64())])
operator = StatefulOperator(keys=["key"], order_by=["total"], state=TOTAL, output=KEY, update=keep)
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
session = builder.config("spark.sql.execution.arrow.pyspark.enabled", "true").getOrCreate()
session.range(5).selectExpr("id AS key", "id * 2 AS total").write.parquet("rows")
rows = session.readStream.schema("key BIGINT, total BIGINT").parquet("rows")
query = start(
    operator, rows, root="state", checkpoint="checkpoint", sink=NoSink(), partitions=1, trigger={"availableNow": True}
)
query.await_termination()
"""
_DEFINITIONS = """
import assets.orders, pipelines.orders, resources.orders
from statekeeper.dagster import build
print(sorted(key.to_user_string() for key in build({}).resolve_asset_graph().get_all_asset_keys()))
"""


@pytest.mark.spark
def test_with_the_extras_a_job_runs_and_dagster_loads_beside_packages_of_a_company(wheel: Path, tmp_path: Path) -> None:
    """On the newest Python that is not the one of these tests."""
    minors = [minor for minor in reversed(MINORS) if minor != sys.version_info.minor]
    python = next((found for minor in minors if (found := _found(minor)) is not None), None)
    if python is None:
        pytest.skip("there is no second supported Python")
    folder = _installed(wheel, tmp_path / "env", python, extras="[spark,platform]")
    for package in ("assets", "pipelines", "resources"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "orders.py").touch()
    for program in (_JOB, _DEFINITIONS):
        (tmp_path / "program.py").write_text(program)
        done = _run([folder / "bin" / "python", "program.py"], tmp_path)
        assert done.returncode == 0, done.stderr
    assert "'lineage'" in done.stdout
    rows = _run([folder / "bin" / "statekeeper", "dump", "state", "--output", "jsonl"], tmp_path)
    assert len(rows.stdout.splitlines()) == 5, rows.stdout + rows.stderr
