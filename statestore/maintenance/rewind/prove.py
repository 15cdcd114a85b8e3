"""Restores each store at one batch, on local disk: the proof that a rewind leads to a batch that loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from statekeeper.statestore.clock import Clock, Ids
from statekeeper.statestore.commit_log import Heads
from statekeeper.statestore.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.engine.rocks import EngineLimits
from statekeeper.statestore.engine.scratch import work_folder
from statekeeper.statestore.errors import StatekeeperError
from statekeeper.statestore.format.names import EMPTY, StorePath
from statekeeper.statestore.format.state_conf import StateConf
from statekeeper.statestore.loading.loader import Loader
from statekeeper.statestore.maintenance.pool import WORKERS, in_pool
from statekeeper.statestore.storage import Storage

_LIMITS = EngineLimits(block_bytes=4096)


def prove(
    storage: Storage,
    heads: Heads,
    conf: StateConf,
    *,
    scratch: Path,
    clock: Clock,
    ids: Ids,
    restored: Callable[[StorePath], None] = lambda store: None,
) -> dict[StorePath, StatekeeperError]:
    """Restore each store at its version in `heads`, and return the errors of those that cannot be restored.

    `restored` is called after each store, from one thread at a time. `scratch`: a folder with space for as many stores as
    the machine has cores. Reads only.
    """
    failed: dict[StorePath, StatekeeperError] = {}

    def restore(store: StorePath) -> None:
        with work_folder(scratch, "rewind") as folder:
            cache = LocalCopyFolder(folder / "store", _LIMITS, ids)
            loader = Loader(store, storage, cache, _LIMITS, clock=clock, lock_timeout_seconds=0, conf=conf)
            with loader.restore(heads.heads[store], folder / "database").database:
                pass

    def ended(store: StorePath, outcome: StatekeeperError | None) -> None:
        if outcome is not None:
            failed[store] = outcome
        restored(store)

    in_pool(restore, [store for store, head in heads.heads.items() if head != EMPTY], ended, workers=WORKERS)
    return failed
