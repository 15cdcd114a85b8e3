"""Whether a query is stopped: as far as that can be told from outside.

What is only safe then needs a person's word, since a query that waits for data looks just like one that is stopped; and the
checkpoint has to be quiet besides.
"""

from __future__ import annotations

from statestore.clock import Clock
from statestore.errors import RefusedAsUnsafe
from statestore.format import names
from statestore.storage import Entry, Storage

QUIET_SECONDS = 5.0
"""Nothing may change for so long. A query that commits less often is told by the person alone."""


def require_stopped(storage: Storage, *, said: bool, clock: Clock, seconds: float = QUIET_SECONDS) -> None:
    """Raises `RefusedAsUnsafe` unless somebody `said` so and nothing of the query's is written, replaced or deleted while
    this looks: logs, files of stores, also such as are unfinished. Two listings of each.
    """
    if not said:
        raise RefusedAsUnsafe(
            "this is safe only while the query is stopped, and an idle one looks the same",
            path=storage.url,
            hint="stop the query, see that its application is gone, and add --confirm-stopped",
        )
    before = _files(storage)
    clock.sleep(seconds)
    changed = sorted(_files(storage) ^ before, key=lambda entry: entry.path)
    if changed:
        raise RefusedAsUnsafe(
            f"changed within {seconds:g} s: the query runs, or somebody maintains it",
            path=changed[0].path,
            hint="stop the query, see that its application is gone, and run this again",
        )


def _files(storage: Storage) -> set[Entry]:
    folders = (names.COMMITS, names.OFFSETS, names.STATE)
    return {entry for folder in folders for entry in storage.list(folder, hidden=True)}
