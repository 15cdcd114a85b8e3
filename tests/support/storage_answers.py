"""Paths and bodies for a comparison of storage backends."""

from __future__ import annotations

from collections.abc import Callable

from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.storage import Storage

PATHS = ["a", "b/c", "b/d", "b.e", "_statekeeper/tmp/f", "b/.g.crc"]


BODIES = [b"", b"one", b"another"]


def answer(call: Callable[[Storage], object], storage: Storage) -> object:
    try:
        return call(storage)
    except StatekeeperError as error:
        return error.code
