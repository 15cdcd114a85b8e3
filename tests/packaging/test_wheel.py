"""The built wheel works in an environment that holds nothing else: no checkout, no Spark, no Dagster."""

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


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment that holds the wheel and its required dependencies, in the versions that the lock file pins."""
    folder = tmp_path_factory.mktemp("empty") / "env"
    for command in (
        [UV, "venv", "--quiet", "--python", sys.executable, folder],
        [
            *(UV, "pip", "install", "--quiet", "--python", folder / "bin" / "python"),
            *("--constraints", REPOSITORY / "requirements.lock", wheel),
        ],
    ):
        done = _run(command, folder.parent)
        assert done.returncode == 0, done.stderr
    return folder


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
    spark = _run([environment / "bin" / "python", "-c", "import pyspark"], environment)
    assert "ModuleNotFoundError" in spark.stderr
