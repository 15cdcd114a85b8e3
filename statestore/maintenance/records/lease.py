"""The maintenance lease of a root. It is advisory; it is not a lock.

A delete can depend on the bytes of the object (`Storage.delete_unchanged`), but not on a lease that is still valid. So no
verb relies on the lease for safety; the module of each verb states its guarantee. The lease prevents duplicate work by two
maintainers, and shows which process maintains the root.

    _statekeeper/lease/00000007.json    {"run": "<id>", "holder": "host:pid", "verb": "gc", ...}

The file with the highest epoch is the current lease. Each epoch is created if absent, so only one of two maintainers
acquires the next epoch. A release creates the next epoch as well: a stalled holder finds the newer epoch and stops. A
lease expires if its holder does not renew its file for `LIFE_SECONDS`, and at once if its process has provably ended.

The holder renews the lease by a timer, because one step of its work may take hours. A run that has lost its lease stops
before it deletes a file (`require`) and before it adds one (`check`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import AlreadyExists, CorruptFile, LeaseLost, RootHeld, StatekeeperError
from statekeeper.statestore.format import json_records, names
from statekeeper.statestore.format.json_records import About, UnixSeconds
from statekeeper.statestore.storage import CheckedStorage, Entry, Storage, read_or_none

LIFE_SECONDS = 600.0
"""Longer than any request with its retries, so that a holder detects a lost lease before its next deletion."""

BEAT_SECONDS = LIFE_SECONDS / 10

_LAST_EPOCH = names.LARGEST_EPOCH - 1
"""The release of a lease needs the next epoch."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The content of a lease file, and `epoch`, the number in its name.

    `run`: id of the run that holds the lease; `holder`, `verb`: shown to people; `since_seconds`: Unix time by the clock of
    the holder; `process`: the name of its process as in `liveness`, empty if it is unknown.
    """

    epoch: int = 0
    run: str
    holder: str
    verb: str
    since_seconds: UnixSeconds
    released: bool = False
    process: str = ""

    def encoded(self, beat: int = 0) -> bytes:
        """Encode the lease as JSON; `beat` counts the renewals."""
        fields = {**asdict(self), "beat": beat}
        del fields["epoch"]
        return json_records.encoded(fields)


@dataclass(frozen=True)
class LeaseState:
    """The current lease of a root, and the Unix time at which the storage last wrote its file."""

    lease: Lease
    seen_at_seconds: float | None

    def is_alive(self, now_seconds: float) -> bool:
        """Return whether the lease is held and has not expired. A file without a modification time counts as renewed."""
        if self.lease.released or self.has_ended:
            return False
        return self.seen_at_seconds is None or now_seconds - self.seen_at_seconds < LIFE_SECONDS

    @property
    def has_ended(self) -> bool:
        """Whether this machine proves that the process of the holder has ended."""
        return has_ended(self.lease.process)


class HeldLease:
    """The lease that this process holds. A timer and the threads of a verb may renew it at the same time."""

    def __init__(self, storage: Storage, lease: Lease, clock: Clock, beat_seconds: float = BEAT_SECONDS) -> None:
        self._storage = storage
        self._lease = lease
        self._clock = clock
        self._beat_seconds = beat_seconds
        self._beats = 0
        self._beating = Lock()
        self._renewed_at = self._now()

    @property
    def storage(self) -> Storage:
        """The storage for the work under the lease: each request that writes or deletes requires the lease, as `check`."""
        return self.guarded(self._storage)

    def guarded(self, storage: Storage) -> Storage:
        """Return another storage for the work under the lease, such as the output folder of the query."""
        return CheckedStorage(storage, self.check)

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

    def check(self) -> None:
        """Require that the lease is current: before a file is added. No request if it was renewed recently, as the timer
        does, unless this process was suspended since. Raises `LeaseLost`, `StorageError`."""
        if self._is_due():
            self.require()

    def beat(self) -> None:
        """Renew the lease if the time between two renewals has passed, and if it is current."""
        if not self._is_due() or not self._beating.acquire(blocking=False):
            return
        try:
            # A stalled holder must not recreate the file that the next holder has deleted.
            if _is_newest(self._storage, self._lease.epoch):
                self._beats += 1
                self._storage.replace(names.lease(self._lease.epoch), self._lease.encoded(self._beats))
                self._renewed_at = self._now()
        finally:
            self._beating.release()

    def _is_due(self) -> bool:
        # A monotonic clock may stop while the machine sleeps, and the other clock may be set back.
        passed = (now - then for now, then in zip(self._now(), self._renewed_at, strict=True))
        return max(passed) >= self._beat_seconds

    def _now(self) -> tuple[float, float]:
        return self._clock.monotonic_seconds(), self._clock.now_seconds()

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
    lease = json_records.decoded(
        Lease,
        data,
        entry.path,
        About("lease", "no maintenance can start on this root", f"release the lease: {_breaking(storage)}"),
    )
    return LeaseState(replace(lease, epoch=epoch), entry.modified_at_seconds)


def acquire(
    storage: Storage, verb: str, *, run: str, holder: str, clock: Clock, beat_seconds: float = BEAT_SECONDS
) -> HeldLease:
    """Acquire the lease for the run with the id `run`. Raises `RootHeld` while another maintainer holds a lease that has
    not expired; `ForeignOwner`, `CorruptFile`, `StorageError`."""
    found = current(storage)
    if found is not None and found.is_alive(clock.now_seconds()):
        raise _held(storage, found, clock)
    lease = Lease(
        epoch=_after(storage, found.lease.epoch) if found else 1,
        run=run,
        holder=holder,
        verb=verb,
        since_seconds=clock.now_seconds(),
        process=this_process(),
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
        raise _held(storage, found, clock)


@contextmanager
def held(
    storage: Storage, verb: str, *, run: str, holder: str, clock: Clock, beat_seconds: float = BEAT_SECONDS
) -> Iterator[HeldLease]:
    """Hold the lease for the body of a `with` statement, and renew it by a timer. Release it also after a failure. Raises
    as `acquire`."""
    lease = acquire(storage, verb, run=run, holder=holder, clock=clock, beat_seconds=beat_seconds)
    try:
        with clock.every(beat_seconds, lease.beat):
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
    if newest[0] >= _LAST_EPOCH:
        # No run creates so many. Without the files, the epochs begin again.
        storage.delete([entry.path for _, entry in _all(storage)])
        return found.lease if found else _unknown(newest[0])
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
    return found.lease if found else _unknown(newest[0])


def _unknown(epoch: int) -> Lease:
    """The lease of a file that cannot be decoded."""
    return Lease(epoch=epoch, run="unknown", holder="unknown", verb="unknown", since_seconds=0.0)


def break_dead_lease(storage: Storage, holder: str, *, run: str, by: str, clock: Clock) -> bool:
    """Break the lease of a dead holder before the lease expires. Returns whether it held the lease. Raises `CorruptFile`;
    `RootHeld` if another maintainer acquires the lease at the same time; `StorageError`."""
    found = current(storage)
    if found is None or found.lease.released or found.lease.holder != holder:
        return False
    _create(
        storage,
        Lease(
            epoch=_after(storage, found.lease.epoch),
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


def _held(storage: Storage, found: LeaseState, clock: Clock) -> RootHeld:
    lease = found.lease
    renewed = ""
    if found.seen_at_seconds is not None:
        ago = max(0.0, clock.now_seconds() - found.seen_at_seconds)
        renewed = f"; it was renewed {ago:,.0f} s ago, and expires {LIFE_SECONDS:,.0f} s after its last renewal"
    return RootHeld(
        f"process {lease.holder} holds the lease of this root for the command {lease.verb}{renewed}; this command was not "
        "started",
        path=names.lease(lease.epoch),
        hint=f"wait until that process finishes. If it is dead, run: {_breaking(storage)}",
    )


def _breaking(storage: Storage) -> str:
    return f"statekeeper lease {shlex.quote(storage.url)} --break"


def _after(storage: Storage, epoch: int) -> int:
    """Return the next epoch. Raises `CorruptFile` if no file name can have it: no run creates so many leases."""
    if epoch >= _LAST_EPOCH:
        raise CorruptFile(
            "is the last possible lease, which no run of Statekeeper creates; no maintenance can start on this root",
            path=names.lease(epoch),
            hint=f"release the lease: {_breaking(storage)}",
        )
    return epoch + 1


def _all(storage: Storage) -> list[tuple[int, Entry]]:
    found = ((names.parse_lease(entry.path), entry) for entry in storage.list(names.LEASES))
    return [(epoch, entry) for epoch, entry in found if epoch is not None]


def _is_newest(storage: Storage, epoch: int) -> bool:
    newest = _newest(storage)
    return newest is not None and newest[0] == epoch


def _newest(storage: Storage) -> tuple[int, Entry] | None:
    return max(_all(storage), default=None, key=lambda item: item[0])


_PROC = Path("/proc")
_BOOT = _PROC / "sys/kernel/random/boot_id"
_START_FIELD = 19
"""Fields of `stat` after the name: the first is the state of the process, this is the time of its start."""
_MOST_DIGITS = 10
"""Of a process id. The record is untrusted, and Python rejects numbers of thousands of digits."""
_ENDED = frozenset({"Z", "X"})
"""States of a process that has ended, and whose parent has not noticed it."""


def this_process() -> str:
    """Return the name of this process; empty if the machine does not show it."""
    place, about = _place(), _about(os.getpid())
    return "" if place is None or about is None else f"{place}/{os.getpid()}/{about[1]}"


def has_ended(process: str) -> bool:
    """Return whether the process with this name has ended. False if it lives, or if this machine cannot prove it."""
    place, _, rest = process.rpartition("/")[0].rpartition("/")
    started = process.rpartition("/")[2]
    if not place or place != _place() or not (rest.isascii() and rest.isdecimal() and started.isdecimal()):
        return False
    if len(rest) > _MOST_DIGITS:
        return False
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        # It exists, and belongs to another user.
        pass
    about = _about(int(rest))
    return about is not None and (about[0] in _ENDED or about[1] != started)


def _place() -> str | None:
    """The start of this machine, and the namespace of the ids of this process."""
    with suppress(OSError):
        namespace = (_PROC / "self/ns/pid").stat().st_ino
        return f"{_BOOT.read_text().strip()}/{namespace}"
    return None


def _about(process_id: int) -> tuple[str, str] | None:
    """The state of a process, and the time of its start."""
    with suppress(OSError, IndexError):
        # The name of the process is in brackets, and may contain spaces and brackets.
        fields = (_PROC / str(process_id) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], fields[_START_FIELD]
    return None
