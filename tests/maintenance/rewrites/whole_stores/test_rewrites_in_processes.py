"""Rewrites of large states: several processes do the work on local files. Nothing else differs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import LocalStateError
from statekeeper.statestore.checkpoint import rewrite_journal
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.whole_stores import Convert, Goal, snapshots
from statekeeper.statestore.storage import open_storage
from tests.support.keyed_roots import KeyedRoot
from tests.support.placed_rows import placed_rows
from tests.support.rescales import all_rows, rescale
from tests.support.twins import clean
from tests.support.unpacked import unpacked

FIXTURES = Path(__file__).parents[3] / "fixtures" / "checkpoints"
AGGREGATION = FIXTURES / "spark-4.2.0-v1-aggregation.zip"


@pytest.mark.parametrize(
    ("archive", "goal"),
    [
        ("v1-join-4-checksums-and-commas", 3),
        ("v2-transformWithState", 3),
        ("hdfs-sessions-snappy", Convert(Provider.ROCKSDB, Structure.V2)),
        ("v1-windows-lzf", Convert(Provider.HDFS_BACKED)),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_processes_write_the_same_rows(archive: str, goal: int | Goal, tmp_path: Path) -> None:
    checkpoint = unpacked(FIXTURES / f"spark-4.2.0-{archive}.zip", tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)
    rescale(storage, goal, tmp_path, processes=2)
    assert all_rows(checkpoint) == before
    if isinstance(goal, int):
        assert +placed_rows(checkpoint, tmp_path / "placed").elsewhere == {}
    clean(storage, tmp_path)


def test_processes_rescale_a_state_root_and_its_job_continues(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    root = KeyedRoot(open_storage(str(tmp_path / "root")), tmp_path)
    root.grow(3)
    rescale(root.storage, 5, tmp_path, processes=2)
    root.assert_right(5)
    root.grow(1)
    root.assert_right(5)
    clean(root.storage, tmp_path)


def test_a_rewrite_whose_process_is_killed_is_completed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = unpacked(AGGREGATION, tmp_path)
    storage, before = open_storage(str(checkpoint)), all_rows(checkpoint)
    written: Callable[..., object] = snapshots.written
    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "written", _killed)
        with pytest.raises(LocalStateError, match=r"was killed.*--workers"):
            rescale(storage, 5, tmp_path, processes=2)
    assert snapshots.written is written
    assert rewrite_journal.open_journal(storage) is not None
    rescale(storage, 5, tmp_path, processes=2)
    assert all_rows(checkpoint) == before
    clean(storage, tmp_path)


def _killed(*arguments: object) -> None:
    del arguments
    os.kill(os.getpid(), signal.SIGKILL)


_CALLS_THAT_SLEEP = """
from threading import Thread
from time import sleep
import os
from statekeeper.statestore.base.workers import callers
with callers(2) as call:
    print(call(os.getpid), flush=True)
    Thread(target=call, args=(sleep, 600), daemon=True).start()
    sleep(600)
"""


def test_the_death_of_the_first_process_ends_the_others() -> None:
    with subprocess.Popen([sys.executable, "-c", _CALLS_THAT_SLEEP], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        first.stdout.readline()
        first.kill()
        # The others have the pipe open, too. It ends when the last of them has ended.
        assert first.communicate(timeout=120)[0] == ""


_WORK_THAT_SLEEPS = """
import signal
from functools import partial
from time import sleep
from statekeeper.statestore.base.workers import in_pool
from statekeeper.statestore.base.workers import callers
# A shell starts commands in the background with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
with callers(2) as call:
    call(sleep, 0)
    print("ready", flush=True)
    in_pool(partial(call, sleep), [600] * 4, lambda *_: None, workers=2, interrupt=call.end)
"""


@pytest.mark.parametrize("times", [1, 4])
def test_ctrl_c_ends_all_processes_at_once(times: int) -> None:
    command = [sys.executable, "-c", _WORK_THAT_SLEEPS]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        for _ in range(times):
            with suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGINT)
        # The pipe ends when the last process has ended.
        try:
            shown = first.communicate(timeout=120)[0]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)
    assert "KeyboardInterrupt" in shown
    assert first.returncode != 0
