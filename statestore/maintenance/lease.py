"""The maintenance lease of a root. It is advisory; it is not a lock.

A delete can depend on the bytes of the object (`Storage.delete_unchanged`), but not on a lease that is still valid. So no
verb relies on the lease for safety; the module of each verb states its guarantee. The lease prevents duplicate work by two
maintainers, and shows which process maintains the root.

    _statekeeper/lease/00000007.json    {"run": "<id>", "holder": "host:pid", "verb": "gc", ...}

The file with the highest epoch is the current lease. Each epoch is created if absent, so only one of two maintainers
acquires the next epoch. A release creates the next epoch as well: a stalled holder finds the newer epoch and stops. A
lease expires if its holder does not renew its file for `LIFE_SECONDS`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from statestore.clock import Clock
from statestore.errors import AlreadyExists, CorruptFile, LeaseLost, RootHeld, StatekeeperError
from statestore.format import names
from statestore.format.untrusted import BAD_VALUES, parsed_json
from statestore.maintenance.timer import every
from statestore.storage import Entry, Storage, read_or_none

LIFE_SECONDS = 600.0
"""Longer than any request with its retries, so that a holder detects a lost lease before its next deletion."""

BEAT_SECONDS = LIFE_SECONDS / 10


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The content of a lease file.

    `run`: id of the run that holds the lease; `holder`, `verb`: shown to people; `since_seconds`: Unix time by the clock of
    the holder.
    """

    epoch: int
    run: str
    holder: str
    verb: str
    since_seconds: float
    released: bool = False

    def encoded(self, beat: int = 0) -> bytes:
        """Encode the lease as JSON; `beat` counts the renewals."""
        fields = asdict(self)
        del fields["epoch"]
        return json.dumps({**fields, "beat": beat}).encode()


@dataclass(frozen=True)
class LeaseState:
    """The current lease of a root, and the Unix time at which the storage last wrote its file."""

    lease: Lease
    seen_at_seconds: float | None

    def is_alive(self, now_seconds: float) -> bool:
        """Return whether the lease is held and has not expired. A file without a modification time counts as renewed."""
        if self.lease.released:
            return False
        return self.seen_at_seconds is None or now_seconds - self.seen_at_seconds < LIFE_SECONDS


class HeldLease:
    """The lease that this process holds."""

    def __init__(self, storage: Storage, lease: Lease, clock: Clock, beat_seconds: float = BEAT_SECONDS) -> None:
        self._storage = storage
        self._lease = lease
        self._clock = clock
        self._beat_seconds = beat_seconds
        self._beats = 0
        self._beat_at_seconds = clock.monotonic_seconds()

    def require(self) -> None:
        """Require that the lease is current, and renew it: before each deletion. One listing. Raises `LeaseLost`."""
        if not _is_newest(self._storage, self._lease.epoch):
            raise LeaseLost(
                "this run stopped because it lost the lease: another run acquired it, or a person released it with lease "
                "--break",
                path=names.lease(self._lease.epoch),
                hint="wait until the other run finishes, then run this command again",
            )
        self.beat()

    def beat(self) -> None:
        """Renew the lease if the time between two renewals has passed. Enough for work that only adds files."""
        now = self._clock.monotonic_seconds()
        if now - self._beat_at_seconds >= self._beat_seconds:
            self._beat_at_seconds = now
            # A stalled holder must not recreate the file that the next holder has deleted.
            if _is_newest(self._storage, self._lease.epoch):
                self._beats += 1
                self._storage.replace(names.lease(self._lease.epoch), self._lease.encoded(self._beats))

    def release(self) -> None:
        """Release the lease unless another maintainer acquired it. One request. The next holder deletes older epochs."""
        free = replace(self._lease, epoch=self._lease.epoch + 1, released=True)
        with suppress(AlreadyExists):
            self._storage.create(names.lease(free.epoch), free.encoded())


def current(storage: Storage) -> LeaseState | None:
    """Read the current lease; None if the root has none. Raises `CorruptFile`, `StorageError`."""
    newest = _newest(storage)
    if newest is None:
        return None
    epoch, entry = newest
    data = read_or_none(storage, entry.path)
    if data is None:
        # A newer epoch replaced it between the two requests.
        return current(storage)
    try:
        body = parsed_json(data)
        lease = Lease(
            epoch=epoch,
            run=str(body["run"]),
            holder=str(body["holder"]),
            verb=str(body["verb"]),
            since_seconds=float(body["since_seconds"]),
            released=bool(body["released"]),
        )
        datetime.fromtimestamp(lease.since_seconds, UTC)
    except BAD_VALUES as error:
        raise CorruptFile(
            "is not a valid lease; no maintenance can start on this root",
            path=entry.path,
            hint="release the lease: statekeeper lease ROOT --break",
        ) from error
    return LeaseState(lease, entry.modified_at_seconds)


