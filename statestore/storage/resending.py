"""Requests that are sent again after a transient failure.

A few tries bridge a short failure. A streaming query also waits for storage that is unavailable for minutes: its changes
are still in memory or on the host's disk, so the same request is sent until it succeeds or `timeout_seconds` have
passed. Nothing is computed again and nothing is dropped. Maintenance does not wait, because its lease would expire.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from statekeeper.statestore.base.clock import Clock, Ids
from statekeeper.statestore.storage.base import Requests

TRIES = 5
"""Tries of each request to S3, whatever the time limit is."""

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_REPEATED_SECONDS = 30.0

_LOG = logging.getLogger("statekeeper")
T = TypeVar("T")


class Resending:
    """Sends requests to one storage, again after transient failures.

    url              displayed in warnings
    tries            number of tries, whatever the time limit is
    timeout_seconds  time from the first try after which no other follows, except for the `tries`
    """

    def __init__(
        self, url: str, requests: Requests, *, clock: Clock, ids: Ids, tries: int = TRIES, timeout_seconds: float
    ) -> None:
        self._url = url
        self._requests = requests
        self._clock = clock
        self._ids = ids
        self._tries = tries
        self._timeout_seconds = timeout_seconds

    def send(self, attempt: Callable[[], T], is_transient: Callable[[Exception], bool]) -> T:
        """Return the result of the first successful try. Raises the error of the last try, and at once an error that is
        not transient. Warns when the first tries have failed, and when a later one succeeds."""
        started = self._clock.monotonic_seconds()
        warned: float | None = None
        failed = 0
        while True:
            try:
                result = attempt()
            except Exception as error:
                failed += 1
                waited = self._clock.monotonic_seconds() - started
                if not is_transient(error) or (failed >= self._tries and waited >= self._timeout_seconds):
                    raise
                if failed >= self._tries and (warned is None or waited - warned >= _REPEATED_SECONDS):
                    warned = waited
                    self._warn(error, waited)
                pause = self._pause_seconds(failed)
                self._requests.count_wait(pause)
                self._clock.sleep(pause)
            else:
                if warned is not None:
                    waited = self._clock.monotonic_seconds() - started
                    _LOG.warning("%s is available again after %.0f s; nothing is lost", self._url, waited)
                return result

    def _warn(self, error: Exception, waited: float) -> None:
        remaining = max(self._timeout_seconds - waited, 0.0)
        _LOG.warning(
            "%s is unavailable since %.0f s (%s); the request is sent again for up to %.0f s more",
            self._url,
            waited,
            str(error).partition("\n")[0] or type(error).__name__,
            remaining,
        )

    def _pause_seconds(self, failed_tries: int) -> float:
        """Return a doubling pause minus a random part, so that tasks of a batch that were rejected together retry
        apart."""
        longest = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(failed_tries, 10), _LONGEST_PAUSE_SECONDS)
        return longest * (1 + int(self._ids.fresh()[:2], 16) / 255) / 2
