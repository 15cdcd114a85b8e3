"""Hedged requests: a slow request is sent a second time, and the first reply counts (FLIP-158, *Request hedging*).

A few requests to an object store take many times the median. Their latency is mostly independent of that of an equal
request, so a second one is usually faster:

    sent ──────── p96 of its kind and size ──┬── reply ────────────────> done
                                             └── sent again ── reply ──> done, whichever reply is first

* Only reads and creates-if-absent of one object are hedged. Both may be executed twice: the second create finds the
  object of the first, which has the same bytes.
* A budget limits the second requests to `SHARE` of all requests. It is empty for `CLOSED_SECONDS` after a store asked
  for fewer requests (503, 429), because more requests would prolong the overload.
* The slower create is not cancelled, because a cancelled request may still be executed. *Race*: a lease is created, its
  slower create is on the way, and the lease is deleted. A late create would bring it back and block other runs. So a
  deletion of an object waits for the slower create (`settle`).

All coroutines of one `Hedging` run in its event loop. The other methods can be called from any thread.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from statekeeper.statestore.storage.base import Kind, Requests

SLOW = 0.96
"""A request is slow above this percentile. At 0.95, slow requests would need the whole budget, and some would get none."""

SHARE = 0.05
"""Second requests per request, at most."""

FLOOR_SECONDS = 0.025
"""A request is not slow before this time. Below it, a second request gains nothing that a query could notice."""

CLOSED_SECONDS = 60.0
"""Time without second requests after a store asked for fewer requests."""

OPTION = "hedge"
"""The storage option that turns hedging off: "false"."""

_BURST = 10.0
_WINDOW = 1000
_FEWEST = 50
_RENEWED_EVERY = 25

Class = tuple[Kind, int]
T = TypeVar("T")


class Latencies:
    """The latencies of the newest `_WINDOW` requests of each class, in seconds. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: dict[Class, deque[float]] = {}
        self._slow: dict[Class, tuple[int, float]] = {}
        self._added: dict[Class, int] = {}

    def add(self, of: Class, seconds: float) -> None:
        with self._lock:
            self._recent.setdefault(of, deque(maxlen=_WINDOW)).append(seconds)
            self._added[of] = self._added.get(of, 0) + 1

    def slow_seconds(self, of: Class) -> float | None:
        """Return the percentile `SLOW`, which is renewed every few requests; None while too few are known."""
        with self._lock:
            recent, added = self._recent.get(of, ()), self._added.get(of, 0)
            if len(recent) < _FEWEST:
                return None
            renewed, seconds = self._slow.get(of, (-_RENEWED_EVERY, 0.0))
            if added - renewed >= _RENEWED_EVERY:
                seconds = percentile(sorted(recent), SLOW)
                self._slow[of] = added, seconds
            return seconds

    def of_kind(self, kind: Kind) -> list[float]:
        """Return the latencies of a kind's requests of all sizes, sorted."""
        with self._lock:
            return sorted(seconds for (found, _), recent in self._recent.items() if found is kind for seconds in recent)


class Budget:
    """The number of second requests that are allowed now. It starts empty, so that they never exceed their share."""

    def __init__(self) -> None:
        self._allowed = 0.0
        self._closed_until = 0.0

    def earn(self) -> None:
        """Count a first request."""
        self._allowed = min(self._allowed + SHARE, _BURST)

    def spend(self, now_seconds: float) -> bool:
        """Return whether one more second request is allowed, and count it."""
        # A sum of twentieths is a little less than one.
        if now_seconds < self._closed_until or self._allowed < 1.0 - 1e-9:
            return False
        self._allowed -= 1.0
        return True

    def close(self, now_seconds: float) -> None:
        """Allow none for `CLOSED_SECONDS`, and earn anew afterwards."""
        self._closed_until = now_seconds + CLOSED_SECONDS
        self._allowed = 0.0


