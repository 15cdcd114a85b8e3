"""The sign of life of a run, in tags of the run: any machine can read them.

    statekeeper/holder    `host:pid, Dagster run ID`: the process of the run, and its name in leases
    statekeeper/beat      the time of its newest sign of life

*Race*: a machine, a pod, or the code server with its children is killed. The run stays STARTED in Dagster's storage, and
its queries wait for its end. The sensor `dead_runs` notices that the beat no longer changes. It compares no clocks: only
its own time counts. A process that was only stopped, and continues later, does no harm: it has lost its leases.
"""

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Lock, Thread

import dagster as dg

from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.durations import utc

HOLDER_TAG = "statekeeper/holder"
BEAT_TAG = "statekeeper/beat"

TOLD_TAG = "statekeeper/told"
"""The tag of a run whose failure people know from the notice of the query or of the configuration."""

BEAT_SECONDS = 20.0
"""Time between two beats. Each is a transaction in Dagster's storage."""

_LOG = logging.getLogger(__name__)
_TAGGING = Lock()


class Worker(dg.ConfigurableResource):
    """Beats while the process of a run lives. It is part of the fleet, so every run that maintains has it."""

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["Worker"]:
        """Beat until the resources of the run are torn down, which is before Dagster records its end."""
        if context.instance is None or context.run is None:
            yield self
            return
        with beating(context.instance, context.run.run_id):
            yield self


@contextmanager
def beating(instance: dg.DagsterInstance, run_id: str, *, seconds: float = BEAT_SECONDS) -> Iterator[None]:
    """Tag a run with the name of its process and with a beat, and renew the beat in a thread."""
    ended = Event()

    def beat(**tags: str) -> None:
        tag_run(instance, run_id, {**tags, BEAT_TAG: utc(SystemClock().now_seconds())})

    def renew() -> None:
        while not ended.wait(seconds):
            try:
                beat()
            except Exception:  # noqa: BLE001 - the storage may answer again before the run counts as dead
                _LOG.exception("run %s: its sign of life was not recorded", run_id)

    beat(**{HOLDER_TAG: holder(run_id)})
    thread = Thread(target=renew, name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def tag_run(instance: dg.DagsterInstance, run_id: str, tags: Mapping[str, str]) -> None:
    """Add tags to the run of this process. Dagster reads all tags of a run and writes them again, so threads take turns."""
    with _TAGGING:
        instance.add_run_tags(run_id, tags)


def holder(run_id: str) -> str:
    """The name of this process in leases and in the tag of a run."""
    return f"{socket.gethostname()}:{os.getpid()}, Dagster run {run_id}"
