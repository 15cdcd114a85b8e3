"""Facts about the files of one store. One load fetches each fact at most once."""

from __future__ import annotations

from collections.abc import Collection

from statestore.format.names import StoreFileKind, StorePath, VersionId, parse_store_file
from statestore.lineage import Lineage
from statestore.loading.changelogs import Changelogs
from statestore.storage import Storage


class LoadFacts:
    """Snapshots, lineages and changelogs of one store, for one load.

    snapshots   versions with a snapshot that is not known to be unusable
    skipped     snapshots that cannot be a base, each with its problem
    lineages    lineages in changelogs, by the version of the changelog
    is_listed   whether `snapshots` contains all that storage has
    """

    def __init__(
        self, storage: Storage, store: StorePath, known_snapshots: Collection[VersionId], changelogs: Changelogs
    ) -> None:
        self.storage = storage
        self.changelogs = changelogs
        self.snapshots = set(known_snapshots)
        self.skipped: tuple[str, ...] = ()
        self.lineages: dict[VersionId, Lineage] = {}
        self.is_listed = False
        self._store = store

    def list_snapshots(self) -> None:
        """Add all snapshots in storage, unless this was done before. One request. Raises `StorageError`."""
        if self.is_listed:
            return
        self.is_listed = True
        for entry in self.storage.list(self._store.folder):
            folder, _, name = entry.path.rpartition("/")
            parsed = parse_store_file(name)
            if folder == self._store.folder and parsed is not None and parsed.kind is StoreFileKind.SNAPSHOT:
                self.snapshots.add(parsed.version)

    def skip(self, snapshot: VersionId, problem: str, *, is_usable: bool = False) -> None:
        """Record the problem of a snapshot. `is_usable`: a later plan may try it again."""
        if not is_usable:
            self.snapshots.discard(snapshot)
        path = self._store.snapshot(snapshot)
        reason = problem if problem.startswith(f"{path}: ") else f"{path}: {problem}"
        if reason not in self.skipped:
            self.skipped += (reason,)
