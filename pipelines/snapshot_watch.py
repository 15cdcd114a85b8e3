"""Detection of the snapshots that maintenance makes while a query runs."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SnapshotWatch:
    """Looks for new snapshots periodically, in its own thread."""

    def __init__(self, look: Callable[[], None], every_seconds: float, warn: Callable[[str], None]) -> None:
        self._look = look
        self._every_seconds = every_seconds
        self._warn = warn
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="snapshot-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Returns when it has ended."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - the batches do not depend on it
                self._warn(f"could not look for snapshots: {error}")
