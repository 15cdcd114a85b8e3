"""Who maintains a root: a lease, which is advice and no lock.

A delete can depend on the bytes of the object itself (`Storage.delete_unchanged`), but not on a lease that still stands. So
nothing is safe *because* of the lease: each verb's own module says what makes it safe. The lease saves two maintainers from
doing the same work, and shows a person who is at work.

    _statekeeper/lease/00000007.json    {"run": "<id>", "holder": "host:pid", "verb": "gc", ...}

The highest epoch counts. Each is created if absent, so of two maintainers that want the next one, one gets it. A release
creates the next epoch, too: a holder that stalled finds the epoch of its successor there, and changes nothing. A lease has
expired when its file was not written again for `LIFE_SECONDS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from statestore.clock import Clock
from statestore.errors import AlreadyExists, CorruptFile, LeaseLost, RootHeld, StatekeeperError
from statestore.format import names
from statestore.format.untrusted import BAD_VALUES, parsed_json
from statestore.storage import Entry, Storage, read_or_none

LIFE_SECONDS = 600.0
"""Longer than any request with its retries, so that who lost the lease learns of it before the next deletion."""

_BEAT_SECONDS = LIFE_SECONDS / 10


@dataclass(frozen=True)
class Lease:
    """What a lease file says. `run` is the id of the holding run; `holder` and `verb` are for people; times are seconds
    since the epoch, by the holder's clock."""

    epoch: int
    run: str
    holder: str
    verb: str
    since_seconds: float
    released: bool = False

    def encoded(self, beat: int = 0) -> bytes:
        """Its bytes; `beat` tells one writing of it from the next."""
        fields = asdict(self)
        del fields["epoch"]
        return json.dumps({**fields, "beat": beat}).encode()


@dataclass(frozen=True)
class LeaseState:
    """The newest lease of a root, and when the store last saw it written (seconds since the epoch)."""

    lease: Lease
    seen_at_seconds: float | None

    def is_alive(self, now_seconds: float) -> bool:
        """Whether somebody is to be thought of as being at it. A file without a time counts as fresh."""
        if self.lease.released:
            return False
        return self.seen_at_seconds is None or now_seconds - self.seen_at_seconds < LIFE_SECONDS


class HeldLease:
    """A lease that this process holds."""

    def __init__(self, storage: Storage, lease: Lease, clock: Clock) -> None:
        self._storage = storage
        self._lease = lease
        self._clock = clock
        self._beats = 0
        self._beat_at_seconds = clock.monotonic_seconds()

    def require(self) -> None:
        """Call it before each deletion: one listing, and `beat`. Raises `LeaseLost`."""
        if not _is_newest(self._storage, self._lease.epoch):
            raise LeaseLost(
                "another maintainer took over, or the lease was broken",
                path=names.lease(self._lease.epoch),
                hint="run it again when the other one is through",
            )
        self.beat()

    def beat(self) -> None:
        """A sign of life, when the last one is some time ago. For work that only adds files."""
        now = self._clock.monotonic_seconds()
        if now - self._beat_at_seconds >= _BEAT_SECONDS:
            self._beat_at_seconds = now
            # A holder that stalled would write its file anew, which its successor has deleted.
            if _is_newest(self._storage, self._lease.epoch):
                self._beats += 1
                self._storage.replace(names.lease(self._lease.epoch), self._lease.encoded(self._beats))

    def release(self) -> None:
        """Give it back, unless another maintainer took it over. One request. The next holder deletes the older epochs."""
        free = replace(self._lease, epoch=self._lease.epoch + 1, released=True)
        with suppress(AlreadyExists):
            self._storage.create(names.lease(free.epoch), free.encoded())


