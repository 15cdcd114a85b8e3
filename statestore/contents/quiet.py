"""Decides whether a query is stopped, as far as its checkpoint shows it.

An idle query looks like a stopped one. A verb that is safe only while the query is stopped needs two conditions: a person
confirms that the query is stopped, and the checkpoint does not change for `QUIET_SECONDS`.
"""

from __future__ import annotations

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format import names
from statekeeper.statestore.storage import Entry, Storage

QUIET_SECONDS = 5.0
"""The checkpoint must not change for this time. For a query that commits less often, only the confirmation counts."""


def require_stopped(storage: Storage, *, confirmed: bool, clock: Clock, seconds: float = QUIET_SECONDS) -> None:
    """Require that a person has `confirmed` that the query is stopped, and that the checkpoint does not change.

    A change is a log or a store file, also a hidden one, that is written, replaced or deleted within `seconds`. Requests:
    two listings of each folder. Raises `RefusedAsUnsafe`, `StorageError`.
    """
    if not confirmed:
        raise RefusedAsUnsafe(
            "the query may be running, and the checkpoint does not show whether it is idle or stopped; nothing was changed",
            path=storage.url,
            hint="stop the query, verify that its application has ended, and add --confirm-stopped",
        )
    before = _files(storage)
    clock.sleep(seconds)
    changed = sorted(_files(storage) ^ before, key=lambda entry: entry.path)
    if changed:
        raise RefusedAsUnsafe(
            f"changed while this command watched the checkpoint for {seconds:g} s: the query or another maintainer is "
            "running; this command changed nothing",
            path=changed[0].path,
            hint="stop the query and the other maintainer, verify that both have ended, and run this command again",
        )


def _files(storage: Storage) -> set[Entry]:
    folders = (names.COMMITS, names.OFFSETS, names.STATE)
    return {entry for folder in folders for entry in storage.list(folder, hidden=True)}