def acquire(
    storage: Storage, verb: str, *, run: str, holder: str, clock: Clock, beat_seconds: float = BEAT_SECONDS
) -> HeldLease:
    """Acquire the lease for the run with the id `run`. Raises `RootHeld` while another maintainer holds a lease that has
    not expired; `ForeignOwner`, `CorruptFile`, `StorageError`."""
    found = current(storage)
    if found is not None and found.is_alive(clock.now_seconds()):
        raise _held(storage, found.lease)
    lease = Lease(
        epoch=found.lease.epoch + 1 if found else 1,
        run=run,
        holder=holder,
        verb=verb,
        since_seconds=clock.now_seconds(),
    )
    _create(storage, lease)
    old = [entry.path for epoch, entry in _all(storage) if epoch < lease.epoch]
    storage.delete(old)
    return HeldLease(storage, lease, clock, beat_seconds)


def require_free(storage: Storage, *, clock: Clock) -> None:
    """Require that `acquire` is possible now: no other maintainer holds a lease that has not expired. One listing, and one
    request if there is a lease. Raises `RootHeld`, `CorruptFile`, `StorageError`."""
    found = current(storage)
    if found is not None and found.is_alive(clock.now_seconds()):
        raise _held(storage, found.lease)


@contextmanager
def beating(
    storage: Storage, verb: str, *, run: str, holder: str, clock: Clock, beat_seconds: float = BEAT_SECONDS
) -> Iterator[HeldLease]:
    """Hold the lease as `held`, and renew it by a timer: for work whose steps may take hours."""
    with (
        held(storage, verb, run=run, holder=holder, clock=clock, beat_seconds=beat_seconds) as lease,
        every(beat_seconds, lease.beat),
    ):
        yield lease


@contextmanager
def held(
    storage: Storage, verb: str, *, run: str, holder: str, clock: Clock, beat_seconds: float = BEAT_SECONDS
) -> Iterator[HeldLease]:
    """Hold the lease for the body of a `with` statement; release it also after a failure. Raises as `acquire`."""
    lease = acquire(storage, verb, run=run, holder=holder, clock=clock, beat_seconds=beat_seconds)
    try:
        yield lease
    except BaseException:
        # Report the failure of the body, not of the release. An unreleased lease expires.
        with suppress(StatekeeperError):
            lease.release()
        raise
    lease.release()


def break_lease(storage: Storage, *, run: str, holder: str, clock: Clock) -> Lease | None:
    """Break the current lease. Returns it; None if no maintainer holds the lease. Raises `RootHeld`, `StorageError`."""
    newest = _newest(storage)
    if newest is None:
        return None
    try:
        found = current(storage)
    except CorruptFile:
        found = None
    if found is not None and found.lease.released:
        return None
    _create(
        storage,
        Lease(
            epoch=newest[0] + 1,
            run=run,
            holder=holder,
            verb="lease --break",
            since_seconds=clock.now_seconds(),
            released=True,
        ),
    )
    return (
        found.lease
        if found
        else Lease(epoch=newest[0], run="unknown", holder="unknown", verb="unknown", since_seconds=0.0)
    )


def break_dead_lease(storage: Storage, holder: str, *, run: str, by: str, clock: Clock) -> bool:
    """Break the lease of a dead holder before the lease expires. Returns whether it held the lease. Raises `CorruptFile`;
    `RootHeld` if another maintainer acquires the lease at the same time; `StorageError`."""
    found = current(storage)
    if found is None or found.lease.released or found.lease.holder != holder:
        return False
    _create(
        storage,
        Lease(
            epoch=found.lease.epoch + 1,
            run=run,
            holder=by,
            verb="lease --break",
            since_seconds=clock.now_seconds(),
            released=True,
        ),
    )
    return True


def _create(storage: Storage, lease: Lease) -> None:
    # Every verb that writes starts here: a verb that cannot keep the owner of the files is rejected before it writes.
    storage.require_ownership()
    try:
        storage.create(names.lease(lease.epoch), lease.encoded())
    except AlreadyExists as error:
        raise RootHeld(
            "another process acquired the lease at the same time; this command was not started",
            path=names.lease(lease.epoch),
            hint="wait until the other run finishes, then run this command again",
        ) from error


def _held(storage: Storage, lease: Lease) -> RootHeld:
    return RootHeld(
        f"process {lease.holder} holds the lease of this root for the command {lease.verb}; this command was not started",
        path=names.lease(lease.epoch),
        hint=f"wait until that process finishes. If it is dead, run: statekeeper lease {shlex.quote(storage.url)} --break",
    )


def _all(storage: Storage) -> list[tuple[int, Entry]]:
    found = ((names.parse_lease(entry.path), entry) for entry in storage.list(names.LEASES))
    return [(epoch, entry) for epoch, entry in found if epoch is not None]


def _is_newest(storage: Storage, epoch: int) -> bool:
    newest = _newest(storage)
    return newest is not None and newest[0] == epoch


def _newest(storage: Storage) -> tuple[int, Entry] | None:
    return max(_all(storage), default=None, key=lambda item: item[0])