def standing(storage: Storage) -> LeaseState | None:
    """The newest lease; None when nobody ever held one. Raises `CorruptFile`, `StorageError`."""
    newest = _newest(storage)
    if newest is None:
        return None
    epoch, entry = newest
    data = read_or_none(storage, entry.path)
    if data is None:
        # A newer one took its place between the two requests.
        return standing(storage)
    try:
        body = parsed_json(data)
        lease = Lease(
            epoch,
            str(body["run"]),
            str(body["holder"]),
            str(body["verb"]),
            float(body["since_seconds"]),
            bool(body["released"]),
        )
        datetime.fromtimestamp(lease.since_seconds, UTC)
    except BAD_VALUES as error:
        raise CorruptFile(
            "is not what a lease holds", path=entry.path, hint="break it: statekeeper lease --break"
        ) from error
    return LeaseState(lease, entry.modified_at_seconds)


def acquire(storage: Storage, verb: str, *, run: str, holder: str, clock: Clock) -> HeldLease:
    """Take the lease for the run of an id. Raises `RootHeld` when another maintainer has it and was seen lately, and
    `ForeignOwner`."""
    found = standing(storage)
    if found is not None and found.is_alive(clock.now_seconds()):
        raise _held(found.lease)
    lease = Lease(found.lease.epoch + 1 if found else 1, run, holder, verb, clock.now_seconds())
    _create(storage, lease)
    old = [entry.path for epoch, entry in _all(storage) if epoch < lease.epoch]
    storage.delete(old)
    return HeldLease(storage, lease, clock)


@contextmanager
def held(storage: Storage, verb: str, *, run: str, holder: str, clock: Clock) -> Iterator[HeldLease]:
    """The lease for a piece of work, given back when it ends, well or not. Raises as `acquire`."""
    lease = acquire(storage, verb, run=run, holder=holder, clock=clock)
    try:
        yield lease
    except BaseException:
        # What failed is told, not that the lease could not be given back: the next holder waits until it has died.
        with suppress(StatekeeperError):
            lease.release()
        raise
    lease.release()


def break_lease(storage: Storage, *, run: str, holder: str, clock: Clock) -> Lease | None:
    """Take the lease from whoever has it, and give it back at once. Returns whose it was; None when nobody had it."""
    newest = _newest(storage)
    if newest is None:
        return None
    try:
        found = standing(storage)
    except CorruptFile:
        found = None
    if found is not None and found.lease.released:
        return None
    _create(storage, Lease(newest[0] + 1, run, holder, "lease --break", clock.now_seconds(), released=True))
    return found.lease if found else Lease(newest[0], "unknown", "unknown", "unknown", 0.0)


def free_of_dead(storage: Storage, holder: str, *, run: str, by: str, clock: Clock) -> bool:
    """Break the lease of a holder that is known to be dead, so that nobody waits until it is taken for dead; whether it
    had the lease. Raises `CorruptFile`, `RootHeld` when somebody took it at the same moment, `StorageError`."""
    found = standing(storage)
    if found is None or found.lease.released or found.lease.holder != holder:
        return False
    _create(storage, Lease(found.lease.epoch + 1, run, by, "lease --break", clock.now_seconds(), released=True))
    return True


def _create(storage: Storage, lease: Lease) -> None:
    # Each verb that writes begins here: what it could not hand over to the query is refused before the first file.
    storage.require_ownership()
    try:
        storage.create(names.lease(lease.epoch), lease.encoded())
    except AlreadyExists as error:
        raise RootHeld(
            "another maintainer took the lease at the same moment",
            path=names.lease(lease.epoch),
            hint="run it again when the other one is through",
        ) from error


def _held(lease: Lease) -> RootHeld:
    return RootHeld(
        f"{lease.holder} is at it: {lease.verb}",
        path=names.lease(lease.epoch),
        hint="wait until it is through; if it is dead, `statekeeper lease ROOT --break`",
    )


def _all(storage: Storage) -> list[tuple[int, Entry]]:
    found = ((names.parse_lease(entry.path.rpartition("/")[2]), entry) for entry in storage.list(names.LEASES))
    return [(epoch, entry) for epoch, entry in found if epoch is not None]


def _is_newest(storage: Storage, epoch: int) -> bool:
    newest = _newest(storage)
    return newest is not None and newest[0] == epoch


def _newest(storage: Storage) -> tuple[int, Entry] | None:
    return max(_all(storage), default=None, key=lambda item: item[0])