class Hedging:
    """Sends requests to one store, the slow ones twice."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_on: bool = True) -> None:
        self.latencies = Latencies()
        self._loop = loop
        self._is_on = is_on
        self._budget = Budget()
        self._late: dict[str, asyncio.Future[Any]] = {}

    async def read(
        self,
        send: Callable[[], Awaitable[T]],
        requests: Requests,
        *,
        is_final: Callable[[BaseException], bool],
        discard: Callable[[T], None] = lambda _: None,
        size_bytes: int = 0,
    ) -> T:
        """Send a read. Its latency is the time until `send` returns. `size_bytes` is 0 if `send` returns when the first
        bytes arrive, so that the latency does not depend on the size.

        is_final  whether an error is the store's answer, so that the other request would get the same
        discard   releases a reply that is not used
        """
        first, second = await self._sent(_class(Kind.READ, size_bytes), send, requests)
        if second is None:
            return await first

        def drop(slower: asyncio.Future[T]) -> None:
            if not slower.cancelled() and slower.exception() is None:
                discard(slower.result())

        used = None
        try:
            used = await _first_reply(first, second, requests, is_final)
            return used.result()
        finally:
            for slower in (first, second):
                if slower is not used:
                    slower.cancel()
                    slower.add_done_callback(drop)

    async def create(
        self,
        send: Callable[[], Awaitable[T]],
        requests: Requests,
        *,
        name: str,
        size_bytes: int,
        is_final: Callable[[BaseException], bool],
    ) -> T:
        """Send a create-if-absent of the object `name`, which is unique in the store.

        *Race*: each of the two requests can report a conflict with the object of the other. So a conflict is not final.
        If both fail, the caller compares the bytes, as it does after a lost reply.
        """
        of = _class(Kind.CREATE, size_bytes)
        first, second = await self._sent(of, send, requests, bytes_written=size_bytes)
        if second is None:
            return await first
        try:
            return (await _first_reply(first, second, requests, is_final)).result()
        finally:
            for slower in (first, second):
                if not slower.done():
                    self._keep(name, slower)

    def throttled(self) -> None:
        """Stop hedging for a while: the store asked for fewer requests."""
        self._budget.close(self._loop.time())

    def late(self, names: Iterable[str]) -> list[str]:
        """Return those of the names that have a slower create on the way."""
        return [name for name in names if name in self._late]

    async def settle(self, names: Iterable[str]) -> None:
        """Wait until no slower create of these objects is on the way. The time limit of a request limits the wait."""
        while waiting := {self._late[name] for name in self.late(names)}:
            await asyncio.wait(waiting)

    async def _sent(
        self, of: Class, send: Callable[[], Awaitable[T]], requests: Requests, *, bytes_written: int = 0
    ) -> tuple[asyncio.Future[T], asyncio.Future[T] | None]:
        """Send a request, and send it again if it is slow and the budget allows it."""
        started = self._loop.time()
        self._budget.earn()
        first = asyncio.ensure_future(send())
        first.add_done_callback(lambda done: self._note(of, started, done))
        slow_seconds = self.latencies.slow_seconds(of)
        if slow_seconds is None or not self._is_on:
            return first, None
        try:
            await asyncio.wait({first}, timeout=max(slow_seconds, FLOOR_SECONDS))
        except asyncio.CancelledError:
            first.cancel()
            raise
        if first.done() or not self._budget.spend(self._loop.time()):
            return first, None
        requests.count(of[0], bytes_written=bytes_written)
        requests.count_hedge()
        second = asyncio.ensure_future(send())
        second.add_done_callback(_read_error)
        return first, second

    def _note(self, of: Class, started: float, done: asyncio.Future[T]) -> None:
        # An error that returns at once would shorten the percentile. A cancelled request was slow, and its time is a
        # lower limit, which is above the percentile as well.
        if done.cancelled() or done.exception() is None:
            self.latencies.add(of, self._loop.time() - started)

    def _keep(self, name: str, slower: asyncio.Future[T]) -> None:
        self._late[name] = slower

        def forget(done: asyncio.Future[T]) -> None:
            if self._late.get(name) is done:
                del self._late[name]

        slower.add_done_callback(forget)


async def _first_reply(
    first: asyncio.Future[T],
    second: asyncio.Future[T],
    requests: Requests,
    is_final: Callable[[BaseException], bool],
) -> asyncio.Future[T]:
    """Return the request with the first successful reply. Raises a final error at once, another error if both fail."""
    waiting: set[asyncio.Future[T]] = {first, second}
    errors: list[BaseException] = []
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        # If both replied, the first request's reply is taken.
        for one in sorted(done, key=lambda one: one is second):
            error = one.exception()
            if error is None:
                if one is second:
                    requests.count_hedge_won()
                return one
            if is_final(error):
                raise error
            errors.append(error)
    raise errors[0]


def _class(kind: Kind, size_bytes: int) -> Class:
    """Return the class of requests of similar latency: of one kind, with sizes that differ by at most a factor of four."""
    return kind, (size_bytes.bit_length() + 1) // 2


def _read_error(done: asyncio.Future[Any]) -> None:
    """Read the error of a request whose reply nobody awaits. Otherwise asyncio logs it."""
    if not done.cancelled():
        done.exception()


def percentile(ordered: list[float], share: float) -> float:
    """Return the smallest of the sorted values that at least a share of them does not exceed."""
    return ordered[max(math.ceil(len(ordered) * share - 1e-9), 1) - 1]


def chosen(options: Mapping[str, str], *, unless_given: bool = True) -> tuple[Mapping[str, str], bool]:
    """Return the options for the client, and whether slow requests are sent twice."""
    others = {name: value for name, value in options.items() if name != OPTION}
    given = options.get(OPTION)
    return others, unless_given if given is None else given.lower() == "true"


_SHARED: dict[object, Hedging] = {}


def shared(store: object, loop: asyncio.AbstractEventLoop, *, is_on: bool = True) -> Hedging:
    """Return this process's `Hedging` for a store. Roots in one store share latencies and budget, and a root that is
    opened for a moment knows them already. A fork does not use its parent's, whose requests are not its own."""
    key = (os.getpid(), store, is_on)
    return _SHARED.get(key) or _SHARED.setdefault(key, Hedging(loop, is_on=is_on))
