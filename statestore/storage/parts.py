"""Uploads a file in parts while it is still written (pre-emptive upload, FLIP-158).

    the caller appends to a local file    ┌────part 0────┬────part 1────┬────part 2────┬──rest──
    threads send each full part            sent           sent           in flight
    `complete` sends the rest; the object becomes visible as a whole

The parts stay in the local file until they are sent, so that a failed upload can start again from the file. If the
process dies, `Storage.unfinished_uploads` lists the parts in a bucket; on a file system they are an unfinished file.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import ObjectMissing, StorageError
from statekeeper.statestore.storage.base import PartsUpload, Storage
from statekeeper.statestore.storage.content import MOST_PIECES

PART_BYTES = 5 * 1024 * 1024
"""The smallest part that S3 accepts. Some stores require parts of one size."""

MOST_IN_FLIGHT = 4
"""Parts in memory at a time."""

_PARTS_FOR_ONE_MORE = 16
"""One part may remain in flight when the caller continues, and one more for every so many parts that are sent. So a slow
store holds back at most a fifth of a file of 12 parts or more until the commit."""


@dataclass(kw_only=True)
class EarlyUploadMetrics:
    """The work of an upload before `complete`.

    sent_bytes             bytes in storage when `seal` was called; 0 if they were dropped
    back_pressure_seconds  time that the caller waited because too many parts were in flight
    requests               requests that began the upload and sent the parts, without retries
    """

    sent_bytes: int = 0
    back_pressure_seconds: float = 0.0
    requests: int = 0


class EarlyUpload:
    """The upload of one growing file. Sends no request before the file is large. Not thread-safe.

    least_bytes  a smaller file is not sent
    replaces     as `Storage.create_in_parts`

    *Guarantee*: the object becomes visible only in `complete`, as a whole.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        file: Path,
        *,
        clock: Clock,
        part_bytes: int,
        least_bytes: int = 0,
        replaces: bool = False,
    ) -> None:
        self.metrics = EarlyUploadMetrics()
        self._storage = storage
        self._path = path
        self._file = file
        self._clock = clock
        self._part_bytes = part_bytes
        self._wanted_bytes = max(part_bytes, least_bytes)
        self._replaces = replaces
        self._in_flight: set[Future[bool]] = set()
        self._opening = threading.Lock()
        self._upload: PartsUpload | None = None
        self._given = 0
        self._sent = 0
        self._has_failed = False

    def extend(self, writer: BinaryIO) -> None:
        """Send the full parts that `writer` has appended to the file. They must not change any more.

        Waits while too many parts are in flight. A storage error stops the upload and is not raised: `complete` then
        returns False. Raises OSError if the file cannot be flushed.
        """
        size_bytes = writer.tell()
        if self._has_failed or size_bytes < self._wanted_bytes:
            return
        writer.flush()
        started = self._clock.monotonic_seconds()
        has_waited = False
        while not self._has_failed and (self._given + 1) * self._part_bytes <= size_bytes:
            has_waited |= self._wait(MOST_IN_FLIGHT - 1)
            self._give(self._part_bytes)
        self._wanted_bytes = (self._given + 1) * self._part_bytes
        if self._wait(min(MOST_IN_FLIGHT, 1 + self._sent // _PARTS_FOR_ONE_MORE)) or has_waited:
            self.metrics.back_pressure_seconds += self._clock.monotonic_seconds() - started

    def seal(self) -> None:
        """Record the bytes that are in storage before the commit."""
        self._collect()
        self.metrics.sent_bytes = 0 if self._has_failed else self._sent * self._part_bytes

    def send_rest(self) -> None:
        """Send the rest of the complete file if a part was sent. As in `extend`, a storage error is not raised."""
        if not self._given:
            return
        size_bytes = self._file.stat().st_size
        while not self._has_failed and self._given * self._part_bytes < size_bytes:
            self._wait(MOST_IN_FLIGHT - 1)
            self._give(min(self._part_bytes, size_bytes - self._given * self._part_bytes))
        self._wait(0)
        self.metrics.requests = self._given + 1

    def complete(self) -> bool:
        """Make the object visible. Call `send_rest` first. Return False if not all parts are in storage: the caller then
        creates the object from the file.

        Raises as `Storage.create`. After a storage error the parts are dropped, and a further call returns False.
        """
        if self._has_failed or self._upload is None:
            self.abort()
            return False
        try:
            self._upload.complete(self._file)
        except ObjectMissing:
            # Another process aborted the upload.
            self.abort()
            return False
        except StorageError:
            self.abort()
            raise
        self._threads.shutdown()
        return True

    def abort(self) -> None:
        """Drop the parts. Raises no storage error: retention drops parts that an abort leaves."""
        # Race: a part that arrives after the abort would remain. So wait for the parts in flight.
        if self._given:
            self._threads.shutdown(cancel_futures=True)
        self._in_flight.clear()
        self._has_failed = True
        self.metrics.sent_bytes = 0
        upload, self._upload = self._upload, None
        if upload is not None:
            with suppress(StorageError):
                upload.abort()

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """Exists from the first part on: most changelogs have none."""
        return ThreadPoolExecutor(MOST_IN_FLIGHT, thread_name_prefix="statekeeper-upload")

    def _give(self, length: int) -> None:
        if self._given == MOST_PIECES:
            # `Storage.create` uses larger parts for a file of that size.
            self._has_failed = True
        if not self._has_failed:
            self._in_flight.add(self._threads.submit(self._send, self._given, length))
            self._given += 1

    def _send(self, number: int, length: int) -> bool:
        """Send a part; return False if the storage creates objects only in one request."""
        with self._opening:
            if self._upload is None:
                self._upload = self._storage.create_in_parts(
                    self._path, part_bytes=self._part_bytes, replaces=self._replaces
                )
            upload = self._upload
        if upload is None:
            return False
        with self._file.open("rb") as file:
            file.seek(number * self._part_bytes)
            upload.send(number, file.read(length))
        return True

    def _wait(self, most_in_flight: int) -> bool:
        """Wait until at most so many parts are in flight; return whether it had to wait."""
        self._collect()
        has_waited = False
        while len(self._in_flight) > most_in_flight:
            has_waited = True
            wait(self._in_flight, return_when=FIRST_COMPLETED)
            self._collect()
        return has_waited

    def _collect(self) -> None:
        for part in [part for part in self._in_flight if part.done()]:
            self._in_flight.remove(part)
            try:
                is_sent = part.result()
            except (StorageError, OSError):
                is_sent = False
            self._sent += is_sent
            self._has_failed = self._has_failed or not is_sent
