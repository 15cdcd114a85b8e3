"""Several maintainers of one root, each in its own process, while the query runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from statekeeper.statestore.storage import StorageSpec, open_storage
from tests.support.checkpoints import Checkpoint

COMMAND = Path(sys.executable).parent / "statekeeper"
CONFIGURATION = """
[roots.shared]
url = {url}
storage = {{ {options} }}
snapshot = {{ changelogs = 1 }}
retention = {{ versions = 3, grace = "0s" }}
"""
AT_ONCE = (("snapshot",), ("gc", "--apply"), ("lease", "--break"), ("snapshot", "--all"), ("gc", "--apply"))
"""The lease alone would have one of them at work at a time: it is broken in between."""
DONE, CHANGED, PARTLY_DONE, HELD, REFUSED = 0, 3, 4, 11, 13
"""`REFUSED`: the audit of a gc sees a file as missing that another gc deletes at the same time, and nothing is deleted."""
ROUNDS = 3
RETAINED = 3


@pytest.fixture
def folder(tmp_path: Path, storage_spec: StorageSpec) -> Path:
    options = ", ".join(f"{key} = {json.dumps(value)}" for key, value in storage_spec.options)
    text = CONFIGURATION.format(url=json.dumps(storage_spec.url), options=options)
    (tmp_path / "statekeeper.toml").write_text(text)
    return tmp_path


def start(folder: Path, arguments: Sequence[str]) -> subprocess.Popen[str]:
    verb, *more = arguments
    command = [str(COMMAND), verb, "shared", *more, "--output", "json"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=120)
    assert "Traceback" not in stderr, stderr
    return process.returncode, stdout, stderr


@pytest.mark.parametrize("storage_spec", ["local", pytest.param("s3", marks=pytest.mark.slow)], indirect=True)
def test_maintainers_that_break_each_others_lease_lose_no_version(folder: Path, storage_spec: StorageSpec) -> None:
    checkpoint = Checkpoint(open_storage(storage_spec), folder / "job")
    checkpoint.grow(2)
    codes = []
    for number in range(ROUNDS):
        running = [start(folder, arguments) for arguments in AT_ONCE]
        checkpoint.grow(2)
        for process in running:
            code, stdout, stderr = ended(process)
            assert code in (DONE, CHANGED, PARTLY_DONE, HELD, REFUSED), (stdout, stderr)
            if code == REFUSED:
                print(stdout, stderr)
            codes.append(code)
        for batch in range(len(checkpoint.versions) - 1 - RETAINED, len(checkpoint.versions) - 1):
            checkpoint.assert_right(folder / f"host-{number}-{batch}", batch)
    assert codes.count(DONE) >= ROUNDS

    for arguments in (("lease", "--break"), ("snapshot", "--all"), ("gc", "--apply", "--orphans")):
        code, stdout, stderr = ended(start(folder, arguments))
        assert code == DONE, (stdout, stderr)
    checkpoint.assert_snapshots_are_right(folder / "fresh")
    for arguments in (("audit", "--deep"), ("gc", "--orphans")):
        code, stdout, stderr = ended(start(folder, arguments))
        assert code == DONE, (stdout, stderr)
    assert [file for file in json.loads(stdout)["files"] if not file["path"].startswith("_statekeeper/")] == []
