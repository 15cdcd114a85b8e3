"""Whether the process of a run is alive, which Dagster's default launcher cannot tell.

    <instance>/workers/<run>.lock       locked by the process of the run for as long as it lives
    tags statekeeper/host, /holder      on which machine that is, and the name under which it takes leases

*The losing schedule*: the machine, or the code server with its children, is killed; the run stays STARTED in Dagster's
storage, and with it the slot of its query, for ever. The operating system gives a lock back when its process dies,
however it dies, and no other process can be taken for it, as it could be by its number.
"""

import os
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import dagster as dg
from filelock import FileLock, Timeout

HOST_TAG = "statekeeper/host"
HOLDER_TAG = "statekeeper/holder"
_FOLDER = "workers"


_HELD: list[FileLock] = []
"""Locks are never given back by us: a run is marked as ended after its resources were torn down, and in between it would
look dead. The end of the process gives them back."""


class Worker(dg.ConfigurableResource):
    """Holds the lock of a run while its process lives. Part of the fleet, so that every run that maintains has it."""

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Take the lock, then say where: a run with the tag and without the lock is dead."""
        if context.instance is None or context.run is None:
            return
        run_id = context.run.run_id
        lock = FileLock(_lock_file(context.instance, run_id))
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        _HELD.append(lock)
        context.instance.add_run_tags(run_id, {HOST_TAG: socket.gethostname(), HOLDER_TAG: holder(run_id)})


def holder(run_id: str) -> str:
    """Who is at it, for leases and the people who look at them: this process, for a run."""
    return f"{socket.gethostname()}:{os.getpid()}, Dagster run {run_id}"


def is_dead(instance: dg.DagsterInstance, run_id: str, tags: Mapping[str, str]) -> bool:
    """Whether a run that Dagster takes for started has lost its process. Only this machine's runs can be judged here;
    of others it says no, and their `dagster/max_runtime` ends them."""
    if tags.get(HOST_TAG) != socket.gethostname():
        return False
    lock = FileLock(_lock_file(instance, run_id))
    try:
        with lock.acquire(timeout=0):
            return True
    except Timeout:
        return False


def forget_dead(instance: dg.DagsterInstance, run_ids: Collection[str]) -> int:
    """Remove the lock files of all runs but these; how many it were. What is locked stays, too."""
    removed = 0
    for file in (Path(instance.root_directory) / _FOLDER).glob("*.lock"):
        if file.stem in run_ids:
            continue
        with suppress(Timeout), FileLock(file).acquire(timeout=0):
            file.unlink(missing_ok=True)
            removed += 1
    return removed


def _lock_file(instance: dg.DagsterInstance, run_id: str) -> Path:
    return Path(instance.root_directory) / _FOLDER / f"{run_id}.lock"
