"""Holds of batches. A verb that reads the files of a batch for hours holds the batch, so that retention keeps them.

    _statekeeper/holds/<run>.json    {"batch": 812, "holder": "host:1234", "verb": "savepoint", ...}

Race: retention plans to delete the files of a batch; a verb begins to read the batch; retention deletes the files. So the
verb first writes its hold, then requires that no verb that deletes files has the lease, then verifies that the files still
exist. Such a verb lists the holds after it has acquired the lease and before its first deletion. So one of both detects the
other. `snapshot` only adds files: it may have the lease at the same time.

A hold lowers the floor of retention to its batch, also for logs. A verb renews its hold, and deletes it at its end. The
hold of a dead run expires after `LIFE_SECONDS`, by the clock of the storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from statekeeper.statestore.base.clock import Clock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.format import json_records, names, savepoint_names
from statekeeper.statestore.format.json_records import About, Count
from statekeeper.statestore.maintenance.records import lease
from statekeeper.statestore.maintenance.records.announcements import LIFE_SECONDS
from statekeeper.statestore.storage import Entry, Storage, read_or_none

_ABOUT = About("hold of a batch", hint="make sure that no clone, mirror or savepoint is running. Then delete the file")
_ONLY_ADDS = frozenset({"snapshot"})
"""Verbs that delete or move no file of the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A batch whose files must stay. `holder`, `verb`: shown to people."""

    batch: Count
    holder: str
    verb: str

    @property
    def version(self) -> int:
        """The oldest version that retention must keep."""
        return self.batch + 1

    def encoded(self, renewals: int) -> bytes:
        """Encode the hold."""
        return json_records.encoded({**asdict(self), "renewals": renewals})


@contextmanager
def held(
    storage: Storage, hold: Hold, *, run: str, clock: Clock, renew_seconds: float = lease.BEAT_SECONDS
) -> Iterator[None]:
    """Hold a batch for the body of a `with` statement, and renew the hold every `renew_seconds`.

    The body must first verify that the files of the batch exist. Raises `RootHeld` while a verb that deletes files has the
    lease; `ForeignOwner`, `StorageError`.
    """
    storage.require_ownership()
    path, renewals = savepoint_names.hold(run), 0

    def renew() -> None:
        nonlocal renewals
        renewals += 1
        storage.replace(path, hold.encoded(renewals))

    storage.create(path, hold.encoded(0))
    try:
        _require_no_deletions(storage, hold, run, clock)
        with clock.every(renew_seconds, renew):
            yield
    except BaseException:
        # Report the failure of the body, not of the release. A hold that is not deleted expires.
        with suppress(StatekeeperError):
            storage.delete([path])
        raise
    storage.delete([path])


def require_possible(storage: Storage, *, clock: Clock) -> None:
    """Require that `held` is possible now: no verb that deletes files has the lease. Reads only. Raises `RootHeld`,
    `CorruptFile`, `StorageError`."""
    found = lease.current(storage)
    if found is not None and found.lease.verb not in _ONLY_ADDS:
        lease.require_free(storage, clock=clock)


def _require_no_deletions(storage: Storage, hold: Hold, run: str, clock: Clock) -> None:
    """Require that no verb that deletes files has the lease. A stalled run, whose lease has expired, loses it, so that it
    deletes nothing."""
    found = lease.current(storage)
    if found is not None and found.lease.verb not in _ONLY_ADDS and not found.lease.released:
        with lease.held(storage, hold.verb, run=run, holder=hold.holder, clock=clock):
            pass


def current(storage: Storage) -> tuple[Hold, ...]:
    """Read the holds that have not expired. One listing, and more only if there are holds. Call it with the lease, whose
    file shows the time of the storage. Raises `CorruptFile`, `StorageError`."""
    entries = storage.list(savepoint_names.HOLDS)
    if not entries:
        return ()
    seen = [entry.modified_at_seconds or 0.0 for entry in (*entries, *storage.list(names.LEASES))]
    return among(storage, entries, max(seen))


def among(storage: Storage, entries: Iterable[Entry], now_seconds: float) -> tuple[Hold, ...]:
    """Read the holds of a listing that have not expired at a time of the storage's clock.

    Raises `CorruptFile` for a hold that cannot be decoded, because its batch is unknown; `StorageError`.
    """
    alive = [entry for entry in entries if not _is_expired(entry, now_seconds)]
    bodies = [(entry.path, read_or_none(storage, entry.path)) for entry in alive]
    return tuple(_parsed(data, path) for path, data in bodies if data is not None)


def _is_expired(entry: Entry, now_seconds: float) -> bool:
    return entry.modified_at_seconds is not None and now_seconds - entry.modified_at_seconds >= LIFE_SECONDS


def _parsed(data: bytes, path: str) -> Hold:
    return json_records.decoded(Hold, data, path, _ABOUT)
