"""Planted files in a checkpoint: every reading verb ends with a typed outcome, in little memory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statekeeper.statestore.format.limits import MOST_READ_BYTES
from tests.faults.hostile import CASES

TIMEOUT_SECONDS = 1200
"""Of all cases together: a hang of one of them ends before."""


@pytest.fixture(scope="module")
def played() -> Iterator[dict[str, Any]]:
    """Return the result of each case. The cases fork, so they run in their own process without threads of RocksDB."""
    # In memory: the checkpoints are copied for each case.
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="hostile-", dir=memory if memory.is_dir() else None))
    try:
        command = [sys.executable, "-m", "tests.faults.hostile", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
        assert done.returncode == 0, done.stderr
        yield {case["case"]: case for case in map(json.loads, done.stdout.splitlines())}
    finally:
        shutil.rmtree(folder)


def test_a_verb_without_memory_fails_with_a_message_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    with (tmp_path / "commits" / "0").open("wb") as file:
        file.truncate(MOST_READ_BYTES)
    script = """
        import resource, sys
        from statekeeper.statestore.cli import main
        from tests.faults.fuzz import dispatch
        dispatch.MEMORY_BYTES = 50 * 2**20
        dispatch.limit_memory()
        main(["inspect", sys.argv[1]])
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("out of memory: ")
    assert "Traceback" not in done.stderr


@pytest.mark.xdist_group("planted files")
@pytest.mark.parametrize("name", CASES)
def test_a_planted_file_causes_a_typed_error_or_a_finding_and_no_other_access(
    name: str, played: dict[str, Any]
) -> None:
    case = played[name]
    assert not case["died"]
    assert case["wrote"] == []
    assert len(case["verbs"]) >= 10
    for verb, outcome in case["verbs"].items():
        assert outcome["is_typed"], (verb, outcome["error"])
    for verb, (code, text) in CASES[name].says.items():
        outcome = case["verbs"][verb]
        assert outcome["exit"] == code, (verb, outcome["says"])
        assert text in outcome["says"]
