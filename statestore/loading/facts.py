"""Facts about the snapshots of one store, gathered from storage for one load."""

from __future__ import annotations

from dataclasses import dataclass

from statekeeper.statestore.format.names import EMPTY, StoreFileKind, StorePath, VersionId, parse_store_file
from statekeeper.statestore.loading.request import LoadRequest
from statekeeper.statestore.storage import Storage


@dataclass(frozen=True)
class LoadFacts:
    """Snapshots of one store.

    snapshots   versions with a snapshot that can be the base
    skipped     snapshots that cannot be a base, each with its problem
    """

    snapshots: frozenset[VersionId]
    skipped: tuple[str, ...] = ()

    def without(self, store: StorePath, snapshot: VersionId, problem: str) -> LoadFacts:
        """The facts after the snapshot turned out to be unusable."""
        path = store.snapshot(snapshot)
        reason = problem if problem.startswith(f"{path}: ") else f"{path}: {problem}"
        return LoadFacts(self.snapshots - {snapshot}, (*self.skipped, reason))


def gather(request: LoadRequest, storage: Storage) -> LoadFacts:
    """List the snapshots in storage, and add the known ones. One request, none for version 0. Raises `StorageError`.

    The listing shows the snapshots that maintenance made since the driver's last listing.
    """
    found = set(request.known_snapshots)
    if request.target != EMPTY:
        for entry in storage.list(request.store.folder):
            folder, _, name = entry.path.rpartition("/")
            parsed = parse_store_file(name, request.store.provider)
            if folder == request.store.folder and parsed is not None and parsed.kind is StoreFileKind.SNAPSHOT:
                found.add(parsed.version)
    return LoadFacts(frozenset(found))
