"""How many keys a store has after a replay, without going over all of them where a look at the changed ones is enough."""

from __future__ import annotations

import itertools

import numpy as np

from statestore.engine.rocks import Database
from statestore.format.changelog import Changes

_LOOKUPS_COST = 5
"""Looking a key up costs as much as going over so many (measured: 2.5 and 0.5 microseconds)."""

_LOOKED_UP_AT_ONCE = 10_000


class KeyCount:
    """Counts on from the `held` keys of a base, None when nobody counted them; they are trusted, as Spark trusts them.

    `keys` is the result: exact, or None where it takes `Database.count_keys`.
    """

    def __init__(self, database: Database, held: int | None) -> None:
        self.keys = held
        self._database = database
        self._held = held
        self._windows = 0

    def count(self, window: Changes) -> Changes:
        """The window itself, counted. The database does not have it yet."""
        self._windows += 1
        if self._windows > 1 or self._held is None:
            # A key of this window may be new in an earlier one, which the database does not show.
            self.keys = None
        elif self._held == 0:
            self.keys = int(np.count_nonzero(window.value_length >= 0))
        elif _LOOKUPS_COST * len(window) < self._held:
            self.keys = self._held + self._more(window)
        else:
            self.keys = None
        return window

    def _more(self, window: Changes) -> int:
        more = 0
        pairs = window.pairs()
        while some := list(itertools.islice(pairs, _LOOKED_UP_AT_ONCE)):
            held = self._database.get_many([key for key, _ in some])
            more += sum((new is not None) - (old is not None) for (_, new), old in zip(some, held, strict=True))
        return more
