"""A missing or wrong Java is one line, as a user of the flights job sees it; a full local disk has a name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
GET_JAVA = "Spark needs Java 17 or 21"


def run_job(tmp_path: Path, **environment: str) -> str:
    """Start the job without a Java that works; its one line."""
    clean = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "PATH")}
    done = subprocess.run(
        [sys.executable, "-m", "statekeeper.pipelines.flights.job", "--no-ui", "--folder", str(tmp_path / "var")],
        cwd=REPOSITORY,
        env={**clean, "PATH": str(tmp_path / "nothing"), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert "Traceback" not in said
    assert not (tmp_path / "var").exists(), "nothing is written before Java is found"
    [line] = said.splitlines()
    assert line.startswith("unsupported_environment: ")
    assert GET_JAVA in line
    return line


def fake_java(home: Path, first_line: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"{first_line}\n")
    java.chmod(0o755)
    return home


def saying(version: str) -> str:
    return f"#!/bin/sh\necho 'openjdk version \"{version}\" 2014-03-18' >&2"


def test_without_java_the_error_explains_in_one_line_how_to_install_it(tmp_path):
    assert "no java on the PATH" in run_job(tmp_path)


def test_an_invalid_java_home_is_named(tmp_path):
    home = str(tmp_path / "gone")
    assert f"JAVA_HOME is {home}, but this folder has no bin/java" in run_job(tmp_path, JAVA_HOME=home)


@pytest.mark.parametrize(("says", "version"), [("1.8.0_402", "8"), ("11.0.22", "11"), ("25", "25")])
def test_an_unsupported_java_is_rejected_with_its_version(tmp_path, says, version):
    home = fake_java(tmp_path / "jdk", saying(says))
    assert f"{home}/bin/java has version {version}" in run_job(tmp_path, JAVA_HOME=str(home))


def test_a_java_file_that_is_not_executable_is_rejected(tmp_path):
    home = fake_java(tmp_path / "jdk", "\0\1\2 no program")
    assert f"{home}/bin/java cannot be run: Exec format error" in run_job(tmp_path, JAVA_HOME=str(home))


FILL_THE_DISK = """
import sys
from pathlib import Path
import pyarrow as pa
from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.errors import LocalDiskFull
from statekeeper.statestore.format.names import EMPTY, StorePath
from statekeeper.statestore.storage import StorageSpec, open_storage
from statekeeper.statestore.store.state_store import StateStore, StoreAddress

small, roomy, incompressible = Path(sys.argv[1]), Path(sys.argv[2]), Path("/dev/urandom").open("rb")
storage = open_storage(StorageSpec(str(roomy / "root")))

def step(base, local, first, count):
    address = StoreAddress(StorePath(0, 0), local / "0-0")
    with StateStore.load(address, base, storage=storage, clock=SystemClock(), ids=RandomIds()) as store:
        keys = pa.array([b"%08d" % n for n in range(first, first + count)], pa.large_binary())
        store.put(keys, pa.array([incompressible.read(1000) for _ in range(count)], pa.large_binary()))
        return store.commit()

def full(base, local, first, count):
    try:
        step(base, local, first, count)
    except LocalDiskFull as error:
        assert str(small) in str(error) and "free" in str(error), error
        print("full")
    else:
        raise SystemExit("the disk had room")

full(EMPTY, small, 0, 20_000)          # while the changes are written
head = EMPTY
for number in range(10):
    head = step(head, roomy / "other", number * 2_000, 2_000)
full(head, small, 0, 1)                # while the version is fetched
assert not any(path.name.endswith(".changelog") for path in small.rglob("0-0/db-*"))
head = step(head, roomy / "other", 0, 5)
print("goes on", head.version)
"""


def test_a_full_local_disk_is_reported_and_the_state_in_storage_is_unchanged(tmp_path):
    unshare = shutil.which("unshare")
    allowed = unshare and subprocess.run([unshare, "-Urm", "true"], capture_output=True, check=False).returncode == 0
    if not allowed:
        pytest.skip("a small disk needs unshare and user namespaces")
    small, roomy = tmp_path / "small", tmp_path / "roomy"
    small.mkdir()
    roomy.mkdir()
    script = tmp_path / "fill.py"
    script.write_text(FILL_THE_DISK)
    mounted = f'mount -t tmpfs -o size=12m tmpfs "{small}" && exec "{sys.executable}" "{script}" "{small}" "{roomy}"'
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mounted],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["full", "full", "goes on 11"]
