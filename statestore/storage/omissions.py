"""Entries that listings omit."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.storage.paths import is_below

MOST_OMITTED = 10_000

SYMBOLIC_LINK = "it is a symbolic link; links are not followed"
"""The reason to omit a link."""


@dataclass(frozen=True)
class Omitted:
    """An entry that listings omit. `shown`: its path for display, which may not be usable as a path."""

    shown: str
    reason: str


class Omissions:
    """Entries that listings omitted: links, FIFOs, sockets, devices, and names that are not valid paths. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, str] = {}

    def note(self, path: str, reason: str) -> None:
        with self._lock:
            # A folder full of such entries must not fill the memory. Omitted entries are never deleted, noted or not.
            if len(self._found) < MOST_OMITTED:
                self._found[printable(path)] = reason

    def below(self, folder: str) -> tuple[Omitted, ...]:
        """The omitted entries in a folder ("" is the root), sorted; at most MOST_OMITTED in total."""
        with self._lock:
            found = sorted(self._found.items())
        return tuple(Omitted(shown, reason) for shown, reason in found if not folder or is_below(shown, folder))
