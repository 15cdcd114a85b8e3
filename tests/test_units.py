"""Workers run whole units of tests, the long ones first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SHARED = """
import os, pathlib, pytest
@pytest.fixture(scope="module")
def made():
    with open(pathlib.Path(__file__).parent / "made", "a") as file:
        file.write(f"{__name__}\\n")
@pytest.mark.parametrize("number", range(6))
def test_shares(made, number): pass
@pytest.mark.parametrize("number", range(6))
def test_is_alone(number): pass
@pytest.mark.xdist_group("planted files")
@pytest.mark.parametrize("number", range(6))
def test_of_a_group(number): pass
"""


def test_the_tests_of_a_group_or_of_a_shared_fixture_run_on_one_worker(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.support.units import register as pytest_configure\n")
    for name in ("test_one", "test_two"):
        (tmp_path / f"{name}.py").write_text(SHARED)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    command += ["--numprocesses=3", "--dist=loadgroup", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    workers: dict[str, set[str]] = defaultdict(set)
    for worker, file, test in re.findall(r"^\[(gw\d)\] .*PASSED (\S+)::(\w+)", done.stdout, re.MULTILINE):
        workers[test if test == "test_of_a_group" else f"{file} {test}"].add(worker)
    assert len(workers) == 5
    assert all(len(of) == 1 for name, of in workers.items() if "alone" not in name), workers
    assert sorted((tmp_path / "made").read_text().split()) == ["test_one", "test_two"]
