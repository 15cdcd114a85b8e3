"""The liveness lock of a run. Dagster's default launcher cannot tell whether the process of a run is alive.

    <instance>/workers/<run>.lock    locked by the process of the run while it lives
    tag statekeeper/holder           `host:pid, Dagster run ID`: the machine of the run, and its name in leases

*Race*: the machine, or the code server with its children, is killed. The run stays STARTED in Dagster's storage and
occupies the slot of its query. The operating system releases a lock when its process dies, however it dies. A process id
could belong to another process by then.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import dagster as dg
from filelock import FileLock, Timeout

HOLDER_TAG = "statekeeper/holder"

TOLD_TAG = "statekeeper/told"
"""The tag of a run whose failure people know from the notice of the query or of the configuration."""

_FOLDER = "workers"


_HELD: list[FileLock] = []
"""The end of the process releases these locks. Dagster marks a run as ended after it tears the resources down; a run whose
lock were released before that would look dead."""


class Worker(dg.ConfigurableResource):
    """Holds the lock of a run while its process lives. It is part of the fleet, so every run that maintains has it."""

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Take the lock, then tag the run. A run with the tag and without the lock is dead."""
        if context.instance is None or context.run is None:
            return
        run_id = context.run.run_id
        lock = FileLock(_lock_file(context.instance, run_id))
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        _HELD.append(lock)
        context.instance.add_run_tags(run_id, {HOLDER_TAG: holder(run_id)})


def holder(run_id: str) -> str:
    """The name of this process in leases and in the tag of a run."""
    return f"{socket.gethostname()}:{os.getpid()}, Dagster run {run_id}"


def is_dead(instance: dg.DagsterInstance, run_id: str, tags: Mapping[str, str]) -> bool:
    """Whether the process of a started run is gone. For runs on other machines it returns False; `dagster/max_runtime`
    ends those."""
    host = tags.get(HOLDER_TAG, "").partition(", ")[0].rpartition(":")[0]
    if host != socket.gethostname():
        return False
    lock = FileLock(_lock_file(instance, run_id))
    try:
        with lock.acquire(timeout=0):
            return True
    except Timeout:
        return False


def delete_lock(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete the lock file of an ended run, unless its process still holds the lock."""
    file = _lock_file(instance, run_id)
    if file.exists():
        with suppress(Timeout), FileLock(file).acquire(timeout=0):
            file.unlink(missing_ok=True)


def _lock_file(instance: dg.DagsterInstance, run_id: str) -> Path:
    return Path(instance.root_directory) / _FOLDER / f"{run_id}.lock"
