"""Which snapshots a root has, while a query runs: the lineage of the next versions starts at the newest of them.

All of `state/` is listed once. From then on maintenance's own records say what changed: a look costs one listing of the
lease, which holds one or two files, and after a run of maintenance a listing of the records and a request for each that
is new.

Snapshots that no record names are not seen. This does no harm: the lineage gets longer, and the job looks at all of
`state/` again before it gets too long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from statekeeper.statestore.base.errors import CorruptFile
from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath, VersionId
from statekeeper.statestore.maintenance.records import history
from statekeeper.statestore.maintenance.records.history import PlannedDeletion, PlannedSnapshot, TakenSnapshot
from statekeeper.statestore.storage import Entry, Storage

Snapshots = Mapping[StorePath, frozenset[VersionId]]


class KnownSnapshots:
    """The known snapshots of a root. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        self._lock = threading.Lock()
        self._lease: tuple[Entry, ...] = ()
        self._records: frozenset[str] = frozenset()
        self._unfinished: dict[str, str] = {}
        self._found: Snapshots = {}
        self.look_at_all(storage)

    @property
    def versions(self) -> Snapshots:
        """Return store -> versions that have a snapshot."""
        return self._found

    def look_at_all(self, storage: Storage) -> None:
        """List all of `state/`. Raises `StorageError`."""
        with self._lock:
            self._look_at_all(storage)

    def look(self, storage: Storage) -> None:
        """Apply the records of maintenance since the last call. Raises `StorageError`."""
        with self._lock:
            lease = tuple(storage.list(names.LEASES))
            # A maintenance run acquires the lease, renews it, and releases it after it has written its record.
            if lease == self._lease:
                return
            try:
                self._follow(storage, lease)
            except CorruptFile:
                self._look_at_all(storage)

    def _look_at_all(self, storage: Storage) -> None:
        # List records before files: a snapshot recorded in between is then in both.
        lease = tuple(storage.list(names.LEASES))
        records = _records(storage)
        self._found = catalog.snapshots(storage)
        self._lease, self._records = lease, records
        self._unfinished = dict.fromkeys(_unfinished(records, records), _epoch(lease))

    def _follow(self, storage: Storage, lease: tuple[Entry, ...]) -> None:
        records = _records(storage)
        found = {store: set(versions) for store, versions in self._found.items()}
        for path in sorted(records - self._records):
            known = names.parse_history(path)
            if known in (("snapshot", "plan"), ("gc", "outcome"), None):
                continue
            if known == ("snapshot", "outcome"):
                for store, version in _taken(storage, path):
                    found.setdefault(store, set()).add(version)
            elif known == ("gc", "plan"):
                for store, version in _deleted(storage, path):
                    found.get(store, set()).discard(version)
            else:
                # The record of a switchover or a repair does not name all changed files.
                self._look_at_all(storage)
                return
        unfinished = {path: self._unfinished.get(path, _epoch(lease)) for path in self._waiting(records)}
        # Runs that ended before they recorded their snapshots.
        abandoned = [path for path, epoch in unfinished.items() if epoch != _epoch(lease)]
        for store in sorted({store for path in abandoned for store in _planned(storage, path)}):
            of_store = catalog.by_store(storage.list(store.folder)).get(store)
            found[store] = set(of_store.snapshots) if of_store else set()
        self._found = {store: frozenset(versions) for store, versions in found.items() if versions}
        self._lease, self._records = lease, records
        self._unfinished = {path: epoch for path, epoch in unfinished.items() if path not in abandoned}

    def _waiting(self, records: frozenset[str]) -> Iterable[str]:
        new = _unfinished(records - self._records, records)
        return [*new, *(path for path in self._unfinished if names.outcome_of(path) not in records)]


def _records(storage: Storage) -> frozenset[str]:
    return frozenset(entry.path for entry in storage.list(names.HISTORY))


def _unfinished(plans: Iterable[str], records: frozenset[str]) -> list[str]:
    """Return the snapshot plans among these records that have no outcome."""
    wanted = ("snapshot", "plan")
    return [path for path in plans if names.parse_history(path) == wanted and names.outcome_of(path) not in records]


def _epoch(lease: tuple[Entry, ...]) -> str:
    return max((entry.path for entry in lease), default="")


def _taken(storage: Storage, path: str) -> Iterable[tuple[StorePath, VersionId]]:
    """Yield the snapshots that a run made."""
    for record in history.read(storage, path):
        if isinstance(record, TakenSnapshot):
            yield record.store, record.version


def _deleted(storage: Storage, path: str) -> Iterable[tuple[StorePath, VersionId]]:
    """Yield the snapshots that a run of retention is about to delete."""
    for record in history.read(storage, path):
        if isinstance(record, PlannedDeletion) and record.snapshot is not None:
            yield record.snapshot


def _planned(storage: Storage, path: str) -> Iterable[StorePath]:
    """Yield the stores for which a run was about to make a snapshot."""
    for record in history.read(storage, path):
        if isinstance(record, PlannedSnapshot):
            yield record.store


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
