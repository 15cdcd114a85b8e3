"""The launcher restarts processes that die, and ends them with their descendants."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statekeeper.resources.launcher.children import Children, Command
from statekeeper.statestore.base.clock import SystemClock
from tests.support.processes import children_of, in_session, kill
from tests.support.running import REPOSITORY

SLEEPS = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); open('up', 'w'); time.sleep(600)"
A_PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPS!r}]).wait()"

A_LAUNCHER = f"""
import os, sys, time
from pathlib import Path
from statekeeper.resources.launcher.children import Children, Command
from statekeeper.statestore.base.clock import SystemClock

folder = Path(sys.argv[1])
scripts = [{DEAF!r}, {A_PARENT!r}]
commands = [Command(str(n), [sys.executable, "-c", script], folder / f"{{n}}.log") for n, script in enumerate(scripts)]
with Children(commands, os.environ, SystemClock()) as running:
    while True:
        (folder / "new ids").write_text(" ".join(map(str, running.process_ids().values())))
        (folder / "new ids").rename(folder / "ids")
        time.sleep(0.05)
"""


def children(folder: Path, *scripts: str, end_seconds: float = 5.0, after: Path | None = None) -> Children:
    commands = [
        Command(f"child {number}", [sys.executable, "-c", script], folder / f"{number}.log", after)
        for number, script in enumerate(scripts)
    ]
    return Children(commands, os.environ, SystemClock(), end_seconds=end_seconds)


def wait_for(seen: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_gone(process_id: int) -> bool:
    return not in_session(process_id)


def test_a_killed_process_is_restarted_and_its_state_shows_it(tmp_path: Path) -> None:
    with children(tmp_path, SLEEPS, SLEEPS) as running:
        wait_for(lambda: len(running.process_ids()) == 2)
        first = dict(running.process_ids())
        os.kill(first["child 0"], signal.SIGKILL)
        wait_for(lambda: running.process_ids().get("child 0", first["child 0"]) != first["child 0"])
        assert running.states() == {"child 0": "up, restarts: 1", "child 1": "up"}
        assert running.process_ids()["child 1"] == first["child 1"]


def test_the_end_of_the_block_ends_all_processes_and_their_descendants(tmp_path: Path) -> None:
    with children(tmp_path, SLEEPS, A_PARENT) as running:
        wait_for(lambda: len(running.process_ids()) == 2)
        ids = list(running.process_ids().values())
        wait_for(lambda: len(in_session(ids[1])) == 2)
    assert all(is_gone(process_id) for process_id in ids)


def test_a_descendant_that_outlived_its_parent_is_ended(tmp_path: Path) -> None:
    with children(tmp_path, A_PARENT) as running:
        wait_for(lambda: len(running.process_ids()) == 1)
        (parent,) = running.process_ids().values()
        wait_for(lambda: len(in_session(parent)) == 2)
        os.kill(parent, signal.SIGKILL)
        wait_for(lambda: running.process_ids().get("child 0", parent) != parent)
        assert len(in_session(parent)) == 1, "the orphan"
    assert is_gone(parent)


def test_a_process_that_ignores_sigint_is_killed_after_end_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with children(tmp_path, DEAF, end_seconds=1.0) as running:
        wait_for((tmp_path / "up").exists)
        (process_id,) = running.process_ids().values()
        started = time.monotonic()
    assert time.monotonic() - started < 5
    assert is_gone(process_id)


def test_a_process_that_waits_for_a_file_starts_when_the_file_exists(tmp_path: Path) -> None:
    with children(tmp_path, SLEEPS, after=tmp_path / "ready") as running:
        time.sleep(0.6)
        assert running.states() == {"child 0": "waiting"}
        (tmp_path / "ready").touch()
        wait_for(lambda: running.states() == {"child 0": "up"})


def test_the_output_of_a_process_is_in_its_log(tmp_path: Path) -> None:
    with children(tmp_path, "print('hello', flush=True); import time; time.sleep(600)"):
        wait_for(lambda: (tmp_path / "0.log").exists() and "hello" in (tmp_path / "0.log").read_text())


def test_the_folder_of_a_log_is_created_again_after_its_deletion(tmp_path: Path) -> None:
    logs = tmp_path / "not there yet"
    with children(logs, SLEEPS) as running:
        wait_for(lambda: len(running.process_ids()) == 1)
        (first,) = running.process_ids().values()
        shutil.rmtree(logs)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: running.process_ids().get("child 0", first) != first)


def test_a_process_that_cannot_start_does_not_stop_the_watch_over_the_others(tmp_path: Path) -> None:
    (tmp_path / "0.log").mkdir()
    with children(tmp_path, SLEEPS, SLEEPS) as running:
        wait_for(lambda: len(running.process_ids()) == 1)
        first = running.process_ids()["child 1"]
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: running.process_ids().get("child 1", first) != first)
        assert running.states()["child 0"] == "waiting"


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher of a process that ignores SIGINT and of a process with a child."""
    command = [sys.executable, "-c", A_LAUNCHER, str(tmp_path)]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}) as process:
        yield process
        process.kill()
    kill([one.id for leader in ids_in(tmp_path) for one in in_session(leader)])


def ids_in(folder: Path) -> list[int]:
    """The process ids that the launcher wrote."""
    return [int(one) for one in (folder / "ids").read_text().split()] if (folder / "ids").exists() else []


def all_of(folder: Path) -> list[int]:
    """Both processes of the launcher, once the second has its child."""
    wait_for(lambda: len(ids_in(folder)) == 2 and len(in_session(ids_in(folder)[1])) == 2 and (folder / "up").exists())
    return ids_in(folder)


def guardian_of(launcher: subprocess.Popen[bytes]) -> int:
    (found,) = [one.id for one in children_of(launcher.pid) if "guardian" in one.command]
    return found


def test_the_processes_and_their_descendants_end_when_their_launcher_is_killed(
    launcher: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    ids = all_of(tmp_path)
    guardian = guardian_of(launcher)
    launcher.kill()
    wait_for(lambda: all(is_gone(one) for one in (*ids, guardian)))


def test_a_killed_guardian_is_replaced_by_one_with_the_same_groups(
    launcher: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    ids = all_of(tmp_path)
    first = guardian_of(launcher)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: any("guardian" in one.command and one.id != first for one in children_of(launcher.pid)))
    assert all_of(tmp_path) == ids, "no child was restarted"
    launcher.kill()
    wait_for(lambda: all(is_gone(one) for one in ids))


def test_a_launcher_that_dies_while_it_starts_a_process_leaves_no_process(tmp_path: Path) -> None:
    """The launcher dies in the same moment in which it starts a child."""
    script = """
import os, signal, subprocess
from statekeeper.resources.launcher.guardian import Guardian

guardian = Guardian()
slow = ["/bin/sh", "-c", 'echo $$ > started; sleep 1; exec "$@"', "slow"]
command = [*slow, *guardian.announcing(["/bin/sleep", "600"])]
subprocess.Popen(command, stdin=guardian.start([]), start_new_session=True)
while not (os.path.exists("started") and os.path.getsize("started")):
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", script]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False)
    process_id = int((tmp_path / "started").read_text())
    assert not is_gone(process_id)
    wait_for(lambda: is_gone(process_id))
