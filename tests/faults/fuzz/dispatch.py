"""Runs each case in its own process, a few at a time, with limits on time and memory."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.faults.fuzz.case import play

MEMORY_BYTES = 2 * 2**30
"""The address space that a case may take in addition to that of the process."""

SECONDS = 300.0
"""A case that takes longer hangs. Usually a case takes a hundredth of it."""

_ARENAS = -8
_LOG_BYTES = 4000


@dataclass(frozen=True)
class Ended:
    """Result of a process: the content of `case.Seen`, decoded."""

    seen: dict[str, Any]
    seconds: float
    peak_bytes: int


@dataclass
class _Running:
    case: int
    pid: int
    folder: Path
    since: float


def play_all(
    seed: int, cases: Iterable[int], folder: Path, *, processes: int, only: frozenset[str] | None = None
) -> Iterator[Ended]:
    """Play cases in processes of their own, below a folder, and yield each when it has ended."""
    (folder / "roots").mkdir(parents=True, exist_ok=True)
    waiting = iter(cases)
    running: dict[int, _Running] = {}
    is_out = False
    try:
        while running or not is_out:
            while not is_out and len(running) < processes:
                case = next(waiting, None)
                if case is None:
                    is_out = True
                else:
                    one = _start(seed, case, folder, only)
                    running[one.pid] = one
            for one in list(running.values()):
                ended = _ended(one)
                if ended is not None:
                    del running[one.pid]
                    yield ended
            time.sleep(0.005)
    finally:
        for one in running.values():
            os.killpg(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
            shutil.rmtree(one.folder, ignore_errors=True)


def _start(seed: int, case: int, folder: Path, only: frozenset[str] | None) -> _Running:
    place = Path(tempfile.mkdtemp(dir=folder, prefix=f"case-{case}-"))
    pid = os.fork()
    if pid == 0:
        _in_child(seed, case, folder / "roots", place, only)
    return _Running(case, pid, place, time.monotonic())


def _in_child(seed: int, case: int, cache: Path, place: Path, only: frozenset[str] | None) -> None:
    """Run a case and end the process. Its output is in `log`, its result in `seen`."""
    code = 1
    try:
        os.setsid()
        log = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        limit_memory()
        temporary = place / "temporary"
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)
        tempfile.tempdir = None
        os.chdir(temporary)
        seen = play(seed, case, cache, place / "case", only)
        if any(temporary.iterdir()):
            seen.failures.append(("WROTE OUTSIDE", "some verb", str([left.name for left in temporary.iterdir()])))
        (place / "seen").write_text(json.dumps(asdict(seen), ensure_ascii=True))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def limit_memory() -> None:
    """Limit this process to `MEMORY_BYTES` more than it uses now."""
    # Threads reserve much more address space than they use: few arenas and small stacks, so that the limit means something.
    ctypes.CDLL(None).mallopt(_ARENAS, 2)
    threading.stack_size(1024 * 1024)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _ended(one: _Running) -> Ended | None:
    pid, status, usage = os.wait4(one.pid, os.WNOHANG)
    seconds = time.monotonic() - one.since
    kind = None
    if pid == 0:
        if seconds < SECONDS:
            return None
        os.killpg(one.pid, signal.SIGKILL)
        _, status, usage = os.wait4(one.pid, 0)
        kind = "HANG"
    log = (
        (one.folder / "log").read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace")
        if (one.folder / "log").exists()
        else ""
    )
    result = one.folder / "seen"
    if kind is None and status == 0 and result.exists():
        seen = json.loads(result.read_text())
    else:
        kind = kind or (f"CRASH, signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "HARNESS")
        failure = (kind, "the last in the log", log)
        seen = {"case": one.case, "root": "?", "stage": "?", "damages": [], "done": [], "heads": 0, "calls": []}
        seen["failures"] = [failure]
    shutil.rmtree(one.folder, ignore_errors=True)
    return Ended(seen, seconds, usage.ru_maxrss * 1024)
