"""Finds the processes of one session, and sends SIGKILL to them by their ids.

PySpark's workers have their own process group. The session identifies all processes of a run of the job:
`start_new_session=True` creates it, and all children inherit it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it."""

    id: int
    parent: int
    state: str
    command: str

    @property
    def is_spark(self) -> bool:
        """Return whether this is Spark's JVM, not one that prints its version or builds Spark's command line."""
        is_java = self.command.split("\0", 1)[0].rsplit("/", 1)[-1] == "java"
        return is_java and "\0org.apache.spark." in self.command and "\0org.apache.spark.launcher." not in self.command

    @property
    def is_python_daemon(self) -> bool:
        return "\0pyspark.daemon" in self.command


def in_session(session: int) -> list[Process]:
    """The processes of a session that still run; one that is dead and only not yet waited for does not count."""
    return _those(lambda process_id, _: os.getsid(process_id) == session)


def children_of(parent: int) -> list[Process]:
    """The processes that a process has started, and that still run."""
    return _those(lambda _, found: found == parent)


def _those(wanted: Callable[[int, int], bool]) -> list[Process]:
    """The running processes whose id and whose parent's id are wanted."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX" and wanted(int(entry.name), int(parent)):
                command = (entry / "cmdline").read_text(errors="replace")
                found.append(Process(int(entry.name), int(parent), state, command))
    return found


def kill(process_ids: list[int]) -> None:
    """Send SIGKILL to each process. Processes that already ended are ignored."""
    for process_id in process_ids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)


def jvms(processes: list[Process]) -> list[int]:
    """The ids of Spark's JVMs among them."""
    return [process.id for process in processes if process.is_spark]


def python_workers(processes: list[Process]) -> list[int]:
    """The ids of the Python workers among them, without the daemon that forks them; only busy ones if some are."""
    daemons = {process.id for process in processes if process.is_python_daemon}
    workers = [process for process in processes if process.is_python_daemon and process.parent in daemons]
    busy = [worker.id for worker in workers if worker.state in "RD"]
    return busy or [worker.id for worker in workers]


def any_lock_is_held(locks: list[Path]) -> bool:
    """Return whether a process holds a lock on one of these files, without acquiring the locks."""
    held = _locked_inodes()
    for lock in locks:
        with contextlib.suppress(FileNotFoundError):
            if lock.stat().st_ino in held:
                return True
    return False


def _locked_inodes() -> set[int]:
    inodes = set()
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if "->" not in fields:
            inodes.add(int(fields[5].rsplit(":", 1)[1]))
    return inodes
