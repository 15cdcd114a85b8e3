"""Changelogs that are uploaded in several parts."""

from __future__ import annotations

import random
from dataclasses import replace

from statekeeper.statestore.storage import Storage
from statekeeper.statestore.store.state_store import StateStore
from tests.support.hosts import Host, State, column

PART_BYTES = 40_000
PIECES = 60


def host_with_small_parts(host: Host, storage: Storage | None = None) -> Host:
    """Return the host with parts of `PART_BYTES`."""
    return replace(host, limits=replace(host.limits, part_bytes=PART_BYTES), storage=storage or host.storage)


def fill(store: StateStore, pieces: int = PIECES) -> State:
    """Write about 10 KB for each piece, and a counter that is overwritten, as an update function does."""
    state: State = {}
    for number in range(pieces):
        changes = {b"key %03d" % number: random.Random(number).randbytes(10_000), b"counter": b"%d" % number}
        store.put(column(list(changes)), column(list(changes.values())))
        state |= changes
    return state
