"""The origin of a checkpoint: a Python job or a native Spark query. Only this module determines it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.checkpoint.commit_log import Heads
from statekeeper.statestore.checkpoint.stateless import Stateless, stateless
from statekeeper.statestore.format import names
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.state_conf import OURS, ROCKSDB, StateConf
from statekeeper.statestore.storage import Entry, Storage

_OF_PYTHON_JOBS = (names.BINDING, f"{names.PENDING}/", f"{names.BATCH_LOGS}/", f"{names.SCHEMAS}/")
"""Control files that only Python jobs write. Maintenance writes other control files into native checkpoints, too."""


class Origin(Enum):
    """The writer of a checkpoint: `OWN` for a Python job, `NATIVE` for a Spark query with the JVM provider."""

    OWN = "own"
    NATIVE = "native"

    def state_conf(self, storage: Storage, heads: Heads, supported: Collection[Provider] = ROCKSDB) -> StateConf:
        """Return the state configuration. It is fixed for a Python job: no request. Raises as `catalog.state_conf`."""
        return OURS if self is Origin.OWN else catalog.state_conf(storage, heads, supported)

    def stateless(self, storage: Storage, heads: Heads) -> Stateless | None:
        """Find out why the query has no state; None if it has state, as every Python job. Requests: see `stateless`."""
        return None if self is Origin.OWN else stateless(storage, heads.batch, heads.heads)


def origin_of(storage: Storage) -> Origin:
    """Determine the origin by the binding. One request. Raises `StorageError`."""
    return Origin.NATIVE if storage.stat(names.BINDING) is None else Origin.OWN


def origin_among(control: Iterable[Entry]) -> Origin:
    """Determine the origin by a listing of the control files, also if the binding was deleted."""
    return Origin.OWN if any(entry.path.startswith(_OF_PYTHON_JOBS) for entry in control) else Origin.NATIVE
