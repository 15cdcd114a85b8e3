"""A scheduler of actors in virtual time, in an order that a seed determines.

Each actor is real code in its own thread, and one actor runs at a time. `pause` ends its turn. The next actor is the one
with the earliest wake-up time. No actor waits in real time, and the same seed gives the same schedule.
"""

from __future__ import annotations

import hashlib
import random
import threading
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

START_SECONDS = 1_700_000_000.0
_TAIL_TURNS = 120


class Over(BaseException):
    """The simulation has ended while this actor waited. Not an Exception: no handler of the library holds it up."""


class Actor:
    """One thread of the schedule."""

    def __init__(self, turns: Turns, name: str, work: Callable[[Actor], None]) -> None:
        self.name = name
        self.wakes_at_seconds = turns.now_seconds
        self.done = False
        self._turns = turns
        self._work = work
        self._baton = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def pause(self, seconds: float) -> None:
        """Let other actors run until this number of virtual seconds has passed."""
        if self._turns.over:
            raise Over
        self.wakes_at_seconds = self._turns.now_seconds + seconds
        self._turns.give_back()
        self._baton.acquire()
        if self._turns.over:
            raise Over

    def take_turn(self) -> None:
        """Go on. For the scheduler."""
        self._baton.release()

    def join(self) -> None:
        """Wait until its thread has ended. For the scheduler."""
        self._thread.join()

    def _live(self) -> None:
        self._baton.acquire()
        try:
            if not self._turns.over:
                self._work(self)
        except Over:
            pass
        except BaseException as error:
            self._turns.failed(error)
        self.done = True
        self._turns.give_back()


class Turns:
    """The schedule: the actor whose turn it is, the virtual time, and the source of all random choices."""

    def __init__(self, seed: int, show: Callable[[str], None] | None = None) -> None:
        self.chance = random.Random(seed)
        self.now_seconds = START_SECONDS
        self.over = False
        self.tail: deque[str] = deque(maxlen=_TAIL_TURNS)
        self.noted = 0
        self._actors: list[Actor] = []
        self._back = threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._digest = hashlib.sha256()
        self._show = show

    @property
    def digest(self) -> str:
        """A name for all that was noted: equal for equal schedules."""
        return self._digest.hexdigest()

    def spawn(self, name: str, work: Callable[[Actor], None], *, after_seconds: float = 0.0) -> Actor:
        """Start an actor whose first turn is after this number of virtual seconds."""
        actor = Actor(self, name, work)
        actor.wakes_at_seconds = self.now_seconds + after_seconds
        self._actors.append(actor)
        return actor

    def run(self) -> None:
        """Run until all actors have ended. If an actor raises an error, stop the others and raise it."""
        try:
            while self._actors:
                actor = min(self._actors, key=lambda one: one.wakes_at_seconds)
                self.now_seconds = max(self.now_seconds, actor.wakes_at_seconds)
                self._let(actor)
                if actor.done:
                    self._actors.remove(actor)
                if self._failure is not None:
                    raise self._failure
        finally:
            self.over = True
            for actor in self._actors:
                while not actor.done:
                    self._let(actor)
            self._actors.clear()

    def give_back(self) -> None:
        """An actor's turn has ended."""
        self._back.release()

    def failed(self, error: BaseException) -> None:
        """An actor ended badly."""
        self._failure = self._failure or error

    def note(self, line: str) -> None:
        """Record an event."""
        whole = f"{self.now_seconds - START_SECONDS:12.3f}  {line}"
        self.noted += 1
        self.tail.append(whole)
        self._digest.update(whole.encode())
        if self._show is not None:
            self._show(whole)

    def _let(self, actor: Actor) -> None:
        actor.take_turn()
        self._back.acquire()
        if actor.done:
            actor.join()


class VirtualClock:
    """A host's clock: virtual time, and how far it is off. A simulated host never sleeps in the library."""

    def __init__(self, turns: Turns) -> None:
        self.off_by_seconds = 0.0
        self._turns = turns

    def now_seconds(self) -> float:
        return self._turns.now_seconds + self.off_by_seconds

    def monotonic_seconds(self) -> float:
        return self._turns.now_seconds - START_SECONDS

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"the library slept {seconds} s")

    def every(self, seconds: float, action: Callable[[], None]) -> AbstractContextManager[None]:
        """Do nothing: the timer of a simulated host is as slow as its work, so that leases expire."""
        return nullcontext()


class SeededIds:
    """UUIDs out of a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def fresh(self) -> str:
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))


class InAnyOrder:
    """In place of a pool of threads: requests that go out together arrive one by one, in an order that chance decides."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __call__(self, _workers: int) -> InAnyOrder:
        return self

    def __enter__(self) -> InAnyOrder:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def map(self, work: Callable[[object], None], items: list[object]) -> map[None]:
        """Like an executor's, over items that are shuffled."""
        shuffled = list(items)
        self._chance.shuffle(shuffled)
        return map(work, shuffled)
