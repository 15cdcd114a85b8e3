"""Creates a file in parts: they are written to a temporary file, which gets its name when it is complete."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from statekeeper.statestore.storage.base import Created, Kind, Requests


class LocalPartsUpload:
    """The `PartsUpload` of a file system.

    temp        the temporary file; created here
    translated  translates errors of the operating system
    publish     gives the complete file its owner and its name; `descriptor` is open for writing, `file` has the same bytes
    """

    def __init__(
        self,
        temp: Path,
        *,
        part_bytes: int,
        kind: Kind,
        requests: Requests,
        translated: Callable[[], AbstractContextManager[None]],
        publish: Callable[[int, Path], Created],
    ) -> None:
        self._temp = temp
        self._part_bytes = part_bytes
        self._kind = kind
        self._requests = requests
        self._translated = translated
        self._publish = publish
        requests.count(kind)
        with translated():
            # Private until it has its final owner.
            self._descriptor: int | None = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def send(self, number: int, data: bytes) -> None:
        self._requests.count(self._kind, bytes_written=len(data))
        with self._translated():
            written = 0
            while written < len(data):
                written += os.pwrite(self._open, data[written:], number * self._part_bytes + written)
            os.fdatasync(self._open)

    def complete(self, file: Path) -> Created:
        self._requests.count(self._kind)
        try:
            with self._translated():
                return self._publish(self._open, file)
        finally:
            self.abort()

    def abort(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        with self._translated():
            self._temp.unlink(missing_ok=True)

    @property
    def _open(self) -> int:
        assert self._descriptor is not None, "the upload is complete or aborted"
        return self._descriptor
